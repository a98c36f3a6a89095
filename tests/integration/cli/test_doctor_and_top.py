"""``rocket doctor`` and ``rocket top`` against a running cluster, and one that is not there."""

from __future__ import annotations

import asyncio
import json

from rocketcore.admin.client import Admin, AsyncAdmin
from rocketcore.admin.statistics import Echo
from rocketcore.local import LocalCluster
from rocketcore.message import MessageQueue
from tests.fixtures.commands import Rocket


def test_doctor_of_a_cluster_that_is_well(rocket: Rocket, cluster: LocalCluster) -> None:
    code, out, err = rocket("doctor", "-o", "json")
    assert code == 0, err
    rows = json.loads(out)
    assert all(set(row) == {"check", "target", "state", "detail", "hint"} for row in rows)
    found = {(row["check"], row["target"]): row["state"] for row in rows}
    assert found["message", "broker-a"] in ("ok", "warn")
    assert (found["clock", "broker-a"], found["broker", "broker-a/0"]) == ("ok", "ok")
    checks = {row["check"] for row in json.loads(rocket("doctor", "--no-message", "-o", "json")[1])}
    assert checks >= {"version", "ulimit", "disk", "name server", "broker", "versions"}

    async def ask() -> None:
        async with AsyncAdmin(cluster.namesrv) as admin:
            echoes = await admin.echo()
            assert isinstance(echoes["broker-a"], Echo)

    asyncio.run(ask())


def test_doctor_where_nobody_is(rocket: Rocket) -> None:
    code, out, _ = rocket("doctor", "--namesrv", "127.0.0.1:1", "-o", "json")
    assert code == 1
    assert [row["state"] for row in json.loads(out) if row["check"] == "name server"] == ["fail"]


def test_top_has_groups_by_lag_and_rates_from_the_second_look(
    rocket: Rocket, cluster: LocalCluster, topic: str
) -> None:
    with Admin(cluster.namesrv) as admin:
        for group, offset in (("top-near", 4), ("top-far", 1)):
            admin.create_group(group)
            admin.update_consumer_offset(group, MessageQueue(topic, "broker-a", 0), offset)
        traffic = {each.group: each for each in admin.group_traffic()}
    assert (traffic["top-far"].lag, traffic["top-near"].lag) == (4, 1)
    code, out, err = rocket("top", "--once", "-o", "json")
    assert code == 0, err
    look = json.loads(out)
    assert set(look) == {"at", "brokers", "groups", "groups_in_all", "lag_in_all", "producers"}
    groups = [(row["group"], row["lag"]) for row in look["groups"] if row["topic"] == topic]
    assert groups == [("top-far", 4), ("top-near", 1)]
    assert look["groups"][0]["in_per_second"] is None
    assert [row["broker"] for row in look["brokers"]] == ["broker-a"]
    code, out, _ = rocket("top", "--looks", "2", "--interval", "0.5", "-n", "1", "-o", "jsonl")
    _, second = map(json.loads, out.splitlines())
    assert (code, len(second["groups"]), second["groups"][0]["in_per_second"]) == (0, 1, 0.0)
    code, out, _ = rocket("top")
    assert (code, "top-far" in out) == (0, True)
    assert rocket("top", "-o", "csv", "--looks", "2")[0] == 2
    assert rocket("top", "--once", "--namesrv", "127.0.0.1:1")[0] == 5
