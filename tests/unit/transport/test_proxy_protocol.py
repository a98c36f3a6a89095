"""PROXY preambles, byte for byte, and everything that is none."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore.errors import DecodeError
from rocketcore.transport.server.proxy_protocol import parse_preamble

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
TCP4 = socket.inet_aton("192.0.2.1") + socket.inet_aton("192.0.2.2") + struct.pack(">HH", 56324, 9876)
TCP6 = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    + socket.inet_pton(socket.AF_INET6, "::1")
    + struct.pack(">HH", 56324, 9876)
)
TLV = b"\x04\x00\x03abc"


def binary(command: int, family: int, content: bytes, length: int | None = None) -> bytes:
    return (
        SIGNATURE + bytes([command, family]) + struct.pack(">H", len(content) if length is None else length) + content
    )


GOOD: list[tuple[bytes, str]] = [
    (b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 9876\r\n", "192.0.2.1:56324"),
    (b"PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n", "0.0.0.0:0"),
    (b"PROXY TCP6 2001:db8::1 ::1 56324 9876\r\n", "[2001:db8::1]:56324"),
    (
        b"PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n",
        "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
    ),
    (b"PROXY UNKNOWN\r\n", ""),
    (b"PROXY UNKNOWN what ever comes here\r\n", ""),
    (binary(0x21, 0x11, TCP4), "192.0.2.1:56324"),
    (binary(0x21, 0x11, TCP4 + TLV), "192.0.2.1:56324"),
    (binary(0x21, 0x21, TCP6), "[2001:db8::1]:56324"),
    (binary(0x21, 0x21, TCP6 + TLV * 20), "[2001:db8::1]:56324"),
    (binary(0x21, 0x12, TCP4), ""),
    (binary(0x21, 0x31, bytes(216)), ""),
    (binary(0x21, 0x00, b""), ""),
    (binary(0x20, 0x00, b""), ""),
    (binary(0x20, 0x00, TLV), ""),
    (binary(0x20, 0x11, TCP4), ""),
    (binary(0x20, 0xFF, b"anything"), ""),
]

BAD = [
    b"POST / HTTP/1.1\r\n",
    b"PROXYTCP4 192.0.2.1 192.0.2.2 56324 9876\r\n",
    b"PROXY \r\n",
    b"PROXY TCP5 192.0.2.1 192.0.2.2 56324 9876\r\n",
    b"PROXY TCP4\r\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 56324\r\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 9876 1\r\n",
    b"PROXY  TCP4 192.0.2.1 192.0.2.2 56324 9876\r\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 65536\r\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 -1 9876\r\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 007 9876\r\n",
    b"PROXY TCP4 192.0.2.1 ::1 56324 9876\r\n",
    b"PROXY TCP4 ::1 ::1 56324 9876\r\n",
    b"PROXY TCP4 192.0.2.01 192.0.2.2 56324 9876\r\n",
    b"PROXY TCP6 fe80::1%eth0 ::1 56324 9876\r\n",
    b"PROXY TCP4 \xff\xfe 192.0.2.2 56324 9876\r\n",
    b"PROXY " + b"x" * 101,
    b"PROXY UNKNOWN " + b"x" * 100 + b"\r\n",
    b"\r\n\r\n\x00\r\nQUIT\r",
    b"\r\n\r\nGET",
    binary(0x11, 0x11, TCP4),
    binary(0x22, 0x11, TCP4),
    binary(0x21, 0x41, bytes(300)),
    binary(0x21, 0x13, TCP4),
    binary(0x21, 0x11, TCP4[:-1]),
    binary(0x21, 0x21, TCP4),
    binary(0x21, 0x31, bytes(215)),
    binary(0x21, 0x11, b"", 4097),
    binary(0x20, 0x00, b"", 65535),
]


@pytest.mark.parametrize(("data", "source"), GOOD)
def test_a_whole_preamble(data: bytes, source: str) -> None:
    for rest in (b"", b"\x00\x00\x00\x10", b"\x16\x03\x01"):
        preamble = parse_preamble(data + rest)
        assert preamble is not None
        assert (preamble.source, preamble.consumed) == (source, len(data))


@pytest.mark.parametrize("data", [data for data, _ in GOOD])
def test_any_beginning_of_one_is_not_complete(data: bytes) -> None:
    assert [parse_preamble(data[:length]) for length in range(1, len(data))] == [None] * (len(data) - 1)


@pytest.mark.parametrize("data", BAD)
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        parse_preamble(data)


def test_the_longest_line() -> None:
    """107 bytes with its end, by the specification; a byte more cannot be one."""
    line = b"PROXY UNKNOWN " + b"x" * 91 + b"\r\n"
    assert len(line) == 107
    assert parse_preamble(line) is not None
    assert parse_preamble(line[:106]) is None
    with pytest.raises(DecodeError, match="more than 107 bytes"):
        parse_preamble(b"PROXY UNKNOWN " + b"x" * 93)


@given(start=st.sampled_from([b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11"]), rest=st.binary())
def test_any_bytes_are_read_or_refused(start: bytes, rest: bytes) -> None:
    try:
        preamble = parse_preamble(start + rest)
    except DecodeError:
        return
    assert preamble is None or 0 < preamble.consumed <= len(start + rest)
