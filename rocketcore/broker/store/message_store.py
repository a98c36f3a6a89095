"""MessageStore: all that the rest of the broker knows of the store (Java: ``DefaultMessageStore``, 5.5.0).

A facade: the folder is ``StoreFolder``'s, putting ``Appender``'s, committing ``Committer``'s, reading ``Reader``'s,
``Lookups``' and ``IndexQuery``'s; what is derived is saved by ``QueueSaver`` and ``MessageIndex``, topics go by
``TopicDeletion``, and ``Cleaner`` gives disk back.

One writer, the event loop's thread, so nothing here takes a lock. A put lays its record out in the log's write buffer
and says where it will be; at the end of the loop turn everything that was put in the turn is committed as one group:

ASYNC_FLUSH   one pwrite on the loop thread; a background fdatasync follows within ``flushIntervalCommitLog``
SYNC_FLUSH    pwrite and fdatasync on the flush thread; what is put meanwhile is the next group

A committed group is dispatched, in log order: its messages enter the consume queues, become visible, and are announced;
then those who wait for it are answered. So no one is told of, and no one can read, what a crash could take back.

The first write or fsync that fails makes the store read-only for good (``committer``). A full disk is not such a
failure, nor is a lack of descriptors or memory when a file is made: the log allocates its files before it needs them,
and sends are refused until that succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from rocketcore.broker.store.config import FlushDiskType, StoreConfig
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.index.index_query import IndexQuery, QueryResult
from rocketcore.broker.store.index.message_index import MessageIndex
from rocketcore.broker.store.keeping.cleaner import Cleaner
from rocketcore.broker.store.keeping.log_begin import LogBegin
from rocketcore.broker.store.keeping.queue_notes import QueueNotes
from rocketcore.broker.store.keeping.queue_saver import QueueSaver
from rocketcore.broker.store.keeping.repair_schedule import QueueRepairs
from rocketcore.broker.store.keeping.topic_deletion import TopicDeletion
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.log.pages import Cold, Pages
from rocketcore.broker.store.notes.deleted_topics import DeletedTopics
from rocketcore.broker.store.opening.recovery import Recovery
from rocketcore.broker.store.opening.store_folder import StoreFolder
from rocketcore.broker.store.queues.consume_queue import QueueFiles
from rocketcore.broker.store.queues.queue_table import QueueTable
from rocketcore.broker.store.reading.cold_reads import ColdReads
from rocketcore.broker.store.reading.lookups import Lookups
from rocketcore.broker.store.reading.reader import Reader
from rocketcore.broker.store.reading.records import Records
from rocketcore.broker.store.store_stats import StoreStats
from rocketcore.broker.store.values import GetResult
from rocketcore.broker.store.writing.appender import Appender
from rocketcore.broker.store.writing.committer import Committer
from rocketcore.broker.store.writing.dispatch import Arrival, Dispatcher
from rocketcore.service import SYSTEM_CLOCK, Clock, PeriodicTask

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from rocketcore._fast.sql_filter import SqlFilter
    from rocketcore._fast.window import Window

__all__ = ["Arrival", "MessageStore"]

logger = logging.getLogger(__name__)


P = ParamSpec("P")
T = TypeVar("T")


class _MethodOfPart:
    """See ``_method_of``."""

    def __init__(self, part: str, method: Callable[..., Any]) -> None:
        self._part = part
        self.__wrapped__ = method
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, store: object | None, owner: type) -> Any:
        if store is None:
            return self.__wrapped__
        bound = store.__dict__[self._name] = getattr(getattr(store, self._part), self.__wrapped__.__name__)
        return bound


def _method_of(part: str, method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method of the store that is one of its part's: a call costs what the part's own costs."""
    return cast("Callable[Concatenate[Any, P], T]", _MethodOfPart(part, method))


