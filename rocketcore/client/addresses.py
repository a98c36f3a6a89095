"""The name servers that an argument, or a variable, names; apart from other settings, which commands do without."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from rocketcore.addresses import split
from rocketcore.errors import ConfigError

__all__ = ["DEFAULT_NAMESRV", "NameServers", "name_server_list"]

NameServers: TypeAlias = str | Iterable[str] | None

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
_HOST: Final = re.compile(r"[^\s\x00-\x1f\[\]@?#'\"]+")


def name_server_list(namesrv: NameServers, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the name server addresses of an argument.

    namesrv  ``host:port``, several joined by ``;`` or ``,``, or an iterable of them; None: ``ROCKETMQ_NAMESRV_ADDR``,
             then ``NAMESRV_ADDR``, then ``127.0.0.1:9876``
    raises   ConfigError for what is no address
    """
    if namesrv is None:
        namesrv = environ.get("ROCKETMQ_NAMESRV_ADDR") or environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV
    parts = [namesrv] if isinstance(namesrv, str) else namesrv
    if isinstance(parts, (bytes, bytearray)) or not isinstance(parts, Iterable):
        raise ConfigError(f"namesrv must be text or several texts, got {type(parts).__name__}")
    addresses: dict[str, None] = {}
    for part in parts:
        if not isinstance(part, str):
            raise ConfigError(f"each name server address must be text, got {type(part).__name__}")
        addresses |= dict.fromkeys(filter(None, map(str.strip, re.split("[;,]", part))))
    if not addresses:
        raise ConfigError("no name server address was given")
    for address in addresses:
        _check_address(address)
    return tuple(addresses)


def _check_address(address: str) -> None:
    """Refuse a name server address that no connection can be made to."""
    if "/" in address:
        raise ConfigError(f"name server address {address!r} is host:port, without a scheme or a path")
    try:
        host, port = split(address)
    except ValueError:
        port = 0
    if not port:
        raise ConfigError(f"name server address {address!r} is not host:port")
    if not (_is_ipv6(host) if ":" in host else _HOST.fullmatch(host)):
        raise ConfigError(f"name server address {address!r}: invalid host {host!r}")


def _is_ipv6(host: str) -> bool:
    import ipaddress

    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
