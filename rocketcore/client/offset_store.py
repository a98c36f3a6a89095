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
from typing import Final

from rocketcore.client import api
from rocketcore.client.config import StartFrom
from rocketcore.client.instance import ClientInstance
from rocketcore.client.offset_files import take_offset_file
from rocketcore.config_file import home_folder, replace_file
from rocketcore.errors import BrokerError, ConfigError, DecodeError, RocketError, TransportError
from rocketcore.message import MessageQueue
from rocketcore.protocol import fastjson
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.transport.remoting import ServedRemoting
from rocketcore.warning import Recurring, warn

__all__ = ["LocalOffsetStore", "OffsetStore", "RemoteOffsetStore", "find_offset", "load_offsets", "local_offset_path"]

logger = logging.getLogger(__name__)
_failures = Recurring(logger)

OFFSET_TIMEOUT = 5.0
SURE_SECONDS: Final = 1.0
"""How long a member that was told of no change takes what a broker has of a queue for known."""


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
    async def persist(self, queues: Iterable[MessageQueue] | None = None, *, asked: bool = False) -> None:
        """Write the offsets that changed, of the given queues or of all; what fails is tried again the next time.

        asked  somebody asked for these offsets: they are written also where the group is further
        """

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

    def _changed(self, queues: Iterable[MessageQueue] | None) -> dict[MessageQueue, int]:
        wanted = list(self._offsets if queues is None else queues)
        return {
            queue: self._offsets[queue]
            for queue in wanted
            if queue in self._offsets and self._written.get(queue) != self._offsets[queue]
        }


class RemoteOffsetStore(OffsetStore):
    """Offsets kept by the broker of each queue.

    Before an offset is written the broker is asked what it has: a member that was away for a while, or has not heard
    yet that its queue went, would take back what another member has stored meanwhile. One that stores more often than
    each ``SURE_SECONDS`` is not away, and pays one request for a store, not two. It asks again after that time, over a
    new connection, when its group has changed and when a queue goes.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__()
        self._instance = instance
        self._group = group
        self._writing = asyncio.Lock()
        """Of whoever has brokers store offsets: one that was noted later must not be overtaken by one before it."""
        self._ahead: set[MessageQueue] = set()
        """Queues of which was told that another member is ahead."""
        self._known: dict[MessageQueue, tuple[float, object]] = {}
        """When and over which connection the broker last said, or was told, what it has of a queue."""

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
        self._note_known(queue, address)
        if offset is not None and offset >= 0:
            self._offsets[queue] = self._written[queue] = offset
            return offset
        return None

    async def persist(self, queues: Iterable[MessageQueue] | None = None, *, asked: bool = False) -> None:
        async with self._writing:
            await self._persist_changed(queues, asked)

    async def _persist_changed(self, queues: Iterable[MessageQueue] | None, asked: bool) -> None:
        # One commit of a topic at a time: brokers up to 5.5.0 can lose one of two first commits of a group that arrive
        # together (ConsumerOffsetManager.commitOffset makes the topic's table without a lock).
        by_topic: dict[tuple[str, str], dict[MessageQueue, int]] = {}
        for queue, offset in self._changed(queues).items():
            by_topic.setdefault((queue.broker, queue.topic), {})[queue] = offset
        await asyncio.gather(*(self._persist_all(offsets, asked) for offsets in by_topic.values()))

    async def _persist_all(self, offsets: dict[MessageQueue, int], asked: bool) -> None:
        for queue, offset in offsets.items():
            try:
                if not asked and await self._others_are_ahead(queue, offset):
                    continue
                address, _ = self._instance.routes.subscribe_address(queue.broker)
                await api.update_consumer_offset(
                    self._instance.remoting, address, self._group, queue, offset, OFFSET_TIMEOUT
                )
            except RocketError as error:
                text = "offset not stored group=%s queue=%s offset=%d error=%s"
                _failures.warn((self._group, type(error)), text, self._group, queue, offset, error)
                if isinstance(error, TransportError):
                    return  # the broker does not answer: the other queues would only wait for the same
            else:
                self._written[queue] = offset
                self._note_known(queue, address)

    def doubt(self) -> None:
        self._known.clear()

    def _connection(self, address: str) -> object | None:
        remoting = self._instance.remoting
        return remoting.connection_to(address) if isinstance(remoting, ServedRemoting) else remoting

    def _note_known(self, queue: MessageQueue, address: str) -> None:
        self._known[queue] = self._instance.clock.monotonic(), self._connection(address)

    def _is_known(self, queue: MessageQueue, address: str) -> bool:
        at, connection = self._known.pop(queue, (-SURE_SECONDS, None))
        now = self._connection(address)
        return now is not None and now is connection and self._instance.clock.monotonic() - at < SURE_SECONDS

    async def _others_are_ahead(self, queue: MessageQueue, offset: int) -> bool:
        """Say whether another member has stored an offset behind ours since we read or wrote it; it counts then."""
        try:
            address, _ = self._instance.routes.subscribe_address(queue.broker)
            if self._is_known(queue, address):
                return False
            stored = await self.stored(queue, address)
        except (BrokerError, DecodeError):  # a broker that does not say is told as before
            return False
        if stored is None or stored <= offset or stored == self._written.get(queue):
            return False
        if queue not in self._ahead:
            self._ahead.add(queue)
            text = "offset not stored, another member is ahead group=%s queue=%s offset=%d stored=%d"
            logger.warning(text, self._group, queue, offset, stored)
        return True

    def forget(self, queue: MessageQueue) -> None:
        super().forget(queue)
        self._ahead.discard(queue)
        self._known.pop(queue, None)

    async def stored(self, queue: MessageQueue, address: str) -> int | None:
        return await api.query_consumer_offset(
            self._instance.remoting, address, self._group, queue, OFFSET_TIMEOUT, set_zero_if_not_found=False
        )


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
        raise ConfigError(f"an offset is a number, 'first', 'last' or a datetime with a time zone, got {where!r}")
    return await api.search_offset(instance.remoting, address, queue, round(where.timestamp() * 1000), OFFSET_TIMEOUT)


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

    def close(self) -> None:
        self._file.close()

    async def read(self, queue: MessageQueue, *, stored_only: bool = False) -> int | None:
        if not self._loaded:
            for found, offset in (await asyncio.to_thread(load_offsets, self._path) or {}).items():
                self._offsets.setdefault(found, offset)
                self._written[found] = offset
            self._loaded = True
        return self._offsets.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Keep the offset: a queue that comes back goes on where it was, and this is the only place that knows."""

    async def persist(self, queues: Iterable[MessageQueue] | None = None, *, asked: bool = False) -> None:
        changed = self._changed(queues)
        if not changed:
            return
        text = fastjson.dumps_plain({"offsetTable": dict(self._offsets)})
        try:
            await self._write(text)
        except OSError as error:
            _failures.warn(type(error), "offset file not written path=%s error=%s", self._path, error)
        else:
            self._written.update(changed)

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
