"""Which pulls read a range of a queue, and what their answers mean: offsets alone, no I/O.

Offsets of a queue are dense, so where every message is wanted the range is cut into pulls before any answer is there,
and several are under way. Answers are judged in the order of the offsets, each as if it was the only one: what is a
gap does not depend on how many pulls there are. An answer that is shorter than its pull leaves a hole, which is pulled
next. How long answers are depends on the broker and on the messages, and is learnt (``Stride``).

With a filter only an answer says where the next pull begins: there is one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from rocketcore.client.api import PullHead, PullStatus

__all__ = ["PULL_MESSAGES", "Outcome", "Pull", "RangePlan", "Stride"]

PULL_MESSAGES: Final = 8192
"""Messages asked for in one pull; a broker caps it as its settings say (by default Apache's at 32, ours at this)."""

_GUESSED_BYTES: Final = 1024
"""Of a message, before any is there."""
_FIRST_PATIENCE: Final = 8
_LAST_PATIENCE: Final = 1024
"""Whole answers after which a longer one is tried, and what that grows to while they are not given."""
_SHORT_SHARE: Final = 4
"""A hole costs one pull more. More than one answer in so many that leave one, and less is asked for."""


class Stride:
    """How many messages an answer holds, learnt from those of one broker and topic.

    count  asked for in a pull; 0 where it is not known, and then one pull alone asks for all
    """

    __slots__ = ("_fulls", "_message_bytes", "_patience", "_pull_bytes", "_short", "_shorts", "count")

    def __init__(self, pull_bytes: int) -> None:
        self.count = 0
        self._pull_bytes = pull_bytes
        self._message_bytes = 0.0
        self._fulls = 0  # whole answers since a longer one was tried
        self._patience = _FIRST_PATIENCE
        self._short = 0  # messages of the last answer that was not whole
        self._shorts = 0  # above 0 while that was not long ago

    def next_count(self) -> int:
        """Return what the next pull asks for; from time to time more than the answers had."""
        if self._fulls < self._patience:
            return self.count
        self._fulls = 0
        return max(self.count, min(2 * self.count, PULL_MESSAGES, int(self._pull_bytes / self._message_bytes)))

    def expected_bytes(self, count: int) -> float:
        """Return how long an answer of so many messages is, about."""
        return min(self._pull_bytes, count * (self._message_bytes or _GUESSED_BYTES))

    def learn(self, asked: int, found: int, size: int) -> None:
        """Take notice of an answer of ``found`` messages, at least one, in ``size`` bytes."""
        self._message_bytes = max(1.0, size / found)
        if not self.count:
            if found < asked or asked >= PULL_MESSAGES:
                self.count = found
        elif asked > self.count:
            self._patience = _FIRST_PATIENCE if found > self.count else min(4 * self._patience, _LAST_PATIENCE)
            self.count = max(self.count, found)
        elif found < asked:
            if self._shorts:
                # A broker that is busy gives little for a moment.
                self.count = max(found, self._short, self.count // 2)
            self._fulls, self._short = 0, found
            self._shorts = 0 if self._shorts else _SHORT_SHARE
        elif asked == self.count:
            self._fulls += 1
            self._shorts = max(0, self._shorts - 1)


class Pull:
    """A pull of the offsets from ``begin`` up to ``end``.

    expected_bytes  of its answer, about
    sent            whatever it was sent as; its sender's alone
    from_slave      whether a slave was asked, which may lag
    """

    __slots__ = ("begin", "end", "expected_bytes", "from_slave", "sent")

    def __init__(self, begin: int, end: int, expected_bytes: float) -> None:
        self.begin = begin
        self.end = end
        self.expected_bytes = expected_bytes
        self.from_slave = False
        self.sent: Any = None

    def __len__(self) -> int:
        return self.end - self.begin


class Outcome(NamedTuple):
    """What became of the offsets from ``begin`` up to ``end``; of none where an answer led nowhere.

    found    the answer holds their messages, or those that a filter wants
    lost     their messages are not there any more
    dropped  pulls whose answers are of no use now
    """

    begin: int
    end: int
    found: bool
    lost: bool
    dropped: tuple[Pull, ...]


class RangePlan:
    """The pulls of one range, in order, and how far their answers have come.

    dense   every message is wanted; else a filter says which
    offset  all before it was found, passed over by the filter, or is lost
    """

    __slots__ = ("_dense", "_has_holes", "_pulls", "_stride", "end", "offset")

    def __init__(self, begin: int, end: int, stride: Stride, *, dense: bool) -> None:
        self.offset = begin
        self.end = end
        self._dense = dense
        self._has_holes = False
        self._pulls: deque[Pull] = deque()
        self._stride = stride

    @property
    def done(self) -> bool:
        """Whether nothing is left to be pulled."""
        return self.offset >= self.end

    @property
    def head(self) -> Pull | None:
        """The pull whose answer is the next one to be judged; None while it was not made."""
        return self._pulls[0] if self._pulls and self._pulls[0].begin == self.offset else None

    def __iter__(self) -> Iterator[Pull]:
        return iter(self._pulls)

    def next_pull(self) -> Pull | None:
        """Return a pull that can be sent now, the first hole's before others; None: an answer has to come first."""
        pulls = self._pulls
        if self._has_holes:
            begin = self.offset
            for index, pull in enumerate(pulls):
                if begin < pull.begin:
                    return self._insert(index, begin, min(pull.begin, begin + self._stride.count))
                begin = pull.end
            self._has_holes = False
        begin = pulls[-1].end if pulls else self.offset
        if begin >= self.end:
            return None
        if not self._dense:
            return None if pulls else self._insert(0, begin, self.end)
        count = self._stride.next_count()
        if count:
            return self._insert(len(pulls), begin, min(self.end, begin + count))
        return None if pulls else self._insert(0, begin, min(self.end, begin + PULL_MESSAGES))

    def answered(self, head: PullHead, size: int) -> Outcome:
        """Judge the answer to the pull at the head, whose body is ``size`` bytes long."""
        pull = self._pulls.popleft()
        begin = pull.begin
        found, passed = head.status is PullStatus.FOUND, head.status is PullStatus.NO_MATCHED_MSG
        following = max(begin, head.next_begin_offset)
        if found:
            following = min(pull.end, following)
        elif not passed:
            if pull.from_slave:
                following = begin  # it may lag: what a slave does not have its master is asked for
            elif begin < head.min_offset:
                following = head.min_offset
            elif begin >= head.max_offset:
                following = self.end
        following = min(self.end, following)
        moved = following > begin
        if found and moved and self._dense:
            self._stride.learn(len(pull), following - begin, size)
        dropped = self._move(following)
        return Outcome(
            begin, following, found and moved, moved and not (found or (passed and not self._dense)), dropped
        )

    def give_up(self) -> Outcome:
        """Take all that is left for lost: answers have led nowhere for too long."""
        begin = self.offset
        return Outcome(begin, self.end, False, True, self._move(self.end))

    def drop_others(self, pull: Pull | None) -> tuple[Pull, ...]:
        """Forget all pulls but one, and return them."""
        dropped = tuple(each for each in self._pulls if each is not pull)
        self._pulls = deque(each for each in self._pulls if each is pull)
        return dropped

    def _insert(self, index: int, begin: int, end: int) -> Pull:
        pull = Pull(begin, end, self._stride.expected_bytes(end - begin))
        self._pulls.insert(index, pull)
        return pull

    def _move(self, offset: int) -> tuple[Pull, ...]:
        """Go on at an offset; return the pulls that begin before it."""
        self.offset = offset
        pulls, dropped = self._pulls, []
        while pulls and pulls[0].begin < offset:
            dropped.append(pulls.popleft())
        self._has_holes = bool(pulls) and (self._has_holes or pulls[0].begin > offset)
        return tuple(dropped)
