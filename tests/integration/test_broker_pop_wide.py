"""POPs of topics of thousands of queues, which others have their turns between, and of what is read from the disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.pop import processor as pop_processor
from rocketcore.broker.store import Cold
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.topic import TopicConfig
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import DeleteTopicRequestHeader
from rocketcore.protocol.headers.pop import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PopMessageResponseHeader,
)
from rocketcore.service import ManualClock
from rocketcore.transport.client import RemotingClient
from tests.integration.broker_client import BrokerClient, running_broker
from tests.integration.pop_client import GROUP, ask_pop, pop, pop_header, until
from tests.integration.test_broker_pop import clocked_broker
from tests.integration.test_broker_pop_wait import waiting

WIDE = 4096


@asynccontextmanager
async def wide(broker: Any) -> AsyncIterator[BrokerClient]:
    """A topic of thousands of queues that are looked at in their order."""
    async with broker as client:
        client.broker._context.topics.update(TopicConfig("Wide", WIDE, WIDE, 6))
        client.broker._context.rng.randrange = lambda *_: 0
        client.broker._context.rng.random = lambda: 1.0
        yield client


def between(client: BrokerClient, act: Callable[[int], Awaitable[object]]) -> None:
    """Have something done where others have their turn; it is told how often they had before."""
    slices = client.broker._context.cooperative
    step, number = slices.step, 0

    async def stepped() -> None:
        nonlocal number
        number += 1
        await act(number - 1)
        await step()

    slices.step = stepped  # type: ignore[method-assign]


def looked_at(client: BrokerClient) -> list[tuple[str, int]]:
    """Return a list to which each place is added that a POP looks at."""
    service, places = client.broker._pop, list[tuple[str, int]]()
    take = service.take

    async def noted(asked: Any, key: Any, *arguments: Any, **options: Any) -> Any:
        places.append((key[0], key[2]))
        return await take(asked, key, *arguments, **options)

    service.take = noted  # type: ignore[method-assign]
    return places


def notification(**fields: Any) -> NotificationRequestHeader:
    defaults: dict[str, Any] = {"consumer_group": GROUP, "queue_id": -1, "poll_time": 0, "born_time": 0}
    return NotificationRequestHeader(topic="Wide", **(defaults | fields))


@pytest.mark.parametrize("asks", ["pop", "pop in order", "notify", "notify in order", "peek"])
def test_a_topic_of_thousands_of_queues_keeps_nobody_waiting(tmp_path: Path, asks: str) -> None:
    async def main() -> None:
        async with wide(running_broker(tmp_path)) as client:
            processor = client.broker._pop_processor
            await ask_pop(client, "Wide")  # which commits where the group begins
            (channel,) = client.broker._server._endpoint.channels
            order, turns = asks.endswith("order"), 0

            async def nothing(*_: object) -> int:
                return 0

            processor._rest = nothing  # type: ignore[assignment, method-assign]  # which takes turns of its own

            async def others() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            task = asyncio.create_task(others())
            await asyncio.sleep(0)
            if asks == "peek":
                peek = PeekMessageRequestHeader(consumer_group=GROUP, topic="Wide", queue_id=-1, max_msg_nums=32)
                request = RemotingCommand.request(RequestCode.PEEK_MESSAGE, peek)
                await processor.peek(channel, request, peek)
            elif asks.startswith("pop"):
                header = pop_header("Wide", order=order)
                await processor.pop(channel, RemotingCommand.request(RequestCode.POP_MESSAGE, header), header)
            else:
                asked = notification(order=order)
                await processor.notify(channel, RemotingCommand.request(RequestCode.NOTIFICATION, asked), asked)
            assert turns >= 2, "a turn lasts for half a millisecond"
            task.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("order", [False, True])
def test_one_message_is_found_wherever_it_is(tmp_path: Path, order: bool) -> None:
    async def main() -> None:
        async with wide(running_broker(tmp_path)) as client:
            assert (await ask_pop(client, "Wide", order=order)).code == ResponseCode.POLLING_TIMEOUT
            await client.send("Wide", b"one", queue_id=3210)
            answer = await client.ask(RequestCode.NOTIFICATION, notification(order=order))
            assert answer.header(NotificationResponseHeader).has_msg
            found = await ask_pop(client, "Wide", order=order)
            assert (found.code, found.header(PopMessageResponseHeader).rest_num) == (0, 0)

    asyncio.run(main())


@pytest.mark.parametrize("asks", ["pop", "notify"])
def test_what_comes_to_a_queue_that_was_looked_at_is_found(tmp_path: Path, asks: str) -> None:
    """It is not waited for another message then, and no other queue is looked at again."""

    async def main() -> None:
        async with wide(running_broker(tmp_path)) as client:
            places = looked_at(client)

            async def send(number: int) -> None:
                if not number:
                    await client.send("Wide", b"one", queue_id=7)

            between(client, send)
            if asks == "pop":
                (message,) = await pop(client, "Wide", poll_time=60_000)
                assert (message.body, places[WIDE:]) == (b"one", [("Wide", 7)])
            else:
                answer = await client.ask(RequestCode.NOTIFICATION, notification(poll_time=60_000))
                assert answer.header(NotificationResponseHeader).has_msg

    asyncio.run(main())


@pytest.mark.parametrize(
    ("topic", "tags", "asked"),
    [
        ("Other", "a", {}),
        ("Wide", "b", {"exp": "a", "exp_type": "TAG"}),
        ("%RETRY%poppers_Wide", "a", {"order": True}),
    ],
    ids=["topic", "tags", "retry"],
)
def test_what_comes_for_others_is_not_looked_for(tmp_path: Path, topic: str, tags: str, asked: dict[str, Any]) -> None:
    async def main() -> None:
        async with wide(running_broker(tmp_path)) as client:
            if topic != "Wide":
                client.broker._context.topics.update(TopicConfig(topic, 1, 1, 6))
            places = looked_at(client)

            async def send(number: int) -> None:
                assert (await client.send(topic, properties={"TAGS": tags})).code == 0

            between(client, send)
            held = asyncio.create_task(pop(client, "Wide", poll_time=60_000, **asked))
            await until(lambda: waiting(client) == 1)
            assert len(places) == WIDE
            await client.send("Wide", b"wanted", properties={"TAGS": "a"})
            assert [message.body for message in await held] == [b"wanted"]

    asyncio.run(main())


def test_a_filter_that_has_to_read_looks_again_only_where_something_came(tmp_path: Path) -> None:
    async def main() -> None:
        async with wide(running_broker(tmp_path, enable_property_filter=True)) as client:
            places = looked_at(client)

            async def send(number: int) -> None:
                await client.send("Wide", queue_id=number % 2)

            between(client, send)
            held = asyncio.create_task(pop(client, "Wide", poll_time=60_000, exp="x = 1", exp_type="SQL92"))
            await until(lambda: waiting(client) == 1)
            assert sorted(places[WIDE:]) == [("Wide", 0), ("Wide", 1)]
            held.cancel()

    asyncio.run(main())


def test_a_reset_while_a_pop_looks_has_it_look_everywhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with wide(running_broker(tmp_path)) as client:
            await client.send("Wide", b"one", queue_id=7)
            assert len(await pop(client, "Wide")) == 1
            context = client.broker._context

            async def reset(number: int) -> None:
                if not number:
                    context.offsets.reset(GROUP, "Wide", 7, 0)
                    client.broker._offsets_reset("Wide", GROUP, [7])

            between(client, reset)
            (message,) = await pop(client, "Wide", poll_time=60_000)
            assert message.body == b"one"

    asyncio.run(main())


def test_a_pop_whose_connection_closes_while_it_looks_is_not_held(tmp_path: Path) -> None:
    async def main() -> None:
        async with wide(running_broker(tmp_path)) as client:
            places = looked_at(client)
            looks, goes_on = asyncio.Event(), asyncio.Event()

            async def wait(number: int) -> None:
                looks.set()
                await goes_on.wait()

            between(client, wait)
            async with RemotingClient() as leaving:
                dead = asyncio.create_task(ask_pop(BrokerClient(client.broker, leaving), "Wide", poll_time=60_000))
                await until(looks.is_set)
            channels = client.broker._server._endpoint.channels
            await until(lambda: not channels)
            goes_on.set()
            await until(lambda: not client.broker._server._endpoint.tasks)
            assert (waiting(client), len(places)) == (0, 64), "no queue is looked at for nobody"
            assert client.broker._pop_processor.poll._looks == {}
            with suppress(Exception):
                await dead

    asyncio.run(main())


def test_few_look_at_thousands_of_queues_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with wide(running_broker(tmp_path)) as client:
            at_work = client.broker._pop_processor.poll._looks
            many = 3 * pop_processor._WIDE_LOOKS
            most, goes_on = 0, asyncio.Event()

            async def count(number: int) -> None:
                nonlocal most
                most = max(most, len(at_work.get("Wide", ())))
                await goes_on.wait()

            between(client, count)
            asks = [asyncio.create_task(ask_pop(client, "Wide", queue_id=-1)) for _ in range(many)]
            endpoint = client.broker._server._endpoint
            await until(lambda: len(endpoint.tasks) == many and most == pop_processor._WIDE_LOOKS)
            assert (await ask_pop(client, "Wide", queue_id=5)).code == ResponseCode.POLLING_TIMEOUT, "one queue"
            goes_on.set()
            codes = {(await each).code for each in asks}
            assert (most, codes, at_work) == (pop_processor._WIDE_LOOKS, {ResponseCode.POLLING_TIMEOUT}, {})

    asyncio.run(main())


def test_the_time_of_a_pop_is_that_of_its_first_message(tmp_path: Path) -> None:
    """Its invisible time runs from there on, so nothing that takes long is done after that."""

    async def main() -> None:
        clock = ManualClock()
        async with wide(clocked_broker(tmp_path, clock)) as client:
            for queue_id in (100, 101, 4000):
                await client.send("Wide", b"%d" % queue_id, queue_id=queue_id)
            began = clock.time_millis()

            async def pass_time(_: int) -> None:
                clock.advance(1)
                await client.broker._pop.stored(client.broker._store.max_physical_offset)

            between(client, pass_time)
            answer = await ask_pop(client, "Wide", clock=clock, poll_time=0)
            header = answer.header(PopMessageResponseHeader)
            assert header.msg_offset_info == "0 100 0;0 101 0"
            assert header.pop_time == began + 1000, "it had looked at 64 queues before"
            assert clock.time_millis() == header.pop_time + 2000, "one turn of the look, one of counting what is left"

    asyncio.run(main())


async def delete_topic(client: BrokerClient) -> None:
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="Wide"))


async def delete_group(client: BrokerClient) -> None:
    client.broker._context.offsets.remove_group(GROUP)
    client.broker._context.groups.delete(GROUP)


async def forbid_topic(client: BrokerClient) -> None:
    client.broker._context.topics.update(TopicConfig("Wide", WIDE, WIDE, 2))


async def forbid_group(client: BrokerClient) -> None:
    client.broker._context.groups.update(SubscriptionGroupConfig(GROUP, consume_enable=False))


@pytest.mark.parametrize("when", ["looks", "reads", "waits"])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (delete_topic, ResponseCode.TOPIC_NOT_EXIST),
        (delete_group, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        (forbid_topic, ResponseCode.NO_PERMISSION),
        (forbid_group, ResponseCode.NO_PERMISSION),
    ],
)
def test_what_is_taken_from_a_pop_at_work_stays_so(
    tmp_path: Path, change: Callable[[BrokerClient], Awaitable[None]], code: int, when: str
) -> None:
    async def main() -> None:
        async with wide(running_broker(tmp_path)) as client:
            context, done = client.broker._context, False
            await client.send("Wide", queue_id=0)

            async def once(*_: object) -> None:
                nonlocal done
                if not done:
                    done = True
                    await change(client)

            if when == "reads":
                reads = client.broker._store.reads
                now = reads.now

                def cold(*_: Any) -> Any:
                    raise Cold

                async def read_late(*question: Any) -> Any:
                    found = now(*question)
                    await once()
                    return found

                reads.now, reads.read = cold, read_late  # type: ignore[assignment, method-assign]
            else:
                assert len(await pop(client, "Wide")) == 1
                if when == "looks":
                    between(client, once)
            asked = asyncio.create_task(ask_pop(client, "Wide", poll_time=60_000))
            if when == "waits":
                await until(lambda: waiting(client) == 1)
                await once()
                client.broker._pop_processor.poll.message_arrived("Wide", 0, None)
            committed = len(context.offsets.queues(GROUP, "Wide"))
            answer = await asked
            assert (answer.code, answer.header(PopMessageResponseHeader)) == (code, pop_processor.NO_NUMBERS)
            if change in (delete_topic, delete_group):
                assert context.offsets.queues(GROUP, "Wide") == {}
                assert not client.broker._pop.state.queues
            else:
                assert len(context.offsets.queues(GROUP, "Wide")) <= max(committed, 64)

    asyncio.run(main())
