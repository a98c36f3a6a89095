"""RemotingServer: accepts connections and dispatches requests by code.

RocketMQ: ``NettyRemotingServer``.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from rocketcore.addresses import join
from rocketcore.codes import CURRENT_VERSION
from rocketcore.service import SYSTEM_CLOCK, Clock, Deadline, PeriodicTask
from rocketcore.transport.channel import Channel
from rocketcore.transport.endpoint import Endpoint
from rocketcore.transport.hooks import RpcHook
from rocketcore.transport.limits import ChannelLimits
from rocketcore.transport.reactor_kernel import has_reactor
from rocketcore.transport.routes import Route
from rocketcore.transport.server.admission import Admission, ConnectionSettings
from rocketcore.transport.server.listener import LoopListener, ReactorListener, open_listener
from rocketcore.transport.server.opening import Opening
from rocketcore.transport.slow_requests import SlowRequests
from rocketcore.transport.tls.server_settings import ServerCertificate, ServerTls

if TYPE_CHECKING:
    from rocketcore._fast.answers import ReadyAnswers
    from rocketcore._fast.reactor import Responder

__all__ = ["RemotingServer", "ServerChannel"]

logger = logging.getLogger(__name__)

R = TypeVar("R", bound="Responder")

_FREE_PAIRS: Final = 20
"""So many chosen ports are given up where the second port beside them is somebody else's."""
_ABORT_SECONDS: Final = 1.0
"""How long a stop waits for handlers that it cancelled, and for connections that it cut."""


