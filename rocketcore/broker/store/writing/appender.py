"""Appending: checks, queue offset and layout of a message in the log's write buffer (Java: ``CommitLog``).

One writer, the event loop's thread. What was put is committed at the end of the loop's turn, see ``committer``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rocketcore._fast import batch as batch_kernel
from rocketcore._fast import record as kernel
from rocketcore._fast import sends
from rocketcore._fast.consume_queue import is_queued
from rocketcore._fast.message_id import offset_msg_id, offset_msg_ids
from rocketcore.broker.store.config import RECORD_OVERHEAD, StoreConfig
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.queues.consume_queue import MAX_QUEUE_ID, topic_fault
from rocketcore.broker.store.queues.queue_table import QueueTable
from rocketcore.broker.store.values import PutResult, PutRows, PutStatus, StoredMessage
from rocketcore.broker.store.writing.committer import Committer
from rocketcore.codes import TRANSACTION_MASK
from rocketcore.errors import StoreFull
from rocketcore.table import Table

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Appender"]

PROPERTIES_MAX_BYTES = 32_767
HOSTS_V6 = 0x30
"""System flags of the longest hosts. Room is reckoned with them: a segment may close 24 bytes early."""

BATCH_ROWS = 8192
"""Elements that there are tables for; a batch of 1 MiB has fewer, unless its messages are tiny."""

logger = logging.getLogger(__name__)

_BUSY = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"


class Appender:
    """Puts messages into the log; loop thread only.

    store_host  address and port that go into records and message ids, 8 or 20 bytes
    """

    def __init__(
        self, config: StoreConfig, log: CommitLog, queues: QueueTable, committer: Committer, store_host: bytes
    ) -> None:
        self.config = config
        self.store_host = store_host
        self._log = log
        self._queues = queues
        self._committer = committer
        self._longest_sent = config.max_message_size
        self._longest = config.mapped_file_size_commit_log - RECORD_OVERHEAD
        self._checksum = config.enabled_append_prop_crc
        # What is put behind the properties of a message at most: a missing separator and the checksum.
        self._added_bytes = 1 + (kernel.CHECKSUM_SIZE if self._checksum else 0)
        self._refusals: dict[str, str] = {}
        self._refusal = ""
        self._results = Table(BATCH_ROWS, batch_kernel.PUT_COLUMNS)
        self._elements = Table(BATCH_ROWS, batch_kernel.BATCH_COLUMNS)

    def refuse(self, cause: str, reason: str) -> None:
        """Take no messages for a reason, until the same cause comes with an empty one; the oldest cause is told."""
        if reason:
            self._refusals[cause] = reason
        else:
            self._refusals.pop(cause, None)
        self._refusal = next(iter(self._refusals.values()), "")

    @property
    def refusal(self) -> str:
        """Why no messages are taken now; empty when they are."""
        return self._refusal or self._log.full_reason

    def put(self, message: StoredMessage, *, is_sent: bool = False) -> PutResult:
        """Append a message. It counts as stored when ``wait`` says so.

        is_sent  a client sends it, so it is no longer than maxMessageSize. What the broker moves was measured when it
                 came, maybe by another limit, and would be lost
        """
        topic = message.topic.encode()
        properties_length = len(message.properties) + self._added_bytes
        if properties_length > PROPERTIES_MAX_BYTES:
            properties_length = kernel.stored_properties_size(message.properties, self._checksum)
        most = self._longest_sent if is_sent else self._longest
        refused = self._check(topic, message.queue_id, len(message.body), most, properties_length)
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

    def put_batch(self, message: StoredMessage, *, first_id_only: bool = False) -> PutResult:
        """Append a client batch, the elements in ``message.body``, as messages with consecutive queue offsets.

        ``message.properties`` is ignored: elements bring their own. ``first_id_only``: the result names no other id.
        raises  DecodeError when the body is no batch
        """
        topic = message.topic.encode()
        body = message.body
        refused = self._check(topic, message.queue_id, len(body), self._longest_sent, 0)
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
        self._committer.schedule()
        offsets = results.column(0, 1 if first_id_only else count)
        msg_ids = offset_msg_ids(self.store_host, offsets)
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
        if self._refusal or self._is_busy():
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
                max_body=self._longest_sent,
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
            last = first + count - 1
            log.position = results[last, sends.RESULT_POSITION] + results[last, sends.RESULT_SIZE]
            self._committer.schedule()
        return PutRows(count, base, log.end_offset)

    def _check(
        self, topic: bytes, queue_id: int, body_length: int, most: int, properties_length: int
    ) -> PutResult | None:
        """Return why a message cannot be stored, or None (broker.md §8.2, §8.3)."""
        if self._refusal:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=self.refusal)
        if self._is_busy():
            return PutResult(PutStatus.OS_PAGE_CACHE_BUSY, reason=_BUSY)
        fault = topic_fault(topic)
        if fault:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=fault)
        if not 0 <= queue_id <= MAX_QUEUE_ID:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=f"queue id {queue_id}")
        if body_length > most:
            return PutResult(
                PutStatus.MESSAGE_ILLEGAL,
                reason=f"message body of {body_length} bytes, {most} are allowed",
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


def _properties_reason(length: int) -> str:
    return f"message properties of {length} bytes, {PROPERTIES_MAX_BYTES} are allowed"
