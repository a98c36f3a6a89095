"""POP in order: a queue waits for what it handed out."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from rocketcore.codes import RequestCode
from rocketcore.protocol.headers.consumer import (
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    ResetOffsetRequestHeader,
)
from rocketcore.service import ManualClock
from tests.integration.broker_client import BrokerClient
from tests.integration.pop_client import GROUP, Popped, ack, ack_batch, ask_pop, hide, pop, until
from tests.integration.test_broker_pop import clocked_broker, revive


def told(messages: list[Popped]) -> list[tuple[bytes, int | None]]:
    return [(message.body, message.count) for message in messages]


async def committed(client: BrokerClient) -> int:
    header = QueryConsumerOffsetRequestHeader(consumer_group=GROUP, topic="T", queue_id=0)
    answer = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
    return answer.header(QueryConsumerOffsetResponseHeader).offset


def test_a_queue_gives_nothing_more_before_all_is_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            ordered = partial(pop, client, "T", clock=clock, order=True, max_msg_nums=3)
            for number in range(6):
                await client.send("T", b"%d" % number)
            await client.send("T", b"elsewhere", queue_id=1)
            first = await ordered(queue_id=0)
            assert told(first) == [(b"0", 0), (b"1", 0), (b"2", 0)]
            assert {message.handle.revive_queue_id for message in first} == {999}
            assert await ordered(queue_id=0) == []
            assert told(await ordered()) == [(b"elsewhere", 0)]
            assert (await ack(client, first[1])).code == 0
            assert await committed(client) == 0
            assert await ordered(queue_id=0) == []
            assert (await ack(client, first[0])).code == 0
            assert await committed(client) == 2
            assert (await ack(client, first[2])).code == 0
            assert await committed(client) == 3
            assert told(await ordered(queue_id=0)) == [(b"3", 0), (b"4", 0), (b"5", 0)]

    asyncio.run(main())


def test_what_is_not_acknowledged_in_time_comes_again_from_where_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            for number in range(5):
                await client.send("T", b"%d" % number)
            first = await pop(client, "T", clock=clock, order=True, max_msg_nums=3)
            assert (await ack(client, first[1])).code == 0
        clock.advance(59)
        async with clocked_broker(tmp_path, clock) as client:
            ordered = partial(pop, client, "T", clock=clock, order=True)
            assert await ordered() == []
            clock.advance(2)
            await revive(client)
            assert await pop(client, "T", clock=clock, consumer_group="others", exp="none", exp_type="TAG") == []
            second = await ordered(max_msg_nums=2)
            assert told(second) == [(b"0", 1), (b"2", 1)]
            assert (await ack(client, first[0])).code == 0  # its handle is an old one
            await hide(client, second[1], 200_000)
            clock.advance(61)
            assert await ordered() == []
            assert (await ack(client, second[0])).code == 0
            clock.advance(140)
            third = await ordered(max_msg_nums=1)
            assert told(third) == [(b"2", 2)]
            assert (await ack_batch(client, third)).code == 0
            assert told(await ordered()) == [(b"3", 0), (b"4", 0)]

    asyncio.run(main())


@pytest.mark.parametrize(("count", "later"), [(2, []), (3, [b"3"]), (32, [b"3", b"4", b"5"])])
def test_new_messages_follow_what_comes_again_at_once(tmp_path: Path, count: int, later: list[bytes]) -> None:
    """What was acknowledged does not come again, though it lies between; and a start finds it all handed out."""

    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            ordered = partial(pop, client, "T", clock=clock, order=True, max_msg_nums=3)
            for number in range(6):
                await client.send("T", b"%d" % number)
            first = await ordered()
            assert (await ack(client, first[1])).code == 0
            await hide(client, first[0], 3_000)
            assert await ordered(attempt_id="a") == []
            clock.advance(61)
            again = await ordered(attempt_id="a", max_msg_nums=count)
            assert told(again) == [(b"0", 1), (b"2", 1), *((body, 0) for body in later)]
            assert [message.handle.start_offset for message in again] == [0] * len(again)
            assert await ordered(attempt_id="b") == []
            assert await committed(client) == 0
        async with clocked_broker(tmp_path, clock) as client:
            ordered = partial(pop, client, "T", clock=clock, order=True, max_msg_nums=32)
            assert await ordered() == []
            repeated = await ordered(attempt_id="a")
            assert told(repeated) == told(again)
            assert (await ack_batch(client, repeated)).code == 0
            assert await committed(client) == 3 + len(later)
            rest = [b"3", b"4", b"5"][len(later) :]
            assert told(await ordered()) == [(body, 0) for body in rest]

    asyncio.run(main())


def test_new_messages_that_are_not_for_a_filter_are_passed_over_behind_what_comes_again(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            ordered = partial(pop, client, "T", clock=clock, order=True, exp="a", exp_type="TAG")
            for number, tag in enumerate("aabab"):
                await client.send("T", b"%d" % number, properties={"TAGS": tag})
            assert told(await ordered(max_msg_nums=1)) == [(b"0", 0)]
            clock.advance(61)
            again = await ordered()
            assert told(again) == [(b"0", 1), (b"1", 0), (b"3", 0)]
            assert (await ack_batch(client, again)).code == 0
            assert await ordered() == []
            assert await committed(client) == 5

    asyncio.run(main())


def test_a_reset_leaves_what_was_handed_out(tmp_path: Path) -> None:
    """Forward and back, at once, and after a start in between; what was left does not come again by itself."""

    async def reset(client: BrokerClient, offset: int) -> None:
        header = ResetOffsetRequestHeader(topic="T", group=GROUP, queue_id=0, offset=offset, timestamp=0, force=True)
        assert (await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).code == 0

    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            ordered = partial(pop, client, "T", clock=clock, order=True, max_msg_nums=2)
            for number in range(6):
                await client.send("T", b"%d" % number)
            assert told(first := await ordered()) == [(b"0", 0), (b"1", 0)]
            await reset(client, 3)
            assert told(second := await ordered()) == [(b"3", 0), (b"4", 0)]
            assert (await ack(client, first[0])).code == 0
            assert await committed(client) == 3
            await reset(client, 1)
        async with clocked_broker(tmp_path, clock) as client:
            ordered = partial(pop, client, "T", clock=clock, order=True, max_msg_nums=2)
            assert await committed(client) == 1
            assert told(third := await ordered()) == [(b"1", 0), (b"2", 0)]
            clock.advance(61)
            assert told(third := await ordered()) == [(b"1", 1), (b"2", 1)]
            assert (await ack_batch(client, [*second, *third])).code == 0
            assert told(await ordered()) == [(b"3", 0), (b"4", 0)]

    asyncio.run(main())


def test_the_same_attempt_gets_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            ordered = partial(pop, client, "T", clock=clock, order=True)
            await client.send("T", b"1")
            assert told(await ordered(attempt_id="a")) == [(b"1", 0)]
            refused = await ask_pop(client, "T", clock=clock, order=True, attempt_id="a" * 257)
            assert (refused.code, refused.remark) == (29, "attemptId has more than 256 characters")
            clock.advance(1)
            await client.send("T", b"2")
            assert await ordered(attempt_id="b") == []
            assert told(await ordered(attempt_id="a")) == [(b"1", 0)]

    asyncio.run(main())


def test_a_pop_that_waits_goes_on_when_the_queue_is_free(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            ordered = partial(pop, client, "T", clock=clock, order=True, max_msg_nums=1)
            for number in range(3):
                await client.send("T", b"%d" % number)
            (first,) = await ordered()
            waits = asyncio.create_task(ordered(poll_time=8_000))
            poll = client.broker._pop_processor.poll
            await until(lambda: len(poll) == 1)
            assert (await ack(client, first)).code == 0
            assert told(await waits) == [(b"1", 0)]
            clock.advance(61)
            waits = asyncio.create_task(ordered(poll_time=8_000))
            assert told(await waits) == [(b"1", 1)]
            waits = asyncio.create_task(ordered(poll_time=80_000))
            await until(lambda: len(poll) == 1)
            clock.advance(61)
            await revive(client)
            assert told(await waits) == [(b"1", 2)]

    asyncio.run(main())


def test_what_is_hidden_untried_holds_its_queue_up_after_a_start_too(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            for number in range(2):
                await client.send("T", b"%d" % number)
            (message,) = await pop(client, "T", clock=clock, order=True, max_msg_nums=1)
            await hide(client, message, 30_000, suspend=True)
            assert await pop(client, "T", clock=clock, order=True) == []
        async with clocked_broker(tmp_path, clock) as client:
            ordered = partial(pop, client, "T", clock=clock, order=True, max_msg_nums=1)
            assert await ordered() == []
            clock.advance(31)
            await revive(client)
            assert told(await ordered()) == [(b"0", 1)]

    asyncio.run(main())


def test_a_pop_that_passes_messages_over_goes_on_from_a_reset_too(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            ordered = partial(pop, client, "T", clock=clock, order=True, exp="a", exp_type="TAG", queue_id=0)
            await client.send("T", b"0", properties={"TAGS": "a"})
            assert told(await ordered()) == [(b"0", 0)]
            await client.send("T", b"1", properties={"TAGS": "a"})
            await client.send("T", b"2", properties={"TAGS": "b"})
            header = ResetOffsetRequestHeader(topic="T", group=GROUP, timestamp=0, force=True, queue_id=0, offset=2)
            assert (await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).code == 0
            assert await ordered() == []
            assert await committed(client) == 3
            await client.send("T", b"3", properties={"TAGS": "a"})
            assert told(await ordered()) == [(b"3", 0)]

    asyncio.run(main())


def test_what_is_gone_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            ordered = partial(pop, client, "T", clock=clock, order=True, queue_id=0)
            for number in range(3):
                await client.send("T", b"%d" % number)
            assert told(await ordered(max_msg_nums=1)) == [(b"0", 0)]
            clock.advance(61)
            get = client.broker._store.get
            monkeypatch.setattr(
                client.broker._store,
                "get",
                lambda topic, queue_id, offset, *what, **more: get(
                    topic, queue_id, offset or 1 if topic == "T" else offset, *what, **more
                ),
            )
            assert told(await ordered(poll_time=8_000)) == [(b"1", 0), (b"2", 0)]

    asyncio.run(main())


def test_what_is_due_in_order_wakes_a_pop_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with clocked_broker(tmp_path, clock) as client:
            await client.send("T", b"0")
            assert len(await pop(client, "T", clock=clock, order=True)) == 1
            poll = client.broker._pop_processor.poll
            others = asyncio.create_task(pop(client, "T", clock=clock, poll_time=200_000))
            await until(lambda: len(poll) == 1)
            ordered = asyncio.create_task(pop(client, "T", clock=clock, poll_time=200_000, order=True))
            await until(lambda: len(poll) == 2)
            clock.advance(61)
            await revive(client)
            assert told(await ordered) == [(b"0", 1)]
            assert not others.done()
            await client.send("T", b"1")
            assert told(await others) == [(b"1", None)]

    asyncio.run(main())
