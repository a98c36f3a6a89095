"""Reading messages of a queue from an offset on (Java: ``DefaultMessageStore.getMessage``).

A read copies once: units to (physical offset, size), then the log's pages, through the read-only map, into the body of
the reply. Every record is checked on its way out; ``records`` says what becomes of those that are not sound.

A filter by tags believes a unit that says "not wanted" only if the queue is known to have messages of that tag; else
the message itself is asked. A flipped bit there would hide a message, and no one would ever look at it.
"""

from __future__ import annotations

import os
from array import array
from bisect import insort
from typing import TYPE_CHECKING, TypeAlias

from rocketcore._fast.consume_queue import OUT_COLUMNS, PHYSICAL_OFFSET, SIZE, scan_units, unit
from rocketcore._fast.record import tags_code as hash_of_tags
from rocketcore._fast.window import Window
from rocketcore.broker.store.config import UNIT_SIZE, StoreConfig
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.log.pages import Cold, Pages
from rocketcore.broker.store.queues.consume_queue import ConsumeQueue
from rocketcore.broker.store.queues.queue_table import QueueTable
from rocketcore.broker.store.reading.records import Records
from rocketcore.broker.store.timed import TIMED_TOPICS
from rocketcore.broker.store.values import GetResult, GetStatus
from rocketcore.errors import DecodeError, StoreCorrupted
from rocketcore.table import Table

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from rocketcore._fast.sql_filter import SqlFilter

__all__ = ["Reader"]

MAX_RECORDS = 8192
"""Messages of one answer, whatever the settings say: so many rows of a scan are kept."""
KNOWN_CODES = 256
"""Tag codes that are kept of a queue. One with more kinds of messages is filtered by what its units say."""

_Limits: TypeAlias = tuple[int, int, int, int]
"""Of one answer: messages and bytes from memory, messages and bytes from disk."""

WINDOW_UNITS = 768
"""Units of a window at most."""
WINDOW_BYTES = 8 << 20
"""So far in the log lie the messages of a window."""


