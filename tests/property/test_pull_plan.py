"""Pulls of a range: whatever brokers answer, and in which order, each offset is found once or named as lost."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcore.client.api import PullHead, PullStatus
from rocketcore.client.pull_plan import PULL_MESSAGES, Outcome, Pull, RangePlan, Stride

PULL_BYTES = 10_000


@dataclass
class Broker:
    """One queue of a broker.

    longest      messages of an answer; message_bytes of each
    unsteady     how often, of 100 times, something happens that does not follow from the request
    """

    low: int
    high: int
    longest: int
    message_bytes: int
    unsteady: int
    rng: Random
    removed: set[int] = field(default_factory=set)

    def happens(self) -> bool:
        return self.rng.randrange(100) < self.unsteady

    def live(self) -> None:
        """Let time pass: old messages expire, new ones arrive, rarely the topic is made anew."""
        if self.happens():
            self.low = min(self.high, self.low + self.rng.randrange(50))
        if self.happens():
            self.high += self.rng.randrange(50)
        if self.happens() and self.rng.random() < 0.05:
            self.low, self.high = 0, self.rng.randrange(max(1, self.high))

    def answer(self, pull: Pull) -> tuple[PullHead, int]:
        """Answer as brokers do; returns the bytes of the body too."""
        begin = pull.begin
        if not self.low <= begin < self.high:
            status = self.rng.choice([PullStatus.OFFSET_ILLEGAL, PullStatus.NO_NEW_MSG])
            return PullHead(status, self.rng.choice([begin, self.low, self.high]), self.low, self.high, 0, 0, False), 0
        most = min(self.longest, min(len(pull), PULL_MESSAGES), self.high - begin, PULL_BYTES // self.message_bytes)
        count = max(1, most)
        if self.happens():
            count = self.rng.randint(1, min(self.high - begin, count + 3))  # a few more than were asked for, too
        if self.happens():
            status = self.rng.choice(list(PullStatus))
            if status is PullStatus.NO_MATCHED_MSG:
                self.removed.update(range(begin, begin + count))
                return PullHead(status, begin + count, self.low, self.high, 0, 0, False), 0
            if status is not PullStatus.OFFSET_ILLEGAL:
                return PullHead(status, begin, self.low, self.high, 0, 0, False), 0
        return PullHead(PullStatus.FOUND, begin + count, self.low, self.high, 0, 0, False), count * self.message_bytes


def read(plan: RangePlan, broker: Broker, most: int) -> tuple[list[Outcome], int]:
    """Read a range, up to ``most`` pulls under way, answered in any order; returns the outcomes and the pulls sent."""
    rng = broker.rng
    outcomes: list[Outcome] = []
    sent = still = 0
    while not plan.done:
        while len(list(plan)) < most or plan.head is None:
            pull = plan.next_pull()
            if pull is None:
                break
            sent += 1
            assert plan.offset <= pull.begin < pull.end <= plan.end
        head = plan.head
        assert head is not None, "the pull that all wait for was not made"
        edges = deque([(each.begin, each.end) for each in plan])
        assert all(before[1] <= after[0] for before, after in zip(list(edges), list(edges)[1:], strict=False))
        # Any of them is answered next, with what the broker has then.
        waiting = [each for each in plan if each.sent is None]
        if head.sent is None and not broker.happens():
            waiting = [head]
        if waiting:
            broker.live()
            chosen = rng.choice(waiting)
            if broker.happens():
                plan.drop_others(chosen if chosen is head else None)  # the connection broke
                continue
            chosen.sent = broker.answer(chosen)
        if plan.head is None or plan.head.sent is None:
            continue
        pull = plan.head
        reply, size = pull.sent
        outcome = plan.answered(reply, size)
        if outcome.found:
            assert reply.status is PullStatus.FOUND
            assert pull.begin <= outcome.begin <= outcome.end <= min(pull.end, reply.next_begin_offset)
        if outcome.end == outcome.begin:
            assert broker.unsteady, "an answer that is no surprise led nowhere"
            still += 1
            if still < 20:
                continue
            outcome = plan.give_up()
        still = 0
        outcomes.append(outcome)
    return outcomes, sent


STRIDES = st.sampled_from([1, 8, 32, 100, PULL_MESSAGES])
SIZES = st.sampled_from([10, 100, 333, 20_000])


@settings(max_examples=250, deadline=None)
@given(
    st.integers(0, 300), st.integers(1, 900), st.integers(0, 300), st.integers(0, 1200), STRIDES, SIZES,
    st.sampled_from([0, 3, 30]), st.sampled_from([1, 2, 16]), st.integers(0, 1 << 30),
)  # fmt: skip
def test_every_offset_is_found_once_or_lost(
    start: int, count: int, low: int, length: int, longest: int, size: int, unsteady: int, most: int, seed: int
) -> None:
    broker = Broker(low, low + length, longest, size, unsteady, Random(seed))
    plan = RangePlan(start, start + count, Stride(PULL_BYTES), dense=True)
    outcomes, _ = read(plan, broker, most)
    position = start
    for outcome in outcomes:
        assert outcome.begin == position
        assert outcome.end > position
        assert outcome.found != outcome.lost
        position = outcome.end
    assert position == start + count
    if not unsteady:
        found = {offset for each in outcomes if each.found for offset in range(each.begin, each.end)}
        assert found == set(range(start, start + count)) & set(range(low, low + length))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 900), STRIDES, st.sampled_from([1, 16]), st.integers(0, 1 << 30))
def test_with_a_filter_the_answers_lead(count: int, longest: int, most: int, seed: int) -> None:
    """An answer goes on beyond the messages that were asked for, and none under way begins at a guess."""
    rng = Random(seed)
    plan = RangePlan(0, count, Stride(PULL_BYTES), dense=False)
    position = 0
    while not plan.done:
        pull = plan.next_pull()
        assert pull is not None
        assert (pull.begin, pull.end) == (position, count)
        assert all(plan.next_pull() is None for _ in range(most))
        following = position + rng.randint(1, longest)
        status = rng.choice([PullStatus.FOUND, PullStatus.NO_MATCHED_MSG])
        outcome = plan.answered(PullHead(status, following, 0, 2 * count, 0, 0, False), 100)
        assert (outcome.begin, outcome.end) == (position, min(count, following))
        assert outcome.found is (status is PullStatus.FOUND)
        assert not outcome.lost
        position = outcome.end


@settings(max_examples=60, deadline=None)
@given(STRIDES, st.sampled_from([10, 100, 333]), st.sampled_from([2, 16]), st.integers(0, 1 << 30))
def test_the_length_of_answers_is_learnt(longest: int, size: int, most: int, seed: int) -> None:
    """Where nothing unusual happens, hardly a pull more is sent than one after the other would be."""
    answer = min(longest, PULL_BYTES // size)
    count = 60 * answer
    broker = Broker(0, count, longest, size, 0, Random(seed))
    _, sent = read(RangePlan(0, count, Stride(PULL_BYTES), dense=True), broker, most)
    assert sent <= 60 + 4


def test_longer_answers_are_found_out() -> None:
    """What was on disk came 8 at a time; what is in memory comes 32 at a time, with a short answer at a file's end."""
    stride = Stride(PULL_BYTES)
    counts = []
    position = 0
    while position < 10_000:
        asked = stride.next_count() or PULL_MESSAGES
        longest = 8 if position < 200 else 32
        found = min(asked, longest, 3) if 5000 <= position < 5003 else min(asked, longest)
        stride.learn(asked, found, 10 * found)
        counts.append(stride.count)
        position += found
    assert counts[0] == 8
    assert counts[-1] == 32
    assert counts.count(32) > 0.8 * len(counts)
    assert set(counts) <= {8, 16, 32}


def test_a_whole_small_queue_says_nothing_of_the_broker() -> None:
    stride = Stride(PULL_BYTES)
    stride.learn(3, 3, 30)
    assert stride.next_count() == 0
    assert stride.expected_bytes(10) == 100
    stride.learn(PULL_MESSAGES, PULL_MESSAGES, 10 * PULL_MESSAGES)
    assert stride.next_count() == PULL_MESSAGES


def test_a_broker_that_is_busy_for_a_moment_is_asked_for_as_much_again() -> None:
    stride = Stride(PULL_BYTES)
    stride.learn(PULL_MESSAGES, 1000, PULL_BYTES)
    for _ in range(3):
        stride.learn(stride.next_count(), 32, 320)
    assert 250 <= stride.count < 1000
    for _ in range(40):
        asked = stride.next_count()
        stride.learn(asked, min(1000, asked), 10 * min(1000, asked))
    assert stride.count == 1000
