"""The end of a connection whose peer may be writing still.

Where input arrives at a socket that is closed, or was not read before, the kernel resets the connection, and what was
sent on it is lost as far as the peer has not taken it. So a server that stops says that nothing follows and reads on,
for nobody, until the peer closes too, or has taken everything and is quiet. nginx: ``lingering_close``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Final

from rocketcore.transport.tls.transport import TlsTransport

if sys.platform == "linux":
    import fcntl
    import termios

__all__ = ["Lingering"]

_QUIET_SECONDS: Final = 0.1
"""How long nothing comes before a connection whose peer has taken everything is closed."""


class Lingering(asyncio.Protocol):
    """The protocol of a connection after its last write; begins with its construction.

    quiet    seconds since something was read or written; a peer that was silent and has taken everything is not waited
             for. How long the others may take is up to the caller, who aborts the transport
    on_lost  told of the end
    """

    __slots__ = ("_heard_at", "_loop", "_on_lost", "_timer", "_transport")

    def __init__(
        self,
        transport: asyncio.Transport | TlsTransport,
        quiet: float,
        on_lost: Callable[[Exception | None], None],
    ) -> None:
        tcp: Any = transport.detach() if isinstance(transport, TlsTransport) else transport
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time() - quiet
        self._on_lost = on_lost
        self._timer: asyncio.TimerHandle | None = None
        self._transport = tcp
        tcp.set_protocol(self)
        if quiet >= _QUIET_SECONDS and not _is_owed(tcp):
            tcp.close()
        elif not tcp.is_closing():
            try:
                tcp.write_eof()
            except OSError:  # the peer has gone already
                tcp.abort()
            else:
                tcp.resume_reading()
                self._timer = self._loop.call_later(_QUIET_SECONDS, self._check_quiet)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()

    def part_received(self, size: int) -> None:
        """Hear of a part of a large frame that a reactor's transport was receiving."""
        self._heard_at = self._loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._on_lost(exc)

    def _check_quiet(self) -> None:
        now = self._loop.time()
        if _is_owed(self._transport):
            self._heard_at = now
        if now - self._heard_at >= _QUIET_SECONDS:
            self._transport.close()
        else:
            self._timer = self._loop.call_later(_QUIET_SECONDS, self._check_quiet)


def _is_owed(transport: Any) -> bool:
    """Whether the peer's system has not taken all that was written, as far as this system tells."""
    if transport.get_write_buffer_size():
        return True
    if sys.platform != "linux":
        return False
    sock = transport.get_extra_info("socket")
    try:
        return sock is not None and sock.fileno() >= 0 and any(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))
    except OSError:  # a sandbox's sockets need not know it
        return False
