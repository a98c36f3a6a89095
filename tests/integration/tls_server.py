"""A server that speaks TLS, and clients and sockets that ask it who they are."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.transport.blocking.client import BlockingRemotingClient
from rocketcore.transport.channel import Channel
from rocketcore.transport.client import RemotingClient, split_address
from tests.integration.remoting_server import (
    ECHO,
    TIMEOUT,
    TestServer,
    add_handler,
)

WHO = 110


class TlsServer(TestServer):
    """Also says whom it takes a client for."""

    __test__ = False

    def __init__(self, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None, **options: Any) -> None:
        super().__init__(**options)
        if loop_factory is not None:
            self._thread = threading.Thread(target=lambda: self._run_on(loop_factory), daemon=True)

    def __enter__(self) -> TlsServer:
        super().__enter__()
        self.call(lambda server: add_handler(server, WHO, who))
        return self

    def _run_on(self, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(self._run())


def who(channel: Channel, request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.response(request, remark=channel.remote_address)


def run(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
    scenario: Callable[[RemotingClient], Awaitable[None]],
    **options: Any,
) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), RemotingClient(**options) as client:
            await scenario(client)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def echo_blocking(address: str, **options: Any) -> bytes:
    with BlockingRemotingClient(**options) as client:
        return client.invoke(address, RemotingCommand.request(ECHO, body=b"x"), TIMEOUT).body


def connected(address: str) -> socket.socket:
    return socket.create_connection(split_address(address), timeout=TIMEOUT)


def ask(sock: socket.socket | ssl.SSLSocket, command: RemotingCommand) -> RemotingCommand:
    sock.sendall(command.encode())
    decoder = FrameDecoder()
    while True:
        data = sock.recv(65536)
        assert data, "the server closed the connection"
        for answer in decoder.feed(data):
            return answer
