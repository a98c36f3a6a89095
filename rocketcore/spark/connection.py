"""Connections of a Spark Python process: one client per cluster on a loop in a thread of its own, kept between tasks.

A Python worker runs one task at a time and is reused for the next, so the connections outlive the task, in this module;
nothing here is ever pickled. The loop runs all the time: while a task waits for rows, or Spark for the next batch,
requests go out and their answers are taken, so that no pause of theirs looks like a silent broker. After a fork
(Spark's daemon forks its workers) a child starts with none.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Final

from rocketcore.client.config import ClientConfig, name_server_list
from rocketcore.client.loop_client import LoopClient
from rocketcore.client.loop_thread import LoopThread
from rocketcore.spark.options import ConnectionOptions
from rocketcore.transport.tls.settings import TlsConfig

__all__ = ["connect"]

KEPT_CONNECTIONS: Final = 8
"""Clusters and settings that a process stays connected with; beyond that the one not used for longest goes."""


class _Pool:
    """The connections of this process, by what they were made for."""

    def __init__(self) -> None:
        self._pid = -1
        self._loop: LoopThread | None = None
        self._connections: dict[tuple[object, ...], LoopClient] = {}

    def get(self, options: ConnectionOptions) -> LoopClient:
        if self._pid != os.getpid():
            # The parent's sockets stay untouched: closing them here would end them for the parent as well. Its thread
            # does not exist here.
            self._pid, self._loop, self._connections = os.getpid(), LoopThread("rocketcore-spark"), {}
        assert self._loop is not None
        key = _key(options)
        connection = self._connections.pop(key, None)
        if connection is None:
            connection = LoopClient(_config(options), self._loop)
            if len(self._connections) >= KEPT_CONNECTIONS:
                self._connections.pop(next(iter(self._connections))).close()
        self._connections[key] = connection  # the last one is the one used last
        return connection


_POOL = _Pool()


def connect(options: ConnectionOptions) -> LoopClient:
    """Return this process's connection to the cluster that the options name."""
    return _POOL.get(options)


def _key(options: ConnectionOptions) -> tuple[object, ...]:
    """Everything that a connection is made of: whatever differs makes another one."""
    values = (getattr(options, item.name) for item in fields(ConnectionOptions))
    return tuple(tuple(sorted(value.items())) if isinstance(value, dict) else value for value in values)


def _config(options: ConnectionOptions) -> ClientConfig:
    tls = TlsConfig(
        ca_file=options.tls_ca_file,
        cert_file=options.tls_cert_file,
        key_file=options.tls_key_file,
        key_password=options.tls_key_password or "",
        verify=options.tls_verify,
        server_hostname=options.tls_server_hostname or "",
    )
    return ClientConfig(
        namesrv=name_server_list(options.name_server),
        timeout=options.request_timeout,
        broker_address_map=options.broker_address_map or {},
        tls=tls if options.tls else False,
        access_key=options.access_key or "",
        secret_key=options.secret_key or "",
    )
