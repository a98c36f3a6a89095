"""``rocket group``, ``offset``, ``client`` and ``dlq`` against a running cluster."""

from __future__ import annotations

import json
from typing import Any

from rocketcore.admin.client import Admin
from rocketcore.client.sync import PullConsumer
from rocketcore.local import LocalCluster
from rocketcore.message import MessageQueue
from tests.fixtures.commands import Rocket


def shown(rocket: Rocket, *arguments: str) -> Any:
    """Run a command that succeeds and return what it prints as JSON."""
    code, out, err = rocket(*arguments, "-o", "json")
    assert code == 0, err
    return json.loads(out)


def at(cluster: LocalCluster, group: str, topic: str, offset: int) -> None:
    """Make a group whose offset in the first queue of a topic is this."""
    with Admin(cluster.namesrv) as admin:
        admin.create_group(group)
        admin.update_consumer_offset(group, MessageQueue(topic, "broker-a", 0), offset)


def test_lag_tells_no_offset_from_offset_0(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    at(cluster, "behind", topic, 2)
    first, second = shown(rocket, "group", "lag", "behind")
    assert first.pop("lag_seconds") > 0
    assert first.pop("consumed_at").endswith("Z")
    assert first == {
        "topic": topic, "broker": "broker-a", "queue_id": 0, "broker_offset": 5, "group_offset": 2, "lag": 3
    }  # fmt: skip
    unknown = {name: second[name] for name in ("broker_offset", "group_offset", "lag", "lag_seconds", "consumed_at")}
    assert unknown == {
        "broker_offset": 0, "group_offset": None, "lag": None, "lag_seconds": None, "consumed_at": None
    }  # fmt: skip
    at(cluster, "behind", topic, 0)
    assert [row["lag"] for row in shown(rocket, "group", "lag", "behind", "--topic", topic)] == [5, None]
    at(cluster, "behind", topic, 5)
    assert shown(rocket, "group", "lag", "behind")[0]["lag_seconds"] == 0
    code, _, err = rocket("group", "lag", "nobody", "-o", "json")
    assert (code, json.loads(err)["error"]["code"]) == (3, "GROUP_NOT_EXIST")


def test_a_group_with_its_members(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    with PullConsumer(cluster.namesrv, group="watched") as consumer:
        consumer.subscribe(topic, tag="even")
        consumer.poll(timeout=5)
        consumer.commit()
        found = shown(rocket, "group", "describe", "watched")
        [member] = found["members"]
        assert (found["state"], found["brokers"], found["message_model"]) == ("online", ["broker-a"], "CLUSTERING")
        assert (member["client_id"], member["language"], member["version"]) == (consumer.client_id, "PYTHON", "5.3.3")
        assert member["brokers"] == ["broker-a"]
        assert {"topic": topic, "expression_type": "TAG", "expression": "even"} in found["subscriptions"]
        assert {row["topic"] for row in found["queues"]} >= {topic}
        code, out, _ = rocket("group", "describe", "watched")
        assert (code, "members:" in out, "queues:" in out) == (0, True, True)
    assert "watched" in rocket("group", "list", "-o", "name")[1].splitlines()
    assert "TOOLS_CONSUMER" not in rocket("group", "list", "-o", "name")[1]
    kinds = {row["group"]: row["kind"] for row in shown(rocket, "group", "list", "--all")}
    assert (kinds["watched"], kinds["TOOLS_CONSUMER"]) == ("normal", "system")
    assert shown(rocket, "group", "describe", "watched")["state"] == "offline"
    assert rocket("group", "describe", "nobody")[0] == 3
