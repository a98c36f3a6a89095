"""Administration and its commands on name servers and brokers of Apache's 5.5.0 and 4.9.7, and on ours, by one code.

Only the runs on Apache's are marked ``interop``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from rocketcore.admin.client import AsyncAdmin
from rocketcore.admin.metadata import ClusterMetadata, metadata_document, read_metadata
from rocketcore.cli.main import run
from rocketcore.errors import (
    ConnectError,
    NoPermission,
    PartlyDone,
    PlanOutdated,
    QueryNotFound,
    RequestNotSupported,
    RouteNotFound,
    TopicNotExist,
)
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.route import BrokerMemberGroup, QueueData
from rocketcore.protocol.bodies.topic import DataVersion, TopicConfig
from tests.conformance.peer import FakeBroker, Peer, topic_config, unique
from tests.fixtures.topics import await_messages
from tests.peers import ApacheCluster

pytestmark = pytest.mark.timeout(240)

CLUSTER, BROKER = "DefaultCluster", "broker-a"
NOBODY = "127.0.0.1:1"
SETTING = "orderMessageEnable"

Call = Callable[..., Any]


@dataclass(frozen=True)
class Target:
    """A name server and one broker of a make and release."""

    release: str
    namesrv: str
    broker: str

    @property
    def is_4_9(self) -> bool:
        return self.release == "4.9.7"


@pytest.fixture(
    scope="module",
    params=["rocketcore", *(pytest.param(version, marks=pytest.mark.interop) for version in ("5.5.0", "4.9.7"))],
)
def target(request: pytest.FixtureRequest, apache_clusters: Callable[[str], ApacheCluster]) -> Iterator[Target]:
    if request.param == "rocketcore":
        with LocalCluster() as ours:
            yield Target(request.param, ours.namesrv, ours.broker_addresses[0])
        return
    cluster = apache_clusters(request.param)
    with rmq.Admin(cluster.namesrv) as admin:
        # One of 4.9 refuses request 28 until it has counted for a second, as docs/cli.md says of `broker describe`.
        Peer(cluster.namesrv, apache=True).eventually(lambda: admin.broker_status(broker=BROKER)[0].error is None)
    yield Target(request.param, cluster.namesrv, cluster.brokers[0])


@pytest.fixture(params=["blocking", "asyncio"])
def ask(request: pytest.FixtureRequest, target: Target) -> Call:
    """``ask("topics", …)``: call a method of Admin, or the one of AsyncAdmin; ``namesrv=`` names other name servers."""

    def blocking(method: str, *arguments: Any, namesrv: str = target.namesrv, **options: Any) -> Any:
        with rmq.Admin(namesrv) as admin:
            return getattr(admin, method)(*arguments, **options)

    def on_a_loop(method: str, *arguments: Any, namesrv: str = target.namesrv, **options: Any) -> Any:
        async def main() -> Any:
            async with AsyncAdmin(namesrv) as admin:
                return await getattr(admin, method)(*arguments, **options)

        return asyncio.run(main())

    return blocking if request.param == "blocking" else on_a_loop


@pytest.fixture
def rocket(target: Target, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command with ``-o json``; returns exit code, what it printed, and the error that it printed."""
    monkeypatch.setenv("ROCKET_NAMESRV", target.namesrv)

    def call(*arguments: str, namesrv: str | None = None) -> tuple[int, Any, Any]:
        if namesrv is not None:
            monkeypatch.setenv("ROCKET_NAMESRV", namesrv)
        code = run([*arguments, "-q", "-o", "json"])
        out, err = capsys.readouterr()
        errors = [line for line in err.splitlines() if line.startswith("{")]
        return code, json.loads(out) if out else None, json.loads(errors[-1])["error"] if errors else None

    return call


@pytest.fixture
def topic(target: Target) -> str:
    """A topic of four queues."""
    name = unique("Admin")
    with rmq.Admin(target.namesrv) as admin:
        admin.create_topic(name, 4)
    return name


