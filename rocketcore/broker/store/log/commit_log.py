"""The commit log: segments on disk and the bytes that are appended but not yet written (Java: ``CommitLog``).

One thread, the event loop's, appends. Records are laid out in ``buffer`` between ``position`` and ``limit``; index i of
the buffer is byte ``base`` + i of the log. ``take`` hands over everything appended since the last call as a ``Group``,
to be written by whoever the flush policy says, and a fresh buffer takes its place.

A record never crosses a segment: where it does not fit, a filler closes the segment and ``base`` jumps to the next one.
So one group can hold runs of bytes for two segments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from rocketcore._fast.commit_log import COLUMNS, FILLER_SIZE, FULL, damaged_end, encode_filler, find, gather, walk
from rocketcore._fast.consume_queue import SIZE
from rocketcore._fast.flusher import Work
from rocketcore.broker.store.config import StoreConfig
from rocketcore.broker.store.file_system import FileSystem, LostWrite, is_full, sync_names
from rocketcore.broker.store.log.damage import DamagedRange, bridge, mend_files, put_aside
from rocketcore.broker.store.log.resident import PART_BYTES, Resident
from rocketcore.broker.store.log.segment_file import Segment, list_files, segment_name
from rocketcore.errors import StoreFull
from rocketcore.service import Clock
from rocketcore.table import Table

if TYPE_CHECKING:
    from rocketcore._fast.decided import Decided
    from rocketcore._fast.window import Window

__all__ = ["CommitLog", "Group", "Run"]

BUFFER_BYTES = 1 << 20
KEEP_BUFFER_BYTES = 8 << 20
ZEROS_UP_TO_BYTES = 64 << 10
RETRY_ALLOCATION_SECONDS = 0.2
SEALED_ROWS = 2
"""Records at the begin of a segment that tell whether those of the segment have checksums."""

logger = logging.getLogger(__name__)


class Run(NamedTuple):
    """Bytes ``begin`` to ``end`` of a group's buffer belong at ``position`` of the segment's file."""

    segment: Segment
    position: int
    begin: int
    end: int


class Group:
    """What is written, and made durable, together."""

    __slots__ = ("buffer", "end_offset", "runs", "size")

    def __init__(self, buffer: bytearray, runs: list[Run], end_offset: int) -> None:
        self.buffer = buffer
        self.runs = runs
        self.end_offset = end_offset
        self.size = 0
        for run in runs:
            self.size += run.end - run.begin

    def add_to(self, work: Work, *, sync: bool) -> None:
        """Have a work write every run into its segment; with ``sync`` each is durable before the next one is written.

        A power cut could take the end of a segment and leave the begin of the next one otherwise: a hole with sound
        messages behind it, which looks like damage.
        """
        for run in self.runs:
            run.segment.add_write(work, self.buffer, run.begin, run.end, run.position)
            if sync:
                run.segment.add_sync(work)

    @property
    def wants_zeros(self) -> bool:
        """Whether zeros ahead would spare the syncs of the next groups a journal commit.

        A large group brings more of its own than that costs, and uses the zeros up at once.
        """
        return self.size <= ZEROS_UP_TO_BYTES and self.runs[-1].segment.wants_zeros


class CommitLog:
    """Segments and write buffer. Loop thread only; what it has to be written is a ``Work``, which one thread does.

    lost_end     end of the last file that was missing between others, or too short, when the log was loaded, else 0
    sealed_from  every record behind this physical offset has a checksum; None: that is not known
    windows      what pulls are answered from (``Reader.locate``), by what they ask, with what was decided of them;
                 cleared when that may hold no more: each second, when files or topics go, when a queue is read anew
    resident     hears of all that is read through the maps
    """

    def __init__(self, config: StoreConfig, files: FileSystem, clock: Clock) -> None:
        self.segments: list[Segment] = []
        self.buffer = bytearray(BUFFER_BYTES)
        self.position = 0
        self.limit = 0
        self.base = 0
        self.written = 0
        self.synced = 0
        self.lost_end = 0
        self.sealed_from: int | None = None
        self.windows: dict[bytes, tuple[Decided, Window]] = {}
        self.resident = Resident(self)
        self._config = config
        self._folder = config.commit_log_folder
        self._size = config.mapped_file_size_commit_log
        self._files = files
        self._clock = clock
        self._run_begin = 0
        self._runs: list[Run] = []
        self._spare: list[bytearray] = []
        self._ahead: Future[Segment] | None = None
        self._allocator: ThreadPoolExecutor | None = None
        self._retry_at = self._ahead_at = float("-inf")
        self._full = ""
        self._first_rows = Table(SEALED_ROWS, COLUMNS)

    # ------------------------------------------------------------------ segments

    def load(self, before_mending: Callable[[], None] = lambda: None, *, begin: int = 0) -> bool:
        """List the segments, mended where a file is missing or has the wrong size; returns whether one was.

        before_mending  called once before the first file is changed
        begin           the log was noted to begin here: files before it were about to be deleted, and are now
        raises          StoreCorrupted for files of another size, or that do not belong together
        """
        self._files.make_folder(self._folder)
        # A file of an earlier life may have its name without that being on disk.
        sync_names(self._folder, self._files)
        sync_names(self._folder.parent, self._files)
        found = list_files(self._folder, self._files)
        for start in self.outlived(found, begin):
            path = found.pop(start)
            try:
                self._files.remove(path)
            except OSError as error:
                logger.error("old file not deleted path=%s reason=%s", path, error)
            else:
                logger.info("commit log file deleted path=%s: the log begins at %d", path, begin)
        lost_end = mend_files(self._config.root, found, self._size, self._files, before_mending) if found else None
        self.lost_end = lost_end or 0
        starts = range(min(found), max(found) + 1, self._size) if found else ()
        self.segments = [
            Segment(self._folder / segment_name(start), start, self._size, self._files) for start in starts
        ]
        return lost_end is not None

    def outlived(self, found: Collection[int], begin: int) -> list[int]:
        """Return which files, by their starts, were about to be deleted, if the log was noted to begin at ``begin``."""
        return [start for start in found if start + self._size <= begin and start != max(found)]

    @property
    def min_offset(self) -> int:
        return self.segments[0].start if self.segments else 0

    @property
    def file_end(self) -> int:
        """End of the last segment file, whatever it holds."""
        return self.segments[-1].end if self.segments else 0

    @property
    def end_offset(self) -> int:
        """Where the next record will be appended, unless it needs a new segment."""
        return self.base + self.position

    def begin_at(self, begin: int) -> list[Segment]:
        """Forget the segments that end at ``begin`` or before it, but never the last; returns them, to be removed."""
        self.windows.clear()
        count = sum(segment.end <= begin for segment in self.segments[:-1])
        forgotten, self.segments[:count] = self.segments[:count], []
        return forgotten

    def find_segment(self, physical_offset: int) -> Segment | None:
        """Return the segment that holds a byte of the log."""
        segments = self.segments
        if not segments or physical_offset < segments[0].start:
            return None
        index = (physical_offset - segments[0].start) // self._size
        return segments[index] if index < len(segments) else None

    def is_sealed(self, segment: Segment) -> bool:
        """Whether the records of a segment have checksums, so that one without is likely a damaged one."""
        if self.sealed_from is not None and segment.start >= self.sealed_from:
            return True
        if segment.sealed is None:
            view = segment.view()
            count, at, status, sealed = walk(view, 0, segment.size, segment.start, self._first_rows.view)
            if not sealed and count < SEALED_ROWS and not 0 < self.written <= segment.start + at:
                sealed = self._is_sealed_behind(segment, at)  # the log goes on, so the first of them are damaged
            if sealed or status == FULL:
                segment.sealed = sealed
                return sealed
            before = self.find_segment(segment.start - 1)
            return before is not None and self.is_sealed(before)
        return segment.sealed

    def knows_seal(self, segment: Segment) -> bool:
        """Whether ``is_sealed`` knows without a look at the segment."""
        return segment.sealed is not None or (self.sealed_from is not None and segment.start >= self.sealed_from)

    def _is_sealed_behind(self, segment: Segment, position: int) -> bool:
        """Whether the next sound record behind damage has a checksum."""
        found = _find_in(segment, position + 1, sealed=True)
        if found is None:
            return False
        return walk(segment.view(), found, segment.size, segment.start, self._first_rows.view)[3]

    def is_sealed_at(self, physical_offset: int) -> bool:
        segment = self.find_segment(physical_offset)
        return segment is not None and self.is_sealed(segment)

    def find_behind(self, segment: Segment, position: int, *, sealed: bool) -> int | None:
        """Return where the next sound record begins behind a damaged one, which began at ``position`` of a segment."""
        behind = damaged_end(segment.view(), position, segment.start, sealed)
        return self.find_record(segment.start + behind, sealed=sealed)

    def find_record(self, physical_offset: int, *, sealed: bool) -> int | None:
        """Return where the next sound record begins, at or after ``physical_offset``, in whatever was ever written."""
        while (segment := self.find_segment(physical_offset)) is not None:
            sealed = sealed or self.is_sealed(segment)
            found = _find_in(segment, physical_offset - segment.start, sealed=sealed)
            if found is not None:
                return segment.start + found
            physical_offset = segment.end
        return None

    def close_hole(self, begin: int, end: int, store_timestamp: int) -> Iterator[DamagedRange]:
        """Put damaged bytes of the log aside and bridge them; yields the range in each segment when that is done."""
        for segment, first, last in self.pieces(begin, end):
            put_aside(self._config.root, segment, first, last, self._files)
            bridge(segment, first, last, store_timestamp, checksum=self._config.enabled_append_prop_crc)
            yield DamagedRange(segment.path, segment.start + first, last - first)

    def pieces(self, begin: int, end: int) -> Iterator[tuple[Segment, int, int]]:
        """Return the segments that hold the bytes ``begin`` to ``end`` of the log, and which of each."""
        while begin < end:
            segment = self.find_segment(begin)
            assert segment is not None, "the bytes are within the log"
            stop = min(end, segment.end)
            yield segment, begin - segment.start, stop - segment.start
            begin = stop

    def put_tail_aside(self, end: int) -> Iterator[DamagedRange]:
        """Put aside what lies behind ``end``, where no sound record does; yields the range in each segment."""
        for segment, begin, stop, written in self.tail(end):
            put_aside(self._config.root, segment, begin, stop, self._files)
            yield DamagedRange(segment.path, segment.start + begin, written - begin)

    def tail(self, end: int) -> Iterator[tuple[Segment, int, int, int]]:
        """Return the segments with bytes behind ``end`` that are not zero.

        returns  of each where they begin, where the last of them ends, and where what was ever written does: zeros
                 behind other bytes may have been records too
        """
        for segment in self.segments:
            begin = max(end - segment.start, 0)
            if begin < segment.size:
                stop, written = segment.data_end(begin)
                if stop > begin:
                    yield segment, begin, stop, written

    def read(self, physical_offset: int, size: int) -> bytes | None:
        """Return a copy of written bytes, or None where they are not all in one segment.

        raises  OSError, which names file and position, when a page cannot be read
        """
        segment = self.find_segment(physical_offset)
        if segment is None:
            return None
        start = physical_offset - segment.start
        if size < 0 or start + size > segment.size:
            return None
        self.resident.was_read(physical_offset, physical_offset + size)
        return segment.read(start, size)

    def gather(self, found: Table, first: int, last: int, queue_id: int, queue_offset: int) -> tuple[bytes, int]:
        """Copy the records that rows ``first`` to ``last`` of a scan of a queue lead to, checked, in a single copy.

        found         rows of ``consume_queue.scan_units``; ``queue_offset`` is that of the first unit scanned
        returns       (records, row): the records back to back, and the first row that is not among them because it
                      leads to no sound message of this queue, or to a page that cannot be read; ``last`` where all are
        """
        parts = []
        row = first
        while row < last:
            segment = self.find_segment(found.flat[row * found.columns])
            if segment is None:
                break
            sealed = self.is_sealed(segment)
            records, end = gather(found.view, row, last, segment.view(), segment.start, queue_id, queue_offset, sealed)
            if end == row:
                break
            parts.append(records)
            row = end
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._gathered(found, first, row)
        return body, row

    def _gathered(self, found: Table, first: int, last: int) -> None:
        """Note what was read: from the first record to the last, or each by itself where they lie far apart."""
        flat, columns = found.flat, found.columns
        if first == last:
            return
        begin, row = flat[first * columns], (last - 1) * columns
        end = flat[row] + flat[row + SIZE]
        if begin < end <= begin + (last - first) * PART_BYTES:
            self.resident.was_read(begin, end)
            return
        for row in range(first * columns, last * columns, columns):
            self.resident.was_read(flat[row], flat[row] + flat[row + SIZE])

    # ------------------------------------------------------------------ appending

    def open_at(self, end: int) -> None:
        """Begin to append at ``end``, the end of the valid data: later segments go, stale bytes behind it are cleared.

        Nothing sound lies there, and recovery has put it aside.

        raises  StoreFull, OSError
        """
        while self.segments and self.segments[-1].start >= end and self.segments[-1].start > self.min_offset:
            segment = self.segments.pop()
            logger.warning("commit log segment removed path=%s end=%d", segment.path, end)
            segment.remove()
        if not self.segments or self.segments[-1].end == end:
            self.segments.append(self._create(end))
        segment = self.segments[-1]
        segment.clear_from(end - segment.start)
        self.written = self.synced = end
        self._begin_run(segment, end - segment.start)

    def run_begins(self, *, sealed: bool) -> None:
        """Note, where appending begins, whether what is put from now on has checksums."""
        if not sealed:
            self.sealed_from = None
        elif self.sealed_from is None or self.sealed_from > self.end_offset:
            self.sealed_from = self.end_offset

    def reserve(self, size: int) -> None:
        """Make sure that a record of ``size`` bytes fits between ``position`` and ``limit``.

        raises  StoreFull when it needs a new segment and there is no room for one on the disk; nothing has changed then
        """
        if self.position + size <= self.limit:
            return
        segment = self.segments[-1]
        if self.end_offset + size + FILLER_SIZE > segment.end:
            self._roll(segment)
        if self.position + size > len(self.buffer):
            grown = bytearray(max(2 * len(self.buffer), self.position + size + FILLER_SIZE))
            grown[: self.position] = memoryview(self.buffer)[: self.position]
            self.buffer = grown
        self._set_limit()

    def _set_limit(self) -> None:
        """A record may end where the segment still has room for a filler behind it."""
        self.limit = min(len(self.buffer), self.segments[-1].end - FILLER_SIZE - self.base)

    def _roll(self, segment: Segment) -> None:
        following = self._next_segment(segment.end)
        if self.position + FILLER_SIZE > len(self.buffer):
            self.buffer += bytes(FILLER_SIZE)
        filler = encode_filler(segment.end - self.end_offset)
        self.buffer[self.position : self.position + FILLER_SIZE] = filler
        self.position += FILLER_SIZE
        self._close_run()
        self.segments.append(following)
        self._begin_run(following, 0)

    def _begin_run(self, segment: Segment, position: int) -> None:
        self._run_begin = self.position
        self.base = segment.start + position - self.position
        self._set_limit()

    def _close_run(self) -> None:
        if self.position > self._run_begin:
            segment = self.segments[-1]
            self._runs.append(Run(segment, self.base + self._run_begin - segment.start, self._run_begin, self.position))

    def take(self) -> Group | None:
        """Return what was appended since the last call, or None; ``give_back`` returns the buffer.

        raises  MemoryError when there is none for another buffer; nothing has changed then
        """
        if self.position == 0:
            return None
        following = self._spare.pop() if self._spare else bytearray(BUFFER_BYTES)
        end = self.end_offset
        self._close_run()
        group = Group(self.buffer, self._runs, end)
        self.buffer = following
        self._runs = []
        self.position = 0
        segment = self.segments[-1]
        self._begin_run(segment, end - segment.start)
        self._allocate_ahead(segment, end)
        return group

    def give_back(self, group: Group) -> None:
        """Use the buffer of a written group again; one that a burst made large is dropped."""
        if len(group.buffer) <= KEEP_BUFFER_BYTES and len(self._spare) < 2:
            self._spare.append(group.buffer)

    # ------------------------------------------------------------------ allocation

    def _allocate_ahead(self, segment: Segment, end: int) -> None:
        """Create the next segment in the background when half of this one is used; where no thread can, it waits."""
        if self._ahead is not None or segment.end - end >= self._size // 2:
            return
        now = self._clock.monotonic()
        if now < max(self._ahead_at, self._retry_at):
            return
        try:
            if self._allocator is None:
                self._allocator = ThreadPoolExecutor(1, thread_name_prefix="rocket-store-allocate")
            self._ahead = self._allocator.submit(Segment.create, self._folder, segment.end, self._size, self._files)
        except (RuntimeError, MemoryError) as error:
            # The group that was taken just now is written all the same. A half-started pool starts no thread again.
            self._allocator = None
            self._ahead_at = now + RETRY_ALLOCATION_SECONDS
            logger.error("commit log file not made ahead path=%s reason=%s", segment_name(segment.end), error)

    def _next_segment(self, start: int) -> Segment:
        """Return the segment that starts at ``start``: the one made ahead, or one made now.

        Made now blocks the loop for an allocation and two fsyncs. That happens when half a segment was filled before
        the background had made the next, or after the disk was full.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            try:
                segment = ahead.result()
            except OSError as error:
                self._refuse(error, start)
            else:
                self._full = ""
                return segment
        if self._clock.monotonic() < self._retry_at:
            raise StoreFull(self._full)
        return self._create(start)

    def _create(self, start: int) -> Segment:
        try:
            segment = Segment.create(self._folder, start, self._size, self._files)
        except OSError as error:
            self._refuse(error, start)
            raise StoreFull(self._full) from error
        self._full = ""
        return segment

    def _refuse(self, error: OSError, start: int) -> None:
        """Note why there is no next file, for now; raises a lost write again, which nothing heals."""
        if isinstance(error, LostWrite):
            raise error
        self._retry_at = self._clock.monotonic() + RETRY_ALLOCATION_SECONDS
        path = self._folder / segment_name(start)
        if is_full(error):
            import shutil

            free = shutil.disk_usage(self._folder).free
            self._full = (
                f"disk full: no room for the next commit log file {path}: it needs {self._size} bytes, {free} are "
                "free; free some space, sends are taken again as soon as it fits"
            )
        else:
            self._full = (
                f"the next commit log file {path} cannot be made: {error}; sends are taken again as soon as it can"
            )
        logger.error("commit log allocation failed reason=%s", self._full)

    @property
    def full_reason(self) -> str:
        """Why the last allocation failed; empty when there is room."""
        return self._full

    # ------------------------------------------------------------------ flushing and closing

    def work(self, group: Group, *, sync: bool) -> Work:
        """Return what writes a group, and with ``sync`` makes it durable; raises OSError."""
        work = Work(self._files)
        group.add_to(work, sync=sync)
        return work

    def zeros(self, group: Group) -> Work:
        """Return what writes zeros behind all that works write to the segment in which a group ended."""
        work = Work(self._files)
        group.runs[-1].segment.add_zeros(work)
        return work

    def unsynced(self) -> Work:
        """Return what makes durable everything that was written so far; raises OSError."""
        work = Work(self._files)
        for segment in self.segments:
            if segment.end > self.synced and segment.start < self.written:
                segment.add_sync(work)
        return work

    def make_sure(self, start: int, end: int) -> None:
        """Have on disk what an unclean end left, before anything of it is shown or noted as durable.

        What was written may never have been synced; and after a failed fsync the system takes pages for clean that are
        not on disk, so they are written again. ``start`` is where the last note ends; -1, where there is none, stands
        for the last two files, as no group reaches further back.
        """
        if start < 0:
            start = self.segments[-2:][0].start
        for segment in self.segments:
            if segment.end > start and segment.start < end:
                segment.rewrite(max(start - segment.start, 0), min(end, segment.end) - segment.start)

    def close(self) -> None:
        if self._allocator is not None:
            self._allocator.shutdown(wait=True)
        self.windows.clear()
        for segment in self.segments:
            segment.close()


def _find_in(segment: Segment, position: int, *, sealed: bool) -> int | None:
    """Return where the next sound record of a segment begins, at or after ``position``."""
    for begin, end in segment.written_ranges(position):
        found = find(segment.view(), begin, end, segment.start, sealed)
        if found >= 0:
            return found
    return None
