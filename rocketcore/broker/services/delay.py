"""Delayed delivery by level (Java: ``ScheduleMessageService``, 5.5.0).

A delayed message lies in queue ``level - 1`` of SCHEDULE_TOPIC_XXXX and carries its real topic and queue as properties.
Messages of one level come due in the order in which they were stored, so each level is one position in one queue.

File     ``config/delayOffset.json``: ``{"dataVersion", "offsetTable": {level: next queue offset}}``. It holds only what
         is durable in the real topic: after a crash a delivery may repeat, none is lost.
Never    early: a message whose time lies further away than its level is long (the clock went back) waits the length
         of the level from when it was first looked at. Upstream delivers it at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rocketcore._fast.header import decode_properties, encode_properties
from rocketcore.broker.record import RecordReader, StoredRecord
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.store import MessageStore, PutStatus, StoredMessage
from rocketcore.codes import SCHEDULE_TOPIC, TRANSACTION_MASK
from rocketcore.message import DELAY, REAL_QUEUE_ID, REAL_TOPIC
from rocketcore.protocol.bodies import DataVersion, DelayOffsetSerializeWrapper
from rocketcore.service import SYSTEM_CLOCK, Clock, PeriodicTask

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1
_MAX_PER_READ = 32
_MAX_IN_FLIGHT = 1024
_NEVER = 1 << 62


def schedule(message: StoredMessage, properties: Mapping[str, str], level: int, level_count: int) -> StoredMessage:
    """Return the message as it waits for its time: in the queue of its level, its real place in its properties."""
    level = min(level, level_count)
    marked = {**properties, DELAY: str(level), REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(message.queue_id)}
    return replace(message, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=encode_properties(marked))


@dataclass(slots=True)
class _Level:
    number: int
    delay_millis: int
    cursor: int = 0
    """Next queue offset to look at."""
    delivered: int = 0
    """Every message before this one is durable in its real topic."""
    in_flight: int = 0
    next_due: int = 0
    """Wall time before which there is nothing to do."""
    head: int = -1
    head_seen: float = 0.0
    """The message at the head when the clock had gone back, and when it was first seen (monotonic)."""

    @property
    def queue_id(self) -> int:
        return self.number - 1


class DelayService:
    """Moves delayed messages to their real topics when they are due; driven by ``deliver_due``, every 100 ms.

    on_put  (topic, messages, bytes), for statistics
    """

    def __init__(
        self,
        store: MessageStore,
        delay_levels: tuple[int, ...],
        file: JsonFile,
        *,
        on_put: Callable[[str, int, int], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._file = file
        self._on_put = on_put
        self._clock = clock
        self._levels = [_Level(number, millis) for number, millis in enumerate(delay_levels, 1)]
        self._reader = RecordReader(_MAX_PER_READ)
        self._version = DataVersion()
        self._saved: list[int] = []
        self._task = PeriodicTask("broker-delay", self.deliver_due, TICK_SECONDS)

    @property
    def file(self) -> JsonFile:
        return self._file

    def load(self) -> None:
        """Read the positions, once the store is loaded; each is brought into the bounds of its queue."""
        saved = self._file.load(DelayOffsetSerializeWrapper.from_json)
        table = {} if saved is None else saved.offset_table
        if saved is not None:
            self._version = saved.data_version
        for level in self._levels:
            low, high = self._bounds(level)
            level.cursor = level.delivered = min(max(table.get(level.number, 0), low), high)

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        await self._task.stop()

    def message_arrived(self, queue_id: int) -> None:
        """Note that a level has a new message; it cannot be due before the ones that it waits behind."""
        if queue_id < len(self._levels):
            level = self._levels[queue_id]
            if level.next_due == _NEVER:
                level.next_due = 0

    def positions(self) -> dict[int, tuple[int, int]]:
        """Level → (next message, end of its queue)."""
        return {level.number: (level.delivered, self._bounds(level)[1]) for level in self._levels}

    def encode(self) -> bytes:
        """The positions as the file holds them and as request 45 answers them."""
        table = {level.number: level.delivered for level in self._levels}
        return DelayOffsetSerializeWrapper(table, self._version).encode()

    def take_changes(self) -> bool:
        """Say whether a position moved since the last call."""
        positions = [level.delivered for level in self._levels]
        if positions == self._saved:
            return False
        self._saved = positions
        self._version.next_version(self._clock.time_millis())
        return True

    def deliver_due(self) -> None:
        """Deliver what is due now in every level."""
        now = self._clock.time_millis()
        for level in self._levels:
            while level.next_due <= now and level.in_flight < _MAX_IN_FLIGHT:
                if not self._deliver_some(level, now):
                    break

    def _bounds(self, level: _Level) -> tuple[int, int]:
        store = self._store
        return store.min_offset(SCHEDULE_TOPIC, level.queue_id), store.max_offset(SCHEDULE_TOPIC, level.queue_id)

    def _deliver_some(self, level: _Level, now: int) -> bool:
        """Deliver a few messages; False when the level has to wait."""
        low, high = self._bounds(level)
        if not low <= level.cursor < high:
            if level.cursor < low:
                logger.warning("delayed messages were deleted level=%d from=%d to=%d", level.number, level.cursor, low)
                level.cursor = low
                level.delivered = max(level.delivered, low)
                return low < high
            level.next_due = _NEVER
            return False
        found = self._store.get(SCHEDULE_TOPIC, level.queue_id, level.cursor, _MAX_PER_READ)
        if not found.count:
            skipped = found.next_begin_offset > level.cursor
            level.cursor = found.next_begin_offset if skipped else level.cursor
            return skipped
        for record in self._reader.read(found.body):
            wait = self._wait_millis(level, record.queue_offset, record.store_timestamp, now)
            if wait > 0:
                level.next_due = now + wait
                return False
            if not self._deliver(level, record):
                return False
        return True

    def _wait_millis(self, level: _Level, queue_offset: int, store_timestamp: int, now: int) -> int:
        wait = store_timestamp + level.delay_millis - now
        if wait <= level.delay_millis:
            return wait
        if level.head != queue_offset:
            level.head, level.head_seen = queue_offset, self._clock.monotonic()
        waited = int((self._clock.monotonic() - level.head_seen) * 1000)
        # The tick looks again soon: the wall clock, by which next_due counts, cannot be trusted now.
        return 1 if waited < level.delay_millis else 0

    def _deliver(self, level: _Level, record: StoredRecord) -> bool:
        """Put one due message where it belongs; False if the store takes nothing at the moment.

        The text of its properties stays as it is, DELAY, REAL_TOPIC and REAL_QID included, as upstream leaves it.
        """
        next_offset = record.queue_offset + 1
        message = record.message
        properties = decode_properties(message.properties)
        topic, queue_id = properties.get(REAL_TOPIC), properties.get(REAL_QUEUE_ID, "")
        if not topic or not queue_id.isdecimal():
            logger.error("delayed message without a real topic level=%d queue_offset=%d", level.number, next_offset - 1)
            self._skipped(level, next_offset)
            return True
        message.topic, message.queue_id = topic, int(queue_id)
        message.sys_flag &= ~TRANSACTION_MASK
        result = self._store.put(message)
        if result.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
            logger.error("delayed message refused topic=%s reason=%s", message.topic, result.reason)
            self._skipped(level, next_offset)
            return True
        if result.status is not PutStatus.PUT_OK:
            return False
        self._on_put(message.topic, 1, result.size)
        level.cursor = next_offset
        level.in_flight += 1
        self._store.wait(result.end_offset, lambda status: self._delivered(level, next_offset, status))
        return True

    def _delivered(self, level: _Level, next_offset: int, status: PutStatus) -> None:
        level.in_flight -= 1
        if status in (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT):
            level.delivered = max(level.delivered, next_offset)
        else:
            level.cursor = min(level.cursor, level.delivered)
            level.next_due = 0

    def _skipped(self, level: _Level, next_offset: int) -> None:
        """Move past a message that cannot be delivered; one still in flight moves the position later."""
        level.cursor = next_offset
        if not level.in_flight:
            level.delivered = next_offset
