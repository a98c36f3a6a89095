"""Java push consumers of 5.5.0 that pop: from our broker, beside our members, and beside members that pull."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from tests.fixtures.topics import new_group, new_topic
from tests.fixtures.waiting import until
from tests.interop.test_java_clients import FROM_FIRST, bodies, consumed
from tests.peers import ApacheCluster, JavaDriver

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


@pytest.mark.parametrize("servers", ["ours", "Apache's"])
def test_java_and_we_go_from_pop_to_pull_and_back(
    servers: str, cluster: LocalCluster, apache: ApacheCluster, java: Callable[[str, str], JavaDriver]
) -> None:
    """A member of each in one group, whose mode is changed while they run: nothing is lost, and both go over."""
    namesrv = cluster.namesrv if servers == "ours" else apache.namesrv
    driver, topic, group = java("5.5.0", namesrv), new_topic(namesrv), new_group()
    ours: list[bytes] = []
    theirs: list[bytes] = []
    sent: set[bytes] = set()
    handle = start(driver, topic, group)
    with (
        rmq.PushConsumer(namesrv, group=group, start_from="first", pop=True) as consumer,
        rmq.Producer(namesrv, group=new_group()) as producer,
        rmq.Admin(namesrv) as admin,
    ):
        consumer.subscribe(topic, handler=lambda message: ours.append(message.body))
        for mode, queues in (("pop", {-1}), ("pull", {0, 1, 2, 3}), ("pop", {-1})):
            admin.set_request_mode(group, topic, mode)  # type: ignore[arg-type]

            def has_gone_over(queues: set[int] = queues) -> bool:
                mine = {queue.queue_id for queue in consumer.queues()}
                return mine == queues if queues == {-1} else bool(mine) and mine < queues

            until(has_gone_over)
            more = {b"%s %d" % (mode.encode(), number + len(sent)) for number in range(40)}
            sent |= more
            for body in more:
                producer.send(topic, body)

            def is_there(more: set[bytes] = more) -> bool:
                theirs.extend(bodies(driver.call("push.consumed", handle=handle, count=0)))
                return more <= {*ours, *theirs}

            until(is_there)
            if mode == "pull":  # who of those that wait for a message gets it is chance
                assert more & {*ours}
                assert more & {*theirs}
    assert {*ours, *theirs} == sent
    driver.call("push.shutdown", handle=handle)


def test_members_that_pull_and_one_that_pops(driver: JavaDriver, cluster: LocalCluster, topic: str) -> None:
    """In one group each message comes to either kind, or both, and to none twice."""
    group = new_group()
    started = driver.call("push.start", group=group, topic=topic, options=FROM_FIRST)
    pulling = started["handle"]

    def queues() -> set[int]:
        told = driver.call("admin.consumerRunningInfo", group=group, clientId=started["clientId"])
        return {number for number in range(4) if f"{topic}:broker-a:{number}" in told["mqTable"]}

    until(lambda: len(queues()) == 4)
    with (
        rmq.SimpleConsumer(cluster.namesrv, group=group, start_from="first") as popping,
        rmq.Producer(cluster.namesrv, group=new_group()) as producer,
    ):
        popping.subscribe(topic)
        assert popping.receive(timeout=0.5) == []
        until(lambda: len(queues()) == 2)  # the other two are for the member that it takes for one that pulls
        for number in range(20):
            producer.send(topic, b"%02d" % number)
        got: dict[str, list[bytes]] = {"pulled": [], "popped": []}

        def is_there() -> bool:
            got["pulled"] += bodies(driver.call("push.consumed", handle=pulling, count=0))
            for message in popping.receive(timeout=0.5):
                got["popped"].append(message.body)
                message.ack()
            return {*got["pulled"], *got["popped"]} == {b"%02d" % number for number in range(20)}

        until(is_there)
        popping.flush()
        assert is_there()
    for texts in got.values():
        assert texts
        assert len(texts) == len(set(texts))
    driver.call("push.shutdown", handle=pulling)
