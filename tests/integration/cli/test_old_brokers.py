"""Brokers of RocketMQ 4.5, which answer what they do not know with silence: they are told apart, not waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.codes import RequestCode
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.routes import Route
from tests.fixtures.commands import Rocket, rocket_command
from tests.integration.broker_client import store_config

V4_5_2 = 317


class Older:
    """Has each answer say that it is of another version."""

    def before_request(self, address: str, command: RemotingCommand) -> None:
        pass

    def after_response(self, address: str, command: RemotingCommand, response: RemotingCommand) -> None:
        response.version = V4_5_2


def silent(code: int) -> Route:
    return Route(code, lambda channel, request: None)


@pytest.mark.parametrize(
    "arguments", [("client", "list"), ("top", "--once"), ("client", "list", "-o", "json")], ids=str
)
def test_what_an_old_broker_does_not_say_is_told_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    async def main() -> tuple[int, str, str]:
        async with NameServer(NameServerConfig(rocketmq_home=tmp_path / "n", listen_port=0)) as name_server:
            config = BrokerConfig(broker_name="broker-a", listen_port=0, namesrv_addr=name_server.address)
            async with Broker(config, store_config(tmp_path / "b"), hooks=[Older()]) as broker:
                routes = broker._server._endpoint.routes
                routes[RequestCode.GET_ALL_PRODUCER_INFO] = silent(RequestCode.GET_ALL_PRODUCER_INFO)
                # Longer than the test may take: whoever waits it out fails.
                rocket: Rocket = rocket_command(name_server.address, monkeypatch, capsys, "--timeout", "600")
                return await asyncio.to_thread(rocket, *arguments)

    code, out, err = asyncio.run(main())
    if arguments[0] == "top":
        assert (code, err) == (0, "")
        assert "broker-a" in out
    else:
        assert code not in (0, 124)
        assert "RocketMQ 4.5.2, and brokers before 4.9" in err
