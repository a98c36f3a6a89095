"""The commands against a running cluster."""

from __future__ import annotations

import io
import json
import re
import signal
import socket
import sys
import time
from typing import Any

import pytest

from rocketcore.admin.client import Admin
from rocketcore.client.sync import Producer
from rocketcore.local import LocalCluster
from rocketcore.protocol.bodies.route import QueueData
from tests.fixtures.commands import Rocket
from tests.fixtures.processes import Processes


def test_topics(rocket: Rocket) -> None:
    attribute = ["--attribute", "message.type=FIFO"]
    code, out, _ = rocket("topic", "create", "cli-made", "--queues", "3", *attribute, "-o", "json")
    assert code == 0
    assert json.loads(out) == {
        "topic": "cli-made", "read_queues": 3, "write_queues": 3, "perm": "rw", "brokers": ["broker-a"]
    }  # fmt: skip
    code, out, _ = rocket("topic", "list", "-o", "name")
    assert "cli-made" in out.splitlines()
    assert "TBW102" not in out
    code, out, _ = rocket("topic", "list", "--all", "-o", "json")
    kinds = {row["topic"]: row["kind"] for row in json.loads(out)}
    assert kinds["cli-made"] == "normal"
    assert kinds["TBW102"] == kinds["broker-a"] == kinds["DefaultCluster_REPLY_TOPIC"] == "system"
    code, out, _ = rocket("topic", "route", "cli-made", "-o", "json")
    [row] = json.loads(out)
    assert (row["broker"], row["perm"], row["read_queues"], row["slaves"]) == ("broker-a", "rw", 3, [])
    assert rocket("topic", "route", "nothing")[0] == 3
    code, _, err = rocket("topic", "create", "cli-made", "--broker", "nobody", "-o", "json")
    assert (code, json.loads(err)["error"]["code"]) == (3, "BROKER_NOT_EXIST")
    assert rocket("topic", "create", "cli-made", "--attribute", "x")[0] == 2


def test_a_topic_that_is_there_is_not_created(rocket: Rocket, topic: str) -> None:
    """It used to get 8 queues and perm rw: with fewer queues than before, messages could not be read any more."""
    code, out, err = rocket("topic", "create", topic, "--queues", "1", "--perm", "r")
    assert (code, out) == (1, "")
    assert f"topic {topic!r} is on broker-a: nothing was changed" in err
    code, out, _ = rocket("topic", "create", topic, "--queues", "1", "--perm", "r", "--if-not-exists", "-o", "json")
    assert code == 0
    assert json.loads(out) == {
        "topic": topic, "read_queues": 2, "write_queues": 2, "perm": "rw", "brokers": ["broker-a"]
    }  # fmt: skip
    [row] = json.loads(rocket("topic", "route", topic, "-o", "json")[1])
    assert (row["read_queues"], row["write_queues"], row["perm"]) == (2, 2, "rw")


def test_an_update_changes_what_is_named(rocket: Rocket, topic: str) -> None:
    code, out, _ = rocket("topic", "update", topic, "--perm", "r", "-o", "json")
    assert code == 0
    same = {"before": 2, "after": 2}
    assert json.loads(out) == [
        {
            "topic": topic, "broker": "broker-a", "read_queues": same, "write_queues": same,
            "perm": {"before": "rw", "after": "r"}, "order": {"before": False, "after": False},
            "attributes": {"before": {}, "after": {}},
        }
    ]  # fmt: skip
    code, out, _ = rocket("topic", "update", topic, "--queues", "4")
    assert "2 → 4" in out
    [row] = json.loads(rocket("topic", "route", topic, "-o", "json")[1])
    assert (row["read_queues"], row["write_queues"], row["perm"]) == (4, 4, "r")
    assert rocket("topic", "update", topic)[0] == 2
    assert rocket("topic", "update", "nothing-here", "--queues", "4")[0] == 3


