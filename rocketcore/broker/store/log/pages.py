"""What of the store is in memory: a read on the event loop does not wait for the disk.

The rule of every read that ``ColdReads`` makes (``asks``): where what it needs may not be in memory it raises ``Cold``
with the ranges to be read first, and has done nothing that may not be done again. Made again after that, it goes on.
All other reads wait for the disk, as those of a start do.

To ask the system costs microseconds, and more than the copy of a message; so it is asked seldom:

recent  what was written a moment ago is in memory
known   of chunks of 128 KiB it is remembered for a second or two that they are; the next pulls go by that
units   those in memory of a queue are never asked about, those in files are read with RWF_NOWAIT

For one who reads on where the log was read a moment ago the range behind the one that it is at is read ahead
(``read_ahead``), so that it finds it in memory: it waits for the disk when it reads faster than the disk does.

A system short of memory may take a page between the question and the read: then that one read waits on the loop.

A page that the disk did not give is remembered as long, and is an error of the reads that need it without another try.
"""

from __future__ import annotations

import contextlib
import errno
import os
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from rocketcore._fast.consume_queue import OUT_COLUMNS, PHYSICAL_OFFSET, SIZE

if TYPE_CHECKING:
    from rocketcore.broker.store.file_system import FileSystem
    from rocketcore.broker.store.log.commit_log import CommitLog
    from rocketcore.broker.store.log.segment_file import Segment
    from rocketcore.table import Table

__all__ = ["Cold", "LogRange", "Pages", "UnitRange"]

CHUNK_BYTES = 128 << 10
AHEAD_BYTES = 2 << 20
"""Read at once for one who reads on where the log was read a moment ago."""

ASKED_BYTES = 4 << 20
"""Asked about at once for one who reads on, in some 40 microseconds."""

RECENT_BYTES = 64 << 20
SPAN_BYTES = 1 << 20
"""Records within so much of the log are asked about, and read, as one range with what lies between them."""

IN_MEMORY_BYTES = 8 << 20
"""What one look at the chunks that are known goes through."""

_UNITS_BYTES = 64 << 10
_PAGE = os.sysconf("SC_PAGE_SIZE")


class LogRange(NamedTuple):
    """Bytes ``begin`` to ``end`` of a segment."""

    segment: Segment
    begin: int
    end: int

    @property
    def path(self) -> Path:
        return self.segment.path

    def load(self) -> int:
        """Read them, on a thread; returns the first that cannot be read, ``end`` where all can."""
        return self.segment.load(self.begin, self.end)


class UnitRange(NamedTuple):
    """Bytes ``begin`` to ``end`` of a file of a consume queue."""

    files: FileSystem
    path: Path
    begin: int
    end: int

    def load(self) -> int:
        """Read them, on a thread; raises OSError."""
        with self.files.opened(self.path, os.O_RDONLY) as fd:
            self.files.read(fd, self.end - self.begin, self.begin)
        return self.end


class Cold(Exception):
    """A read needs ranges that are not in memory; where there are none, it waits for others of its owner."""

    def __init__(self, ranges: Iterable[LogRange | UnitRange] = ()) -> None:
        super().__init__()
        self.ranges = tuple(dict.fromkeys(ranges))


