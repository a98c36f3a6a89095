"""A client's connections for commands that move many messages: on a loop that goes on while the command works."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from rocketcore.cli.options import Settings
from rocketcore.client.config import ClientConfig, name_server_list
from rocketcore.client.instance import ClientInstance
from rocketcore.client.runtime import ASYNCIO, LoopThread
from rocketcore.transport.client import RemotingClient

__all__ = ["PATIENCE", "ClusterClient"]

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds for which a command that moves many messages waits for a broker that is away."""


class ClusterClient(AbstractContextManager["ClusterClient"]):
    """The cluster that the settings name, from a thread that is not a loop's."""

    def __init__(self, settings: Settings) -> None:
        self.config = ClientConfig(
            namesrv=name_server_list(settings.namesrv),
            timeout=settings.timeout,
            tls=settings.tls,
            **settings.credentials,
        )
        self._loop = LoopThread("rocket-client")
        self._remoting, self.instance = self.run(self._open())

    async def _open(self) -> tuple[RemotingClient, ClientInstance]:
        remoting = RemotingClient(**self.config.remoting)
        return remoting, ClientInstance(self.config, remoting, ASYNCIO)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; tasks that it leaves behind go on meanwhile."""
        return self._loop.run(coroutine)

    def __exit__(self, *_: object) -> None:
        self.run(self._remoting.close())
        self._loop.stop()
