"""What ``rocket doctor`` says of a cluster that it was told of, and of clocks."""

from __future__ import annotations

import pytest

from rocketcore.admin.cluster import BrokerStatus
from rocketcore.admin.statistics import Echo
from rocketcore.cli.cluster.doctor import _brokers, _echoes, _name_servers, _registrations
from rocketcore.errors import ConnectError, RequestTimeout
from rocketcore.protocol.bodies.route import BrokerData, ClusterInfo


def view(**brokers: dict[int, str]) -> ClusterInfo:
    table = {name: BrokerData("C", name, addresses) for name, addresses in brokers.items()}
    return ClusterInfo(table, {"C": list(brokers)})


def member(address: str, *, error: Exception | None = None, **runtime: str) -> BrokerStatus:
    return BrokerStatus("C", "a", 0, address, None, runtime, 1, error)  # type: ignore[arg-type]


def test_name_servers_that_do_not_answer() -> None:
    found = list(_name_servers({"n:1": view(), "n:2": ConnectError("refused"), "n:3": RequestTimeout("slow")}))
    assert [each.state for each in found] == ["ok", "fail", "fail"]
    assert found[1].hint != found[2].hint


def test_registrations_differ() -> None:
    whole, half = view(a={0: "x:1"}, b={0: "x:2"}), view(a={0: "x:1"})
    [finding] = _registrations({"n:1": whole, "n:2": half})
    assert (finding.target, finding.state, finding.detail) == ("b", "fail", "not known at n:2")
    [finding] = _registrations({"n:1": view(a={1: "x:1"})})
    assert finding.detail == "has no master"
    [finding] = _registrations({"n:1": view()})
    assert finding.detail == "no broker is registered"
    assert list(_registrations({"n:1": whole})) == []


def test_an_address_for_its_own_machine_beside_a_far_name_server() -> None:
    found = list(_brokers([member("127.0.0.1:1", commitLogDiskRatio="0.5")], ["10.0.0.7:9876"]))
    assert {(each.check, each.state) for each in found} >= {("advertised address", "warn"), ("disk", "ok")}
    found = list(_brokers([member("127.0.0.1:1", error=ConnectError("refused"))], ["10.0.0.7:9876"]))
    assert [(each.state, each.hint) for each in found] == [
        ("fail", "set brokerIP1 to an address that clients can reach")
    ]
    found = list(_brokers([member("127.0.0.1:1", error=ConnectError("refused"))], ["127.0.0.1:9876"]))
    assert "runs" in str(found[0].hint)


@pytest.mark.parametrize(("ratio", "state"), [("0.5", "ok"), ("0.8", "warn"), ("0.95", "fail"), ("-1", "unknown"),
                                              ("NaN", "unknown"), ("x", "unknown")])  # fmt: skip
def test_disks(ratio: str, state: str) -> None:
    found = list(_brokers([member("10.0.0.1:1", commitLogDiskRatio=ratio)], ["10.0.0.7:9876"]))
    [disk] = [each for each in found if each.check == "disk"]
    assert disk.state == state
    if state in ("warn", "fail"):
        assert "start the broker with a smaller fileReservedTime" in str(disk.hint), "it is no live setting"


def test_versions_differ() -> None:
    members = [member("10.0.0.1:1", brokerVersionDesc=version) for version in ("V4_9_7", "V5_5_0")]
    [finding] = [each for each in _brokers(members, []) if each.check == "versions"]
    assert (finding.state, finding.detail) == ("warn", "4.9.7: a/0; 5.5.0: a/0")


@pytest.mark.parametrize(
    ("stored_at", "skew", "state"),
    [(1_000, 0.0, "ok"), (1_011, 0.0, "ok"), (999, 0.0, "ok"), (3_010, 2.0, "warn"), (-1_000, -2.0, "warn"),
     (61_010, 60.0, "fail")],
)  # fmt: skip
def test_clocks(stored_at: int, skew: float, state: str) -> None:
    echo = Echo(0.01, 1_000, 1_010, stored_at)
    assert echo.clock_skew == skew
    assert [each.state for each in _echoes({"a": echo}) if each.check == "clock"] == [state]


def test_messages_that_are_slow_or_lost() -> None:
    found = list(_echoes({"a": Echo(0.9, 0, 900, 500), "b": RequestTimeout("no answer")}))
    assert [(each.target, each.state) for each in found if each.check == "message"] == [("a", "warn"), ("b", "fail")]


def test_an_id_at_two_addresses_is_two_brokers() -> None:
    [finding] = _registrations({"n:1": view(a={0: "x:1"}), "n:2": view(a={0: "x:2"})})
    assert (finding.check, finding.target, finding.state) == ("two brokers", "a/0", "fail")
    found = list(_brokers([member("10.0.0.1:1", brokerOfSameName="x:2, which is connected too")], ["10.0.0.7:9876"]))
    assert [(each.check, each.state) for each in found if each.check == "two brokers"] == [("two brokers", "fail")]
