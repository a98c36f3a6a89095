"""Who registered and was heard of since, and over which connection (Java: ``RouteInfoManager.brokerLiveTable``)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, Protocol

from rocketcore.protocol.bodies.topic import DataVersion

__all__ = ["Connection", "LiveBroker", "LiveBrokers", "LiveKey", "timeout_seconds"]

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_SECONDS: Final = 120.0
LONGEST_TIMEOUT_SECONDS: Final = 600.0
"""A broker that promises to be heard of more seldom is given up for dead all the same."""

LiveKey = tuple[str, str]
"""Cluster and address."""


class Connection(Protocol):
    """A broker's connection: compared by identity, and closed when the broker has been silent for too long."""

    closed: bool

    def close(self) -> None: ...


def timeout_seconds(address: str, millis: int | None) -> float:
    """Return how long a broker may be silent that registers with this time-out."""
    if millis is None:
        return DEFAULT_TIMEOUT_SECONDS
    seconds = millis / 1000
    if seconds > LONGEST_TIMEOUT_SECONDS:
        logger.warning("time-out shortened address=%s seconds=%g to=%g", address, seconds, LONGEST_TIMEOUT_SECONDS)
        return LONGEST_TIMEOUT_SECONDS
    return seconds


class LiveBroker:
    """A broker that registered and was heard of since.

    last_update, timeout  seconds: when it was heard of, and how long it may be silent
    digest                hash of the registration's bytes and whether its topics were applied; None once someone else
                          touched them
    """

    __slots__ = ("connection", "data_version", "digest", "ha_address", "last_update", "timeout")

    def __init__(
        self,
        last_update: float,
        timeout: float,
        data_version: DataVersion,
        ha_address: str | None,
        digest: tuple[int, bool] | None,
    ) -> None:
        self.last_update = last_update
        self.timeout = timeout
        self.data_version = data_version
        self.connection: Connection | None = None
        self.ha_address = ha_address
        self.digest = digest


class LiveBrokers:
    """The table, and the same by connection."""

    def __init__(self) -> None:
        self.by_key: dict[LiveKey, LiveBroker] = {}
        self.by_connection: dict[int, dict[LiveKey, None]] = {}
        self.get = self.by_key.get

    def put(self, key: LiveKey, live: LiveBroker, connection: Connection) -> None:
        """Take a registration in place of the one before, which may have come over another connection."""
        self.drop(key)
        self.by_key[key] = live
        self.connect(key, live, connection)

    def connect(self, key: LiveKey, live: LiveBroker, connection: Connection) -> None:
        """Note the connection over which a broker was heard of last."""
        if live.connection is not connection:
            self._disconnect(key, live)
            live.connection = connection
            self.by_connection.setdefault(id(connection), {})[key] = None

    def drop(self, key: LiveKey) -> None:
        """Forget a broker; one that is not there is forgotten already."""
        live = self.by_key.pop(key, None)
        if live is not None:
            self._disconnect(key, live)

    def _disconnect(self, key: LiveKey, live: LiveBroker) -> None:
        keys = self.by_connection.get(id(live.connection))
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self.by_connection[id(live.connection)]
        live.connection = None

    def of_connection(self, connection: Connection) -> Iterable[LiveKey]:
        return self.by_connection.get(id(connection), ())

    def silent(self, now: float) -> list[tuple[LiveKey, LiveBroker]]:
        """Return the brokers that were silent for longer than they promised."""
        return [(key, live) for key, live in self.by_key.items() if live.last_update + live.timeout < now]

    def forget_digests(self, keys: Iterable[LiveKey] | None = None) -> None:
        """Have the next registration of these brokers, or of all, read in full."""
        for key in self.by_key if keys is None else keys:
            live = self.by_key.get(key)
            if live is not None:
                live.digest = None
