"""Server and both clients over loopback sockets."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from rocketcore.codes import ResponseCode
from rocketcore.errors import (
    ClientClosed,
    ConfigError,
    ConnectError,
    ConnectionLost,
    Overloaded,
    RequestTimeout,
    TransportError,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.signing import Signer, verify
from rocketcore.transport.blocking import BlockingChannelAdapter, BlockingRemotingClient, run_sync
from rocketcore.transport.channel import Channel, ChannelLimits
from rocketcore.transport.client import Remoting, RemotingClient, split_address
from rocketcore.transport.server import RemotingServer
from tests.fixtures.threads import InThread
from tests.fixtures.tls import client_tls, server_tls

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

    server.register(ECHO, lambda channel, request: RemotingCommand.response(request, body=request.body))
    server.register(NEVER, lambda channel, request: None)
    server.register(SLOW, slow)
    server.register(CALL_BACK, call_back)
    server.register(DROP, drop)
    server.register(
        HEADERS,
        lambda channel, request: RemotingCommand.response(
            request, code=0 if verify(request.ext_fields or {}, request.body, "sk") else ResponseCode.NO_PERMISSION
        ),
    )


@pytest.fixture
def server() -> Iterator[TestServer]:
    with TestServer() as running:
        yield running


@pytest.fixture
def blocking() -> Iterator[BlockingRemotingClient]:
    with BlockingRemotingClient() as client:
        yield client


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


# asyncio client


def test_pipelined_requests_share_one_connection(server: TestServer) -> None:
    async def scenario(client: RemotingClient) -> None:
        requests = [RemotingCommand.request(ECHO, body=b"%d" % n * (n % 50)) for n in range(2000)]
        answers = await asyncio.gather(*(client.invoke(server.address, request, TIMEOUT) for request in requests))
        assert [answer.body for answer in answers] == [request.body for request in requests]
        assert await asyncio.to_thread(server.channels) == 1

    with_client(server, scenario)


def test_bodies_of_megabytes(server: TestServer) -> None:
    async def scenario(client: RemotingClient) -> None:
        bodies = [os.urandom(size) for size in (1, 100_000, 4 << 20, 15 << 20)]
        answers = await asyncio.gather(
            *(client.invoke(server.address, RemotingCommand.request(ECHO, body=body), TIMEOUT) for body in bodies)
        )
        assert [answer.body for answer in answers] == bodies

    with_client(server, scenario)


def test_futures_for_pipelining(server: TestServer) -> None:
    async def scenario(client: RemotingClient) -> None:
        with pytest.raises(ConnectError, match=r"PUT_KV_CONFIG at .*: not connected"):
            client.invoke_nowait(server.address, RemotingCommand.request(ECHO))
        await client.connect(server.address)
        futures = [client.invoke_nowait(server.address, RemotingCommand.request(ECHO, body=b"x")) for _ in range(100)]
        assert all(answer.body == b"x" for answer in await asyncio.gather(*futures))
        await client.invoke_oneway(server.address, RemotingCommand.request(ECHO), TIMEOUT)

    with_client(server, scenario)


def test_nobody_listens() -> None:
    address = unused_address()

    async def scenario() -> None:
        async with RemotingClient() as client:
            attempts = (client.invoke(address, RemotingCommand.request(ECHO), TIMEOUT) for _ in range(3))
            for error in await asyncio.gather(*attempts, return_exceptions=True):
                assert isinstance(error, ConnectError)
                assert str(error).startswith(f"PUT_KV_CONFIG at {address}: ")

    asyncio.run(scenario())
    with BlockingRemotingClient() as client, pytest.raises(ConnectError, match=f"PUT_KV_CONFIG at {address}: "):
        client.invoke(address, RemotingCommand.request(ECHO), TIMEOUT)


def unused_address() -> str:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


def test_a_closed_client(server: TestServer) -> None:
    async def scenario() -> None:
        client = RemotingClient()
        waiting = asyncio.create_task(client.invoke(server.address, RemotingCommand.request(NEVER), TIMEOUT))
        await client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
        await client.close()
        await client.close()
        with pytest.raises(ConnectionLost):
            await waiting
        with pytest.raises(ClientClosed):
            await client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)

    asyncio.run(scenario())


def test_a_close_that_was_cancelled_is_resumed(server: TestServer) -> None:
    async def scenario() -> None:
        client = RemotingClient()
        await client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await asyncio.gather(client.close(), client.close())
        await asyncio.to_thread(eventually, lambda: server.channels() == 0)

    asyncio.run(scenario())


def test_closing_while_a_connection_is_made(silent_address: str) -> None:
    """Nobody cancelled the caller, so it hears of no cancellation."""

    async def scenario() -> None:
        client = RemotingClient()
        waiting = asyncio.create_task(client.invoke(silent_address, RemotingCommand.request(ECHO), TIMEOUT))
        cancelled = asyncio.create_task(client.connect(silent_address, TIMEOUT))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await client.close()
        with pytest.raises(ClientClosed, match=f"PUT_KV_CONFIG at {silent_address}: the client is closed"):
            await waiting
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    asyncio.run(scenario())


def test_a_host_that_does_not_take_the_connection_is_a_connect_error_to_all_who_wait(
    silent_address: str, in_thread: InThread
) -> None:
    """Whoever's time is over first: nothing was asked, so nothing can have been carried out."""
    message = re.escape(f"PUT_KV_CONFIG at {silent_address}: no connection within 0.2 s")

    async def scenario() -> None:
        async with RemotingClient() as client:
            asking = (client.invoke(silent_address, RemotingCommand.request(ECHO), 0.2) for _ in range(2))
            for error in await asyncio.gather(*asking, return_exceptions=True):
                assert isinstance(error, ConnectError)
                assert re.fullmatch(message, str(error))

    asyncio.run(scenario())

    with BlockingRemotingClient() as client:
        waiting = [in_thread(client.invoke, silent_address, RemotingCommand.request(ECHO), 0.2) for _ in range(2)]
        for each in waiting:
            with pytest.raises(ConnectError, match=message):
                each.result(TIMEOUT)


