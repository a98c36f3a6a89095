"""Servers that stop: what they still answer, whom they wait for, and how their connections end."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial

import pytest

from rocketcore.codes import ResponseCode
from rocketcore.errors import (
    ConnectionLost,
    TransportError,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.transport.blocking.client import BlockingRemotingClient
from rocketcore.transport.channel import Channel
from rocketcore.transport.client import RemotingClient, split_address
from rocketcore.transport.server.server import RemotingServer
from tests.fixtures.tls import client_tls, server_tls
from tests.integration.remoting_server import ECHO, NEVER, TIMEOUT, add_handler, ended

LARGE = 12 << 20
"""More than the kernel buffers of a connection."""


# Going away


class GoAwayServer:
    """Answers the first connection's requests with GO_AWAY, later ones with success; ``always`` never succeeds."""

    def __init__(self, always: bool = False) -> None:
        self.connections = 0
        self._always = always
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._accepter = threading.Thread(target=self._accept, daemon=True)
        self._accepter.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            code = ResponseCode.GO_AWAY if self.connections == 1 or self._always else ResponseCode.SUCCESS
            thread = threading.Thread(target=self._serve, args=(sock, int(code)), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, code: int) -> None:
        from rocketcore.protocol.frame import FrameDecoder

        decoder = FrameDecoder()
        with sock:
            while data := sock.recv(65536):
                for command in decoder.feed(data):
                    sock.sendall(RemotingCommand.response(command, code).encode())

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._accepter, *self._threads):
            thread.join(TIMEOUT)


@pytest.mark.parametrize("always", [False, True])
def test_go_away_is_repeated_once_over_a_new_connection(always: bool) -> None:
    expected = ResponseCode.GO_AWAY if always else ResponseCode.SUCCESS
    going = GoAwayServer(always)
    with closing(going):

        async def scenario() -> None:
            async with RemotingClient() as client:
                answer = await client.invoke(going.address, RemotingCommand.request(ECHO), TIMEOUT)
                assert answer.code == expected

        asyncio.run(scenario())
        assert going.connections == 2
    going = GoAwayServer(always)
    with closing(going):
        with BlockingRemotingClient() as client:
            assert client.invoke(going.address, RemotingCommand.request(ECHO), TIMEOUT).code == expected
        assert going.connections == 2


def test_a_stopping_server_finishes_what_it_serves() -> None:
    async def scenario() -> None:
        server = RemotingServer(name="stopping")
        begun, release = asyncio.Event(), asyncio.Event()

        async def held(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            begun.set()
            await release.wait()
            return RemotingCommand.response(request, remark="finished")

        add_handler(server, ECHO, held)
        await server.start()
        async with RemotingClient() as client:
            waiting = asyncio.create_task(client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT))
            await begun.wait()
            stopping = asyncio.create_task(server.stop(grace=TIMEOUT))
            await asyncio.sleep(0)
            release.set()
            assert (await waiting).remark == "finished"
            await stopping
            assert server.channels == set()
            with pytest.raises(TransportError):
                await client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
            await server.stop()

    asyncio.run(scenario())


def test_requests_that_never_end_do_not_hold_the_stop() -> None:
    async def scenario() -> None:
        server = RemotingServer(name="stopping")

        begun = asyncio.Event()

        async def held(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        add_handler(server, ECHO, held)
        await server.start()
        async with RemotingClient() as client:
            waiting = asyncio.create_task(client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT))
            await begun.wait()
            await server.stop(grace=0.05)
            with pytest.raises(ConnectionLost):
                await waiting

    asyncio.run(scenario())


