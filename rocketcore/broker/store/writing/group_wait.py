"""Whether a group waits a moment for those who were answered last.

A client that sends one message after the other comes back soon after its answer. Where each group leaves as soon as the
one before it is on disk, whoever is answered by that one has just missed it. So clients fall into two halves, and each
waits for the sync of the other half and then for its own. A group that waits for them takes both: twice as much a sync,
and one sync until an answer in place of two. With 16 clients and a disk that takes 3 ms that makes 1.6 times as many
messages (docs/benchmarks.md).

Where a sync is short that loses: the work for one half is done while the other half is synced. And nobody is to wait
for clients who do not come. So a group waits

from      syncs that take ``FROM_SECONDS``
how long  a quarter of what a sync takes, at most, after the answers
for whom  as many as came within that time after the answers before; where that was less than half of those who had
          been answered, for nobody: they do not wait for their answers, or have other things to do
"""

from __future__ import annotations

from typing import Final

__all__ = ["FROM_SECONDS", "GroupWait"]

FROM_SECONDS: Final = 0.002
"""A timer of the loop may come a millisecond late, and turns of a busy one take a part of that."""

_PART: Final = 0.25
_LEAST_SHARE: Final = 0.5
_SLOWLY: Final = 0.125
_SOON: Final = 0.25


class GroupWait:
    """What syncs and the clients of the last groups did; monotonic seconds."""

    __slots__ = ("_answered", "_came", "_share", "_sync_seconds", "_until", "pays")

    def __init__(self) -> None:
        self.pays = False
        """Whether groups wait at the moment."""
        self._sync_seconds = 0.0
        self._share = 0.0  # of those who were answered, how many came back in time; a moving mean
        self._answered = 0
        self._came = 0
        self._until = 0.0

    def synced(self, seconds: float) -> None:
        """A group was written and synced. One that took long, for once, counts little; one that did not, at once."""
        before = self._sync_seconds
        self._sync_seconds = min(seconds, before + (seconds - before) * _SLOWLY if before else seconds)

    def answered(self, count: int, now: float) -> None:
        """So many, one or more, were answered together."""
        if self._answered:
            self._share += (min(self._came / self._answered, 1.0) - self._share) * _SOON
        self.pays = self._sync_seconds >= FROM_SECONDS and self._share >= _LEAST_SHARE
        self._answered = count
        self._came = 0
        self._until = now + self._sync_seconds * _PART

    def came(self, now: float) -> None:
        """Somebody put a message, and waits for the answer."""
        if now <= self._until:
            self._came += 1

    def left(self, now: float) -> float:
        """Return how many seconds the next group waits, if nobody comes: 0 where it leaves at once."""
        if not self.pays or self._came >= round(self._answered * self._share):
            return 0.0
        return max(self._until - now, 0.0)
