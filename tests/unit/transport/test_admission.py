"""Who is let in: counts in all and by address, networks, and how often a refusal is told."""

from __future__ import annotations

import pytest

from rocketcore.errors import ConfigError
from rocketcore.service import ManualClock
from rocketcore.transport.networks import LOOPBACK, contains, is_loopback, parse_networks
from rocketcore.transport.server.admission import Admission, ConnectionSettings


def admission(clock: ManualClock | None = None, **settings: int | str | bool) -> Admission:
    return Admission("test", ConnectionSettings(**settings), clock or ManualClock())  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "::ffff:127.0.0.1"])
def test_addresses_of_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["127.evil.example", "localhost.evil.example", "0.0.0.0", "::", "10.0.0.1", "", "127"])
def test_what_only_begins_like_one(host: str) -> None:
    assert not is_loopback(host)


def test_networks() -> None:
    networks = parse_networks("10.1.0.0/16, 192.0.2.7;2001:db8::/32", "setting")
    inside = ("10.1.2.3", "192.0.2.7", "2001:db8::1", "::ffff:10.1.0.1")
    assert all(contains(networks, host) for host in inside)
    assert not any(contains(networks, host) for host in ("10.2.0.1", "192.0.2.8", "2001:db9::", "name", ""))
    assert parse_networks("", "setting") == ()


@pytest.mark.parametrize("text", ["10.1.0.0/33", "10.1.2.3/16", "balancer", "10.1.0.0 - 10.1.0.9"])
def test_networks_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"proxyProtocolTrusted=.*: addresses and networks"):
        ConnectionSettings(proxy_protocol_trusted=text)


@pytest.mark.parametrize("settings", [{"server_max_connections": 0}, {"server_max_connections_per_address": -1}])
def test_counts_that_let_nobody_in(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"serverMaxConnections.*: must be at least"):
        ConnectionSettings(**settings)  # type: ignore[arg-type]


def test_one_address_has_a_quarter() -> None:
    door = admission(server_max_connections=8)
    assert [door.admit(f"192.0.2.1:{port}") for port in range(3)] == [True, True, False]
    assert door.admit("192.0.2.2:1")
    door.dismiss("192.0.2.1:2")
    door.dismiss("192.0.2.1:0")
    assert door.admit("192.0.2.1:3")
    assert door.open_count == 3


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]", "192.0.2.1"])
def test_this_machine_and_load_balancers_have_all(address: str) -> None:
    door = admission(server_max_connections=8, proxy_protocol_trusted="192.0.2.1")
    assert [door.admit(f"{address}:{port}") for port in range(9)] == [True] * 8 + [False]


def test_a_limit_that_is_given_is_everybodys() -> None:
    door = admission(server_max_connections=8, server_max_connections_per_address=1)
    assert [door.admit(f"127.0.0.1:{port}") for port in range(2)] == [True, False]


def test_whose_preamble_is_believed() -> None:
    assert admission().believes("127.0.0.1:1")
    assert not admission().believes("192.0.2.1:1")
    assert not admission(proxy_protocol_enable=False).believes("127.0.0.1:1")
    assert ConnectionSettings().proxies == LOOPBACK


def test_a_flood_is_told_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    door = admission(clock, server_max_connections=1)
    door.admit("192.0.2.1:0")
    for port in range(1, 1000):
        door.admit(f"192.0.2.1:{port}")
    clock.advance(10)
    door.admit("192.0.2.1:1000")
    assert [record.getMessage() for record in caplog.records] == [
        "connection refused server=test remote=192.0.2.1:1 reason=more than 1 connections unsaid=0",
        "connection refused server=test remote=192.0.2.1:1000 reason=more than 1 connections unsaid=998",
    ]
