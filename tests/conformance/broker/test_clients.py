"""Heartbeats, members of groups, notices, queue locks (broker.md §21, §23)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.broker.connection import Connection, consumer, heartbeat_body, subscription
from tests.conformance.broker.differences import expected
from tests.conformance.peer import unique


def members(broker: Connection, group: str) -> list[str]:
    answer = broker.ask(38, {"consumerGroup": group})
    return sorted(answer.json["consumerIdList"]) if answer.code == 0 else []


def test_a_heartbeat(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    answer = broker.heartbeat("c1", consumer(group, topic), producers=["producers"])
    assert (answer.code, answer.remark, answer.body) == (0, None, b"")
    assert answer.fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert members(broker, group) == ["c1"]
    assert broker.ask(351, {"topic": f"%RETRY%{group}"}).json["perm"] == 6


def test_nobody_is_in_a_group(broker: Connection) -> None:
    group = broker.group()
    answer = broker.ask(38, {"consumerGroup": group})
    assert (answer.code, answer.remark) == (1, f"no consumer for this group, {group}")
    assert broker.ask(203, {"consumerGroup": group}).code == 206
    assert broker.ask(204, {"producerGroup": group}).code == 1


def test_who_is_connected(broker: Connection) -> None:
    topic, group, name = broker.topic(), broker.group(), unique("producers")
    broker.heartbeat("c1", consumer(group, topic, tags="a || b", version=3), producers=[name])
    found = broker.ask(203, {"consumerGroup": group}).json
    (one,) = found["connectionSet"]
    host, port = broker.socket.getsockname()
    assert one == {"clientId": "c1", "clientAddr": f"{host}:{port}", "language": "JAVA", "version": 513}
    assert (found["consumeType"], found["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert found["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    said = found["subscriptionTable"][topic]
    assert (said["subString"], sorted(said["tagsSet"]), said["subVersion"]) == ("a || b", ["a", "b"], 3)
    assert broker.ask(204, {"producerGroup": name}).json["connectionSet"] == [one]
    everyone = broker.ask(328).json["data"][name]
    assert [(each["clientId"], each["remoteIP"]) for each in everyone] == [("c1", f"/{host}:{port}")]


def test_members_hear_of_each_other(broker: Connection, connect: Callable[[], Connection]) -> None:
    topic, group, other = broker.topic(), broker.group(), connect()
    broker.heartbeat("c1", consumer(group, topic))
    assert broker.hears(40).fields == {"consumerGroup": group}
    other.heartbeat("c2", consumer(group, topic))
    assert broker.hears(40).fields == {"consumerGroup": group}
    assert other.hears(40).fields == {"consumerGroup": group}
    assert members(broker, group) == ["c1", "c2"]
    assert other.ask(35, {"clientID": "c2", "consumerGroup": group}).code == 0
    assert broker.hears(40).fields == {"consumerGroup": group}
    assert members(broker, group) == ["c1"]


def test_a_member_whose_connection_ends_leaves(broker: Connection, connect: Callable[[], Connection]) -> None:
    topic, group, other = broker.topic(), broker.group(), connect()
    broker.heartbeat("c1", consumer(group, topic))
    other.heartbeat("c2", consumer(group, topic))
    broker.hears(40)
    broker.hears(40)
    other.__exit__()
    broker.hears(40)
    broker.eventually(lambda: members(broker, group) == ["c1"])


def test_a_connection_that_ends_makes_no_group_again(broker: Connection, connect: Callable[[], Connection]) -> None:
    group, other = broker.group(), connect()
    other.heartbeat("c2", consumer(group, broker.topic()))
    assert broker.ask(207, {"groupName": group, "cleanOffset": "true"}).code == 0
    other.__exit__()
    broker.eventually(lambda: members(broker, group) == [])
    assert group not in broker.ask(201).json["subscriptionGroupTable"]


@pytest.mark.parametrize("is_member", [True, False])
def test_who_leaves_a_deleted_group_makes_it_again(broker: Connection, *, is_member: bool) -> None:
    group = broker.group()
    if is_member:
        broker.heartbeat("c1", consumer(group, broker.topic()))
    assert broker.ask(207, {"groupName": group, "cleanOffset": "true"}).code == 0
    assert broker.ask(35, {"clientID": "c1", "consumerGroup": group}).code == 0
    assert group in broker.ask(201).json["subscriptionGroupTable"]


def test_a_member_gives_up_a_topic(broker: Connection) -> None:
    one, two, group = broker.topic(), broker.topic(), broker.group()
    broker.heartbeat("c1", consumer(group, one, two))
    broker.heartbeat("c1", consumer(group, two, version=2))
    table = broker.ask(203, {"consumerGroup": group}).json["subscriptionTable"]
    assert {name: said["subVersion"] for name, said in table.items()} == {two: 2}


def test_an_older_version_changes_nothing(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.heartbeat("c1", consumer(group, topic, tags="new", version=5))
    broker.heartbeat("c1", consumer(group, topic, tags="old", version=4))
    assert broker.ask(203, {"consumerGroup": group}).json["subscriptionTable"][topic]["subString"] == "new"


def test_a_short_heartbeat(broker: Connection) -> None:
    """One with a fingerprint: the subscriptions are as they were."""
    topic, group = broker.topic(), broker.group()
    body = json.loads(heartbeat_body("c1", [consumer(group, topic)]))
    changes = []
    for fingerprint, without in ((7, False), (7, True), (8, True), (8, True)):
        said = {**body, "heartbeatFingerprint": fingerprint, "withoutSub": without}
        answer = broker.ask(34, body=json.dumps(said).encode())
        changes.append(answer.fields["IS_SUB_CHANGE"])
        assert members(broker, group) == ["c1"]
    assert changes == expected(broker, "IS_SUB_CHANGE of short heartbeats")
    assert topic in broker.ask(203, {"consumerGroup": group}).json["subscriptionTable"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null"])
def test_a_heartbeat_that_is_none(broker: Connection, body: bytes) -> None:
    assert broker.ask(34, body=body).code == 1


@pytest.mark.parametrize(("expression", "kind", "code"), [("a", "TAG", 0), ("a > 1", "SQL92", 0), ("a >", "SQL92", 23)])
def test_whether_a_filter_can_be(broker: Connection, expression: str, kind: str, code: int) -> None:
    said = {"clientId": "c", "group": "g", "subscriptionData": subscription("T", expression, kind=kind)}
    assert broker.ask(46, body=json.dumps(said).encode()).code == code


def queues(topic: str, *numbers: int) -> list[dict[str, Any]]:
    return [{"topic": topic, "brokerName": "broker-a", "queueId": number} for number in numbers]


def locked(broker: Connection, client: str, group: str, topic: str, *numbers: int) -> list[int]:
    body = {"consumerGroup": group, "clientId": client, "mqSet": queues(topic, *numbers)}
    answer = broker.ask(41, body=json.dumps(body).encode())
    assert (answer.code, answer.remark) == (0, None)
    return sorted(queue["queueId"] for queue in answer.json["lockOKMQSet"])


def test_locks(broker: Connection) -> None:
    topic, group = broker.topic(), unique("G")
    assert locked(broker, "c1", group, topic, 0, 1) == [0, 1]
    assert locked(broker, "c1", group, topic, 1) == [1]
    assert locked(broker, "c2", group, topic, 0, 1, 2) == [2]
    assert locked(broker, "c2", unique("G"), topic, 0) == [0]
    unlock = {"consumerGroup": group, "clientId": "c2", "mqSet": queues(topic, 0, 2)}
    assert broker.ask(42, body=json.dumps(unlock).encode()).code == 0
    assert locked(broker, "c1", group, topic, 2) == [2]
    assert locked(broker, "c2", group, topic, 0) == []
