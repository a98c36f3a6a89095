"""Monitoring: the HTTP port on which a server tells its metrics, that it lives, and whether it is ready."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from rocketcore.config_file import PortNotOpened
from rocketcore.transport.server.admission import ConnectionSettings

if TYPE_CHECKING:
    from rocketcore.transport.http_port import Answer, HttpPort

__all__ = ["RUNNING", "STOPPING", "Monitoring"]

STARTING, RUNNING, STOPPING = "starting", "", "stopping"
"""Why a server that lives is not ready, as far as its life goes."""


class Monitoring:
    """The port of one server; nothing where its settings ask for none.

    It opens first and closes last, so that a long start or stop can be told from a dead process.

    metrics    makes the parts of the text of ``/metrics``; asked while the server runs
    not_ready  why the server is not ready then; empty where it is
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        metrics: Callable[[], Awaitable[list[bytes]]],
        not_ready: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._not_ready = not_ready
        self._port: HttpPort | None = None
        self.phase = STARTING

    def ready(self) -> dict[str, object]:
        """What a program that has started the server wants to know: where it listens, if it does."""
        return {} if self._port is None else {"metrics": self._port.address}

    async def start(self) -> None:
        """Listen, if that is wanted.

        raises  BadSetting for a host that has no address, PortNotOpened
        """
        if self._settings.metrics_port < 0:
            return
        from rocketcore.transport.http_port import HttpPort
        from rocketcore.transport.lookup import host_of

        pages = {"/metrics": self._metrics_page, "/livez": self._livez, "/readyz": self._readyz}
        port = HttpPort(self._settings.metrics_address, self._settings.metrics_port, pages)
        with host_of("metricsAddress", self._settings.metrics_address):
            try:
                await port.start()
            except socket.gaierror:
                raise
            except OSError as error:
                raise PortNotOpened("metricsPort", str(self._settings.metrics_port), error) from error
        self._port = port

    async def stop(self) -> None:
        if self._port is not None:
            await self._port.stop()

    async def _metrics_page(self) -> Answer:
        from http import HTTPStatus

        from rocketcore.protocol.exposition import CONTENT_TYPE
        from rocketcore.transport.http_port import Answer

        if self.phase:
            return Answer.of(HTTPStatus.SERVICE_UNAVAILABLE, self.phase)
        return Answer(HTTPStatus.OK, await self._metrics(), CONTENT_TYPE)

    async def _livez(self) -> Answer:
        return self._state("")

    async def _readyz(self) -> Answer:
        return self._state(self.phase or self._not_ready())

    @staticmethod
    def _state(reason: str) -> Answer:
        from http import HTTPStatus

        from rocketcore.transport.http_port import Answer

        return Answer.of(HTTPStatus.SERVICE_UNAVAILABLE, reason) if reason else Answer.of(HTTPStatus.OK, "ok")
