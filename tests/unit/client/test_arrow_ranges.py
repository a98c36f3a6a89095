"""The offset of a store time, whatever a broker's search makes of it."""

from __future__ import annotations

import asyncio
import bisect
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore.client.arrow_ranges import QueueRange, find_ranges, first_offset, held_ranges, topic_ranges
from rocketcore.client.attempts import Retries
from rocketcore.client.instance import ClientInstance
from rocketcore.codes import RequestCode
from rocketcore.errors import ConnectError, DecodeError
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.stats import TopicOffset, TopicStatsTable
from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import ManualClock

QUEUE = MessageQueue("T", "b", 0)


class Broker:
    """A broker that names any offsets, of all queues together or one by one, and the client around it."""

    def __init__(self, low: int, high: int, *, together: bool) -> None:
        self.low = low
        self.high = high
        self.together = together
        self.away = 0
        self.clock = ManualClock()
        self.remoting = self.routes = self.runtime = self
        self.waited: list[str] = []

    def subscribe_address(self, broker: str) -> tuple[str, int]:
        return "broker:1", 0

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if self.away:
            self.away -= 1
            raise ConnectError("refused")
        answer = RemotingCommand.response(command)
        if command.code == RequestCode.GET_TOPIC_STATS_INFO:
            offsets = {QUEUE: TopicOffset(self.low, self.high)} if self.together else {}
            answer.body = TopicStatsTable(offsets).encode()
        else:
            answer.ext_fields = {"offset": str(self.high if command.code == RequestCode.GET_MAX_OFFSET else self.low)}
        return answer

    async def pause(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.waited.append("pause")

    async def try_refresh(self, topic: str, *, timeout: float) -> None:
        self.waited.append("route")


@pytest.mark.parametrize(
    ("low", "high", "alone"),
    [
        (-5, 10, "min offset of .*queue_id=0.* at broker:1: invalid offset -5"),
        (0, -1, "max offset of .*queue_id=0.* at broker:1: invalid offset -1"),
        (50, 10, "queue_id=0.* holds messages from 50 up to 10: these are not offsets"),
        (0, 1 << 70, "offset"),
    ],
)
def test_what_is_no_offset_is_refused(low: int, high: int, alone: str) -> None:
    instance = cast(ClientInstance, Broker(low, high, together=False))
    with pytest.raises(DecodeError, match=alone) as caught:
        asyncio.run(find_ranges(instance, [QUEUE], "first", "last", Retries(5, ManualClock()), 5))
    assert "\n" not in str(caught.value)
    instance = cast(ClientInstance, Broker(low, high, together=True))
    with pytest.raises(DecodeError, match=r"^offsets of topic 'T' at broker:1: ") as caught:
        asyncio.run(topic_ranges(instance, "T", "b", [QUEUE], 5))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("together", [True, False])
def test_a_broker_that_is_away_is_asked_until_it_is_back(together: bool) -> None:
    broker = Broker(3, 7, together=together)
    instance, retries = cast(ClientInstance, broker), Retries(120, broker.clock)
    broker.away = 5
    assert asyncio.run(held_ranges(instance, [QUEUE], retries, 5)) == {QUEUE: QueueRange(QUEUE, 3, 7)}
    assert broker.waited == ["pause", "route"] * 5
    broker.away = 1 << 20
    with pytest.raises(ConnectError, match=r"refused \(\d+ attempts within 120 s\)"):
        asyncio.run(held_ranges(instance, [QUEUE], retries, 5))


def found(times: list[int], low: int, wanted: int, hint: int) -> tuple[int, int]:
    """The offset, and how many messages were looked at; ``times[0]`` is that of offset ``low``."""
    looks = 0

    async def older(offset: int) -> bool:
        nonlocal looks
        looks += 1
        assert low <= offset < low + len(times)
        return times[offset - low] < wanted

    return asyncio.run(first_offset(older, low, low + len(times), hint)), looks


def answer_of_4_9(times: list[int], low: int, wanted: int) -> int:
    """broker.md 28.2: an exact hit, any of several; else the nearer neighbour; the last when all are older."""
    right = bisect.bisect_right(times, wanted) - 1
    if right >= 0 and times[right] == wanted:
        return low + right
    at = bisect.bisect_left(times, wanted)
    if at == len(times):
        return low + at - 1
    if at == 0:
        return low
    return low + (at - 1 if wanted - times[at - 1] <= times[at] - wanted else at)


TIMES = st.lists(st.integers(0, 30), min_size=1, max_size=40).map(sorted)


@given(TIMES, st.integers(0, 1000), st.integers(-1, 32))
def test_brokers_of_4_9(times: list[int], low: int, wanted: int) -> None:
    assert found(times, low, wanted, answer_of_4_9(times, low, wanted))[0] == low + bisect.bisect_left(times, wanted)


@given(TIMES, st.integers(0, 1000), st.integers(-1, 32))
def test_brokers_of_5_x_are_looked_at_twice(times: list[int], low: int, wanted: int) -> None:
    right = low + bisect.bisect_left(times, wanted)
    offset, looks = found(times, low, wanted, right)
    assert offset == right
    assert looks <= 2


@given(TIMES, st.integers(0, 1000), st.integers(-1, 32), st.integers(-5, 2000))
def test_any_hint(times: list[int], low: int, wanted: int, hint: int) -> None:
    offset, looks = found(times, low, wanted, hint)
    assert offset == low + bisect.bisect_left(times, wanted)
    assert looks <= 10


@pytest.mark.parametrize(("hint", "low"), [(0, 0), (7, 7), (0, 5), (9, 5)])
def test_an_empty_queue(hint: int, low: int) -> None:
    assert found([], low, 5, hint) == (low, 0)
