"""Counters, settings of brokers and groups that are moved, on Apache's 5.5.0 and 4.9.7, by the code that ours has."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore.message import MessageQueue
from tests.conformance.peer import Peer, unique
from tests.fixtures.commands import Rocket, rocket_command
from tests.fixtures.topics import await_messages
from tests.peers import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


@pytest.fixture(scope="module", params=["5.5.0", "4.9.7"])
def apache_cluster(request: pytest.FixtureRequest, apache_clusters: Callable[[str], ApacheCluster]) -> ApacheCluster:
    return apache_clusters(request.param)


@pytest.fixture
def rocket(
    apache_cluster: ApacheCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Rocket:
    return rocket_command(apache_cluster.namesrv, monkeypatch, capsys, "-o", "json", "-q")


@pytest.fixture
def topic(apache_cluster: ApacheCluster) -> str:
    """A topic of one queue with five messages."""
    name = unique("Operations")
    with rmq.Admin(apache_cluster.namesrv) as admin:
        admin.create_topic(name, 1)
    with rmq.Producer(apache_cluster.namesrv, group=unique("makers")) as producer:
        for number in range(5):
            producer.send(name, b"%d" % number, keys=f"k{number}")
    await_messages(apache_cluster.namesrv, name, 5)
    return name


def shown(rocket: Rocket, *arguments: str) -> Any:
    code, out, err = rocket(*arguments)
    assert code == 0, err
    return json.loads(out)


def test_counters(apache_cluster: ApacheCluster, rocket: Rocket, topic: str) -> None:
    with rmq.Admin(apache_cluster.namesrv) as admin:

        def counted() -> bool:
            traffic = admin.topic_traffic(topic)["broker-a"]
            return traffic.first is not None and traffic.first.minute == 5

        # Rates are made from samples that a broker of Apache's takes every ten seconds.
        Peer(apache_cluster.namesrv, apache=True).eventually(counted, timeout=40)
    [row] = shown(rocket, "topic", "stats", topic)
    assert (row["broker"], row["messages_minute"]) == ("broker-a", 5)
    assert shown(rocket, "broker", "stats", "broker-a")[0]["messages_in_minute"] >= 5


def test_settings(rocket: Rocket) -> None:
    [row] = shown(rocket, "broker", "config", "get", "broker-a", "fileReservedTime")
    before = row["value"]
    changed = shown(rocket, "broker", "config", "set", "broker-a", "fileReservedTime", "50")
    assert changed == {"broker": "broker-a", "name": "fileReservedTime", "before": before, "value": "50"}
    assert shown(rocket, "broker", "config", "set", "broker-a", "fileReservedTime", before)["before"] == "50"
    assert rocket("broker", "config", "set", "broker-a", "no.such", "1")[0] == 3


def test_groups_are_moved(apache_cluster: ApacheCluster, rocket: Rocket, topic: str) -> None:
    source, target = unique("source"), unique("target")
    queue = MessageQueue(topic, "broker-a", 0)
    with rmq.Admin(apache_cluster.namesrv) as admin:
        for name in (source, target):
            admin.create_group(name)
        admin.update_consumer_offset(source, queue, 2)
        assert shown(rocket, "offset", "clone", source, target, topic, "--yes")[0]["after"] == 2
        assert admin.consumer_offset(target, queue) == 2
        assert shown(rocket, "offset", "skip", target, topic, "-n", "1", "--yes")[0]["after"] == 3
        assert shown(rocket, "offset", "skip", target, topic, "--yes")[0]["after"] == 5
        assert admin.consumer_offset(target, queue) == 5
    [found] = shown(rocket, "offset", "locate", topic, "1h")
    assert (found["offset"], found["max_offset"], found["messages_since"]) == (0, 5, 5)
    [late] = shown(rocket, "offset", "locate", topic, "2100-01-01")
    # One of 4.9 says the offset of the last message where all are older.
    assert late["messages_since"] == (1 if apache_cluster.version == "4.9.7" else 0)


def test_what_became_of_a_message(apache_cluster: ApacheCluster, rocket: Rocket, topic: str) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    groups = {unique("behind"): 2, unique("past"): 3}
    failing = unique("failing")
    with rmq.Admin(apache_cluster.namesrv) as admin:
        for name, offset in groups.items():
            admin.create_group(name)
            admin.update_consumer_offset(name, queue, offset)
        message = admin.message_at(queue, 2)

        def states() -> dict[str, tuple[str, int]]:
            rows = shown(rocket, "message", "status", message.msg_id, "--topic", topic)
            return {row["group"]: (row["state"], row["failed"]) for row in rows}

        before = states()
        assert [before[name] for name in groups] == [("not_yet", 0), ("consumed", 0)]
        consumer = rmq.PushConsumer(apache_cluster.namesrv, group=failing, start_from="first")

        @consumer.subscribe(topic)
        def consume(received: rmq.ReceivedMessage) -> None:
            if received.msg_id == message.msg_id and not received.reconsume_times:
                raise rmq.RetryLater(delay=10)

        with consumer:
            eventually = Peer(apache_cluster.namesrv, apache=True).eventually
            eventually(lambda: states().get(failing) == ("retry", 1), timeout=30)
            eventually(lambda: states().get(failing) == ("consumed", 1), timeout=30)
            to_it = ("--topic", topic, "-g", failing)
            code, out, _ = rocket("message", "resend", message.msg_id, *to_it)
            assert (code, json.loads(out)["result"]) == (1, "CR_LATER"), "its first copy is what the handler fails for"
            other = admin.message_at(queue, 1)
            assert shown(rocket, "message", "resend", other.msg_id, *to_it)["result"] == "CR_SUCCESS"


def test_doctor_and_top(apache_cluster: ApacheCluster, rocket: Rocket, topic: str) -> None:
    group = unique("watched")
    with rmq.Admin(apache_cluster.namesrv) as admin:
        admin.create_group(group)
        admin.update_consumer_offset(group, MessageQueue(topic, "broker-a", 0), 1)
    code, out, err = rocket("doctor")
    found = {(row["check"], row["target"]): row["state"] for row in json.loads(out)}
    assert found["message", "broker-a"] in ("ok", "warn"), out
    assert found["clock", "broker-a"] == found["broker", "broker-a/0"] == "ok", (code, err)
    look = shown(rocket, "top", "--once", "-n", "10000")
    assert [row["lag"] for row in look["groups"] if row["group"] == group] == [4]
