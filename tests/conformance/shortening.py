"""The shortest session that still ends in two answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

__all__ = ["shortest"]


class _Difference(Protocol):
    @property
    def steps(self) -> list[Any]: ...


D = TypeVar("D", bound=_Difference)


def shortest(difference: D, play: Callable[[list[Any]], D | None], seconds: float | None = None) -> D:
    """Leave steps out, in ever smaller runs, as long as some difference remains; for a while, or to the end."""
    until = float("inf") if seconds is None else time.monotonic() + seconds
    length = len(difference.steps)
    while length and time.monotonic() < until:
        length = min(length, len(difference.steps))
        start = 0
        while start < len(difference.steps) and time.monotonic() < until:
            found = play(difference.steps[:start] + difference.steps[start + length :])
            if found is None:
                start += length
            else:
                difference = found
        length //= 2
    return difference
