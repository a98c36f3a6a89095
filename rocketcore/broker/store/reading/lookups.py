"""Looking up: bounds of queues, and single messages by place or time (Java: ``DefaultMessageStore``)."""

from __future__ import annotations

import logging

from rocketcore._fast.consume_queue import unit
from rocketcore._fast.record import QUEUE_ID, QUEUE_OFFSET, TOPIC_LENGTH, TOPIC_START
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.log.record_head import HEAD_BYTES, RecordHead
from rocketcore.broker.store.queues.consume_queue import ConsumeQueue, is_blank
from rocketcore.broker.store.queues.queue_table import QueueTable
from rocketcore.broker.store.reading.deliveries import find_deliveries
from rocketcore.broker.store.reading.records import Records
from rocketcore.broker.store.writing.committer import Committer
from rocketcore.codes import BoundaryType
from rocketcore.errors import DecodeError

__all__ = ["Lookups"]

logger = logging.getLogger(__name__)


class Lookups:
    """Finds what is visible; loop thread only. Every method may raise Cold (``pages``)."""

    def __init__(self, log: CommitLog, queues: QueueTable, records: Records, committer: Committer) -> None:
        self._log = log
        self._queues = queues
        self._records = records
        self._committer = committer

    # ------------------------------------------------------------------ bounds of queues

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

    def bounds(self, topic: str, count: int) -> list[tuple[int, int]]:
        """Return first offset and visible end of the first queues of a topic, 0 and 0 for an unknown one."""
        return self._queues.bounds(topic, count)

    # ------------------------------------------------------------------ by place in a queue

    def tags_code(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the hash of a message's tags, in SCHEDULE_TOPIC the time when it is due; None where there is none."""
        found = self._unit(topic, queue_id, queue_offset)
        return None if found is None else found[2]

    def units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> bytes | bytearray:
        """Return up to ``count`` units of a queue, fewer at the end of a file or of the queue; raises OSError."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return b""
        return self._records.units(queue, queue_offset, min(count, queue.max_offset - queue_offset))

    def place(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the physical offset of a message, None where there is none or its queue cannot be read."""
        try:
            found = self._unit(topic, queue_id, queue_offset)
        except OSError as error:
            logger.error("place of a message not known topic=%s queue_id=%d reason=%s", topic, queue_id, error)
            return None
        return None if found is None or not found[1] else found[0]

    def _unit(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int, int] | None:
        """Return physical offset, size and tags code of a message; raises OSError."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        units = self._records.units(queue, queue_offset, 1)
        if not units:
            return None
        found = unit(units, 0)
        return None if is_blank(found[0], found[1]) else found

    # ------------------------------------------------------------------ by physical offset

    def lookup(self, physical_offset: int) -> bytes | None:
        """Return the record that begins at a physical offset, or None where no sound visible one does.

        A record counts only if its place in its queue leads back to it: a body may hold bytes that look like a record
        of the very place where they lie. So a record that is in no queue is not found either.
        """
        visible_end = self._committer.durable_offset
        if not self._log.min_offset <= physical_offset < visible_end:
            return None
        head = self._records.read(physical_offset, 4)
        if head is None:
            return None
        size = int.from_bytes(head, "big", signed=True)
        if size <= 0 or physical_offset + size > visible_end:
            return None
        record = self._records.read(physical_offset, size)
        if record is None:
            return None
        try:
            is_sound = self._records.scan(record, physical_offset)
        except DecodeError:
            return None
        return record if is_sound and self._leads_to(record, physical_offset) else None

    def _leads_to(self, record: bytes, physical_offset: int) -> bool:
        """Whether the queue offset that a record names leads to ``physical_offset``."""
        row = self._records.table.row(0)
        start = row[TOPIC_START]
        topic = record[start : start + row[TOPIC_LENGTH]].decode("utf-8", "replace")
        queue, queue_offset = self._queues.find(topic, row[QUEUE_ID]), row[QUEUE_OFFSET]
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return False
        units = self._records.units(queue, queue_offset, 1)
        return bool(units) and unit(units, 0)[:2] == (physical_offset, len(record))

    def deliveries(self, physical_offset: int, *, by_level: bool) -> set[int]:
        """Return the marks of messages that were delivered behind ``physical_offset``, where a record begins.

        by_level  those that waited for a delay level, or those that waited for a time
        returns   prepared transaction offsets; others may be among them, which are no message's offset and 1

        All that is behind is read: for a start after a crash.
        """
        start = max(physical_offset, self._log.min_offset)
        return find_deliveries(self._log, start, self._committer.durable_offset, by_level=by_level)

    # ------------------------------------------------------------------ by time

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of a queue's first message, -1 where there is none."""
        queue = self._queues.find(topic, queue_id)
        return -1 if queue is None else self._time(queue, queue.min_offset)

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of a message, -1 where there is none."""
        queue = self._queues.find(topic, queue_id)
        return -1 if queue is None else self._time(queue, queue_offset)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """Return the first offset stored at or after ``timestamp``, or the queue's end; 0 for an unknown queue.

        UPPER: the last one stored at or before it, or the queue's start. Java:
        ``ConsumeQueue.getOffsetInQueueByTime``, which searches as this does: times never fall along a queue.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        upper = boundary is BoundaryType.UPPER
        while low < high:
            middle = (low + high) // 2
            stored = self._time(queue, middle)
            # A blank has no time. It counts as older, like the messages before it.
            if stored < timestamp or (upper and stored == timestamp):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, queue.min_offset) if upper else low

    def _time(self, queue: ConsumeQueue, queue_offset: int) -> int:
        if not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        units = self._records.sound_units(queue, queue_offset, 1)
        physical_offset, size, _ = unit(units, 0)
        if is_blank(physical_offset, size):
            return -1
        try:
            head = self._records.read(physical_offset, min(size, HEAD_BYTES))
        except OSError as error:
            if not self._records.is_given_up(error, physical_offset, size):
                raise
            return -1
        found = RecordHead.read(head)
        return -1 if found is None else found.store_timestamp