class HangingResolver:
    """Stands in for ``socket.getaddrinfo``: names wait until they are released, numbers are read as ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released = threading.Event()
        self.asked: list[str] = []
        self._resolve = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.resolve)

    def resolve(self, host: str, port: int, *args: Any, **options: Any) -> Any:
        try:
            return self._resolve(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            if options.get("flags"):
                raise
        self.asked.append(host)
        assert self.released.wait(TIMEOUT)
        return self._resolve("127.0.0.1", port, *args, **options)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingResolver]:
    hanging = HangingResolver(monkeypatch)
    yield hanging
    hanging.released.set()


def test_a_resolver_that_hangs_does_not_hold_a_blocking_caller(server: TestServer, resolver: HangingResolver) -> None:
    address = f"name.example:{split_address(server.address)[1]}"
    with BlockingRemotingClient() as client:
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(ConnectError, match=r"no connection within 0\.1 s"):
                client.invoke(address, RemotingCommand.request(ECHO), 0.1)
            assert time.monotonic() - began < TIMEOUT / 2
        assert resolver.asked == ["name.example"], "one look-up serves all"
        assert client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT).code == 0
        resolver.released.set()
        assert client.invoke(address, RemotingCommand.request(ECHO), TIMEOUT).code == 0


def test_a_resolver_that_hangs_holds_neither_an_asyncio_client_nor_its_loop(
    server: TestServer, resolver: HangingResolver
) -> None:
    """It has no threads of the loop's executor either, of which there are few."""
    port = split_address(server.address)[1]

    async def scenario() -> None:
        async with asyncio.timeout(TIMEOUT / 2), RemotingClient() as client:
            asking = [
                client.invoke(f"{n}.example:{port}", RemotingCommand.request(ECHO), 0.1)
                for n in range(40)
                for _ in "ab"
            ]
            for error in await asyncio.gather(*asking, return_exceptions=True):
                assert isinstance(error, ConnectError)
            assert len(resolver.asked) == 40
            await asyncio.to_thread(resolver.released.is_set)
            waiting = asyncio.create_task(client.connect(f"last.example:{port}", TIMEOUT))
            await asyncio.to_thread(eventually, lambda: "last.example" in resolver.asked)
        with pytest.raises(ClientClosed):
            await waiting

    asyncio.run(scenario())
    assert not resolver.released.is_set()


