"""Reading messages: by queue offset, by physical offset, by time (Java: ``DefaultMessageStore.getMessage`` and kin).

A read copies once: units to (physical offset, size), then the log's pages, through the read-only map, into the body of
the reply. Every record is checked on its way out: its CRC, its queue and its queue offset. A damaged body is named in
the log of this process and left out, so that a consumer neither gets it nor stands still before it; a unit that points
at another message means that the queue is damaged, and is an error until the unit is made again from the log, which
begins at once (``queue_repair``). A page that cannot be read is an error of the reads that begin at it, as the disk may
give it the next time, until it has failed for so long that it counts as damaged (``unreadable``).

A filter by tags believes a unit that says "not wanted" only if the queue is known to have messages of that tag; else
the message itself is asked. A flipped bit there would hide a message, and no one would ever look at it.
"""

from __future__ import annotations

import errno
import logging
import os
from array import array
from bisect import insort
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from rocketcore._fast.consume_queue import OUT_COLUMNS, PHYSICAL_OFFSET, scan_units, unit
from rocketcore._fast.record import (
    PROPERTIES_LENGTH,
    PROPERTIES_START,
    QUEUE_ID,
    QUEUE_OFFSET,
    STORED_COLUMNS,
    TOPIC_LENGTH,
    TOPIC_START,
    scan_stored,
)
from rocketcore._fast.record import tags_code as hash_of_tags
from rocketcore.broker.store.commit_log import CommitLog
from rocketcore.broker.store.config import UNIT_SIZE, StoreConfig
from rocketcore.broker.store.consume_queue import ConsumeQueue, QueueTable, is_blank
from rocketcore.broker.store.queue_repair import leads_to
from rocketcore.broker.store.record_head import HEAD_BYTES, RecordHead
from rocketcore.broker.store.unreadable import UnreadablePages
from rocketcore.broker.store.values import GetResult, GetStatus
from rocketcore.codes import SCHEDULE_TOPIC, BoundaryType
from rocketcore.errors import DecodeError, StoreCorrupted
from rocketcore.service import Clock
from rocketcore.table import Table

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Reader"]

MAX_RECORDS = 8192
"""Messages of one answer, whatever the settings say: so many rows of a scan are kept."""
KNOWN_CODES = 256
"""Tag codes that are kept of a queue. One with more kinds of messages is filtered by what its units say."""

logger = logging.getLogger(__name__)

_Limits: TypeAlias = tuple[int, int, int, int]
"""Of one answer: messages and bytes from memory, messages and bytes from disk."""


