"""When what failed is tried again: after pauses that grow, until its time is over. One rule for all that Arrow sends,
pulls and plans.
"""

from __future__ import annotations

from typing import Final

from rocketcore.errors import RocketError, RouteNotFound
from rocketcore.service import Backoff, Clock, Deadline

__all__ = ["Retries"]

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
"""Seconds before the second attempt, and what the pauses grow to."""


class Retries:
    """The failed attempts at one thing.

    timeout  seconds for all of them
    count    those that were followed by another
    """

    __slots__ = ("_deadline", "_pauses", "count")

    def __init__(self, timeout: float, clock: Clock) -> None:
        self._deadline = Deadline(timeout, clock)
        self._pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self.count = 0

    def attempt_timeout(self, timeout: float) -> float:
        """Return the seconds that the next attempt has, of those that it would like."""
        return min(timeout, max(FIRST_PAUSE, self._deadline.remaining()))

    def pause_after(self, error: RocketError, *, final: bool = False) -> float:
        """Return how long to wait before the next attempt.

        final   whether waiting changes nothing, whatever the error is
        raises  the error, where there is no further attempt
        """
        pause = self._pauses.next()
        # A broker that has left the route comes back to it.
        hopeless = final or not (error.retriable or isinstance(error, RouteNotFound))
        if hopeless or pause >= self._deadline.remaining():
            raise error
        self.count += 1
        return pause