@pytest.mark.parametrize("tls", [False, True])
def test_both_clients_connect_by_name(tls: bool) -> None:
    with TestServer(tls=server_tls()) as server:
        address = f"localhost:{split_address(server.address)[1]}"
        options: dict[str, Any] = {"tls": client_tls(server_hostname="127.0.0.1") if tls else False}

        async def scenario(client: RemotingClient) -> None:
            assert (await client.invoke(address, RemotingCommand.request(ECHO), TIMEOUT)).code == 0

        with_client(server, scenario, **options)
        with BlockingRemotingClient(**options) as client:
            assert client.invoke(address, RemotingCommand.request(ECHO), TIMEOUT).code == 0


def test_connections_that_ended_are_forgotten(server: TestServer) -> None:
    async def scenario(client: RemotingClient) -> None:
        channel = await client.connect(server.address)
        with pytest.raises(ConnectionLost):
            await client.invoke(server.address, RemotingCommand.request(DROP), TIMEOUT)
        assert client._channels == {}
        assert await client.connect(server.address) is not channel

    with_client(server, scenario)


def test_one_way_requests_wait_for_a_slow_server() -> None:
    """A loop of them never waits for an answer: what the server does not take may not gather in memory."""

    async def scenario(address: str) -> None:
        limits = ChannelLimits(write_high_water_bytes=1 << 20)
        async with RemotingClient(limits=limits) as client:
            channel = await client.connect(address)

            async def send_many() -> None:
                for _ in range(100):
                    await client.invoke_oneway(address, RemotingCommand.request(ECHO, body=bytes(1 << 20)), 0.1)

            with pytest.raises(RequestTimeout, match=r"not sent within 0\.1 s, the peer does not read"):
                await send_many()
            assert channel._transport.get_write_buffer_size() < 4 << 20

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(scenario("{}:{}".format(*listener.getsockname())))


def test_one_way_requests_all_arrive_at_a_server_that_reads() -> None:
    async def scenario() -> None:
        received: list[int] = []
        server = RemotingServer()
        server.register(ECHO, lambda channel, request: received.append(len(request.body)))  # type: ignore[func-returns-value]
        await server.start()
        async with RemotingClient(limits=ChannelLimits(write_high_water_bytes=1 << 20)) as client:
            for _ in range(200):
                await client.invoke_oneway(server.address, RemotingCommand.request(ECHO, body=bytes(100_000)), TIMEOUT)
            await asyncio.to_thread(eventually, lambda: len(received) == 200)
        assert received == [100_000] * 200
        await server.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", ".a"])
def test_a_name_that_no_host_can_have(host: str, tls: bool) -> None:
    """A name server may give one out; whoever meets it goes on with the next broker."""

    async def scenario() -> None:
        async with RemotingClient(tls=tls) as client:
            with pytest.raises(ConnectError, match=f"PUT_KV_CONFIG at {host}:1: '{host}' is no host"):
                await client.invoke(f"{host}:1", RemotingCommand.request(ECHO), TIMEOUT)

    asyncio.run(scenario())
    with (
        BlockingRemotingClient(tls=tls) as client,
        pytest.raises(ConnectError, match=f"PUT_KV_CONFIG at {host}:1: '{host}' is no host"),
    ):
        client.invoke(f"{host}:1", RemotingCommand.request(ECHO), TIMEOUT)


