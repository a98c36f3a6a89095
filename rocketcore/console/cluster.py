"""Cluster: one of those that a console shows, with its connections, samples and counts; and how addresses name it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from rocketcore.admin.logic import AsyncAdmin
from rocketcore.console.counts import TopicCounts
from rocketcore.console.rates import Rates, Sampler
from rocketcore.console.redrives import Redrives
from rocketcore.console.settings import ClusterSettings
from rocketcore.console.topic_rates import TopicRates

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from rocketcore.client.producer import Producer
    from rocketcore.transport.hooks import RpcHook

__all__ = ["SCOPE_KEY", "Cluster", "ClusterPaths"]

SCOPE_KEY: Final = "rocketcore.cluster"


class Cluster:
    """To be started on the loop, and closed.

    name  as addresses have it; empty where the console has this one only
    base  what addresses of its pages begin with
    """

    def __init__(self, name: str, settings: ClusterSettings, timeout: float, hook: RpcHook) -> None:
        self.name = name
        self.base = f"/c/{quote(name, safe='')}" if name else ""
        self.settings = settings
        self._timeout = timeout
        self.admin = AsyncAdmin(
            settings.namesrv,
            timeout=timeout,
            tls=settings.tls,
            hooks=[hook],
            access_key=settings.access_key,
            secret_key=settings.secret_key,
        )
        self.rates = Rates()
        self.topic_rates = TopicRates()
        self._sampler = Sampler(self.admin, self.rates, self.topic_rates)
        self.counts = TopicCounts(self.admin, self.topic_rates)
        self.redrives = Redrives(self.admin)
        self._producer: Producer | None = None

    def start(self) -> None:
        self._sampler.start()
        self.counts.start()

    async def producer(self) -> Producer:
        """Return the producer of published messages, made when the first one is."""
        if self._producer is None:
            from rocketcore.client.producer import Producer

            settings = self.settings
            producer = Producer(
                settings.namesrv,
                group="rocket-console",
                timeout=self._timeout,
                tls=settings.tls,
                access_key=settings.access_key,
                secret_key=settings.secret_key,
            )
            await producer.start()
            self._producer = producer
        return self._producer

    async def close(self) -> None:
        await self.redrives.close()
        await self.counts.stop()
        await self._sampler.stop()
        if self._producer is not None:
            await self._producer.close()
        await self.admin.close()


class ClusterPaths:
    """ASGI middleware: ``/c/NAME/topics`` is ``/topics`` of a cluster; of a name that none has, no page.

    clusters  by name
    """

    def __init__(self, app: ASGIApp, clusters: Mapping[str, Cluster]) -> None:
        self._app = app
        self._clusters = clusters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/c/"):
            name, _, rest = scope["path"].removeprefix("/c/").partition("/")
            if name in self._clusters and name:
                scope = {**scope, "path": f"/{rest}", SCOPE_KEY: self._clusters[name]}
        await self._app(scope, receive, send)
