"""Which connections a server takes: how many in all, how many of one address, and whose word on addresses counts."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final

from rocketcore.config_file import check_ranges, setting
from rocketcore.service import Clock, Seldom
from rocketcore.transport.networks import LOOPBACK, Networks, contains, parse_networks

__all__ = ["Admission", "ConnectionSettings"]

logger = logging.getLogger(__name__)

_WARNING_INTERVAL: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Settings of every server's ports."""

    server_max_connections: int = setting(20_000, "connections accepted at a time", unit="count", least=1)
    server_max_connections_per_address: int = setting(
        0,
        "connections from one address at a time; with 0 the limit is a quarter of all, and this machine and load "
        "balancers have no limit",
        unit="count",
        least=0,
    )
    proxy_protocol_enable: bool = setting(True, "read the client's address from the PROXY preamble of a load balancer")
    proxy_protocol_trusted: str = setting(
        "127.0.0.0/8,::1", "load balancers that may send this preamble: addresses and networks, joined by commas"
    )
    metrics_port: int = setting(
        -1, "HTTP port of /metrics, /livez and /readyz; 0 takes a free port, -1 opens none", least=-1, most=65535
    )
    metrics_address: str = setting("127.0.0.1", "address that the HTTP port listens on")
    slow_request_millis: int = setting(
        500, "log a request that takes this long, at most one per second; 0 logs none", unit="ms", least=0
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        parse_networks(self.proxy_protocol_trusted, "proxyProtocolTrusted")

    @property
    def proxies(self) -> Networks:
        """The load balancers that may say who a client is."""
        if not self.proxy_protocol_enable:
            return ()
        return parse_networks(self.proxy_protocol_trusted, "proxyProtocolTrusted")


class Admission:
    """Counts a server's connections by the address of their socket, whatever a preamble says."""

    def __init__(self, name: str, settings: ConnectionSettings, clock: Clock) -> None:
        self.proxies = settings.proxies
        self.open_count = 0
        self._name = name
        self._maximum = settings.server_max_connections
        self._per_address = settings.server_max_connections_per_address or max(1, self._maximum // 4)
        # Behind a load balancer are many clients, and who is on this machine has other ways to take all there is.
        self._exempt: Networks = () if settings.server_max_connections_per_address else LOOPBACK + self.proxies
        self._warning = Seldom(_WARNING_INTERVAL, clock)
        self._by_ip: Counter[str] = Counter()

    def admit(self, address: str, refusal: str = "") -> bool:
        """Count a new connection from ``ip:port``; False where it is one too many, or for the ``refusal`` given."""
        ip = _host(address)
        self._by_ip[ip] += 1
        self.open_count += 1
        if self.open_count > self._maximum:
            refusal = f"more than {self._maximum} connections"
        elif self._by_ip[ip] > self._per_address and not contains(self._exempt, ip):
            refusal = f"more than {self._per_address} connections of one address"
        if not refusal:
            return True
        unsaid = self._warning.due()
        if unsaid is not None:
            logger.warning(
                "connection refused server=%s remote=%s reason=%s unsaid=%d", self._name, address, refusal, unsaid
            )
        return False

    def believes(self, address: str) -> bool:
        """Tell whether a PROXY preamble from ``ip:port`` counts."""
        return contains(self.proxies, _host(address))

    def dismiss(self, address: str) -> None:
        """Count a connection that ended, refused ones too."""
        ip = _host(address)
        self.open_count -= 1
        self._by_ip[ip] -= 1
        if self._by_ip[ip] <= 0:
            del self._by_ip[ip]


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
