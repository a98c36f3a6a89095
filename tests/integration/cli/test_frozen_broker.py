"""A cluster of two brokers, one of which is frozen: it accepts and never answers. Lists show what the other knows."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import rocketcore as rmq
from rocketcore.codes import Permission
from rocketcore.message import MessageQueue
from tests.fixtures.commands import Rocket, rocket_command
from tests.fixtures.processes import RocketProcess

SECONDS = 2.5


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Both brokers have the topic ``orders`` with a message each, and the group ``billing``; then one is frozen."""
    folder = tmp_path_factory.mktemp("frozen")
    processes: list[RocketProcess] = []

    def start(*arguments: str) -> RocketProcess:
        env = {"ROCKETCORE_MAPPED_FILE_SIZE_COMMIT_LOG": str(64 << 20)}
        processes.append(RocketProcess(*arguments, log=folder / f"{len(processes)}.log", env=env))
        return processes[-1]

    try:
        server = start("namesrv", "start", "--listen", "127.0.0.1:0", "--home", str(folder / "home"))
        for name in ("broker-a", "broker-b"):
            start("broker", "start", "--listen", "127.0.0.1:0", "--namesrv", server.address, "--name", name,
                  "--store", str(folder / name), "--flush", "async")  # fmt: skip
        with rmq.Admin(server.address) as admin:
            admin.create_topic("orders", 1, perm=Permission.READ | Permission.WRITE)
            admin.create_topic("%DLQ%billing", 1, perm=Permission.READ | Permission.WRITE)
            admin.create_group("billing")
            with rmq.Producer(server.address, group="makers") as producer:
                for name in ("broker-a", "broker-b"):
                    producer.send("orders", b"x", keys="k1", queue=MessageQueue("orders", name, 0))
                    producer.send("%DLQ%billing", b"x", queue=MessageQueue("%DLQ%billing", name, 0))
                    admin.update_consumer_offset("billing", MessageQueue("orders", name, 0), 0)
        os.kill(processes[-1].pid, signal.SIGSTOP)
        yield server.address
    finally:
        for process in reversed(processes):
            process.kill()


@pytest.fixture
def rocket(namesrv: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rocket:
    return rocket_command(namesrv, monkeypatch, capsys, "--timeout", str(SECONDS), "-q")


@pytest.mark.parametrize(
    "verb",
    ["topic describe orders", "topic stats orders", "group list", "group lag billing", "group describe billing",
     "group clients billing",
     "offset show billing", "client list", "broker stats", "message find orders --key k1", "offset locate orders -1h",
     "dlq show billing"],
)  # fmt: skip
def test_a_list_has_what_the_other_broker_knows(rocket: Rocket, verb: str) -> None:
    began = time.monotonic()
    code, out, err = rocket(*verb.split(), "-o", "json")
    assert time.monotonic() - began < SECONDS + 1
    assert code == 6, err
    rows = json.loads(out)
    rows = rows if isinstance(rows, list) else rows["queues"]
    assert rows or verb in ("group clients billing", "client list")
    assert {row.get("broker", "broker-a") for row in rows} <= {"broker-a"}
    error = json.loads(err)["error"]
    assert error["code"] == "PARTLY_DONE"
    assert "no answer within" in error["message"]


def test_a_watch_of_the_lag_says_who_is_silent(rocket: Rocket, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rocketcore.cli.cluster.group.time", SimpleNamespace(time=time.time, sleep=interrupt))
    code, _, err = rocket("group", "lag", "billing", "--watch")
    assert (code, err.count("the list lacks what others know")) == (130, 1), err


@pytest.mark.parametrize("verb", ["cluster describe", "top --once", "broker list", "topic list", "cluster topology"])
def test_what_names_its_brokers_marks_the_one_that_is_silent(rocket: Rocket, verb: str) -> None:
    began = time.monotonic()
    code, out, err = rocket(*verb.split(), "-o", "json")
    assert time.monotonic() - began < SECONDS + 1
    assert code == 0, err
    shown = json.loads(out)
    brokers = shown["brokers"] if verb == "top --once" else shown
    if verb in ("cluster describe", "top --once"):
        assert [bool(row["error"]) for row in brokers] == [False, True]


def test_a_message_that_may_be_there_is_not_said_to_be_missing(rocket: Rocket) -> None:
    code, out, err = rocket("message", "find", "orders", "--key", "k2", "-o", "json")
    assert (code, out) == (6, "")
    assert json.loads(err)["error"]["code"] == "PARTLY_DONE"


def test_who_refuses_tells_more_than_who_is_silent(rocket: Rocket) -> None:
    code, _, err = rocket("user", "list", "-o", "json")
    assert code == 1
    assert "no users and policies" in json.loads(err)["error"]["message"]


@pytest.mark.parametrize("verb", ["offset reset billing orders --to latest --yes", "topic update orders --queues 9"])
def test_a_change_is_whole_or_fails(rocket: Rocket, verb: str) -> None:
    code, out, _ = rocket(*verb.split(), "-o", "json")
    assert (code, out) == (124, "")
