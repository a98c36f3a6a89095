"""The addresses of a broker and of its producers."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from rocketcore.addresses import host_field
from rocketcore.broker.hosts import advertised_ip, born_host
from rocketcore.transport.channel import Channel
from tests.unit.broker.fakes import FakeChannel


@pytest.mark.parametrize(
    ("remote", "encoded"), [("10.0.0.9:50001", "0a0000090000c351"), ("[::1]:5", "00" * 15 + "0100000005")]
)
def test_the_host_of_a_connection_is_worked_out_once(remote: str, encoded: str) -> None:
    channel = FakeChannel(remote)
    assert born_host(cast(Channel, channel)).hex() == encoded
    channel.remote_address = "garbage"
    assert born_host(cast(Channel, channel)).hex() == encoded


def test_which_address_clients_are_told() -> None:
    async def told(configured: str, bind: str) -> str:
        return await advertised_ip(configured, bind)

    assert asyncio.run(told("10.0.0.5", "0.0.0.0")) == "10.0.0.5"
    assert asyncio.run(told("", "127.0.0.1")) == "127.0.0.1"
    assert host_field(asyncio.run(told("", "0.0.0.0")), 1)
    assert asyncio.run(told("localhost", "0.0.0.0")) in ("127.0.0.1", "::1")
