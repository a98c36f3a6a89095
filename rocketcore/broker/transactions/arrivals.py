"""When the messages of a queue came, in monotonic time: what their age is does not hang on a clock that may be set."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

__all__ = ["Arrivals"]

SLOT_SECONDS: Final = 0.05
"""Messages that come within this time count as having come together."""
MOST_SLOTS: Final = 4096
"""Beyond this number the older half of the slots is joined in pairs."""


class Arrivals:
    """Queue offsets by the time at which they were stored, in slots; a message counts as the newest of its slot."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._times: list[float] = []
        self._opened = 0.0

    def note(self, queue_offset: int, now: float) -> None:
        """Note that a message was stored now; offsets grow."""
        if self._times and now - self._opened < SLOT_SECONDS:
            self._times[-1] = now
            return
        self._opened = now
        self._begins.append(queue_offset)
        self._times.append(now)
        if len(self._begins) > MOST_SLOTS:
            half = MOST_SLOTS // 2
            self._begins[:half] = self._begins[:half:2]
            self._times[:half] = self._times[1:half:2]

    def find(self, queue_offset: int) -> float | None:
        """Return when a message came, None for one from before the first that was noted."""
        slot = bisect_right(self._begins, queue_offset) - 1
        return None if slot < 0 else self._times[slot]
