"""Asyncio clients and their event loop: one loop uses a client, and one that is forgotten ends."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.local import LocalCluster

pytestmark = pytest.mark.timeout(60)

WAIT = 30.0

MakeTopic = Callable[..., str]
Make = Callable[[str, str], Any]
Use = Callable[[Any, str], Awaitable[object]]


async def push(consumer: aio.PushConsumer, topic: str) -> None:
    await consumer.subscribe(topic, handler=print)
    await consumer.start()


async def pull(consumer: aio.PullConsumer, topic: str) -> None:
    await consumer.subscribe(topic)
    await consumer.poll(0.05)


async def simple(consumer: aio.SimpleConsumer, topic: str) -> None:
    await consumer.subscribe(topic)
    await consumer.receive(1, 0.05)


async def produce(producer: aio.Producer, topic: str) -> None:
    await producer.send(topic, b"x")
    await (await producer.send_nowait(topic, b"x"))


async def administer(admin: aio.Admin, topic: str) -> None:
    await admin.topic_route(topic)


KINDS: dict[str, tuple[Make, Use]] = {
    "Producer": (lambda namesrv, group: aio.Producer(namesrv, group=group), produce),
    "PushConsumer": (lambda namesrv, group: aio.PushConsumer(namesrv, group=group), push),
    "PullConsumer": (lambda namesrv, group: aio.PullConsumer(namesrv, group=group), pull),
    "SimpleConsumer": (lambda namesrv, group: aio.SimpleConsumer(namesrv, group=group), simple),
    "Admin": (lambda namesrv, group: aio.Admin(namesrv), administer),
}
"""Of each class how it is made, and a use that starts it."""

kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def other_loop() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Runs coroutines on an event loop that lives in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(WAIT)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@kinds
def test_a_forgotten_client_is_complained_of_and_ends(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, kind: str
) -> None:
    topic = make_topic()
    make, use = KINDS[kind]

    async def main() -> list[str]:
        before = asyncio.all_tasks()
        client = make(cluster.namesrv, group)
        await use(client, topic)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del client
            gc.collect()
        async with asyncio.timeout(WAIT):
            await asyncio.sleep(0)
            while left := asyncio.all_tasks() - before:
                await asyncio.wait(left, timeout=0.1)
        return [str(each.message) for each in caught if issubclass(each.category, ResourceWarning)]

    [said] = asyncio.run(main())
    assert said.startswith(f"unclosed aio.{kind}")
    assert "await close()" in said
    if "Consumer" in kind:
        with rmq.Admin(cluster.namesrv) as admin:
            assert not admin.describe_group(group).members


@kinds
def test_a_client_whose_loop_was_closed_says_so(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, kind: str
) -> None:
    topic = make_topic()
    make, use = KINDS[kind]
    client = make(cluster.namesrv, group)
    asyncio.run(use(client, topic))  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(rmq.ConfigError, match=rf"aio.{kind}.* its event loop was closed"):
            asyncio.run(use(client, topic))  # type: ignore[arg-type]
    with pytest.raises(rmq.ConfigError, match="its event loop was closed"):
        asyncio.run(client.close())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del client
        for _ in range(3):  # its sockets go with it
            gc.collect()
    assert [each for each in caught if str(each.message).startswith(f"unclosed aio.{kind}")]


@kinds
def test_another_loop_is_refused_and_the_first_goes_on(
    cluster: LocalCluster,
    make_topic: MakeTopic,
    group: str,
    kind: str,
    other_loop: Callable[[Coroutine[Any, Any, Any]], Any],
) -> None:
    topic = make_topic()
    make, use = KINDS[kind]
    client = make(cluster.namesrv, group)

    async def used() -> None:
        await use(client, topic)

    other_loop(used())
    with pytest.raises(rmq.ConfigError, match=rf"aio.{kind}.* belongs to another event loop"):
        asyncio.run(used())
    with pytest.raises(rmq.ConfigError, match="belongs to another event loop"):
        asyncio.run(client.close())
    other_loop(used())
    other_loop(client.close())
    asyncio.run(client.close())  # closed is closed


def test_what_does_not_wait_is_refused_outside_of_the_loop(
    cluster: LocalCluster,
    make_topic: MakeTopic,
    group: str,
    other_loop: Callable[[Coroutine[Any, Any, Any]], Any],
) -> None:
    topic, another = make_topic(), make_topic()
    consumer = aio.PullConsumer(cluster.namesrv, group=group)
    assert consumer.assignment() == []
    other_loop(consumer.subscribe(topic))
    for call in (consumer.assignment, consumer.pause, consumer.resume):
        with pytest.raises(rmq.ConfigError, match="was called outside of its event loop"):
            call()
    other_loop(consumer.subscribe(another))  # a coroutine, which is made here and runs there

    async def assigned() -> set[str]:
        return {queue.topic for queue in consumer.assignment()}

    assert other_loop(assigned()) == {topic, another}

    async def elsewhere() -> None:
        with pytest.raises(rmq.ConfigError, match="belongs to another event loop"):
            consumer.subscribe(topic)

    asyncio.run(elsewhere())
    other_loop(consumer.close())


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("kind", ["PushConsumer", "PullConsumer", "SimpleConsumer"])
def test_subscribe_may_be_awaited_or_not(
    cluster: LocalCluster, make_topic: MakeTopic, group: str, kind: str, running: bool, awaited: bool
) -> None:
    topic, first = make_topic(), make_topic()
    with rmq.Producer(cluster.namesrv, group=group) as producer:
        producer.send(topic, b"x")

    async def main() -> bytes:
        consumer = getattr(aio, kind)(cluster.namesrv, group=group, start_from="first")
        async with asyncio.timeout(WAIT):
            if running:
                await consumer.subscribe(first)
                await consumer.start()
            subscription = consumer.subscribe(topic)
            if awaited:
                await subscription
            try:
                if kind == "PushConsumer":
                    async for message in consumer:
                        return bytes(message.body)
                ask = consumer.poll if kind == "PullConsumer" else consumer.receive
                while not (messages := await ask(timeout=1.0)):
                    pass
                return bytes(messages[0].body)
            finally:
                await consumer.close()

    assert asyncio.run(main()) == b"x"


@pytest.mark.parametrize("kind", ["PullConsumer", "SimpleConsumer"])
def test_a_consumer_without_handlers_refuses_one(kind: str, group: str) -> None:
    consumer = getattr(aio, kind)("127.0.0.1:1", group=group)
    with pytest.raises(rmq.ConfigError, match=f"a {kind} has no handlers"):
        consumer.subscribe("T")(print)