def test_an_update_asks_before_it_hides_messages(rocket: Rocket, topic: str) -> None:
    assert rocket("topic", "update", topic, "--queues", "1")[0] == 0, "the second queue is empty"
    assert rocket("topic", "update", topic, "--queues", "3")[0] == 0
    rocket("produce", topic, "x", "-n", "3")  # one in each queue
    plan = "from 3 to 1: 2 messages in 2 queues cannot be read any more"
    code, out, err = rocket("topic", "update", topic, "--read-queues", "1", stdin=b"")
    assert (code, out) == (2, "")
    assert plan in err
    for form in ("table", "json"):
        code, out, err = rocket("topic", "update", topic, "--read-queues", "1", "--dry-run", "-o", form)
        assert (code, out) == (0, ""), "what would be is no data"
        assert err.splitlines()[0] == f"update topic {topic} on broker-a: read queues 3 → 1"
        assert plan in err
    _, _, err = rocket("topic", "update", topic, "--read-queues", "3", "--dry-run")
    assert err == f"update topic {topic} on broker-a: nothing changes\n"
    [row] = json.loads(rocket("topic", "route", topic, "-o", "json")[1])
    assert row["read_queues"] == 3
    assert rocket("topic", "update", topic, "--write-queues", "1")[0] == 0, "what is there can be read"
    assert rocket("topic", "update", topic, "--read-queues", "1", "--yes")[0] == 0
    [row] = json.loads(rocket("topic", "route", topic, "-o", "json")[1])
    assert (row["read_queues"], row["write_queues"]) == (1, 1)


def test_an_order_configuration_follows_an_update(rocket: Rocket) -> None:
    assert rocket("topic", "create", "ordered-one", "--queues", "2", "--order")[0] == 0
    assert rocket("topic", "update", "ordered-one", "--queues", "5")[0] == 0
    code, out, _ = rocket("namesrv", "kv", "get", "ORDER_TOPIC_CONFIG", "ordered-one", "-o", "json")
    assert (code, json.loads(out)["value"]) == (0, "broker-a:5")


def test_topics_that_brokers_make_and_need(rocket: Rocket) -> None:
    for name in ("%RETRY%g", "%DLQ%g"):
        code, _, err = rocket("topic", "create", name)
        assert (code, "brokers create retry and dead-letter topics" in err) == (2, True)
    for name in ("TBW102", "broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC"):
        code, out, err = rocket("topic", "delete", name, "--yes")
        assert (code, out) == (4, "")
        assert "is a system topic" in err


def test_describe_and_delete(rocket: Rocket, topic: str) -> None:
    code, out, _ = rocket("topic", "describe", topic, "-o", "json")
    first, second = json.loads(out)
    assert (first["min_offset"], first["max_offset"], first["messages"]) == (0, 5, 5)
    assert first["last_stored_at"].endswith("Z")
    assert (second["messages"], second["last_stored_at"]) == (0, None)
    code, out, err = rocket("topic", "delete", topic, "--dry-run")
    assert (code, out) == (0, "")
    assert f"delete topic {topic}: 5 messages in 2 queues on broker-a" in err
    code, _, err = rocket("topic", "delete", topic, stdin=b"")
    assert code == 2
    assert "--yes" in err
    code, out, _ = rocket("topic", "delete", topic, "--yes", "-o", "json")
    assert json.loads(out) == {"topic": topic, "deleted_on": ["broker-a"], "messages": 5}
    assert rocket("topic", "describe", topic)[0] == 3


def test_a_topic_that_only_a_name_server_knows_is_deleted(rocket: Rocket, cluster: LocalCluster) -> None:
    """As after a deletion that one of several name servers missed."""
    with Admin(cluster.namesrv) as admin:
        admin.register_topic("left-over", [QueueData("broker-a", 1, 1, 6)])
    code, out, err = rocket("topic", "delete", "left-over", "--yes", "-o", "json")
    assert (code, json.loads(out)) == (0, {"topic": "left-over", "deleted_on": ["broker-a"], "messages": None})
    assert "only name servers know it still" in err
    assert rocket("topic", "route", "left-over")[0] == 3
    assert rocket("topic", "delete", "left-over", "--yes")[0] == 3


def test_what_is_deleted_in_one_cluster_only(rocket: Rocket, topic: str) -> None:
    code, _, err = rocket("topic", "delete", topic, "--cluster", "nothing", "--yes", "-o", "json")
    assert (code, json.loads(err)["error"]["code"]) == (3, "TOPIC_NOT_EXIST")
    code, _, err = rocket("topic", "delete", topic, "--cluster", "DefaultCluster", "--dry-run")
    assert (code, err) == (0, f"delete topic {topic}: 5 messages in 2 queues on broker-a\n")


