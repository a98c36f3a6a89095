"""Connections of a Spark Python process: one client per cluster on a loop in a thread of its own, kept between tasks.

A Python worker runs one task at a time and is reused for the next, so the connections outlive the task, in this module;
nothing here is ever pickled. The loop runs all the time: while a task waits for rows, or Spark for the next batch,
requests go out and their answers are taken, so that no pause of theirs looks like a silent broker. After a fork
(Spark's daemon forks its workers) a child starts with none.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from rocketcore.client.config import ClientConfig, name_server_list
from rocketcore.client.instance import ClientInstance
from rocketcore.client.runtime import ASYNCIO, LoopThread
from rocketcore.spark.options import ConnectionOptions
from rocketcore.transport.client import RemotingClient

__all__ = ["Connection", "connect"]

T = TypeVar("T")


class Connection:
    """A client of one cluster on the process's event loop."""

    def __init__(self, config: ClientConfig, loop: LoopThread) -> None:
        self._loop = loop
        self.instance = self.run(_open(config))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; tasks that it leaves behind go on meanwhile."""
        return self._loop.run(coroutine)


async def _open(config: ClientConfig) -> ClientInstance:
    return ClientInstance(config, RemotingClient(**config.remoting), ASYNCIO)


class _Pool:
    """The connections of this process, by what they were made for."""

    def __init__(self) -> None:
        self._pid = -1
        self._loop: LoopThread | None = None
        self._connections: dict[tuple[object, ...], Connection] = {}

    def get(self, config: ClientConfig) -> Connection:
        if self._pid != os.getpid():
            # The parent's sockets stay untouched: closing them here would end them for the parent as well. Its thread
            # does not exist here.
            self._pid, self._loop, self._connections = os.getpid(), LoopThread("rocketcore-spark"), {}
        assert self._loop is not None
        key = (config.namesrv, config.access_key, config.secret_key, tuple(sorted(config.broker_address_map.items())))
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = Connection(config, self._loop)
        return connection


_POOL = _Pool()


def connect(options: ConnectionOptions) -> Connection:
    """Return this process's connection to the cluster that the options name."""
    address_map: Mapping[str, str] = options.broker_address_map or {}
    config = ClientConfig(
        namesrv=name_server_list(options.name_server),
        timeout=options.request_timeout,
        broker_address_map=address_map,
        access_key=options.access_key or "",
        secret_key=options.secret_key or "",
    )
    return _POOL.get(config)
