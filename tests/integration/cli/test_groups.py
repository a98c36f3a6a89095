"""``rocket group``, ``offset``, ``client`` and ``dlq`` against a running cluster."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocketcore.admin.client import Admin
from rocketcore.cli.shell.render import counted_are
from rocketcore.client.sync import Producer, PullConsumer, PushConsumer
from rocketcore.errors import OffsetsMoved
from rocketcore.local import LocalCluster
from rocketcore.message import ConsumeResult, Message, MessageQueue, ReceivedMessage
from tests.fixtures.commands import Rocket


def shown(rocket: Rocket, *arguments: str) -> Any:
    """Run a command that succeeds and return what it prints as JSON."""
    code, out, err = rocket(*arguments, "-o", "json")
    assert code == 0, err
    return json.loads(out)


def at(cluster: LocalCluster, group: str, topic: str, offset: int) -> None:
    """Make a group whose offset in the first queue of a topic is this."""
    with Admin(cluster.namesrv) as admin:
        admin.create_group(group, exist_ok=True)
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


def test_a_new_group_gets_all_of_a_young_topic_unless_it_is_moved_first(
    rocket: Rocket, cluster: LocalCluster, topic: str
) -> None:
    def polled(group: str) -> list[bytes]:
        with PullConsumer(cluster.namesrv, group=group) as consumer:
            consumer.subscribe(topic)
            return [message.body for message in consumer.poll(timeout=10.0)]

    assert polled("young") == [b"hello %d" % i for i in range(5)]
    for command in ("group create late", f"offset reset late {topic} --to latest --yes"):
        assert rocket(*command.split())[0] == 0
    with Producer(cluster.namesrv, group="p") as producer:
        producer.send(topic, "new")
    assert polled("late") == [b"new"]


def test_lag_is_watched_until_ctrl_c(
    rocket: Rocket, cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        at(cluster, "watched-lag", topic, 4)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    at(cluster, "watched-lag", topic, 2)
    monkeypatch.setattr("rocketcore.cli.cluster.group.time", SimpleNamespace(time=time.time, sleep=pause))
    code, out, err = rocket("group", "lag", "watched-lag", "--watch", "-o", "jsonl")
    assert (code, pauses, err.count("at 2")) == (130, [2.0, 2.0], 2)
    rows = map(json.loads, out.splitlines())
    assert [row["lag"] for row in rows if row["queue_id"] == 0] == [3, 1]


def test_a_watch_of_the_lag_ends_with_its_reader(
    rocket: Rocket, cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    at(cluster, "watched-by-head", topic, 2)

    def pause(_: float) -> None:
        assert os.read(reader, 1 << 16), "what was seen is there at once"
        os.close(reader)

    with open(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr("rocketcore.cli.cluster.group.time", SimpleNamespace(time=time.time, sleep=pause))
        assert rocket("group", "lag", "watched-by-head", "--watch")[0] == 0


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


def committed(cluster: LocalCluster, group: str, topic: str) -> int | None:
    with Admin(cluster.namesrv) as admin:
        return admin.consumer_offset(group, MessageQueue(topic, "broker-a", 0))


@pytest.mark.parametrize(
    ("to", "offset"),
    [("earliest", 0), ("latest", 5), ("1", 1), ("99", 5), ("+2", 4), ("-1", 1), ("-9", 0), ("@2001-01-01", 0)],
)  # fmt: skip
def test_a_reset_goes_where_it_is_told(rocket: Rocket, cluster: LocalCluster, to: str, offset: int) -> None:
    topic = f"reset-to-{re.sub('[^a-z0-9]', '_', to)}"
    with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv, group="p") as producer:
        admin.create_topic(topic, 1)
        for number in range(5):
            producer.send(topic, b"%d" % number)
    at(cluster, "mover", topic, 2)
    place = ("offset", "reset", "mover", topic, "--to", to)
    code, out, err = rocket(*place, "--dry-run")
    assert (code, out, committed(cluster, "mover", topic)) == (0, "", 2)
    assert err.startswith(f"reset group mover in topic {topic}: {counted_are(max(0, 2 - offset), 'message')} consumed")
    assert f"broker-a/0  2 → {offset}  (queue holds 0 to 5)" in err
    assert rocket(*place, stdin=b"")[0] == 2
    assert committed(cluster, "mover", topic) == 2
    assert shown(rocket, *place, "--yes") == [
        {
            "group": "mover", "topic": topic, "broker": "broker-a", "queue_id": 0, "before": 2, "after": offset,
            "lag": 5 - offset,
        }
    ]  # fmt: skip
    assert committed(cluster, "mover", topic) == offset


def test_a_reset_of_some_queues(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    at(cluster, "part", topic, 2)
    reset = ("offset", "reset", "part", topic, "--yes", "--to")
    assert [row["queue_id"] for row in shown(rocket, *reset, "earliest", "--queue", "broker-a/1")] == [1]
    assert [row["group_offset"] for row in shown(rocket, "offset", "show", "part", topic)] == [2, 0]
    assert [row["queue_id"] for row in shown(rocket, *reset, "latest", "--queue", "0")] == [0]
    assert [row["group_offset"] for row in shown(rocket, "offset", "show", "part")] == [5, 0]
    for arguments in (("--queue", "2"), ("--queue", "x/y")):
        assert rocket(*reset, "latest", *arguments)[0] == 2
    assert rocket(*reset, "soon")[0] == 2
    assert rocket("offset", "reset", "part", topic, "--yes")[0] == 2, "there is no default"
    assert rocket("offset", "reset", "nobody", topic, "--to", "latest", "--yes")[0] == 3
    assert rocket("offset", "reset", "part", "nothing", "--to", "latest", "--yes")[0] == 3
    at(cluster, "fresh", topic, 2)
    code, _, err = rocket("offset", "reset", "fresh", topic, "--to", "+1", "--yes")
    assert (code, "no offset in broker-a/1: a shift starts from one" in err) == (2, True)


def test_a_reset_of_a_group_that_moved_changes_nothing(cluster: LocalCluster, topic: str) -> None:
    at(cluster, "moved", topic, 2)
    with Admin(cluster.namesrv) as admin:
        plan = admin.plan_reset("moved", topic, "latest")
        at(cluster, "moved", topic, 3)
        with pytest.raises(OffsetsMoved, match=r"in 1 of 2 queues .* in broker-a/0 from 2 to 3"):
            admin.reset_offsets(plan)
        assert committed(cluster, "moved", topic) == 3
        admin.reset_offsets(admin.plan_reset("moved", topic, "latest"))
        assert committed(cluster, "moved", topic) == 5


def test_a_connected_member_goes_on_where_a_reset_says(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    with PullConsumer(cluster.namesrv, group="alive", start_from="first") as consumer:
        consumer.subscribe(topic)
        read: list[str] = []
        while len(read) < 5:
            read += [message.text() for message in consumer.poll(timeout=5)]
        consumer.commit()
        code, _, err = rocket("offset", "reset", "alive", topic, "--to", "3", "--yes", "-o", "json")
        assert (code, "1 member is connected" in err) == (0, True)
        with Producer(cluster.namesrv, group="p") as producer:  # a pull that waits is over then
            producer.send(Message(topic, "hello 5"), queue=MessageQueue(topic, "broker-a", 0))
        again: list[str] = []
        while again[-3:] != ["hello 3", "hello 4", "hello 5"]:
            again += [message.text() for message in consumer.poll(timeout=5)]


def test_a_broker_without_resets_of_its_own(monkeypatch: pytest.MonkeyPatch, rocket: Rocket, topic: str) -> None:
    """As those of 4.9: a group that is away is committed for, members that are there are sent to a time."""
    with LocalCluster(properties={"useServerSideResetOffset": "false"}) as old:
        monkeypatch.setenv("ROCKET_NAMESRV", old.namesrv)
        with Admin(old.namesrv) as admin, Producer(old.namesrv, group="p") as producer:
            admin.create_topic("t", 1)
            for number in range(5):
                producer.send("t", b"%d" % number)
            at(old, "away", "t", 2)
            assert rocket("offset", "reset", "away", "t", "--to", "4", "--yes")[0] == 0
            assert committed(old, "away", "t") == 4
            with PullConsumer(old.namesrv, group="away") as consumer:
                consumer.subscribe("t")
                code, _, err = rocket("offset", "reset", "away", "t", "--to", "3", "--yes")
                assert (code, "stop the members of group 'away' first" in err) == (2, True)
                _, _, err = rocket("offset", "reset", "away", "t", "--to", "earliest", "--dry-run")
                assert "broker-a: the members are told to go to the begin" in err


def test_a_group_is_created_changed_and_deleted(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    settings = {
        "consume_enabled": True, "broadcast_enabled": False, "orderly": False, "max_retries": 3, "retry_queues": 2
    }  # fmt: skip
    create = ("group", "create", "made", "--max-retries", "3", "--retry-queues", "2", "--no-broadcast")
    assert shown(rocket, *create) == {"group": "made", **settings, "brokers": ["broker-a"]}
    code, _, err = rocket("group", "create", "made", "--max-retries", "9", "-o", "json")
    assert (code, json.loads(err.splitlines()[-1])["error"]["code"]) == (1, "GROUP_EXISTS")
    assert shown(rocket, "group", "create", "made", "--max-retries", "9", "--if-not-exists")["max_retries"] == 3
    [row] = shown(rocket, "group", "update", "made", "--max-retries", "5")
    assert (row["max_retries"], row["retry_queues"]) == ({"before": 3, "after": 5}, {"before": 2, "after": 2})
    code, out, err = rocket("group", "update", "made", "--no-consume", "--dry-run")
    assert (code, out) == (0, "")
    assert "update group made on broker-a: consume enabled true → false" in err
    assert rocket("group", "update", "made", "--no-consume", stdin=b"")[0] == 2
    assert shown(rocket, "group", "describe", "made")["consume_enabled"] is True
    assert rocket("group", "update", "made", "--no-consume", "--yes")[0] == 0
    assert shown(rocket, "group", "describe", "made")["consume_enabled"] is False
    assert rocket("group", "update", "made")[0] == rocket("group", "create", "no good")[0] == 2
    assert rocket("group", "update", "nobody", "--orderly")[0] == 3
    assert rocket("group", "update", "made", "--orderly", "--broker", "nobody")[0] == 3
    [row] = shown(rocket, "group", "update", "made", "--pop", topic, "--pop-share", "1")
    assert row[f"mode of {topic}"] == {"before": "pull", "after": "pop"}
    code, out, err = rocket("group", "update", "made", "--pull", topic, "--dry-run")
    assert (code, out, err) == (0, "", f"update group made on broker-a: mode of {topic} pop → pull\n")
    with Admin(cluster.namesrv) as admin:
        assert admin.request_modes("made", topic) == {"broker-a": "pop"}
    assert rocket("group", "update", "made", "--pop", topic, "--pull", topic)[0] == 2
    assert rocket("group", "update", "made", "--pop", topic, "--broker", "broker-a")[0] == 2
    assert rocket("group", "update", "made", "--pop", "nothing")[0] == 3
    with Admin(cluster.namesrv) as admin:
        admin.update_consumer_offset("made", MessageQueue(topic, "broker-a", 0), 2)
    code, out, err = rocket("group", "delete", "made", "--dry-run")
    assert (code, out) == (0, "")
    assert err == "delete group made on broker-a: its offsets in 2 queues go, – messages wait\n"
    assert rocket("group", "delete", "made", stdin=b"")[0] == 2
    gone = {"group": "made", "deleted_on": ["broker-a"], "offsets_deleted": True}
    assert shown(rocket, "group", "delete", "made", "--yes") == gone
    assert rocket("group", "delete", "made", "--yes")[0] == rocket("offset", "show", "made")[0] == 3
    assert rocket("group", "delete", "TOOLS_CONSUMER", "--yes")[0] == 4


def test_a_deleted_group_may_keep_its_offsets(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    at(cluster, "kept", topic, 2)
    assert shown(rocket, "group", "delete", "kept", "--keep-offsets", "--yes")["offsets_deleted"] is False
    assert shown(rocket, "offset", "show", "kept")[0]["group_offset"] == 2


def test_who_is_connected(rocket: Rocket, cluster: LocalCluster, topic: str) -> None:
    with (
        Producer(cluster.namesrv, group="senders", heartbeat_interval=0.05) as producer,
        PullConsumer(cluster.namesrv, group="readers") as consumer,
    ):
        producer.send(topic, b"x")
        consumer.subscribe(topic)
        end = time.monotonic() + 20
        found: dict[str, Any] = {}
        while producer.client_id not in found:  # brokers know a producer from its first heartbeat on
            assert time.monotonic() < end
            found = {row["client_id"]: row for row in shown(rocket, "client", "list")}
        row = found[producer.client_id]
        assert (row["kind"], row["group"], row["language"]) == ("producer", "senders", "PYTHON")
        assert (row["brokers"], row["address"].count(":"), row["seen_at"][-1]) == (["broker-a"], 1, "Z")
        [row] = shown(rocket, "client", "list", "-g", "readers")
        assert (row["kind"], row["client_id"]) == ("consumer", consumer.client_id)
        assert shown(rocket, "group", "clients", "readers")[0]["client_id"] == consumer.client_id
        _, _, err = rocket("group", "delete", "readers", "--dry-run")
        assert "1 member is connected" in err
    assert shown(rocket, "group", "clients", "readers") == []
    assert rocket("group", "clients", "nobody")[0] == 3


def test_dead_letters_come_back_to_their_group(rocket: Rocket, cluster: LocalCluster, tmp_path: Path) -> None:
    with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv, group="p") as producer:
        admin.create_topic("risky", 1)
        for number in range(3):
            producer.send("risky", b"%d" % number)
    assert rocket("dlq", "show", "careless")[0] == rocket("dlq", "export", "careless")[0] == 3

    failing = PushConsumer(cluster.namesrv, group="careless", start_from="first", max_reconsume_times=0)

    @failing.subscribe("risky")
    def fail(message: ReceivedMessage) -> ConsumeResult:
        return ConsumeResult.RETRY

    with failing:
        rows: list[dict[str, Any]] = []
        end = time.monotonic() + 20
        while len(rows) < 3:
            assert time.monotonic() < end
            code, out, _ = rocket("dlq", "show", "careless", "-o", "json")
            rows = json.loads(out) if code == 0 else []
    assert "careless" in rocket("dlq", "list", "-o", "name")[1].splitlines()
    assert {row["topic"] for row in rows} == {"risky"}
    assert {row["body"] for row in rows} == {"0", "1", "2"}
    assert not any(row["redriven"] for row in rows)
    assert len(shown(rocket, "dlq", "show", "careless", "-n", "1")) == 1
    code, out, err = rocket("dlq", "redrive", "careless", "--dry-run")
    assert (code, out, err.splitlines()[0]) == (0, "", "redrive the dead letters of group careless: 3 messages")
    assert rocket("dlq", "redrive", "careless", stdin=b"")[0] == 2
    assert rocket("dlq", "redrive", "careless", "--rate", "fast", "--yes")[0] == 2
    assert shown(rocket, "dlq", "redrive", "careless", "--rate", "100/s", "--yes")["redriven"] == 3
    assert all(row["redriven"] for row in shown(rocket, "dlq", "show", "careless"))
    assert shown(rocket, "dlq", "redrive", "careless", "--yes")["redriven"] == 0, "once is enough"
    assert rocket("offset", "reset", "careless", "%DLQ%careless", "--to", "earliest", "--yes")[0] == 2
    with PushConsumer(cluster.namesrv, group="careless") as consumer:
        consumer.subscribe("risky")
        again = sorted(message.text() for message in itertools.islice(consumer, 3))
        assert again == ["0", "1", "2"]
    file = tmp_path / "dead.jsonl"
    summary = shown(rocket, "dlq", "export", "careless", "-o", str(file))
    assert (summary["topic"], summary["messages"]) == ("%DLQ%careless", 3)
    assert {json.loads(line)["body"] for line in file.read_text().splitlines()} == {"0", "1", "2"}
    gone = {"group": "careless", "deleted_on": ["broker-a"], "messages": 3}
    assert rocket("dlq", "purge", "careless", stdin=b"")[0] == 2
    assert shown(rocket, "dlq", "purge", "careless", "--yes") == gone
    assert rocket("dlq", "show", "careless")[0] == 3
