"""POPs that wait for a message, and who asks to be told of one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from rocketcore.broker.pop import poll as pop_poll
from rocketcore.broker.pop import service as pop_service
from rocketcore.broker.pop.poll import PendingPop, PopPoll, Wanted
from rocketcore.broker.selection import SELECT_ALL
from rocketcore.broker.waiting.long_poll import LongPoll, PendingPull
from rocketcore.broker.waiting.pending_requests import LONGEST_SECONDS
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.bodies.topic import TopicConfig
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import ResetOffsetRequestHeader
from rocketcore.protocol.headers.pop import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
)
from rocketcore.service import SYSTEM_CLOCK, ManualClock
from rocketcore.transport.channel import Channel
from rocketcore.transport.client import RemotingClient
from tests.integration.broker_client import BrokerClient, running_broker
from tests.integration.pop_client import GROUP, ack, ack_batch, ask_pop, pop, reset, until
from tests.integration.test_broker_pop import clocked_broker, revive
from tests.unit.broker.fakes import FakeChannel


def waiting(client: BrokerClient) -> int:
    return len(client.broker._pop_processor.poll)


async def notify(client: BrokerClient, topic: str, poll_time: int, born_time: int | None = None) -> bool:
    born = SYSTEM_CLOCK.time_millis() if born_time is None else born_time
    header = NotificationRequestHeader(
        consumer_group=GROUP, topic=topic, queue_id=-1, poll_time=poll_time, born_time=born
    )
    answer = await client.ask(RequestCode.NOTIFICATION, header)
    assert answer.code == 0
    return answer.header(NotificationResponseHeader).has_msg


async def polling(client: BrokerClient, topic: str, queue_id: int) -> int:
    header = PollingInfoRequestHeader(consumer_group=GROUP, topic=topic, queue_id=queue_id)
    return (await client.ask(RequestCode.POLLING_INFO, header)).header(PollingInfoResponseHeader).polling_num


def test_each_message_wakes_one_of_those_that_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            await client.send("T", b"first")
            assert len(await pop(client, "T")) == 1
            pops = [asyncio.create_task(pop(client, "T", poll_time=8_000)) for _ in range(3)]
            await until(lambda: waiting(client) == 3)
            await client.send("T", b"1")
            done, left = await asyncio.wait(pops, return_when=asyncio.FIRST_COMPLETED)
            assert [[message.body for message in task.result()] for task in done] == [[b"1"]]
            assert (waiting(client), await polling(client, "T", -1), await polling(client, "T", 0)) == (2, 2, 0)
            await client.send("T", b"2", queue_id=1)
            await client.send("T", b"3", queue_id=2)
            bodies = [message.body for each in await asyncio.gather(*left) for message in each]
            assert sorted(bodies) == [b"2", b"3"]

    asyncio.run(main())


def test_a_message_of_another_tag_wakes_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            await client.send("T", b"first")
            assert len(await pop(client, "T")) == 1
            wants = asyncio.create_task(pop(client, "T", poll_time=8_000, exp="b", exp_type="TAG"))
            await until(lambda: waiting(client) == 1)
            await client.send("T", b"1", properties={"TAGS": "a"})
            assert not wants.done()
            await client.send("T", b"2", properties={"TAGS": "b"})
            assert [message.body for message in await wants] == [b"2"]

    asyncio.run(main())


def test_a_reset_wakes_those_of_the_group_that_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            await client.send("T", b"1")
            await client.send("T", b"2", queue_id=1)
            for message in [*await pop(client, "T"), *await pop(client, "T")]:
                assert (await ack(client, message)).code == 0
            pops = [asyncio.create_task(pop(client, "T", poll_time=3_000)) for _ in range(2)]
            await until(lambda: waiting(client) == 2)
            reset = ResetOffsetRequestHeader(topic="T", group=GROUP, timestamp=0, force=True)
            assert (await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
            bodies = [message.body for each in await asyncio.gather(*pops) for message in each]
            assert sorted(bodies) == [b"1", b"2"]

    asyncio.run(main())


def test_a_pop_that_waits_in_vain_is_told_so(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            await client.send("T")
            assert len(await pop(client, "T", clock=clock)) == 1
            held = asyncio.create_task(ask_pop(client, "T", clock=clock, poll_time=5_000))
            told = asyncio.create_task(notify(client, "T", 5_000, clock.time_millis()))
            await until(lambda: waiting(client) == 2)
            poll = client.broker._pop_processor.poll
            clock.advance(4.9)
            poll.tick()
            await asyncio.sleep(0)
            assert waiting(client) == 2
            clock.advance(0.2)
            poll.tick()
            answer = await held
            assert (answer.code, answer.remark) == (210, "NO_MESSAGE_IN_QUEUE")
            assert not await told

    asyncio.run(main())


def test_what_comes_again_wakes_a_pop_too(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            await client.send("T", b"1")
            assert len(await pop(client, "T", clock=clock, invisible_time=10_000)) == 1
            clock.advance(11)
            held = asyncio.create_task(pop(client, "T", clock=clock, poll_time=8_000))
            await until(lambda: waiting(client) == 1)
            await revive(client)
            (again,) = await held
            assert (again.body, again.reconsume_times) == (b"1", 1)
            assert (await ack(client, again)).code == 0

    asyncio.run(main())


def test_a_notification_tells_whether_there_is_something(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            await client.send("T")
            assert await notify(client, "T", 0)
            assert len(await pop(client, "T")) == 1
            assert not await notify(client, "T", 0)
            told = asyncio.create_task(notify(client, "T", 8_000))
            await until(lambda: waiting(client) == 1)
            await client.send("T")
            assert await told
            assert len(await pop(client, "T")) == 1

    asyncio.run(main())


@pytest.mark.parametrize("of_topic", [False, True], ids=["group", "topic"])
def test_too_many_that_wait_are_told_so_and_those_of_a_closed_connection_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_topic: bool
) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            if of_topic:
                monkeypatch.setattr(pop_poll, "PER_TOPIC", 2)
            else:
                client.broker._pop_processor.poll._per_key = 2
            await client.send("T")
            assert len(await pop(client, "T")) == 1
            async with RemotingClient() as leaving:
                other = BrokerClient(client.broker, leaving)
                held = [asyncio.create_task(ask_pop(other, "T", poll_time=8_000)) for _ in range(2)]
                await until(lambda: waiting(client) == 2)
                answer = await ask_pop(client, "T", poll_time=8_000)
                assert (answer.code, answer.remark) == (209, "POLLING_FULL")
            await until(lambda: waiting(client) == 0)
            await asyncio.gather(*held, return_exceptions=True)
            assert client.broker._pop_processor.poll._listening == {}
            assert not client.broker._pop_processor.poll._of_topic

    asyncio.run(main())


def test_nothing_is_held_for_a_connection_that_closed_nor_for_years() -> None:
    """Pulls and POPs are held by the same rule."""

    async def main() -> None:
        clock, ended = ManualClock(), []
        polls = LongPoll(ended.append, lambda topic, queue_id: 0, clock=clock)
        channel = FakeChannel()

        def pull() -> PendingPull:
            header = BrokerClient.pull_header("T")
            return PendingPull(cast(Channel, channel), RemotingCommand(11), header, SELECT_ALL, clock.monotonic() + 1e9)

        held = pull()
        assert polls.hold(held)
        clock.advance(LONGEST_SECONDS + 1)
        polls.tick()
        await asyncio.sleep(0)
        assert (ended, len(polls)) == ([held], 0)
        channel.close()
        assert not polls.hold(pull())
        assert (len(polls), polls._held, polls._by_channel) == (0, {}, {})

    asyncio.run(main())


@pytest.mark.parametrize("asks", ["pop", "notify"])
def test_a_pop_waits_for_an_hour_at_most(tmp_path: Path, asks: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            await client.send("T")
            assert len(await pop(client, "T", clock=clock)) == 1
            long = 10**12
            held: asyncio.Task[Any] = asyncio.create_task(
                pop(client, "T", clock=clock, poll_time=long)
                if asks == "pop"
                else notify(client, "T", long, clock.time_millis())
            )
            await until(lambda: waiting(client) == 1)
            clock.advance(LONGEST_SECONDS - 1)
            client.broker._pop_processor.poll.tick()
            assert waiting(client) == 1
            clock.advance(2)
            client.broker._pop_processor.poll.tick()
            assert not await held
            assert waiting(client) == 0

    asyncio.run(main())


class Turns(FakeChannel):
    """A connection whose answers begin when ``goes_on`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()

    async def turn(self) -> None:
        await self.goes_on.wait()


@pytest.mark.parametrize("closes", ["before", "unread", "woken", "turn", "looks"])
def test_the_next_is_woken_where_the_connection_of_one_closes_before_it_has_looked(closes: str) -> None:
    async def main() -> None:
        poll = PopPoll(clock=ManualClock())
        looked: list[Turns] = []

        def held(channel: Turns, queue_id: int) -> PendingPop:
            async def again(_: float) -> None:
                if channel is dead and closes == "looks":
                    channel.close()
                else:
                    looked.append(channel)

            wanted = Wanted(("T", GROUP), queue_id, SELECT_ALL)
            return PendingPop(cast(Channel, channel), RemotingCommand(200050), wanted, 0, 10.0, again)

        dead, elsewhere, live = Turns(), Turns(), Turns()
        for channel, queue_id in ((dead, -1), (elsewhere, 1), (live, 0)):
            assert poll.hold(held(channel, queue_id))
        elsewhere.goes_on.set()
        live.goes_on.set()
        if closes == "before":
            dead.close()
        dead.write_paused = closes == "unread"
        poll.message_arrived("T", 0, None)
        if closes == "woken":
            dead.close()
        for _ in range(3):
            await asyncio.sleep(0)
        assert (looked == [live]) == (closes in ("before", "woken"))
        if closes == "turn":
            dead.close()
        elif closes == "unread":
            dead.close()
            poll.channel_closed(cast(Channel, dead))
        dead.goes_on.set()
        await until(lambda: bool(looked) and not poll._tasks)
        assert looked == [live]
        await poll.stop()

    asyncio.run(main())


def test_who_is_told_of_a_message_leaves_it_to_a_pop(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            await client.send("T", b"first")
            assert len(await pop(client, "T")) == 1
            told = [asyncio.create_task(notify(client, "T", 8_000)) for _ in range(2)]
            await until(lambda: waiting(client) == 2)
            popping = asyncio.create_task(pop(client, "T", poll_time=8_000))
            await until(lambda: waiting(client) == 3)
            assert await polling(client, "T", -1) == 1
            await client.send("T", b"1")
            assert [message.body for message in await popping] == [b"1"]
            await until(lambda: any(each.done() for each in told))
            assert waiting(client) == 1, "the other is told of the next one"
            await client.send("T", b"2")
            assert await asyncio.gather(*told) == [True, True]

    asyncio.run(main())


def test_a_pop_that_may_not_look_any_more_leaves_its_message_to_others(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            topics = client.broker._context.topics
            topics.update(TopicConfig("T", 8, 8, 6))
            await client.send("T", b"0")
            assert len(await pop(client, "T", clock=clock, invisible_time=1_500)) == 1
            refused = asyncio.create_task(ask_pop(client, "T", clock=clock, poll_time=8_000, queue_id=5))
            await until(lambda: waiting(client) == 1)
            live = asyncio.create_task(pop(client, "T", clock=clock, poll_time=8_000))
            await until(lambda: waiting(client) == 2)
            topics.table["T"] = TopicConfig("T", 2, 2, 6)  # which nobody has heard of
            clock.advance(2)
            await revive(client)
            assert (await refused).code == ResponseCode.INVALID_PARAMETER
            assert [message.body for message in await live] == [b"0"]

    asyncio.run(main())


def test_a_pop_of_nothing_does_not_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            await client.send("T", b"first")
            for count in (0, -1):
                answer = await ask_pop(client, "T", poll_time=8_000, max_msg_nums=count)
                assert answer.code == ResponseCode.POLLING_TIMEOUT
            assert len(await pop(client, "T")) == 1

    asyncio.run(main())


def test_who_waits_looks_at_queues_that_a_topic_gets(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            topics = client.broker._context.topics
            topics.update(TopicConfig("T", 1, 4, 6))
            popping = asyncio.create_task(pop(client, "T", poll_time=8_000))
            await until(lambda: waiting(client) == 1)
            await client.send("T", b"1", queue_id=3)
            await until(lambda: waiting(client) == 1)
            assert not popping.done()
            topics.update(TopicConfig("T", 4, 4, 6))
            assert [message.body for message in await popping] == [b"1"]

    asyncio.run(main())


def test_a_filter_finds_what_lies_behind_many_others(tmp_path: Path) -> None:
    """More than one look goes through; other queues have their turn in between."""

    async def main() -> None:
        async with running_broker(tmp_path) as client:
            for _ in range(28):
                await client.send_batch("T", [b"x"] * 500, properties={"TAGS": "a"})
            await client.send("T", b"wanted", properties={"TAGS": "b"})
            assert await pop(client, "T", exp="b", exp_type="TAG") == [], "one that does not wait looks once"
            assert (await reset(client, "T", timestamp=0)).code == 0
            messages = await pop(client, "T", poll_time=8_000, exp="b", exp_type="TAG")
            assert [message.body for message in messages] == [b"wanted"]

    asyncio.run(main())


def test_who_waits_for_room_gets_it_with_an_acknowledgement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_service, "PER_QUEUE", 2)

    async def main() -> None:
        async with running_broker(tmp_path) as client:
            for number in range(4):
                await client.send("T", b"%d" % number)
            first = await pop(client, "T")
            assert [message.body for message in first] == [b"0", b"1"]
            popping = asyncio.create_task(pop(client, "T", poll_time=8_000))
            others = asyncio.create_task(pop(client, "T", poll_time=8_000, consumer_group="others"))
            assert len(await others) == 2
            await until(lambda: waiting(client) == 1)
            assert (await ack(client, first[1])).code == 0
            assert [message.body for message in await popping] == [b"2"]

    asyncio.run(main())


def test_all_who_wait_for_room_get_it_with_acknowledgements_of_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_service, "PER_QUEUE", 2)

    async def main() -> None:
        async with running_broker(tmp_path) as client:
            for number in range(4):
                await client.send("T", b"%d" % number)
            first = [*await pop(client, "T", max_msg_nums=1), *await pop(client, "T", max_msg_nums=1)]
            assert len(first) == 2
            popping = [asyncio.create_task(pop(client, "T", poll_time=30_000, max_msg_nums=1)) for _ in range(2)]
            await until(lambda: waiting(client) == 2)
            assert (await ack_batch(client, first)).code == 0
            async with asyncio.timeout(10):
                found = [message.body for messages in await asyncio.gather(*popping) for message in messages]
            assert sorted(found) == [b"2", b"3"]

    asyncio.run(main())


def test_what_is_done_of_one_group_wakes_another_where_all_have_as_much_as_they_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those whose turn comes after so many that wait for something else."""
    monkeypatch.setattr(pop_service, "CAPACITY", 2)
    monkeypatch.setattr(pop_poll, "WOKEN_AT_ONCE", 1)

    async def main() -> None:
        async with running_broker(tmp_path) as client:
            for body in (b"1", b"2"):
                await client.send("T", body)
            await client.send("U", b"3")
            first = await pop(client, "T")
            assert len(first) == 2
            idle = [asyncio.create_task(pop(client, "T", poll_time=30_000, max_msg_nums=1)) for _ in range(2)]
            await until(lambda: waiting(client) == 2)
            other = asyncio.create_task(pop(client, "U", consumer_group="others", poll_time=30_000))
            await until(lambda: waiting(client) == 3)
            assert (await ack(client, first[0])).code == 0
            async with asyncio.timeout(10):
                (message,) = await other
            assert message.body == b"3"
            assert waiting(client) == len(idle)
            await client.send("T", b"4", queue_id=0)
            await client.send("T", b"5", queue_id=1)
            assert (await ack(client, message, "others")).code == (await ack(client, first[1])).code == 0
            async with asyncio.timeout(10):
                found = [message.body for messages in await asyncio.gather(*idle) for message in messages]
            assert sorted(found) == [b"4", b"5"]

    asyncio.run(main())
