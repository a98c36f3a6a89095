"""Start: find the end of the log, bring the consume queues up to it (Java: ``CommitLog.recoverNormally, …Abnormally``).

What is believed, in this order:

notes    ``queuebounds``, ``checkpoint`` and ``abort`` (``checkpoint``), each only with its checksum. They are replaced
         whole, and only after what they tell of was synced, so a note that is whole was true when it was written. What
         it says of the log before its ``confirm_offset`` stays true: nothing there is written again.
records  A record is believed if its checksum is right; one without, of an older store or of Apache's, if its fields add
         up to its size and its body has its CRC (``check_record`` in ``_fast/record.pxd``). Its place in the log, or a
         queue offset that is out of all proportion, refuses it too: a body may hold bytes that look like a record.
queues   Never by themselves: they follow from the log, and are believed as far as a note bounds them and the last unit
         of each leads to before ``confirm_offset``. So there are two ways:

         resume   The queues are cut to their bounds, and the log is read from ``confirm_offset`` on.
         rebuild  No bounds, or queues that do not agree with them or with the log, or a file of the log that was
                  mended, or a first one that is gone: all queues are removed, and before them what the note says of
                  them, but for where they end (``queue_ends``); the whole log is read.

Nothing is cleared that may be a message. Reading stops at the first bytes that are no sound record, and what was ever
written behind them is searched for the next one:

bridged  There is one, or a note says that the log went on. Then messages lay between: records are written in the order
         of the log, with SYNC_FLUSH each group, and in it each file, only after what is before it was synced. The bytes
         are copied aside, named and covered by tombstones (``damage``), and blanks stand in the queues for their
         messages, so that no offset is given twice.
cut      There is none. Then they are the torn tail of the last write, or the last message, damaged: nothing tells these
         apart, and with SYNC_FLUSH no one was told of a message in the first. They are copied aside, named, and
         cleared, because a later scan must not find a stale record that happens to fit behind a new one.

A crash at any point of a start repeats it: notes are outdated before queues are touched, bytes are copied aside before
they are changed, and ``CommitLog.make_sure`` writes and syncs again what an unclean end may have left in memory only,
before anything of it is served.

Java cuts off all that lies behind the first bad record, and reads back from the file that the checkpoint's times name;
``queuebounds`` says the same to the byte.
"""

from __future__ import annotations

import logging
from array import array
from dataclasses import dataclass, field
from pathlib import Path

from rocketcore._fast import commit_log as kernel
from rocketcore._fast.commit_log import (
    COLUMNS,
    END_OF_DATA,
    FILLER,
    FULL,
    PHYSICAL_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    SIZE,
    STORE_TIMESTAMP,
)
from rocketcore.broker.store.config import StoreConfig
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.log.damage import TOMBSTONE_MIN_BYTES, TOMBSTONE_TOPIC, DamagedRange
from rocketcore.broker.store.log.segment_file import Segment, segment_name
from rocketcore.broker.store.notes.checkpoint import Notes
from rocketcore.broker.store.notes.queue_bounds import QueueBounds, unpack_rows
from rocketcore.broker.store.queues.consume_queue import MAX_QUEUE_ID, ConsumeQueue, topic_fault
from rocketcore.broker.store.queues.queue_ends import remember_ends
from rocketcore.broker.store.queues.queue_table import QueueTable
from rocketcore.broker.store.writing.dispatch import QueueFeed
from rocketcore.table import Table

__all__ = ["LogScan", "Recovery", "recover"]

ROWS = 4096
SETTLE_MESSAGES = 2_000_000
"""So many units at most, some 40 MB, are in memory while a rebuild reads the log."""

NEVER = 1 << 63

logger = logging.getLogger(__name__)


class _Disagreement(Exception):
    """The queues on disk do not fit the bounds or the log; they have to be built again."""


@dataclass(slots=True)
class Recovery:
    """What a start found.

    messages records that were read; bridges: those of them that lie over damage of before
    damaged  bytes that held messages, or may have, with sound messages behind them or noted to be on disk
    torn     bytes at the end with no sound message behind them: the rest of a last write, or a last message that was
             damaged; nothing tells them apart
    """

    end_offset: int = 0
    store_timestamp: int = 0
    messages: int = 0
    bridges: int = 0
    damaged: list[DamagedRange] = field(default_factory=list)
    torn: list[DamagedRange] = field(default_factory=list)
    rebuilt: bool = False

    def __str__(self) -> str:
        return (
            f"rebuilt={self.rebuilt} end={self.end_offset} messages_read={self.messages} "
            f"damaged_bytes={self.damaged_bytes}"
        )

    @property
    def damaged_bytes(self) -> int:
        return sum(one.length for one in self.damaged)

    @property
    def torn_bytes(self) -> int:
        return sum(one.length for one in self.torn)


