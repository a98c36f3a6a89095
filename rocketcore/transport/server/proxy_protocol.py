"""The PROXY protocol: what a load balancer says of the connection that it passes on, before its first byte.

Text (version 1) is one line of at most 107 bytes: ``PROXY TCP4 192.0.2.1 192.0.2.2 56324 9876``. Binary (version 2):

    signature 12 · version and command u8 · family u8 · length u16, big-endian · addresses · TLVs

Both are read strictly: a connection that begins with a damaged preamble is no use to anyone.

Specification: haproxy.org, "The PROXY protocol, versions 1 & 2". RocketMQ 5: ``HAProxyMessageHandler``.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Final, NamedTuple

from rocketcore.addresses import join
from rocketcore.errors import DecodeError

__all__ = ["FIRST_BYTES", "Preamble", "parse_preamble"]

FIRST_BYTES: Final = b"P\r"
"""First bytes of a preamble of either version; neither begins a frame or a TLS handshake."""

_V1_START: Final = b"PROXY "
_V1_MAX_BYTES: Final = 107
_V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_HEADER_BYTES: Final = 16
_V2_MAX_LENGTH: Final = 4096
"""Addresses and TLVs: a client certificate's names fit, and thousands of connections cannot hold 64 KiB each."""
_V2_LOCAL, _V2_PROXY = 0x20, 0x21
_V2_ADDRESS_BYTES: Final = {0x0: 0, 0x1: 12, 0x2: 36, 0x3: 216}
"""By address family: unspecified, IPv4, IPv6, Unix."""
_V2_TCP4, _V2_TCP6 = 0x11, 0x21
_PORT: Final = re.compile(rb"0|[1-9][0-9]{0,4}")


class Preamble(NamedTuple):
    """A whole preamble: who connected to the balancer, ``ip:port`` or empty where it does not say, and its length."""

    source: str
    consumed: int


def parse_preamble(data: bytes) -> Preamble | None:
    """Read the preamble that ``data`` begins with; None: it is not complete yet, and nothing was wrong so far.

    raises  DecodeError
    """
    if data[:1] == b"\r":
        return _parse_binary(data)
    return _parse_text(data)


def _parse_text(data: bytes) -> Preamble | None:
    if data[: len(_V1_START)] != _V1_START[: len(data)]:
        raise DecodeError("invalid PROXY line", 0)
    end = data.find(b"\r\n", 0, _V1_MAX_BYTES)
    if end < 0:
        if len(data) >= _V1_MAX_BYTES:
            raise DecodeError(f"a PROXY line of more than {_V1_MAX_BYTES} bytes", _V1_MAX_BYTES)
        return None
    words = data[:end].split(b" ")
    protocol = words[1]
    if protocol == b"UNKNOWN":
        return Preamble("", end + 2)
    if protocol not in (b"TCP4", b"TCP6") or len(words) != 6:
        raise DecodeError(f"a PROXY line of {len(words)} words for {protocol!r}", 0)
    version = 4 if protocol == b"TCP4" else 6
    addresses = [_text_address(word, version) for word in words[2:4]]
    ports = [_text_port(word) for word in words[4:6]]
    return Preamble(join(addresses[0], ports[0]), end + 2)


def _text_address(word: bytes, version: int) -> str:
    try:
        address = ipaddress.ip_address(word.decode("ascii"))
    except ValueError:
        raise DecodeError(f"{word!r} in a PROXY line is not an IP address", 0) from None
    if address.version != version or "%" in str(address):
        raise DecodeError(f"{word!r} in a PROXY line is not an IPv{version} address", 0)
    return str(address)


def _text_port(word: bytes) -> int:
    if not _PORT.fullmatch(word) or int(word) > 65535:
        raise DecodeError(f"{word!r} in a PROXY line is not a port", 0)
    return int(word)


def _parse_binary(data: bytes) -> Preamble | None:
    if data[: len(_V2_SIGNATURE)] != _V2_SIGNATURE[: len(data)]:
        raise DecodeError("invalid binary PROXY preamble", 0)
    if len(data) < _V2_HEADER_BYTES:
        return None
    command, family = data[12], data[13]
    length = int.from_bytes(data[14:16], "big")
    if command not in (_V2_LOCAL, _V2_PROXY):
        raise DecodeError(f"a PROXY preamble of version and command 0x{command:02x}", 12)
    if length > _V2_MAX_LENGTH:
        raise DecodeError(f"a PROXY preamble of {length} bytes", 14)
    # The balancer itself, for example to see whether we are alive, may leave anything in the fields after its command.
    if command == _V2_PROXY:
        if family >> 4 not in _V2_ADDRESS_BYTES or family & 0xF > 2:
            raise DecodeError(f"a PROXY preamble of family 0x{family:02x}", 13)
        if length < _V2_ADDRESS_BYTES[family >> 4]:
            raise DecodeError(f"a PROXY preamble of {length} bytes for family 0x{family:02x}", 14)
    end = _V2_HEADER_BYTES + length
    if len(data) < end:
        return None
    if command == _V2_LOCAL or family not in (_V2_TCP4, _V2_TCP6):
        return Preamble("", end)
    size = 4 if family == _V2_TCP4 else 16
    source = data[16 : 16 + size]
    port_at = 16 + 2 * size
    port = int.from_bytes(data[port_at : port_at + 2], "big")
    kind = socket.AF_INET if size == 4 else socket.AF_INET6
    return Preamble(join(socket.inet_ntop(kind, source), port), end)
