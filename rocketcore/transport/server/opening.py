"""The first bytes of a connection that a server accepted: who speaks, and in which of the protocols of one port.

A PROXY preamble comes first, where a load balancer put one. Then 0x16 begins a TLS handshake and anything else a frame,
whose length word begins with 0x00 or 0x01. After that the channel is the transport's protocol itself, and nothing of
this stays behind.

RocketMQ: ``NettyRemotingServer.HandshakeHandler``, ``TlsModeHandler``.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any, Final, Protocol

from rocketcore.errors import DecodeError
from rocketcore.transport.exchange import socket_address
from rocketcore.transport.limits import ChannelLimits
from rocketcore.transport.server.proxy_protocol import FIRST_BYTES, parse_preamble
from rocketcore.transport.tls.session import TlsSession
from rocketcore.transport.tls.transport import TlsTransport

__all__ = ["Opener", "Opening"]

logger = logging.getLogger(__name__)

_CLIENT_HELLO: Final = 0x16


class Opener(Protocol):
    """What a connection that is being opened needs of its server."""

    name: str
    limits: ChannelLimits
    tls_required: bool

    def tls_context(self) -> ssl.SSLContext | None:
        """Return what a handshake needs; None: the server has no certificate, or TLS is off."""

    def takes_preamble(self, opening: Opening) -> bool:
        """Tell whether a PROXY preamble of this connection is believed."""

    def opened(self, opening: Opening) -> bool:
        """Count a new connection by its socket's address; False where it is one too many."""

    def opening_ended(self, opening: Opening) -> None:
        """Forget a connection that ended before it had a channel."""

    def make_channel(self, opening: Opening, transport: asyncio.BaseTransport) -> asyncio.Protocol:
        """Return the channel that takes over; it is told of the transport."""


class Opening(asyncio.Protocol):
    """A connection until it is known what it is.

    socket_address  the other end of the socket, ``ip:port``; limits count by it, since anyone may write a preamble
    source          who connected to the load balancer; without one, the same
    opened_at       monotonic seconds, by the server's clock
    """

    __slots__ = (
        "_closed",
        "_held",
        "_introduced",
        "_server",
        "_timer",
        "_transport",
        "opened_at",
        "socket_address",
        "source",
    )

    def __init__(self, server: Opener, opened_at: float) -> None:
        self._server = server
        self._closed = False
        self._held = b""
        self._introduced = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: Any = None
        self.opened_at = opened_at
        self.socket_address = ""
        self.source = ""

    @property
    def silent(self) -> bool:
        """Whether no byte has come yet."""
        return self._timer is None

    def abort(self, reason: str) -> None:
        """Close at once."""
        if not self._closed:
            self._closed = True
            logger.info(
                "connection closed endpoint=%s remote=%s reason=%s", self._server.name, self.socket_address, reason
            )
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.socket_address = self.source = socket_address(transport.get_extra_info("peername"))
        if not self._server.opened(self):
            self._closed = True
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_opening()

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        if self._held:
            data, self._held = self._held + data, b""
        if data[0] in FIRST_BYTES and not self._introduced:
            if not self._server.takes_preamble(self):
                self.abort("it begins with a PROXY preamble, and its address is none of proxyProtocolTrusted")
                return
            try:
                preamble = parse_preamble(data)
            except DecodeError as error:
                self.abort(str(error))
                return
            if preamble is None:
                self._held = data
                self._bound()
                return
            self._introduced = True
            self.source = preamble.source or self.socket_address
            data = data[preamble.consumed :]
            if not data:
                self._bound()
                return
        if data[0] == _CLIENT_HELLO:
            self._begin_tls(data)
        elif self._server.tls_required:
            self.abort("it does not speak TLS, which this server requires")
        else:
            self._hand_over(self._transport).data_received(data)

    def _bound(self) -> None:
        """Begin the time that preamble and handshake may take."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            timeout = self._server.limits.handshake_timeout
            self._timer = loop.call_later(timeout, self.abort, f"no request began within {timeout:g} s")

    def _begin_tls(self, data: bytes) -> None:
        context = self._server.tls_context()
        if context is None:
            self.abort("it speaks TLS, for which this server has no certificate")
            return
        self._bound()
        tls = TlsTransport(TlsSession(context, server_side=True), self._hand_over, self._tls_failed)
        self._transport.set_protocol(tls)
        tls.connection_made(self._transport)
        tls.data_received(data)

    def _hand_over(self, transport: asyncio.Transport | TlsTransport) -> asyncio.Protocol:
        if self._timer is not None:
            self._timer.cancel()
        channel = self._server.make_channel(self, transport)
        if transport is self._transport:
            transport.set_protocol(channel)
        return channel

    def _tls_failed(self, reason: str | None) -> None:
        if not self._closed:
            why = reason or "the client closed the connection"
            logger.info("handshake failed endpoint=%s remote=%s reason=%s", self._server.name, self.source, why)
        self._end_opening()

    def _end_opening(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._server.opening_ended(self)