def test_the_server_asks_the_client(server: TestServer) -> None:
    async def scenario(client: RemotingClient) -> None:
        async def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            assert channel.remote_address == server.address
            await asyncio.sleep(0)
            return RemotingCommand.response(request, body=request.body.upper())

        client.register(307, answer)
        response = await client.invoke(server.address, RemotingCommand.request(CALL_BACK, body=b"ask"), TIMEOUT)
        assert response.body == b"ASK"

    with_client(server, scenario)


def test_an_unknown_request_of_the_server_is_refused(server: TestServer) -> None:
    async def scenario(client: RemotingClient) -> None:
        await client.invoke(server.address, RemotingCommand.request(CALL_BACK), TIMEOUT)
        assert server.callback_answers[0].code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    with_client(server, scenario)


def test_signer_and_address_map(server: TestServer) -> None:
    options: dict[str, Any] = {"signer": Signer("ak", "sk"), "address_map": {"broker:10911": server.address}}

    async def scenario(client: RemotingClient) -> None:
        request = RemotingCommand.request(HEADERS, body=b"x")
        assert (await client.invoke("broker:10911", request, TIMEOUT)).code == 0

    with_client(server, scenario, **options)
    with BlockingRemotingClient(**options) as client:
        assert client.invoke("broker:10911", RemotingCommand.request(HEADERS, body=b"x"), TIMEOUT).code == 0
        assert client.invoke_nowait("broker:10911", RemotingCommand.request(HEADERS)).result().code == 0


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

        server.register(ECHO, held)
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

        server.register(ECHO, held)
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

        server.register(ECHO, waits)
        server.register(NEVER, keeps)
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

        server.register(ECHO, held)
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

        server.register(ECHO, held)
        server.register(NEVER, lambda channel, request: RemotingCommand.response(request))
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


def test_a_connection_that_never_ends_does_not_hold_the_close_of_a_client(
    server: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        client = RemotingClient()
        channel = await client.connect(server.address)
        transport = channel._transport
        async with asyncio.timeout(5):
            await client.close()
        transport.abort()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Channel, "close", lambda channel: None)
        patch.setattr(Channel, "abort", lambda channel: None)
        asyncio.run(scenario())
    assert "connections did not end client=client connections=1" in caplog.text


# Server limits


def test_connections_are_bounded() -> None:
    with TestServer(max_connections=2) as server:
        host, port = split_address(server.address)
        kept = [socket.create_connection((host, port), timeout=TIMEOUT) for _ in range(2)]
        eventually(lambda: server.channels() == 2)
        refused = socket.create_connection((host, port), timeout=TIMEOUT)
        assert ended(refused)
        kept.pop().close()
        eventually(lambda: server.channels() == 1)
        again = socket.create_connection((host, port), timeout=TIMEOUT)
        again.sendall(RemotingCommand.request(ECHO).encode())
        assert again.recv(1)
        for sock in (refused, again, *kept):
            sock.close()


def ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_connections_of_one_address_are_bounded() -> None:
    with (
        TestServer(max_connections_per_address=1) as server,
        socket.create_connection(split_address(server.address), timeout=TIMEOUT),
        socket.create_connection(split_address(server.address), timeout=TIMEOUT) as refused,
    ):
        assert ended(refused)


def test_a_bad_frame_closes_its_own_connection_only(server: TestServer, blocking: BlockingRemotingClient) -> None:
    blocking.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    with socket.create_connection(split_address(server.address), timeout=TIMEOUT) as bad:
        bad.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert ended(bad)
    assert blocking.invoke(server.address, RemotingCommand.request(ECHO, body=b"x"), TIMEOUT).body == b"x"
    assert server.channels() == 1


