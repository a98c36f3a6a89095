"""Rows about brokers and the plan of a drain, without a server."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from rocketcore.admin.cluster import BrokerStatus
from rocketcore.cli.cluster.broker import clean_plan, drain_plan
from rocketcore.cli.cluster.clusters import broker_row
from rocketcore.cli.main import run
from rocketcore.errors import (
    BrokerSystemError,
    ConnectError,
    NoPermission,
    RequestTimeout,
    RocketError,
    TopicNotExist,
)
from rocketcore.protocol.bodies.route import BrokerData, ClusterInfo, TopicRouteData
from rocketcore.protocol.bodies.topic import TopicConfig


def status(runtime: dict[str, str] | None, error: RocketError | None = None, broker_id: int = 0) -> BrokerStatus:
    return BrokerStatus("c", "b", broker_id, "h:1", "z", runtime, None if runtime is None else 12, error)


class Admin:
    """Knows one broker, and no topic of it."""

    def __init__(self, member: BrokerStatus) -> None:
        self._member = member

    def broker_status(self, *, broker: str) -> list[BrokerStatus]:
        return [self._member]

    def topic_route(self, topic: str) -> TopicRouteData:
        raise TopicNotExist(TopicNotExist.response_code, topic)


def test_what_a_5_5_broker_says() -> None:
    runtime = {
        "brokerVersionDesc": "V5_5_0", "putTps": "12.3456 10 9", "getTransferredTps": "3.0 2 1",
        "bootTimestamp": "1700000000123",
    }  # fmt: skip
    assert broker_row(status(runtime)) == {
        "cluster": "c", "broker": "b", "broker_id": 0, "role": "master", "address": "h:1", "zone": "z", "state": "up",
        "version": "5.5.0", "topics": 12, "in_tps": 12.35, "out_tps": 3.0,
        "started_at": "2023-11-14T22:13:20.123Z", "error": None,
    }  # fmt: skip


def test_what_a_4_9_broker_says() -> None:
    row = broker_row(status({"brokerVersionDesc": "V4_9_7", "putTps": "0.0", "getTransferedTps": "5 4 3"}, broker_id=1))
    assert (row["role"], row["version"], row["in_tps"], row["out_tps"]) == ("slave", "4.9.7", 0.0, 5.0)
    assert row["started_at"] is None


@pytest.mark.parametrize("figures", ["", "NaN 1 1", "x", None])
def test_what_is_not_a_number_is_unknown(figures: str | None) -> None:
    row = broker_row(status({} if figures is None else {"putTps": figures, "bootTimestamp": figures}))
    assert row["in_tps"] is row["out_tps"] is row["started_at"] is row["version"] is None


@pytest.mark.parametrize(
    ("runtime", "log_bytes", "ratio"),
    [
        ({"commitLogMaxOffset": "9223372036854775807", "commitLogMinOffset": "1"}, 9223372036854775806, None),
        ({"commitLogMaxOffset": "NaN", "commitLogMinOffset": "1", "commitLogDiskRatio": "NaN"}, None, None),
        ({"commitLogMaxOffset": "Infinity", "commitLogMinOffset": "-1", "commitLogDiskRatio": "Infinity"}, None, None),
        ({"commitLogMaxOffset": "9" * 5000, "commitLogDiskRatio": "-1.0", "bootTimestamp": "9" * 5000}, None, None),
        ({"commitLogDiskRatio": "0.25", "bootTimestamp": "9223372036854775807"}, None, 0.25),
    ],
)
def test_figures_that_are_none(
    runtime: dict[str, str], log_bytes: int | None, ratio: float | None, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("rocketcore.cli.cluster.broker.open_admin", lambda calls: nullcontext(Admin(status(runtime))))
    assert run(["broker", "describe", "b", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["log_bytes"], shown["disk_ratio"], shown["started_at"]) == (log_bytes, ratio, None)


def test_a_drained_broker_is_shown_as_such() -> None:
    states = [broker_row(status({}), permission)["state"] for permission in (None, 7, 6, 2, 4, 0)]
    assert states == ["up", "up", "up", "up", "drained", "drained"]
    assert broker_row(status(None, ConnectError("away")), 4)["state"] == "unreachable"


@pytest.mark.parametrize(
    ("error", "state"), [(ConnectError("away"), "unreachable"), (NoPermission(16, "x"), "refuses")]
)
def test_one_that_does_not_answer(error: RocketError, state: str) -> None:
    row = broker_row(status(None, error))
    assert (row["state"], row["error"], row["topics"], row["in_tps"]) == (state, str(error), None, None)


def test_one_that_refuses_to_say_its_rates() -> None:
    row = broker_row(BrokerStatus("c", "b", 0, "h:1", None, None, 12, BrokerSystemError(1, "no figures yet")))
    assert (row["state"], row["topics"], row["version"]) == ("refuses", 12, None)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(None, 0), (ConnectError("away"), 5), (RequestTimeout("late"), 5), (BrokerSystemError(1, "no figures yet"), 1),
     (NoPermission(16, "x"), 4)],
)  # fmt: skip
def test_exit_code_of_a_description(
    error: RocketError | None, exit_code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = Admin(status(None, error))
    monkeypatch.setattr("rocketcore.cli.cluster.broker.open_admin", lambda calls: nullcontext(admin))
    assert run(["broker", "describe", "b", "-o", "json"]) == exit_code
    assert json.loads(capsys.readouterr().out)["error"] == (None if error is None else str(error))


INFO = ClusterInfo({"b": BrokerData("c", "b", {0: "h:1"}), "b2": BrokerData("c", "b2", {1: "h:2"})}, {"c": ["b", "b2"]})


def test_plan_of_a_drain() -> None:
    topics = {
        "orders": TopicConfig("orders", write_queue_nums=4),
        "archive": TopicConfig("archive", write_queue_nums=4, perm=4),
        "closed": TopicConfig("closed", write_queue_nums=0),
        "%RETRY%g": TopicConfig("%RETRY%g", write_queue_nums=1),
        "b": TopicConfig("b", write_queue_nums=1),
    }
    assert drain_plan(INFO, "b", topics).splitlines() == [
        "drain broker b of c: 4 write queues of 1 topic go",
        "  orders  4",
        "  and 2 system, retry or dead-letter topics",
        "  c has no other master: its producers will find no queue",
    ]


def test_plan_of_a_clean() -> None:
    now = 1_700_000_000_000
    kept = {"h:1": (72, now - 73 * 3_600_000), "h:2": (72, now - 1000), "h:3": (1, None), "h:4": (None, now)}
    what, *members, topics = clean_plan("b", kept, now, unused_topics=True).splitlines()
    assert what == "clean broker b: the oldest files of its log go, and what of queues and index leads there"
    before = "files whose messages were all stored before 2023-11-11T22:13:20.000Z (fileReservedTime=72)"
    assert members == [
        f"  h:1  {before}; its first message is of 2023-11-11T21:13:20.000Z",
        f"  h:2  {before}; its first message is of 2023-11-14T22:13:19.000Z: none goes",
        "  h:3  files whose messages were all stored before 2023-11-14T21:13:20.000Z (fileReservedTime=1)",
        "  h:4  files whose messages are all older than its fileReservedTime; it does not say more",
    ]
    assert topics == "  and every topic that it has no settings for, with all its messages: it does not say which"
    assert len(clean_plan("b", kept, now, unused_topics=False).splitlines()) == 5


def test_plan_of_a_drain_beside_another_master() -> None:
    info = ClusterInfo({**INFO.broker_addr_table, "b3": BrokerData("c", "b3", {0: "h:3"})}, {"c": ["b", "b2", "b3"]})
    assert drain_plan(info, "b", None) == "drain broker b of c: the write queues of all its topics go"
