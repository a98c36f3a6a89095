"""Clients in a namespace beside Java's, on a broker of Apache RocketMQ 5.5.0."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

import rocketcore as rmq
from tests.fixtures.topics import new_group
from tests.peers import ApacheCluster, JavaDriver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


@pytest.fixture
def topic(apache: ApacheCluster) -> str:
    """A topic of the namespace ``shop``, by its name there."""
    name = f"topic-{uuid4().hex[:12]}"
    with rmq.Admin(apache.namesrv) as admin:
        admin.create_topic(f"shop%{name}", queues=2)
    return name


def test_java_reads_ours_in_a_namespace(
    apache: ApacheCluster, java: Callable[[str, str], JavaDriver], topic: str
) -> None:
    driver, group = java("5.5.0", apache.namesrv), new_group()
    driver.call(
        "push.start", group=group, handle=group, topic=topic, expression="*",
        options={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "namespace": "shop"},
    )  # fmt: skip
    with rmq.Producer(apache.namesrv, group=new_group(), namespace="shop") as producer:
        result = producer.send(topic, b"ours")
        assert result.queue.topic == topic
    [message] = driver.call("push.consumed", handle=group, count=1, timeoutMillis=30_000)
    assert message["topic"] == topic
    assert message["properties"]["INSTANCE_ID"] == "shop"
    driver.call("push.shutdown", handle=group)


def test_ours_read_java_in_a_namespace_and_have_retries(
    apache: ApacheCluster, java: Callable[[str, str], JavaDriver], topic: str
) -> None:
    driver, producers, group = java("5.5.0", apache.namesrv), new_group(), new_group()
    driver.call("producer.start", group=producers, handle=producers, options={"namespace": "shop"})
    driver.call("producer.send", handle=producers, topic=topic, text="javas")
    driver.call("producer.shutdown", handle=producers)
    with rmq.PushConsumer(apache.namesrv, group=group, namespace="shop", start_from="first") as consumer:
        consumer.subscribe(topic)
        seen = []
        for message in consumer:
            seen.append((message.topic, message.reconsume_times, message.queue.topic))
            if message.reconsume_times:
                message.ack()
                break
            message.retry(delay=1)
    assert seen == [(topic, 0, f"shop%{topic}"), (topic, 1, f"%RETRY%shop%{group}")]
    with rmq.SimpleConsumer(apache.namesrv, group=new_group(), namespace="shop", start_from="first") as popping:
        popping.subscribe(topic)
        [popped] = popping.receive(timeout=20.0)
        assert popped.topic == topic
        popped.ack()
        popping.flush()


def test_a_namespace_of_requests(apache: ApacheCluster, topic: str) -> None:
    name = f"shop%{topic}"
    with rmq.Producer(apache.namesrv, group=new_group(), namespace_v2="any") as producer:
        producer.send(name, b"x")
    with rmq.PullConsumer(apache.namesrv, group=new_group(), namespace_v2="any", start_from="first") as consumer:
        consumer.subscribe(name)
        [message] = consumer.poll(timeout=20.0)
        assert message.topic == name