def test_idle_connections_are_closed() -> None:
    with (
        TestServer(idle_timeout=0.1) as server,
        socket.create_connection(split_address(server.address), timeout=TIMEOUT) as idle,
    ):
        assert ended(idle)


def test_one_handler_a_code() -> None:
    server = RemotingServer()
    server.register(ECHO, lambda channel, request: None)
    server.register_chunk(ECHO, lambda channel, chunk, first, last: None)
    with pytest.raises(ConfigError, match="100 already has a handler"):
        server.register(ECHO, lambda channel, request: None)
    with pytest.raises(ConfigError, match="100 already has a chunk handler"):
        server.register_chunk(ECHO, lambda channel, chunk, first, last: None)


def test_close_callback_and_default_handler() -> None:
    async def scenario() -> None:
        server = RemotingServer()
        gone: list[Channel] = []
        server.register_default(lambda channel, request: RemotingCommand.response(request, remark="default"))
        ended_one = asyncio.Event()
        server.on_close(gone.append)
        server.on_close(lambda channel: ended_one.set())
        await server.start()
        async with RemotingClient() as client:
            assert (await client.invoke(server.address, RemotingCommand.request(4711), TIMEOUT)).remark == "default"
            client.close_channel(server.address)
            await ended_one.wait()
            assert len(gone) == 1
        await server.stop()

    asyncio.run(scenario())


# Blocking client


