"""The addresses of a broker and of its producers."""

from __future__ import annotations

import ipaddress

from rocketcore.addresses import host_field, outward_ip, split
from rocketcore.transport.channel import Channel
from rocketcore.transport.lookup import HostLookup, host_of

_BORN_HOST = "born_host"
_ANY = ("", "0.0.0.0", "::")


def born_host(channel: Channel) -> bytes:
    """The producer's address as records hold it; worked out once for each connection."""
    known = channel.attributes.get(_BORN_HOST)
    if isinstance(known, bytes):
        return known
    encoded = channel.attributes[_BORN_HOST] = host_field(*split(channel.remote_address))
    return encoded


async def advertised_ip(configured: str, bind_address: str) -> str:
    """The address to tell clients: the one configured, else the one bound, else the first that leads out."""
    name = configured or (bind_address if bind_address not in _ANY else "")
    if not name:
        return outward_ip()
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        with host_of("brokerIP1" if configured else "bindAddress", name):
            found = await HostLookup().find_async(name, 0)
        return str(found[0][4][0])
