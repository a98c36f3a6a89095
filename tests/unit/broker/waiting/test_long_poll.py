"""Held pulls: what wakes them, what does not."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from typing import cast

import pytest

from rocketcore.broker.selection import FILTER_HEADER_LIMIT, SELECT_ALL, Selection, select_by_tags
from rocketcore.broker.waiting.long_poll import PER_CONNECTION, PER_QUEUE, LongPoll, PendingPull
from rocketcore.broker.waiting.pending_requests import MOST_TEXT
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import PullMessageRequestHeader
from rocketcore.service import ManualClock
from rocketcore.transport.channel import Channel
from tests.unit.broker.fakes import FakeChannel


def pull_header(queue_id: int, queue_offset: int) -> PullMessageRequestHeader:
    return PullMessageRequestHeader(
        consumer_group="g",
        topic="T",
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_nums=32,
        sys_flag=2,
        commit_offset=0,
        suspend_timeout_millis=15_000,
        sub_version=0,
    )


class Scene:
    """A LongPoll whose resumed pulls are collected."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.newest = 10
        self.resumed: list[PendingPull] = []
        self.polls = LongPoll(self.resumed.append, lambda topic, queue_id: self.newest, clock=self.clock)
        self.channel = cast(Channel, FakeChannel())

    def hold(self, codes: list[int] | None = None, *, offset: int = 10, seconds: float = 15.0) -> PendingPull:
        wanted = SELECT_ALL if codes is None else Selection(array("q", sorted(codes)), None)
        pull = PendingPull(
            self.channel, RemotingCommand(11), pull_header(0, offset), wanted, self.clock.monotonic() + seconds
        )
        self.polls.hold(pull)
        return pull


def play(scenario: Callable[[Scene], list[PendingPull]]) -> None:
    """Run a scenario on a loop, let the loop turn, and compare what was resumed with what it returned."""

    async def run() -> None:
        scene = Scene()
        expected = scenario(scene)
        await asyncio.sleep(0)
        assert scene.resumed == expected

    asyncio.run(run())


def test_a_message_wakes_the_pulls_of_its_queue() -> None:
    def scenario(scene: Scene) -> list[PendingPull]:
        pull = scene.hold()
        scene.polls.message_arrived("T", 1, 11, 0)
        scene.polls.message_arrived("U", 0, 11, 0)
        scene.polls.message_arrived("T", 0, 11, 0)
        return [pull]

    play(scenario)


def test_a_deleted_topic_wakes_its_pulls() -> None:
    def scenario(scene: Scene) -> list[PendingPull]:
        pull = scene.hold()
        scene.polls.topics_deleted({"T": 1}.get)
        assert len(scene.polls) == 1
        scene.polls.topics_deleted({"U": 1}.get)
        return [pull]

    play(scenario)


def test_several_messages_of_one_turn_wake_once() -> None:
    def scenario(scene: Scene) -> list[PendingPull]:
        pull = scene.hold()
        for newest in range(11, 40):
            scene.polls.message_arrived("T", 0, newest, 0)
        return [pull]

    play(scenario)


def test_tags_decide() -> None:
    def scenario(scene: Scene) -> list[PendingPull]:
        first, _, third = scene.hold([1, 2]), scene.hold([3]), scene.hold()
        scene.polls.message_arrived("T", 0, 11, 2)
        assert len(scene.polls) == 1
        return [first, third]

    play(scenario)


def test_a_message_before_the_offset_wakes_nobody() -> None:
    def scenario(scene: Scene) -> list[PendingPull]:
        scene.hold(offset=12)
        scene.polls.message_arrived("T", 0, 11, 0)
        return []

    play(scenario)


def test_time_ends_a_pull() -> None:
    def scenario(scene: Scene) -> list[PendingPull]:
        short, _ = scene.hold(seconds=0), scene.hold(seconds=5)
        scene.polls.tick()
        scene.clock.advance(4.9)
        scene.polls.tick()
        return [short]

    play(scenario)


def test_unwanted_messages_end_a_pull_after_a_while() -> None:
    def scenario(scene: Scene) -> list[PendingPull]:
        pull = scene.hold([1])
        scene.newest = 500
        scene.polls.message_arrived("T", 0, 500, 2)
        for _ in range(4):
            scene.polls.tick()
        assert len(scene.polls) == 1
        scene.polls.tick()
        return [pull]

    play(scenario)