@pytest.fixture
def fake(target: Target) -> Iterator[Callable[..., FakeBroker]]:
    """``fake(topic, …)``: a registered broker that nobody can reach."""
    brokers: list[FakeBroker] = []

    def register(*topics: str | dict[str, Any]) -> FakeBroker:
        peer = Peer(target.namesrv, apache=target.release != "rocketcore")
        broker = FakeBroker(peer, at=f"127.0.0.1:{len(brokers) + 1}")
        brokers.append(broker.registered(*topics, unique("more"), unique("more")))
        peer.close()
        return broker

    yield register
    for broker in brokers:
        broker.unregister()
        broker.close()


# Methods


def test_topic_lists(ask: Call, topic: str) -> None:
    assert {topic, CLUSTER, BROKER, "TBW102"} <= {*ask("topics")}
    assert topic in ask("topics", CLUSTER)
    assert ask("topics", "no-such-cluster") == []
    system = ask("system_topics")
    assert {CLUSTER, BROKER, "TBW102"} <= {*system}
    assert topic not in system


def test_unit_topics(ask: Call, fake: Callable[..., FakeBroker]) -> None:
    unit, subscribed, both = (unique(name) for name in ("unit", "subscribed", "both"))
    fake(*(topic_config(name, sys_flag=flag) for name, flag in ((unit, 1), (subscribed, 2), (both, 3))))
    mine = {unit, subscribed, both}
    assert {*ask("unit_topics")} & mine == {unit, both}
    assert {*ask("unit_sub_topics")} & mine == {subscribed, both}
    assert {*ask("unit_sub_ununit_topics")} & mine == {subscribed}


def test_routes(ask: Call, target: Target, topic: str) -> None:
    route = ask("topic_route", topic)
    [queues], [broker] = route.queue_datas, route.broker_datas
    assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (BROKER, 4, 4, 6)
    assert (broker.cluster, broker.broker_addrs) == (CLUSTER, {0: target.broker})
    with pytest.raises(TopicNotExist):
        ask("topic_route", unique("nothing"))


def test_key_values(ask: Call) -> None:
    namespace = unique("namespace")
    with pytest.raises(QueryNotFound):
        ask("list_kv", namespace)
    ask("put_kv", namespace, "key", "värde = 1;2")
    assert ask("get_kv", namespace, "key") == "värde = 1;2"
    assert ask("get_kv", namespace, "other") is None
    assert ask("list_kv", namespace) == {"key": "värde = 1;2"}
    ask("delete_kv", namespace, "key")
    ask("delete_kv", namespace, "key")
    assert ask("list_kv", namespace) == {}


def test_name_server_settings(ask: Call, target: Target) -> None:
    before = ask("namesrv_config")[SETTING]
    ask("update_namesrv_config", {SETTING: "true", "noSuchSetting": "1"})
    assert ask("namesrv_config", target.namesrv)[SETTING] == "true"
    assert "noSuchSetting" not in ask("namesrv_config")
    ask("update_namesrv_config", {SETTING: before})
    [(address, settings)] = ask("namesrv_configs").items()
    assert (address, settings[SETTING]) == (target.namesrv, before)
    for name in ("kvConfigPath", "configStorePath"):
        with pytest.raises(NoPermission):
            ask("update_namesrv_config", {name: "/elsewhere"})


def test_write_permission(ask: Call, topic: str) -> None:
    count = len(ask("topics"))
    assert 0 < ask("wipe_write_permission", BROKER) <= count
    assert ask("topic_route", topic).queue_datas[0].perm == 4
    assert 0 < ask("add_write_permission", BROKER) <= count
    assert ask("topic_route", topic).queue_datas[0].perm == 6
    assert ask("wipe_write_permission", "nobody") == ask("add_write_permission", "nobody") == 0


def test_cluster_and_members(ask: Call, target: Target) -> None:
    info = ask("cluster_info")
    assert info.cluster_addr_table[CLUSTER] == [BROKER]
    assert info.broker_addr_table[BROKER].broker_addrs == {0: target.broker}
    assert ask("cluster_infos") == {target.namesrv: info}
    assert ask("broker_member_group", CLUSTER, BROKER) == BrokerMemberGroup(CLUSTER, BROKER, {0: target.broker})
    assert ask("broker_member_group", CLUSTER, "nobody").broker_addrs == {}


