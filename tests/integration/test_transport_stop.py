"""Servers that stop: what they still answer, whom they wait for, and how their connections end."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial

import pytest

from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.transport.blocking import BlockingRemotingClient
from rocketcore.transport.channel import Channel
from rocketcore.transport.client import split_address
from rocketcore.transport.server import RemotingServer
from tests.fixtures.tls import client_tls, server_tls
from tests.integration.test_transport import ECHO, NEVER, TIMEOUT

LARGE = 12 << 20
"""More than the kernel buffers of a connection."""


# How connections end

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def run(loop_factory: LoopFactory, scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await scenario()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def connect_with_little_room(server: RemotingServer, tls: bool) -> socket.socket | ssl.SSLSocket:
    sock = socket.socket()
    sock.settimeout(TIMEOUT)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(split_address(server.address))
    return client_tls().context().wrap_socket(sock, server_hostname="127.0.0.1") if tls else sock


@pytest.mark.parametrize("tls", [False, True])
def test_a_client_that_goes_on_writing_gets_the_answers_to_what_a_stopping_server_took(
    loop_factory: LoopFactory, tls: bool
) -> None:
    def write_and_read(sock: socket.socket | ssl.SSLSocket) -> list[RemotingCommand]:
        decoder = FrameDecoder()
        answers: list[RemotingCommand] = []
        with sock:
            sock.sendall(asked(NEVER))
            while data := sock.recv(1 << 16):
                sock.sendall(asked(NEVER))
                answers += decoder.feed(data)
        return answers

    def asked(code: int) -> bytes:
        request = RemotingCommand.request(code)
        request.version = 407  # does not know GO_AWAY
        return request.encode()

    async def scenario() -> None:
        server = RemotingServer(name="stopping", tls=server_tls())
        taken, finished = asyncio.Event(), asyncio.Event()

        def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            taken.set()
            return RemotingCommand.response(request, body=bytes(LARGE))

        async def drain() -> None:
            finished.set()

        server.register(ECHO, answer)
        await server.start()
        sock = await asyncio.to_thread(connect_with_little_room, server, tls)
        await asyncio.to_thread(sock.sendall, asked(ECHO))
        await taken.wait()
        stopping = asyncio.create_task(server.stop(grace=TIMEOUT, drain=drain))
        await finished.wait()
        (got,) = await asyncio.to_thread(write_and_read, sock)
        assert len(got.body) == LARGE
        await stopping
        assert server.connection_count == 0

    run(loop_factory, scenario)


@pytest.mark.parametrize("tls", [False, True])
def test_a_client_that_has_its_answer_and_is_quiet_does_not_hold_the_stop(loop_factory: LoopFactory, tls: bool) -> None:
    async def scenario() -> None:
        server = RemotingServer(name="stopping", tls=server_tls())
        server.register(ECHO, lambda channel, request: RemotingCommand.response(request))
        await server.start()
        with BlockingRemotingClient(tls=client_tls() if tls else False) as client:
            request = RemotingCommand.request(ECHO)
            assert (await asyncio.to_thread(client.invoke, server.address, request, TIMEOUT)).code == 0
            async with asyncio.timeout(5):
                await server.stop(grace=25)
            assert server.connection_count == 0

    run(loop_factory, scenario)


def test_a_client_that_writes_without_end_is_cut_when_the_grace_is_over(loop_factory: LoopFactory) -> None:
    def write_without_end(sock: socket.socket) -> None:
        with closing(sock):
            while not stopped.is_set():
                try:
                    sock.sendall(RemotingCommand.request(NEVER).encode())
                except OSError:
                    cut.set()
                    return

    stopped, cut = threading.Event(), threading.Event()

    async def scenario() -> None:
        server = RemotingServer(name="stopping")
        asked = asyncio.Event()
        server.register(NEVER, lambda channel, request: asked.set())
        await server.start()
        sock = await asyncio.to_thread(partial(socket.create_connection, split_address(server.address), TIMEOUT))
        writer = threading.Thread(target=write_without_end, args=(sock,), daemon=True)
        writer.start()
        await asked.wait()
        async with asyncio.timeout(5):
            await server.stop(grace=0.3)
        assert server.connection_count == 0
        assert await asyncio.to_thread(cut.wait, TIMEOUT)
        stopped.set()
        await asyncio.to_thread(writer.join, TIMEOUT)

    run(loop_factory, scenario)
