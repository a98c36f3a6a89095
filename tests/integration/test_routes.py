"""Every row of a running server answers, and what has no row is not supported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.client import RemotingClient
from rocketcore.transport.routes import Route
from rocketcore.transport.server.server import RemotingServer
from tests.integration.broker_client import running_broker
from tests.reference.routes import example

TIMEOUT = 10.0
NAMED = {"topic": "T", "group": "g", "consumerGroup": "g", "brokerName": "b", "brokerAddr": "127.0.0.1:1",
         "clusterName": "c", "brokerId": "0", "namespace": "n", "key": "k"}  # fmt: skip


@asynccontextmanager
async def running(kind: str, folder: Path) -> AsyncIterator[RemotingServer]:
    if kind == "broker":
        async with running_broker(folder) as client:
            yield client.broker._server
    else:
        async with NameServer(NameServerConfig(rocketmq_home=folder, listen_port=0)) as server:
            yield server._server


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


def request(code: int, route: Route | None = None) -> RemotingCommand:
    command = RemotingCommand.request(code, body=b"{}")
    command.ext_fields = None if route is None else example(route, NAMED)
    return command


@pytest.mark.parametrize("kind", ["nameserver", "broker"])
def test_each_row_answers_and_no_other_code_is_served(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(kind, tmp_path) as server, RemotingClient() as client:
            routes = server._endpoint.routes
            for code in {*map(int, RequestCode), 0, 999_999, -1}:
                answer = await client.invoke(server.address, request(code, routes.get(code)), TIMEOUT)
                assert answer.is_response
                refused = (answer.code, answer.remark) == (
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {code} not supported",
                )
                assert refused is (code not in routes), code

    run(scenario)