def test_clusters_and_brokers(rocket: Rocket, cluster: LocalCluster) -> None:
    _, out, _ = rocket("cluster", "list", "-o", "json")
    assert json.loads(out) == [{"cluster": "DefaultCluster", "brokers": ["broker-a"], "masters": 1, "slaves": 0}]
    _, out, _ = rocket("broker", "list", "-o", "csv")
    assert out.splitlines()[1] == f"broker-a,DefaultCluster,0,master,{cluster.broker_addresses[0]},rw,"


def test_name_server_settings_and_keys(rocket: Rocket, cluster: LocalCluster) -> None:
    assert rocket("namesrv", "config", "set", "waitSecondsForService", "9")[0] == 0
    code, out, _ = rocket("namesrv", "config", "get", "waitSecondsForService", "-o", "json")
    assert json.loads(out) == [{"name": "waitSecondsForService", "value": "9"}]
    for name, value, kept in (
        ("enableTopicList", "TRUE", "true"), ("waitSecondsForService", "045", "45"),
        ("orderMessageEnable", " false ", "false"),
    ):  # fmt: skip
        assert rocket("namesrv", "config", "set", name, value)[0] == 0
        assert json.loads(rocket("namesrv", "config", "get", name, "-o", "json")[1])[0]["value"] == kept
    code, _, err = rocket("namesrv", "config", "set", "waitSecondsForService", "soon", "-o", "json")
    assert (code, json.loads(err)["error"]["code"]) == (1, "REFUSED")
    assert f"kept waitSecondsForService=45 at {cluster.namesrv}" in err
    code, _, err = rocket("namesrv", "config", "set", "enableTopicList", "maybe", "-o", "json")
    assert (code, json.loads(err)["error"]["code"]) == (1, "TAKEN_OTHERWISE")
    assert f"enableTopicList=maybe was taken as false at {cluster.namesrv}" in err
    assert rocket("namesrv", "config", "set", "enableTopicList", "true")[0] == 0
    assert rocket("namesrv", "config", "get", "nothing")[0] == 3
    assert rocket("namesrv", "config", "set", "nothing", "1")[0] == 3
    code, _, err = rocket("namesrv", "config", "set", "kvConfigPath", "/x", "-o", "json")
    assert code == 4
    assert json.loads(err)["error"]["code"] == "NO_PERMISSION"
    assert rocket("namesrv", "kv", "list", "cli-space")[0] == 3
    assert {rocket("namesrv", "kv", "set", *names, "v")[0] for names in (("", "k"), ("cli-space", ""))} == {2}
    assert rocket("namesrv", "kv", "set", "cli-space", "k", "v")[0] == 0
    assert rocket("namesrv", "kv", "list", "cli-space", "-o", "csv")[1] == "key,value\nk,v\n"
    assert rocket("namesrv", "kv", "delete", "cli-space", "k", "--yes")[0] == 0
    assert rocket("namesrv", "kv", "delete", "cli-space", "k", "--yes")[0] == 3
    assert rocket("namesrv", "kv", "list", "cli-space", "-o", "json")[1] == "[]\n"


