"""RemotingClient: one connection per address, shared by all who ask.

RocketMQ: ``NettyRemotingClient``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from rocketcore.codes import ResponseCode
from rocketcore.errors import ClientClosed, ConfigError, ConnectError, RequestTimeout
from rocketcore.protocol.command import RemotingCommand, next_opaque, request_name
from rocketcore.service import SYSTEM_CLOCK, Clock, Deadline, PeriodicTask
from rocketcore.transport.channel import Channel, ChannelLimits, Endpoint, Handler

__all__ = ["Remoting", "RemotingClient", "Signer", "split_address"]

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT: Final = 1.0
"""Seconds that ``close()`` gives connections to send what was written."""

Signer = Callable[[RemotingCommand], None]
"""Adds to a request's ext fields before it is encoded."""


class Remoting(Protocol):
    """What client logic needs of a transport; asyncio's and the blocking one both have it."""

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        """Ask and return the answer, whatever its code."""

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None:
        """Send a request that has no answer."""

    def close_channel(self, address: str) -> None:
        """Close the connection to an address, if there is one."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[ipv6]:port``; raises ConfigError for anything else."""
    host, colon, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"{address!r} is not an address of the form host:port")
    return host, int(port)


class RemotingClient:
    """Asks servers over connections that it makes when they are needed.

    connect_timeout  seconds to connect, within the request's own timeout
    idle_timeout     seconds without traffic after which a connection is closed
    signer           signs each request
    address_map      addresses to connect to in place of those that are asked for

    Requests to one address are pipelined over one connection, those of one turn of the loop in one write. An answer of
    GO_AWAY makes the client repeat the request once over a new connection.
    """

    def __init__(
        self,
        *,
        connect_timeout: float = 3.0,
        idle_timeout: float = 120.0,
        signer: Signer | None = None,
        address_map: Mapping[str, str] | None = None,
        limits: ChannelLimits | None = None,
        clock: Clock = SYSTEM_CLOCK,
        name: str = "client",
    ) -> None:
        self._connect_timeout = connect_timeout
        self._signer = signer
        self._address_map = address_map or {}
        self._clock = clock
        self._endpoint = Endpoint(
            name, limits or ChannelLimits(idle_timeout=idle_timeout), clock=clock, stop_reading_when_full=False
        )
        self._channels: dict[str, Channel] = {}
        self._connecting: dict[str, asyncio.Task[Channel]] = {}
        self._sweeper: PeriodicTask | None = None
        self._closed = False
        self._all_closed: asyncio.Event | None = None
        self._endpoint.close_callbacks.append(self._channel_closed)

    async def __aenter__(self) -> RemotingClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def register(self, code: int, handler: Handler) -> None:
        """Serve a request that servers send to us; unknown ones are answered with code 3."""
        self._endpoint.handlers[int(code)] = handler

    def on_close(self, callback: Callable[[Channel], None]) -> None:
        """Be told of every connection that ended."""
        self._endpoint.close_callbacks.append(callback)

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        """Ask and return the answer, whatever its code.

        raises  ConnectError, ConnectionLost, RequestTimeout after ``timeout`` seconds, Overloaded, ClientClosed
        """
        channel = self._channels.get(address)
        if channel is not None and not channel.closed:
            deadline = None
            began = self._clock.monotonic()
        else:
            deadline = Deadline(timeout, self._clock)
            channel = await self.connect(address, timeout, request_name(command.code))
            timeout = deadline.remaining()
        if self._signer is not None:
            self._signer(command)
        response = await channel.invoke(command, timeout)
        if response.code != ResponseCode.GO_AWAY:
            return response
        left = deadline.remaining() if deadline is not None else timeout - (self._clock.monotonic() - began)
        return await self._repeat_elsewhere(address, channel, command, left)

    def invoke_nowait(
        self, address: str, command: RemotingCommand, timeout: float = 3.0
    ) -> asyncio.Future[RemotingCommand]:
        """Ask over the open connection and return the future of the answer; GO_AWAY is left to the caller.

        raises  ConnectError where no connection is open: call ``connect()`` before; Overloaded
        """
        channel = self._channels.get(address)
        if channel is None or channel.closed:
            raise ConnectError(f"{request_name(command.code)} at {address}: not connected")
        if self._signer is not None:
            self._signer(command)
        return channel.invoke_nowait(command, timeout)

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None:
        """Send a request that has no answer; done when the connection has taken it."""
        channel = self._channels.get(address)
        if channel is None or channel.closed:
            channel = await self.connect(address, timeout, request_name(command.code))
        if self._signer is not None:
            self._signer(command)
        channel.invoke_oneway(command)

    async def connect(self, address: str, timeout: float | None = None, what: str = "connect") -> Channel:
        """Return the open connection to an address, making it where there is none; one attempt serves all who wait."""
        if self._closed:
            raise ClientClosed(f"{what} at {address}: the client is closed")
        channel = self._channels.get(address)
        if channel is not None and not channel.closed:
            return channel
        attempt = self._connecting.get(address)
        if attempt is None:
            attempt = asyncio.create_task(self._connect(address), name=f"{self._endpoint.name}-connect")
            self._connecting[address] = attempt
            attempt.add_done_callback(lambda done: self._connected(address, done))
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(attempt)
        except TimeoutError:
            raise RequestTimeout(f"{what} at {address}: no connection within {timeout:g} s") from None
        except ConnectError as error:
            # The attempt is shared: each waiter raises an error of its own.
            raise ConnectError(f"{what} at {address}: {error.args[0]}") from error.__cause__

    def close_channel(self, address: str) -> None:
        """Close the connection to an address, if there is one; its outstanding requests fail."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.close()

    async def close(self) -> None:
        """Close all connections; outstanding requests fail with ConnectionLost."""
        if self._closed:
            return
        self._closed = True
        if self._sweeper is not None:
            await self._sweeper.stop()
        tasks: list[asyncio.Task[None] | asyncio.Task[Channel]] = [*self._connecting.values(), *self._endpoint.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._channels.clear()
        self._all_closed = asyncio.Event()
        for channel in list(self._endpoint.channels):
            channel.close()
        if self._endpoint.channels:
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await self._all_closed.wait()
            except TimeoutError:
                for channel in list(self._endpoint.channels):
                    channel.abort()
                await self._all_closed.wait()

    async def _repeat_elsewhere(
        self, address: str, old: Channel, command: RemotingCommand, timeout: float
    ) -> RemotingCommand:
        """Ask once more over a new connection; the old one goes on with what it has and is closed by the server."""
        if timeout <= 0:
            raise RequestTimeout(f"{request_name(command.code)} at {address}: the server goes away, no time is left")
        deadline = Deadline(timeout, self._clock)
        if self._channels.get(address) is old:
            del self._channels[address]
        channel = await self.connect(address, timeout, request_name(command.code))
        command.opaque = next_opaque()
        return await channel.invoke(command, deadline.remaining())

    async def _connect(self, address: str) -> Channel:
        host, port = split_address(self._address_map.get(address, address))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, channel = await loop.create_connection(lambda: Channel(self._endpoint), host, port)
        except TimeoutError as error:
            raise ConnectError(f"no connection within {self._connect_timeout:g} s") from error
        except OSError as error:
            raise ConnectError(error.strerror or str(error)) from error
        channel.remote_address = address
        if self._sweeper is None:
            interval = max(0.05, self._endpoint.limits.idle_timeout / 4)
            self._sweeper = PeriodicTask(f"{self._endpoint.name}-sweep", self._endpoint.sweep, interval)
            self._sweeper.start()
        return channel

    def _channel_closed(self, channel: Channel) -> None:
        if self._all_closed is not None and not self._endpoint.channels:
            self._all_closed.set()

    def _connected(self, address: str, attempt: asyncio.Task[Channel]) -> None:
        self._connecting.pop(address, None)
        if attempt.cancelled() or attempt.exception() is not None:
            return
        channel = attempt.result()
        if self._closed:
            channel.close()
        else:
            self._channels[address] = channel
