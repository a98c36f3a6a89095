"""MessageStore: all that the rest of the broker knows of the store (Java: ``DefaultMessageStore``, 5.5.0).

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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rocketcore._fast import batch as batch_kernel
from rocketcore._fast import record as kernel
from rocketcore._fast import sends
from rocketcore._fast.consume_queue import UNIT_SIZE, is_queued, put_units
from rocketcore._fast.message_id import offset_msg_id, offset_msg_ids
from rocketcore._fast.properties import decode_properties
from rocketcore.broker.store.checkpoint import RunMark
from rocketcore.broker.store.commit_log import CommitLog
from rocketcore.broker.store.committer import Committer
from rocketcore.broker.store.config import FlushDiskType, StoreConfig
from rocketcore.broker.store.consume_queue import MAX_QUEUE_ID, QueueFiles, QueueTable, topic_fault
from rocketcore.broker.store.deliveries import find_deliveries
from rocketcore.broker.store.dispatch import Arrival, Batch, Dispatcher
from rocketcore.broker.store.queue_saver import QueueSaver
from rocketcore.broker.store.reader import Reader
from rocketcore.broker.store.recovery import Recovery, delivery_time, recover
from rocketcore.broker.store.segment_file import FileSystem, FolderLock
from rocketcore.broker.store.values import GetResult, PutResult, PutRows, PutStatus, StoredMessage
from rocketcore.codes import SCHEDULE_TOPIC, TRANSACTION_MASK, BoundaryType
from rocketcore.errors import StoreFull
from rocketcore.message import DELAY
from rocketcore.service import SYSTEM_CLOCK, Clock, PeriodicTask
from rocketcore.table import Table

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Arrival", "MessageStore"]

PROPERTIES_MAX_BYTES = 32_767
HOSTS_V6 = 0x30
"""System flags of the longest hosts. Room is reckoned with them: a segment may close 24 bytes early."""

BATCH_ROWS = 8192
"""Elements that there are tables for; a batch of 1 MiB has fewer, unless its messages are tiny."""

logger = logging.getLogger(__name__)

_BUSY = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"


class MessageStore:
    """Durable messages in topics and queues. Built, loaded, started and stopped once; loop thread only after ``start``.

    store_host   address and port that go into records and message ids, 8 or 20 bytes; may be set until the first put
    on_arrival   called for each message that becomes visible; what it raises is logged and counted
    files        the system calls, for tests
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
        self.store_host = store_host
        self._files = files or FileSystem()
        self._lock = FolderLock(config.root, self._files)
        self._log = CommitLog(config, self._files, clock)
        self._queue_files = QueueFiles(config.root, config.queue_file_bytes, self._files)
        self._queues = QueueTable(self._queue_files)
        self._dispatcher = Dispatcher(on_arrival, self._queues.changed)
        self._committer = Committer(config, self._log, self._dispatcher, clock, self._store_failed)
        self._queue_saver = QueueSaver(
            config, self._log, self._queues, self._committer, self._files, clock, self._queues_full
        )
        self._reader = Reader(config, self._log, self._queues, clock, self._queue_saver.repair)
        self._levels = config.delay_levels
        self._checksum = config.enabled_append_prop_crc
        # What is put behind the properties of a message at most: a missing separator and the checksum.
        self._added_bytes = 1 + (kernel.CHECKSUM_SIZE if self._checksum else 0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[PeriodicTask] = []
        self._run_mark = config.root / "abort"
        self._refusal = "the store is not started"
        self._queue_disk_full = ""
        self._results = Table(BATCH_ROWS, batch_kernel.PUT_COLUMNS)
        self._elements = Table(BATCH_ROWS, batch_kernel.BATCH_COLUMNS)
        self.recovery = Recovery()

    # ------------------------------------------------------------------ life

    def load(self) -> Recovery:
        """Lock the folder and recover; blocks for as long as the log behind the last checkpoint takes to read.

        raises  StoreLocked, StoreCorrupted for files that do not belong together, StoreFull, OSError
        """
        self._files.make_folder(self.config.root)
        self._lock.acquire()
        self._files.keep_spare()
        try:
            notes = self._queue_saver.read()
            clean = notes.mark is None
            self._log.sealed_from = notes.sealed_from
            mended = self._log.load(lambda: notes.bounds.outdate(self.config.root, self._files))
            self.recovery = recover(self.config, self._log, self._queues, notes, self._files, mended=mended)
            self._log.open_at(self.recovery.end_offset)
            if not clean:
                self._log.make_sure(notes.bounds.confirm_offset, self.recovery.end_offset)
            self._queue_saver.log_ends_at(self.recovery.end_offset)
            self._log.run_begins(sealed=self._checksum)
            RunMark(self._log.sealed_from).write(self._run_mark, self._files)
        except BaseException:
            self._close_files()
            raise
        self._queues.begin()
        self._committer.begin_at(self.recovery.end_offset, self.recovery.store_timestamp)
        logger.info("store loaded path=%s clean=%s %s", self.config.root, clean, self.recovery)
        return self.recovery

    async def start(self) -> None:
        """Take messages, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._committer.start(self._loop)
        self._queue_saver.start(self._loop)
        self._refusal = ""
        rounds = [
            ("store-save-queues", self._queue_saver.save_some, self.config.flush_interval_consume_queue),
            ("store-expire", self._committer.expire_waiters, min(1000, self.config.sync_flush_timeout)),
        ]
        if self.config.flush_disk_type is FlushDiskType.ASYNC_FLUSH:
            rounds.append(("store-sync-log", self._committer.sync_log, self.config.flush_interval_commit_log))
        self._tasks = [PeriodicTask(name, function, millis / 1000) for name, function, millis in rounds]
        for task in self._tasks:
            task.start()

    async def stop(self) -> None:
        """Commit what was put, save queues and checkpoint, unlock. A store that failed keeps its ``abort`` mark."""
        self._refusal = self._refusal or "the store is shutting down"
        for task in self._tasks:
            await task.stop()
        try:
            if self._loop is not None:
                await self._committer.drain()
                saved = await self._queue_saver.stop()
                await self._committer.stop()
                if saved:
                    self._files.remove(self._run_mark)
        except OSError as error:
            logger.error("store not closed in order reason=%s", error)
        finally:
            self._close_files()

    def _close_files(self) -> None:
        self._log.close()
        self._queue_files.close()
        self._files.drop_spare()
        self._lock.release()

    # ------------------------------------------------------------------ putting

    def put(self, message: StoredMessage) -> PutResult:
        """Append a message. It counts as stored when ``wait`` says so."""
        topic = message.topic.encode()
        properties_length = len(message.properties) + self._added_bytes
        if properties_length > PROPERTIES_MAX_BYTES:
            properties_length = kernel.stored_properties_size(message.properties, self._checksum)
        refused = self._check(topic, message.queue_id, len(message.body), properties_length)
        if refused is not None:
            return refused
        sys_flag = message.sys_flag
        queued = is_queued(sys_flag)
        queues = self._queues.topic(message.topic)
        queue_id = message.queue_id
        log = self._log
        try:
            log.reserve(kernel.stored_size(len(topic), len(message.body), properties_length, HOSTS_V6))
        except (StoreFull, OSError) as error:
            return self._no_segment(error)
        queues.reserve(queue_id + 1)
        next_offsets = queues.next_offsets
        queue_offset = int(next_offsets[queue_id]) if queued else 0
        now = self._committer.next_timestamp()
        physical_offset = log.end_offset
        size = kernel.put_stored(
            log.buffer,
            log.position,
            topic=topic,
            queue_id=queue_id,
            flag=message.flag,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            sys_flag=sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=now,
            store_host=self.store_host,
            reconsume_times=message.reconsume_times,
            prepared_offset=message.prepared_transaction_offset,
            body=message.body,
            properties=message.properties,
            checksum=self._checksum,
        )
        log.position += size
        if queued:
            next_offsets[queue_id] = queue_offset + 1
            tags_code = self._tags_code(message, now)
            self._committer.entries.append((queues.queue(queue_id), queue_offset, physical_offset, size, tags_code))
        self._committer.schedule()
        return PutResult(
            PutStatus.PUT_OK,
            physical_offset,
            queue_offset,
            size,
            now,
            physical_offset + size,
            offset_msg_id(self.store_host, physical_offset),
            1,
        )

    def _tags_code(self, message: StoredMessage, store_timestamp: int) -> int:
        if message.topic == SCHEDULE_TOPIC:
            level = kernel.delay_level(decode_properties(message.properties).get(DELAY, ""))
            if level:
                return delivery_time(store_timestamp, level, self._levels)
        return kernel.tags_code(message.properties)

    def put_batch(self, message: StoredMessage, *, first_id_only: bool = False) -> PutResult:
        """Append a client batch, the elements in ``message.body``, as messages with consecutive queue offsets.

        ``message.properties`` is ignored: elements bring their own. ``first_id_only``: the result names no other id.
        raises  DecodeError when the body is no batch
        """
        topic = message.topic.encode()
        body = message.body
        refused = self._check(topic, message.queue_id, len(body), 0)
        if refused is not None:
            return refused
        if message.sys_flag & TRANSACTION_MASK:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason="a batch takes no part in a transaction")
        elements, results = self._elements, self._results
        count = batch_kernel.scan_batch(body, 0, len(body), elements.view)
        if count > BATCH_ROWS:
            elements, results = Table(count, batch_kernel.BATCH_COLUMNS), Table(count, batch_kernel.PUT_COLUMNS)
            batch_kernel.scan_batch(body, 0, len(body), elements.view)
        longest = batch_kernel.longest_properties(elements.view, count) + self._added_bytes
        if longest > PROPERTIES_MAX_BYTES:
            return PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason=_properties_reason(longest))
        overhead = kernel.stored_size(len(topic), 0, self._added_bytes, HOSTS_V6)
        log = self._log
        if len(body) + count * overhead + 8 > self.config.mapped_file_size_commit_log:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason="the batch does not fit a commit log file")
        try:
            log.reserve(len(body) + count * overhead)
        except (StoreFull, OSError) as error:
            return self._no_segment(error)
        queues = self._queues.topic(message.topic)
        queue_id = message.queue_id
        queues.reserve(queue_id + 1)
        next_offsets = queues.next_offsets
        queue_offset = int(next_offsets[queue_id])
        now = self._committer.next_timestamp()
        start = log.end_offset
        written = batch_kernel.put_batch(
            log.buffer,
            log.position,
            log.limit,
            log.base,
            body,
            elements.view,
            count,
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=now,
            store_host=self.store_host,
            reconsume_times=message.reconsume_times,
            results=results.view,
            checksum=self._checksum,
        )
        log.position += written
        next_offsets[queue_id] = queue_offset + count
        offsets, sizes, tags_codes = (results.column(each, count) for each in range(batch_kernel.PUT_COLUMNS))
        units = bytearray(UNIT_SIZE * count)
        put_units(units, 0, offsets, sizes, tags_codes)
        self._committer.entries.append(
            Batch(queues.queue(queue_id), queue_offset, units, batch_kernel.tags_codes(results.view, count))
        )
        self._committer.schedule()
        msg_ids = offset_msg_ids(self.store_host, offsets[:1] if first_id_only else offsets)
        return PutResult(PutStatus.PUT_OK, start, queue_offset, written, now, start + written, msg_ids, count)

    def put_rows(
        self,
        topic: str,
        data: Buffer,
        scratch: Buffer,
        send_rows: memoryview[int],
        first: int,
        last: int,
        *,
        born_host: bytes,
        extra_properties: bytes,
        results: memoryview[int],
        queue_count: int,
    ) -> PutRows:
        """Append the messages of send requests ``first`` to ``last`` - 1, as far as they are plain and of this topic.

        data, scratch, send_rows   as ``_fast.sends.scan_send`` filled them
        results                    int64[n, RESULT_COLUMNS]: row i belongs to send row i (``_fast.sends.put_records``)
        queue_count                a row with this queue id or a higher one is for the caller
        """
        log = self._log
        now = self._committer.next_timestamp()
        if self._refusal or self._queue_disk_full or self._is_busy():
            return PutRows(0, log.base, log.end_offset)
        queues = self._queues.topic(topic)
        next_offsets = queues.offsets_view(min(queue_count, MAX_QUEUE_ID + 1))
        while True:
            base, position = log.base, log.position
            count = sends.put_records(
                log.buffer,
                position,
                log.limit,
                base,
                data,
                scratch,
                send_rows,
                first,
                last,
                topic=queues.name,
                next_offsets=next_offsets,
                born_host=born_host,
                store_host=self.store_host,
                store_timestamp=now,
                extra_properties=extra_properties,
                max_body=self.config.max_message_size,
                results=results,
                checksum=self._checksum,
            )
            if count >= 0:
                break
            needed = kernel.stored_size(
                len(queues.name),
                send_rows[first, sends.SEND_BODY_LENGTH],
                send_rows[first, sends.SEND_PROPERTIES_LENGTH] + len(extra_properties) + self._added_bytes,
                HOSTS_V6,
            )
            try:
                log.reserve(needed)
            except (StoreFull, OSError) as error:
                self._no_segment(error)
                return PutRows(0, base, log.end_offset)
        if count:
            entries = self._committer.entries
            for row in range(first, first + count):
                entries.append(
                    (
                        queues.queue(send_rows[row, sends.SEND_QUEUE_ID]),
                        results[row, sends.RESULT_QUEUE_OFFSET],
                        base + results[row, sends.RESULT_POSITION],
                        results[row, sends.RESULT_SIZE],
                        results[row, sends.RESULT_TAGS_CODE],
                    )
                )
            log.position = results[row, sends.RESULT_POSITION] + results[row, sends.RESULT_SIZE]
            self._committer.schedule()
        return PutRows(count, base, log.end_offset)

    def _check(self, topic: bytes, queue_id: int, body_length: int, properties_length: int) -> PutResult | None:
        """Return why a message cannot be stored, or None (broker.md §8.2, §8.3)."""
        if self._refusal or self._queue_disk_full:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=self.refusal)
        if self._is_busy():
            return PutResult(PutStatus.OS_PAGE_CACHE_BUSY, reason=_BUSY)
        fault = topic_fault(topic)
        if fault:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=fault)
        if not 0 <= queue_id <= MAX_QUEUE_ID:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=f"queue id {queue_id}")
        if body_length > self.config.max_message_size:
            return PutResult(
                PutStatus.MESSAGE_ILLEGAL,
                reason=f"message body of {body_length} bytes, {self.config.max_message_size} are allowed",
            )
        if properties_length > PROPERTIES_MAX_BYTES:
            return PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason=_properties_reason(properties_length))
        return None

    def _is_busy(self) -> bool:
        return self._committer.pending_bytes > self.config.max_pending_bytes

    def _no_segment(self, error: StoreFull | OSError) -> PutResult:
        if isinstance(error, OSError):
            self._committer.fail("allocate", error)
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=self.refusal)
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=str(error))

    # ------------------------------------------------------------------ waiting

    def wait(self, end_offset: int, callback: Callable[[PutStatus], None]) -> None:
        """Call back, on the loop and in order, with PUT_OK when everything before ``end_offset`` is stored.

        FLUSH_DISK_TIMEOUT after ``syncFlushTimeout``: the disk did not answer yet. That is "not known" and never
        "delivered": a power cut may still take the message. Whoever waits again learns what becomes of it.
        SERVICE_NOT_AVAILABLE when the write failed: the message may or may not be found after a restart.
        """
        self._committer.wait(end_offset, callback)

    def _store_failed(self, reason: str) -> None:
        self._refusal = reason

    def _queues_full(self, reason: str) -> None:
        self._queue_disk_full = reason

    # ------------------------------------------------------------------ deleting

    def delete_topic(self, topic: str) -> asyncio.Future[None]:
        """Forget a topic and its queues at once; its messages stay in the log. A new topic of the name starts at 0.

        returns  a future that is done when the deletion is durable: from then on no crash brings the topic back
        raises   StoreError, from the future, when it could not be noted; deleting the topic again tries that again
        """
        if self._queues.topics.pop(topic, None) is not None:
            self._queue_files.forget(topic)
            self._queue_saver.topic_deleted(topic, self._log.end_offset)
        return self._queue_saver.note_deletions(topic)

    # ------------------------------------------------------------------ reading

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        tag_codes: Buffer | None = None,
        message_filter: Callable[[bytes], bool] | None = None,
        max_bytes: int | None = None,
        *,
        wide: bool = False,
    ) -> GetResult:
        """Return messages from ``queue_offset`` on, within the limits of a pull (broker.md §14).

        tag_codes       sorted int64 array of the tags wanted; None for all
        message_filter  gets the encoded properties of each message that passed the tags
        max_bytes       of the messages together, where it is above 0; the first is returned whatever its size
        wide            within maxPullCount and maxPullBytes, not the four maxTransfer settings
        raises          StoreCorrupted when the queue leads to another message; OSError, which names file and position,
                        when the first message or the queue cannot be read
        """
        return self._reader.get(
            topic,
            queue_id,
            queue_offset,
            max_count,
            tag_codes,
            message_filter,
            max_bytes,
            self._committer.durable_offset,
            wide=wide,
        )

    def lookup(self, physical_offset: int) -> bytes | None:
        """Return the record at a physical offset, or None where no sound and visible one begins."""
        return self._reader.lookup(physical_offset, self._committer.durable_offset)

    def tags_code(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the hash of a message's tags; in SCHEDULE_TOPIC it is the time when the message is due."""
        return self._reader.tags_code(topic, queue_id, queue_offset)

    def is_deleted(self, topic: str, physical_offset: int) -> bool:
        """Whether a topic was deleted after a message for it was stored at ``physical_offset``."""
        return physical_offset < self._queue_saver.deleted.before.get(topic, 0)

    def deliveries(self, physical_offset: int) -> set[int]:
        """Return the marks of delayed messages that were delivered behind ``physical_offset``, where a record begins.

        A delivery's mark is its prepared transaction offset. All that is behind is read: for a start after a crash.
        """
        return find_deliveries(self._log, max(physical_offset, self._log.min_offset), self._committer.durable_offset)

    def is_in_repair(self, topic: str, queue_id: int) -> bool:
        """Whether a queue that was found damaged is being repaired; it is to be read again after that."""
        queue = self._queues.find(topic, queue_id)
        return queue is not None and self._queue_saver.is_in_repair(queue)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the end of what is visible of a queue, 0 for an unknown one."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue, 0 for an unknown one."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of a queue's first message, -1 where there is none."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of a message, -1 where there is none."""
        queue = self._queues.find(topic, queue_id)
        return -1 if queue is None else self._reader.store_time(queue, queue_offset)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """Return the first offset stored at or after ``timestamp``, or the queue's end; 0 for an unknown queue.

        UPPER: the last one stored at or before it, or the queue's start.
        """
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else self._reader.offset_by_time(queue, timestamp, boundary)

    def queues(self) -> Iterator[tuple[str, int]]:
        """Return (topic, queue id) of every queue that a message was put in."""
        return iter([(queue.topic, queue.queue_id) for queue in self._queues])

    # ------------------------------------------------------------------ state

    @property
    def read_only_reason(self) -> str | None:
        """Why the store is read-only for good, or None."""
        return self._committer.read_only_reason

    @property
    def refusal(self) -> str:
        """Why the store takes no messages now; empty when it does."""
        return self._refusal or self._queue_disk_full or self._log.full_reason

    @property
    def dispatch_behind(self) -> int:
        """Bytes that are appended and not visible yet."""
        return self._log.end_offset - self._committer.durable_offset

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
        return self._queue_saver.repaired_queues

    @property
    def read_errors(self) -> int:
        """Reads of the log that failed because the disk did not give a page, since the start."""
        return self._reader.read_errors

    @property
    def listener_errors(self) -> int:
        """Calls of ``on_arrival`` that raised, since the start."""
        return self._dispatcher.listener_errors

    @property
    def damaged_records(self) -> int:
        """Messages found damaged, and left out of answers, since the start."""
        return self._reader.damaged_records + self._queue_saver.lost_messages


def _properties_reason(length: int) -> str:
    return f"message properties of {length} bytes, {PROPERTIES_MAX_BYTES} are allowed"
