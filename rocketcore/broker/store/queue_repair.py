"""Repair of a consume queue while the store runs: the units around a damaged one are made again from the log.

A queue is derived, so damage to it costs nothing but a look at the log. How much of the log is settled by the nearest
units on both sides that lead to the message they should: between those two records lie all messages whose units are in
doubt. What the log does not hold any more becomes a blank, and the damage in the log is named.

The rest of the queue, and all other queues, are read and written meanwhile.
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import NamedTuple

from rocketcore._fast import commit_log as kernel
from rocketcore._fast.commit_log import (
    COLUMNS,
    DELAY_LEVEL,
    FILLER,
    FULL,
    PHYSICAL_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    SIZE,
    STORE_TIMESTAMP,
    SYS_FLAG,
    TAGS_CODE,
    TOPIC_LENGTH,
    TOPIC_START,
)
from rocketcore._fast.consume_queue import is_queued, put_blank, put_unit, unit
from rocketcore.broker.store.commit_log import CommitLog
from rocketcore.broker.store.config import UNIT_SIZE
from rocketcore.broker.store.consume_queue import ConsumeQueue, QueueFiles, Units
from rocketcore.broker.store.recovery import delivery_time
from rocketcore.broker.store.segment_file import Segment
from rocketcore.broker.store.table import Table
from rocketcore.codes import SCHEDULE_TOPIC

__all__ = ["Damage", "Repair", "leads_to"]

ROWS = 256

logger = logging.getLogger(__name__)

_HEAD = Struct(">iiiiiqq")
"""What the magics of both versions begin with."""


class Damage(NamedTuple):
    """What the loop settles before a repair: the units ``start`` to ``saved`` are in the files.

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
    if head is None or len(head) < _HEAD.size:
        return False
    total, _, _, queue_id, _, stored_offset, stored_position = _HEAD.unpack_from(head)
    return (total, queue_id, stored_offset, stored_position) == (size, queue.queue_id, queue_offset, physical_offset)


class Repair:
    """One repair; on the save thread, under the save lock: the files of the queue do not change meanwhile.

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

    def work(self) -> None:
        """raises  OSError when the files of the queue cannot be written"""
        damage = self._damage
        first, begin = self._sound_before()
        last, end = self._sound_after()
        units = bytearray((last - first) * UNIT_SIZE)
        put_blank(units, 0, last - first)
        found = self._collect(units, first, last, begin, end)
        self.lost = last - first - found
        self._files.rewrite(Units(damage.queue, first, bytes(units), trim=False))
        logger.warning(
            "consume queue repaired topic=%s queue_id=%d from=%d to=%d lost=%d",
            damage.queue.topic,
            damage.queue.queue_id,
            first,
            last,
            self.lost,
        )

    # ------------------------------------------------------------------ how far

    def _sound_before(self) -> tuple[int, int]:
        """Return the first unit in doubt, and where its message may begin."""
        damage = self._damage
        queue_offset = damage.queue_offset
        while queue_offset > damage.start:
            place = self._leads(queue_offset - 1)
            if place is not None:
                return queue_offset, sum(place)
            queue_offset -= 1
        return queue_offset, damage.log_start

    def _sound_after(self) -> tuple[int, int]:
        """Return the first unit that is not in doubt, and where it leads."""
        damage = self._damage
        for queue_offset in range(damage.queue_offset + 1, damage.saved):
            place = self._leads(queue_offset)
            if place is not None:
                return queue_offset, place[0]
        return damage.saved, damage.end_offset

    def _leads(self, queue_offset: int) -> tuple[int, int] | None:
        """Return where a unit leads, and the size there, if its message is there."""
        queue = self._damage.queue
        try:
            data = self._files.peek(queue, queue_offset)
            if not data:
                return None
            physical_offset, size, _ = unit(data, 0)
            head = self._log.read(physical_offset, min(size, _HEAD.size))
        except OSError:
            return None
        return (physical_offset, size) if leads_to(head, queue, queue_offset, physical_offset, size) else None

    # ------------------------------------------------------------------ the log

    def _collect(self, units: bytearray, first: int, last: int, begin: int, end: int) -> int:
        """Make the units of the messages that the log holds between two places; returns how many."""
        found: set[int] = set()
        position = begin
        while position < end and (segment := self._log.find_segment(position)) is not None:
            limit = min(end, segment.end) - segment.start
            at = position - segment.start
            sealed = self._log.is_sealed(segment)
            count, at, status, _ = kernel.walk(segment.view(), at, limit, segment.start, self._rows.view, True, sealed)
            for index in range(count):
                queue_offset = self._rows.view[index, QUEUE_OFFSET]
                if self._is_wanted(segment, index) and first <= queue_offset < last and queue_offset not in found:
                    found.add(queue_offset)
                    self._put(units, (queue_offset - first) * UNIT_SIZE, index)
            position = segment.start + at
            if status == FILLER:
                position = segment.end
            elif status != FULL and position < segment.start + limit:
                position = self._skip_damage(segment, at, limit)
        return len(found)

    def _is_wanted(self, segment: Segment, index: int) -> bool:
        row = self._rows.view
        if row[index, QUEUE_ID] != self._damage.queue.queue_id or not is_queued(row[index, SYS_FLAG]):
            return False
        if row[index, TOPIC_LENGTH] != len(self._topic) or row[index, PHYSICAL_OFFSET] < self._damage.log_start:
            return False
        return segment.read(row[index, TOPIC_START], len(self._topic)) == self._topic

    def _put(self, units: bytearray, at: int, index: int) -> None:
        row = self._rows.view
        tags_code = row[index, TAGS_CODE]
        if row[index, DELAY_LEVEL] > 0 and self._damage.queue.topic == SCHEDULE_TOPIC:
            tags_code = delivery_time(row[index, STORE_TIMESTAMP], row[index, DELAY_LEVEL], self._levels)
        put_unit(units, at, row[index, PHYSICAL_OFFSET], row[index, SIZE], tags_code)

    def _skip_damage(self, segment: Segment, at: int, limit: int) -> int:
        """Name bytes of the log that are no record, and return where the next record begins, or the limit."""
        found = self._log.find_behind(segment, at, sealed=self._log.is_sealed(segment))
        end = limit if found is None else min(found - segment.start, limit)
        logger.error("commit log damaged path=%s position=%d bytes=%d", segment.path, at, end - at)
        return segment.start + end
