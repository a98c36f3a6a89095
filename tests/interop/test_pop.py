"""POP on a broker of Apache RocketMQ 5.5.0: our SimpleConsumer, and Java's consumer beside it."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore.codes import RequestCode
from rocketcore.protocol.bodies.pop import MessageRequestMode, SetMessageRequestModeRequestBody
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.client import RemotingClient
from tests.fixtures.topics import new_group, new_topic
from tests.peers import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

SHORT = 5.0
PAGE = (Path(__file__).parents[2] / "docs" / "consuming.md").read_text()


@pytest.fixture
def topic(apache: ApacheCluster) -> str:
    return new_topic(apache.namesrv)


def fill(apache: ApacheCluster, topic: str, count: int) -> set[bytes]:
    bodies = {b"%d" % i for i in range(count)}
    with rmq.Producer(apache.namesrv, group=new_group()) as producer:
        for body in sorted(bodies):
            producer.send(topic, body, tag="even" if int(body) % 2 == 0 else "odd")
    return bodies


def receive(consumer: rmq.SimpleConsumer, count: int, seconds: float = 30.0) -> list[rmq.ReceivedMessage]:
    until = time.monotonic() + seconds
    received: list[rmq.ReceivedMessage] = []
    while len(received) < count and time.monotonic() < until:
        received += consumer.receive(timeout=2.0)
    return received


def test_what_is_acknowledged_does_not_come_again_and_the_rest_does(apache: ApacheCluster, topic: str) -> None:
    bodies = fill(apache, topic, 40)
    with rmq.SimpleConsumer(apache.namesrv, group=new_group(), invisible=SHORT, start_from="first") as consumer:
        consumer.subscribe(topic)
        first = receive(consumer, 40)
        assert {message.body for message in first} == bodies
        kept = first[:3]
        for message in first[3:]:
            message.ack()
        consumer.flush()
        again = receive(consumer, 3)
        assert sorted(message.body for message in again) == sorted(message.body for message in kept)
        assert [message.reconsume_times for message in again] == [1, 1, 1]
        assert {message.queue.topic[:7] for message in again} == {"%RETRY%"}
        with pytest.raises(rmq.InvisibleTimeOver, match="delivered again"):
            kept[0].ack()
        for message in again:
            message.ack()
        consumer.flush()
        assert consumer.receive(timeout=SHORT + 5.0) == []


def test_a_changed_invisible_time_counts(apache: ApacheCluster, topic: str) -> None:
    fill(apache, topic, 2)
    with rmq.SimpleConsumer(apache.namesrv, group=new_group(), invisible=SHORT, start_from="first") as consumer:
        consumer.subscribe(topic)
        longer, sooner = receive(consumer, 2)
        longer.change_invisible(60.0)
        sooner.change_invisible(1.0)
        consumer.flush()
        [again] = receive(consumer, 1)
        assert again.body == sooner.body
        again.ack()
        assert consumer.receive(timeout=SHORT + 4.0) == []
        longer.ack()
        consumer.flush()


def test_a_filter_is_the_brokers(apache: ApacheCluster, topic: str) -> None:
    fill(apache, topic, 10)
    with rmq.SimpleConsumer(apache.namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(topic, tag="even")
        received = receive(consumer, 5)
        assert {message.body for message in received} == {b"0", b"2", b"4", b"6", b"8"}
        for message in received:
            message.ack()


def test_who_waits_gets_a_message_when_it_comes(apache: ApacheCluster, topic: str) -> None:
    async def run() -> tuple[list[rmq.ReceivedMessage], float]:
        async with (
            aio.SimpleConsumer(apache.namesrv, group=new_group()) as consumer,
            aio.Producer(apache.namesrv, group=new_group()) as producer,
        ):
            await consumer.subscribe(topic)
            assert await consumer.receive(timeout=0.5) == []
            waiting = asyncio.create_task(consumer.receive(timeout=20.0))
            await asyncio.sleep(1.0)  # so that the broker holds what asks
            sent = time.monotonic()
            await producer.send(topic, b"at last")
            received = await waiting
            took = time.monotonic() - sent
            received[0].ack()
            return received, took

    received, took = asyncio.run(run())
    assert [message.body for message in received] == [b"at last"]
    assert took < 5.0


def test_the_example_of_the_page(apache: ApacheCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with rmq.Admin(apache.namesrv) as admin:
        admin.create_topic("work", queues=2)
    with rmq.Producer(apache.namesrv, group=new_group()) as producer:
        producer.send("work", b"x", tag="small")
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    [example] = [each for each in examples if "SimpleConsumer(" in each]
    exec(example.replace("127.0.0.1:9876", apache.namesrv), {"rmq": rmq})
    assert capsys.readouterr().out == "x\n"


def switch_to_pop(apache: ApacheCluster, topic: str, group: str) -> None:
    """Have a group's members pop a topic, as ``mqadmin setConsumeMode`` does."""
    body = SetMessageRequestModeRequestBody(topic=topic, consumer_group=group, mode=MessageRequestMode.POP)

    async def ask() -> None:
        client = RemotingClient()
        for address in apache.brokers:
            request = RemotingCommand.request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body.encode())
            (await client.invoke(address, request, 10.0)).raise_for_code(address, "request mode")
        await client.close()

    asyncio.run(ask())


def test_a_group_that_is_switched_pops(apache: ApacheCluster, topic: str) -> None:
    bodies = fill(apache, topic, 20)
    group = new_group()
    switch_to_pop(apache, topic, group)
    handled: list[rmq.ReceivedMessage] = []
    everything = threading.Event()
    consumer = rmq.PushConsumer(
        apache.namesrv, group=group, start_from="first", pop=True, invisible=SHORT, max_reconsume_times=1
    )

    @consumer.subscribe(topic)
    def handle(message: rmq.ReceivedMessage) -> None:
        handled.append(message)
        if len({each.body for each in handled}) == len(bodies) and message.reconsume_times:
            everything.set()
        if message.body == b"7":
            raise rmq.RetryLater(delay=1)

    with consumer:
        consumer.wait_ready(20.0)
        assert {queue.queue_id for queue in consumer.queues()} == {-1}
        assert everything.wait(40.0)
    counts = Counter(message.body for message in handled)
    assert counts == {body: 2 if body == b"7" else 1 for body in bodies}
    with rmq.PullConsumer(apache.namesrv, group=new_group(), start_from="first") as dead:
        dead.subscribe(f"%DLQ%{group}")
        [buried] = dead.poll(timeout=60.0)
        assert buried.body == b"7"


def test_a_member_of_a_group_that_is_not_switched_pulls(apache: ApacheCluster, topic: str) -> None:
    bodies = fill(apache, topic, 5)
    with rmq.PushConsumer(apache.namesrv, group=new_group(), start_from="first", pop=True) as consumer:
        consumer.subscribe(topic)
        consumer.wait_ready(20.0)
        assert {queue.queue_id for queue in consumer.queues()} == {0, 1, 2, 3}
        received = set()
        for message in consumer:
            received.add(message.body)
            message.ack()
            if received == bodies:
                break
