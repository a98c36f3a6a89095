"""TLS handshakes over loopback sockets: in pieces, slow, damaged, never answered, cut short by a stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import IO, Any

import pytest

from rocketcore.errors import ConnectError, ConnectionLost
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.transport.blocking.client import BlockingRemotingClient
from rocketcore.transport.client import RemotingClient
from rocketcore.transport.limits import ChannelLimits
from rocketcore.transport.server.admission import ConnectionSettings
from rocketcore.transport.tls.socket import TlsSocket
from tests.fixtures.tls import FOLDER, client_tls, server_tls
from tests.integration.remoting_server import (
    ECHO,
    TIMEOUT,
    ended,
    eventually,
)
from tests.integration.tls_server import TlsServer, ask, connected, echo_blocking, run


def read_to_the_end(sock: socket.socket) -> None:
    """Return when the server has closed the connection, however."""
    with contextlib.suppress(ConnectionResetError, ssl.SSLError):
        while sock.recv(65536):
            pass


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    context = client_tls().context()
    session = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


def test_a_client_hello_in_pieces(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """The handshake does not depend on how its bytes arrive, nor does the first request behind it."""
    with TlsServer(loop_factory, tls=server_tls()) as server, closing(connected(server.address)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = client_tls().context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        while True:
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    sock.sendall(bytes([byte]))
                incoming.write(sock.recv(65536))
        session.write(RemotingCommand.request(ECHO, body=b"in one flight with Finished").encode())
        sock.sendall(outgoing.read())
        answers: list[RemotingCommand] = []
        decoder = FrameDecoder()
        while not answers:
            incoming.write(sock.recv(65536))
            try:
                while plain := session.read(65536):
                    answers += decoder.feed(plain)
            except ssl.SSLWantReadError:
                pass
        assert answers[0].body == b"in one flight with Finished"


@pytest.mark.parametrize("beginning", ["nothing of the hello", "half a hello", "a whole hello", "half a preamble"])
def test_a_slow_handshake_is_closed_at_its_deadline(
    beginning: str, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    hello = client_hello()
    sent = {
        "nothing of the hello": hello[:1],
        "half a hello": hello[: len(hello) // 2],
        "a whole hello": hello,
        "half a preamble": b"PROXY TCP4",
    }[beginning]
    limits = ChannelLimits(handshake_timeout=0.2)
    with TlsServer(loop_factory, tls=server_tls(), limits=limits) as server, closing(connected(server.address)) as sock:
        sock.sendall(sent)
        read_to_the_end(sock)
        eventually(lambda: server.channels() == 0)
        assert echo_blocking(server.address, tls=client_tls()) == b"x"


def test_garbage_after_the_first_byte_of_a_handshake() -> None:
    with TlsServer(tls=server_tls()) as server:
        for garbage in (b"\x16" * 100, b"\x16\x03\x01\xff\xff" + bytes(70_000), client_hello()[:60] + os.urandom(500)):
            with closing(connected(server.address)) as sock:
                sock.sendall(garbage)
                sock.shutdown(socket.SHUT_WR)
                read_to_the_end(sock)
        eventually(lambda: server.channels() == 0)
        assert echo_blocking(server.address, tls=client_tls()) == b"x"


def test_garbage_on_an_established_connection(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with TlsServer(loop_factory, tls=server_tls()) as server, closing(connected(server.address)) as sock:
        with client_tls().context().wrap_socket(sock, server_hostname="localhost") as secure:
            assert ask(secure, RemotingCommand.request(ECHO, body=b"x")).body == b"x"
            os.write(secure.fileno(), b"\x17\x03\x03\x00\x20" + os.urandom(32))
            read_to_the_end(secure)
        eventually(lambda: server.channels() == 0)


@contextlib.contextmanager
def openssl_server(*options: str) -> Iterator[tuple[str, IO[bytes], IO[bytes]]]:
    """``openssl s_server``: its address, what it is told, and what it says and receives."""
    certificate = ("-cert", str(FOLDER / "server.crt"), "-key", str(FOLDER / "server.key"))
    with subprocess.Popen(
        ["openssl", "s_server", "-accept", "127.0.0.1:0", *certificate, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            accept = next(line for line in process.stdout if line.startswith(b"ACCEPT "))
            yield accept.split()[1].decode(), process.stdin, process.stdout
        finally:
            process.kill()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
@pytest.mark.parametrize("own_context", [False, True])
@pytest.mark.parametrize("blocking", [False, True])
def test_a_renegotiation_that_a_server_asks_for_ends_the_connection(blocking: bool, own_context: bool) -> None:
    tls = ssl.create_default_context(cafile=str(FOLDER / "ca.crt")) if own_context else client_tls()
    request = RemotingCommand.request(ECHO, body=b"asked")

    async def ask_async(address: str) -> None:
        async with RemotingClient(tls=tls) as client:
            await client.invoke(address, request, TIMEOUT)

    def ask_blocking(address: str) -> None:
        with BlockingRemotingClient(tls=tls) as client:
            client.invoke(address, request, TIMEOUT)

    def renegotiate(orders: IO[bytes], received: IO[bytes]) -> None:
        said = b""
        while b"asked" not in said and (part := received.read(1 << 16)):
            said += part
        orders.write(b"r\n")

    with openssl_server("-tls1_2") as (address, orders, received):
        thread = threading.Thread(target=renegotiate, args=(orders, received), daemon=True)
        thread.start()
        refused = rf"PUT_KV_CONFIG at {address}: .*the server asked for a renegotiation, which is refused"
        with pytest.raises(ConnectionLost, match=refused):
            ask_blocking(address) if blocking else asyncio.run(ask_async(address))
        thread.join(TIMEOUT)
        assert not thread.is_alive()


def test_a_client_that_asks_a_server_of_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(65536)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConnectError, match=f"PUT_KV_CONFIG at {address}: the peer does not speak TLS"):
            echo_blocking(address, tls=client_tls())
        thread.join(TIMEOUT)


def test_a_server_that_never_answers_the_handshake(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())
        with pytest.raises(ConnectError, match=r"no connection within 0\.2 s"):
            echo_blocking(address, tls=client_tls(), connect_timeout=0.2)

        async def scenario(client: RemotingClient) -> None:
            with pytest.raises(ConnectError, match=r"no connection within 0\.2 s"):
                await client.invoke(address, RemotingCommand.request(ECHO), TIMEOUT)

        run(loop_factory, scenario, tls=client_tls(), connect_timeout=0.2)


def test_a_handshake_byte_by_byte_does_not_outlast_its_deadline() -> None:
    """No single read of it takes long."""

    class Dripping:
        """A socket with always one byte more of a record of 16 KiB."""

        given = b"\x16\x03\x03\x40\x00"

        def recv(self, size: int) -> bytes:
            byte, self.given = self.given[:1] or b"\0", self.given[1:]
            time.sleep(0.001)
            return byte

        def settimeout(self, timeout: float) -> None:
            assert timeout > 0

        def sendall(self, data: bytes) -> None:
            pass

    dripping: Any = Dripping()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        TlsSocket(dripping, client_tls().context(), "localhost", 0.1)
    assert time.monotonic() - began < 2


def test_a_stop_ends_connections_that_are_still_opening(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with TlsServer(loop_factory, tls=server_tls()) as server:
        silent, halfway = connected(server.address), connected(server.address)
        halfway.sendall(client_hello()[:20])
        eventually(lambda: server.channels() == 2)
    for sock in (silent, halfway):
        assert ended(sock)
        sock.close()


def test_opening_connections_count(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with TlsServer(loop_factory, tls=server_tls(), connections=ConnectionSettings(server_max_connections=2)) as server:
        opening = [connected(server.address) for _ in range(2)]
        opening[0].sendall(client_hello()[:20])
        eventually(lambda: server.channels() == 2)
        with closing(connected(server.address)) as refused:
            assert ended(refused)
        for sock in opening:
            sock.close()
        eventually(lambda: server.channels() == 0)
        assert echo_blocking(server.address, tls=client_tls()) == b"x"