def test_data_versions(ask: Call, target: Target, fake: Callable[..., FakeBroker]) -> None:
    broker = fake()
    assert ask("data_versions", broker.name) == {target.namesrv: DataVersion(0, 1, 1)}
    version = ask("data_versions", BROKER)[target.namesrv]
    assert version.timestamp > 1_700_000_000_000
    with pytest.raises(RouteNotFound):
        ask("data_versions", "nobody")


def test_forget_a_topic(ask: Call, fake: Callable[..., FakeBroker]) -> None:
    name = unique("forgotten")
    first, second = fake(name), fake(name)
    ask("delete_topic_in_namesrv", name, cluster=first.cluster)
    assert [data.broker_name for data in ask("topic_route", name).queue_datas] == [second.name]
    ask("delete_topic_in_namesrv", name)
    assert name not in ask("topics")
    ask("delete_topic_in_namesrv", name)


def test_register_a_topic(ask: Call, target: Target, fake: Callable[..., FakeBroker]) -> None:
    name, broker = unique("told"), fake()
    queues = QueueData(broker.name, 3, 2, 6)
    if target.is_4_9:
        with pytest.raises(RequestNotSupported):
            ask("register_topic", name, [queues])
        return
    ask("register_topic", name, [queues])
    assert ask("topic_route", name).queue_datas == [queues]
    with pytest.raises(RouteNotFound, match="nobody"):
        ask("register_topic", name, [QueueData("nobody", 1, 1, 6)])


def test_status_of_brokers(ask: Call, target: Target, topic: str, fake: Callable[..., FakeBroker]) -> None:
    away = fake()
    by_name = {member.broker: member for member in ask("broker_status")}
    up, down = by_name[BROKER], by_name[away.name]
    assert (up.cluster, up.broker_id, up.address, up.alive) == (CLUSTER, 0, target.broker, True)
    assert up.topic_count == len(ask("broker_topics", target.broker)) > 1
    assert up.error is None
    assert up.runtime["brokerVersionDesc"].startswith("V")
    assert (down.cluster, down.address, down.alive, down.topic_count) == (away.cluster, away.at, False, None)
    assert isinstance(down.error, ConnectError)
    assert [member.broker for member in ask("broker_status", cluster=CLUSTER)] == [BROKER]
    with pytest.raises(RouteNotFound):
        ask("broker_status", broker="nobody")


def test_topics_of_a_broker(ask: Call, target: Target, topic: str) -> None:
    topics = ask("broker_topics", target.broker)
    assert (topics[topic].write_queue_nums, topics[topic].perm) == (4, 6)
    assert list(topics) == sorted(topics)


def test_create_and_delete_a_topic(ask: Call, topic: str) -> None:
    name = unique("Made")
    assert ask("create_topic", name, 2).brokers == (BROKER,)
    assert len(ask("queues", name)) == 2
    assert ask("delete_topic", name) == [BROKER]
    assert name not in ask("topics")
    with pytest.raises(TopicNotExist):
        ask("delete_topic", name)


def test_one_name_server_is_away(ask: Call, target: Target) -> None:
    servers = f"{NOBODY};{target.namesrv}"
    assert BROKER in ask("topics", namesrv=servers)
    for method, arguments in (
        ("put_kv", ("one-away", "k", "v")),
        ("delete_kv", ("one-away", "k")),
        ("update_namesrv_config", ({SETTING: "false"},)),
        ("wipe_write_permission", (BROKER,)),
        ("add_write_permission", (BROKER,)),
        ("delete_topic_in_namesrv", ("nothing",)),
    ):
        with pytest.raises(PartlyDone) as caught:
            ask(method, *arguments, namesrv=servers)
        assert caught.value.done == (target.namesrv,)
        assert list(caught.value.failed) == [NOBODY]
    views = ask("cluster_infos", namesrv=servers)
    assert BROKER in views[target.namesrv].broker_addr_table
    assert isinstance(views[NOBODY], ConnectError)


