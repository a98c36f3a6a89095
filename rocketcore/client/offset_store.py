"""Where a group's offsets are kept: at the brokers (clustering), or in a file of this machine (broadcasting).

Both hold the newest offsets in memory; ``persist`` writes those that changed. Offsets only grow, except by a reset.

RocketMQ 5.5.0: ``RemoteBrokerOffsetStore``, ``LocalFileOffsetStore``; the file has the same path and the same form.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from rocketcore.client import api
from rocketcore.client.config import StartFrom
from rocketcore.client.instance import PROBE_TIMEOUT, SILENT_BROKER_SECONDS, ClientInstance
from rocketcore.client.offset_files import take_offset_file
from rocketcore.config_file import home_folder, replace_file
from rocketcore.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    DecodeError,
    RequestTimeout,
    RocketError,
    TransportError,
)
from rocketcore.message import MessageQueue
from rocketcore.protocol import fastjson
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.transport.remoting import ServedRemoting
from rocketcore.warning import Recurring, warn

__all__ = [
    "LocalOffsetStore",
    "OffsetStore",
    "RemoteOffsetStore",
    "find_offset",
    "load_offsets",
    "local_offset_path",
    "offset_of_this_queue",
]

logger = logging.getLogger(__name__)
_failures = Recurring(logger)

OFFSET_TIMEOUT = 5.0
SURE_SECONDS: Final = 1.0
"""How long a member that was told of no change takes what a broker has of a queue for known."""
PATIENCE: Final = 0.1
"""What a broker that hangs may delay the offsets of others by that are stored at intervals."""
AT_ONCE: Final = 16
"""Offsets of one topic that a broker is sent at the same time."""


class OffsetStore(ABC):
    """Offsets of one group: in memory, and what of them is written."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._written: dict[MessageQueue, int] = {}

    @abstractmethod
    async def read(self, queue: MessageQueue, *, stored_only: bool = False) -> int | None:
        """Return the stored offset of a queue, None without one.

        stored_only  not the 0 that a broker says in place of none while the queue's first message is in memory; one of
                     4.9 says it all the same
        """

    @abstractmethod
    async def persist(
        self, queues: Iterable[MessageQueue] | None = None, *, asked: bool = False, commit: bool = False
    ) -> dict[MessageQueue, RocketError]:
        """Write the offsets that changed, of the given queues or of all; what fails is tried again the next time.

        asked    somebody asked for these offsets: they are written also where the group is further
        commit   somebody commits: also what has not changed is looked after
        returns  of each queue whose offset was not written, why; a warning has said so
        """

    async def keep(self, queues: Iterable[MessageQueue]) -> float | None:
        """Write the offsets of some queues that changed, and those that a broker has lost; called again and again.

        A broker that hangs delays nothing: what it was sent goes on by itself.

        returns  in how many seconds to call it again, where that should not wait for the interval
        """
        await self.persist(queues)
        return None

    def sought(self, queue: MessageQueue) -> None:  # noqa: B027 - a file takes what it is given
        """Take notice that somebody has sought in a queue: what is noted from now on counts as asked for."""

    def came_back(self, broker: str) -> None:  # noqa: B027 - a file does not go
        """Take notice that a broker answers again."""

    def left_at(self, queue: MessageQueue) -> int | None:
        """Return when an earlier member left the offset of a queue that nothing was read of since, in milliseconds.

        None where the queue itself forgets its offset when it goes: a broker deletes it with the topic.
        """
        return None

    def written(self, queue: MessageQueue) -> int | None:
        """Return the offset of a queue that was read or written last, None without one."""
        return self._written.get(queue)

    async def stored(self, queue: MessageQueue, address: str) -> int | None:
        """Return what a broker has of others for a queue, and take no notice of it; None without one."""
        return None

    def doubt(self) -> None:  # noqa: B027 - a file has no other writer
        """Take nothing for known of what others may have stored: the group has changed, or a queue goes."""

    def update(self, queue: MessageQueue, offset: int, *, reset: bool = False) -> None:
        """Note an offset; one that is smaller than the last counts only as a reset."""
        if reset or offset > self._offsets.get(queue, -1):
            self._offsets[queue] = offset

    def close(self) -> None:  # noqa: B027 - there may be nothing to give up
        """Give up what is held for the store; nothing is written any more."""

    def forget(self, queue: MessageQueue) -> None:
        """Take notice that a queue is no longer ours."""
        self._offsets.pop(queue, None)
        self._written.pop(queue, None)


