"""Network addresses: as text, as the host fields of records, and the one that this machine is seen at.

text   ``host:port``, an IPv6 address in brackets
field  4 or 16 address bytes, port i32: what records hold of a message's producer and of its broker
"""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache
from typing import Final

from rocketcore.errors import ConfigError

__all__ = ["host_field", "host_text", "join", "outward_ip", "ports_beside", "split"]

PORT_STEP: Final = 10
"""Apache's brokers take two more ports beside theirs."""
_DOCUMENTATION_ADDRESS = ("192.0.2.1", 9)
"""RFC 5737: it belongs to no one, and is reached, if at all, as any foreign address is."""


def join(host: str, port: int) -> str:
    """Return ``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[ipv6]:port``; raises ValueError for anything else, port 0 is one."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal()) or len(port) > 5 or int(port) > 65535:
        raise ValueError(f"{address!r} is not host:port")
    return host, int(port)


def host_field(ip: str, port: int) -> bytes:
    """Return the field of an IP address; an IPv4 address that is mapped into IPv6 becomes one of IPv4.

    raises  ValueError for what is no IP address
    """
    address = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + port.to_bytes(4, "big")


@lru_cache(maxsize=1024)
def host_text(field: bytes) -> str:
    """Return the text of a host field of 8 or 20 bytes."""
    family = socket.AF_INET if len(field) == 8 else socket.AF_INET6
    return join(socket.inet_ntop(family, field[:-4]), int.from_bytes(field[-4:], "big"))


def outward_ip() -> str:
    """Return the address of this machine that other machines most likely see; ``127.0.0.1`` without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # A datagram socket sends nothing here: the kernel only chooses a source address.
            probe.connect(_DOCUMENTATION_ADDRESS)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def ports_beside(first: int, brokers: int) -> list[int]:
    """Return the ports of brokers on one machine, the first one's given; 0: free ones for all.

    raises  ConfigError where there are no such ports
    """
    if first + (brokers - 1) * PORT_STEP > 65535:
        raise ConfigError(f"{brokers} brokers from port {first} on, {PORT_STEP} apart, are beyond 65535")
    return [first + index * PORT_STEP if first else 0 for index in range(brokers)]