# Commands


def test_cluster_verbs(rocket: Call, target: Target, fake: Callable[..., FakeBroker]) -> None:
    away = fake()
    code, rows, _ = rocket("cluster", "list")
    assert code == 0
    assert {"cluster": CLUSTER, "brokers": [BROKER], "masters": 1, "slaves": 0} in rows
    code, rows, _ = rocket("cluster", "describe")
    assert code == 0
    up, down = ({row["broker"]: row for row in rows}[name] for name in (BROKER, away.name))
    assert (up["state"], up["role"], up["address"]) == ("up", "master", target.broker)
    assert up["version"] == {"rocketcore": "5.3.3"}.get(target.release, target.release)
    assert up["topics"] > 1
    assert up["started_at"].endswith("Z")
    assert (down["state"], down["version"], down["topics"], down["in_tps"]) == ("unreachable", None, None, None)
    assert rocket("cluster", "describe", CLUSTER)[1][0]["broker"] == BROKER
    assert rocket("cluster", "describe", "nothing")[0] == 3
    code, document, _ = rocket("cluster", "topology")
    assert document["name_servers"] == [{"address": target.namesrv, "state": "up", "error": None}]
    assert {row["broker"]: row["registered_at"] for row in document["brokers"]}[BROKER] == [target.namesrv]


@pytest.mark.parametrize(("form", "start"), [("dot", "digraph"), ("mermaid", "flowchart"), ("svg", "<svg")])
def test_drawings(
    target: Target, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str, start: str
) -> None:
    monkeypatch.setenv("ROCKET_NAMESRV", target.namesrv)
    assert run(["cluster", "topology", "-o", form]) == 0
    out = capsys.readouterr().out
    assert out.startswith(start)
    assert target.broker in out


def test_topic_verbs(rocket: Call, target: Target, topic: str, fake: Callable[..., FakeBroker]) -> None:
    assert {"topic": topic, "kind": "normal"} in rocket("topic", "list")[1]
    assert topic in {row["topic"] for row in rocket("topic", "list", "--cluster", CLUSTER)[1]}
    assert rocket("topic", "list", "--cluster", "nothing")[0] == 3
    system = {row["topic"] for row in rocket("topic", "list", "--only", "system")[1]}
    assert {BROKER, CLUSTER} <= system
    assert topic not in system
    unit = unique("unit")
    broker = fake(topic_config(unit, sys_flag=1))
    assert {"topic": unit, "kind": "normal"} in rocket("topic", "list", "--only", "unit")[1]
    assert unit in {row["topic"] for row in rocket("topic", "list", "--only", "unit", "--cluster", broker.cluster)[1]}
    assert rocket("topic", "list", "--only", "unit", "--cluster", CLUSTER)[1] == []
    code, [row], _ = rocket("topic", "route", topic)
    assert row == {
        "topic": topic, "cluster": CLUSTER, "broker": BROKER, "master": target.broker, "slaves": [], "perm": "rw",
        "read_queues": 4, "write_queues": 4, "zone": None, "order_conf": None,
    }  # fmt: skip
    code, _, error = rocket("topic", "route", "nothing")
    assert (code, error["code"]) == (3, "TOPIC_NOT_EXIST")
    assert rocket("topic", "delete", topic, "--yes")[:2] == (
        0, {"topic": topic, "deleted_on": [BROKER], "messages": 0}
    )  # fmt: skip
    assert rocket("topic", "route", topic)[0] == 3


def test_a_topic_that_only_a_name_server_knows_is_deleted(rocket: Call, ask: Call, target: Target) -> None:
    """As after a deletion that one of several name servers missed."""
    name = unique("leftover")
    if target.is_4_9:  # its name servers take topics from brokers only
        with pytest.raises(RequestNotSupported):
            ask("register_topic", name, [QueueData(BROKER, 1, 1, 6)])
        return
    ask("register_topic", name, [QueueData(BROKER, 1, 1, 6)])
    assert rocket("topic", "delete", name, "--yes")[:2] == (
        0, {"topic": name, "deleted_on": [BROKER], "messages": None}
    )  # fmt: skip
    assert rocket("topic", "route", name)[0] == 3
    assert rocket("topic", "delete", name, "--yes")[0] == 3


