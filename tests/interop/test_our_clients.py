"""Our clients on the NameServer and broker of Apache RocketMQ, of 5.5.0 and 4.9.7, and beside Java's."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from datetime import timedelta

import pytest

import rocketcore as rmq
from rocketcore import aio
from tests.fixtures.topics import new_group, new_topic
from tests.peers import ApacheCluster, JavaDriver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


@pytest.fixture
def topic(apache: ApacheCluster) -> str:
    return new_topic(apache.namesrv)


def test_send_every_way_and_pull(apache_line: ApacheCluster) -> None:
    topic = new_topic(apache_line.namesrv)
    with rmq.Producer(apache_line.namesrv, group=new_group()) as producer:
        result = producer.send(topic, b"\x00\xff", tag="a", keys=["k1", "k2"])
        assert result.status is rmq.SendStatus.SEND_OK
        producer.send(topic, b"x" * 9000)
        producer.send_batch([rmq.Message(topic, b"batch %d" % i) for i in range(5)])
        futures = [producer.send_nowait(rmq.Message(topic, b"nowait %d" % i)) for i in range(200)]
        producer.flush()
        assert all(future.result(10).status is rmq.SendStatus.SEND_OK for future in futures)
        producer.send_oneway(rmq.Message(topic, b"one way"))
    numbered = [b"batch %d" % i for i in range(5)] + [b"nowait %d" % i for i in range(200)]
    expected = sorted([b"\x00\xff", b"x" * 9000, b"one way", *numbered])
    received: list[rmq.ReceivedMessage] = []
    with rmq.PullConsumer(apache_line.namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(topic)
        while len(received) < len(expected):
            batch = consumer.poll(timeout=10.0)
            assert batch, f"{len(received)} of {len(expected)} messages came"
            received += batch
        consumer.commit()
    assert sorted(message.body for message in received) == expected
    [first] = [message for message in received if message.body == b"\x00\xff"]
    assert (first.tag, first.keys, first.msg_id) == ("a", ("k1", "k2"), result.msg_id)


def test_a_filter_is_served_or_refused_when_the_consumer_starts(apache: ApacheCluster, topic: str) -> None:
    with rmq.Producer(apache.namesrv, group=new_group()) as producer:
        for a in range(4):
            producer.send(topic, b"%d" % a, properties={"a": f"{a}"})
    with rmq.PullConsumer(apache.namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(topic, sql="a > 1")
        consumer.wait_ready(20.0)
        received: list[bytes] = []
        while len(received) < 2:
            received += [message.body for message in consumer.poll(timeout=10.0)]
        assert sorted(received) == [b"2", b"3"]
    refused = rmq.PushConsumer(apache.namesrv, group=new_group())
    refused.subscribe(topic, sql="this is (( garbage", handler=lambda message: None)
    with pytest.raises(rmq.BrokerError, match="SUBSCRIPTION_PARSE_FAILED"):
        refused.run()
    refused.close()


def test_push_consumer_with_an_expression(apache_line: ApacheCluster) -> None:
    topic = new_topic(apache_line.namesrv)
    with rmq.PushConsumer(apache_line.namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(topic, sql="a BETWEEN 3 AND 5 AND b <> 'us' OR b IS NULL")
        with rmq.Producer(apache_line.namesrv, group=new_group()) as producer:
            for a in range(8):
                region = {"b": "us" if a % 2 else "eu"} if a else {}
                producer.send(topic, b"%d" % a, properties={"a": f"{a}"} | region)
        received: list[bytes] = []
        for message in consumer:
            received.append(message.body)
            message.ack()
            if len(received) == 2:
                break
    assert sorted(received) == [b"0", b"4"]


def test_push_consumer_filters_by_tag_and_retries(apache_line: ApacheCluster) -> None:
    topic = new_topic(apache_line.namesrv)
    with rmq.Producer(apache_line.namesrv, group=new_group()) as producer:
        producer.send(topic, b"wanted", tag="yes")
        producer.send(topic, b"other", tag="no")
    attempts: list[rmq.ReceivedMessage] = []
    with rmq.PushConsumer(apache_line.namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(topic, tag="yes || maybe")
        for message in consumer:
            attempts.append(message)
            if len(attempts) == 2:
                message.ack()
                break
            message.retry(delay=timedelta(seconds=1).total_seconds())
    assert [message.body for message in attempts] == [b"wanted", b"wanted"]
    assert [message.reconsume_times for message in attempts] == [0, 1]
    assert {message.topic for message in attempts} == {topic}


def test_asyncio_clients(apache: ApacheCluster, topic: str) -> None:
    async def run() -> list[bytes]:
        async with aio.Producer(apache.namesrv, group=new_group()) as producer, asyncio.TaskGroup() as tasks:
            for i in range(100):
                tasks.create_task(producer.send(topic, f"order {i}", keys=str(i)))
        received = []
        async with aio.PushConsumer(apache.namesrv, group=new_group(), start_from="first") as consumer:
            await consumer.subscribe(topic)
            async with asyncio.timeout(60):
                async for message in consumer:
                    async with message.process():
                        received.append(message.body)
                    if len(received) == 100:
                        break
        return received

    assert sorted(asyncio.run(run())) == sorted(f"order {i}".encode() for i in range(100))


def test_two_consumers_share_the_queues(apache: ApacheCluster, topic: str) -> None:
    name = new_group()
    seen: dict[str, set[str]] = {"first": set(), "second": set()}
    sent: set[str] = set()

    async def consume(label: str, done: asyncio.Event) -> None:
        async with aio.PushConsumer(apache.namesrv, group=name, start_from="first") as consumer:
            await consumer.subscribe(topic)
            async for message in consumer:
                async with message.process():
                    seen[label].add(message.text())
                if all(seen.values()) and set().union(*seen.values()) >= sent:
                    done.set()

    async def run() -> None:
        done = asyncio.Event()
        async with aio.Producer(apache.namesrv, group=new_group()) as producer, asyncio.timeout(90):
            consumers = [asyncio.create_task(consume(label, done)) for label in seen]
            for i in range(10_000):
                if done.is_set():
                    break
                sent.add(f"m{i}")
                await producer.send(topic, f"m{i}")
                await asyncio.sleep(0.02)  # spread over the time that two members need to find each other
            await done.wait()
            for task in consumers:
                task.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)

    asyncio.run(run())
    assert all(seen.values())
    assert set().union(*seen.values()) >= sent


@pytest.mark.parametrize("asks", ["we", "java"])
def test_requests_on_apaches_brokers(
    apache_line: ApacheCluster, java: Callable[[str, str], JavaDriver], asks: str
) -> None:
    """We ask and Java answers, Java asks and we answer, and both ends ours."""
    namesrv, group = apache_line.namesrv, new_group()
    topic = new_topic(namesrv)
    driver = java(apache_line.version, namesrv)
    if asks == "we":
        responder = driver.call("responder.start", group=group, topic=topic, prefix="re: ")["handle"]
        with rmq.Producer(namesrv, group=new_group()) as producer:
            replies = [producer.request(topic, f"{i}", timeout=30.0).text() for i in range(3)]
            assert producer.request(topic, "x" * 9000, timeout=30.0).text() == "re: " + "x" * 9000
        assert replies == [f"re: {i}" for i in range(3)]
        driver.call("responder.shutdown", handle=responder)
        return
    with rmq.PushConsumer(namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic, handler=lambda message: message.reply(b"re: " + message.body).result(20.0) and None)  # type: ignore[arg-type, return-value]
        handle = driver.call("producer.start", group=new_group())["handle"]
        for i in range(3):
            reply = driver.call("producer.request", handle=handle, topic=topic, text=f"{i}", timeoutMillis=30_000)
            assert base64.b64decode(reply["body"]) == f"re: {i}".encode()
        driver.call("producer.shutdown", handle=handle)
        with rmq.Producer(namesrv, group=new_group()) as producer:
            assert producer.request(topic, b"ours", timeout=30.0).body == b"re: ours"
