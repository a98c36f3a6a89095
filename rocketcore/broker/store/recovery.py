"""Start: find the end of the log, bring the consume queues up to it (Java: ``CommitLog.recoverNormally, …Abnormally``).

The log is the truth, the queues follow from it. Two ways lead to them:

resume    ``queuebounds`` says up to where log and queues were on disk together. The queues are cut to those bounds,
          after a look at the last unit of each, and the log is read from there on
rebuild   no bounds, or queues that do not agree with them: all queues are removed and the whole log is read

Reading stops at the first byte that is no valid record. Before what is known to be on disk that is damage: the scan
looks for the next record, names the bytes that it left out, and blanks stand in the queue for the messages. After it,
it is the torn tail of the last write: it is cut off, and what follows it was never acknowledged.

Java reads back from the file that the checkpoint's times name; ``queuebounds`` says the same to the byte.
"""

from __future__ import annotations

import logging
import struct
from array import array
from dataclasses import dataclass

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
from rocketcore._fast.consume_queue import unit
from rocketcore._fast.message import MAGIC_V1, MAGIC_V2
from rocketcore.broker.store.checkpoint import Checkpoint, QueueBounds
from rocketcore.broker.store.commit_log import CommitLog
from rocketcore.broker.store.config import StoreConfig
from rocketcore.broker.store.consume_queue import MAX_QUEUE_ID, ConsumeQueue, QueueTable, topic_fault
from rocketcore.broker.store.segment_file import Segment
from rocketcore.broker.store.table import Table
from rocketcore.codes import SCHEDULE_TOPIC

__all__ = ["Recovery", "delivery_time", "is_queued", "recover"]

ROWS = 4096
RECORD_MIN_BYTES = 91
TRANSACTION_TYPE = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_ROLLBACK = 0xC

logger = logging.getLogger(__name__)

_MAGICS = tuple(struct.pack(">i", magic) for magic in (MAGIC_V1, MAGIC_V2))


class _Disagreement(Exception):
    """The queues on disk do not fit the bounds or the log; they have to be built again."""


@dataclass(slots=True)
class Recovery:
    """What a start found."""

    end_offset: int = 0
    store_timestamp: int = 0
    messages: int = 0
    damaged_bytes: int = 0
    rebuilt: bool = False


def is_queued(sys_flag: int) -> bool:
    """Whether a record gets a unit: prepared and rolled back transaction messages do not."""
    return sys_flag & TRANSACTION_TYPE not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


def delivery_time(store_timestamp: int, delay_level: int, levels: tuple[int, ...]) -> int:
    """Return the tags code of a message in SCHEDULE_TOPIC_XXXX: when it is due, in milliseconds since the epoch."""
    return store_timestamp + (levels[min(delay_level, len(levels)) - 1] if delay_level > 0 else 1000)


def recover(
    config: StoreConfig,
    log: CommitLog,
    queues: QueueTable,
    bounds: QueueBounds | None,
    checkpoint: Checkpoint,
    *,
    clean: bool,
) -> Recovery:
    """Fill ``queues`` from disk and log; the log itself is not changed.

    clean   the last run ended in order: nothing can be torn, whatever does not read is damage
    raises  OSError when a file cannot be read
    """
    if bounds is not None and log.min_offset <= bounds.confirm_offset <= log.file_end:
        try:
            _adopt_queues(queues, bounds, trim=not clean)
            return _Scan(config, log, queues, bounds, checkpoint, clean=clean, rebuild=False).run()
        except _Disagreement as disagreement:
            logger.warning("consume queues are built again from the log reason=%s", disagreement)
    queues.topics.clear()
    queues.files.remove_all()
    return _Scan(config, log, queues, bounds, checkpoint, clean=clean, rebuild=True).run()


def _adopt_queues(queues: QueueTable, bounds: QueueBounds, *, trim: bool) -> None:
    """Take every queue within its bounds, after a look at its last unit; ``trim`` cuts off what lies behind them."""
    for topic, of_topic in bounds.queues.items():
        for queue_id, (start, end) in of_topic.items():
            queue = ConsumeQueue(topic, queue_id, queues.files, start, end, trim=trim)
            if end > start:
                try:
                    data = queue.units(end - 1, 1)
                except OSError as error:
                    raise _Disagreement(f"queue {topic}/{queue_id}: {error}") from error
                physical_offset, size, _ = unit(data, 0) if data else (0, 0, 0)
                if size <= 0 or physical_offset + size > bounds.confirm_offset:
                    raise _Disagreement(f"queue {topic}/{queue_id} does not end at {end}")
            queues.topic(topic).adopt(queue)