class Pages:
    """Loop thread only.

    asks         whether the read that is being made may not wait for the disk
    recent_from  physical offset from which on the log was written a moment ago
    read_ahead   has a thread read a range that nobody waits for yet, and ``loaded`` called; returns whether it will
    """

    def __init__(self, log: CommitLog) -> None:
        self.asks = False
        self.recent_from = 0
        self.read_ahead: Callable[[LogRange], bool] = lambda _: False
        self._log = log
        self._end = 0
        self._known: set[int] = set()
        self._known_before: set[int] = set()
        self._coming: dict[int, LogRange] = {}
        """Physical offset → what is being read ahead from there."""
        self._followed: dict[int, int] = {}
        """Physical offset of a range that was read for one who reads on → where its segment is read ahead from, once
        somebody reads there."""
        self._failed: dict[int | UnitRange, OSError] = {}
        self._failed_before: dict[int | UnitRange, OSError] = {}

    def begin(self) -> None:
        """Note, at the start, that what lies in the log is from an earlier life; what the start read is done with."""
        for segment in self._log.segments:
            segment.forget_pages()
        self.recent_from = self._end = self._log.end_offset

    def age(self) -> None:
        """Forget what was known before the last call; called every second."""
        self._known_before, self._known = self._known, set()
        self._failed_before, self._failed = self._failed, {}
        known = self._known_before
        self._followed = {at: end for at, end in self._followed.items() if at in known or at in self._coming}
        self._log.windows.clear()
        self._log.resident.age()
        end = self._log.end_offset
        self.recent_from, self._end = max(self._end, end - RECENT_BYTES), end

    # ------------------------------------------------------------------ what a read needs

    def want(self, physical_offset: int, size: int) -> None:
        """Raise Cold where bytes of the log may not be in memory, OSError where a page of them just failed."""
        if physical_offset >= self.recent_from:
            return
        segment = self._log.find_segment(physical_offset)
        if segment is not None:
            begin = physical_offset - segment.start
            needed = self._absent(segment, begin, min(begin + size, segment.size))
            if needed is not None:
                raise Cold((needed,))

    def in_memory(self, segment: Segment, position: int, most: int = IN_MEMORY_BYTES) -> tuple[int, int]:
        """Return the bytes of a segment around one that are known to be in memory; an empty range where it is not.

        most  of them that are looked at
        """
        if not self.asks:
            return 0, segment.size
        recent = max(self.recent_from - segment.start, 0)
        if position >= recent:
            return recent, segment.size
        begin = end = position - position % CHUNK_BYTES
        if self._failed or self._failed_before:
            return begin, end  # somewhere in it a page may fail
        known, before, start = self._known, self._known_before, segment.start
        last = min(recent, begin + most)
        while end < last and (start + end in known or start + end in before):
            if start + end in self._followed:
                self._read_on(segment, end)
            end += CHUNK_BYTES
        return begin, segment.size if end >= recent else min(end, segment.size)

    def want_seal(self, physical_offset: int) -> None:
        """Raise Cold where the begin of a segment is not in memory, which tells whether its records have checksums."""
        segment = self._log.find_segment(physical_offset)
        if segment is None or self._log.knows_seal(segment):
            return
        with contextlib.suppress(OSError):
            self.want(segment.start, min(CHUNK_BYTES, segment.size))

    def want_rows(self, found: Table, first: int, last: int) -> int:
        """The same for the records that rows ``first`` to ``last`` of a scan of a queue lead to.

        returns  the first row of which a page just failed, ``last`` where none has; those before it can be read now
        """
        ranges: list[LogRange] = []
        readable = self._want_rows(found.flat, first, last, ranges)
        if ranges:
            raise Cold(ranges)
        return readable

    def _want_rows(self, flat: array[int], first: int, last: int, ranges: list[LogRange]) -> int:
        """Ask about rows together as far as their records lie close together, else about each half."""
        begin = flat[first * OUT_COLUMNS + PHYSICAL_OFFSET]
        if begin >= self.recent_from:
            return last
        row = (last - 1) * OUT_COLUMNS
        end = flat[row + PHYSICAL_OFFSET] + flat[row + SIZE]
        segment = self._log.find_segment(begin)
        is_one = last - first == 1
        if is_one and (segment is None or not begin < end <= segment.end):
            return last  # a damaged unit: nothing is read there
        if segment is not None and (is_one or begin < end <= min(begin + SPAN_BYTES, segment.end)):
            if not self._log.knows_seal(segment):
                self.want_seal(begin)
            try:
                needed = self._absent(segment, begin - segment.start, end - segment.start)
            except OSError:
                if is_one:
                    return first
            else:
                if needed is not None:
                    ranges.append(needed)
                return last
        middle = (first + last) // 2
        readable = self._want_rows(flat, first, middle, ranges)
        return readable if readable < middle else self._want_rows(flat, middle, last, ranges)

    def _absent(self, segment: Segment, begin: int, end: int) -> LogRange | None:
        """Return what to read first of a segment's bytes ``begin`` to ``end``; None where they are in memory.

        raises  OSError, which names file and position, where a page of them just failed
        """
        start = segment.start
        has_failed = self._failed or self._failed_before
        if has_failed:
            self._check_failed(segment, begin, end)
        first = begin - begin % CHUNK_BYTES
        for chunk in range(first, end, CHUNK_BYTES):
            if start + chunk not in self._known and start + chunk not in self._known_before:
                break
            if start + chunk in self._followed:
                self._read_on(segment, chunk)
        else:
            return None
        coming = self._coming.get(start + chunk)
        if coming is not None:
            return coming
        length = self._length(segment)
        stop = min(-(-end // CHUNK_BYTES) * CHUNK_BYTES, length)
        before = start + chunk - CHUNK_BYTES
        reads_on = before in self._known or before in self._known_before
        absent = segment.first_absent(chunk, stop)
        if reads_on and absent == stop:
            absent = segment.first_absent(stop, min(max(stop, chunk + ASKED_BYTES), length))
        self._note(segment, chunk, absent)
        if absent < begin:
            absent = segment.first_absent(begin, end)
        if absent >= end:
            return None
        if has_failed and self._has_failed(segment, chunk, stop):
            return LogRange(segment, absent - absent % _PAGE, end)  # and not the page that fails, once more
        absent -= absent % CHUNK_BYTES
        before = start + absent - CHUNK_BYTES
        if before in self._known or before in self._known_before:
            stop = max(stop, min(absent + AHEAD_BYTES, length))
            self._followed[start + absent] = stop
        return LogRange(segment, absent, stop)

    def _read_on(self, segment: Segment, position: int) -> None:
        """Have the range behind the one at ``position`` read, for whoever reads here."""
        start = segment.start
        begin = self._followed.pop(start + position)
        end = min(begin + AHEAD_BYTES, self._length(segment))
        at = start + begin
        is_there = at in self._known or at in self._known_before or at in self._coming or at >= self.recent_from
        if is_there or begin >= end or self._failed or self._failed_before:
            return
        following = LogRange(segment, begin, end)
        if self.read_ahead(following):
            self._coming[at] = following
            self._followed[at] = end

    def want_units(self, files: FileSystem, path: Path, begin: int, end: int) -> NoReturn:
        """Raise Cold for bytes of a file of a consume queue that are not in memory, OSError where they just failed."""
        begin -= begin % _UNITS_BYTES
        needed = UnitRange(files, path, begin, -(-end // _UNITS_BYTES) * _UNITS_BYTES)
        error = self._failed.get(needed) or self._failed_before.get(needed)
        if error is not None:
            raise _copy_of(error)
        raise Cold((needed,))

    # ------------------------------------------------------------------ what was read

    def loaded(self, what: LogRange | UnitRange, readable_to: int, error: OSError | None) -> None:
        """Note what a thread has read: up to where, or what was wrong."""
        if isinstance(what, UnitRange):
            if error is not None:
                self._failed[what] = error
            return
        self.not_read(what)
        self._note(what.segment, what.begin, readable_to)
        if error is None and readable_to < what.end:
            error = OSError(errno.EIO, f"the page at byte {readable_to} cannot be read", str(what.path))
        if error is not None:
            self._failed[what.segment.start + readable_to - readable_to % _PAGE] = error
            self._log.windows.clear()

    def not_read(self, what: LogRange) -> None:
        """A range is not being read ahead any more."""
        if self._coming.get(at := what.segment.start + what.begin) == what:
            del self._coming[at]

    def _length(self, segment: Segment) -> int:
        """Return how many bytes of a segment may have been written."""
        return min(segment.size, self._log.end_offset - segment.start)

    def _note(self, segment: Segment, begin: int, end: int) -> None:
        """Note that bytes of a segment are in memory."""
        if end == self._length(segment):
            end += CHUNK_BYTES - 1  # nothing follows in the last chunk, or what is recent
        begin = -(-begin // CHUNK_BYTES) * CHUNK_BYTES
        self._known.update(range(segment.start + begin, segment.start + end - CHUNK_BYTES + 1, CHUNK_BYTES))

    def _check_failed(self, segment: Segment, begin: int, end: int) -> None:
        for page in range(segment.start + begin - begin % _PAGE, segment.start + end, _PAGE):
            error = self._failed.get(page) or self._failed_before.get(page)
            if error is not None:
                raise _copy_of(error)

    def _has_failed(self, segment: Segment, begin: int, end: int) -> bool:
        return any(
            isinstance(page, int) and segment.start + begin <= page < segment.start + end
            for page in (*self._failed, *self._failed_before)
        )


def _copy_of(error: OSError) -> OSError:
    """An error of its own for each read: a traceback grows with each raise."""
    return OSError(error.errno, error.strerror, error.filename)