def test_drain_makes_producers_leave_a_broker(monkeypatch: pytest.MonkeyPatch, rocket: Rocket) -> None:
    with LocalCluster(brokers=2) as pair:
        monkeypatch.setenv("ROCKET_NAMESRV", pair.namesrv)

        def used() -> set[str]:
            with Producer(pair.namesrv, group="p") as producer:
                return {producer.send("drained", b"x").queue.broker for _ in range(8)}

        rocket("topic", "create", "drained", "--queues", "2")
        assert used() == {"broker-a", "broker-b"}
        code, out, err = rocket("broker", "drain", "broker-a", "--dry-run")
        assert (code, out) == (0, "")
        assert err.splitlines()[:2] == [
            "drain broker broker-a of DefaultCluster: 2 write queues of 1 topic go", "  drained  2"
        ]  # fmt: skip
        assert "no other master" not in err
        assert rocket("broker", "drain", "broker-a", stdin=b"")[0] == 2
        assert used() == {"broker-a", "broker-b"}
        for answer in ("broker-b\n", "\n", ""):
            monkeypatch.setattr(sys, "stdin", Terminal(answer))
            code, out, err = rocket("broker", "drain", "broker-a")
            assert (code, out) == (2, "")
            assert "nothing was done" in err
        monkeypatch.setattr(sys, "stdin", Terminal("broker-a\n"))
        code, out, err = rocket("broker", "drain", "broker-a", "-o", "json")
        assert code == 0
        assert json.loads(out) == {"broker": "broker-a", "topics": 13, "writable": False, "until": "undrain"}
        assert out[0] == "{", "the question is not on stdout"
        assert "broker-a is now read-only; producers move within 30 s" in err
        assert used() == {"broker-b"}
        states = {row["broker"]: row["state"] for row in json.loads(rocket("cluster", "describe", "-o", "json")[1])}
        assert states == {"broker-a": "drained", "broker-b": "up"}
        assert json.loads(rocket("broker", "describe", "broker-a", "-o", "json")[1])["state"] == "drained"
        perms = {row["broker"]: row["perm"] for row in json.loads(rocket("broker", "list", "-o", "json")[1])}
        assert perms == {"broker-a": "r", "broker-b": "rw"}
        again = rocket("broker", "drain", "broker-a", "-o", "json")  # it asks nobody: there is nothing to lose
        assert again == (0, out, "broker-a was drained before: nothing was changed\n")
        assert rocket("topic", "create", "kept", "--broker", "broker-a", "--queues", "1")[0] == 0
        code, _, err = rocket("produce", "kept", "x", "--timeout", "1", "-o", "json")
        assert (code, json.loads(err)["error"]["code"]) == (4, "NOT_WRITABLE"), "the topic is there"
        assert rocket("topic", "create", "drained-later", "--broker", "broker-a")[0] == 0
        [row] = json.loads(rocket("topic", "route", "drained-later", "-o", "json")[1])
        assert row["perm"] == "r", "a new topic undoes nothing"
        pair.stop_broker(0)
        pair.start_broker(0)
        assert used() == {"broker-b"}, "nor does a restart"
        code, _, err = rocket("broker", "drain", "broker-b", "--yes", "--dry-run")
        assert "DefaultCluster has no other master" not in err
        assert rocket("broker", "undrain", "broker-a")[0] == 0
        assert used() == {"broker-a", "broker-b"}


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


def test_clean_has_old_files_deleted(rocket: Rocket, cluster: LocalCluster) -> None:
    assert rocket("produce", "kept", "x")[0] == 0
    code, out, err = rocket("broker", "clean", "broker-a", "--dry-run")
    assert (code, out) == (0, "")
    what, log = err.splitlines()
    assert what.startswith("clean broker broker-a: the oldest files of its log go")
    assert log.startswith(f"  {cluster.broker_addresses[0]}  files whose messages were all stored before 2")
    assert log.endswith(": none goes")
    assert rocket("broker", "clean", "broker-a", stdin=b"")[0] == 2
    code, out, err = rocket("broker", "clean", "broker-a", "--unused-topics", "--yes", "-o", "json")
    assert (code, json.loads(out)) == (0, {"broker": "broker-a", "members": 1, "unused_topics": True})
    assert "and every topic that it has no settings for, with all its messages: it does not say which" in err
    assert rocket("broker", "clean", "nobody", "--yes")[0] == 3


def test_undrain_gives_back_what_the_broker_has(rocket: Rocket) -> None:
    assert rocket("topic", "create", "archive", "--perm", "r")[0] == 0
    code, _, err = rocket("broker", "undrain", "broker-a")
    assert code == 0
    assert re.search(r"broker-a takes no messages to .*\barchive\b.*: see rocket topic update --perm", err)
    [row] = json.loads(rocket("topic", "route", "archive", "-o", "json")[1])
    assert row["perm"] == "r", "as the broker has it"
    assert rocket("topic", "delete", "archive", "--yes")[0] == 0


def test_clusters_and_brokers_in_detail(rocket: Rocket, cluster: LocalCluster) -> None:
    code, out, _ = rocket("cluster", "describe", "-o", "json")
    [row] = json.loads(out)
    assert list(row) == [
        "cluster", "broker", "broker_id", "role", "address", "zone", "state", "version", "topics", "in_tps", "out_tps",
        "started_at", "error",
    ]  # fmt: skip
    assert (row["broker"], row["state"], row["error"]) == ("broker-a", "up", None)
    with Admin(cluster.namesrv) as admin:
        assert row["topics"] == len(admin.broker_topics(cluster.broker_addresses[0]))
    code, out, _ = rocket("broker", "describe", "broker-a", "-o", "json")
    shown = json.loads(out)
    assert [name for name in shown if name not in row] == [
        "messages_in_today", "messages_out_today", "log_bytes", "disk_ratio", "runtime"
    ]  # fmt: skip
    assert shown["runtime"]["brokerActive"] == "true"
    code, out, _ = rocket("broker", "describe", "broker-a")
    assert "runtime" not in out.lower()
    assert rocket("broker", "describe", "broker-a", "-o", "name")[1] == "broker-a\n"
    code, _, err = rocket("broker", "describe", "broker-a", "--id", "1")
    assert (code, err.splitlines()[0]) == (3, "error: broker 'broker-a' with id 1 is not registered")
    code, out, _ = rocket("cluster", "topology", "-o", "csv")
    assert out.splitlines()[1].startswith(f"DefaultCluster,broker-a,0,master,{cluster.broker_addresses[0]},")
    for output in ("dot", "mermaid", "svg"):
        code, out, _ = rocket("cluster", "topology", "-o", output)
        assert code == 0
        assert cluster.broker_addresses[0] in out
    assert rocket("cluster", "topology", "-o", "xml")[0] == 2
    assert rocket("-o", "name", "cluster", "topology")[1] == "broker-a\n"


