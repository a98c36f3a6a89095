"""IP addresses as texts: which networks they are in, and whether they are this machine's own."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from rocketcore.config_file import BadSetting

__all__ = ["LOOPBACK", "Networks", "contains", "is_loopback", "parse_networks"]

Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]

LOOPBACK: Final[Networks] = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


def parse_networks(text: str, setting: str) -> Networks:
    """Return the networks that a setting lists: addresses, or networks like ``10.1.0.0/16``, joined by commas.

    raises  BadSetting naming the setting
    """
    networks = []
    for part in filter(None, re.split(r"[,;\s]+", text)):
        try:
            networks.append(ipaddress.ip_network(part))
        except ValueError as error:
            raise BadSetting(setting, text, f"addresses and networks like 10.1.0.0/16: {error}") from None
    return tuple(networks)


def contains(networks: Networks, host: str) -> bool:
    """Tell whether an IP address is in one of the networks; what is no IP address is in none."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # an IPv4 client of a socket that takes both families
    return any((mapped or address) in network for network in networks)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches what listens at ``host``; the address decides, not how the text begins."""
    return host == "localhost" or contains(LOOPBACK, host)
