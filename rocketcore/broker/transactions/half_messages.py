"""Which half messages are undecided, and which op messages still say so of the others.

Java: the remove map of ``TransactionalMessageServiceImpl`` (5.5.0).

In memory, one byte for each half message from the first undecided one on: a check moves what it asks about to the end
of its queue, so that the first is seldom older than the pause between two checks, and the time-out of a transaction.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Final

REMEMBERED: Final = 10_000
"""Transactions that a producer was asked about, and that have ended, whose outcome is known to a second answer."""

_OPS_PER_MARK: Final = 64
"""Op messages that are given up together."""


class HalfState(IntEnum):
    """What became of a half message."""

    OPEN = 0
    COMMITTED = 1
    ROLLED_BACK = 2
    ENDED = 3
    """It was moved, or it had ended before the start, or it cannot be read."""
    DISCARDED = 4
    """It was checked as often as may be; a commit still delivers it."""


class HalfMessages:
    """The states of half messages by their queue offsets; loop thread only.

    A message that is moved goes on under its newest offset; ``first`` is the offset under which it was stored first.
    """

    def __init__(self, begin: int = 0) -> None:
        self.begin = begin
        self._states = bytearray()
        self._moved: dict[int, int] = {}
        self._outcomes: dict[int, HalfState] = {}

    @property
    def end(self) -> int:
        """The offset behind the last known message."""
        return self.begin + len(self._states)

    def grow(self, end: int) -> None:
        """Take in the messages up to ``end``: they are undecided."""
        self._states.extend(bytes(max(end - self.end, 0)))

    def state(self, queue_offset: int) -> HalfState | None:
        """Return the state of a message, None for one before the first undecided."""
        if queue_offset < self.begin:
            return None
        self.grow(queue_offset + 1)
        return HalfState(self._states[queue_offset - self.begin])

    def current(self, queue_offset: int, first: int) -> tuple[int, HalfState | None]:
        """Return under which offset a message goes on, or ended, and its state."""
        outcome = self._outcomes.get(first)
        if outcome is not None:
            return queue_offset, outcome
        current = self._moved.get(first, queue_offset)
        return current, self.state(current)

    def end_one(self, queue_offset: int, state: HalfState, first: int) -> None:
        """Note what became of a message."""
        if queue_offset >= self.begin:
            self.grow(queue_offset + 1)
            self._states[queue_offset - self.begin] = state
        if self._moved.pop(first, None) is not None and state in (HalfState.COMMITTED, HalfState.ROLLED_BACK):
            self._outcomes[first] = state
            if len(self._outcomes) > REMEMBERED:
                del self._outcomes[next(iter(self._outcomes))]

    def moved(self, queue_offset: int, first: int, to: int) -> None:
        """Note that a message goes on under another offset."""
        if queue_offset >= self.begin:
            self.grow(queue_offset + 1)
            self._states[queue_offset - self.begin] = HalfState.ENDED
        self.grow(to + 1)
        self._moved[first] = to

    def next_open(self, queue_offset: int, end: int) -> tuple[int, int]:
        """Return the next run of undecided messages from ``queue_offset`` on, as (first, behind the last)."""
        base = self.begin
        states = self._states
        at = states.find(b"\0", max(queue_offset - base, 0), max(end - base, 0))
        if at < 0:
            return end, end
        behind = at + 1
        while behind < end - base and not states[behind]:
            behind += 1
        return base + at, base + behind

    def undecided(self, end: int) -> int:
        """Return how many messages before ``end``, the offset of the next one, nobody has decided about."""
        return self._states.count(0) + max(0, end - self.end)

    def advance(self) -> int:
        """Forget the messages before the first undecided one; return its offset, or the end."""
        first, _ = self.next_open(self.begin, self.end)
        del self._states[: first - self.begin]
        self.begin = first
        return first


class OpMessages:
    """From which op message on they are needed: those before it are of half messages that no one asks about again."""

    def __init__(self, begin: int = 0) -> None:
        self.begin = self.end = begin
        self._marks: deque[tuple[int, int, int]] = deque()

    def stored(self, queue_offset: int, highest: int) -> None:
        """Note an op message, and the highest offset of a half message that it names."""
        self.end = queue_offset + 1
        if self._marks:
            first, count, before = self._marks[-1]
            if count < _OPS_PER_MARK:
                self._marks[-1] = first, count + 1, max(before, highest)
                return
        self._marks.append((queue_offset, 1, highest))

    def advance(self, half_begin: int) -> int:
        """Give up those that only name half messages before ``half_begin``; return where the others begin."""
        while self._marks and self._marks[0][2] < half_begin:
            self._marks.popleft()
        self.begin = self._marks[0][0] if self._marks else self.end
        return self.begin


def op_body(offsets: list[int]) -> bytes:
    """Return the body of an op message (broker.md §20.3)."""
    return ",".join(map(str, offsets)).encode()


def read_op_body(body: bytes) -> list[int]:
    """Return the offsets that an op message names: one of 4.9, several of 5.x; what is no offset is left out."""
    return [int(part) for part in body.split(b",") if part.strip().isdigit()]
