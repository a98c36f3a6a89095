"""The second port of a broker, where Java clients with ``vipChannelEnabled`` send."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketcore.addresses import join
from rocketcore.transport.server import server
from tests.integration.broker_client import TIMEOUT, running_broker

NOT_THERE = "second port not there server=broker address=127.0.0.1:"


@contextmanager
def taken_port() -> Iterator[int]:
    """A port where something listens, and two above it one that is free."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 2)).close()
            except OSError:
                continue
            yield port
            return


def test_both_ports_serve_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            second = join("127.0.0.1", client.broker.port - 2)
            assert (await client.client.invoke(second, client.send_request("T", b"vip"), TIMEOUT)).code == 0
            assert await client.bodies("T") == [b"vip"]

    asyncio.run(main())


def test_a_second_port_that_is_taken_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(port: int) -> None:
        async with running_broker(tmp_path, listen_port=port + 2) as client:
            assert (await client.send("T")).code == 0

    with taken_port() as port, caplog.at_level(logging.WARNING):
        asyncio.run(main(port))
    assert f"{NOT_THERE}{port}" in caplog.text


def test_no_second_port_is_asked_for_without_a_vip_channel(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(port: int) -> None:
        async with running_broker(tmp_path, listen_port=port + 2, vip_channel_enable=False) as client:
            assert (await client.send("T")).code == 0

    with taken_port() as port, caplog.at_level(logging.INFO):
        asyncio.run(main(port))
    assert caplog.text.count("listening server=broker") == 1
    assert NOT_THERE not in caplog.text


@pytest.mark.parametrize("misses", [1, 20, 21])
def test_a_port_is_chosen_whose_second_one_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, misses: int
) -> None:
    open_listener = server.open_listener  # type: ignore[attr-defined]
    taken: list[int] = []

    async def neighbours(host: str, port: int, *arguments: Any, **options: Any) -> Any:
        if port and len(taken) < misses:
            taken.append(port)
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return await open_listener(host, port, *arguments, **options)

    async def main() -> None:
        async with running_broker(tmp_path) as client:
            assert (await client.send("T", b"first")).code == 0
            if misses < 21:
                second = join("127.0.0.1", client.broker.port - 2)
                assert (await client.client.invoke(second, client.send_request("T", b"vip"), TIMEOUT)).code == 0

    monkeypatch.setattr(server, "open_listener", neighbours)
    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert len(taken) == misses
    assert (NOT_THERE in caplog.text) == (misses == 21)