def recover(
    config: StoreConfig,
    log: CommitLog,
    queues: QueueTable,
    notes: Notes,
    files: FileSystem,
    *,
    believed: bool = True,
) -> Recovery:
    """Fill ``queues`` from disk and log; damage in the log is bridged.

    believed  what the bounds say of queues and log holds: every file of the log was as it should be
    raises    OSError when a file cannot be read, or damage not be bridged
    """
    bounds = notes.bounds
    # Units that lead to where the log is no more cannot be told from damaged ones: the queues begin where it does.
    if believed and bounds.begin_offset == log.min_offset <= bounds.confirm_offset <= log.file_end:
        try:
            # Where the last run ended in order, no stale units lie behind those that the bounds name.
            _adopt_queues(queues, bounds, trim=notes.mark is not None or bounds.is_cut)
            if notes.trimmed:
                _begin_at(queues, log.min_offset)
            return LogScan(config, log, queues, notes, rebuild=False).run()
        except _Disagreement as disagreement:
            logger.warning("consume queues are built again from the log reason=%s", disagreement)
    queues.clear()
    remember_ends(bounds, queues.files.root, log.min_offset, files)
    bounds.outdate(config.root, files)
    queues.files.remove_all()
    return LogScan(config, log, queues, notes, rebuild=True).run()


def _adopt_queues(queues: QueueTable, bounds: QueueBounds, *, trim: bool) -> None:
    """Take every queue within its bounds, after a look at the folders; ``trim`` cuts off what lies behind them.

    Units are not looked at: a file that was lost or cut is found when it is read, and then repaired (``queue_repair``).
    """
    if bounds.file_bytes != queues.files.file_bytes:
        raise _Disagreement(f"mappedFileSizeConsumeQueue was {bounds.file_bytes}")
    try:
        folders = set(queues.files.topics())
    except OSError as error:
        raise _Disagreement(str(error)) from error
    for topic, rows in bounds.rows.items():
        if topic not in folders and any(low < high for low, high in unpack_rows(rows).values()):
            raise _Disagreement(f"the folder of topic {topic} is missing")
        if bounds.is_outlived(topic):
            raise _Disagreement(f"topic {topic} was deleted after its bounds were noted")
    queues.adopt(bounds.rows, trim=trim)


def _begin_at(queues: QueueTable, physical_offset: int) -> None:
    """Have the queues begin where the log does: it was cut there after their bounds were noted."""
    for queue in queues:
        try:
            first = queues.files.first_at(queue, queue.min_offset, queue.max_offset, physical_offset)
        except OSError as error:
            raise _Disagreement(f"queue {queue.topic}/{queue.queue_id}: {error}") from error
        queue.begin_at(first, physical_offset)