def test_name_server_verbs(rocket: Call, target: Target) -> None:
    namespace = unique("namespace")
    assert rocket("namesrv", "kv", "get", namespace, "k")[0] == 3
    assert rocket("namesrv", "kv", "list", namespace)[0] == 3
    made = {"namespace": namespace, "key": "k", "before": None, "value": "v"}
    assert rocket("namesrv", "kv", "set", namespace, "k", "v")[:2] == (0, made)
    assert rocket("namesrv", "kv", "get", namespace, "k")[1]["value"] == "v"
    assert rocket("namesrv", "kv", "list", namespace)[1] == [{"key": "k", "value": "v"}]
    assert rocket("namesrv", "kv", "delete", namespace, "k", "--yes")[0] == 0
    assert rocket("namesrv", "kv", "delete", namespace, "k", "--yes")[0] == 3
    code, [before], _ = rocket("namesrv", "config", "get", SETTING)
    changed = {"name": SETTING, "before": before["value"], "value": "true"}
    assert rocket("namesrv", "config", "set", SETTING, "true")[:2] == (0, changed)
    values = {"name": SETTING, "differs": False, "values": {target.namesrv: "true"}}
    assert rocket("namesrv", "config", "get", SETTING, "--all")[1] == [values]
    assert rocket("namesrv", "config", "set", SETTING, before["value"])[0] == 0
    code, _, error = rocket("namesrv", "config", "set", "kvConfigPath", "/elsewhere")
    assert (code, error["code"]) == (4, "NO_PERMISSION")
    assert rocket("namesrv", "config", "get", "nothing")[0] == 3
    assert rocket("namesrv", "config", "set", "nothing", "1")[0] == 3


def test_broker_verbs(rocket: Call, target: Target, topic: str, fake: Callable[..., FakeBroker]) -> None:
    away = fake()
    rows = {row["broker"]: row for row in rocket("broker", "list")[1]}
    assert (rows[BROKER]["address"], rows[away.name]["address"]) == (target.broker, away.at)
    code, shown, _ = rocket("broker", "describe", BROKER)
    assert (code, shown["state"], shown["runtime"]["brokerVersionDesc"][0]) == (0, "up", "V")
    assert (shown["messages_in_today"], shown["messages_out_today"]) >= (0, 0)
    assert 0 < shown["disk_ratio"] < 1
    code, shown, _ = rocket("broker", "describe", away.name)
    assert (code, shown["state"], shown["log_bytes"]) == (5, "unreachable", None)
    code, shown, _ = rocket("broker", "drain", BROKER, "--yes")
    assert (code, shown["writable"], shown["until"]) == (0, False, "undrain")
    assert rocket("broker", "describe", BROKER)[1]["state"] == "drained"
    assert rocket("broker", "drain", BROKER)[:2] == (0, shown), "it asks nobody: nothing is left to do"
    assert shown["topics"] > 1
    assert rocket("topic", "route", topic)[1][0]["perm"] == "r"
    code, shown, _ = rocket("broker", "undrain", BROKER)
    assert (code, shown["writable"]) == (0, True)
    assert rocket("topic", "route", topic)[1][0]["perm"] == "rw"
    code, shown, _ = rocket("broker", "drain", away.name, "--yes")
    assert (code, shown["until"]) == (0, "the broker registers anew"), "also one that cannot be reached"
    for arguments in (
        ["describe", "nobody"], ["describe", BROKER, "--id", "7"], ["drain", "nobody", "--yes"], ["undrain", "nobody"],
    ):  # fmt: skip
        code, _, error = rocket("broker", *arguments)
        assert (code, error["code"]) == (3, "BROKER_NOT_EXIST")


