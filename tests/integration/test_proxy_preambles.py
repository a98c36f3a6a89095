"""PROXY preambles over loopback sockets: whose address they tell, what is damaged, who may send them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import closing

import pytest

from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.server.admission import ConnectionSettings
from tests.fixtures.tls import client_tls, server_tls
from tests.integration.remoting_server import (
    ended,
    eventually,
)
from tests.integration.tls_server import WHO, TlsServer, ask, connected, echo_blocking

PREAMBLE_V2 = b"\r\n\r\n\x00\r\nQUIT\n"


def v2(command: int, family: int, addresses: bytes) -> bytes:
    return PREAMBLE_V2 + bytes([command, family]) + struct.pack(">H", len(addresses)) + addresses


PREAMBLES: list[tuple[bytes, str]] = [
    (b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 9876\r\n", "192.0.2.1:56324"),
    (b"PROXY TCP6 2001:db8::1 ::1 56324 9876\r\n", "[2001:db8::1]:56324"),
    (b"PROXY UNKNOWN\r\n", ""),
    (v2(0x21, 0x11, bytes([192, 0, 2, 1, 192, 0, 2, 2]) + struct.pack(">HH", 56324, 9876)), "192.0.2.1:56324"),
    (v2(0x20, 0x00, b""), ""),
]


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(("preamble", "source"), PREAMBLES)
def test_the_source_of_a_preamble_is_the_remote_address(
    preamble: bytes, source: str, secure: bool, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    with TlsServer(loop_factory, tls=server_tls()) as server, closing(connected(server.address)) as sock:
        own = "{}:{}".format(*sock.getsockname())
        sock.sendall(preamble)
        talking: socket.socket = sock
        if secure:
            talking = client_tls().context().wrap_socket(sock, server_hostname="localhost")
        answer = ask(talking, RemotingCommand.request(WHO))
        assert answer.remark == (source or own)
        talking.close()
        eventually(lambda: server.channels() == 0)


@pytest.mark.parametrize(("preamble", "source"), PREAMBLES)
def test_a_preamble_byte_by_byte(preamble: bytes, source: str) -> None:
    with TlsServer() as server, closing(connected(server.address)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in preamble:
            sock.sendall(bytes([byte]))
        assert ask(sock, RemotingCommand.request(WHO)).remark == (source or "{}:{}".format(*sock.getsockname()))


@pytest.mark.parametrize(
    "bad",
    [
        b"PROXY TCP4 192.0.2.1 192.0.2.2 56324\r\n",
        b"PROXY TCP4 192.0.2.300 192.0.2.2 1 2\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"PROXY " + b"x" * 200,
        v2(0x31, 0x11, bytes(12)),
        v2(0x21, 0x11, bytes(11)),
        PREAMBLES[0][0] * 2,
    ],
)
def test_a_damaged_preamble_closes_its_connection(bad: bytes) -> None:
    with TlsServer() as server, closing(connected(server.address)) as sock:
        sock.sendall(bad)
        assert ended(sock)
        assert echo_blocking(server.address) == b"x"


NO_PROXY = ConnectionSettings(proxy_protocol_enable=False)


def test_a_server_that_takes_no_preamble() -> None:
    with TlsServer(connections=NO_PROXY, tls=server_tls()) as server, closing(connected(server.address)) as sock:
        sock.sendall(PREAMBLES[0][0] + RemotingCommand.request(WHO).encode())
        assert ended(sock)
    with TlsServer(connections=NO_PROXY) as server, closing(connected(server.address)) as sock:
        assert ask(sock, RemotingCommand.request(WHO)).remark == "{}:{}".format(*sock.getsockname())
        sock.sendall(PREAMBLES[0][0])
        assert ended(sock)


def test_a_preamble_of_someone_else_than_a_load_balancer(caplog: pytest.LogCaptureFixture) -> None:
    """Its connection ends: nobody says of itself where it comes from."""
    caplog.set_level("INFO")
    settings = ConnectionSettings(proxy_protocol_trusted="192.0.2.0/24")
    with TlsServer(connections=settings) as server, closing(connected(server.address)) as sock:
        sock.sendall(PREAMBLES[0][0] + RemotingCommand.request(WHO).encode())
        assert ended(sock)
        with closing(connected(server.address)) as plain:
            assert ask(plain, RemotingCommand.request(WHO)).remark == "{}:{}".format(*plain.getsockname())
    assert "its address is none of proxyProtocolTrusted" in caplog.text


def test_a_forged_source_does_not_dodge_the_limit_of_an_address() -> None:
    with TlsServer(connections=ConnectionSettings(server_max_connections_per_address=2)) as server:
        socks = []
        for source in (b"192.0.2.1", b"192.0.2.2"):
            sock = connected(server.address)
            sock.sendall(b"PROXY TCP4 %s 192.0.2.9 1 2\r\n" % source)
            assert ask(sock, RemotingCommand.request(WHO)).remark == f"{source.decode()}:1"
            socks.append(sock)
        with closing(connected(server.address)) as refused:
            assert ended(refused)
        socks.pop().close()
        eventually(lambda: server.channels() == 1)
        with closing(connected(server.address)) as again:
            assert ask(again, RemotingCommand.request(WHO)).remark
        socks.pop().close()