def test_lists_of_topics(rocket: Rocket) -> None:
    rocket("topic", "create", "listed")
    _, out, _ = rocket("topic", "list", "--only", "system", "-o", "name")
    assert {"TBW102", "broker-a"} <= set(out.splitlines())
    assert "listed" not in out.splitlines()
    for only in ("unit", "unit-sub", "unit-sub-ununit"):
        assert rocket("topic", "list", "--only", only, "-o", "json")[:2] == (0, "[]\n")
    for more in ([], ["--only", "unit"]):
        code, out, err = rocket("topic", "list", "--cluster", "nothing", "-o", "json", *more)
        assert (code, out, json.loads(err)["error"]["code"]) == (3, "", "CLUSTER_NOT_EXIST")


def test_a_broker_that_says_nothing_is_shown_as_such(
    monkeypatch: pytest.MonkeyPatch, rocket: Rocket, processes: Processes
) -> None:
    namesrv = processes.namesrv()
    broker = processes.broker(namesrv.address, "--name", "mute")
    monkeypatch.setenv("ROCKET_NAMESRV", namesrv.address)
    broker.process.send_signal(signal.SIGSTOP)
    code, out, err = rocket("cluster", "describe", "--timeout", "2", "-o", "json")
    [row] = json.loads(out)
    assert (code, row["state"], row["version"], row["topics"]) == (0, "unreachable", None, None)
    assert f"broker mute at {broker.address} is registered and says nothing" in err
    assert rocket("broker", "describe", "mute", "--timeout", "2")[0] == 5
    code, _, err = rocket("broker", "drain", "mute", "--yes", "--timeout", "2")
    assert code == 0
    assert "drain broker mute of DefaultCluster: the write queues of all its topics go" in err


def test_one_of_two_name_servers_is_dead(monkeypatch: pytest.MonkeyPatch, rocket: Rocket, processes: Processes) -> None:
    first, second = processes.namesrv(), processes.namesrv()
    both = f"{first.address};{second.address}"
    processes.broker(both, "--name", "solo")
    monkeypatch.setenv("ROCKET_NAMESRV", both)
    assert rocket("topic", "create", "orders", "--queues", "2")[0] == 0
    assert rocket("namesrv", "kv", "set", "space", "k", "1")[0] == 0
    code, out, _ = rocket("namesrv", "config", "get", "--diff", "-o", "json")
    differing = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert "kvConfigPath" in differing
    assert "waitSecondsForService" not in differing
    assert list(differing["kvConfigPath"]["values"]) == [first.address, second.address]
    first.kill()
    reads = [
        ["topic", "list"], ["topic", "route", "orders"], ["topic", "describe", "orders"], ["cluster", "list"],
        ["cluster", "describe"], ["cluster", "topology"], ["broker", "list"], ["broker", "describe", "solo"],
        ["namesrv", "config", "get"], ["namesrv", "kv", "list", "space"], ["namesrv", "kv", "get", "space", "k"],
    ]  # fmt: skip
    for verb in reads:
        assert rocket(*verb)[0] == 0, verb
    code, out, err = rocket("namesrv", "config", "get", "waitSecondsForService", "--all", "-o", "json")
    assert code == 6
    assert json.loads(out)[0]["values"] == {first.address: None, second.address: "45"}
    error = json.loads(err)["error"]
    assert (error["code"], error["done"], list(error["failed"])) == ("PARTLY_DONE", [second.address], [first.address])
    code, out, err = rocket("namesrv", "config", "get", "waitSecondsForService", "--all", "-q")
    assert (code, "45" in out, f"not at {first.address}" in err) == (6, True, True)
    writes = [
        ["namesrv", "kv", "set", "space", "k", "2"], ["namesrv", "kv", "delete", "space", "k", "--yes"],
        ["namesrv", "config", "set", "waitSecondsForService", "46"], ["broker", "drain", "solo", "--yes"],
        ["topic", "delete", "orders", "--yes"],
    ]  # fmt: skip
    for verb in writes:
        code, out, err = rocket(*verb, "-q", "-o", "json")
        error = json.loads(err)["error"]
        assert (code, error["code"], error["done"], out) == (6, "PARTLY_DONE", [second.address], ""), verb
        assert list(error["failed"]) == [first.address]
    assert rocket("namesrv", "kv", "get", "space", "k")[0] == 3, "what was done stays done"
    code, _, err = rocket("namesrv", "config", "set", "kvConfigPath", "/x", "-o", "json")
    assert code == 4, "a refusal is no part of the work done"
    assert rocket("broker", "undrain", "solo")[0] == 0, "the broker registers it with those that are there"
    second.kill()
    for verb in (*reads, *writes[:4]):
        assert rocket(*verb)[0] == 5, verb