def test_a_stopping_server_finishes_what_old_clients_ask_meanwhile() -> None:
    """They do not know GO_AWAY: a request that came while another was finished gets its part of the grace too."""

    async def scenario() -> None:
        server = RemotingServer(name="stopping")
        begun: asyncio.Queue[bytes] = asyncio.Queue()
        release = {b"first": asyncio.Event(), b"second": asyncio.Event()}
        held: list[tuple[Channel, RemotingCommand]] = []

        async def waits(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            begun.put_nowait(request.body)
            await release[request.body].wait()
            return RemotingCommand.response(request, remark="finished")

        def keeps(channel: Channel, request: RemotingCommand) -> None:
            begun.put_nowait(request.body)
            held.append((channel, request))

        async def drain() -> None:
            ask(NEVER, b"late")
            while channel.last_read <= last_read:  # noqa: ASYNC110 - a channel tells no one that it read
                await asyncio.sleep(0.01)
            for asked_by, request in held:
                asked_by.send(RemotingCommand.response(request, remark="drained"))

        def ask(code: int, body: bytes) -> asyncio.Task[RemotingCommand]:
            request = RemotingCommand.request(code, body=body)
            request.version = 407
            return asyncio.create_task(client.invoke(server.address, request, TIMEOUT))

        add_handler(server, ECHO, waits)
        add_handler(server, NEVER, keeps)
        await server.start()
        async with RemotingClient() as client:
            first = ask(ECHO, b"first")
            assert await begun.get() == b"first"
            stopping = asyncio.create_task(server.stop(grace=TIMEOUT, drain=drain))
            second, answered_later = ask(ECHO, b"second"), ask(NEVER, b"later")
            assert {await begun.get(), await begun.get()} == {b"second", b"later"}
            (channel,) = server.channels
            last_read = channel.last_read
            release[b"first"].set()
            assert (await first).remark == "finished"
            release[b"second"].set()
            assert (await second).remark == "finished"
            assert (await answered_later).remark == "drained"
            await stopping
            assert begun.empty(), "nothing is taken once all is finished"

    asyncio.run(scenario())


def test_a_stop_waits_for_the_end_of_the_handlers_that_it_cancels() -> None:
    async def scenario() -> None:
        server = RemotingServer(name="stopping")
        begun, ended, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def held(channel: Channel, request: RemotingCommand) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.set()

        add_handler(server, ECHO, held)
        server.on_close(lambda channel: gone.set())
        await server.start()
        async with RemotingClient() as client:
            await client.invoke_oneway(server.address, RemotingCommand.request(ECHO), TIMEOUT)
            await begun.wait()
        await gone.wait()
        await server.stop(grace=0.05)
        assert ended.is_set()

    asyncio.run(scenario())


def test_a_stop_that_is_cancelled_cuts_what_is_left() -> None:
    async def scenario() -> None:
        server = RemotingServer(name="stopping")
        begun = asyncio.Event()

        async def held(channel: Channel, request: RemotingCommand) -> None:
            begun.set()
            await asyncio.Event().wait()

        add_handler(server, ECHO, held)
        add_handler(server, NEVER, lambda channel, request: RemotingCommand.response(request))
        await server.start()
        async with RemotingClient() as client:
            waiting = asyncio.create_task(client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT))
            silent = socket.create_connection(split_address(server.address), timeout=TIMEOUT)
            await begun.wait()
            stopping = asyncio.create_task(server.stop(grace=TIMEOUT))
            await asyncio.sleep(0)
            stopping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stopping
            with pytest.raises(ConnectionLost):
                await waiting
            assert await asyncio.to_thread(ended, silent)
            silent.close()
            assert server.connection_count == 0
            await server.start()
            assert (await client.invoke(server.address, RemotingCommand.request(NEVER), TIMEOUT)).code == 0
            await server.stop()

    asyncio.run(scenario())


def test_a_connection_that_never_ends_does_not_hold_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        server = RemotingServer(name="stopping")
        await server.start()
        server.admit("192.0.2.1:1")
        async with asyncio.timeout(5):
            await server.stop(grace=0.05)

    asyncio.run(scenario())
    assert "connections did not end server=stopping connections=1" in caplog.text


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

        add_handler(server, ECHO, answer)
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
        add_handler(server, ECHO, lambda channel, request: RemotingCommand.response(request))
        await server.start()
        with BlockingRemotingClient(tls=client_tls() if tls else False) as client:
            request = RemotingCommand.request(ECHO)
            assert (await asyncio.to_thread(client.invoke, server.address, request, TIMEOUT)).code == 0
            async with asyncio.timeout(5):
                await server.stop(grace=25)
            assert server.connection_count == 0

    run(loop_factory, scenario)


def test_a_system_that_does_not_tell_what_was_taken_does_not_hold_the_stop(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(sock: object, request: int, argument: bytes) -> bytes:
        asked.append(request)
        raise OSError(errno.ENOTTY, "not a typewriter")

    async def scenario() -> None:
        server = RemotingServer(name="stopping")
        add_handler(server, ECHO, lambda channel, request: RemotingCommand.response(request))
        await server.start()
        with BlockingRemotingClient() as client:
            await asyncio.to_thread(client.invoke, server.address, RemotingCommand.request(ECHO), TIMEOUT)
            async with asyncio.timeout(5):
                await server.stop(grace=25)
            assert server.connection_count == 0

    asked: list[int] = []
    monkeypatch.setattr(fcntl, "ioctl", refused)
    run(loop_factory, scenario)
    assert asked


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
        add_handler(server, NEVER, lambda channel, request: asked.set())
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


def test_a_stop_does_not_wait_for_the_rest_of_a_request_that_was_refused_by_its_header(
    loop_factory: LoopFactory,
) -> None:
    async def scenario() -> None:
        server = RemotingServer(name="stopping")
        await server.start()
        reader, writer = await asyncio.open_connection(*split_address(server.address))
        writer.write(RemotingCommand.request(NEVER, body=bytes(LARGE)).encode()[:100_000])
        decoder = FrameDecoder()
        while not (answers := decoder.feed(await reader.read(1 << 16))):
            pass
        assert [answer.code for answer in answers] == [ResponseCode.REQUEST_CODE_NOT_SUPPORTED]
        async with asyncio.timeout(5):
            await server.stop(grace=25)
        assert server.connection_count == 0
        assert await reader.read() == b""
        writer.close()

    run(loop_factory, scenario)
