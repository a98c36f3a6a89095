"""Every row of a running server answers; what has no row, or is longer than its row allows, reaches no handler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketcore.codes import FRAME_MAX_BYTES, RequestCode, ResponseCode
from rocketcore.errors import ConnectionLost
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.schema import Header
from rocketcore.transport.channel import Channel
from rocketcore.transport.client import RemotingClient
from rocketcore.transport.routes import Route
from rocketcore.transport.server.server import RemotingServer
from tests.integration.broker_client import running_broker
from tests.reference.routes import example

TIMEOUT = 10.0
NAMED = {"topic": "T", "group": "g", "consumerGroup": "g", "brokerName": "b", "brokerAddr": "127.0.0.1:1",
         "clusterName": "c", "brokerId": "0", "namespace": "n", "key": "k", "commitOrRollback": "8"}  # fmt: skip


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


@pytest.mark.parametrize("kind", ["nameserver", "broker"])
@pytest.mark.parametrize("part", ["header", "body"])
def test_no_handler_is_given_more_than_its_row_allows(kind: str, part: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        served: list[int] = []

        def serve(channel: Channel, request: RemotingCommand, *header: Header) -> RemotingCommand:
            served.append(request.code)
            return RemotingCommand.response(request)

        async with running(kind, tmp_path) as server, RemotingClient() as client:
            routes = server._endpoint.routes
            for code, route in list(routes.items()):
                routes[code] = route._replace(handler=serve, run=None)
            for code, route in routes.items():
                limit = route.header_limit if part == "header" else route.body_limit
                if limit < FRAME_MAX_BYTES:
                    await client.invoke(server.address, sized(code, route, part, limit), TIMEOUT)
                    assert served == [code]
                    served.clear()
                    # A header longer than any row allows is not read at all, so that nobody knows whom to answer.
                    with contextlib.suppress(ConnectionLost):
                        answer = await client.invoke(server.address, sized(code, route, part, limit + 1), TIMEOUT)
                        assert f"a {part} of {limit + 1} bytes, {limit} at most" in (answer.remark or "")
                    assert served == [], RequestCode(code).name

    run(scenario)


def sized(code: int, route: Route, part: str, length: int) -> RemotingCommand:
    """Return a request whose header or body has a length."""
    command = request(code, route)
    if part == "body":
        command.body = bytes(length)
        return command
    command.ext_fields = {**(command.ext_fields or {}), "filling": ""}
    command.add_ext_field("filling", "x" * (length - int.from_bytes(command.encode()[5:8])))
    return command
