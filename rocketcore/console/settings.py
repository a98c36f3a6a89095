"""ConsoleSettings: where a console listens, who may do what, and which clusters it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rocketcore import addresses
from rocketcore.client.config import NameServers, name_server_list
from rocketcore.errors import ConfigError
from rocketcore.transport.networks import is_loopback
from rocketcore.transport.tls.settings import TlsOption

__all__ = ["DEFAULT_LISTEN", "DEFAULT_PORT", "ClusterSettings", "ConsoleSettings"]

DEFAULT_PORT: Final = 9880
DEFAULT_LISTEN: Final = f"127.0.0.1:{DEFAULT_PORT}"
MOST_NAME: Final = 64
"""Characters of a cluster's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """How one cluster is reached.

    namesrv  addresses as in ``Producer``
    """

    namesrv: NameServers = None
    tls: TlsOption = False
    access_key: str = ""
    secret_key: str = ""

    @property
    def name_servers(self) -> str:
        """What a page calls the cluster."""
        return "; ".join(name_server_list(self.namesrv))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """What a console is started with.

    namesrv     addresses as in ``Producer``; with ``tls``, ``access_key`` and ``secret_key`` the only cluster
    clusters    several in its place, by the name that is in the addresses of their pages; the first is shown first
    listen      host:port; port 0 takes a free one
    timeout     seconds that a page waits for the cluster, altogether
    readonly    nothing can be changed
    accounts    name → (role, hash) of those who may log in; empty: nobody is asked
    hosts       names under which browsers reach it, besides ``localhost`` and addresses
    raises      ConfigError where other machines reach it, and anybody could change something
    """

    namesrv: NameServers = None
    clusters: Mapping[str, ClusterSettings] = field(default_factory=dict)
    listen: str = DEFAULT_LISTEN
    timeout: float = 5.0
    readonly: bool = False
    accounts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    tls: TlsOption = False
    access_key: str = ""
    secret_key: str = ""

    def __post_init__(self) -> None:
        try:
            host, _ = addresses.split(self.listen)
        except ValueError as error:
            raise ConfigError(f"listen: {error}") from None
        for name in self.clusters:
            if not name.isprintable() or "/" in name or not 0 < len(name) <= MOST_NAME:
                raise ConfigError(
                    f"invalid cluster name: {name!r} (it is part of page addresses, so it cannot contain a slash)"
                )
        if not (is_loopback(host) or self.readonly or self.accounts):
            raise ConfigError(
                f"{host} can be reached from other machines, and nothing asks who they are: "
                "give accounts by --auth FILE, or --readonly (beside a broker: --console-auth FILE, or "
                "--console-readonly)"
            )

    @property
    def host(self) -> str:
        return addresses.split(self.listen)[0]

    @property
    def port(self) -> int:
        return addresses.split(self.listen)[1]

    @property
    def by_name(self) -> Mapping[str, ClusterSettings]:
        """All clusters; the only one has an empty name."""
        only = ClusterSettings(
            namesrv=self.namesrv, tls=self.tls, access_key=self.access_key, secret_key=self.secret_key
        )
        return self.clusters or {"": only}