class Place(NamedTuple):
    """What brokers keep one table for: the offsets of a group in a topic."""

    broker: str
    topic: str


class RemoteOffsetStore(OffsetStore):
    """Offsets kept by the broker of each queue.

    Before an offset is written the broker is asked what it has: a member that was away for a while, or has not heard
    yet that its queue went, would take back what another member has stored meanwhile. One that stores more often than
    each ``SURE_SECONDS`` is not away, and pays one request for a store, not two. It asks again after that time, over a
    new connection, when its group has changed and when a queue goes.

    A broker that was killed comes back with what it had saved, which is some seconds old. Over a new connection it is
    therefore asked also for the offsets that have not changed, and is told those that it has lost.

    No broker waits for another: each place has its lock, and a broker that hangs is asked by the task that stores at
    intervals only each ``SILENT_BROKER_SECONDS``, by others only for a moment.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__()
        self._instance = instance
        self._group = group
        self._locks: dict[Place, asyncio.Lock] = {}
        """Of whoever has a place store offsets: one that was noted later must not be overtaken by one before it."""
        self._storing: dict[Place, asyncio.Task[dict[MessageQueue, RocketError]]] = {}
        """What ``keep`` has begun; a broker that hangs keeps it for a while."""
        self._hung: dict[str, float] = {}
        """Brokers that did not answer in time, and until when ``keep`` leaves them alone."""
        self._unsure: set[MessageQueue] = set()
        """Queues of which a 0 was read, which may stand for none: it is written when the member notes its place."""
        self._sought: set[MessageQueue] = set()
        self._asked: set[MessageQueue] = set()
        """Queues whose next store somebody asked for: it counts also where the group is further."""
        self._refused: dict[MessageQueue, tuple[int, int]] = {}
        """What ``keep`` last told of another member that is ahead."""
        self._known: dict[MessageQueue, float] = {}
        """When the broker last said, or was told, what it has of a queue."""
        self._connections: dict[MessageQueue, object] = {}
        """Over which connection that was."""
        self._begun: dict[Place, object] = {}
        """Places that have offsets of the group, and over which connection that was seen."""

    async def read(self, queue: MessageQueue, *, stored_only: bool = False) -> int | None:
        address, _ = self._instance.routes.subscribe_address(queue.broker)
        offset = await api.query_consumer_offset(
            self._instance.remoting,
            address,
            self._group,
            queue,
            OFFSET_TIMEOUT,
            set_zero_if_not_found=False if stored_only else None,
        )
        if offset is None or offset < 0:
            self._note_known(queue, address)
            return None
        self._offsets[queue] = self._written[queue] = offset
        if offset:
            self._note_known(queue, address)
        else:
            self._unsure.add(queue)
        return offset

    def update(self, queue: MessageQueue, offset: int, *, reset: bool = False) -> None:
        super().update(queue, offset, reset=reset)
        if queue in self._unsure:
            # As Java's members do: a broker of 4.9 resets no group that has no offset in some queue.
            self._unsure.discard(queue)
            self._written.pop(queue, None)
        if queue in self._sought:
            self._sought.discard(queue)
            self._asked.add(queue)

    def sought(self, queue: MessageQueue) -> None:
        self._sought.add(queue)

    async def persist(
        self, queues: Iterable[MessageQueue] | None = None, *, asked: bool = False, commit: bool = False
    ) -> dict[MessageQueue, RocketError]:
        held = [queue for queue in (self._offsets if queues is None else queues) if queue in self._offsets]
        if asked:
            self._asked.update(held)
        failed = await asyncio.gather(
            *(self._persist_at(place, each, commit) for place, each in _by_place(held).items())
        )
        return {queue: error for failures in failed for queue, error in failures.items()}

    async def keep(self, queues: Iterable[MessageQueue]) -> float | None:
        soon = None
        for place, held in _by_place(queues).items():
            if self._is_left_alone(place) or not any(self._is_due(queue) for queue in held):
                continue
            if place in self._storing:
                soon = PATIENCE
                continue
            self._storing[place] = asyncio.get_running_loop().create_task(
                self._persist_at(place, held, kept=True), name=f"consumer-offsets-{place.topic}"
            )
        if self._storing:
            await asyncio.wait(self._storing.values(), timeout=PATIENCE)
            for place, task in list(self._storing.items()):
                if task.done():
                    del self._storing[place]
                    task.result()
        return soon

    def close(self) -> None:
        for task in self._storing.values():
            task.cancel()

    async def _persist_at(
        self, place: Place, queues: list[MessageQueue], commit: bool = False, kept: bool = False
    ) -> dict[MessageQueue, RocketError]:
        """Store the offsets of one place; return of each queue whose broker was not told, why."""
        failures: dict[MessageQueue, RocketError] = {}
        async with self._locks.setdefault(place, asyncio.Lock()):
            if kept and self._is_left_alone(place):
                return failures  # somebody has found out meanwhile
            due = [queue for queue in queues if self._is_due(queue, commit)]
            timeout = PROBE_TIMEOUT if place.broker in self._hung and not kept else OFFSET_TIMEOUT
            while due:
                # The first of a topic alone: brokers up to 5.5.0 can lose one of two first commits of a group that
                # arrive together (ConsumerOffsetManager.commitOffset makes the topic's table without a lock).
                count = AT_ONCE if self._has_begun(place) else 1
                now, due = due[:count], due[count:]
                errors = await asyncio.gather(*(self._persist_one(queue, commit, timeout) for queue in now))
                found = {queue: error for queue, error in zip(now, errors, strict=True) if error is not None}
                failures.update(found)
                if failed := [error for error in found.values() if isinstance(error, TransportError)]:
                    failures.update(dict.fromkeys(due, failed[0]))
                    # The other queues would only wait for the same.
                    text = (
                        "offset not stored, the broker does not answer group=%s broker=%s topic=%s queues=%d error=%s"
                    )
                    kind, count = (self._group, place.broker), len(failed) + len(due)
                    _failures.warn(kind, text, self._group, place.broker, place.topic, count, failed[0])
                    break
        return failures

    def _is_left_alone(self, place: Place) -> bool:
        until = self._hung.get(place.broker)
        return until is not None and self._instance.clock.monotonic() < until

    async def _persist_one(self, queue: MessageQueue, commit: bool, timeout: float) -> RocketError | None:
        """Store the offset of a queue where it is to be stored; return why its broker was not told."""
        offset = self._offsets.get(queue)
        if offset is None:
            return None  # it has gone while others were stored
        asked = queue in self._asked
        self._asked.discard(queue)
        failure: RocketError | None = None
        began = self._instance.clock.monotonic()
        try:
            address, _ = self._instance.routes.subscribe_address(queue.broker)
            if asked or await self._is_to_be_written(queue, offset, address, commit, timeout):
                await api.update_consumer_offset(self._instance.remoting, address, self._group, queue, offset, timeout)
                asked = False
                self._refused.pop(queue, None)
                self._begun[Place(queue.broker, queue.topic)] = self._connection(address)
                if queue in self._offsets:
                    self._written[queue] = offset
                    self._note_known(queue, address)
        except TransportError as error:
            now = self._instance.clock.monotonic()
            # Time is what tells: a machine that is down is a connection that could not be made in time.
            if isinstance(error, RequestTimeout) or now - began >= timeout / 2:
                self._hung[queue.broker] = now + SILENT_BROKER_SECONDS
            return error
        except RocketError as error:
            text = "offset not stored group=%s queue=%s offset=%d error=%s"
            _failures.warn((self._group, type(error)), text, self._group, queue, offset, error)
            failure = error
        finally:
            if asked and queue in self._offsets:
                self._asked.add(queue)
        self._hung.pop(queue.broker, None)
        return failure

    async def _is_to_be_written(
        self, queue: MessageQueue, offset: int, address: str, commit: bool, timeout: float
    ) -> bool:
        """Say whether a broker is to be told an offset that nobody asked for: what it has of others counts."""
        written = self._written.get(queue)
        changed = offset != written
        if changed and self._is_known(queue, address):
            return True
        try:
            stored = await self._query(queue, address, timeout)
        except (BrokerError, DecodeError):  # a broker that does not say is told what has changed, as before
            return changed
        if stored is not None and stored > offset and stored != written:
            self._refuse(queue, offset, stored, tell=commit or changed, each=commit)
            self._known.pop(queue, None)
            self._connections[queue] = self._connection(address)
            return False
        if changed:
            return True
        if stored == offset or (offset == 0 and not commit):  # that may be the 0 which brokers say in place of none
            self._note_known(queue, address)
            return False
        # It has come back with what it had saved. Where it has also lost messages, or all, the reader of the queue
        # finds out where the group goes on.
        return not offset or await api.max_offset(self._instance.remoting, address, queue, timeout) >= offset

    def _refuse(self, queue: MessageQueue, offset: int, stored: int, *, tell: bool, each: bool) -> None:
        if tell and (each or self._refused.get(queue) != (offset, stored)):
            self._refused[queue] = offset, stored
            text = "offset not stored, another member is ahead group=%s queue=%s offset=%d stored=%d"
            _failures.warn((self._group, "ahead"), text, self._group, queue, offset, stored)

    def _is_due(self, queue: MessageQueue, commit: bool = False) -> bool:
        """Say whether a broker is to be told, or asked, of a queue.

        commit  somebody commits what has not changed: it may all the same not be what the broker has
        """
        offset = self._offsets.get(queue)
        if offset is None:
            return False
        if queue in self._asked or self._written.get(queue) != offset:
            return True
        try:
            address, _ = self._instance.routes.subscribe_address(queue.broker)
        except RocketError:
            return commit
        if commit:
            return not self._is_known(queue, address)
        connection = self._connection(address)
        return connection is not None and connection is not self._connections.get(queue)

    def doubt(self) -> None:
        self._known.clear()

    def came_back(self, broker: str) -> None:
        self._hung.pop(broker, None)

    def _connection(self, address: str) -> object | None:
        remoting = self._instance.remoting
        return remoting.connection_to(address) if isinstance(remoting, ServedRemoting) else remoting

    def _note_known(self, queue: MessageQueue, address: str) -> None:
        self._hung.pop(queue.broker, None)
        self._known[queue] = self._instance.clock.monotonic()
        self._connections[queue] = self._connection(address)

    def _is_known(self, queue: MessageQueue, address: str) -> bool:
        now, at = self._connection(address), self._known.get(queue)
        if now is None or at is None or now is not self._connections.get(queue):
            return False
        return self._instance.clock.monotonic() - at < SURE_SECONDS

    def _has_begun(self, place: Place) -> bool:
        try:
            address, _ = self._instance.routes.subscribe_address(place.broker)
        except RocketError:
            return False
        connection = self._connection(address)
        return connection is not None and connection is self._begun.get(place)

    def forget(self, queue: MessageQueue) -> None:
        super().forget(queue)
        for held in (self._sought, self._asked, self._unsure):
            held.discard(queue)
        for table in (self._refused, self._known, self._connections):
            table.pop(queue, None)

    async def stored(self, queue: MessageQueue, address: str) -> int | None:
        return await self._query(queue, address, OFFSET_TIMEOUT)

    async def _query(self, queue: MessageQueue, address: str, timeout: float) -> int | None:
        return await api.query_consumer_offset(
            self._instance.remoting, address, self._group, queue, timeout, set_zero_if_not_found=False
        )


def _by_place(queues: Iterable[MessageQueue]) -> dict[Place, list[MessageQueue]]:
    places: dict[Place, list[MessageQueue]] = {}
    for queue in queues:
        places.setdefault(Place(queue.broker, queue.topic), []).append(queue)
    return places


async def find_offset(instance: ClientInstance, queue: MessageQueue, where: int | StartFrom) -> int:
    """Return the offset that a number, "first", "last" or a time means in a queue; ConfigError for anything else."""
    if isinstance(where, int):
        return where
    address, _ = instance.routes.subscribe_address(queue.broker)
    if where == "first":
        return await api.min_offset(instance.remoting, address, queue, OFFSET_TIMEOUT)
    if where == "last":
        return await api.max_offset(instance.remoting, address, queue, OFFSET_TIMEOUT)
    if not isinstance(where, datetime) or where.tzinfo is None:
        raise ConfigError(f"an offset must be a number, 'first', 'last' or a datetime with a time zone, got {where!r}")
    return await api.search_offset(instance.remoting, address, queue, round(where.timestamp() * 1000), OFFSET_TIMEOUT)


async def offset_of_this_queue(instance: ClientInstance, offsets: OffsetStore, queue: MessageQueue, stored: int) -> int:
    """Return the offset that was stored, or the first one of a queue that was not there then.

    A queue whose first message is newer than an offset file holds nothing that anybody has read: its topic was deleted
    and made again. A machine whose clock is behind reads a queue twice that was new when its member stopped.
    """
    left_at = offsets.left_at(queue)
    if left_at is None or not stored:
        return stored
    address, _ = instance.routes.subscribe_address(queue.broker)
    try:
        if await api.earliest_store_time(instance.remoting, address, queue, OFFSET_TIMEOUT) <= left_at:
            return stored
        first = await find_offset(instance, queue, "first")
    except BrokerError:  # one that does not say
        return stored
    if first >= stored:
        return stored
    text = "offset moved, the queue is another than that of the offset file queue=%s from=%d to=%d"
    warn(logger, text, queue, stored, first)
    offsets.update(queue, first, reset=True)
    return first


def local_offset_path(folder: str, client_id: str, group: str) -> Path:
    """Return where the offsets of a broadcasting consumer are kept."""
    root = Path(folder) if folder else home_folder() / ".rocketmq_offsets"
    return root / client_id / group / "offsets.json"


class LocalOffsetStore(OffsetStore):
    """Offsets kept in a file: ``{"offsetTable":{<message queue>:offset,…}}``, the message queue an object.

    A file that cannot be read counts as none; the copy that each write keeps (``.bak``) is tried before.
    """

    def __init__(self, path: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._file = take_offset_file(path, _progress, clock)
        self._path = self._file.path
        self._loaded = False
        self._left_at: dict[MessageQueue, int] = {}

    def close(self) -> None:
        self._file.close()

    async def read(self, queue: MessageQueue, *, stored_only: bool = False) -> int | None:
        if not self._loaded:
            at = self._file.written_at() // 1_000_000
            for found, offset in (await asyncio.to_thread(load_offsets, self._path) or {}).items():
                self._offsets.setdefault(found, offset)
                self._written[found] = offset
                self._left_at[found] = at
            self._loaded = True
        return self._offsets.get(queue)

    def left_at(self, queue: MessageQueue) -> int | None:
        return self._left_at.get(queue)

    def update(self, queue: MessageQueue, offset: int, *, reset: bool = False) -> None:
        self._left_at.pop(queue, None)
        super().update(queue, offset, reset=reset)

    def forget(self, queue: MessageQueue) -> None:
        """Keep the offset: a queue that comes back goes on where it was, and this is the only place that knows."""

    async def persist(
        self, queues: Iterable[MessageQueue] | None = None, *, asked: bool = False, commit: bool = False
    ) -> dict[MessageQueue, RocketError]:
        changed = self._changed(queues)
        if not changed:
            return {}
        text = fastjson.dumps_plain({"offsetTable": dict(self._offsets)})
        try:
            await self._write(text)
        except OSError as error:
            _failures.warn(type(error), "offset file not written path=%s error=%s", self._path, error)
            failure = ClientError(f"offset file {self._path} was not written: {error.strerror}")
            failure.__cause__ = error
            return dict.fromkeys(changed, failure)
        self._written.update(changed)
        return {}

    def _changed(self, queues: Iterable[MessageQueue] | None) -> dict[MessageQueue, int]:
        wanted = list(self._offsets if queues is None else queues)
        return {
            queue: self._offsets[queue]
            for queue in wanted
            if queue in self._offsets and self._written.get(queue) != self._offsets[queue]
        }

    async def _write(self, text: bytes) -> None:
        try:
            await asyncio.to_thread(replace_file, self._path, text)
        except RuntimeError:  # the interpreter is ending and takes no work for other threads
            replace_file(self._path, text)


def load_offsets(file: Path) -> dict[MessageQueue, int] | None:
    """Return what an offset file holds, or the copy of it; None where neither is there and can be read."""
    for path in (file, file.with_name(file.name + ".bak")):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            warn(logger, "offset file not read path=%s error=%s", path, error)
            continue
        try:
            table = fastjson.loads(data)["offsetTable"]
            offsets = {fastjson.message_queue(key): int(value) for key, value in table.items()}
        except (DecodeError, KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            warn(logger, "offset file not read path=%s error=%s", path, error)
            continue
        return {queue: offset for queue, offset in offsets.items() if queue is not None}
    return None


def _progress(file: Path) -> int | None:
    """Return how far an offset file is, as the number of messages that are read."""
    offsets = load_offsets(file)
    return None if offsets is None else sum(offsets.values())