def test_blocking_round_trip(server: TestServer, blocking: BlockingRemotingClient) -> None:
    for size in (0, 1, 5000, 300_000, 4 << 20):
        body = os.urandom(size)
        assert blocking.invoke(server.address, RemotingCommand.request(ECHO, body=body), TIMEOUT).body == body
    blocking.invoke_oneway(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    assert server.channels() == 1


def test_many_threads_share_one_connection(server: TestServer, blocking: BlockingRemotingClient) -> None:
    failures: list[object] = []

    def work(number: int) -> None:
        try:
            for turn in range(100):
                body = b"%d-%d" % (number, turn) * (turn % 7 * 50 + 1)
                answer = blocking.invoke(server.address, RemotingCommand.request(ECHO, body=body), TIMEOUT)
                if answer.body != body:
                    failures.append((number, turn))
        except TransportError as error:
            failures.append(error)

    run_threads([threading.Thread(target=work, args=(number,)) for number in range(32)])
    assert failures == []
    assert server.channels() == 1


def run_threads(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_deadlines_are_kept_and_leave_the_connection_usable(
    server: TestServer, blocking: BlockingRemotingClient
) -> None:
    blocking.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    for timeout in (0.02, 0.2):
        began = time.monotonic()
        with pytest.raises(RequestTimeout, match=f"GET_KV_CONFIG at {server.address}: no answer within"):
            blocking.invoke(server.address, RemotingCommand.request(NEVER), timeout)
        assert timeout * 0.9 <= time.monotonic() - began < timeout + 2
    with pytest.raises(RequestTimeout):
        blocking.invoke(server.address, RemotingCommand.request(SLOW, body=b"0.1"), 0.05)
    # The late answer arrives while somebody else waits, and is dropped.
    assert blocking.invoke(server.address, RemotingCommand.request(SLOW, body=b"0.1"), TIMEOUT).remark == "slow"
    assert server.channels() == 1


def test_a_reader_that_gives_up_hands_over(
    server: TestServer, blocking: BlockingRemotingClient, in_thread: InThread
) -> None:
    """The thread that reads runs into its deadline while others wait: they read on."""
    blocking.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    first = in_thread(blocking.invoke, server.address, RemotingCommand.request(NEVER), 0.1)
    others = [
        in_thread(blocking.invoke, server.address, RemotingCommand.request(SLOW, body=b"0.3"), TIMEOUT)
        for _ in range(5)
    ]
    assert isinstance(first.exception(TIMEOUT), RequestTimeout)
    assert [each.result(TIMEOUT).remark for each in others] == ["slow"] * 5


def test_pipelining_from_one_thread_does_not_deadlock(server: TestServer, blocking: BlockingRemotingClient) -> None:
    """Both socket buffers fill while nobody waits for an answer: the writer has to read."""
    body = bytes(200_000)
    pending = [blocking.invoke_nowait(server.address, RemotingCommand.request(ECHO, body=body), 30) for _ in range(150)]
    assert all(len(each.result().body) == len(body) for each in pending)


def test_outstanding_requests_are_bounded(server: TestServer) -> None:
    with BlockingRemotingClient(limits=ChannelLimits(max_in_flight=3)) as client:
        for _ in range(3):
            client.invoke_nowait(server.address, RemotingCommand.request(NEVER), 0.05)
        with pytest.raises(Overloaded, match="3 requests are outstanding"):
            client.invoke_nowait(server.address, RemotingCommand.request(NEVER), 0.05)
        threading.Event().wait(0.1)
        # Those whose time is over make room.
        client.invoke_nowait(server.address, RemotingCommand.request(ECHO), TIMEOUT).result()


def test_the_server_drops_the_connection(
    server: TestServer, blocking: BlockingRemotingClient, in_thread: InThread
) -> None:
    blocking.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    waiting = [in_thread(blocking.invoke, server.address, RemotingCommand.request(NEVER), TIMEOUT) for _ in range(4)]
    eventually(lambda: len(blocking.connect(server.address)._pending) == 4)
    with pytest.raises(ConnectionLost, match=f"REGISTER_BROKER|UNREGISTER_BROKER.*at {server.address}"):
        blocking.invoke(server.address, RemotingCommand.request(DROP), TIMEOUT)
    assert [type(each.exception(TIMEOUT)) for each in waiting] == [ConnectionLost] * 4
    assert blocking.invoke(server.address, RemotingCommand.request(ECHO, body=b"x"), TIMEOUT).body == b"x"


def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    with TestServer(idle_timeout=0.1) as server, BlockingRemotingClient() as client:
        client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
        eventually(lambda: server.channels() == 0)
        channel = client.connect(server.address)
        channel.last_used -= 5
        assert client.invoke(server.address, RemotingCommand.request(ECHO, body=b"x"), TIMEOUT).body == b"x"
        assert client.connect(server.address) is not channel


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_the_server_asks_the_blocking_client(server: TestServer, blocking: BlockingRemotingClient, kind: str) -> None:
    def answer(channel: Any, request: RemotingCommand) -> RemotingCommand:
        # A handler may ask the same server meanwhile.
        nested = channel.invoke(RemotingCommand.request(ECHO, body=request.body.upper()), TIMEOUT)
        return RemotingCommand.response(request, body=nested.body)

    async def answer_later(channel: Any, request: RemotingCommand) -> RemotingCommand:
        return answer(channel, request)

    blocking.register(307, answer if kind == "function" else answer_later)
    response = blocking.invoke(server.address, RemotingCommand.request(CALL_BACK, body=b"ask"), TIMEOUT)
    assert response.body == b"ASK"


def test_the_server_asks_on_an_idle_connection(server: TestServer, blocking: BlockingRemotingClient) -> None:
    asked = threading.Event()

    def answer(channel: Any, request: RemotingCommand) -> None:
        asked.set()

    blocking.register(40, answer)
    blocking.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    server.call(lambda running: [channel.invoke_oneway(RemotingCommand.request(40)) for channel in running.channels])
    assert asked.wait(TIMEOUT)


def test_handler_errors_of_the_blocking_client(
    server: TestServer, blocking: BlockingRemotingClient, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(channel: Any, request: RemotingCommand) -> RemotingCommand:
        raise ValueError("broken")

    blocking.invoke(server.address, RemotingCommand.request(CALL_BACK), TIMEOUT)
    blocking.register(307, answer)
    blocking.invoke(server.address, RemotingCommand.request(CALL_BACK), TIMEOUT)
    answers = [(each.code, each.remark) for each in server.callback_answers]
    assert answers == [(3, " request type 307 not supported"), (1, "ValueError: broken")]
    assert "request=GET_CONSUMER_RUNNING_INFO" in caplog.text


def test_a_child_process_makes_connections_of_its_own(server: TestServer) -> None:
    with BlockingRemotingClient() as client:
        client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
        pid = os.fork()
        if pid == 0:
            try:
                answer = client.invoke(server.address, RemotingCommand.request(ECHO, body=b"child"), TIMEOUT)
                os._exit(0 if answer.body == b"child" else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        parent = client.invoke(server.address, RemotingCommand.request(ECHO, body=b"parent"), TIMEOUT)
        assert parent.body == b"parent"
        eventually(lambda: server.channels() == 1)


def test_closing_the_blocking_client(server: TestServer, in_thread: InThread) -> None:
    client = BlockingRemotingClient()
    client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    waiting = in_thread(client.invoke, server.address, RemotingCommand.request(NEVER), TIMEOUT)
    eventually(lambda: bool(client.connect(server.address)._pending))
    client.close()
    assert isinstance(waiting.exception(TIMEOUT), ConnectionLost)
    with pytest.raises(ClientClosed):
        client.invoke(server.address, RemotingCommand.request(ECHO), TIMEOUT)
    eventually(lambda: server.channels() == 0)


def test_one_logic_for_both_worlds(server: TestServer, blocking: BlockingRemotingClient) -> None:
    async def logic(remoting: Remoting, address: str) -> bytes:
        first = await remoting.invoke(address, RemotingCommand.request(ECHO, body=b"a"), TIMEOUT)
        await remoting.invoke_oneway(address, RemotingCommand.request(ECHO), TIMEOUT)
        remoting.close_channel(address)
        second = await remoting.invoke(address, RemotingCommand.request(ECHO, body=b"b"), TIMEOUT)
        return first.body + second.body

    assert run_sync(logic(BlockingChannelAdapter(blocking), server.address)) == b"ab"

    async def scenario(client: RemotingClient) -> None:
        assert await logic(client, server.address) == b"ab"

    with_client(server, scenario)


def test_run_sync_refuses_what_needs_a_loop() -> None:
    class Never:
        def __await__(self) -> Iterator[None]:
            yield

    async def waits() -> None:
        await Never()

    async def fails() -> None:
        raise KeyError("x")

    with pytest.raises(RuntimeError, match="only an event loop can give"):
        run_sync(waits())
    with pytest.raises(KeyError):
        run_sync(fails())


@pytest.mark.parametrize(
    "address",
    ["", "host", ":1", "host:", "host:0", "host:65536", "host:x", "[::1]", "ho\0st:1", "host:" + "1" * 5000],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError):
        split_address(address)


@pytest.mark.parametrize("address", ["nowhere", "host:99999", "a..b:1", f"{'x' * 64}.example:1"])
def test_an_address_that_is_none_is_a_server_that_cannot_be_reached(
    address: str, blocking: BlockingRemotingClient
) -> None:
    """Name servers pass on whatever brokers register."""

    async def scenario() -> None:
        async with RemotingClient() as client:
            await client.invoke(address, RemotingCommand.request(ECHO), TIMEOUT)

    with pytest.raises(ConnectError, match=re.escape(f"at {address}: ")):
        blocking.invoke(address, RemotingCommand.request(ECHO), TIMEOUT)
    with pytest.raises(ConnectError, match=re.escape(f"at {address}: ")):
        asyncio.run(scenario())


def test_addresses() -> None:
    assert split_address("[::1]:9876") == ("::1", 9876)
    assert split_address(" h:1 ") == ("h", 1)
