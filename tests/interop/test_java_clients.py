"""Java clients of 4.9.7 and 5.5.0 on our NameServer and broker: they send, consume, pull, retry and lock."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from tests.fixtures.topics import new_group, new_topic
from tests.peers import DriverError, JavaDriver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

FROM_FIRST = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(properties={"enablePropertyFilter": "true"}) as running:
        yield running


@pytest.fixture(params=["5.5.0", "4.9.7"])
def driver(request: pytest.FixtureRequest, cluster: LocalCluster, java: Callable[[str, str], JavaDriver]) -> JavaDriver:
    return java(request.param, cluster.namesrv)


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return new_topic(cluster.namesrv)


def bodies(messages: list[dict[str, Any]]) -> list[bytes]:
    return sorted(base64.b64decode(message["body"]) for message in messages)


def consumed(driver: JavaDriver, handle: str, count: int) -> list[dict[str, Any]]:
    """Wait until ``count`` messages came, and return all that did."""
    received: list[dict[str, Any]] = []
    while len(received) < count:
        batch = driver.call("push.consumed", handle=handle, count=1, timeoutMillis=30_000)
        assert batch, f"{len(received)} of {count} messages came"
        received += batch
    return received


def test_java_sends_every_way_and_we_consume(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    handle = driver.call("producer.start", group=new_group())["handle"]
    sent = driver.call("producer.send", handle=handle, topic=topic, body=b"\x00\xff", tags="a", keys="k1 k2")
    assert sent["sendStatus"] == "SEND_OK"
    big = b"x" * 5000  # compressed by the client
    driver.call("producer.send", handle=handle, topic=topic, body=big, tags="a")
    driver.call("producer.sendBatch", handle=handle, topic=topic, messages=[{"text": f"batch {i}"} for i in range(3)])
    messages = [{"text": f"async {i}"} for i in range(5)]
    done = driver.call("producer.sendAsync", handle=handle, topic=topic, messages=messages)
    assert len(done["results"]) == 5
    driver.call("producer.sendOneway", handle=handle, topic=topic, text="one way")
    numbered = [b"batch %d" % i for i in range(3)] + [b"async %d" % i for i in range(5)]
    expected = sorted([b"\x00\xff", big, b"one way", *numbered])

    received = drain(cluster, topic, len(expected))
    assert sorted(message.body for message in received) == expected
    [first] = [message for message in received if message.body == b"\x00\xff"]
    assert (first.tag, first.keys, first.msg_id) == ("a", ("k1", "k2"), sent["msgId"])
    driver.call("producer.shutdown", handle=handle)


def test_java_creates_a_topic_by_sending(driver: JavaDriver, cluster: LocalCluster) -> None:
    new = f"Auto-{uuid4().hex[:12]}"
    handle = driver.call("producer.start", group=new_group())["handle"]
    assert driver.call("producer.send", handle=handle, topic=new, text="first")["sendStatus"] == "SEND_OK"
    assert [message.body for message in drain(cluster, new, 1)] == [b"first"]
    driver.call("producer.shutdown", handle=handle)


def test_java_push_consumer_takes_what_we_send(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    handle = driver.call("push.start", group=new_group(), topic=topic, expression="a || b", options=FROM_FIRST)[
        "handle"
    ]
    with rmq.Producer(cluster.namesrv, group=new_group()) as producer:
        for i in range(10):
            producer.send(topic, b"push %d" % i, tag="abc"[i % 3], keys=str(i))
        producer.send(topic, b"y" * 9000, tag="a")
        producer.send_batch([rmq.Message(topic, b"batched %d" % i, tag="b") for i in range(4)])
    tagged = [b"push %d" % i for i in range(10) if i % 3 < 2]
    wanted = sorted([*tagged, b"y" * 9000, *(b"batched %d" % i for i in range(4))])
    received = consumed(driver, handle, len(wanted))
    assert bodies(received) == wanted
    driver.call("push.shutdown", handle=handle)


def test_java_push_consumer_gets_a_failed_message_again(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    handle = driver.call(
        "push.start", group=new_group(), topic=topic, options=FROM_FIRST, script={"failTimes": 1, "delayLevel": 1}
    )["handle"]
    with rmq.Producer(cluster.namesrv, group=new_group()) as producer:
        producer.send(topic, b"again", keys="k")
    first, second = consumed(driver, handle, 2)
    assert (first["reconsumeTimes"], second["reconsumeTimes"]) == (0, 1)
    assert first["topic"] == second["topic"] == topic
    assert first["msgId"] == second["msgId"]
    driver.call("push.shutdown", handle=handle)


def test_java_orderly_consumer_locks_its_queues(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    handle = driver.call("push.start", group=new_group(), topic=topic, options=FROM_FIRST, orderly=True)["handle"]
    with rmq.Producer(cluster.namesrv, group=new_group()) as producer:
        for i in range(20):
            producer.send(topic, b"%02d" % i, message_group="one")
    received = consumed(driver, handle, 20)
    assert [base64.b64decode(message["body"]) for message in received] == [b"%02d" % i for i in range(20)]
    driver.call("push.shutdown", handle=handle)


def test_java_lite_pull_consumer(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    with rmq.Producer(cluster.namesrv, group=new_group()) as producer:
        for i in range(12):
            producer.send(topic, b"lite %d" % i)
    handle = driver.call("litePull.start", group=new_group(), options=FROM_FIRST)["handle"]
    driver.call("litePull.subscribe", handle=handle, topic=topic)
    received: list[dict[str, Any]] = []
    for _ in range(20):
        received += driver.call("litePull.poll", handle=handle, timeoutMillis=3000)
        if len(received) >= 12:
            break
    assert bodies(received) == sorted(b"lite %d" % i for i in range(12))
    driver.call("litePull.commit", handle=handle)
    driver.call("litePull.shutdown", handle=handle)


SQL = {
    "price > 2 AND region = 'eu'": [4, 6, 8],
    "region IS NULL OR price BETWEEN 3 AND 5": [0, 3, 4, 5],
    "TAGS IN ('t1') AND price <> 1": [4, 7],
}


def send_prices(cluster: LocalCluster, topic: str) -> None:
    """Nine messages, numbered in their bodies."""
    with rmq.Producer(cluster.namesrv, group=new_group()) as producer:
        for i in range(9):
            properties = {"price": f"{i}", "region": "us" if i % 2 else "eu"} if i else {"price": "none"}
            producer.send(topic, b"%d" % i, tag=f"t{i % 3}", properties=properties)


@pytest.mark.parametrize("expression", SQL)
def test_java_push_consumer_with_an_expression(
    driver: JavaDriver, cluster: LocalCluster, topic: str, expression: str
) -> None:
    subscription: dict[str, Any] = {"topic": topic, "expression": expression, "type": "SQL92"}
    handle = driver.call("push.start", group=new_group(), options=FROM_FIRST, **subscription)["handle"]
    send_prices(cluster, topic)
    wanted = [b"%d" % i for i in SQL[expression]]
    assert bodies(consumed(driver, handle, len(wanted))) == wanted
    assert driver.call("push.consumed", handle=handle, count=1, timeoutMillis=1000) == []
    driver.call("push.shutdown", handle=handle)


def test_java_pull_consumers_with_an_expression(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    send_prices(cluster, topic)
    pulling = driver.call("pull.start", group=new_group())["handle"]
    queues = driver.call("pull.queues", handle=pulling, topic=topic)
    for expression, numbers in SQL.items():
        received: list[dict[str, Any]] = []
        for queue in queues:
            result = pull_when_its_version_is_known(
                driver, handle=pulling, queue=queue, offset=0, max=32, expression=expression, type="SQL92"
            )
            received += result.get("messages") or result.get("msgFoundList") or []
        assert bodies(received) == [b"%d" % i for i in numbers]
    driver.call("pull.shutdown", handle=pulling)


def pull_when_its_version_is_known(driver: JavaDriver, **arguments: Any) -> dict[str, Any]:
    """Pull as soon as the client knows, from the answer to a heartbeat, that the broker has such filters."""
    deadline = time.monotonic() + 20
    while True:
        try:
            result: dict[str, Any] = driver.call("pull.pull", **arguments)
            return result
        except DriverError as error:
            if "does not upgrade to support" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_java_lite_pull_consumer_with_an_expression(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    send_prices(cluster, topic)
    handle = driver.call("litePull.start", group=new_group(), options=FROM_FIRST)["handle"]
    expression, numbers = next(iter(SQL.items()))
    driver.call("litePull.subscribe", handle=handle, topic=topic, expression=expression, type="SQL92")
    received: list[dict[str, Any]] = []
    for _ in range(20):
        received += driver.call("litePull.poll", handle=handle, timeoutMillis=3000)
        if len(received) >= len(numbers):
            break
    assert bodies(received) == [b"%d" % i for i in numbers]
    driver.call("litePull.shutdown", handle=handle)


def test_java_is_told_of_an_expression_that_does_not_compile(
    driver: JavaDriver, cluster: LocalCluster, topic: str
) -> None:
    with pytest.raises(DriverError, match=r"SUBSCRIPTION_PARSE_FAILED|CODE: 23"):
        driver.call("push.start", group=new_group(), topic=topic, expression="price > (", type="SQL92")


def test_java_pull_consumer(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    with rmq.Producer(cluster.namesrv, group=new_group()) as producer:
        for i in range(8):
            producer.send(topic, b"pull %d" % i)
    handle = driver.call("pull.start", group=new_group())["handle"]
    received: list[dict[str, Any]] = []
    for queue in driver.call("pull.queues", handle=handle, topic=topic):
        result = driver.call("pull.pull", handle=handle, queue=queue, offset=0, max=32)
        received += result.get("messages") or result.get("msgFoundList") or []
    assert bodies(received) == sorted(b"pull %d" % i for i in range(8))
    driver.call("pull.shutdown", handle=handle)


def test_java_sends_by_the_vip_channel(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    handle = driver.call("producer.start", group=new_group(), options={"vipChannelEnabled": True})["handle"]
    assert driver.call("producer.send", handle=handle, topic=topic, text="vip")["sendStatus"] == "SEND_OK"
    [message] = drain(cluster, topic, 1)
    assert message.body == b"vip"
    driver.call("producer.shutdown", handle=handle)


def test_java_asks_and_we_answer(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    with rmq.PushConsumer(cluster.namesrv, group=new_group(), start_from="first") as consumer:

        @consumer.subscribe(topic)
        def answer(message: rmq.ReceivedMessage) -> None:
            message.reply(b"re: " + message.body, tag="answer").result(20.0)

        handle = driver.call("producer.start", group=new_group())["handle"]
        for body in (b"small", b"x" * 9000):
            reply = driver.call("producer.request", handle=handle, topic=topic, body=body, timeoutMillis=30_000)
            assert base64.b64decode(reply["body"]) == b"re: " + body
        driver.call("producer.shutdown", handle=handle)


def test_java_answers_java_and_us(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    responder = driver.call("responder.start", group=new_group(), topic=topic, prefix="re: ", options=FROM_FIRST)
    with rmq.Producer(cluster.namesrv, group=new_group()) as producer:
        assert producer.request(topic, b"ours", timeout=30.0).body == b"re: ours"
    handle = driver.call("producer.start", group=new_group())["handle"]
    reply = driver.call("producer.request", handle=handle, topic=topic, text="Java's", timeoutMillis=30_000)
    assert base64.b64decode(reply["body"]) == b"re: Java's"
    driver.call("producer.shutdown", handle=handle)
    driver.call("responder.shutdown", handle=responder["handle"])


def test_nobody_answers_java(driver: JavaDriver, topic: str) -> None:
    handle = driver.call("producer.start", group=new_group())["handle"]
    with pytest.raises(DriverError, match="wait reply message timeout"):
        driver.call("producer.request", handle=handle, topic=topic, text="?", timeoutMillis=2000)
    driver.call("producer.shutdown", handle=handle)


def drain(cluster: LocalCluster, topic: str, count: int) -> list[rmq.ReceivedMessage]:
    """Pull with our consumer until ``count`` messages came; more than that is an error too."""
    received: list[rmq.ReceivedMessage] = []
    with rmq.PullConsumer(cluster.namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(topic)
        while len(received) < count:
            batch = consumer.poll(timeout=10.0)
            assert batch, f"{len(received)} of {count} messages came"
            received += batch
    assert len(received) == count
    return received


def test_what_a_tool_asks_a_java_consumer(cluster: LocalCluster, java: Callable[[str, str], JavaDriver]) -> None:
    """Its state and stacks, and where to go on: told of by the broker where that is set so, as 4.9's does.

    Of both releases side by side: each waits 10 s before it commits first, and 10 s when it is told where to go on.
    """
    drivers = {version: java(version, cluster.namesrv) for version in ("5.5.0", "4.9.7")}
    [broker] = cluster.broker_addresses
    with rmq.Admin(cluster.namesrv) as admin, ThreadPoolExecutor() as threads:
        admin.update_broker_config(broker, {"useServerSideResetOffset": "false"})
        try:
            asked = {version: threads.submit(ask_consumer, driver, cluster) for version, driver in drivers.items()}
            again = {version: each.result() for version, each in asked.items()}
        finally:
            admin.update_broker_config(broker, {"useServerSideResetOffset": "true"})
    assert again == {version: [b"0", b"1", b"2", b"3"] for version in drivers}


def ask_consumer(driver: JavaDriver, cluster: LocalCluster) -> list[bytes]:
    """Have a consumer get four messages, tell of itself, and go back; return what it gets again."""
    topic, group = new_topic(cluster.namesrv), new_group()
    started = driver.call("push.start", group=group, topic=topic, options=FROM_FIRST)
    with rmq.Producer(cluster.namesrv, group=new_group()) as producer, rmq.Admin(cluster.namesrv) as admin:
        for number in range(4):
            producer.send(topic, f"{number}")
        assert len(consumed(driver, started["handle"], 4)) == 4
        info = driver.call("admin.consumerRunningInfo", group=group, clientId=started["clientId"], jstack=True)
        assert "TID: " in info["jstack"]
        assert any(topic in queue for queue in info["mqTable"])
        queues = admin.queues(topic)
        while sum(admin.consumer_offset(group, queue) or 0 for queue in queues) < 4 or not all(
            admin.consumer_offset(group, queue) is not None for queue in queues
        ):
            threading.Event().wait(0.1)
        driver.call("admin.resetOffset", topic=topic, group=group, timestamp=0, force=True)
        again = consumed(driver, started["handle"], 4)
    driver.call("push.shutdown", handle=started["handle"])
    return bodies(again)
