"""RemotingClient: one connection per address, shared by all who ask.

RocketMQ: ``NettyRemotingClient``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from rocketcore.codes import ResponseCode
from rocketcore.errors import ClientClosed, ConnectError
from rocketcore.protocol.command import RemotingCommand, next_opaque, request_name
from rocketcore.service import Deadline, PeriodicTask
from rocketcore.transport.base_client import BaseClient, Signer, split_address
from rocketcore.transport.channel import Channel
from rocketcore.transport.connecting import connect
from rocketcore.transport.endpoint import Endpoint
from rocketcore.transport.exchange import no_time_left
from rocketcore.transport.lookup import HostLookup
from rocketcore.transport.networks import is_loopback
from rocketcore.transport.pacing import unpace
from rocketcore.transport.reactor_kernel import has_reactor
from rocketcore.transport.routes import Route
from rocketcore.transport.tls.transport import connect_tls

if TYPE_CHECKING:
    from rocketcore._fast.reactor import Reactor

__all__ = ["RemotingClient", "Signer", "split_address"]

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT: Final = 1.0
"""Seconds that ``close()`` gives connections to send what was written, and then to end."""


class RemotingClient(BaseClient):
    """Asks servers over connections that it makes when they are needed; settings as ``BaseClient``.

    Requests to one address are pipelined over one connection, those of one turn of the loop in one write. An answer of
    GO_AWAY makes the client repeat the request once over a new connection.
    """

    def _set_up(self) -> None:
        self._endpoint: Endpoint[Channel] = Endpoint(
            self.name, self.limits, server=False, clock=self.clock, hooks=self._hooks
        )
        self._channels: dict[str, Channel] = {}
        self._connecting: dict[str, asyncio.Task[Channel]] = {}
        self._lookup = HostLookup()
        self._sweeper: PeriodicTask | None = None
        self._all_closed: asyncio.Event | None = None
        self._reactor: Reactor | None = None
        self._endpoint.close_callbacks.append(self._channel_closed)

    @property
    def is_secured(self) -> bool:
        """Whether its connections are over TLS."""
        return self._tls is not None

    @property
    def is_open(self) -> bool:
        """Whether it may have connections."""
        return not self._closed

    async def __aenter__(self) -> RemotingClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def add_routes(self, rows: Iterable[Route]) -> None:
        """Serve requests that servers send to us; what has no row is answered with code 3."""
        self._endpoint.routes.add(rows)

    def expecting(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: a loop hears of a server's request when it comes."""
        return contextlib.nullcontext()

    def connection_to(self, address: str) -> Channel | None:
        """Return the open connection to an address, None where there is none."""
        channel = self._channels.get(address)
        return None if channel is None or channel.closed else channel

    def address_of(self, channel: Channel) -> str | None:
        """Return the address that a connection was made to, None for one that is not ours any more."""
        return next((address for address, known in self._channels.items() if known is channel), None)

    def on_close(self, callback: Callable[[Channel], None]) -> None:
        """Be told of every connection that ended."""
        self._endpoint.close_callbacks.append(callback)

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        """Ask and return the answer, whatever its code.

        raises  ConnectError, ConnectionLost, RequestTimeout after ``timeout`` seconds, Overloaded, ClientClosed
        """
        deadline = self.clock.monotonic() + timeout
        channel = self._channels.get(address)
        if channel is None or channel.closed:
            channel = await self.connect(address, timeout, request_name(command.code))
            timeout = max(0.0, deadline - self.clock.monotonic())
        self._prepare(address, command)
        if channel.write_paused:
            timeout = await channel.room(command.code, timeout)
        answer = channel.invoke_nowait(command, timeout)
        try:  # each coroutine between a caller and an answer costs: this one is ``Channel.invoke``
            response = await answer
        except asyncio.CancelledError:
            channel.leave(command, answer)
            raise
        if response.code == ResponseCode.GO_AWAY:
            left = deadline - self.clock.monotonic()
            response = await self._repeat_elsewhere(address, channel, command, left)
        self._show(address, command, response)
        return response

    def invoke_nowait(
        self, address: str, command: RemotingCommand, timeout: float
    ) -> asyncio.Future[RemotingCommand] | None:
        """Ask over the connection that is open, and return the future of the answer, whatever its code.

        returns  None where none is open, or has no room: ``invoke`` waits for that; also where hooks see each answer
        raises   the future RequestTimeout after ``timeout`` seconds, ConnectionLost
        """
        channel = self._channels.get(address)
        if channel is None or channel.closed or channel.write_paused or self._hooks:
            return None
        self._prepare(address, command)
        return channel.invoke_nowait(command, timeout)

    def is_polled(self, address: str) -> bool:
        """Tell whether a connection to an address is open, and served by ``poll``: TLS is the loop's."""
        channel = self._channels.get(address)
        return channel is not None and not channel.closed and channel.is_direct

    def poll(self, seconds: float) -> bool:
        """Read and write what is ready, for who has the loop's place while that stands still.

        seconds  to wait for the first connection that is
        returns  whether there was one
        """
        return self._reactor is not None and self._reactor.poll(seconds)

    def unsent(self) -> bool:
        """Hand all that was written to the kernel, as far as that takes it; tell whether something is left."""
        left = False
        for channel in self._channels.values():
            left |= channel.unsent()
        return left

    def abort(self) -> None:
        """End all connections at once; what is outstanding fails with ConnectionLost."""
        for channel in list(self._endpoint.channels):
            channel.abort()

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None:
        """Send a request that has no answer; done when the connection has taken it, which waits for a slow peer.

        raises  ConnectError, ConnectionLost, RequestTimeout after ``timeout`` seconds, ClientClosed
        """
        channel = self._channels.get(address)
        if channel is None or channel.closed:
            deadline = Deadline(timeout, self.clock)
            channel = await self.connect(address, timeout, request_name(command.code))
            timeout = deadline.remaining()
        self._prepare(address, command)
        if channel.write_paused:
            await channel.room(command.code, timeout)
        channel.invoke_oneway(command)

    async def connect(self, address: str, timeout: float | None = None, what: str = "connect") -> Channel:
        """Return the open connection to an address, making it where there is none; one attempt serves all who wait.

        raises  ConnectError, also after ``timeout`` seconds, ClientClosed
        """
        if self._closed:
            raise ClientClosed(f"{what} at {address}: the client is closed")
        channel = self._channels.get(address)
        if channel is not None and not channel.closed:
            return channel
        attempt = self._connecting.get(address)
        if attempt is None:
            attempt = asyncio.create_task(self._connect(address), name=f"{self.name}-connect")
            self._connecting[address] = attempt
            attempt.add_done_callback(lambda done: self._connected(address, done))
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(attempt)
        except TimeoutError:
            raise ConnectError(f"{what} at {address}: no connection within {timeout:g} s") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if attempt.cancelled() and (task is None or not task.cancelling()):
                # ``close()`` ended the attempt; nobody cancelled the caller.
                raise ClientClosed(f"{what} at {address}: the client is closed") from None
            raise
        except ConnectError as error:
            # The attempt is shared: each waiter raises an error of its own.
            raise ConnectError(f"{what} at {address}: {error.args[0]}") from error.__cause__

    def close_channel(self, address: str) -> None:
        """Close the connection to an address, if there is one; its outstanding requests fail."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.close()
            self._lookup.give_up(*self._target(address))

    async def close(self) -> None:
        """Close all connections; outstanding requests fail with ConnectionLost. Resumes a close that was cancelled."""
        self._closed = True
        if self._sweeper is not None:
            await self._sweeper.stop()
        tasks: list[asyncio.Task[None] | asyncio.Task[Channel]] = [*self._connecting.values(), *self._endpoint.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._channels.clear()
        self._all_closed = self._all_closed or asyncio.Event()
        for end in (Channel.close, Channel.abort):
            for channel in list(self._endpoint.channels):
                end(channel)
            if not self._endpoint.channels:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await self._all_closed.wait()
        if self._reactor is not None:
            self._reactor.close()
        if self._endpoint.channels:
            logger.warning("connections did not end client=%s connections=%d", self.name, len(self._endpoint.channels))

    async def _repeat_elsewhere(
        self, address: str, old: Channel, command: RemotingCommand, timeout: float
    ) -> RemotingCommand:
        """Ask once more over a new connection; the old one goes on with what it has and is closed by the server."""
        if timeout <= 0:
            raise no_time_left(command.code, address)
        deadline = Deadline(timeout, self.clock)
        if self._channels.get(address) is old:
            del self._channels[address]
        channel = await self.connect(address, timeout, request_name(command.code))
        command.opaque = next_opaque()
        return await channel.invoke(command, deadline.remaining())

    async def _connect(self, address: str) -> Channel:
        loop = asyncio.get_running_loop()
        channel: Channel
        logger.debug("connecting address=%s", address)
        try:
            host, port = self._target(address)
            async with asyncio.timeout(self._connect_timeout):
                sock = await self._connected_socket(host, port, loop.time() + self._connect_timeout)
                if self._tls is None:
                    channel = await self._attach(sock)
                else:
                    channel = await connect_tls(sock, self._tls.context, self._tls.hostname(host), self._make_channel)
        except (OSError, ValueError) as error:
            raise ConnectError(self._why_not(error, address, self._connect_timeout)) from error
        channel.remote_address = address
        if self._sweeper is None:
            interval = max(0.05, self.limits.idle_timeout / 4)
            self._sweeper = PeriodicTask(f"{self.name}-sweep", self._endpoint.sweep, interval)
            self._sweeper.start()
        return channel

    async def _attach(self, sock: socket.socket) -> Channel:
        """Return the channel of a connected socket: on Linux it is read and written in C, as those of servers."""
        loop = asyncio.get_running_loop()
        if not has_reactor():
            return (await loop.create_connection(self._make_channel, sock=sock))[1]
        from rocketcore._fast.reactor import Reactor

        if self._reactor is None:
            self._reactor = Reactor(loop, self.clock.monotonic)
        channel = self._make_channel()
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._reactor.attach(sock, channel, sock.getpeername())
        except BaseException:
            sock.close()
            raise
        return channel

    async def _connected_socket(self, host: str, port: int, deadline: float) -> socket.socket:
        """Connect to the first address of a host that takes it.

        They share the time, so that one that is silent leaves some of it to the others.
        """
        loop = asyncio.get_running_loop()
        failure: OSError | None = None
        addresses = await self._lookup.find_async(host, port)
        for others, (family, kind, protocol, _, target) in zip(reversed(range(len(addresses))), addresses, strict=True):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                if is_loopback(target[0]):
                    unpace(sock)
                async with asyncio.timeout((deadline - loop.time()) / (others + 1)):
                    await connect(sock, target)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                self._lookup.took(host, port, target, addresses)
                return sock
        assert failure is not None, "a look-up raises where there is no address"
        raise failure

    def _make_channel(self) -> Channel:
        return Channel(self._endpoint)

    def _channel_closed(self, channel: Channel) -> None:
        if self._channels.get(channel.remote_address) is channel:
            del self._channels[channel.remote_address]
        if self._all_closed is not None and not self._endpoint.channels:
            self._all_closed.set()

    def _connected(self, address: str, attempt: asyncio.Task[Channel]) -> None:
        self._connecting.pop(address, None)
        if attempt.cancelled() or attempt.exception() is not None:
            return
        channel = attempt.result()
        if self._closed:
            channel.close()
        elif not channel.closed:
            self._channels[address] = channel
