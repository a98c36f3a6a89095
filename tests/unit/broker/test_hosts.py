"""Addresses as text and as records hold them."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from rocketcore.broker.hosts import advertised_ip, born_host, encode_host, join_address
from rocketcore.transport.channel import Channel
from tests.unit.broker.fakes import FakeChannel


@pytest.mark.parametrize(
    ("ip", "port", "encoded"),
    [
        ("127.0.0.1", 10911, "7f00000100002a9f"),
        ("::1", 1, "0000000000000000000000000000000100000001"),
        ("::ffff:10.0.0.1", 80, "0a00000100000050"),
        ("fe80::1%eth0", 80, "fe80000000000000000000000000000100000050"),
    ],
)
def test_hosts_are_encoded_as_records_hold_them(ip: str, port: int, encoded: str) -> None:
    assert encode_host(ip, port).hex() == encoded


def test_names_are_no_addresses() -> None:
    with pytest.raises(ValueError, match="localhost"):
        encode_host("localhost", 1)


@pytest.mark.parametrize(
    ("remote", "encoded"), [("10.0.0.9:50001", "0a0000090000c351"), ("[::1]:5", "00" * 15 + "0100000005")]
)
def test_the_host_of_a_connection_is_worked_out_once(remote: str, encoded: str) -> None:
    channel = FakeChannel(remote)
    assert born_host(cast(Channel, channel)).hex() == encoded
    channel.remote_address = "garbage"
    assert born_host(cast(Channel, channel)).hex() == encoded


def test_addresses_are_joined() -> None:
    assert (join_address("10.0.0.1", 9), join_address("::1", 9)) == ("10.0.0.1:9", "[::1]:9")


def test_which_address_clients_are_told() -> None:
    async def told(configured: str, bind: str) -> str:
        return await advertised_ip(configured, bind)

    assert asyncio.run(told("10.0.0.5", "0.0.0.0")) == "10.0.0.5"
    assert asyncio.run(told("", "127.0.0.1")) == "127.0.0.1"
    assert encode_host(asyncio.run(told("", "0.0.0.0")), 1)
    assert asyncio.run(told("localhost", "0.0.0.0")) in ("127.0.0.1", "::1")
