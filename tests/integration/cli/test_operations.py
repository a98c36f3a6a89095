"""Counters, settings of brokers, and groups that are moved, by ``rocket`` and by ``Admin`` on asyncio."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rocketcore.admin.client import Admin, AsyncAdmin
from rocketcore.admin.offsets import OffsetsOf
from rocketcore.errors import QueryNotFound, RouteNotFound, TopicNotExist
from rocketcore.local import LocalCluster
from rocketcore.message import MessageQueue
from tests.fixtures.commands import Rocket


def shown(rocket: Rocket, *arguments: str) -> Any:
    code, out, err = rocket(*arguments, "-o", "json")
    assert code == 0, err
    return json.loads(out)


def refused(rocket: Rocket, *arguments: str) -> tuple[int, str]:
    code, out, err = rocket(*arguments, "-o", "json")
    assert out == ""
    return code, json.loads(err.splitlines()[-1])["error"]["code"]


def stored(cluster: LocalCluster, group: str, topic: str) -> list[int | None]:
    with Admin(cluster.namesrv) as admin:
        return [admin.consumer_offset(group, MessageQueue(topic, "broker-a", number)) for number in range(2)]


@pytest.fixture
def groups(cluster: LocalCluster, topic: str) -> tuple[str, str]:
    """Two groups: the first is at offset 2 of the first queue."""
    names = f"{topic}-source", f"{topic}-target"
    with Admin(cluster.namesrv) as admin:
        for name in names:
            admin.create_group(name)
        admin.update_consumer_offset(names[0], MessageQueue(topic, "broker-a", 0), 2)
    return names


def test_counters_of_a_topic_and_of_brokers(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    [row] = shown(rocket, "topic", "stats", topic)
    assert row["messages_minute"] == row["messages_day"] == 5
    assert row["bytes_minute"] > 5 * 50
    assert row["messages_per_second"] > 0
    [broker] = shown(rocket, "broker", "stats", "broker-a")
    assert broker["messages_in_day"] >= 5
    assert set(broker) == {
        "broker",
        *(f"messages_{way}_{span}" for way in ("in", "out") for span in ("minute", "hour", "day", "per_second")),
    }
    assert refused(rocket, "broker", "stats", "nobody") == (3, "BROKER_NOT_EXIST")
    assert refused(rocket, "topic", "stats", "nothing") == (3, "TOPIC_NOT_EXIST")
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("Untouched", 1)
    assert shown(rocket, "topic", "stats", "Untouched")[0]["messages_minute"] is None

    async def ask() -> None:
        async with AsyncAdmin(cluster.namesrv) as admin:
            traffic = (await admin.topic_traffic(topic))["broker-a"]
            assert traffic.first is not None
            assert traffic.first.hour == 5
            assert "broker-a" in await admin.broker_traffic(cluster="DefaultCluster")
            with pytest.raises(RouteNotFound):
                await admin.broker_traffic(cluster="Elsewhere")
            with pytest.raises(TopicNotExist):
                await admin.topic_traffic("nothing")

    asyncio.run(ask())


def test_settings_of_a_broker(rocket: Rocket, cluster: LocalCluster) -> None:
    rows = shown(rocket, "broker", "config", "get", "broker-a")
    assert [row["name"] for row in rows] == sorted(row["name"] for row in rows)
    assert shown(rocket, "broker", "config", "get", "broker-a", "brokerName") == [
        {"name": "brokerName", "value": "broker-a"}
    ]
    changed = shown(rocket, "broker", "config", "set", "broker-a", "traceOn", "False")
    assert changed == {"broker": "broker-a", "name": "traceOn", "before": "true", "value": "false"}
    assert shown(rocket, "broker", "config", "set", "broker-a", "traceOn", "true")["before"] == "false"
    assert refused(rocket, "broker", "config", "set", "broker-a", "defaultTopicQueueNums", "many") == (
        1,
        "INVALID_PARAMETER",
    )
    assert refused(rocket, "broker", "config", "set", "broker-a", "listenPort", "1") == (4, "NO_PERMISSION")
    assert refused(rocket, "broker", "config", "set", "broker-a", "no.such", "1") == (3, "NOT_FOUND")
    assert refused(rocket, "broker", "config", "get", "broker-a", "no.such") == (3, "NOT_FOUND")
    assert refused(rocket, "broker", "config", "get", "nobody") == (3, "BROKER_NOT_EXIST")
    assert refused(rocket, "broker", "config", "get", "broker-a", "--id", "3") == (3, "BROKER_NOT_EXIST")


def test_skip_leaves_out_some_or_all(
    rocket: Rocket, cluster: LocalCluster, topic: str, groups: tuple[str, str]
) -> None:
    group = groups[0]
    assert refused(rocket, "offset", "skip", group, topic) == (2, "USAGE")
    code, out, err = rocket("offset", "skip", group, topic, "--dry-run")
    assert (code, out, "3 messages skipped" in err) == (0, "", True)
    [row] = shown(rocket, "offset", "skip", group, topic, "-n", "1", "--queue", "0", "--yes")
    assert (row["before"], row["after"], row["lag"]) == (2, 3, 2)
    shown(rocket, "offset", "skip", group, topic, "--yes")
    assert stored(cluster, group, topic) == [5, 0]


def test_clone_goes_where_another_group_is(
    rocket: Rocket, cluster: LocalCluster, topic: str, groups: tuple[str, str]
) -> None:
    source, target = groups
    [row] = shown(rocket, "offset", "clone", source, target, topic, "--yes")
    assert (row["group"], row["queue_id"], row["before"], row["after"]) == (target, 0, None, 2)
    assert stored(cluster, target, topic) == [2, None]
    assert refused(rocket, "offset", "clone", source, "nobody", topic, "--yes") == (3, "GROUP_NOT_EXIST")
    assert refused(rocket, "offset", "clone", "nobody", target, topic, "--yes") == (3, "NOT_FOUND")

    async def ask() -> None:
        async with AsyncAdmin(cluster.namesrv) as admin:
            plan = await admin.plan_reset(target, topic, OffsetsOf(source))
            assert [(move.before, move.after) for move in plan.moves] == [(2, 2)]
            with pytest.raises(QueryNotFound, match="has no offset in topic"):
                await admin.plan_reset(target, topic, OffsetsOf("nobody"))

    asyncio.run(ask())


def test_locate_finds_the_offset_of_a_time(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    first, second = shown(rocket, "offset", "locate", topic, "1h")
    assert first == {
        "topic": topic, "broker": "broker-a", "queue_id": 0, "offset": 0, "min_offset": 0, "max_offset": 5,
        "messages_since": 5,
    }  # fmt: skip
    assert second["messages_since"] == 0
    [late, _] = shown(rocket, "offset", "locate", topic, "2100-01-01")
    assert (late["offset"], late["messages_since"]) == (5, 0)
    assert refused(rocket, "offset", "locate", "nothing", "1h") == (3, "TOPIC_NOT_EXIST")
    assert refused(rocket, "offset", "locate", topic, "soon") == (2, "USAGE")

    async def ask() -> None:
        async with AsyncAdmin(cluster.namesrv) as admin:
            found = await admin.offsets_at(topic, 0)
            assert found[MessageQueue(topic, "broker-a", 0)] == (0, 0, 5)

    asyncio.run(ask())