class Reader:
    """Reads what is visible; loop thread only. ``get`` may raise Cold (``pages``)."""

    def __init__(self, config: StoreConfig, log: CommitLog, queues: QueueTable, pages: Pages, records: Records) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._pages = pages
        self._records = records
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

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        tag_codes: Buffer | None,
        message_filter: SqlFilter | None,
        max_bytes: int | None,
        visible_end: int,
        *,
        wide: bool,
    ) -> GetResult:
        """See ``MessageStore.get``; ``visible_end`` is the end of the dispatched log."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if not low <= queue_offset < high:
            return _out_of_bounds(queue_offset, low, high)
        limits = self._limits(max_count, max_bytes, wide)
        is_filtered = tag_codes is not None or message_filter is not None
        most = self._most_examined(max_count) if is_filtered else max(limits[0], limits[2])
        units = self._records.sound_units(queue, queue_offset, most)
        if message_filter is not None:
            from rocketcore.broker.store.reading.property_reader import select  # most brokers start for tags alone

            body, count, examined = select(
                message_filter, units, queue, queue_offset, limits[0], limits[1], self._log, self._pages, self._records
            )
            found = count > 0
        else:
            matched, examined = self._scan(units, queue, queue_offset, tag_codes, limits, visible_end)
            body, count, examined = self._copy(queue, queue_offset, matched, examined)
            found = matched > 0
        if count:
            return GetResult(GetStatus.FOUND, queue_offset + examined, low, high, body, count)
        status = GetStatus.MESSAGE_WAS_REMOVING if found else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, queue_offset + examined, low, high)

    def locate(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        tag_codes: Buffer | None,
        max_bytes: int | None,
        visible_end: int,
    ) -> Window | None:
        """Look up what pulls that ask for the same from here on are answered from; None where ``get`` finds none for
        the first of them, or not all in one file.

        Whoever takes messages from there checks them, and calls ``get`` where one is not sound. What is not as nearly
        always is left to ``get`` as well, which names it. The window holds until ``CommitLog.windows`` are cleared.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return None
        low, high = queue.min_offset, queue.max_offset
        if not low <= queue_offset < high or queue.begins_later:
            return None
        log, pages, flat = self._log, self._pages, self._found.flat
        limits = self._limits(max_count, max_bytes, wide=False)
        most = max(limits[0], limits[2]) if tag_codes is None else self._most_examined(max_count)
        units = queue.units(queue_offset, most, pages if pages.asks else None)
        matched, _ = self._scan(units, queue, queue_offset, tag_codes, limits, visible_end)
        if not matched:
            return None
        begin = flat[PHYSICAL_OFFSET]
        if pages.asks and begin < pages.recent_from and pages.want_rows(self._found, 0, matched) < matched:
            return None
        segment = log.find_segment(begin)
        if segment is None:
            return None
        last = (matched - 1) * OUT_COLUMNS
        end = flat[last + PHYSICAL_OFFSET] + flat[last + SIZE]
        _, ahead = pages.in_memory(segment, end - 1 - segment.start, WINDOW_BYTES)
        at_hand = max(units, queue.units_at_hand(queue_offset, WINDOW_UNITS), key=len)
        final, size, _ = unit(at_hand, len(at_hand) // UNIT_SIZE - 1)
        readable_to = max(end, min(segment.start + ahead, final + size, begin + WINDOW_BYTES))
        log.resident.was_read(begin, readable_to)
        return Window(
            queue, at_hand, queue_offset, most, limits, self._disk_before(visible_end), tag_codes,
            queue.topic in TIMED_TOPICS, segment.view(), segment.start, log.is_sealed(segment), (begin, readable_to),
        )  # fmt: skip

    def _most_examined(self, max_count: int) -> int:
        """Return how many units one answer through a filter may examine."""
        return max(self._config.max_filter_message_size // UNIT_SIZE, min(max_count, MAX_RECORDS))

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

    def _disk_before(self, visible_end: int) -> int:
        """Return the physical offset before which messages count as on disk."""
        return max(0, visible_end - self._cached_bytes)

    def _scan(
        self,
        units: bytes | bytearray,
        queue: ConsumeQueue,
        queue_offset: int,
        tag_codes: Buffer | None,
        limits: _Limits,
        visible_end: int,
    ) -> tuple[int, int]:
        """Fill the found table, see ``scan_units``; codes that are new are compared with those of their messages.

        raises  StoreCorrupted where the first unit is damaged
        """
        count, size, disk_count, disk_size = limits
        disk_before = self._disk_before(visible_end)
        while True:
            known = None if tag_codes is None or queue.topic in TIMED_TOPICS else queue.known_codes
            try:
                matched, examined = scan_units(
                    units, tag_codes, count, size, self._found.view, disk_before, disk_count, disk_size, known
                )
            except DecodeError as error:
                self._records.queue_damaged(queue, queue_offset, str(error))
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
            gone = queue.is_gone(physical_offset, size, self._log.min_offset)
            record = None if gone else self._records.checked(queue, queue_offset + index, physical_offset, size)
            if record is not None and hash_of_tags(self._records.properties(record)) != tags_code:
                self._records.queue_damaged(queue, queue_offset + index, "its tags code is not that of its message")
        except (OSError, StoreCorrupted, Cold):
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
        found, pages = self._found, self._pages
        begin = found.flat[PHYSICAL_OFFSET]
        first, readable = 0, matched
        if queue.begins_later:
            first = self._first_kept(queue, matched)
            begin = pages.recent_from if first == matched else found.flat[first * OUT_COLUMNS + PHYSICAL_OFFSET]
        if pages.asks and begin < pages.recent_from:
            readable = pages.want_rows(found, first, matched)
        body, row = self._log.gather(found, first, readable, queue.queue_id, queue_offset)
        if row == matched:
            return body, matched - first, examined
        return self._copy_sound(queue, queue_offset, [found.row(index) for index in range(first, matched)], examined)

    def _first_kept(self, queue: ConsumeQueue, matched: int) -> int:
        """Return the first found row whose record was not deleted with its file; ``matched`` where all were."""
        rows = (self._found.row(index) for index in range(matched))
        kept = (
            index
            for index, (physical_offset, size, _) in enumerate(rows)
            if not queue.is_gone(physical_offset, size, self._log.min_offset)
        )
        return next(kept, matched)

    def _copy_sound(
        self, queue: ConsumeQueue, queue_offset: int, found: list[array[int]], examined: int
    ) -> tuple[bytes, int, int]:
        """Return the records that are sound, one at a time, up to one that cannot be read; names the others."""
        sound = []
        for physical_offset, size, index in found:
            try:
                record = self._records.checked(queue, queue_offset + index, physical_offset, size)
            except (OSError, StoreCorrupted, Cold):
                if not index:
                    raise
                # What lies before it is answered; it is an error of the next read.
                examined = index
                break
            if record is not None:
                sound.append(record)
        return b"".join(sound), len(sound), examined


def _out_of_bounds(queue_offset: int, low: int, high: int) -> GetResult:
    if high == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if queue_offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    if queue_offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high)
    return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