def test_verbs_while_a_name_server_is_away(rocket: Call, target: Target) -> None:
    servers = f"{NOBODY};{target.namesrv}"
    for verb in (["topic", "list"], ["cluster", "list"], ["cluster", "topology"], ["broker", "describe", BROKER]):
        assert rocket(*verb, namesrv=servers)[::2] == (0, None)
    assert rocket("namesrv", "config", "get", SETTING, "--all")[0] == 6
    for verb in (
        ["namesrv", "kv", "set", "one-away", "k", "v"], ["namesrv", "kv", "delete", "one-away", "k", "--yes"],
        ["namesrv", "config", "set", SETTING, "false"], ["broker", "drain", BROKER, "--yes"],
    ):  # fmt: skip
        code, _, error = rocket(*verb)
        assert (code, error["code"], error["done"]) == (6, "PARTLY_DONE", [target.namesrv])
        assert list(error["failed"]) == [NOBODY]
    assert rocket("broker", "undrain", BROKER)[0] == 0, "the broker itself tells the name servers that it reaches"


def test_verbs_without_a_name_server(rocket: Call) -> None:
    for verb in (
        ["topic", "list"], ["topic", "route", "t"], ["cluster", "describe"], ["cluster", "topology"],
        ["broker", "drain", BROKER, "--yes"], ["namesrv", "config", "get", "--all"],
        ["namesrv", "kv", "set", "a", "b", "c"],
    ):  # fmt: skip
        code, _, error = rocket(*verb, namesrv=NOBODY)
        assert (code, error["code"]) == (5, "UNREACHABLE")


def test_messages_a_second_are_known_in_time(rocket: Call) -> None:
    """Apache's brokers say nothing before they have counted for ten seconds, and unknown is not 0: asked last."""
    deadline = time.monotonic() + 30
    while True:
        [row] = rocket("cluster", "describe", CLUSTER)[1]
        if row["in_tps"] is not None:
            break
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert row["in_tps"] >= 0
    assert row["out_tps"] >= 0


# Groups and their offsets


def test_a_group_is_described_and_reset(target: Target, rocket: Call) -> None:
    topic, group = unique("Moved"), unique("movers")
    with rmq.Admin(target.namesrv) as admin:
        admin.create_topic(topic, 1)
        admin.create_group(group)
    with rmq.Producer(target.namesrv, group="p") as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number)
    await_messages(target.namesrv, topic, 5)

    def reset(to: str, *options: str) -> tuple[int, Any, Any]:
        return rocket("offset", "reset", group, topic, "--to", to, "--yes", *options)

    assert group in [row["group"] for row in rocket("group", "list")[1]]
    assert rocket("group", "list", "--all")[0] == 0
    _, [row], _ = rocket("offset", "show", group, topic)
    assert (row["broker_offset"], row["group_offset"], row["lag"]) == (5, None, None)
    assert reset("+1")[0] == 2, "there is nothing to start from"
    _, [row], _ = reset("1")
    assert (row["before"], row["after"], row["lag"]) == (None, 1, 4)
    _, [row], _ = rocket("group", "lag", group)
    assert (row["group_offset"], row["lag"]) == (1, 4)
    assert 0 < row["lag_seconds"] < 240
    for to, after in (("+2", 3), ("-1", 2), ("@2001-01-01", 0), ("99", 5), ("earliest", 0), ("latest", 5)):
        _, [row], _ = reset(to)
        assert row["after"] == after, to
        assert rocket("offset", "show", group, topic)[1][0]["group_offset"] == after, to
    assert reset("3")[0] == 0
    with rmq.PullConsumer(target.namesrv, group=group, start_from="first") as consumer:
        consumer.subscribe(topic)
        read: list[str] = []
        while len(read) < 2:
            read += [message.text() for message in consumer.poll(timeout=5)]
        assert read == ["3", "4"], "an offline reset is where a member begins"
        consumer.commit()
        _, found, _ = rocket("group", "describe", group)
        [member] = found["members"]
        assert (found["state"], member["client_id"], member["brokers"]) == ("online", consumer.client_id, [BROKER])
        assert {each["topic"] for each in found["subscriptions"]} >= {topic}
        code, _, error = reset("1")
        if target.is_4_9:
            assert (code, "stop the members" in error["message"]) == (2, True)
        else:
            with rmq.Producer(target.namesrv, group="p") as producer:  # a pull that waits is over then
                producer.send(topic, b"5")
            again: list[str] = []
            while again[-5:] != ["1", "2", "3", "4", "5"]:  # one that is online goes there
                again += [message.text() for message in consumer.poll(timeout=5)]
    assert rocket("group", "describe", unique("nobody"))[2]["code"] == "GROUP_NOT_EXIST"


