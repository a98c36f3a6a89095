"""TLS between a TCP transport and the protocol above it, for every event loop.

``loop.start_tls`` cannot be given bytes that were read already, and asyncio and uvloop differ in when they read the
next ones; so a server that looks at the first byte could lose the start of the handshake. Here the one who looked feeds
them. The protocol above sees an ordinary transport: bytes wait in the TCP transport's buffer, whose limits, pauses and
sizes are passed through.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from rocketcore.transport.tls.session import CLOSED_IN_HANDSHAKE, TlsSession, failure_text

__all__ = ["TlsTransport", "connect_tls"]

AnyProtocol = TypeVar("AnyProtocol", bound=asyncio.Protocol)


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """A transport for the protocol above and the protocol of the TCP transport below.

    on_established  called once when the handshake is done; returns the protocol above, which has its transport by then
    on_failed       called once instead when it failed: with the reason, or None where the peer closed the connection
    """

    __slots__ = ("_closing", "_failure", "_on_established", "_on_failed", "_protocol", "_raw", "_session")

    def __init__(
        self,
        session: TlsSession,
        on_established: Callable[[TlsTransport], asyncio.Protocol],
        on_failed: Callable[[str | None], None],
    ) -> None:
        super().__init__()
        self._session = session
        self._on_established: Callable[[TlsTransport], asyncio.Protocol] | None = on_established
        self._on_failed: Callable[[str | None], None] | None = on_failed
        self._protocol: asyncio.Protocol | None = None
        self._raw: Any = None
        self._failure: ConnectionError | None = None
        self._closing = False

    # The TCP transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = transport
        self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        session = self._session
        try:
            plain = session.receive(data)
        except ssl.SSLError as error:
            self._flush()
            self._fail(failure_text(error))
            return
        self._flush()
        if self._on_established is not None and session.established:
            on_established, self._on_established, self._on_failed = self._on_established, None, None
            self._protocol = on_established(self)
        if plain and self._protocol is not None:
            self._protocol.data_received(plain)
        if session.ended:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self._protocol is not None:
            self._protocol.connection_lost(exc or self._failure)
        elif self._on_failed is not None:
            self._report(None)

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def _fail(self, reason: str) -> None:
        """End a connection that broke TLS; what explains it to the peer is on its way."""
        self._closing = True
        self._failure = ConnectionError(reason)
        self._raw.close()
        if self._on_failed is not None:
            self._report(reason)

    def _report(self, reason: str | None) -> None:
        on_failed, self._on_failed, self._on_established = self._on_failed, None, None
        assert on_failed is not None, "a handshake ends once"
        on_failed(reason)

    def _flush(self) -> None:
        outgoing = self._session.take_outgoing()
        if outgoing:
            self._raw.write(outgoing)

    # The protocol above calls

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._session.object if name == "ssl_object" else self._raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._closing or self._raw.is_closing()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        if self._closing:
            return
        try:
            for data in list_of_data:
                self._session.send(data)
        except ssl.SSLError as error:
            self._fail(failure_text(error))
            return
        self._flush()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        size: int = self._raw.get_write_buffer_size()
        return size

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._session.close()
            self._flush()
            self._raw.close()

    def abort(self) -> None:
        self._closing = True
        self._raw.abort()

    def detach(self) -> asyncio.Transport:
        """Say that nothing follows, and return the TCP transport, which is the caller's from now on."""
        self._closing = True
        self._session.close()
        self._flush()
        raw: asyncio.Transport = self._raw
        return raw


async def connect_tls(
    sock: socket.socket, context: ssl.SSLContext, server_hostname: str, protocol: Callable[[], AnyProtocol]
) -> AnyProtocol:
    """Shake hands over a connected, non-blocking socket and return the protocol that ``protocol`` made.

    raises  OSError, ssl.SSLError among it; ConnectionError with the reason where the handshake failed
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[AnyProtocol] = loop.create_future()

    def established(transport: TlsTransport) -> asyncio.Protocol:
        made = protocol()
        made.connection_made(transport)
        if not ready.done():
            ready.set_result(made)
        return made

    def failed(reason: str | None) -> None:
        if not ready.done():
            ready.set_exception(ConnectionError(reason or CLOSED_IN_HANDSHAKE))

    session = TlsSession(context, server_hostname=server_hostname)
    _, transport = await loop.create_connection(lambda: TlsTransport(session, established, failed), sock=sock)
    try:
        return await ready
    except BaseException:
        transport.abort()
        raise