def test_a_broker_that_only_one_name_server_knows(
    monkeypatch: pytest.MonkeyPatch, rocket: Rocket, processes: Processes
) -> None:
    empty, other = processes.namesrv(), processes.namesrv()
    processes.broker(other.address, "--name", "half")
    monkeypatch.setenv("ROCKET_NAMESRV", f"{empty.address};{other.address}")
    code, out, _ = rocket("cluster", "topology", "-o", "json")
    [row] = json.loads(out)["brokers"]
    assert (code, row["registered_at"], row["missing_at"]) == (0, [other.address], [empty.address])
    for verb in (["drain", "half", "--yes"], ["undrain", "half"]):
        code, out, _ = rocket("broker", *verb, "-o", "json")
        assert code == 0
        assert json.loads(out)["topics"] > 1
    assert rocket("broker", "drain", "nobody", "--yes")[0] == 3


@pytest.mark.parametrize(
    ("verb", "code"),
    [
        (["topic", "list", "--only", "unit", "--cluster", "DefaultCluster"], 0), (["cluster", "describe"], 0),
        (["cluster", "topology"], 0), (["broker", "describe", "broker-a"], 0), (["topic", "create", "timed"], 0),
        (["topic", "create", "timed", "--order"], 6), (["topic", "delete", "timed", "--yes"], 6),
        (["namesrv", "kv", "set", "space", "k", "v"], 6), (["namesrv", "kv", "delete", "space", "k", "--yes"], 6),
        (["namesrv", "config", "get", "--diff"], 6), (["namesrv", "config", "set", "waitSecondsForService", "45"], 6),
        (["broker", "drain", "broker-a", "--yes"], 6), (["broker", "undrain", "broker-a"], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)  # fmt: skip
def test_one_timeout_for_a_whole_command(rocket: Rocket, cluster: LocalCluster, verb: list[str], code: int) -> None:
    """The first of two name servers is silent."""
    if "kv" in verb:
        assert rocket("namesrv", "kv", "set", "space", "k", "1")[0] == 0
    if "timed" in verb:
        assert rocket("topic", "create", "timed", "--if-not-exists")[0] == 0
    if "create" in verb:
        assert rocket("topic", "delete", "timed", "--yes")[0] == 0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        got, out, err = rocket(*verb, "--namesrv", f"{address};{cluster.namesrv}", "--timeout", "1.6", "-o", "json")
        assert time.monotonic() - started < 2.4
    assert got == code, err
    if code == 6 and "get" not in verb:
        assert json.loads(err.splitlines()[-1])["error"]["done"] == [cluster.namesrv]
    if verb[1] == "topology":
        assert [server["state"] for server in json.loads(out)["name_servers"]] == ["unreachable", "up"]


def test_a_person_may_take_time(monkeypatch: pytest.MonkeyPatch, rocket: Rocket, topic: str) -> None:
    class Slow(Terminal):
        def readline(self, *_: Any) -> str:  # type: ignore[override]
            time.sleep(0.6)
            return f"{topic}\n"

    monkeypatch.setattr(sys, "stdin", Slow())
    assert rocket("topic", "delete", topic, "--timeout", "0.5")[0] == 0
