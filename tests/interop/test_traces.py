"""Message traces with Java: Apache's tool reads ours, and ours are read as Java's clients write theirs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

import rocketcore as rmq
from rocketcore.codes import TRACE_TOPIC
from rocketcore.errors import BrokerError
from rocketcore.protocol.trace import PubTrace, SubAfterTrace, SubBeforeTrace, Trace, decode_traces
from tests.fixtures.topics import new_group, new_topic
from tests.peers import ApacheCluster, JavaDriver

Driver = Callable[[str, str], JavaDriver]
pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def trace_topic(apache: ApacheCluster) -> str:
    with rmq.Admin(apache.namesrv) as admin, contextlib.suppress(BrokerError):  # it may be there
        admin.create_topic(TRACE_TOPIC, queues=1, exist_ok=True)
    return TRACE_TOPIC


def read_traces(namesrv: str, msg_id: str, count: int) -> list[Trace]:
    """Return the traces of a message, as soon as there are so many."""
    found: list[Trace] = []
    until = time.monotonic() + 60
    with rmq.PullConsumer(namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(TRACE_TOPIC)
        while len(found) < count and time.monotonic() < until:
            for message in consumer.poll(timeout=1.0):
                traces = [trace for trace in decode_traces(message.body) if trace.msg_id == msg_id]
                assert not traces or msg_id in message.keys
                found += traces
    return sorted(found, key=lambda trace: [PubTrace, SubBeforeTrace, SubAfterTrace].index(type(trace)))


def test_apaches_tool_shows_our_traces(apache: ApacheCluster, java: Driver, trace_topic: str) -> None:
    topic, producers, consumers = new_topic(apache.namesrv), new_group(), new_group()
    with rmq.Producer(apache.namesrv, group=producers, trace=True) as producer:
        result = producer.send(topic, b"hello", tag="a", keys=["k1", "k2"])
    with rmq.PushConsumer(apache.namesrv, group=consumers, start_from="first", trace=True) as consumer:
        consumer.subscribe(topic)
        for message in consumer:
            message.ack()
            break
    pub, before, after = read_traces(apache.namesrv, result.msg_id, 3)
    assert isinstance(pub, PubTrace)
    assert (pub.topic, pub.group, pub.tags, pub.keys) == (topic, producers, "a", "k1 k2")
    assert (pub.offset_msg_id, pub.success, pub.body_length) == (result.offset_msg_id, True, 5)
    assert isinstance(before, SubBeforeTrace)
    assert isinstance(after, SubAfterTrace)
    assert (before.request_id, before.group, after.success) == (after.request_id, consumers, True)
    shown = java("5.5.0", apache.namesrv).mqadmin("queryMsgTraceById", "-i", result.msg_id)
    assert producers in shown.stdout, shown
    assert consumers in shown.stdout, shown
    assert shown.stdout.count("success") == 2, shown


def test_traces_of_javas_clients_are_read(apache: ApacheCluster, java: Driver, trace_topic: str) -> None:
    topic, producers, consumers = new_topic(apache.namesrv), new_group(), new_group()
    driver = java("5.5.0", apache.namesrv)
    driver.call("producer.start", group=producers, handle=producers, trace=True)
    driver.call(
        "push.start", group=consumers, handle=consumers, topic=topic, expression="*", trace=True,
        options={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
    )  # fmt: skip
    sent = driver.call("producer.send", handle=producers, topic=topic, text="hello", tags="a", keys="k1 k2")
    driver.call("push.consumed", handle=consumers, count=1, timeoutMillis=30_000)
    pub, before, after = read_traces(apache.namesrv, sent["msgId"], 3)
    assert isinstance(pub, PubTrace)
    assert (pub.topic, pub.group, pub.tags, pub.keys, pub.body_length) == (topic, producers, "a", "k1 k2", 5)
    assert pub.success
    assert isinstance(before, SubBeforeTrace)
    assert (before.group, before.retry_times, before.keys) == (consumers, 0, "k1 k2")
    assert isinstance(after, SubAfterTrace)
    assert (after.request_id, after.success, after.group) == (before.request_id, True, consumers)
    driver.call("push.shutdown", handle=consumers)
    driver.call("producer.shutdown", handle=producers)
