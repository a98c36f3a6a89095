"""Messages for a time: Java producers on our broker, our producer on Apache's, and one store opened by both in turn."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from rocketcore.protocol.recall import RecallHandle
from tests.fixtures.apache import require_java
from tests.fixtures.processes import Processes
from tests.fixtures.topics import new_group, new_topic
from tests.interop.test_stores import Store
from tests.peers import ApacheCluster, JavaDriver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

FROM_FIRST = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
DELAY = 8
"""Seconds: longer than a broker takes to end and the other to start."""
RECALLS = {"recallMessageEnable": "true"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(properties=RECALLS) as running:
        yield running


@pytest.fixture(scope="module")
def recalling_apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    require_java()
    with ApacheCluster("5.5.0", tmp_path_factory.mktemp("apache"), extra_broker_conf=RECALLS) as running:
        yield running


def now() -> int:
    return time.time_ns() // 1_000_000


def test_java_sends_for_a_time_and_takes_back(cluster: LocalCluster, java: Callable[[str, str], JavaDriver]) -> None:
    driver, topic = java("5.5.0", cluster.namesrv), new_topic(cluster.namesrv)
    handle = driver.call("producer.start", group=new_group())["handle"]

    def send(text: str, **when: int) -> Any:
        sent = driver.call("producer.send", handle=handle, topic=topic, text=text, **when)
        assert sent["sendStatus"] == "SEND_OK"
        return sent

    due = {"deliver": now() + 4_000}
    send("deliver", deliverTimeMs=due["deliver"])
    due |= {"millis": now() + 4_200}
    send("millis", delayTimeMs=4_200)
    due |= {"seconds": now() + 4_000}
    send("seconds", delayTimeSec=4)
    gone = send("gone", delayTimeMs=4_500)
    taken = driver.call("producer.invoke", handle=handle, method="recallMessage", args=[topic, gone["recallHandle"]])
    assert gone["msgId"] in str(taken)
    consumer = driver.call("push.start", group=new_group(), topic=topic, options=FROM_FIRST)["handle"]
    received: dict[str, int] = {}
    while len(received) < 3:
        batch = driver.call("push.consumed", handle=consumer, count=1, timeoutMillis=30_000)
        assert batch, received
        received |= {base64.b64decode(message["body"]).decode(): message["storeTimestamp"] for message in batch}
    assert received.keys() == due.keys()
    for name, stored in received.items():
        assert due[name] <= stored <= due[name] + 1_500, name
    assert driver.call("push.consumed", handle=consumer, count=1, timeoutMillis=3_000) == []
    driver.call("push.shutdown", handle=consumer)
    driver.call("producer.shutdown", handle=handle)


def read(namesrv: str, topic: str, count: int, more: float = 0.5) -> list[rmq.ReceivedMessage]:
    """Return so many messages, and what comes in so many seconds after them."""
    received: list[rmq.ReceivedMessage] = []
    with rmq.PullConsumer(namesrv, group=new_group(), start_from="first") as consumer:
        consumer.subscribe(topic)
        while len(received) < count:
            batch = consumer.poll(timeout=20.0)
            assert batch, received
            received += batch
        received += consumer.poll(timeout=more)
    return received


def test_our_producer_on_apaches_timers(recalling_apache: ApacheCluster) -> None:
    namesrv = recalling_apache.namesrv
    topic = new_topic(namesrv)
    with rmq.Producer(namesrv, group=new_group()) as producer:
        at = producer.send(topic, "at", deliver_at=datetime.now(UTC) + timedelta(seconds=4))
        delay = producer.send(topic, "delay", delay=4)
        gone = producer.send(topic, "gone", delay=5)
        assert gone.recall_handle is not None
        assert RecallHandle.decode(gone.recall_handle).msg_id == gone.msg_id
        assert producer.recall(topic, gone.recall_handle) == gone.msg_id
        with pytest.raises(rmq.BrokerError, match="max delay"):
            producer.send(topic, "far", delay=timedelta(days=4))
    received = {message.text(): message for message in read(namesrv, topic, 2, 2.0)}
    assert {name: message.msg_id for name, message in received.items()} == {"at": at.msg_id, "delay": delay.msg_id}
    names = {name for message in received.values() for name in message.properties if name.startswith(("TIMER", "REAL"))}
    ours = {"TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}
    assert names <= {*ours, "REAL_TOPIC", "REAL_QID", "TIMER_ROLL_TIMES"}, names
    assert ours <= names


def test_a_store_with_waiting_messages_goes_from_one_broker_to_the_other(processes: Processes, tmp_path: Path) -> None:
    """What waits at the one is delivered by the other; what came there before may come again."""
    require_java()
    store = Store(processes, tmp_path)

    def send(text: str, seconds: int) -> None:
        with rmq.Producer(store.namesrv, group=new_group()) as producer:
            producer.send("Waiting", text, delay=seconds)

    def texts(count: int) -> set[str]:
        return {message.text() for message in read(store.namesrv, "Waiting", count)}

    with store.apache("5.5.0", "stop"):
        send("plain", 0)
        send("from Apache", DELAY)
        asked = now()
    with store.ours("stop"):
        assert texts(2) == {"plain", "from Apache"}
        assert now() >= asked + (DELAY - 1) * 1000
        send("from ours", DELAY)
    with store.apache("5.5.0", "stop"):
        # What Apache's broker had in its wheel comes there again.
        assert texts(4) == {"plain", "from Apache", "from ours"}
