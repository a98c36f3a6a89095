"""What a connection of an event loop has received of a frame that is not complete.

Its beginning is held in parts. A frame that is longer than any row's limits allow without a look
(``Routes.least_limit``) is judged as soon as its header is there: one that is not wanted is not held, what follows
of it is thrown away as it comes. A longer one that is wanted is received into its place where the transport can
(``expect``), so that its parts need not be joined. Room for it is made once a sixteenth of what is missing has come:
nobody has memory for the mere claim of a length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rocketcore._fast.frame import BODY_LENGTH, HEADER_LENGTH
from rocketcore.errors import DecodeError
from rocketcore.protocol.frame import Assembler, Chunk, missing_bytes
from rocketcore.transport.routes import Routes

__all__ = ["Inbound"]

_PREFIX_BYTES: Final = 8
"""Length word, serialize type and header length: what a frame has before its header."""
_PLACED_BYTES: Final = 1 << 16
"""What is missing of a frame is received into its place if it is at least this much …"""
_PLACED_SHARE: Final = 16
"""… and at most this many times what is there."""


class Inbound:
    """The incomplete frame of one connection.

    routes        the limits of its requests
    bounded       a header longer than any row allows is no request's. Of what a client is answered it may be one, as
                  with the ids of a great many messages
    since         monotonic seconds of its first byte, or of when we read again; None: there is no incomplete frame
    placed_bytes  what the transport has received of it into its place
    """

    __slots__ = ("_assembler", "_bounded", "_routes", "_to_drop", "placed_bytes", "since")

    def __init__(self, routes: Routes, bounded: bool) -> None:
        self._assembler = Assembler()
        self._bounded = bounded
        self._routes = routes
        self._to_drop = 0  # bytes that are still to come
        self.placed_bytes = 0
        self.since: float | None = None

    @property
    def kept_bytes(self) -> int:
        """Bytes of parts, which may be whole frames where nobody looked at them."""
        return self._assembler.pending_bytes

    @property
    def held_bytes(self) -> int:
        return self._assembler.pending_bytes + self.placed_bytes

    def feed(self, data: bytes) -> bytes | None:
        """Return the bytes to read now, None while what is waited for is not there."""
        if self._to_drop:
            dropped = min(self._to_drop, len(data))
            self._to_drop -= dropped
            if not self._to_drop:
                self.since = None  # what follows has its own time
            return data[dropped:] or None
        self.placed_bytes = 0
        return self._assembler.feed(data)

    def keep(self, data: bytes, position: int, now: float, stream: Any, unwanted: Callable[[bytes, int], bool]) -> None:
        """Take what follows ``position`` of bytes that were read up to there.

        stream    the transport, if it can receive into a place
        unwanted  told what a long frame begins with, the serialize type before its header, and the bytes of its body
        raises    DecodeError for a header that is too long, or that cannot be read
        """
        if position or self.since is None:
            self.restart(now)
        there = len(data) - position
        missing = missing_bytes(data, position)
        if missing > 0 and there + missing > self._routes.least_limit:
            judged = _PREFIX_BYTES
            if there >= judged:
                header_bytes = int.from_bytes(data[position + 5 : position + 8], "big")
                self._check_header(header_bytes)
                judged += header_bytes
            if there < judged:
                self._assembler.keep(data, position, judged - there)
                return
            if unwanted(data[position + 4 : position + judged], there + missing - judged):
                self._to_drop = missing
                return
        if stream is not None and _PLACED_BYTES <= missing <= _PLACED_SHARE * there:
            self.placed_bytes = there
            stream.expect(data, position, missing)
        else:
            self._assembler.keep(data, position)

    def clear(self) -> None:
        """Let go of what is held: the connection ends, and may be referred to for longer."""
        self._assembler = Assembler()
        self._to_drop = self.placed_bytes = 0
        self.since = None

    def restart(self, now: float) -> None:
        """Count the time that the frame at hand may take from now on."""
        self.since = max(now, self.since or now)

    def end_if_complete(self) -> None:
        """Count no time where nothing is incomplete any more."""
        if not self.held_bytes and not self._to_drop:
            self.since = None

    def lengths(self, chunk: Chunk, index: int) -> tuple[int, int]:
        """Return the bytes of header and body of a frame that is complete; raises DecodeError as ``keep``."""
        header_bytes = chunk.rows[index, HEADER_LENGTH]
        self._check_header(header_bytes)
        return header_bytes, chunk.rows[index, BODY_LENGTH]

    def _check_header(self, header_bytes: int) -> None:
        """Raise DecodeError for a header that is too long: whom to answer would be known only at its end."""
        if self._bounded and header_bytes > self._routes.header_limit:
            raise DecodeError(f"a header of {header_bytes} bytes, {self._routes.header_limit} at most")
