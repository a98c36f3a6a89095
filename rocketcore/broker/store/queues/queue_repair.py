"""Repair of a consume queue while the store runs: the units around a damaged one are made again from the log.

A queue is derived, so damage to it costs nothing but a look at the log. How much of the log is decided by the nearest
units on both sides that lead to the message they should: between those two records lie all messages whose units are in
doubt. What the log does not hold any more becomes a blank, and the damage in the log is named.

The rest of the queue, and all other queues, are read and written meanwhile: the looking is done in pieces, between
which the save thread does its other work, and only the writing needs the save lock.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from typing import NamedTuple

from rocketcore._fast import commit_log as kernel
from rocketcore._fast.commit_log import (
    COLUMNS,
    FILLER,
    FULL,
    PHYSICAL_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    SIZE,
    SYS_FLAG,
    TAGS_CODE,
    TOPIC_LENGTH,
    TOPIC_START,
)
from rocketcore._fast.consume_queue import is_queued, put_blank, put_unit, unit
from rocketcore.broker.store.config import UNIT_SIZE
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.log.record_head import HEAD_BYTES, RecordHead
from rocketcore.broker.store.log.segment_file import Segment
from rocketcore.broker.store.queues.consume_queue import ConsumeQueue, QueueFiles, Units
from rocketcore.broker.store.timed import TIMED_TOPICS, timed_tags_code
from rocketcore.table import Table

__all__ = ["Damage", "Repair", "leads_to"]

ROWS = 256
PIECE_UNITS = 512
PIECE_BYTES = 4 << 20
"""How much of the queue, and of the log, is looked at in one piece."""

logger = logging.getLogger(__name__)


class Damage(NamedTuple):
    """What the loop decides before a repair: the units ``start`` to ``saved`` are in the files.

    end_offset  where the first unit that is not in the files leads, or the end of what is in the queues
    log_start   messages of the topic before it belong to no queue: the topic was deleted there, or the log begins there
    """

    queue: ConsumeQueue
    queue_offset: int
    start: int
    saved: int
    end_offset: int
    log_start: int


def leads_to(head: bytes | None, queue: ConsumeQueue, queue_offset: int, physical_offset: int, size: int) -> bool:
    """Whether a unit leads to the message it should, judged by the first bytes of the record there."""
    found = RecordHead.read(head)
    return found is not None and found[:4] == (size, queue.queue_id, queue_offset, physical_offset)


class Repair:
    """One repair: ``step`` until all is read, then ``write`` under the save lock; both on the save thread.

    lost  messages that are in the log no more
    """

    def __init__(self, log: CommitLog, files: QueueFiles, levels: tuple[int, ...], damage: Damage) -> None:
        self.lost = 0
        self._log = log
        self._files = files
        self._levels = levels
        self._damage = damage
        self._topic = damage.queue.topic.encode()
        self._rows = Table(ROWS, COLUMNS)
        self._first = 0
        self._units = bytearray()
        self._pieces = self._read_pieces()

    def step(self) -> bool:
        """Read a piece; returns whether it was the last."""
        return next(self._pieces, "read") == "read"

    def write(self) -> None:
        """raises  OSError when the files of the queue cannot be written"""
        damage = self._damage
        units = Units(damage.queue, self._first, bytes(self._units), trim=False)
        self._files.rewrite(units)
        logger.warning(
            "consume queue repaired topic=%s queue_id=%d from=%d to=%d lost=%d",
            damage.queue.topic,
            damage.queue.queue_id,
            units.first,
            units.end,
            self.lost,
        )

    def _read_pieces(self) -> Generator[None]:
        first, begin = yield from self._sound_before()
        last, end = yield from self._sound_after()
        self._first = first
        self._units = bytearray((last - first) * UNIT_SIZE)
        put_blank(self._units, 0, last - first)
        found = yield from self._collect(first, last, begin, end)
        self.lost = last - first - found

    # ------------------------------------------------------------------ how far

    def _sound_before(self) -> Generator[None, None, tuple[int, int]]:
        """Return the first unit in doubt, and where its message may begin."""
        damage = self._damage
        end = damage.queue_offset
        while end > damage.start:
            first_of_file = end - 1 - (end - 1) % self._files.units_per_file
            begin = max(end - PIECE_UNITS, first_of_file, damage.start)
            units = self._peek(begin, end - begin)
            for queue_offset in range(begin + len(units) // UNIT_SIZE - 1, begin - 1, -1):
                place = self._leads(units, queue_offset - begin, queue_offset)
                if place is not None:
                    return queue_offset + 1, sum(place)
            end = begin
            yield
        return end, damage.log_start

    def _sound_after(self) -> Generator[None, None, tuple[int, int]]:
        """Return the first unit that is not in doubt, and where it leads."""
        damage = self._damage
        begin = damage.queue_offset + 1
        while begin < damage.saved:
            end_of_file = begin - begin % self._files.units_per_file + self._files.units_per_file
            end = min(begin + PIECE_UNITS, end_of_file, damage.saved)
            units = self._peek(begin, end - begin)
            for index in range(len(units) // UNIT_SIZE):
                place = self._leads(units, index, begin + index)
                if place is not None:
                    return begin + index, place[0]
            begin = end
            yield
        return damage.saved, damage.end_offset

    def _peek(self, queue_offset: int, count: int) -> bytes:
        """Return units that are in the file of the first, as many as can be read."""
        try:
            return self._files.peek(self._damage.queue, queue_offset, count)
        except OSError:
            return b""

    def _leads(self, units: bytes, index: int, queue_offset: int) -> tuple[int, int] | None:
        """Return where a unit leads, and the size there, if its message is there."""
        physical_offset, size, _ = unit(units, index)
        try:
            head = self._log.read(physical_offset, min(size, HEAD_BYTES))
        except OSError:
            return None
        damaged = self._damage.queue
        return (physical_offset, size) if leads_to(head, damaged, queue_offset, physical_offset, size) else None

    # ------------------------------------------------------------------ the log

    def _collect(self, first: int, last: int, begin: int, end: int) -> Generator[None, None, int]:
        """Make the units of the messages that the log holds between two places; returns how many."""
        found: set[int] = set()
        position = piece = begin
        while position < end and (segment := self._log.find_segment(position)) is not None:
            limit = min(end, segment.end) - segment.start
            at = position - segment.start
            sealed = self._log.is_sealed(segment)
            count, at, status, _ = kernel.walk(segment.view(), at, limit, segment.start, self._rows.view, True, sealed)
            for index in self._wanted(segment, count):
                queue_offset = self._rows.view[index, QUEUE_OFFSET]
                if first <= queue_offset < last and queue_offset not in found:
                    found.add(queue_offset)
                    self._put(self._units, (queue_offset - first) * UNIT_SIZE, index, segment)
            position = segment.start + at
            if status == FILLER:
                position = segment.end
            elif status != FULL and position < segment.start + limit:
                position = self._skip_damage(segment, at, limit)
            if position - piece >= PIECE_BYTES:
                piece = position
                yield
        return len(found)

    def _wanted(self, segment: Segment, count: int) -> list[int]:
        """Return which of the first ``count`` rows are of messages of this queue."""
        rows, queue_id, length = self._rows, self._damage.queue.queue_id, len(self._topic)
        columns = rows.column(QUEUE_ID, count), rows.column(TOPIC_LENGTH, count)
        near = [index for index, row in enumerate(zip(*columns, strict=True)) if row == (queue_id, length)]
        return [index for index in near if self._is_wanted(segment, index)]

    def _is_wanted(self, segment: Segment, index: int) -> bool:
        row = self._rows.view
        if not is_queued(row[index, SYS_FLAG]) or row[index, PHYSICAL_OFFSET] < self._damage.log_start:
            return False
        try:
            return segment.read(row[index, TOPIC_START], len(self._topic)) == self._topic
        except OSError:
            return False  # the page was there a moment ago

    def _put(self, units: bytearray, at: int, index: int, segment: Segment) -> None:
        row, topic = self._rows.row(index), self._damage.queue.topic
        tags_code = row[TAGS_CODE]
        if topic in TIMED_TOPICS:
            # A page that was there a moment ago and is not now: the time of a message that waits is in the message too.
            with contextlib.suppress(OSError):
                tags_code = timed_tags_code(topic, row, self._levels, segment.read)
        put_unit(units, at, row[PHYSICAL_OFFSET], row[SIZE], tags_code)

    def _skip_damage(self, segment: Segment, at: int, limit: int) -> int:
        """Name bytes of the log that are no record, and return where the next record begins, or the limit."""
        found = self._log.find_behind(segment, at, sealed=self._log.is_sealed(segment))
        end = limit if found is None else min(found - segment.start, limit)
        logger.error("commit log damaged path=%s position=%d bytes=%d", segment.path, at, end - at)
        return segment.start + end
