"""RemotingServer: accepts connections and dispatches requests by code.

RocketMQ: ``NettyRemotingServer``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from rocketcore.errors import ConfigError
from rocketcore.protocol.frame import ROWS
from rocketcore.service import SYSTEM_CLOCK, Clock, PeriodicTask
from rocketcore.transport.channel import (
    Channel,
    ChannelLimits,
    ChunkHandler,
    Endpoint,
    Handler,
    address_text,
)

__all__ = ["RemotingServer", "ServerChannel"]

logger = logging.getLogger(__name__)


class ServerChannel(Channel):
    """A connection that a server accepted."""

    __slots__ = ("_server",)

    def __init__(self, server: RemotingServer, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._server.admit(self):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.dismiss(self)
        super().connection_lost(exc)


class RemotingServer:
    """A listening socket and the handlers of its requests.

    host, port                  where to listen; port 0 takes a free one, ``port`` names it after ``start()``
    name                        in log lines and task names
    idle_timeout                seconds without traffic after which a connection is closed
    max_connections             in all; max_connections_per_address of one remote IP (0: no limit)
    limits                      of one connection; ``idle_timeout`` above wins over the one in it

    A handler runs on the loop: it returns the answer, or an awaitable of it which one task awaits, or None for no
    answer now. An exception becomes an answer of code 1, a ``BrokerError`` one of its own code. A chunk handler serves
    runs of one code from the heads alone, on the hot path.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        name: str = "server",
        idle_timeout: float = 120.0,
        max_connections: int = 20_000,
        max_connections_per_address: int = 0,
        limits: ChannelLimits | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._host = host
        self._requested_port = port
        self._max_connections = max_connections
        self._max_per_address = max_connections_per_address
        self._endpoint = Endpoint(
            name,
            replace(limits or ChannelLimits(), idle_timeout=idle_timeout),
            clock=clock,
            stop_reading_when_full=True,
        )
        self._by_ip: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._sweeper: PeriodicTask | None = None
        self._all_closed: asyncio.Event | None = None
        self._accepting = False
        self.name = name
        self.port = port

    @property
    def address(self) -> str:
        """``ip:port`` that this server listens at."""
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    @property
    def channels(self) -> set[Channel]:
        """The open connections."""
        return self._endpoint.channels

    def register(self, code: int, handler: Handler) -> None:
        """Serve a request code; a code has one handler."""
        if int(code) in self._endpoint.handlers:
            raise ConfigError(f"{self.name}: request code {int(code)} already has a handler")
        self._endpoint.handlers[int(code)] = handler

    def register_default(self, handler: Handler) -> None:
        """Serve all codes that have no handler of their own; without one they are answered with code 3."""
        self._endpoint.default_handler = handler

    def register_chunk(self, code: int, handler: ChunkHandler, *, max_run: int = ROWS) -> None:
        """Serve runs of a request code from their heads; unusual requests of it still go to its general handler.

        max_run  requests in a run at most; between runs a connection that does not read its answers is found out, so a
                 code with large answers needs short runs
        """
        if int(code) in self._endpoint.chunk_handlers:
            raise ConfigError(f"{self.name}: request code {int(code)} already has a chunk handler")
        self._endpoint.chunk_handlers[int(code)] = handler
        self._endpoint.max_runs[int(code)] = max_run

    def on_close(self, callback: Callable[[Channel], None]) -> None:
        """Be told of every connection that ended."""
        self._endpoint.close_callbacks.append(callback)

    async def start(self) -> None:
        """Listen; raises OSError where the address is taken."""
        loop = asyncio.get_running_loop()
        self._all_closed = asyncio.Event()
        self._accepting = True
        self._server = await loop.create_server(
            lambda: ServerChannel(self, self._endpoint), self._host, self._requested_port, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]
        limits = self._endpoint.limits
        interval = max(0.05, min(limits.idle_timeout, limits.partial_frame_timeout) / 4)
        self._sweeper = PeriodicTask(f"{self.name}-sweep", self._endpoint.sweep, interval)
        self._sweeper.start()
        logger.info("listening server=%s address=%s", self.name, address_text(self._server.sockets[0].getsockname()))

    async def stop(self, grace: float = 1.0) -> None:
        """Take no more connections, answer GO_AWAY to who understands it, wait for what is being served, then close.

        grace  seconds that requests in progress get, at most
        """
        server, self._server = self._server, None
        if server is None or self._sweeper is None or self._all_closed is None:
            return
        endpoint = self._endpoint
        endpoint.going_away = True
        self._accepting = False
        server.close()
        await self._sweeper.stop()
        if endpoint.tasks:
            await asyncio.wait(endpoint.tasks, timeout=grace)
        for task in list(endpoint.tasks):
            task.cancel()
        for channel in list(endpoint.channels):
            channel.close()
        if endpoint.channels:
            try:
                async with asyncio.timeout(grace):
                    await self._all_closed.wait()
            except TimeoutError:
                for channel in list(endpoint.channels):
                    channel.abort()
                await self._all_closed.wait()
        await server.wait_closed()
        endpoint.going_away = False
        logger.info("stopped server=%s", self.name)

    def admit(self, channel: Channel) -> bool:
        """Count a new connection; False where it is one too many."""
        ip = channel.remote_address.rpartition(":")[0]
        self._by_ip[ip] += 1
        if self._all_closed is not None:
            self._all_closed.clear()
        if len(self._endpoint.channels) > self._max_connections:
            reason = f"more than {self._max_connections} connections"
        elif self._max_per_address and self._by_ip[ip] > self._max_per_address:
            reason = f"more than {self._max_per_address} connections of one address"
        elif not self._accepting:
            reason = "the server stops"
        else:
            return True
        logger.warning("connection refused server=%s remote=%s reason=%s", self.name, channel.remote_address, reason)
        return False

    def dismiss(self, channel: Channel) -> None:
        """Count a connection that ended."""
        ip = channel.remote_address.rpartition(":")[0]
        self._by_ip[ip] -= 1
        if self._by_ip[ip] <= 0:
            del self._by_ip[ip]
        if self._all_closed is not None and not self._by_ip:
            self._all_closed.set()
