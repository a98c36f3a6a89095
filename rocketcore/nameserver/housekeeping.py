"""What the name server does unasked: expire silent brokers, drop those whose connection closed, tell the others.

RocketMQ: ``BrokerHousekeepingService``, ``RouteInfoManager.scanNotActiveBroker`` and ``notifyMinBrokerIdChanged``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rocketcore.codes import RequestCode
from rocketcore.errors import RocketError
from rocketcore.nameserver.live_brokers import Connection
from rocketcore.nameserver.route_info import MinBrokerIdChange, RouteInfoManager
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.nameserver import NotifyMinBrokerIdChangeRequestHeader
from rocketcore.service import PeriodicTask
from rocketcore.transport.tls.settings import TlsOption

if TYPE_CHECKING:
    from rocketcore.transport.client import RemotingClient

__all__ = ["Housekeeping"]

logger = logging.getLogger(__name__)

FIRST_SCAN_SECONDS: Final = 5.0
NOTICE_TIMEOUT_SECONDS: Final = 0.3
NOTICES_MAX: Final = 1000


class Housekeeping:
    """Background work of one name server; started and stopped with it."""

    def __init__(self, routes: RouteInfoManager, scan_interval: float, *, tls: TlsOption = False) -> None:
        self._routes = routes
        self._scan = PeriodicTask(
            "nameserver-expiry", self.expire, scan_interval, initial_delay=min(FIRST_SCAN_SECONDS, scan_interval)
        )
        self._notices: asyncio.Queue[tuple[str, RemotingCommand]] = asyncio.Queue(NOTICES_MAX)
        self._sender: asyncio.Task[None] | None = None
        self._client: RemotingClient | None = None
        self._stopped = False
        self._tls = tls

    def start(self) -> None:
        self._scan.start()

    async def stop(self) -> None:
        """End the work; no news are sent from now on, least of all of the connections that the server closes."""
        self._stopped = True
        await self._scan.stop()
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
            self._sender = None
        if self._client is not None:
            await self._client.close()
            self._client = None

    def expire(self) -> None:
        """Drop the brokers that were silent for too long, and close their connections."""
        silent = self._routes.silent()
        if not silent:
            return
        for broker, connection in silent:
            logger.warning("broker silent broker=%s address=%s", broker.broker_name, broker.address)
            if connection is not None:
                connection.close()
        self.notify(self._routes.unregister_brokers(broker for broker, _ in silent))

    def connection_closed(self, connection: Connection) -> None:
        """Drop the brokers that registered over a connection, now that it is closed."""
        brokers = self._routes.of_connection(connection)
        if brokers:
            self.notify(self._routes.unregister_brokers(brokers))

    def notify(self, changes: Iterable[MinBrokerIdChange]) -> None:
        """Tell brokers of a new smallest id, without waiting; beyond a bound news are dropped: brokers also ask."""
        if self._stopped:
            return
        for change in changes:
            for target in change.targets:
                command = RemotingCommand.request(
                    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
                    NotifyMinBrokerIdChangeRequestHeader(
                        min_broker_id=change.broker_id,
                        broker_name=change.broker_name,
                        min_broker_addr=change.address,
                        offline_broker_addr=change.offline_address,
                        ha_broker_addr=change.ha_address,
                    ),
                    oneway=True,
                )
                try:
                    self._notices.put_nowait((target, command))
                except asyncio.QueueFull:
                    logger.warning("notice dropped broker=%s target=%s", change.broker_name, target)
                    return
        if not self._notices.empty() and self._sender is None:
            self._sender = asyncio.create_task(self._send_notices(), name="nameserver-notices")

    async def _send_notices(self) -> None:
        # Most name servers never send one.
        from rocketcore.transport.client import RemotingClient

        client = self._client = RemotingClient(connect_timeout=NOTICE_TIMEOUT_SECONDS, tls=self._tls)
        while True:
            target, command = await self._notices.get()
            try:
                await client.invoke_oneway(target, command, NOTICE_TIMEOUT_SECONDS)
            # ValueError: an address that no resolver takes. It is whatever text a broker registered.
            except (RocketError, OSError, ValueError) as error:
                logger.warning("notice not sent target=%s reason=%s", target, error)
