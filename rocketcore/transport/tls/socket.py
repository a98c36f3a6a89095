"""A connected socket with TLS for threads of which one reads while another writes.

``ssl.SSLSocket`` may not be used by two threads at a time. Here only encryption and decryption are behind a lock; the
system calls, which may wait, are outside it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from typing import Any, Final

from rocketcore.transport.tls.session import CLOSED_IN_HANDSHAKE, TlsSession, failure_text

__all__ = ["TlsSocket"]

_RECEIVE_BYTES: Final = 1 << 16
_SEND_BYTES: Final = 1 << 18
"""Plain bytes that are encrypted at a time: what could not be sent of them is kept."""


class TlsSocket:
    """What ``BlockingChannel`` uses of a socket: one thread receives and one sends at a time.

    ``recv`` returns all that is decrypted, which may be more than asked for, so that nothing readable is ever left
    where ``poll`` cannot see it. Answers that TLS itself owes the peer leave with the next ``send``.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_hostname: str, timeout: float) -> None:
        """Shake hands over a connected socket, within ``timeout`` seconds.

        raises  TimeoutError, ConnectionError with the reason, OSError; the socket is left to the caller
        """
        self._socket = sock
        self._session = session = TlsSession(context, server_hostname=server_hostname)
        self._lock = threading.Lock()  # guards the session
        self._unsent = memoryview(b"")
        self._early = b""
        deadline = time.monotonic() + timeout
        data = b""
        while True:
            try:
                self._early = session.receive(data)
            except ssl.SSLError as error:
                with contextlib.suppress(OSError):
                    sock.send(session.take_outgoing(), socket.MSG_DONTWAIT)
                raise ConnectionError(failure_text(error)) from error
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            sock.settimeout(left)
            if outgoing := session.take_outgoing():
                sock.sendall(outgoing)
            if session.established:
                return
            try:
                data = sock.recv(_RECEIVE_BYTES)
            except ConnectionError as error:
                raise ConnectionError(CLOSED_IN_HANDSHAKE) from error
            if not data:
                raise ConnectionError(CLOSED_IN_HANDSHAKE)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Read once; raises BlockingIOError where nothing is there, or no record is complete. b"": the end."""
        if self._early:
            early, self._early = self._early, b""
            return early
        if self._session.ended:
            return b""
        data = self._socket.recv(size, flags)
        if not data:
            return b""
        with self._lock:
            try:
                plain = self._session.receive(data)
            except ssl.SSLError as error:
                raise ConnectionError(failure_text(error)) from error
            if plain or self._session.ended:
                return plain
        raise BlockingIOError

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        """Encrypt and send; returns how many plain bytes of ``data`` are done.

        What is encrypted has to leave before anything else can. Until it has, one byte of ``data`` counts as not done:
        call again with the rest, which sends it. raises  BlockingIOError where nothing more is done
        """
        owed = 0
        if self._unsent:
            owed = 1
            self._send_unsent(flags)
            if self._unsent:
                raise BlockingIOError
        taken = memoryview(data)[owed : owed + _SEND_BYTES]
        if not taken:
            return owed
        with self._lock:
            try:
                self._session.send(taken)
            except ssl.SSLError as error:
                raise ConnectionError(failure_text(error)) from error
            self._unsent = memoryview(self._session.take_outgoing())
        self._send_unsent(flags)
        done = owed + len(taken)
        if not self._unsent:
            return done
        if done == 1:
            raise BlockingIOError
        return done - 1

    def _send_unsent(self, flags: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent, flags) :]

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        self._socket.setsockopt(level, option, value)

    def settimeout(self, timeout: float | None) -> None:
        self._socket.settimeout(timeout)

    def getsockname(self) -> Any:
        return self._socket.getsockname()

    def fileno(self) -> int:
        return self._socket.fileno()

    def shutdown(self, how: int) -> None:
        """Say that nothing follows, where the socket takes it at once, and end the connection."""
        with self._lock, contextlib.suppress(OSError):
            if not self._unsent:
                self._session.close()
                self._socket.send(self._session.take_outgoing(), socket.MSG_DONTWAIT)
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()
