"""One TLS connection over bytes: no socket, no loop; what both worlds of the transport share.

Whoever has a socket feeds what it read and sends what ``take_outgoing`` returns. OpenSSL's objects are not made for two
threads at a time: the caller holds a lock where there are several.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final

__all__ = ["CLOSED_IN_HANDSHAKE", "TlsSession", "failure_text"]

_RECORD_BYTES: Final = 1 << 14
"""OpenSSL returns at most one record, of at most this size, from one read."""

CLOSED_IN_HANDSHAKE: Final = "the server closed the connection during the TLS handshake: does it serve TLS?"


class RenegotiationRefused(ssl.SSLError):
    """A server of TLS 1.2 asked for a new handshake.

    While that runs nothing can be written, and the thread that reads may not write what it owes; so both clients end
    the connection, whatever their context allows.
    """

    reason = "the server asked for a renegotiation, which is refused"


class TlsSession:
    """Handshake, decryption and encryption of one connection.

    established  the handshake is done; ended  the peer said that nothing follows
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "_server_side", "ended", "established")

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool = False, server_hostname: str | None = None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._server_side = server_side
        self.established = False
        self.ended = False

    @property
    def object(self) -> ssl.SSLObject:
        """OpenSSL's side: version, cipher, the peer's certificate."""
        return self._object

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the peer and return all that they say, b"" where no record is complete; begins the handshake.

        raises  ssl.SSLError; what explains it to the peer is in ``take_outgoing``
        """
        if data:
            self._incoming.write(data)
        established = self.established
        try:
            if not self.established:
                self._object.do_handshake()
                self.established = True
        except ssl.SSLWantReadError:
            return b""
        parts = []
        try:
            while part := self._object.read(_RECORD_BYTES):
                parts.append(part)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        if self._outgoing.pending and established and not self._server_side and self._object.version() != "TLSv1.3":
            # Whatever else an older version owes its peer is an error.
            raise RenegotiationRefused
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt bytes for the peer; raises ssl.SSLError."""
        left = memoryview(data)
        while left:
            left = left[self._object.write(left) :]

    def take_outgoing(self) -> bytes:
        """Return what has to be sent to the peer, each byte once."""
        return self._outgoing.read()

    def close(self) -> None:
        """Tell the peer that nothing follows; its own word is not waited for."""
        # Mostly "want read": the peer has not said so itself yet. A session that failed has nothing to say.
        with contextlib.suppress(ssl.SSLError):
            self._object.unwrap()


def failure_text(error: ssl.SSLError) -> str:
    """Return in a few words why TLS failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
        return "the peer does not speak TLS"
    return (error.reason or str(error)).replace("_", " ").lower()
