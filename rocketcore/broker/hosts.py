"""Addresses: ``ip:port`` as text, and the 8 or 20 bytes of them that records and message ids hold."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from rocketcore.transport.channel import Channel

_BORN_HOST = "born_host"
_ANY = ("", "0.0.0.0", "::")


def encode_host(ip: str, port: int) -> bytes:
    """Return the address, 4 or 16 bytes, and the port, 4 bytes. Raises ValueError for what is no IP address."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + port.to_bytes(4, "big")


def join_address(ip: str, port: int) -> str:
    """Return ``ip:port``, an IPv6 address in brackets."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def born_host(channel: Channel) -> bytes:
    """The producer's address as records hold it; worked out once for each connection."""
    known = channel.attributes.get(_BORN_HOST)
    if isinstance(known, bytes):
        return known
    ip, _, port = channel.remote_address.rpartition(":")
    encoded = channel.attributes[_BORN_HOST] = encode_host(ip.strip("[]"), int(port))
    return encoded


async def advertised_ip(configured: str, bind_address: str) -> str:
    """The address to tell clients: the one configured, else the one bound, else the first that leads out."""
    name = configured or (bind_address if bind_address not in _ANY else "")
    if not name:
        return _outward_ip()
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return str(found[0][4][0])


def _outward_ip() -> str:
    """Ask the routing table by connecting a datagram socket, which sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
