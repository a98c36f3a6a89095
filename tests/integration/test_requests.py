"""Request and reply between our clients, over a broker of ours."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.client.instance import ClientInstance
from rocketcore.errors import MessageIllegal, RequestTimeout
from rocketcore.local import LocalCluster
from rocketcore.message import ReceivedMessage
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from tests.fixtures.topics import new_group, new_topic
from tests.integration.broker_client import running_broker

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with LocalCluster() as running:
        yield running.namesrv


@pytest.fixture
def topic(namesrv: str) -> str:
    return new_topic(namesrv)


@pytest.fixture
def answering(namesrv: str, topic: str) -> Iterator[list[ReceivedMessage]]:
    """A consumer that answers everything, and what it was asked."""
    asked: list[ReceivedMessage] = []
    consumer = rmq.PushConsumer(namesrv, group=new_group(), start_from="first")

    @consumer.subscribe(topic)
    def answer(message: ReceivedMessage) -> None:
        asked.append(message)
        sent = message.reply(b"re: " + message.body, tag="done", keys="k", properties={"mood": "good"})
        assert sent.result(10.0).queue.topic == "DefaultCluster_REPLY_TOPIC"

    with consumer:
        consumer.wait_ready()
        yield asked


def test_a_request_is_answered(namesrv: str, topic: str, answering: list[ReceivedMessage]) -> None:
    with rmq.Producer(namesrv, group=new_group()) as producer:
        reply = producer.request(topic, b"AAPL", timeout=10.0, keys="asked")
        client_id = producer.client_id
    assert (reply.body, reply.tag, reply.keys) == (b"re: AAPL", "done", ("k",))
    assert reply.properties["mood"] == "good"
    assert reply.topic == "DefaultCluster_REPLY_TOPIC"
    [request] = answering
    assert request.properties["REPLY_TO_CLIENT"] == client_id
    assert request.properties["TTL"] == "10000"
    assert request.properties["CORRELATION_ID"] == reply.properties["CORRELATION_ID"]
    assert int(reply.properties["ARRIVE_TIME"]) >= int(reply.properties["PUSH_REPLY_TIME"]) > 0


def test_threads_ask_side_by_side(namesrv: str, topic: str, answering: list[ReceivedMessage]) -> None:
    numbers = [b"%d" % number for number in range(40)]
    with rmq.Producer(namesrv, group=new_group()) as producer, ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda body: producer.request(topic, body, timeout=20.0).body, numbers))
    assert replies == [b"re: " + number for number in numbers]


def test_a_reply_does_not_wait_for_the_next_look(namesrv: str, topic: str, answering: list[ReceivedMessage]) -> None:
    """A thread looks at idle connections ten times a second: who waits for a reply must not wait for that."""
    with rmq.Producer(namesrv, group=new_group()) as producer:
        producer.request(topic, b"first", timeout=10.0)
        seconds = []
        for _ in range(10):
            began = time.perf_counter()
            producer.request(topic, b"again", timeout=10.0)
            seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.05


def test_a_long_reply_is_compressed_on_its_way(namesrv: str, topic: str, answering: list[ReceivedMessage]) -> None:
    with rmq.Producer(namesrv, group=new_group()) as producer:
        assert producer.request(topic, b"x" * 100_000, timeout=10.0).body == b"re: " + b"x" * 100_000


def test_nobody_answers(namesrv: str, topic: str) -> None:
    with rmq.Producer(namesrv, group=new_group()) as producer:
        with pytest.raises(RequestTimeout, match=r"stored in .* at offset 0, no reply within 0.3 s"):
            producer.request(rmq.Message(topic, b"?"), timeout=0.3)
        with pytest.raises(rmq.errors.ConfigError, match="timeout"):
            producer.request(topic, b"?", timeout=0)
        with pytest.raises(TypeError, match="queue must be a MessageQueue, got int"):
            producer.request(topic, b"?", queue=3)  # type: ignore[call-overload]
        with pytest.raises(rmq.errors.ConfigError, match=r"None is not a handle of .*: the broker gave none"):
            producer.recall(topic, producer.send(topic, b"for no time").recall_handle)  # type: ignore[arg-type]


@pytest.mark.parametrize("world", ["threads", "loop"])
def test_who_waits_for_a_reply_hears_that_the_producer_is_closed(namesrv: str, topic: str, world: str) -> None:
    """At once, and not when its time is over."""
    with rmq.PullConsumer(namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(topic)

        async def on_loop() -> None:
            async with aio.Producer(namesrv, group=new_group()) as producer:
                waiting = asyncio.create_task(producer.request(topic, b"?", timeout=50.0))
                assert await asyncio.to_thread(consumer.poll, 10.0)
                await producer.close()
                await waiting

        def on_threads() -> None:
            with ThreadPoolExecutor(1) as pool, rmq.Producer(namesrv, group=new_group()) as producer:
                waiting = pool.submit(producer.request, topic, b"?", timeout=50.0)
                assert consumer.poll(10.0)
                producer.close()
                waiting.result()

        with pytest.raises(rmq.ClientClosed, match=r"closed before request .* had a reply"):
            asyncio.run(on_loop()) if world == "loop" else on_threads()


def test_a_reply_by_a_producer(namesrv: str, topic: str) -> None:
    with (
        rmq.Producer(namesrv, group=new_group()) as asking,
        rmq.Producer(namesrv, group=new_group()) as answering,
        rmq.PullConsumer(namesrv, group=new_group(), start_from="first") as consumer,
        ThreadPoolExecutor(1) as pool,
    ):
        consumer.subscribe(topic)
        waiting = pool.submit(asking.request, topic, b"AAPL", timeout=20.0)
        [request] = consumer.poll(timeout=10.0)
        answering.send(request.reply_message(b"by send"))
        assert waiting.result().body == b"by send"
        waiting = pool.submit(asking.request, topic, b"AAPL", timeout=20.0)
        [request] = consumer.poll(timeout=10.0)
        answering.send_nowait(request.reply_message(b"by send_nowait")).result(10.0)
        assert waiting.result().body == b"by send_nowait"
        with pytest.raises(MessageIllegal, match="replies"):
            answering.send_batch([request.reply_message(b"no batch")])


def test_what_is_no_request_has_no_reply(namesrv: str, topic: str) -> None:
    with (
        rmq.Producer(namesrv, group=new_group()) as producer,
        rmq.PushConsumer(namesrv, group=new_group(), start_from="first") as consumer,
    ):
        consumer.subscribe(topic)
        producer.send(topic, b"plain")
        message = next(iter(consumer))
        with pytest.raises(MessageIllegal, match="is not a request: it has no property CORRELATION_ID"):
            message.reply(b"?")
        message.ack()


def test_on_a_loop(namesrv: str, topic: str) -> None:
    async def main() -> None:
        async with (
            aio.Producer(namesrv, group=new_group()) as producer,
            aio.PushConsumer(namesrv, group=new_group(), start_from="first") as consumer,
        ):

            async def answer(message: ReceivedMessage) -> None:
                sent = message.reply("re: " + message.text())
                for wait in (sent.result, sent.exception):
                    with pytest.raises(rmq.ConfigError, match="await the future on its event loop"):
                        wait()
                assert (await sent).status is rmq.SendStatus.SEND_OK

            await consumer.subscribe(topic, handler=answer)
            replies = await asyncio.gather(*(producer.request(topic, f"{i}", timeout=20.0) for i in range(20)))
            assert [reply.text() for reply in replies] == [f"re: {i}" for i in range(20)]

    asyncio.run(main())


def test_a_consumer_that_closes_sends_its_replies(namesrv: str, topic: str) -> None:
    with rmq.Producer(namesrv, group=new_group()) as producer, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(producer.request, topic, b"?", timeout=20.0)
        handled = threading.Event()
        with rmq.PushConsumer(namesrv, group=new_group(), start_from="first") as consumer:

            @consumer.subscribe(topic)
            def answer(message: ReceivedMessage) -> None:
                message.reply(b"on leaving")
                handled.set()

            assert handled.wait(20.0)
        assert waiting.result().body == b"on leaving"


def test_a_reply_may_take_another_broker_than_its_request() -> None:
    """The topic is at one of two brokers, replies go to both: each is sent on at its first attempt, and stored once."""
    topic, replies = "OnOneBroker", "DefaultCluster_REPLY_TOPIC"
    with LocalCluster(brokers=2) as running, rmq.Admin(running.namesrv) as admin:
        admin.create_topic(topic, queues=1, broker="broker-a")
        with (
            rmq.PushConsumer(running.namesrv, group=new_group(), start_from="first") as consumer,
            rmq.Producer(running.namesrv, group=new_group()) as producer,
        ):
            consumer.subscribe(topic, handler=lambda message: message.reply(message.body) and None)  # type: ignore[arg-type, return-value]
            consumer.wait_ready()
            for number in range(6):
                assert producer.request(topic, f"{number}", timeout=20.0).text() == f"{number}"
        stored = {queue.broker: bounds.max_offset for queue, bounds in admin.topic_stats(replies).items()}
    assert set(stored) == {"broker-a", "broker-b"}
    assert sum(stored.values()) == 6
    assert min(stored.values()) > 0


usual_heartbeat = ClientInstance.heartbeat


async def no_heartbeat(instance: ClientInstance) -> None:
    """Tell brokers of consumers only."""
    if instance._consumer is not None:
        await usual_heartbeat(instance)


def test_a_request_after_its_connections_broke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has forgotten the producer with its connection, and would not know where to send the reply."""

    async def main() -> None:
        config = NameServerConfig(rocketmq_home=tmp_path / "names", listen_port=0)
        async with NameServer(config) as names, asyncio.timeout(60):
            namesrv = f"127.0.0.1:{names.port}"
            async with (
                running_broker(tmp_path / "store", namesrv=namesrv) as client,
                aio.Producer(namesrv, group=new_group()) as of_loop,
                aio.PushConsumer(namesrv, group=new_group(), start_from="first") as consumer,
            ):

                async def answer(message: ReceivedMessage) -> None:
                    if message.properties.get("REPLY_TO_CLIENT"):  # not the message that made the topic
                        await message.reply(message.body)
                        answered.put_nowait(message.body)

                answered: asyncio.Queue[bytes] = asyncio.Queue()
                await client.send("T")
                await consumer.subscribe("T", handler=answer)
                await consumer.wait_ready()
                monkeypatch.setattr(ClientInstance, "heartbeat", no_heartbeat)  # the one that comes by the clock
                of_threads = rmq.Producer(namesrv, group=new_group())
                for text in ("before", "after"):
                    await consumer._logic.instance.heartbeat()
                    assert (await of_loop.request("T", text, timeout=10.0)).text() == text
                    reply = await asyncio.to_thread(of_threads.request, "T", text, timeout=10.0)
                    assert reply.text() == text
                    assert {await answered.get(), await answered.get()} == {text.encode()}
                    for channel in list(client.broker._server.channels):
                        channel.abort()
                await asyncio.to_thread(of_threads.close)

    asyncio.run(main())
