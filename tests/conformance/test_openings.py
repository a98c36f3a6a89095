"""What may come before the first frame of a connection: a load balancer's PROXY preamble, a TLS handshake."""

from __future__ import annotations

import socket
import ssl
import struct

import pytest

from tests.conformance.peer import Peer, RawConnection, json_frame

QUESTION = json_frame({"code": 106, "language": "JAVA", "version": 513, "opaque": 7, "flag": 0})
TCP4 = bytes([192, 0, 2, 1, 192, 0, 2, 2]) + struct.pack(">HH", 56324, 9876)
TCP6 = bytes(15) + b"\x01" + bytes(15) + b"\x02" + struct.pack(">HH", 56324, 9876)


def binary(command: int, family: int, content: bytes) -> bytes:
    return b"\r\n\r\n\x00\r\nQUIT\n" + bytes([command, family]) + struct.pack(">H", len(content)) + content


@pytest.mark.parametrize(
    "preamble",
    [
        b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 9876\r\n",
        b"PROXY TCP6 2001:db8::1 ::1 56324 9876\r\n",
        b"PROXY UNKNOWN\r\n",
        binary(0x21, 0x11, TCP4),
        binary(0x21, 0x21, TCP6),
        binary(0x21, 0x11, TCP4 + b"\x04\x00\x03abc"),
        binary(0x20, 0x00, b""),
    ],
)
@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_request_after_a_preamble(name_server: Peer, preamble: bytes, in_pieces: bool) -> None:
    with RawConnection(name_server.address) as connection:
        if in_pieces:
            for byte in preamble:
                connection.send(bytes([byte]))
            connection.send(QUESTION)
        else:
            connection.send(preamble + QUESTION)
        header, body = connection.read_frame()
        assert (header["code"], header["opaque"]) == (0, 7)
        assert b"brokerAddrTable" in body


@pytest.mark.parametrize(
    "damaged",
    [
        b"PROXY TCP4 192.0.2.1 192.0.2.2 56324\r\n",
        b"PROXY TCP4 nobody 192.0.2.2 56324 9876\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 65536\r\n",
        binary(0x31, 0x11, TCP4),
        binary(0x21, 0x11, TCP4[:4]),
    ],
)
def test_a_damaged_preamble_ends_the_connection(name_server: Peer, damaged: bytes) -> None:
    with RawConnection(name_server.address) as connection:
        connection.send(damaged + QUESTION)
        assert connection.is_closed_by_peer()
    assert name_server.ask(106).code == 0


def test_a_handshake_with_a_server_of_default_settings(name_server: Peer) -> None:
    """Apache's makes a certificate that nobody can verify; ours has none until it is given one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    host, _, port = name_server.address.rpartition(":")

    with socket.create_connection((host, int(port)), timeout=10) as sock:
        if name_server.apache:
            with context.wrap_socket(sock) as secure:
                secure.sendall(QUESTION)
                assert len(secure.recv(4)) == 4
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                context.wrap_socket(sock)