def test_a_closed_connection_takes_its_pulls_along() -> None:
    def scenario(scene: Scene) -> list[PendingPull]:
        scene.hold()
        scene.hold([1])
        scene.polls.channel_closed(scene.channel)
        scene.polls.message_arrived("T", 0, 11, 1)
        assert len(scene.polls) == 0
        return []

    play(scenario)


def test_no_more_than_the_capacity_is_held() -> None:
    async def run() -> None:
        clock = ManualClock()
        polls = LongPoll(lambda pull: None, lambda topic, queue_id: 0, capacity=2, clock=clock)
        pulls = [
            PendingPull(cast(Channel, FakeChannel()), RemotingCommand(11), pull_header(number, 0), SELECT_ALL, 10.0)
            for number in range(3)
        ]
        assert [polls.hold(pull) for pull in pulls] == [True, True, False]
        polls.message_arrived("T", 0, 1, 0)
        assert polls.hold(pulls[2])
        assert len(polls) == 2

    asyncio.run(run())


def test_one_connection_cannot_take_the_places_of_all() -> None:
    async def run() -> None:
        polls = LongPoll(lambda pull: None, lambda topic, queue_id: 0, clock=ManualClock())
        greedy, other = cast(Channel, FakeChannel()), cast(Channel, FakeChannel())
        kept = [
            polls.hold(PendingPull(greedy, RemotingCommand(11), pull_header(number, 0), SELECT_ALL, 10.0))
            for number in range(PER_CONNECTION + 5)
        ]
        assert kept == [True] * PER_CONNECTION + [False] * 5
        assert polls.hold(PendingPull(other, RemotingCommand(11), pull_header(0, 0), SELECT_ALL, 10.0))
        polls.channel_closed(greedy)
        assert len(polls) == 1
        assert polls.hold(PendingPull(greedy, RemotingCommand(11), pull_header(0, 0), SELECT_ALL, 10.0))

    asyncio.run(run())


def test_one_message_for_many_is_answered_in_turns_and_to_those_who_take_answers() -> None:
    async def run() -> None:
        clock = ManualClock()
        resumed: list[PendingPull] = []
        all_are = asyncio.Event()

        def resume(pull: PendingPull) -> None:
            resumed.append(pull)
            clock.advance(0.004)
            if len(resumed) == 20:
                all_are.set()

        polls = LongPoll(resume, lambda topic, queue_id: 0, clock=clock)
        reads, stuck = cast(Channel, FakeChannel()), FakeChannel()
        stuck.write_paused = True
        for number in range(20):
            channel = reads if number % 2 else cast(Channel, stuck)
            polls.hold(PendingPull(channel, RemotingCommand(11), pull_header(0, 0), SELECT_ALL, 10.0))
        polls.message_arrived("T", 0, 1, 0)
        for count in range(1, 11):
            await asyncio.sleep(0)
            assert len(resumed) == count
        assert {pull.channel for pull in resumed} == {reads}
        stuck.write_paused = False
        await asyncio.wait_for(all_are.wait(), 10)
        stuck.write_paused = True
        polls.hold(PendingPull(cast(Channel, stuck), RemotingCommand(11), pull_header(0, 0), SELECT_ALL, 10.0))
        polls.message_arrived("T", 0, 1, 0)
        await asyncio.sleep(0)
        polls.channel_closed(cast(Channel, stuck))
        assert not polls._unread
        await polls.stop()

    asyncio.run(run())


def test_one_queue_holds_so_many() -> None:
    async def run() -> None:
        polls = LongPoll(lambda pull: None, lambda topic, queue_id: 0, clock=ManualClock())
        connections = [cast(Channel, FakeChannel()) for _ in range(11)]
        kept = [
            polls.hold(PendingPull(connections[number % 11], RemotingCommand(11), pull_header(0, 0), SELECT_ALL, 10.0))
            for number in range(PER_QUEUE + 5)
        ]
        assert kept == [True] * PER_QUEUE + [False] * 5
        assert polls.hold(PendingPull(connections[0], RemotingCommand(11), pull_header(1, 0), SELECT_ALL, 10.0))

    asyncio.run(run())