class LogScan:
    """One pass over the log, as a start makes it: what is believed of it, and which units follow.

    It judges what is not as a store writes it (``dispatch.Judge``). What is done about it is a subclass's to change:
    ``bridge``, ``end_at``, ``name``, ``repeats``, ``save_units``.
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        notes: Notes,
        *,
        rebuild: bool,
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._rebuild = rebuild
        self._notes = notes
        self._bounds = notes.bounds
        self._start = log.min_offset if rebuild else self._bounds.confirm_offset
        self._table = Table(ROWS, COLUMNS)
        self._sealed = False
        self._sealed_from = NEVER if log.sealed_from is None else log.sealed_from
        # Messages are known to be missing, from damage found now or bridged by an earlier start.
        self._holes = False
        self._repeated: dict[ConsumeQueue, int] = {}
        deleted_before = self._bounds.deleted_before
        self._feed = QueueFeed(queues, lambda topic: deleted_before.get(topic, 0), config.delay_levels, self)
        self._segment: Segment
        self._unsettled = 0
        self.result = Recovery(rebuilt=rebuild and bool(log.segments), store_timestamp=self._bounds.store_timestamp)

    def run(self) -> Recovery:
        position = self._start
        if 0 <= self._bounds.begin_offset < self._log.min_offset:
            self._name_first_files(self._bounds.begin_offset, self._log.min_offset)
        while (segment := self._log.find_segment(position)) is not None:
            position, goes_on = self._walk(segment, position)
            self._settle()
            if not goes_on:
                found = self._find_after(position)
                if found is None:
                    break
                self._holes = True
                self.bridge(position, found)
                position = found
        self.result.end_offset = position
        self._name_missing(position, self._known_end(position))
        self.end_at(position)
        if self._rebuild:
            self._keep_ends()
        for queue, count in self._repeated.items():
            logger.error(
                "messages with a queue offset that another has left out topic=%s queue_id=%d count=%d",
                queue.topic,
                queue.queue_id,
                count,
            )
        return self.result

    # ------------------------------------------------------------------ what is done about it

    def walked(self, segment: Segment, position: int) -> None:
        """Hear, every few thousand messages, how far a segment was read."""

    def bridge(self, begin: int, end: int) -> None:
        """Put bytes that are no sound record aside; the log goes on behind them."""
        for damaged in self._log.close_hole(begin, end, self.result.store_timestamp):
            self.name(damaged, "put aside and bridged")

    def end_at(self, end: int) -> None:
        """Put aside what lies behind the end of the log."""
        for torn in self._log.put_tail_aside(end):
            self.result.torn.append(torn)
            logger.warning(
                "commit log tail put aside, no sound record lies behind it: a write that was cut off, or damage to the "
                "last messages path=%s position=%d bytes=%d",
                torn.path,
                torn.physical_offset - int(torn.path.name),
                torn.length,
            )

    def name(self, damaged: DamagedRange, what: str) -> None:
        """Tell of bytes of the log that hold no message any more."""
        self.result.damaged.append(damaged)
        logger.error(
            "commit log damaged path=%s position=%d bytes=%d: %s",
            damaged.path,
            damaged.physical_offset - int(damaged.path.name),
            damaged.length,
            what,
        )

    def begins_later(self, gone: DamagedRange) -> None:
        """Tell of first files that are gone, and may have been deleted."""
        logger.warning(
            "commit log begins later path=%s position=%d bytes=%d: files are gone; RocketMQ, which deletes old ones, "
            "ran since",
            gone.path,
            gone.physical_offset - int(gone.path.name),
            gone.length,
        )

    def repeats(self, segment: Segment, queue: ConsumeQueue, physical_offset: int, queue_offset: int) -> None:
        """Tell of a message whose place in its queue another has: of the first of a queue, the rest are counted."""
        if queue not in self._repeated:
            logger.error(
                "message left out, another has its queue offset path=%s position=%d topic=%s queue_id=%d offset=%d",
                segment.path,
                physical_offset - segment.start,
                queue.topic,
                queue.queue_id,
                queue_offset,
            )
        self._repeated[queue] = self._repeated.get(queue, 0) + 1

    def save_units(self) -> None:
        """Move the units of a rebuild from memory to the files."""
        for queue in self._queues:
            units = queue.unsaved()
            if units is not None:
                self._queues.files.write(units)
                queue.mark_saved(units.end)

    # ------------------------------------------------------------------ reading

    def _walk(self, segment: Segment, position: int) -> tuple[int, bool]:
        """Read records up to the first bytes that are none: where, and whether the log goes on there."""
        view = segment.view()
        at = position - segment.start
        self._sealed = self._sealed or self._log.is_sealed(segment)
        check_crc = self._config.check_crc_on_recover
        self.walked(segment, at)
        while True:
            # The first run that gives checksums may have begun in this segment: its records are judged by that.
            run_began = self._sealed_from - segment.start
            self._sealed = self._sealed or at >= run_began
            stop = segment.size if self._sealed else min(run_began, segment.size)
            count, at, status, self._sealed = kernel.walk(
                view, at, stop, segment.start, self._table.view, check_crc, self._sealed
            )
            done = self._dispatch(segment, view, count)
            self.walked(segment, at)
            if done < count:
                # A page that was there a moment ago. The walk that reads the whole record tells what is readable.
                at = self._table.row(done)[PHYSICAL_OFFSET] - segment.start
                check_crc = True
                continue
            if status == FULL:
                continue
            if status == END_OF_DATA and stop < segment.size:
                if at < stop:
                    # No run begins within a record: what was noted is not of this log.
                    self._sealed_from, self._log.sealed_from = NEVER, None
                continue
            if status == FILLER:
                return segment.end, True
            return segment.start + at, False

    def _dispatch(self, segment: Segment, view: memoryview, count: int) -> int:
        """Put the first ``count`` rows in their queues; returns how many, up to one whose topic cannot be read."""
        self._segment = segment
        done = self._feed.feed(view, self._table, count, segment.read)
        if done:
            self.result.messages += done
            self._unsettled += done
            stored = self._table.view[done - 1, STORE_TIMESTAMP]
            self.result.store_timestamp = max(self.result.store_timestamp, stored)
            if self._unsettled >= SETTLE_MESSAGES:
                self._settle()
        return done

    def not_queued(self, name: bytes, row: array[int]) -> None:
        is_bridge = TOMBSTONE_TOPIC.startswith(name)
        self._holes = self._holes or is_bridge
        self.result.bridges += is_bridge

    def refuses(self, name: bytes, topic: str, row: array[int]) -> bool:
        fault = topic_fault(name) or (topic.encode() != name and "topic name that is no text")
        if not fault and not 0 <= row[QUEUE_ID] <= MAX_QUEUE_ID:
            fault = f"queue id {row[QUEUE_ID]}"
        if fault:
            self.name(DamagedRange(self._segment.path, row[PHYSICAL_OFFSET], row[SIZE]), fault)
        return bool(fault)

    def refuses_place(self, queue: ConsumeQueue, row: array[int]) -> bool:
        physical_offset, queue_offset = row[PHYSICAL_OFFSET], row[QUEUE_OFFSET]
        if queue_offset < queue.max_offset:
            self.repeats(self._segment, queue, physical_offset, queue_offset)
            return True
        if not self._rebuild and not self._holes:
            place = f"queue {queue.topic}/{queue.queue_id}"
            raise _Disagreement(f"{place} ends at {queue.max_offset}, not at {queue_offset}")
        if queue.max_offset and queue_offset - queue.max_offset > physical_offset // TOMBSTONE_MIN_BYTES:
            # More messages than fit before it. A record without a checksum may say anything here.
            self.name(DamagedRange(self._segment.path, physical_offset, row[SIZE]), f"queue offset {queue_offset}")
            return True
        begin = queue_offset if queue.max_offset else self._begin_of(queue.topic, queue.queue_id, queue_offset)
        if 0 < queue_offset - begin <= physical_offset // TOMBSTONE_MIN_BYTES:
            queue.blank_to(queue_offset, begin)
        return False

    def _settle(self) -> None:
        """Give the queues what was collected for them; those of a rebuild are saved."""
        self._feed.settle()
        self._unsettled = 0
        if self._rebuild:
            self.save_units()

    # ------------------------------------------------------------------ damage

    def _find_after(self, position: int) -> int | None:
        """Return where the log goes on after bytes that are no sound record; None if they are its torn tail."""
        segment = self._log.find_segment(position)
        assert segment is not None, "a segment was read up to there"
        found = self._log.find_behind(segment, position - segment.start, sealed=self._sealed)
        if found is not None:
            return found
        # What was noted was on disk, even if it is the last.
        noted = min(self._notes.known_end, self._log.file_end)
        return noted if position + TOMBSTONE_MIN_BYTES <= noted else None

    def _known_end(self, end: int) -> int:
        """Return up to where the log went at least, if more is known than was found.

        A filler is written when the next file is there; where it is not, it held whatever came after. A file is made
        ahead when the one before it is half full: if that one was missing, the log went on in it. What a short file
        lacks may have held messages too.
        """
        file_end = self._log.file_end
        behind_filler = end + self._config.mapped_file_size_commit_log if 0 < end == file_end else 0
        return max(self._notes.known_end, behind_filler, self._log.lost_end)

    def _name_first_files(self, begin: int, end: int) -> None:
        """Name what was before the begin of the log: files that were deleted, or lost."""
        if self._notes.rocketmq_ran:
            self._holes = True
            self.begins_later(DamagedRange(self._file_at(begin), begin, end - begin))
        elif self._notes.begin_noted:
            self._name_missing(begin, end)
        else:
            self._name_missing(begin, end, "files may be missing: the notes that tell where the log began are lost")

    def _name_missing(self, begin: int, end: int, what: str = "it is missing") -> None:
        if begin < end:
            self.name(DamagedRange(self._file_at(begin), begin, end - begin), what)
            self._holes = True

    def _file_at(self, physical_offset: int) -> Path:
        start = physical_offset - physical_offset % self._config.mapped_file_size_commit_log
        return self._config.commit_log_folder / segment_name(start)

    def _keep_ends(self) -> None:
        """No queue ends before where it was known to end: its next offset must not be one that consumers passed.

        Its last messages may be lost, now or when an earlier start bridged them, or deleted with their log file.
        """
        for topic, rows in self._bounds.rows.items():
            if self._bounds.is_outlived(topic):
                continue
            for queue_id, (_, end) in unpack_rows(rows).items():
                queue = self._queues.topic(topic).queue(queue_id)
                if queue.max_offset < end:
                    queue.blank_to(end, self._begin_of(topic, queue_id, end))

    def _begin_of(self, topic: str, queue_id: int, first: int) -> int:
        """Return where a queue began that is built again: what it lacks before ``first`` is lost, and was not deleted.

        returns  ``first`` where that is not known, or the log begins later than then
        """
        if self._log.segments and self._log.min_offset == 0:
            return 0  # nothing was ever deleted
        is_older = self._notes.trimmed or self._bounds.begin_offset != self._log.min_offset
        if is_older or self._bounds.is_outlived(topic):
            return first
        begin, _ = unpack_rows(self._bounds.rows.get(topic, b"")).get(queue_id, (first, first))
        return min(begin, first)