class Reader:
    """Reads what is visible; loop thread only.

    on_damage  is told of a queue that is damaged at an offset, and says what becomes of it
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        clock: Clock,
        on_damage: Callable[[ConsumeQueue, int], str],
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._on_damage = on_damage
        self._cached_bytes = (
            os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * config.access_message_in_memory_max_ratio // 100
        )
        self._narrow: _Limits = (
            min(config.max_transfer_count_on_message_in_memory, MAX_RECORDS),
            config.max_transfer_bytes_on_message_in_memory,
            min(config.max_transfer_count_on_message_in_disk, MAX_RECORDS),
            config.max_transfer_bytes_on_message_in_disk,
        )
        pull_count = min(config.max_pull_count, MAX_RECORDS)
        self._wide: _Limits = (pull_count, config.max_pull_bytes, pull_count, config.max_pull_bytes)
        self._found = Table(MAX_RECORDS, OUT_COLUMNS)
        self._record = Table(1, STORED_COLUMNS)
        self._unreadable = UnreadablePages(log, clock)
        self._damaged_records = 0
        self.read_errors = 0

    @property
    def damaged_records(self) -> int:
        """Messages found damaged, or given up, and left out of answers."""
        return self._damaged_records + self._unreadable.passed_over

    # ------------------------------------------------------------------ by queue offset

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        tag_codes: Buffer | None,
        message_filter: Callable[[bytes], bool] | None,
        max_bytes: int | None,
        visible_end: int,
        *,
        wide: bool,
    ) -> GetResult:
        """See ``MessageStore.get``; ``visible_end`` is the end of the dispatched log."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if not low <= queue_offset < high:
            return _out_of_bounds(queue_offset, low, high)
        count_limit, bytes_limit, disk_count_limit, disk_bytes_limit = self._limits(max_count, max_bytes, wide)
        scan_limit = max(count_limit, disk_count_limit)
        if tag_codes is not None or message_filter is not None:
            scan_limit = max(self._config.max_filter_message_size // UNIT_SIZE, min(max_count, MAX_RECORDS))
        units = self._units(queue, queue_offset, scan_limit)
        if message_filter is not None:
            body, count, examined = self._filtered(
                units, queue, queue_offset, tag_codes, message_filter, count_limit, bytes_limit
            )
            found = count > 0
        else:
            disk_before = max(0, visible_end - self._cached_bytes)
            limits = count_limit, bytes_limit, self._found.view, disk_before, disk_count_limit, disk_bytes_limit
            matched, examined = self._scan(units, queue, queue_offset, tag_codes, limits)
            body, count, examined = self._copy(queue, queue_offset, matched, examined)
            found = matched > 0
        if count:
            return GetResult(GetStatus.FOUND, queue_offset + examined, low, high, body, count)
        status = GetStatus.MESSAGE_WAS_REMOVING if found else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, queue_offset + examined, low, high)

    def _limits(self, max_count: int, max_bytes: int | None, wide: bool) -> _Limits:
        """Return the limits of one answer."""
        most = self._wide if wide else self._narrow
        count, size, disk_count, disk_size = most
        asks_for_less = max_bytes is not None and (0 < max_bytes < size or 0 < max_bytes < disk_size)
        if max_count >= count and max_count >= disk_count and not asks_for_less:
            return most  # as almost every pull
        max_count = max(max_count, 1)
        if max_bytes is None or max_bytes <= 0:
            return min(max_count, count), size, min(max_count, disk_count), disk_size
        return min(max_count, count), min(max_bytes, size), min(max_count, disk_count), min(max_bytes, disk_size)

    def _units(self, queue: ConsumeQueue, queue_offset: int, count: int) -> bytes | bytearray:
        """Return units of a queue, one at least.

        raises  StoreCorrupted when they are not there, or the disk does not give them; OSError
        """
        try:
            units = queue.units(queue_offset, count)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOENT):
                raise
            self._queue_damaged(queue, queue_offset, str(error))
        if not units:
            self._queue_damaged(queue, queue_offset, "the file ends before it")
        return units

    def _scan(
        self,
        units: bytes | bytearray,
        queue: ConsumeQueue,
        queue_offset: int,
        tag_codes: Buffer | None,
        limits: tuple[int, int, memoryview, int, int, int],
    ) -> tuple[int, int]:
        """See ``scan_units``; codes that are new are compared with those of their messages.

        raises  StoreCorrupted where the first unit is damaged
        """
        while True:
            known = None if tag_codes is None or queue.topic == SCHEDULE_TOPIC else queue.known_codes
            try:
                matched, examined = scan_units(units, tag_codes, *limits, known)
            except DecodeError as error:
                self._queue_damaged(queue, queue_offset, str(error))
            if tag_codes is None or known is None or examined * UNIT_SIZE == len(units):
                return matched, examined
            if not self._learned(units, examined, queue, queue_offset, tag_codes, known):
                return matched, examined

    def _learned(
        self,
        units: bytes | bytearray,
        index: int,
        queue: ConsumeQueue,
        queue_offset: int,
        tag_codes: Buffer,
        known: array[int],
    ) -> bool:
        """Whether the tag code that stopped a scan was new and is known now, as its message has it.

        raises  StoreCorrupted, OSError where it is of the first unit scanned; any other is an error of the next read
        """
        physical_offset, size, tags_code = unit(units, index)
        wanted = memoryview(tag_codes).cast("B").cast("q")
        if size < 0 or tags_code in wanted or tags_code in known:
            return False
        try:
            gone = physical_offset < self._log.min_offset
            record = None if gone else self._checked(queue, queue_offset + index, physical_offset, size)
            if record is not None and hash_of_tags(self._properties(record)) != tags_code:
                self._queue_damaged(queue, queue_offset + index, "its tags code is not that of its message")
        except (OSError, StoreCorrupted):
            if not index:
                raise
            return False
        if len(known) == KNOWN_CODES:
            queue.known_codes = None
        else:
            insort(known, tags_code)
        return True

    def _copy(self, queue: ConsumeQueue, queue_offset: int, matched: int, examined: int) -> tuple[bytes, int, int]:
        """Return the records of the first ``matched`` rows of the found table, checked: (body, messages, examined).

        Fewer units count as examined than were scanned where one leads to what cannot be read.
        """
        if not matched:
            return b"", 0, examined
        found = self._found
        first = 0
        while first < matched and found.flat[first * OUT_COLUMNS + PHYSICAL_OFFSET] < self._log.min_offset:
            first += 1
        body, row = self._log.gather(found, first, matched, queue.queue_id, queue_offset)
        if row == matched:
            return body, matched - first, examined
        return self._copy_sound(queue, queue_offset, [found.row(index) for index in range(first, matched)], examined)

    def _copy_sound(
        self, queue: ConsumeQueue, queue_offset: int, found: list[array[int]], examined: int
    ) -> tuple[bytes, int, int]:
        """Return the records that are sound, one at a time, up to one that cannot be read; names the others."""
        sound = []
        for physical_offset, size, index in found:
            try:
                record = self._checked(queue, queue_offset + index, physical_offset, size)
            except (OSError, StoreCorrupted):
                if not index:
                    raise
                # What lies before it is answered; it is an error of the next read.
                examined = index
                break
            if record is not None:
                sound.append(record)
        return b"".join(sound), len(sound), examined

    def _checked(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int, size: int) -> bytes | None:
        """Return one record, or None if its body or its properties are damaged, or it was given up.

        raises  StoreCorrupted when the unit does not lead to the message of this queue offset; OSError
        """
        try:
            record = self._read(physical_offset, size)
        except OSError as error:
            if error.errno != errno.EIO or not self._unreadable.failed(physical_offset, size):
                raise
            return None
        if record is None or len(record) < HEAD_BYTES:
            self._queue_damaged(queue, queue_offset, f"there is no record of {size} bytes at {physical_offset}")
        if not leads_to(record, queue, queue_offset, physical_offset, size):
            self._queue_damaged(queue, queue_offset, f"it leads to {physical_offset}, where another message lies")
        try:
            sealed = self._log.is_sealed_at(physical_offset)
            _, position = scan_stored(record, 0, size, self._record.view, whole=True, sealed=sealed)
            if position == size:
                return record
            reason = "its length is wrong"
        except DecodeError as error:
            reason = str(error)
        self._record_damaged(physical_offset, reason)
        return None

    def _properties(self, record: bytes) -> bytes:
        """Return the properties of the record that was just checked."""
        start = int(self._record.view[0, PROPERTIES_START])
        return record[start : start + int(self._record.view[0, PROPERTIES_LENGTH])]

    def _read(self, physical_offset: int, size: int) -> bytes | None:
        """See ``CommitLog.read``; counts what cannot be read."""
        try:
            return self._log.read(physical_offset, size)
        except OSError as error:
            self.read_errors += 1
            logger.error("commit log not readable physical_offset=%d bytes=%d reason=%s", physical_offset, size, error)
            raise

    def _record_damaged(self, physical_offset: int, reason: str) -> None:
        self._damaged_records += 1
        segment = self._log.find_segment(physical_offset)
        assert segment is not None, "the record was read from a segment"
        logger.error(
            "message damaged path=%s position=%d reason=%s", segment.path, physical_offset - segment.start, reason
        )

    def _filtered(
        self,
        units: bytes | bytearray,
        queue: ConsumeQueue,
        queue_offset: int,
        tag_codes: Buffer | None,
        message_filter: Callable[[bytes], bool],
        count_limit: int,
        bytes_limit: int,
    ) -> tuple[bytes, int, int]:
        """Select by properties, unit by unit: (body, messages, units examined)."""
        codes = None if tag_codes is None else set(memoryview(tag_codes).cast("B").cast("q"))
        records: list[bytes] = []
        length = 0
        for index in range(len(units) // UNIT_SIZE):
            physical_offset, size, tags_code = unit(units, index)
            if records and (len(records) >= count_limit or length + size > bytes_limit):
                return b"".join(records), len(records), index
            gone = physical_offset < self._log.min_offset
            if gone or is_blank(physical_offset, size) or (codes is not None and tags_code not in codes):
                continue
            try:
                record = self._checked(queue, queue_offset + index, physical_offset, size)
            except (OSError, StoreCorrupted):
                if not index:
                    raise
                return b"".join(records), len(records), index
            if record is None:
                continue
            if message_filter(self._properties(record)):
                records.append(record)
                length += size
        return b"".join(records), len(records), len(units) // UNIT_SIZE

    def _queue_damaged(self, queue: ConsumeQueue, queue_offset: int, reason: str) -> NoReturn:
        remedy = self._on_damage(queue, queue_offset)
        folder = self._queues.files.folder(queue.topic, queue.queue_id)
        fault = f"consume queue {folder} is damaged at offset {queue_offset}: {reason}"
        logger.error("%s", fault)
        raise StoreCorrupted(f"{fault}; {remedy}")

    def tags_code(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the tags code of a message, None where there is none."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        units = queue.units(queue_offset, 1)
        if not units:
            return None
        physical_offset, size, tags_code = unit(units, 0)
        return None if is_blank(physical_offset, size) else tags_code

    def place(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the physical offset of a message, None where there is none or its queue cannot be read."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        try:
            units = queue.units(queue_offset, 1)
        except OSError as error:
            logger.error("place of a message not known topic=%s queue_id=%d reason=%s", topic, queue_id, error)
            return None
        physical_offset, size, _ = unit(units, 0) if units else (0, 0, 0)
        return None if not size or is_blank(physical_offset, size) else physical_offset

    # ------------------------------------------------------------------ by physical offset

    def lookup(self, physical_offset: int, visible_end: int) -> bytes | None:
        """Return the record that begins at a physical offset, or None where no sound visible one does.

        A record counts only if its place in its queue leads back to it: a body may hold bytes that look like a record
        of the very place where they lie. So a record that is in no queue is not found either.
        """
        if not self._log.min_offset <= physical_offset < visible_end:
            return None
        head = self._read(physical_offset, 4)
        if head is None:
            return None
        size = int.from_bytes(head, "big", signed=True)
        if size <= 0 or physical_offset + size > visible_end:
            return None
        record = self._read(physical_offset, size)
        if record is None:
            return None
        try:
            sealed = self._log.is_sealed_at(physical_offset)
            count, position = scan_stored(record, 0, size, self._record.view, whole=True, sealed=sealed)
        except DecodeError:
            return None
        if not count or position != size or not self._leads_to(record, physical_offset):
            return None
        return record

    def _leads_to(self, record: bytes, physical_offset: int) -> bool:
        """Whether the queue offset that a record names leads to ``physical_offset``."""
        row = self._record.row(0)
        start = row[TOPIC_START]
        topic = record[start : start + row[TOPIC_LENGTH]].decode("utf-8", "replace")
        queue, queue_offset = self._queues.find(topic, row[QUEUE_ID]), row[QUEUE_OFFSET]
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return False
        units = queue.units(queue_offset, 1)
        return bool(units) and unit(units, 0)[:2] == (physical_offset, len(record))

    # ------------------------------------------------------------------ by time

    def store_time(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Return the store time of a message, or -1 where there is none."""
        if not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        units = self._units(queue, queue_offset, 1)
        physical_offset, size, _ = unit(units, 0)
        if is_blank(physical_offset, size):
            return -1
        try:
            head = self._read(physical_offset, min(size, HEAD_BYTES))
        except OSError as error:
            if error.errno != errno.EIO or not self._unreadable.failed(physical_offset, size):
                raise
            return -1
        found = RecordHead.read(head)
        return -1 if found is None else found.store_timestamp

    def offset_by_time(self, queue: ConsumeQueue, timestamp: int, boundary: BoundaryType) -> int:
        """Search by store time, which never falls along a queue (Java: ``ConsumeQueue.getOffsetInQueueByTime``)."""
        low, high = queue.min_offset, queue.max_offset
        upper = boundary is BoundaryType.UPPER
        while low < high:
            middle = (low + high) // 2
            stored = self.store_time(queue, middle)
            # A blank has no time. It counts as older, like the messages before it.
            if stored < timestamp or (upper and stored == timestamp):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, queue.min_offset) if upper else low


def _out_of_bounds(queue_offset: int, low: int, high: int) -> GetResult:
    if high == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if queue_offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    if queue_offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high)
    return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