class _Scan:
    """One pass over the log."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        bounds: QueueBounds | None,
        checkpoint: Checkpoint,
        *,
        clean: bool,
        rebuild: bool,
    ) -> None:
        self._config = config
        self._levels = config.delay_levels
        self._log = log
        self._queues = queues
        self._rebuild = rebuild
        self._clean = clean
        self._deleted_before = bounds.deleted_before if bounds is not None else {}
        self._durable_offset = bounds.confirm_offset if bounds is not None and bounds.confirm_offset >= 0 else None
        self._durable_timestamp = checkpoint.physic_msg_timestamp
        self._start = log.min_offset if rebuild or bounds is None else bounds.confirm_offset
        self._table = Table(ROWS, COLUMNS)
        self._one_row = Table(1, COLUMNS)
        self._sealed = False
        # Where the next message of a topic and queue goes if there is nothing special about it.
        self._plain_queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._result = Recovery(
            rebuilt=rebuild and bool(log.segments), store_timestamp=bounds.store_timestamp if bounds is not None else 0
        )

    def run(self) -> Recovery:
        position = self._start
        while (segment := self._log.find_segment(position)) is not None:
            position, goes_on = self._walk(segment, position)
            if self._rebuild:
                self._save_units()
            if not goes_on:
                found = self._find_after(position)
                if found is None:
                    break
                length = found - position
                self._result.damaged_bytes += length
                logger.error(
                    "commit log damaged path=%s position=%d bytes=%d", segment.path, position - segment.start, length
                )
                position = found
        self._result.end_offset = position
        return self._result

    def _walk(self, segment: Segment, position: int) -> tuple[int, bool]:
        """Read records up to the first bytes that are none: where, and whether the log goes on there."""
        view = segment.view()
        at = position - segment.start
        while True:
            count, at, status, self._sealed = kernel.walk(
                view, at, segment.size, segment.start, self._table.view, self._config.check_crc_on_recover, self._sealed
            )
            dispatched = self._dispatch(view, count)
            if dispatched < count:
                return self._table.view[dispatched, PHYSICAL_OFFSET], False
            if status == FULL:
                continue
            if status == FILLER:
                return segment.end, True
            return segment.start + at, False

    def _dispatch(self, view: memoryview, count: int) -> int:
        """Put the first ``count`` rows in their queues, up to one that cannot be; returns how many were."""
        for done in range(count):
            row = self._table.row(done)
            start = row[TOPIC_START]
            name = bytes(view[start : start + row[TOPIC_LENGTH]])
            queue = self._plain_queues.get((name, row[QUEUE_ID]))
            if queue is not None and queue.max_offset == row[QUEUE_OFFSET] and is_queued(row[SYS_FLAG]):
                queue.append(row[QUEUE_OFFSET], row[PHYSICAL_OFFSET], row[SIZE], row[TAGS_CODE])
            elif is_queued(row[SYS_FLAG]) and not self._enqueue(name, row):
                count = done
                break
        if count:
            self._result.messages += count
            stored = self._table.view[count - 1, STORE_TIMESTAMP]
            self._result.store_timestamp = max(self._result.store_timestamp, stored)
        return count

    def _enqueue(self, name: bytes, row: array[int]) -> bool:
        """Add a message to its queue; False when the record's fields, which no checksum covers, make no sense."""
        if topic_fault(name):
            return False
        topic = name.decode("utf-8", "replace")
        physical_offset, queue_id, queue_offset = row[PHYSICAL_OFFSET], row[QUEUE_ID], row[QUEUE_OFFSET]
        if physical_offset < self._deleted_before.get(topic, 0):
            return True
        if not 0 <= queue_id <= MAX_QUEUE_ID:
            return False
        queue = self._queues.topic(topic).queue(queue_id)
        missing = queue_offset - queue.max_offset
        if missing > 0:
            if not self._rebuild:
                raise _Disagreement(f"queue {topic}/{queue_id} ends at {queue.max_offset}, not at {queue_offset}")
            # Messages may be missing because they were damaged, or because the log no longer begins at 0.
            older = queue.max_offset == 0 and self._log.min_offset > 0
            if missing > self._result.damaged_bytes // RECORD_MIN_BYTES and not older:
                return False
        tags_code = row[TAGS_CODE]
        if row[DELAY_LEVEL] > 0 and topic == SCHEDULE_TOPIC:
            tags_code = delivery_time(row[STORE_TIMESTAMP], row[DELAY_LEVEL], self._levels)
        queue.append(queue_offset, physical_offset, row[SIZE], tags_code)
        if topic != SCHEDULE_TOPIC:
            self._plain_queues[name, queue_id] = queue
        return True

    def _save_units(self) -> None:
        """Move the units of a segment from memory to the files."""
        for queue in self._queues:
            units = queue.unsaved()
            if units is not None:
                self._queues.files.write(units)
                queue.mark_saved(units.end)

    def _find_after(self, position: int) -> int | None:
        """Return the next record after bytes that are none, if the bytes are damage and not the torn tail.

        Without bounds the checkpoint tells: a record that is older than the last flush of the log was on disk.
        """
        damaged = position
        while (segment := self._log.find_segment(position)) is not None:
            if self._durable_offset is not None and position >= self._durable_offset:
                return None
            # A segment that follows may begin with the record.
            found = self._find_in(segment, position - segment.start if position == damaged else -1)
            if found is not None:
                physical_offset, store_timestamp = found
                if self._durable_offset is not None:
                    durable = physical_offset < self._durable_offset
                else:
                    durable = self._clean or store_timestamp <= self._durable_timestamp
                return physical_offset if durable else None
            position = segment.end
        return None

    def _find_in(self, segment: Segment, at: int) -> tuple[int, int] | None:
        """Return physical offset and store time of the first valid record after ``at``."""
        view = segment.view()
        candidates = {magic: segment.find(magic, at + 5) for magic in _MAGICS}
        while True:
            magic, place = min(candidates.items(), key=lambda item: item[1] if item[1] >= 0 else segment.size)
            if place < 0:
                return None
            start = place - 4
            # A record knows where it lies: that dismisses almost every stray magic without reading a body.
            knows = int.from_bytes(view[place + 24 : place + 32], "big") if place + 32 <= segment.size else -1
            if knows == segment.start + start:
                count, _, _, _ = kernel.walk(view, start, segment.size, segment.start, self._one_row.view, True)
                if count:
                    return segment.start + start, self._one_row.view[0, STORE_TIMESTAMP]
            candidates[magic] = segment.find(magic, place + 1)