def test_dead_letters_are_redriven(target: Target, rocket: Call) -> None:
    topic, group = unique("Risky"), unique("careless")
    with rmq.Admin(target.namesrv) as admin:
        admin.create_topic(topic, 1)
    with rmq.Producer(target.namesrv, group="p") as producer:
        producer.send(topic, b"dead")
    failing = rmq.PushConsumer(target.namesrv, group=group, start_from="first", max_reconsume_times=0)

    @failing.subscribe(topic)
    def fail(message: rmq.ReceivedMessage) -> rmq.ConsumeResult:
        return rmq.ConsumeResult.RETRY

    with failing:
        Peer(target.namesrv, apache=True).eventually(
            lambda: group in [row["group"] for row in rocket("dlq", "list")[1]]
        )
    await_messages(target.namesrv, f"%DLQ%{group}", 1)
    _, [row], _ = rocket("dlq", "show", group)
    assert (row["topic"], row["body"], row["redriven"]) == (topic, "dead", False)
    assert rocket("dlq", "redrive", group, "--yes")[1] == {"group": group, "redriven": 1}
    assert rocket("dlq", "redrive", group, "--yes")[1] == {"group": group, "redriven": 0}
    with rmq.PushConsumer(target.namesrv, group=group, max_reconsume_times=99) as consumer:
        consumer.subscribe(topic)
        message = next(iter(consumer))
        assert (message.topic, message.text()) == (topic, "dead")
        message.ack()
    assert rocket("dlq", "purge", group, "--yes")[1]["messages"] == 1
    assert rocket("dlq", "show", group)[0] == 3


def test_topics_and_groups_come_back_as_they_were_exported(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, group = unique("file-a"), unique("file-b"), unique("file-g")
    ordered = {BROKER: TopicConfig(first, 3, 2, 4, order=True)}
    wanted = ClusterMetadata(
        CLUSTER,
        {first: ordered, second: {BROKER: TopicConfig(second, 1, 1)}},
        {group: {BROKER: SubscriptionGroupConfig(group, retry_max_times=3, consume_broadcast_enable=False)}},
    )
    with rmq.Admin(target.namesrv, timeout=20) as admin:
        plan = admin.plan_import(wanted)
        assert {row.action for row in plan.rows} == {"create"}
        assert admin.import_metadata(plan).rows == ()
        assert admin.get_kv("ORDER_TOPIC_CONFIG", first) == f"{BROKER}:2"
        found = admin.export_metadata()
        assert {name: found.topics[name] for name in wanted.topics} == wanted.topics
        assert found.groups[group] == wanted.groups[group]
        again = read_metadata(json.dumps(metadata_document(found)))
        assert again == found
        assert admin.plan_import(again).changes == ()
        fifo = {BROKER: TopicConfig(second, 2, 2, attributes={"message.type": "FIFO"})}
        left = admin.import_metadata(admin.plan_import(replace(wanted, topics={second: fifo}))).rows
        assert [list(row.differences()) for row in left] == ([["attributes"]] if target.is_4_9 else [])
        file = tmp_path / "cluster.json"
        file.write_text(json.dumps(metadata_document(replace(wanted, topics={second: fifo}))))
        code = run(["cluster", "import", str(file), "--yes", "--namesrv", target.namesrv, "--timeout", "20"])
        assert code == (6 if target.is_4_9 else 0)
        assert (f"did not keep the settings: topic {second} on {BROKER}: attributes" in capsys.readouterr().err) == (
            target.is_4_9
        )
        assert admin.import_metadata(admin.plan_import(wanted)).rows == ()
        with pytest.raises(PlanOutdated, match=first):
            admin.import_metadata(plan)
