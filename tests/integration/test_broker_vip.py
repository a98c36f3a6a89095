"""The second port of a broker, where Java clients with ``vipChannelEnabled`` send."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest

from rocketcore.addresses import join
from rocketcore.errors import ConnectError
from tests.integration.broker_client import TIMEOUT, running_broker


def test_both_ports_serve_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            second = join("127.0.0.1", client.broker.port - 2)
            assert (await client.client.invoke(second, client.send_request("T", b"vip"), TIMEOUT)).code == 0
            assert await client.bodies("T") == [b"vip"]
        async with running_broker(tmp_path, vip_channel_enable=False) as client:
            second = join("127.0.0.1", client.broker.port - 2)
            with pytest.raises(ConnectError):
                await client.client.invoke(second, client.send_request("T"), TIMEOUT)

    asyncio.run(main())


def test_a_second_port_that_is_taken_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def main() -> None:
            async with running_broker(tmp_path, listen_port=port + 2) as client:
                assert (await client.send("T")).code == 0

        with caplog.at_level(logging.WARNING):
            asyncio.run(main())
    assert f"second port not there server=broker address=127.0.0.1:{port}" in caplog.text
