"""Server and asyncio client over loopback sockets, and what both clients make of addresses."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rocketcore.codes import ResponseCode
from rocketcore.errors import (
    ClientClosed,
    ConfigError,
    ConnectError,
    ConnectionLost,
    RequestTimeout,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.signing import Signer
from rocketcore.transport.blocking.client import BlockingRemotingClient
from rocketcore.transport.channel import Channel
from rocketcore.transport.client import RemotingClient, split_address
from rocketcore.transport.limits import ChannelLimits
from rocketcore.transport.server.admission import ConnectionSettings
from rocketcore.transport.server.server import RemotingServer
from tests.fixtures.threads import InThread
from tests.fixtures.tls import client_tls, server_tls
from tests.integration.remoting_server import (
    CALL_BACK,
    DROP,
    ECHO,
    HEADERS,
    NEVER,
    TIMEOUT,
    TestServer,
    add_handler,
    ended,
    eventually,
    with_client,
)


@pytest.fixture
def server() -> Iterator[TestServer]:
    with TestServer() as running:
        yield running


@pytest.fixture
def blocking() -> Iterator[BlockingRemotingClient]:
    with BlockingRemotingClient() as client:
        yield client


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
        channel = await client.connect(server.address)
        futures = [channel.invoke_nowait(RemotingCommand.request(ECHO, body=b"x"), TIMEOUT) for _ in range(100)]
        assert all(answer.body == b"x" for answer in await asyncio.gather(*futures))
        await client.invoke_oneway(server.address, RemotingCommand.request(ECHO), TIMEOUT)

    with_client(server, scenario)


def test_requests_over_the_connection_that_is_open(server: TestServer) -> None:
    async def scenario(client: RemotingClient) -> None:
        requests = [RemotingCommand.request(ECHO, body=b"%d" % number) for number in range(100)]
        assert client.invoke_nowait(server.address, requests[0], TIMEOUT) is None
        await client.connect(server.address)
        futures = [client.invoke_nowait(server.address, request, TIMEOUT) for request in requests]
        answers = [await future for future in futures if future is not None]
        assert [bytes(answer.view_body()) for answer in answers] == [request.body for request in requests]
        client.close_channel(server.address)
        assert client.invoke_nowait(server.address, requests[0], TIMEOUT) is None

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


def test_a_silent_address_of_a_host_leaves_the_others_time(
    server: TestServer, silent_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        socket.getaddrinfo(*address.split(":"), type=socket.SOCK_STREAM)[0]  # type: ignore[arg-type, misc]
        for address in (silent_address, server.address)
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    with BlockingRemotingClient(connect_timeout=1.0) as blocking:
        assert blocking.invoke("two:1", RemotingCommand.request(ECHO), TIMEOUT).code == 0

    async def scenario() -> None:
        async with RemotingClient(connect_timeout=1.0) as client:
            assert (await client.invoke("two:1", RemotingCommand.request(ECHO), TIMEOUT)).code == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_no_request_waits_for_others_to_share_its_packet(server: TestServer, new_loop: Any) -> None:
    def nodelay(sock: Any) -> int:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    async def scenario() -> None:
        async with RemotingClient() as client:
            channel = await client.connect(server.address)
            assert nodelay(channel._transport.get_extra_info("socket"))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


def test_nothing_is_paced_within_a_machine(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def congestion(channel: Any) -> bytes:
        sock = channel._transport.get_extra_info("socket")
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")

    default = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip().encode()

    async def scenario() -> None:
        async with RemotingClient() as client:
            assert congestion(await client.connect(server.address)) == b"reno"
        monkeypatch.setattr("rocketcore.transport.client.is_loopback", lambda host: False)
        async with RemotingClient() as client:
            assert congestion(await client.connect(server.address)) == default

    asyncio.run(scenario())


class HangingResolver:
    """Stands in for ``socket.getaddrinfo``: names wait until they are released, numbers are read as ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released = threading.Event()
        self.asked: list[str] = []
        self._resolve = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.resolve)

    def resolve(self, name: str | bytes, port: int, *args: Any, **options: Any) -> Any:
        host = name.decode() if isinstance(name, bytes) else name
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


def test_a_look_up_for_which_there_is_no_thread_is_a_connect_error(
    server: TestServer, blocking: BlockingRemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the interpreter ends, or a limit is reached."""
    address = f"localhost:{split_address(server.address)[1]}"

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario(client: RemotingClient) -> None:
        with pytest.raises(ConnectError, match="no look-up of localhost: can't start new thread"):
            await client.invoke(address, RemotingCommand.request(ECHO), TIMEOUT)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(ConnectError, match="no look-up of localhost: can't start new thread"):
            blocking.invoke(address, RemotingCommand.request(ECHO), TIMEOUT)
        with_client(server, scenario)
    assert blocking.invoke(address, RemotingCommand.request(ECHO), TIMEOUT).code == 0


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
        add_handler(server, ECHO, lambda channel, request: received.append(len(request.body)))
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

        add_handler(client, 307, answer)
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
    with TestServer(connections=ConnectionSettings(server_max_connections=2)) as server:
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


def test_connections_of_one_address_are_bounded() -> None:
    with (
        TestServer(connections=ConnectionSettings(server_max_connections_per_address=1)) as server,
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
    add_handler(server, ECHO, lambda channel, request: None)
    with pytest.raises(ConfigError, match="100 already has a handler"):
        add_handler(server, ECHO, lambda channel, request: None)


def test_close_callback() -> None:
    async def scenario() -> None:
        server = RemotingServer()
        gone: list[Channel] = []
        ended_one = asyncio.Event()
        server.on_close(gone.append)
        server.on_close(lambda channel: ended_one.set())
        await server.start()
        async with RemotingClient() as client:
            assert (await client.invoke(server.address, RemotingCommand.request(4711), TIMEOUT)).code == 3
            client.close_channel(server.address)
            await ended_one.wait()
            assert len(gone) == 1
        await server.stop()

    asyncio.run(scenario())


# Addresses


def unused_address() -> str:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


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
