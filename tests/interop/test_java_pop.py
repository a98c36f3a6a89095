"""Java push consumers of 5.5.0 that pop from our broker: the broker shares out, hands out, and brings back."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from tests.fixtures.topics import new_group, new_topic
from tests.interop.test_java_clients import FROM_FIRST, bodies, consumed
from tests.peers import JavaDriver

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def driver(cluster: LocalCluster, java: Callable[[str, str], JavaDriver]) -> JavaDriver:
    return java("5.5.0", cluster.namesrv)


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return new_topic(cluster.namesrv)


def start(driver: JavaDriver, topic: str, group: str, **options: Any) -> str:
    handle = driver.call("push.start", group=group, topic=topic, pop=True, options=FROM_FIRST, **options)["handle"]
    assert isinstance(handle, str)
    return handle


def test_two_members_pop_what_we_send(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    """Both wait at every queue; each message comes to one of them, once."""
    group = new_group()
    first = start(driver, topic, group, expression="a || b")
    second = driver.call(
        "push.start",
        handle="second",
        group=group,
        topic=topic,
        pop=True,
        expression="a || b",
        options={**FROM_FIRST, "instanceName": "second"},
    )["handle"]
    with rmq.Producer(cluster.namesrv, group=new_group()) as producer:
        for number in range(60):
            producer.send(topic, b"%d" % number, tag="abc"[number % 3])
    wanted = sorted(b"%d" % number for number in range(60) if number % 3 < 2)
    received: list[dict[str, Any]] = []
    for handle in (first, second) * 20:
        if len(received) < len(wanted):
            received += driver.call("push.consumed", handle=handle, count=1, timeoutMillis=1_000)
    assert bodies(received) == wanted
    for handle in (first, second):
        assert driver.call("push.consumed", handle=handle, count=1, timeoutMillis=500) == []
        driver.call("push.shutdown", handle=handle)


def test_a_failed_message_comes_again(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    """The client changes its invisible time to the first delay, ten seconds."""
    handle = start(driver, topic, new_group(), script={"failTimes": 1})
    with rmq.Producer(cluster.namesrv, group=new_group()) as producer:
        producer.send(topic, b"again", keys="k")
    first, second = consumed(driver, handle, 2)
    assert (first["reconsumeTimes"], second["reconsumeTimes"]) == (0, 1)
    assert first["topic"] == second["topic"] == topic
    assert first["msgId"] == second["msgId"]
    assert base64.b64decode(second["body"]) == b"again"
    driver.call("push.shutdown", handle=handle)


def test_an_orderly_consumer_pops_in_order(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    """One message fails once: those behind it wait for it."""
    handle = start(driver, topic, new_group(), orderly=True, script={"failTimes": 1})
    with rmq.Producer(cluster.namesrv, group=new_group()) as producer:
        for number in range(6):
            producer.send(topic, b"%d" % number, message_group="one")
    received = consumed(driver, handle, 12)
    done = list(dict.fromkeys(base64.b64decode(message["body"]) for message in reversed(received)))
    assert done[::-1] == [b"%d" % number for number in range(6)]
    driver.call("push.shutdown", handle=handle)
