"""Pages of the log that the disk does not give: an error of the reads that need them, and after a while damage.

A disk that hangs or a cable that is loose gives its pages later, so no message is passed over at the first error. A
page that has failed again and again for a minute is gone: the messages on it are named, counted and left out of
answers like any that are damaged, and a consumer goes on behind them. What is read by a start is bridged there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.service import Clock

__all__ = ["UnreadablePages"]

PAGE_BYTES = 4096
READS = 5
SECONDS = 60.0
"""How often, and over which time, a page must have failed. Longer without a read, and the time begins again."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Page:
    first_failed: float
    last_failed: float
    reads: int = 0
    gone: bool = False


class UnreadablePages:
    """Loop thread only.

    passed_over  messages that were given up, since the start
    read         reads bytes of the log as the reads do that failed; it may raise Cold
    """

    def __init__(self, log: CommitLog, read: Callable[[int, int], bytes | None], clock: Clock) -> None:
        self._log = log
        self._read = read
        self._clock = clock
        self.passed_over = 0
        self._pages: dict[int, _Page] = {}
        self._given_up: set[int] = set()
        self._begin = 0

    def failed(self, physical_offset: int, size: int) -> bool:
        """Note that a record could not be read; returns whether it is given up."""
        number = self._first_bad(physical_offset, size)
        if number is None:
            return False
        if self._begin < self._log.min_offset:
            self._forget_before(self._log.min_offset)
        now = self._clock.monotonic()
        page = self._pages.get(number)
        if page is None or (now - page.last_failed > SECONDS and not page.gone):
            page = self._pages[number] = _Page(now, now)
        page.last_failed = now
        page.reads += 1
        page.gone = page.gone or (page.reads >= READS and now - page.first_failed >= SECONDS)
        if not page.gone:
            return False
        if physical_offset not in self._given_up:
            self._given_up.add(physical_offset)
            self.passed_over += 1
            segment = self._log.find_segment(physical_offset)
            assert segment is not None, "a page of it was looked at"
            logger.error(
                "message given up, the disk does not give it path=%s position=%d bytes=%d reads=%d seconds=%.0f",
                segment.path,
                physical_offset - segment.start,
                size,
                page.reads,
                now - page.first_failed,
            )
        return True

    def _forget_before(self, begin: int) -> None:
        """Drop what is known of the log before ``begin``, which is gone."""
        self._begin = begin
        self._pages = {number: page for number, page in self._pages.items() if number * PAGE_BYTES >= begin}
        self._given_up = {offset for offset in self._given_up if offset >= begin}

    def _first_bad(self, physical_offset: int, size: int) -> int | None:
        """Return the number of the first page of a record that cannot be read; None where all can be, by now."""
        first, last = physical_offset // PAGE_BYTES, (physical_offset + size - 1) // PAGE_BYTES
        for number in range(first, last + 1):
            try:
                self._read(max(number * PAGE_BYTES, physical_offset), 1)
            except OSError:
                return number
        return None
