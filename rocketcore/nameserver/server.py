"""NameServer: wiring and lifecycle (Java: ``NamesrvController``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from rocketcore.codes import RequestCode
from rocketcore.nameserver.config import NameServerConfig, RunningConfig
from rocketcore.nameserver.housekeeping import Housekeeping
from rocketcore.nameserver.kv_config import KVConfigManager
from rocketcore.nameserver.processor import ZONE_MODE, NameServerProcessor
from rocketcore.nameserver.route_info import RouteInfoManager
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.transport.audit import audited
from rocketcore.transport.hooks import RpcHook
from rocketcore.transport.lookup import host_of
from rocketcore.transport.monitoring import RUNNING, STOPPING, Monitoring
from rocketcore.transport.server.server import RemotingServer
from rocketcore.transport.slow_requests import SlowRequests
from rocketcore.transport.tls.server_settings import ServerTls
from rocketcore.transport.tls.settings import TlsOption

__all__ = ["NameServer"]

logger = logging.getLogger(__name__)


class NameServer:
    """A name server on the running event loop.

    config      what it is started with
    properties  what its configuration file holds, unknown names included: shown and kept with the settings
    tls         of its port; client_tls of the connections that it makes to brokers
    hooks       see every request
    """

    def __init__(
        self,
        config: NameServerConfig | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        tls: ServerTls | None = None,
        client_tls: TlsOption = False,
        hooks: Sequence[RpcHook] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        config = config or NameServerConfig()
        self._clock = clock
        self._started_at = 0.0
        self._serving = not config.need_wait_for_service
        self._kv = KVConfigManager(config.kv_file)
        self.routes = RouteInfoManager(config, clock, lambda topic: self._kv.get("ORDER_TOPIC_CONFIG", topic))
        self._running = RunningConfig(config, properties or {})
        self._slow = SlowRequests(config.slow_request_millis, clock)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="nameserver-writer")
        self._housekeeping = Housekeeping(self.routes, config.scan_not_active_broker_interval / 1000, tls=client_tls)
        self._processor = NameServerProcessor(
            self.routes,
            self._kv,
            self._running,
            self._housekeeping,
            run_in_writer=self._run_in_writer,
            serving=self._is_serving,
            slow=self._slow,
        )
        self._server = RemotingServer(
            config.bind_address,
            config.listen_port,
            name="nameserver",
            idle_timeout=config.server_channel_max_idle_time_seconds,
            connections=config,
            tls=tls,
            hooks=hooks,
            slow=self._slow,
        )
        self._server.add_routes(audited(self._processor.routes()))
        self._ready_answers = self._server.register_answers(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, "topic", self.routes.answers, without=ZONE_MODE
        )
        if self._ready_answers is not None:
            self._ready_answers.enabled = self._serving
        self._server.on_close(self._housekeeping.connection_closed)
        self._monitoring = Monitoring(config, self._metrics, self._not_ready)

    @property
    def config(self) -> NameServerConfig:
        """The settings it obeys now."""
        return self._running.config

    @property
    def address(self) -> str:
        """Where it listens, ``ip:port``; known once it is started."""
        return self._server.address

    def ready(self) -> dict[str, object]:
        """What a program that has started the server wants to know."""
        return {"address": self.address, **self._monitoring.ready()}

    async def _metrics(self) -> list[bytes]:
        from rocketcore.nameserver.metrics import encode_metrics

        return await encode_metrics(self.routes, self._server, self._slow)

    def _not_ready(self) -> str:
        """Why it does not answer for routes; empty where it does."""
        return "" if self._is_serving() else "it waits for brokers to register (needWaitForService)"

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        """Load the key-value table, listen, and begin to watch for silent brokers."""
        self._kv.load()
        self._started_at = self._clock.monotonic()
        await self._monitoring.start()
        try:
            with host_of("bindAddress", self.config.bind_address):
                await self._server.start()
            self._running.bound_port = self._server.port
        except BaseException:
            await self._monitoring.stop()
            raise
        self._housekeeping.start()
        self._monitoring.phase = RUNNING
        logger.info("name server started address=%s", self.address)

    async def stop(self) -> None:
        """Answer what was received, close the connections and end the background work; routes are not kept."""
        self._monitoring.phase = STOPPING
        grace = self.config.shutdown_wait_time_seconds if self.config.enable_shutdown_gracefully else 0
        await self._housekeeping.stop()
        await self._server.stop(grace)
        await self._monitoring.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._writer.shutdown)
        logger.info("name server stopped")

    async def __aenter__(self) -> NameServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _is_serving(self) -> bool:
        if not self._serving:
            waited = self._clock.monotonic() - self._started_at
            self._serving = not self.config.need_wait_for_service or waited >= self.config.wait_seconds_for_service
            if self._ready_answers is not None:
                self._ready_answers.enabled = self._serving
        return self._serving

    async def _run_in_writer(self, function: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writer, function)
