"""More of what our clients do on Apache's servers of 4.9.7 and 5.5.0: delays, order, broadcast, places, queries."""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta

import pytest

import rocketcore as rmq
from rocketcore.codes import TRACE_TOPIC
from rocketcore.protocol.trace import PubTrace, SubAfterTrace, SubBeforeTrace
from tests.fixtures.topics import await_messages, new_group, new_topic
from tests.fixtures.waiting import until
from tests.peers import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


@pytest.fixture
def namesrv(apache_line: ApacheCluster) -> str:
    return apache_line.namesrv


@pytest.fixture
def topic(namesrv: str) -> str:
    return new_topic(namesrv)


def test_in_order_with_a_delay_and_large(namesrv: str, topic: str) -> None:
    """What one producer sends comes to one consumer that takes each queue in order."""
    large = os.urandom(3_900_000)
    with rmq.Producer(namesrv, group=new_group()) as producer:
        producer.send(topic, "delayed", delay_level=1)
        for number in range(12):
            producer.send(topic, f"{number}", message_group=f"group {number % 3}")
        producer.send(topic, "chosen", queue=rmq.MessageQueue(topic, "broker-a", 3))
        producer.send(topic, large, timeout=30)
    received: list[rmq.ReceivedMessage] = []
    with rmq.PushConsumer(namesrv, group=new_group(), start_from="first", ordered=True) as consumer:
        consumer.subscribe(topic, handler=received.append)
        until(lambda: len(received) == 15)
    assert large in [message.body for message in received]
    for group in range(3):
        ordered = [message for message in received if message.message_group == f"group {group}"]
        assert [message.text() for message in ordered] == [f"{number}" for number in range(group, 12, 3)]
        assert len({message.queue for message in ordered}) == 1
    small = {message.text(): message for message in received if message.body != large}
    assert small["chosen"].queue.queue_id == 3
    assert small["delayed"].stored_at - small["delayed"].born_at >= timedelta(seconds=1)


def test_broadcast(namesrv: str, topic: str) -> None:
    """Each of two members gets everything."""
    group = new_group()
    seen: list[set[str]] = [set(), set()]
    with contextlib.ExitStack() as stack:
        for texts in seen:
            consumer = rmq.PushConsumer(namesrv, group=group, start_from="first", broadcast=True)
            stack.enter_context(consumer)
            consumer.subscribe(topic, handler=lambda message, texts=texts: texts.add(message.text()))  # type: ignore[misc]
        with rmq.Producer(namesrv, group=new_group()) as producer:
            for number in range(8):
                producer.send(topic, f"{number}")
        until(lambda: seen[0] == seen[1] == {f"{number}" for number in range(8)})


def test_places_and_queries(namesrv: str, topic: str) -> None:
    """A consumer that has a queue assigned goes to an offset and to the first, and commits; messages are looked up."""
    group, queue = new_group(), rmq.MessageQueue(topic, "broker-a", 1)
    with rmq.Producer(namesrv, group=new_group()) as producer:
        sent = [producer.send(topic, f"{number}", keys=f"k{number}", queue=queue) for number in range(6)]
    await_messages(namesrv, topic, 6)
    with rmq.PullConsumer(namesrv, group=group) as consumer:
        consumer.assign([queue])

        def texts(count: int) -> list[str]:
            got: list[rmq.ReceivedMessage] = []
            while len(got) < count and (batch := consumer.poll(timeout=10.0)):
                got += batch
            return [message.text() for message in got]

        consumer.seek(queue, 4)
        assert texts(2) == ["4", "5"]
        consumer.seek(queue, "first")
        assert texts(6) == [f"{number}" for number in range(6)]
        consumer.commit()
        assert consumer.committed(queue) == 6
    with rmq.Admin(namesrv) as admin:
        until(lambda: admin.query_messages(topic, "k1"))
        [by_key] = admin.query_messages(topic, "k1")
        found = [by_key, *(admin.view_message(topic, each) for each in (sent[1].msg_id, sent[1].offset_msg_id))]
        assert [(message.queue, message.offset, message.text()) for message in found] == [(queue, 1, "1")] * 3


def test_traces(namesrv: str, topic: str) -> None:
    with rmq.Admin(namesrv) as admin, contextlib.suppress(rmq.BrokerError):  # it may be there
        admin.create_topic(TRACE_TOPIC, queues=1, exist_ok=True)
    with rmq.Producer(namesrv, group=new_group(), trace=True) as producer:
        msg_id = producer.send(topic, "traced").msg_id
    with rmq.PushConsumer(namesrv, group=new_group(), start_from="first", trace=True) as consumer:
        consumer.subscribe(topic)
        for message in consumer:
            message.ack()
            break
    with rmq.Admin(namesrv) as admin:
        until(lambda: len(admin.message_traces(msg_id)) == 3)
        kinds = {type(trace) for trace in admin.message_traces(msg_id)}
    assert kinds == {PubTrace, SubBeforeTrace, SubAfterTrace}


def test_a_topic_of_batches(apache: ApacheCluster) -> None:
    """``queue.type=BatchCQ``: its queue counts batches; what we send alone and together comes, each message once."""
    topic = f"Batches-{new_group()}"
    with rmq.Admin(apache.namesrv) as admin:
        admin.create_topic(topic, queues=2, attributes={"queue.type": "BatchCQ"})
    wanted = sorted(["alone", *(f"{number}" for number in range(40))])
    with rmq.Producer(apache.namesrv, group=new_group()) as producer:
        producer.send(topic, "alone")
        for begin in range(0, 40, 10):
            batch = [rmq.Message(topic, f"{number}", keys=f"k{number}") for number in range(begin, begin + 10)]
            assert producer.send_batch(batch).status is rmq.SendStatus.SEND_OK
    handled: list[str] = []
    with rmq.PushConsumer(apache.namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(topic, handler=lambda message: handled.append(message.text()))
        until(lambda: len(handled) >= len(wanted))
    assert sorted(handled) == wanted
    polled: list[str] = []
    with rmq.PullConsumer(apache.namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(topic)
        while len(polled) < len(wanted) and (batch := consumer.poll(timeout=10.0)):  # type: ignore[assignment]
            polled += [message.text() for message in batch]
    assert sorted(polled) == wanted