@pytest.mark.parametrize("field", ["subscription", "expression_type", "lite_topic", "ns"])
def test_long_texts_are_held_within_bounds(field: str) -> None:
    text = "x" * (FILTER_HEADER_LIMIT - 100)

    def pull(channel: Channel) -> PendingPull:
        header = pull_header(0, 0)
        setattr(header, field, text)
        request = RemotingCommand(11, remark=text, ext_fields={"unknown": text}, body=b"x")
        pulls.append(PendingPull(channel, request, header, SELECT_ALL, 10.0))
        return pulls[-1]

    pulls: list[PendingPull] = []

    async def run() -> None:
        polls = LongPoll(lambda pull: None, lambda topic, queue_id: 0, clock=ManualClock())
        connections = [cast(Channel, FakeChannel()) for _ in range(6)]
        most = MOST_TEXT // FILTER_HEADER_LIMIT
        kept = [[polls.hold(pull(each)) for _ in range(most)].count(True) for each in connections]
        assert kept == [most // 4] * 4 + [0, 0]
        assert pulls[0].request.ext_fields is pulls[0].request.remark is None, "of the request only the head is kept"  # type: ignore[comparison-overlap]
        assert polls.hold(PendingPull(connections[5], RemotingCommand(11), pull_header(0, 0), SELECT_ALL, 10.0))
        polls.channel_closed(connections[0])
        assert polls.hold(pull(connections[5]))

    asyncio.run(run())


def test_a_tick_asks_only_for_queues_whose_messages_were_passed_by() -> None:
    async def run() -> None:
        clock = ManualClock()
        asked: list[tuple[str, int]] = []

        def max_offset(topic: str, queue_id: int) -> int:
            asked.append((topic, queue_id))
            return 11

        resumed: list[PendingPull] = []
        polls = LongPoll(resumed.append, max_offset, clock=clock)
        channel = cast(Channel, FakeChannel())
        pulls = [
            PendingPull(channel, RemotingCommand(11), pull_header(number, 10), select_by_tags("\x01"), 100.0)
            for number in range(500)
        ]
        for pull in pulls:
            polls.hold(pull)
        polls.message_arrived("T", 7, 11, 2)
        for _ in range(20):
            polls.tick()
        assert asked == [("T", 7)]
        await asyncio.sleep(0)
        assert resumed == [pulls[7]]
        clock.advance(100)
        polls.tick()
        assert len(polls) == 0

    asyncio.run(run())


def test_stopping_answers_everyone() -> None:
    async def run() -> None:
        scene = Scene()
        pulls = [scene.hold(), scene.hold([1])]
        await scene.polls.stop()
        assert scene.resumed == pulls
        assert len(scene.polls) == 0

    asyncio.run(run())


# Filters by properties


class Search:
    """Answers as it is told: the offset to look from next, or None to have the pull executed."""

    def __init__(self, *answers: int | None) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []

    def __call__(self, offset: int) -> int | None:
        self.asked.append(offset)
        return self.answers.pop(0)


def test_a_pull_by_properties_is_woken_by_what_its_search_finds() -> None:
    async def run() -> None:
        scene, search = Scene(), Search(13, None)
        pull = scene.hold()
        pull.search = search
        for newest in (11, 12, 13):
            scene.polls.message_arrived("T", 0, newest, 0)
        await asyncio.sleep(0)
        assert (search.asked, scene.resumed, len(scene.polls)) == ([10], [], 1)
        scene.polls.message_arrived("T", 0, 14, 0)
        await asyncio.sleep(0)
        assert (search.asked, scene.resumed, len(scene.polls)) == ([10, 13], [pull], 0)

    asyncio.run(run())


def test_no_search_for_a_pull_that_ended_in_the_same_turn() -> None:
    async def run() -> None:
        scene, search = Scene(), Search()
        gone, over = scene.hold(seconds=1), scene.hold(seconds=1)
        other = cast(Channel, FakeChannel())
        gone.search = over.search = search
        elsewhere = PendingPull(other, RemotingCommand(11), pull_header(0, 10), SELECT_ALL, 100.0, search)
        scene.polls.hold(elsewhere)
        scene.polls.message_arrived("T", 0, 11, 0)
        scene.clock.advance(2)
        scene.polls.tick()
        scene.polls.channel_closed(other)
        await asyncio.sleep(0)
        assert (search.asked, scene.resumed, len(scene.polls)) == ([], [gone, over], 0)

    asyncio.run(run())


def test_a_pull_by_properties_is_moved_past_what_it_does_not_want() -> None:
    async def run() -> None:
        scene = Scene()
        pull = scene.hold(seconds=100)
        pull.search = Search(11)
        scene.polls.message_arrived("T", 0, 11, 0)
        scene.newest = 11
        await asyncio.sleep(0)
        for _ in range(5):
            scene.polls.tick()
        await asyncio.sleep(0)
        assert scene.resumed == [pull]

    asyncio.run(run())
