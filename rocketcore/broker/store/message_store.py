"""MessageStore: all that the rest of the broker knows of the store (Java: ``DefaultMessageStore``, 5.5.0).

A facade: putting is ``Appender``'s, committing ``Committer``'s, reading ``Reader``'s, ``Lookups``' and
``IndexQuery``'s, what is derived is saved by ``QueueSaver`` and ``MessageIndex``, and ``Cleaner`` gives disk back.

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
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from rocketcore.broker.store.appender import Appender
from rocketcore.broker.store.checkpoint import RunMark
from rocketcore.broker.store.cleaner import FIRST_LOOK_SECONDS, Cleaner
from rocketcore.broker.store.cold_reads import ColdReads
from rocketcore.broker.store.commit_log import CommitLog
from rocketcore.broker.store.committer import Committer
from rocketcore.broker.store.config import FlushDiskType, StoreConfig
from rocketcore.broker.store.consume_queue import QueueFiles
from rocketcore.broker.store.deliveries import find_deliveries
from rocketcore.broker.store.dispatch import Arrival, Dispatcher
from rocketcore.broker.store.folder_lock import FolderLock
from rocketcore.broker.store.index import MessageIndex
from rocketcore.broker.store.index_query import IndexQuery, QueryResult
from rocketcore.broker.store.log_begin import LogBegin
from rocketcore.broker.store.lookups import Lookups
from rocketcore.broker.store.pages import Cold, Pages
from rocketcore.broker.store.queue_repairs import QueueRepairs
from rocketcore.broker.store.queue_saver import QueueSaver
from rocketcore.broker.store.queue_table import QueueTable
from rocketcore.broker.store.reader import Located, Reader
from rocketcore.broker.store.records import Records
from rocketcore.broker.store.recovery import Recovery, recover
from rocketcore.broker.store.remote_folder import warn_of_remote_folders
from rocketcore.broker.store.segment_file import FileSystem
from rocketcore.broker.store.values import GetResult, PutStatus
from rocketcore.errors import StoreError
from rocketcore.service import SYSTEM_CLOCK, Clock, PeriodicTask

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from rocketcore._fast.sql_filter import SqlFilter

__all__ = ["Arrival", "MessageStore"]

logger = logging.getLogger(__name__)


class MessageStore:
    """Durable messages in topics and queues. Built, loaded, started and stopped once; loop thread only after ``start``.

    put, put_batch, put_rows                                       see ``Appender``
    tags_code, place, units, store_time, earliest_time, offset_by_time    see ``Lookups``
    was_read     see ``CommitLog``; for whoever takes messages from where ``locate`` said

    store_host   address and port that go into records and message ids, 8 or 20 bytes; may be set until the first put
    on_arrival   called for each message that becomes visible; what it raises is logged and counted
    reads        makes reads that may have to wait for the disk
    files        the system calls, for tests
    index        what is found by key; nothing else needs it
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
        self._files = files or FileSystem()
        self._lock = FolderLock(config.root, self._files)
        self._log = CommitLog(config, self._files, clock)
        self._queue_files = QueueFiles(config.root, config.queue_file_bytes, self._files)
        self._queues = QueueTable(self._queue_files)
        self._dispatcher = Dispatcher(self._queues, self._deleted_before, config.delay_levels, on_arrival)
        self._committer = Committer(config, self._log, self._dispatcher, clock, partial(self._refuse, "failure"))
        self._appender = Appender(config, self._log, self._queues, self._committer, store_host)
        self._refuse("life", "the store is not started")
        self.put = self._appender.put
        self.put_batch = self._appender.put_batch
        self.put_rows = self._appender.put_rows
        self._queue_saver = QueueSaver(
            config, self._log, self._queues, self._committer, self._files, clock, partial(self._refuse, "queues")
        )
        self._repairs = QueueRepairs(self._log, self._committer, self._queue_saver, config.delay_levels)
        self.index = MessageIndex(config, self._log, self._committer, self._files, clock)
        self._queue_saver.index_until = self.index.whole_until
        self._pages = Pages(self._log)
        self.reads = ColdReads(self._pages, clock)
        self._log_begin = LogBegin(self._log, self._queue_saver, self._repairs, config.root / "checkpoint", self._files)
        on_full = partial(self._refuse, "disk")
        self._cleaner = Cleaner(
            config, self._log, self._queue_saver, self._log_begin, self.index, self.reads, self._files, clock, on_full
        )
        clean_seconds = config.clean_resource_interval / 1000
        self._cleaning = PeriodicTask(
            "store-clean", self._cleaner.look, clean_seconds, initial_delay=FIRST_LOOK_SECONDS
        )
        self._records = Records(self._log, self._queues, self._pages, clock, self._repairs.begin)
        self._reader = Reader(config, self._log, self._queues, self._pages, self._records)
        self._lookups = Lookups(self._log, self._queues, self._records)
        self.was_read = self._log.was_read
        self.tags_code = self._lookups.tags_code
        self.place = self._lookups.place
        self.units = self._lookups.units
        self.store_time = self._lookups.store_time
        self.earliest_time = self._lookups.earliest_time
        self.offset_by_time = self._lookups.offset_by_time
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[PeriodicTask] = []
        self._run_mark = config.root / "abort"
        self.recovery = Recovery()

    # ------------------------------------------------------------------ life

    def load(self, *, rebuild: bool = False) -> Recovery:
        """Lock the folder and recover; blocks for as long as the log behind the last checkpoint takes to read.

        rebuild  build the queues from the log, whatever is noted of them
        raises   StoreLocked, StoreCorrupted for files that do not belong together, StoreFull, OSError
        """
        self._files.make_folder(self.config.root)
        self._lock.acquire()
        try:
            return self._recover(rebuild)
        except BaseException:
            self._close_files()
            raise

    def _recover(self, rebuild: bool) -> Recovery:
        warn_of_remote_folders(self.config, self._files)
        self._files.keep_spare()
        notes = self._queue_saver.read()
        clean = notes.mark is None
        self._log.sealed_from = notes.sealed_from
        outdate = partial(notes.bounds.outdate, self.config.root, self._files)
        mended = self._log.load(outdate, begin=notes.log_begin)
        believed = not (mended or rebuild)
        self.recovery = recover(self.config, self._log, self._queues, notes, self._files, believed=believed)
        if not self.recovery.rebuilt:
            self._queue_saver.adopted(notes.bounds)
        self._log.open_at(self.recovery.end_offset)
        if not clean:
            self._log.make_sure(notes.bounds.confirm_offset, self.recovery.end_offset)
        self._queue_saver.log_ends_at(self.recovery.end_offset)
        self._queue_saver.remove_deleted()
        self._log.run_begins(sealed=self.config.enabled_append_prop_crc)
        last_alive = RunMark.last_alive(self._run_mark, self._files)
        RunMark(self._log.sealed_from).write(self._run_mark, self._files)
        self._queues.begin()
        if not clean:
            self._log_begin.run_crashed()
        self._committer.begin_at(self.recovery.end_offset, self.recovery.store_timestamp)
        self._cleaner.begin_at(max(self.recovery.store_timestamp, last_alive))
        self.index.load(notes)
        logger.info("store loaded path=%s clean=%s %s", self.config.root, clean, self.recovery)
        return self.recovery

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
            ("store-expire", self._committer.expire_waiters, min(1000, self.config.sync_flush_timeout)),
        ]
        if self.config.flush_disk_type is FlushDiskType.ASYNC_FLUSH:
            rounds.append(("store-sync-log", self._committer.sync_log, self.config.flush_interval_commit_log))
        self._tasks = [PeriodicTask(name, function, millis / 1000) for name, function, millis in rounds]
        self._tasks.append(self._cleaning)
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
                    RunMark.put_off(self._run_mark, self._files)
        except OSError as error:
            logger.error("store not closed in order reason=%s", error)
        finally:
            self._close_files()

    def _close_files(self) -> None:
        try:
            self._log.close()
            self._cleaner.close()
            self._queue_files.close()
            self._files.drop_spare()
        finally:
            self._lock.release()

    @property
    def store_host(self) -> bytes:
        return self._appender.store_host

    @store_host.setter
    def store_host(self, host: bytes) -> None:
        self._appender.store_host = host

    def _refuse(self, cause: str, reason: str) -> None:
        self._appender.refuse(cause, reason)

    # ------------------------------------------------------------------ waiting

    def wait(self, end_offset: int, callback: Callable[[PutStatus], None]) -> None:
        """Call back, on the loop and in order, with PUT_OK when everything before ``end_offset`` is stored.

        FLUSH_DISK_TIMEOUT after ``syncFlushTimeout``: the disk did not answer yet. That is "not known" and never
        "delivered": a power cut may still take the message. Whoever waits again learns what becomes of it.
        SERVICE_NOT_AVAILABLE when the write failed: the message may or may not be found after a restart.
        """
        self._committer.wait(end_offset, callback)

    # ------------------------------------------------------------------ deleting

    def delete_topic(self, topic: str) -> asyncio.Future[None]:
        """Forget a topic and its queues at once; its messages stay in the log. A new topic of the name starts at 0.

        Of a topic without queues it is noted, too, while messages wait that may be for it: they must not bring it back.

        returns  a future that is done when the deletion is durable: from then on no crash brings the topic back
        raises   StoreError, from the future, when it could not be noted; deleting the topic again tries that again
        """
        removed = self._queues.remove(topic)
        if removed is not None:
            self._dispatcher.forget(removed)
            self._queue_files.forget(topic)
        elif not self._cleaner.anything_waits():
            return self._queue_saver.note_deletions(topic)
        elif self._queue_saver.deleted.is_full:
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(StoreError(f"the deletion of topic {topic} is not durable: too many are noted"))
            return refused
        self._queue_saver.topic_deleted(topic, self._log.end_offset)
        return self._queue_saver.note_deletions(topic)

    def keep_from(self, needed_from: Callable[[], int | None]) -> None:
        """Have one more function say from which physical offset on the log is needed, whatever its age; None: nothing.

        It may raise Cold, to be asked again, and OSError, after which no file is deleted for now.
        """
        self._cleaner.keep_from(needed_from)

    def delete_expired(self) -> None:
        """Have expired files of the log, and what leads there, deleted at any hour, soon and for some minutes."""
        self._cleaner.ask()
        self._cleaning.wake()

    async def delete_expired_units(self) -> None:
        """Delete the files of queues that only lead to where the log is no more."""
        await self._cleaner.remove_units()

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
        owner: Hashable,
    ) -> Located | None:
        """Say where the messages lie that ``get`` would return, in rows of ``located``; see ``Reader.locate``.

        raises  what ``get`` does; nothing was done then
        """
        if owner in self.reads.waiting:
            return None
        self._pages.asks = True
        try:
            return self._reader.locate(
                topic, queue_id, queue_offset, max_count, tag_codes, max_bytes, self._committer.durable_offset
            )
        finally:
            self._pages.asks = False

    @property
    def located(self) -> memoryview:
        """The rows that the last ``locate`` filled."""
        return self._reader.located

    def lookup(self, physical_offset: int) -> bytes | None:
        """Return the record at a physical offset, or None where no sound and visible one begins."""
        return self._lookups.lookup(physical_offset, self._committer.durable_offset)

    async def query(self, query: IndexQuery, max_count: int, seconds: float) -> QueryResult | None:
        """Find the newest ``max_count`` messages by a key; None where no index is kept. See ``IndexQuery.ask``."""
        if not self.index.is_kept:
            return None
        max_count = min(max_count, self.config.max_msgs_num_batch)
        find = partial(query.ask, self.index, self.durable_offset, lambda at: self.reads.read(query, self.lookup, at))
        return await find(max_count, seconds, self._clock)

    def is_deleted(self, topic: str, physical_offset: int) -> bool:
        """Whether a topic was deleted after a message for it was stored at ``physical_offset``."""
        return physical_offset < self._deleted_before(topic)

    def _deleted_before(self, topic: str) -> int:
        return self._queue_saver.deleted.before.get(topic, 0)

    def deliveries(self, physical_offset: int, *, by_level: bool) -> set[int]:
        """Return the marks of messages that were delivered behind ``physical_offset``, where a record begins.

        by_level  those that waited for a delay level, or those that waited for a time
        returns   prepared transaction offsets; others may be among them, which are no message's offset and 1

        All that is behind is read: for a start after a crash.
        """
        start = max(physical_offset, self._log.min_offset)
        return find_deliveries(self._log, start, self._committer.durable_offset, by_level=by_level)

    def is_in_repair(self, topic: str, queue_id: int) -> bool:
        """Whether a queue that was found damaged is being repaired; it is to be read again after that."""
        queue = self._queues.find(topic, queue_id)
        return queue is not None and self._repairs.are_under_way(queue)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the end of what is visible of a queue, 0 for an unknown one."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that the next message of a queue gets, behind those that are not visible yet."""
        queues = self._queues.topic(topic)
        queues.reserve(queue_id + 1)
        return int(queues.next_offsets[queue_id])

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue, 0 for an unknown one."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def queues(self) -> Iterator[tuple[str, int]]:
        """Return (topic, queue id) of every queue that a message was put in."""
        return iter(list(self._queues.names()))

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
    def dispatch_behind(self) -> int:
        """Bytes that are appended and not visible yet."""
        return self._log.end_offset - self._committer.durable_offset

    @property
    def waiting_puts(self) -> int:
        """How many wait until what they put counts as stored."""
        return self._committer.waiting

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

    @property
    def repaired_queues(self) -> int:
        """Consume queues that were damaged and repaired from the log, since the start."""
        return self._repairs.repaired

    @property
    def read_errors(self) -> int:
        """Reads of the log that failed because the disk did not give a page, since the start."""
        return self._records.read_errors

    @property
    def listener_errors(self) -> int:
        """Calls of ``on_arrival`` that raised, since the start."""
        return self._dispatcher.listener_errors

    @property
    def deleted_bytes(self) -> int:
        """Bytes of the log that were deleted because of their age or of the disk, since the start."""
        return self._cleaner.deleted_bytes

    @property
    def damaged_records(self) -> int:
        """Messages found damaged, and left out of answers, since the start."""
        return self._records.damaged_records + self._repairs.lost
