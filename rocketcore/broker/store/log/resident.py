"""Which parts of the maps of the log stay in this process's resident memory: those that were read last.

To map a page costs more than to copy the messages on it. Consumers of several queues, and several groups, read the same
pages a moment apart, so what one of them had mapped is kept for the others. The page cache keeps all of it anyway; what
is bounded here is what an operator sees as the process's memory.

A part is forgotten when ``PARTS`` others were read after it, or when nobody read it for a second or two: so at rest all
of it is given back. Parts are small, because the loop waits while one is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from rocketcore.broker.store.log.segment_file import Segment

__all__ = ["PARTS", "PART_BYTES", "Resident"]

PART_BYTES: Final = 2 << 20
"""What one page of page tables maps."""

PARTS: Final = 32
PARTS_AT_REST: Final = 8
"""That are forgotten at once because nobody read them; each takes some 50 microseconds."""


class Log(Protocol):
    """What is asked of the log; see ``CommitLog``."""

    @property
    def min_offset(self) -> int: ...
    @property
    def file_end(self) -> int: ...
    def find_segment(self, physical_offset: int, /) -> Segment | None: ...


class Resident:
    """Loop thread only. What is read from a window of the log is noted when the window is made."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._parts: dict[int, bool] = {}
        """Number of the part → whether it was read since the last ``age``; the one read last is the last."""

    def was_read(self, begin: int, end: int) -> None:
        """Note that what lies between two physical offsets was read through the maps, or may soon be."""
        parts, log = self._parts, self._log
        begin, end = max(begin, log.min_offset), min(end, log.file_end)  # a damaged unit says anything
        for part in range(begin // PART_BYTES, -(-end // PART_BYTES)):
            parts.pop(part, None)
            parts[part] = True
        while len(parts) > PARTS:
            oldest = next(iter(parts))
            del parts[oldest]
            self._forget(oldest * PART_BYTES, (oldest + 1) * PART_BYTES)

    def age(self) -> None:
        """Forget parts that were not read since the last call, and all else that a repair or a window of before was
        read from; called every second, when there are no windows."""
        for part in [part for part, fresh in self._parts.items() if not fresh][:PARTS_AT_REST]:
            del self._parts[part]
        begin = 0
        for part in sorted(self._parts):
            self._forget(begin, part * PART_BYTES)
            begin = (part + 1) * PART_BYTES
        self._forget(begin, self._log.file_end)
        self._parts = dict.fromkeys(self._parts, False)

    def _forget(self, begin: int, end: int) -> None:
        begin = max(begin, self._log.min_offset)
        while begin < end and (segment := self._log.find_segment(begin)) is not None:
            segment.forget_pages(begin - segment.start, min(end, segment.end) - segment.start)
            begin = segment.end
