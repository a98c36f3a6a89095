"""The delivery of messages that waited, whether for their delay level or for a time: what both services do in one way.

A delivery holds where its message waited: its prepared transaction offset, which in a committed message says where the
half one is, is the physical offset of that message and 1. So the log tells, after any crash, which messages came
(``store/reading/deliveries.py``).
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from rocketcore.broker.record import StoredRecord
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.store import MessageStore, PutResult, PutStatus
from rocketcore.broker.store.timed import TIMED_TOPICS
from rocketcore.codes import TRANSACTION_MASK
from rocketcore.message import REAL_QUEUE_ID, REAL_TOPIC
from rocketcore.service import Clock

__all__ = ["ERROR_SECONDS", "InFlight", "Outdated", "Put", "Undeliverable", "mark_of", "put_delivery"]

ERROR_SECONDS = 10.0
"""How long what failed rests, where it may heal, as upstream's."""

_MOST = 1024
_REFILL = _MOST // 2

logger = logging.getLogger(__name__)


class Outdated:
    """A file of positions that may say more than the store holds.

    The store will grow past what was noted, which must not be believed then: the file is replaced first.

    found   whether it does
    encode  what the file is to say
    what    what is not saved, and who waits for it, for the log
    """

    def __init__(self, file: JsonFile, encode: Callable[[], bytes], clock: Clock, what: str) -> None:
        self.found = False
        self._file = file
        self._encode = encode
        self._clock = clock
        self._what = what
        self._again_at = -math.inf

    def replace(self) -> bool:
        """Replace the file where it is outdated, and it is time; whether it is right now."""
        now = self._clock.monotonic()
        if self.found and now >= self._again_at:
            try:
                self._file.save(self._encode())
                self.found = False
            except OSError as error:
                self._again_at = now + ERROR_SECONDS
                logger.error("%s path=%s again_in=%gs reason=%s", *(self._what, self._file.path, ERROR_SECONDS, error))
        return not self.found


class Undeliverable(Exception):
    """Why a message can never be delivered."""


def mark_of(record: StoredRecord) -> int:
    """What tells a message's delivery from others in the log; never 0, which all other messages have."""
    return record.physical_offset + 1


def put_delivery(
    store: MessageStore,
    record: StoredRecord,
    properties: Mapping[str, str],
    is_gone: Callable[[str, int], bool],
) -> PutResult:
    """Put a message that waited where it is for; its text stays as it is.

    properties  what that text says
    is_gone     (topic, physical offset): whether the topic was deleted after a message for it was stored there
    returns     what the store says, PUT_OK or that it takes nothing at the moment
    raises      Undeliverable
    """
    message = record.message
    message.topic, message.queue_id = _real_place(properties)
    if is_gone(message.topic, record.physical_offset):
        raise Undeliverable(f"topic {message.topic} was deleted")
    message.sys_flag &= ~TRANSACTION_MASK
    message.prepared_transaction_offset = mark_of(record)
    result = store.put(message)
    if result.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
        raise Undeliverable(f"topic {message.topic} does not take it: {result.reason}")
    return result


def _real_place(properties: Mapping[str, str]) -> tuple[str, int]:
    """Return topic and queue id that a message is for; raises Undeliverable."""
    topic, queue_id = properties.get(REAL_TOPIC), properties.get(REAL_QUEUE_ID, "")
    if not topic or topic in TIMED_TOPICS or not (queue_id.isascii() and queue_id.isdigit()):
        raise Undeliverable(f"it has no real topic and queue: {topic!r}, {queue_id!r}")
    return topic, int(queue_id)


class Put(NamedTuple):
    """A delivery that was put: where its message waited, its topic and queue, where it went, and when it was due."""

    queue_offset: int
    topic: str
    queue_id: int
    result: PutResult
    due: int = 0


class InFlight:
    """Deliveries on their way to the disk, in the order of the log.

    on_put  (topic, messages, bytes, 1, queue id), for statistics
    refill  called when half of what may be in flight is stored, after there was no room
    """

    def __init__(
        self, store: MessageStore, on_put: Callable[[str, int, int, int, int], None], refill: Callable[[], None]
    ) -> None:
        self._store = store
        self._on_put = on_put
        self._refill = refill
        self._groups: deque[list[Put]] = deque()
        self._messages = 0
        self._is_full = False
        self._refill_at = _REFILL

    def __iter__(self) -> Iterator[Put]:
        """Those that are not on disk yet."""
        return itertools.chain.from_iterable(self._groups)

    @property
    def first(self) -> Put | None:
        """The first that is not on disk yet."""
        return self._groups[0][0] if self._groups else None

    def has_room(self) -> bool:
        """Whether more may be put now."""
        self._is_full, self._refill_at = self._messages >= _MOST, _REFILL
        return not self._is_full

    def go_on_later(self) -> None:
        """Have more put when all of this is stored, though there is room."""
        self._is_full, self._refill_at = True, 0

    def add(self, puts: list[Put]) -> None:
        """Note what was put, at least one, and wait until it is stored."""
        self._groups.append(puts)
        self._messages += len(puts)
        self._await(puts)
        try:
            for (topic, queue_id), there in itertools.groupby(puts, lambda put: (put.topic, put.queue_id)):
                sizes = [put.result.size for put in there]
                self._on_put(topic, len(sizes), sum(sizes), 1, queue_id)
        except Exception:
            logger.exception("deliveries not counted")

    def _await(self, puts: list[Put]) -> None:
        self._store.wait(puts[-1].result.end_offset, lambda status: self._note_put_status(puts, status))

    def _note_put_status(self, puts: list[Put], status: PutStatus) -> None:
        """Note what counts as stored."""
        if status is PutStatus.FLUSH_DISK_TIMEOUT:
            # The disk may still take it or fail: not delivered yet, and not to be put again.
            self._await(puts)
            return
        if status is not PutStatus.PUT_OK:
            # The store takes nothing any more, and the log may have it: the next start looks.
            return
        self._messages -= len(puts)
        self.forget_synced()
        if self._is_full and self._messages <= self._refill_at:
            self._refill()

    def forget_synced(self) -> None:
        """Count as delivered what is on disk: a power cut may take what asynchronous flush calls stored."""
        synced = self._store.synced_offset
        while self._groups and self._groups[0][-1].result.end_offset <= synced:
            self._groups.popleft()