class MessageStore:
    """Durable messages in topics and queues. Built, loaded, started and stopped once; loop thread only after ``start``.

    store_host   address and port that go into records and message ids, 8 or 20 bytes; may be set until the first put
    on_arrival   called for each message that becomes visible; what it raises is logged and counted
    reads        makes reads that may have to wait for the disk
    stats        what is counted and measured, to be shown
    files        the system calls, for tests
    index        what is found by key; nothing else needs it
    windows      what pulls are answered from, see ``CommitLog``
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        store_host: bytes = bytes(8),
        clock: Clock = SYSTEM_CLOCK,
        on_arrival: Arrival | None = None,
        files: FileSystem | None = None,
    ) -> None:
        self.config = config
        self._clock = clock
        self._files = files = files or FileSystem()
        self._log = log = CommitLog(config, files, clock)
        queue_files = QueueFiles(config.root, config.queue_file_bytes, files)
        self.windows = queue_files.windows = log.windows
        self._queues = queues = QueueTable(queue_files)
        notes = QueueNotes(config, log, queues, files)
        self._folder = StoreFolder(config, log, queues, notes, files)
        self._dispatcher = Dispatcher(queues, notes.deleted.end, config.delay_levels, on_arrival)
        self._committer = Committer(config, log, self._dispatcher, clock, partial(self._refuse, "failure"))
        self._appender = Appender(config, log, queues, self._committer, store_host)
        self._refuse("life", "the store is not started")
        self._queue_saver = saver = QueueSaver(
            config, queues, notes, self._committer, clock, partial(self._refuse, "queues")
        )
        self._repairs = QueueRepairs(log, self._committer, saver, config.delay_levels)
        self.index = MessageIndex(config, log, self._committer, files, clock)
        notes.index_until = self.index.whole_until
        self._pages = Pages(log)
        self.reads = ColdReads(self._pages, clock)
        self._log_begin = LogBegin(log, saver, self._repairs, config.root / "checkpoint", files)
        self._cleaner = Cleaner(
            config, log, saver, self._log_begin, self.index, self.reads, files, clock, partial(self._refuse, "disk")
        )
        self._deletion = TopicDeletion(log, self._dispatcher, saver, self._cleaner.anything_waits)
        self._records = Records(log, queues, self._pages, clock, self._repairs.begin)
        self._reader = Reader(config, log, queues, self._pages, self._records)
        self.stats = StoreStats(log, self._committer, self._dispatcher, self._records, self._repairs, self._cleaner)
        self._lookups = Lookups(log, queues, self._records, self._committer)
        self._deleted = notes.deleted
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[PeriodicTask] = []
        self.recovery = Recovery()

    # ------------------------------------------------------------------ what its parts do

    put = _method_of("_appender", Appender.put)
    put_batch = _method_of("_appender", Appender.put_batch)
    put_rows = _method_of("_appender", Appender.put_rows)
    wait = _method_of("_committer", Committer.wait)

    lookup = _method_of("_lookups", Lookups.lookup)
    deliveries = _method_of("_lookups", Lookups.deliveries)
    place = _method_of("_lookups", Lookups.place)
    units = _method_of("_lookups", Lookups.units)
    tags_code = _method_of("_lookups", Lookups.tags_code)
    bounds = _method_of("_lookups", Lookups.bounds)
    min_offset = _method_of("_lookups", Lookups.min_offset)
    max_offset = _method_of("_lookups", Lookups.max_offset)
    next_offset = _method_of("_lookups", Lookups.next_offset)
    offset_by_time = _method_of("_lookups", Lookups.offset_by_time)
    earliest_time = _method_of("_lookups", Lookups.earliest_time)
    store_time = _method_of("_lookups", Lookups.store_time)

    queues = _method_of("_queues", QueueTable.names)
    is_in_repair = _method_of("_repairs", QueueRepairs.repairs)
    delete_topic = _method_of("_deletion", TopicDeletion.delete)
    is_deleted = _method_of("_deleted", DeletedTopics.covers)
    keep_from = _method_of("_cleaner", Cleaner.keep_from)
    delete_expired = _method_of("_cleaner", Cleaner.ask)
    delete_expired_units = _method_of("_cleaner", Cleaner.remove_units)

    # ------------------------------------------------------------------ life

    def load(self, *, rebuild: bool = False) -> Recovery:
        """Lock the folder and recover; blocks for as long as the log behind the last checkpoint takes to read.

        rebuild  build the queues from the log, whatever is noted of them
        raises   StoreLocked, StoreCorrupted for files that do not belong together, StoreFull, OSError
        """
        self._folder.take()
        try:
            recovery, notes, is_clean, last_alive = self._folder.open(rebuild=rebuild)
            self.recovery = recovery
            self._deletion.remove_left()
            if not is_clean:
                self._log_begin.run_crashed()
            self._committer.begin_at(recovery.end_offset, recovery.store_timestamp)
            self._cleaner.begin_at(max(recovery.store_timestamp, last_alive))
            self.index.load(notes)
        except BaseException:
            self._close_files()
            raise
        logger.info("store loaded path=%s clean=%s %s", self.config.root, is_clean, recovery)
        return recovery

    async def start(self) -> None:
        """Take messages, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._committer.start(self._loop)
        self._queue_saver.start(self._loop, self.recovery.messages)
        self.index.start(self._loop)
        self.reads.start(self._loop)
        self._refuse("life", "")
        rounds = [
            ("store-save-queues", self._queue_saver.save_some, self.config.flush_interval_consume_queue),
            ("store-reads", self.reads.look, 1000),
            ("store-watch-log", self._committer.watch, 1000),
            ("store-expire", self._committer.expire_waiters, min(1000, self.config.sync_flush_timeout)),
        ]
        if self.config.flush_disk_type is FlushDiskType.ASYNC_FLUSH:
            rounds.append(("store-sync-log", self._committer.sync_log, self.config.flush_interval_commit_log))
        self._tasks = [PeriodicTask(name, function, millis / 1000) for name, function, millis in rounds]
        self._tasks.append(self._cleaner.task)
        for task in self._tasks:
            task.start()

    async def stop(self) -> None:
        """Commit what was put, save queues and checkpoint, unlock. A store that failed keeps its ``abort`` mark."""
        self._refuse("life", "the store is shutting down")
        for task in self._tasks:
            await task.stop()
        try:
            if self._loop is not None:
                await self.reads.stop()
                await self._committer.drain()
                await self.index.stop()
                if self.read_only_reason is None:
                    await self._log_begin.search_again()  # a start could not tell its old units from damaged ones
                saved = await self._queue_saver.save_all()
                if saved:
                    # A start of Apache's takes the first unit of a file that leads to nothing for a message.
                    await self._cleaner.remove_units()
                await self._queue_saver.stop()
                await self._committer.stop()
                if saved:
                    self._folder.run_ended()
        except OSError as error:
            logger.error("store not closed in order reason=%s", error)
        finally:
            self._close_files()

    def _close_files(self) -> None:
        try:
            self._log.close()
            self._cleaner.close()
        finally:
            self._folder.close()

    @property
    def store_host(self) -> bytes:
        return self._appender.store_host

    @store_host.setter
    def store_host(self, host: bytes) -> None:
        self._appender.store_host = host

    def _refuse(self, cause: str, reason: str) -> None:
        self._appender.refuse(cause, reason)

    # ------------------------------------------------------------------ reading
    #
    # Each of these waits for the disk where it has to, and the event loop with it. Made by ``reads`` it raises Cold
    # instead, and is made again when what it lacks was read.

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        tag_codes: Buffer | None = None,
        message_filter: SqlFilter | None = None,
        max_bytes: int | None = None,
        *,
        wide: bool = False,
        owner: Hashable = None,
    ) -> GetResult:
        """Return messages from ``queue_offset`` on, within the limits of a pull (broker.md §14).

        tag_codes       sorted int64 array of the tags wanted; None for all
        message_filter  asked about the properties of each message, in place of tags
        max_bytes       of the messages together, where it is above 0; the first is returned whatever its size
        wide            within maxPullCount and maxPullBytes, not the four maxTransfer settings
        owner           makes it a read of this owner, as ``ColdReads.now`` does, which costs more
        raises          StoreCorrupted when the queue leads to another message; OSError, which names file and position,
                        when the first message or the queue cannot be read
        """
        if owner is not None:
            if owner in self.reads.waiting:
                raise Cold
            self._pages.asks = True
        try:
            return self._reader.get(
                topic, queue_id, queue_offset, max_count, tag_codes, message_filter, max_bytes,
                self._committer.durable_offset, wide=wide,
            )  # fmt: skip
        finally:
            if owner is not None:
                self._pages.asks = False

    def locate(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        tag_codes: Buffer | None,
        max_bytes: int | None,
    ) -> Window | None:
        """Look up what pulls are answered from that ask for the same from here on; see ``Reader.locate``.

        raises  what ``get`` does; nothing was done then
        """
        self._pages.asks = True
        try:
            return self._reader.locate(
                topic, queue_id, queue_offset, max_count, tag_codes, max_bytes, self._committer.durable_offset
            )
        finally:
            self._pages.asks = False

    async def query(self, query: IndexQuery, max_count: int, seconds: float) -> QueryResult | None:
        """Find the newest ``max_count`` messages by a key; None where no index is kept. See ``IndexQuery.ask``."""
        if not self.index.is_kept:
            return None
        max_count = min(max_count, self.config.max_msgs_num_batch)
        find = partial(query.ask, self.index, self.durable_offset, lambda at: self.reads.read(query, self.lookup, at))
        return await find(max_count, seconds, self._clock)

    # ------------------------------------------------------------------ state

    @property
    def read_only_reason(self) -> str | None:
        """Why the store is read-only for good, or None."""
        return self._committer.read_only_reason

    @property
    def refusal(self) -> str:
        """Why the store takes no messages now; empty when it does."""
        return self._appender.refusal

    @property
    def max_physical_offset(self) -> int:
        """End of the log, what is not durable yet included."""
        return self._log.end_offset

    @property
    def min_physical_offset(self) -> int:
        return self._log.min_offset

    @property
    def durable_offset(self) -> int:
        """End of what counts as stored by the flush mode."""
        return self._committer.durable_offset

    @property
    def synced_offset(self) -> int:
        """End of what is on disk, whatever the flush mode."""
        return self._log.synced
