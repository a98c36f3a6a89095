"""A server that misbehaves on request, in a thread of its own, and what its tests share."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rocketcore.codes import FRAME_MAX_BYTES, ResponseCode
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.signing import verify
from rocketcore.transport.blocking.client import BlockingRemotingClient
from rocketcore.transport.channel import Channel
from rocketcore.transport.client import RemotingClient
from rocketcore.transport.routes import Handler, Route
from rocketcore.transport.server.server import RemotingServer

ECHO, NEVER, SLOW, CALL_BACK, DROP, HEADERS = 100, 101, 102, 103, 104, 106
TIMEOUT = 10.0


class TestServer:
    """A server on a loop of its own thread, with handlers that misbehave on request."""

    __test__ = False

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.address = ""
        self.callback_answers: list[RemotingCommand] = []
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.server: RemotingServer | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> TestServer:
        self._thread.start()
        assert self._ready.wait(TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.server = server = RemotingServer(name="test", **self.options)
        install(server, self.callback_answers)
        await server.start()
        self.address = server.address
        self._ready.set()
        await self._stop.wait()
        await server.stop()

    def call(self, function: Callable[[RemotingServer], Any]) -> Any:
        """Run a function on the server's loop and return its result."""
        assert self._loop is not None

        async def on_loop() -> Any:
            assert self.server is not None
            return function(self.server)

        return asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(TIMEOUT)

    def channels(self) -> int:
        return int(self.call(lambda server: server.connection_count))


def add_handler(server: RemotingServer | RemotingClient | BlockingRemotingClient, code: int, handler: Handler) -> None:
    """Serve a code, whatever the length of its requests."""
    server.add_routes([Route(code, handler, body_limit=FRAME_MAX_BYTES)])


def install(server: RemotingServer, callback_answers: list[RemotingCommand]) -> None:
    async def slow(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(float(request.body))
        return RemotingCommand.response(request, remark="slow")

    async def call_back(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        answer = await channel.invoke(RemotingCommand.request(307, body=request.body), TIMEOUT)
        callback_answers.append(answer)
        return RemotingCommand.response(request, body=answer.body)

    def drop(channel: Channel, request: RemotingCommand) -> None:
        channel.abort()

    add_handler(server, ECHO, lambda channel, request: RemotingCommand.response(request, body=request.body))
    add_handler(server, NEVER, lambda channel, request: None)
    add_handler(server, SLOW, slow)
    add_handler(server, CALL_BACK, call_back)
    add_handler(server, DROP, drop)
    add_handler(
        server,
        HEADERS,
        lambda channel, request: RemotingCommand.response(
            request, code=0 if verify(request.ext_fields or {}, request.body, "sk") else ResponseCode.NO_PERMISSION
        ),
    )


def with_client(server: TestServer, scenario: Callable[[RemotingClient], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), RemotingClient(**options) as client:
            await scenario(client)

    asyncio.run(main())


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def run_threads(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
