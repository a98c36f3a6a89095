"""More of what Java's clients of 4.9.7 and 5.5.0 do on our servers: delays, order, traces, queries, places, groups."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from rocketcore.protocol.trace import PubTrace, SubAfterTrace, SubBeforeTrace
from tests.fixtures.topics import new_group, new_topic
from tests.fixtures.waiting import until
from tests.interop.test_java_clients import FROM_FIRST, bodies, consumed, drain
from tests.peers import ApacheCluster, DriverError, JavaDriver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(properties={"traceTopicEnable": "true"}) as running:
        yield running


@pytest.fixture(params=["5.5.0", "4.9.7"])
def driver(request: pytest.FixtureRequest, cluster: LocalCluster, java: Callable[[str, str], JavaDriver]) -> JavaDriver:
    return java(request.param, cluster.namesrv)


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return new_topic(cluster.namesrv)


def place(topic: str, number: int) -> dict[str, Any]:
    return {"topic": topic, "brokerName": "broker-a", "queueId": number}


def send(namesrv: str, topic: str, count: int, queue: int | None = None) -> list[rmq.SendResult]:
    """Send numbers with our producer, to one queue or to all in turn."""
    chosen = None if queue is None else rmq.MessageQueue(topic, "broker-a", queue)
    with rmq.Producer(namesrv, group=new_group()) as producer:
        return [producer.send(topic, b"%d" % number, keys=f"k{number}", queue=chosen) for number in range(count)]


def test_java_sends_in_order_with_a_delay_and_large(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    handle = driver.call("producer.start", group=new_group())["handle"]

    def send(**message: Any) -> None:
        sent = driver.call("producer.send", handle=handle, topic=topic, timeoutMillis=20_000, **message)
        assert sent["sendStatus"] == "SEND_OK"

    send(text="delayed", delayLevel=1)
    for number in range(8):
        send(text=f"{number}", shardingKey=f"key {number % 2}")
    send(text="chosen", queue=place(topic, 3))
    large = os.urandom(3_900_000)
    send(body=large)
    driver.call("producer.shutdown", handle=handle)
    received = drain(cluster, topic, 11)
    assert large in [message.body for message in received]
    [delayed] = [message for message in received if message.body == b"delayed"]
    assert delayed.stored_at - delayed.born_at >= timedelta(seconds=1)
    [chosen] = [message for message in received if message.body == b"chosen"]
    assert chosen.queue.queue_id == 3
    for key in range(2):
        ordered = [message for message in received if message.properties.get("__SHARDINGKEY") == f"key {key}"]
        ordered.sort(key=lambda message: message.offset)
        assert [message.text() for message in ordered] == [f"{number}" for number in range(key, 8, 2)]
        assert len({message.queue for message in ordered}) == 1


def test_java_broadcasts(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    """Each of two members gets everything."""
    group = new_group()
    for name in ("first", "second"):
        options = {**FROM_FIRST, "messageModel": "BROADCASTING", "instanceName": name}
        driver.call("push.start", handle=f"{group}-{name}", group=group, topic=topic, options=options)
    send(cluster.namesrv, topic, 8)
    for name in ("first", "second"):
        assert bodies(consumed(driver, f"{group}-{name}", 8)) == [b"%d" % number for number in range(8)]
        driver.call("push.shutdown", handle=f"{group}-{name}")


def test_java_tells_what_it_did(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    """Traces of its producer and consumer are read by us and by its own tool."""
    group = new_group()
    driver.call("producer.start", group=group, trace=True)
    driver.call("push.start", handle="traced", group=group, topic=topic, options=FROM_FIRST, trace=True)
    sent = driver.call("producer.send", handle=group, topic=topic, text="hello", keys="k")
    consumed(driver, "traced", 1)
    with rmq.Admin(cluster.namesrv) as admin:
        until(lambda: len(admin.message_traces(sent["msgId"])) == 3, 30)
        traces = admin.message_traces(sent["msgId"])
    assert {type(trace) for trace in traces} == {PubTrace, SubBeforeTrace, SubAfterTrace}
    shown = driver.mqadmin("queryMsgTraceById", "-i", sent["msgId"])
    assert shown.stdout.count(group) == 2, shown
    driver.call("push.shutdown", handle="traced")
    driver.call("producer.shutdown", handle=group)


def test_java_looks_messages_up(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    sent = send(cluster.namesrv, topic, 3)[1]
    [by_key] = driver.call("admin.queryByKey", topic=topic, key="k1")["messageList"]
    [by_unique_id] = driver.call("admin.queryByUniqKey", topic=topic, key=sent.msg_id)["messageList"]
    by_id, by_offset_id = (
        driver.call("admin.viewMessage", topic=topic, msgId=msg_id) for msg_id in (sent.msg_id, sent.offset_msg_id)
    )
    for found in (by_key, by_unique_id, by_id, by_offset_id):
        assert (found["queueId"], found["queueOffset"]) == (sent.queue.queue_id, sent.offset)
        assert base64.b64decode(found["body"]) == b"1"


def test_java_lite_pull_consumer_goes_where_it_is_told(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    """It has queues assigned, goes to places and times, pauses, and commits."""
    before = int(time.time() * 1000)
    send(cluster.namesrv, topic, 6, queue=1)
    queue = place(topic, 1)
    handle = driver.call("litePull.start", group=new_group(), options={"autoCommit": False})["handle"]
    driver.call("litePull.assign", handle=handle, queues=[queue])

    def poll(count: int) -> list[bytes]:
        received: list[dict[str, Any]] = []
        for _ in range(20):
            received += driver.call("litePull.poll", handle=handle, timeoutMillis=1000)
            if len(received) >= count:
                break
        return bodies(received)

    # Java drops what a pull brings behind a seek only until its next pull begins: none is to be on its way.
    assert poll(6) == [b"%d" % number for number in range(6)]
    driver.call("litePull.seek", handle=handle, queue=queue, to=4)
    assert poll(2) == [b"4", b"5"]
    driver.call("litePull.seek", handle=handle, queue=queue, to="begin")
    assert poll(6) == [b"%d" % number for number in range(6)]
    driver.call("litePull.commit", handle=handle)
    until(lambda: driver.call("litePull.committed", handle=handle, queue=queue) == 6, 30)
    assert driver.call("litePull.offsetForTimestamp", handle=handle, queue=queue, timestamp=before) == 0
    driver.call("litePull.pause", handle=handle, queues=[queue])
    driver.call("litePull.seek", handle=handle, queue=queue, to=3)
    assert driver.call("litePull.poll", handle=handle, timeoutMillis=500) == []
    driver.call("litePull.resume", handle=handle, queues=[queue])
    assert poll(3) == [b"3", b"4", b"5"]
    driver.call("litePull.shutdown", handle=handle)


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
@pytest.mark.parametrize("servers", ["ours", "Apache's"])
def test_java_and_we_split_the_queues_of_a_group_alike(
    version: str,
    servers: str,
    cluster: LocalCluster,
    apache_clusters: Callable[[str], ApacheCluster],
    java: Callable[[str, str], JavaDriver],
) -> None:
    """Each has four of eight queues, none has one of the other's, and each message comes to whose queue it is in."""
    namesrv = cluster.namesrv if servers == "ours" else apache_clusters(version).namesrv
    driver, topic, group = java(version, namesrv), new_topic(namesrv, queues=8), new_group()
    with rmq.PullConsumer(namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)
        started = driver.call("push.start", group=group, topic=topic, options=FROM_FIRST)

        def theirs() -> set[int]:
            told = driver.call("admin.consumerRunningInfo", group=group, clientId=started["clientId"])
            return {number for number in range(8) if f"{topic}:broker-a:{number}" in told["mqTable"]}

        def ours() -> set[int]:
            return {queue.queue_id for queue in consumer.assignment()}

        def is_split() -> bool:
            assert consumer.poll(timeout=0.1) == []
            return len(ours()) == len(theirs()) == 4

        until(is_split, 30)
        assert ours() | theirs() == set(range(8))
        first = min((consumer.client_id, ours()), (started["clientId"], theirs()))
        assert first[1] == set(range(4)), "queues are shared out in the order of client ids"
        send(namesrv, topic, 16)
        got = consumed(driver, started["handle"], 8)
        mine: list[rmq.ReceivedMessage] = []
        while len(mine) < 8 and (batch := consumer.poll(timeout=10.0)):
            mine += batch
        assert {message.queue.queue_id for message in mine} == ours()
        assert {message["queueId"] for message in got} == theirs()
        driver.call("push.shutdown", handle=started["handle"])
        until(lambda: consumer.poll(timeout=0.1) == [] and len(ours()) == 8, 30)


def test_java_cannot_make_a_topic_of_batches(cluster: LocalCluster, java: Callable[[str, str], JavaDriver]) -> None:
    """``queue.type=BatchCQ`` is refused: a queue that counts batches is not there."""
    driver, topic = java("5.5.0", cluster.namesrv), f"Batches-{new_group()}"
    options = {"attributes": {"+queue.type": "BatchCQ"}}
    with pytest.raises(DriverError, match="value is not in set"):
        driver.call("admin.createTopic", topic=topic, options=options)
    with rmq.Admin(cluster.namesrv) as admin:
        assert topic not in admin.topics()