class ServerChannel(Channel):
    """A connection that a server accepted.

    socket_address  the other end of the socket; ``remote_address`` differs from it behind a load balancer
    """

    __slots__ = ("_server", "socket_address")

    def __init__(self, server: RemotingServer, endpoint: Endpoint[Channel]) -> None:
        super().__init__(endpoint)
        self._server = server
        self.socket_address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.socket_address = self.remote_address
        if not self._server.admit(self.socket_address):
            self.abort()

    def take_over(self, opening: Opening, transport: asyncio.BaseTransport) -> None:
        """Begin where an opening connection ended, which was admitted already."""
        self.remote_address = opening.source
        self.socket_address = opening.socket_address
        self.attach(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.dismiss(self.socket_address)
        super().connection_lost(exc)


class RemotingServer:
    """A listening socket and the handlers of its requests.

    host, port                  where to listen; port 0 takes a free one, ``port`` names it after ``start()``
    second_port                 how far from ``port`` another one is, where the same is served; a port that is chosen
                                is one whose second is free, beside one that was asked for a taken one is left out
                                with a warning; 0: none
    name                        in log lines and task names
    idle_timeout                seconds without traffic after which a connection is closed
    connections                 how many, and whose PROXY preamble is believed. Descriptors that the process needs for
                                its files are kept free whatever it says
    limits                      of one connection; ``idle_timeout`` above wins over the one in it
    tls                         TLS beside plain connections, or instead of them; None: as mode ``disabled``
    hooks                       see every request; run handlers are not used then
    slow                        is told of requests that took too long

    A handler runs on the loop: it returns the answer, or an awaitable of it which one task awaits, or None for no
    answer now. An exception becomes an answer of code 1, a ``BrokerError`` one of its own code.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        second_port: int = 0,
        name: str = "server",
        idle_timeout: float = 120.0,
        connections: ConnectionSettings | None = None,
        limits: ChannelLimits | None = None,
        tls: ServerTls | None = None,
        hooks: Sequence[RpcHook] = (),
        slow: SlowRequests | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        tls = tls or ServerTls(mode="disabled")
        self._host = host
        self._requested_port = port
        self._admission = Admission(name, connections or ConnectionSettings(), clock)
        limits = replace(limits or ChannelLimits(), idle_timeout=idle_timeout)
        self._endpoint: Endpoint[Channel] = Endpoint(name, limits, server=True, clock=clock, hooks=hooks, slow=slow)
        self._openings: set[Opening] = set()
        self._certificate = ServerCertificate(tls, clock)
        self._looks_first = bool(self._admission.proxies) or tls.mode != "disabled"
        self._second_port = second_port
        self._listeners: list[ReactorListener | LoopListener] = []
        self._responder: Responder | None = None
        self._sweeper: PeriodicTask | None = None
        self._all_closed: asyncio.Event | None = None
        self._accepting = False
        self.limits = limits
        self.name = name
        self.port = port
        self.tls_required = tls.mode == "enforcing"

    @property
    def address(self) -> str:
        """``ip:port`` that this server listens at."""
        return join(self._host, self.port)

    @property
    def channels(self) -> set[Channel]:
        """The open connections that have sent something."""
        return self._endpoint.channels

    @property
    def connection_count(self) -> int:
        """The open connections, silent ones included."""
        return self._admission.open_count

    def add_routes(self, rows: Iterable[Route]) -> None:
        """Serve what has a row, all else is answered with code 3; raises ConfigError for a second row of a code."""
        if self._endpoint.hooks:
            rows = (row._replace(run=None) for row in rows)
        self._endpoint.routes.add(rows)

    def register_answers(
        self, code: int, field: str, answers: dict[bytes, bytes], *, without: str
    ) -> ReadyAnswers | None:
        """Answer a request code from the receive buffer, with bytes kept for the value of one of its ext fields.

        answers  UTF-8 of a value → body of the answer with code 0; looked at for each request. A value that is not in
                 it, a request that has the field ``without``, and all that is unusual go to the other handlers
        returns  what can switch it off and on; None where connections are not read in C, or hooks see every request
        """

        def make(max_frame_bytes: int) -> ReadyAnswers:
            from rocketcore._fast.answers import ReadyAnswers

            return ReadyAnswers(code, field.encode(), without.encode(), answers, int(CURRENT_VERSION), max_frame_bytes)

        return self.register_responder(make)

    def register_responder(self, make: Callable[[int], R]) -> R | None:
        """Have a kernel answer what it can, before any protocol sees it.

        make     returns it, given the most bytes of a frame; called where connections are read in C and no hook sees
                 every request
        returns  the kernel, or None
        """
        if self._endpoint.hooks or not has_reactor():
            return None
        responder = make(self.limits.max_frame_bytes)
        self._responder = responder
        return responder

    def on_close(self, callback: Callable[[Channel], None]) -> None:
        """Be told of every connection that ended."""
        self._endpoint.close_callbacks.append(callback)

    async def start(self) -> None:
        """Listen.

        raises  OSError where the address is taken, ConfigError where TLS is required and its files cannot be used
        """
        self._certificate.load()
        self._all_closed = asyncio.Event()
        self._accepting = True
        taken = await self._listen_at_both()
        for _ in range(0 if self._requested_port else _FREE_PAIRS):
            if taken is None:
                break
            first = self._listeners.pop()
            first.close()
            first.end()
            taken = await self._listen_at_both()
        if taken is not None:
            second = join(self._host, self.port + self._second_port)
            logger.warning("second port not there server=%s address=%s reason=%s", self.name, second, taken.strerror)
        limits = self._endpoint.limits
        interval = max(0.05, min(limits.idle_timeout, limits.partial_frame_timeout) / 4)
        self._sweeper = PeriodicTask(f"{self.name}-sweep", self._sweep, interval)
        self._sweeper.start()
        for listener in self._listeners:
            address = join(*listener.sockets[0].getsockname()[:2])
            logger.info("listening server=%s address=%s", self.name, address)

    async def _listen_at_both(self) -> OSError | None:
        """Listen at the port, then at the second one; returns why that is not there."""
        await self._listen(self._requested_port)
        self.port = self._listeners[0].sockets[0].getsockname()[1]
        if self._second_port and 0 < self.port + self._second_port <= 65535:
            try:
                await self._listen(self.port + self._second_port)
            except OSError as error:
                return error
        return None

    async def _listen(self, port: int) -> None:
        listener = await open_listener(self._host, port, self._connection, monotonic=self._endpoint.clock.monotonic)
        listener.answer_with(self._responder)
        self._listeners.append(listener)

    async def stop(self, grace: float = 1.0, *, drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """Take no more connections, answer GO_AWAY to who understands it, wait for what is being served, then close.

        A stop that is cancelled cuts what is left.

        grace  seconds that requests in progress get, at most
        drain  ends when what was served without being answered at once is answered; called when nothing is served any
               more, and the connections close after it
        """
        listeners, self._listeners = self._listeners, []
        if not listeners or self._sweeper is None or self._all_closed is None:
            return
        endpoint = self._endpoint
        endpoint.going_away = True
        self._accepting = False
        for listener in listeners:
            listener.answer_with(None)
            listener.close()
        try:
            await self._sweeper.stop()
            deadline = Deadline(grace)
            await self._served_within(deadline.remaining())
            # Clients that do not know GO_AWAY went on asking meanwhile: what they asked is finished too, and no more.
            endpoint.takes_requests = False
            await self._served_within(deadline.remaining())
            self._cancel_serving()
            await self._served_within(_ABORT_SECONDS)
            if drain is not None:
                await drain()
            for channel in list(endpoint.channels):
                channel.finish()
            self._abort_openings()
            if not await self._ended_within(grace):
                self._abort_channels()
                if not await self._ended_within(_ABORT_SECONDS):
                    logger.warning("connections did not end server=%s connections=%d", self.name, self.connection_count)
        finally:
            self._cancel_serving()
            self._abort_channels()
            self._abort_openings()
            for listener in listeners:
                listener.end()
            endpoint.going_away = False
            endpoint.takes_requests = True
        logger.info("stopped server=%s", self.name)

    async def _served_within(self, seconds: float) -> None:
        if self._endpoint.tasks:
            await asyncio.wait(self._endpoint.tasks, timeout=seconds)

    def _cancel_serving(self) -> None:
        for task in list(self._endpoint.tasks):
            task.cancel()

    def _abort_channels(self) -> None:
        for channel in list(self._endpoint.channels):
            channel.abort()

    def _abort_openings(self) -> None:
        for opening in list(self._openings):
            opening.abort("the server stops")

    async def _ended_within(self, seconds: float) -> bool:
        if self.connection_count == 0 or self._all_closed is None:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._all_closed.wait()
        except TimeoutError:
            return False
        return True

    def _connection(self) -> asyncio.Protocol:
        if self._looks_first:
            return Opening(self, self._endpoint.clock.monotonic())
        return ServerChannel(self, self._endpoint)

    def _sweep(self) -> None:
        self._endpoint.sweep()
        oldest = self._endpoint.clock.monotonic() - self.limits.idle_timeout
        for opening in [each for each in self._openings if each.silent and each.opened_at <= oldest]:
            opening.abort("idle")

    # What an opening connection needs

    def tls_context(self) -> ssl.SSLContext | None:
        """Return what a handshake needs; None: there is no usable certificate, or TLS is off."""
        return self._certificate.context()

    def opened(self, opening: Opening) -> bool:
        """Count a connection of which nothing is known yet; False where it is one too many."""
        self._openings.add(opening)
        return self.admit(opening.socket_address)

    def opening_ended(self, opening: Opening) -> None:
        """Forget a connection that ended before it had a channel."""
        self._openings.discard(opening)
        self.dismiss(opening.socket_address)

    def make_channel(self, opening: Opening, transport: asyncio.BaseTransport) -> Channel:
        """Return the channel that goes on with a connection."""
        self._openings.discard(opening)
        channel = ServerChannel(self, self._endpoint)
        channel.take_over(opening, transport)
        return channel

    def takes_preamble(self, opening: Opening) -> bool:
        """Tell whether a connection comes from a load balancer that may say who the client is."""
        return self._admission.believes(opening.socket_address)

    # Limits

    def admit(self, address: str) -> bool:
        """Count a new connection of a socket's address; False where it is one too many."""
        if self._all_closed is not None:
            self._all_closed.clear()
        return self._admission.admit(address, "" if self._accepting else "the server stops")

    def dismiss(self, address: str) -> None:
        """Count a connection that ended."""
        self._admission.dismiss(address)
        if self._all_closed is not None and self.connection_count == 0:
            self._all_closed.set()
