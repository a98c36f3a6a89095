"""What a connection of an event loop sends: bytes, without a notion of frames, requests and states.

What is to be written is collected and leaves in one write, at the end of the read that caused it or of the loop's turn;
what is long already leaves at once.

RocketMQ: Netty's ``ChannelOutboundBuffer``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Outbound"]

_JOIN_BYTES: Final = 1 << 12
"""Pieces that are shorter than this at the mean are copied into one to be sent; longer ones go out as they are."""

_AT_ONCE_BYTES: Final = 1 << 18
"""So many bytes gain nothing from what else is written in the same turn."""


class Outbound:
    """The outbound queue of a connection.

    transport         takes what is flushed
    high_water_bytes  more than this does not even wait for the end of a read: so the transport can tell who writes
                      without end that it is full
    monotonic         the clock of ``last_written``, in seconds
    corked            what is written stays in ``pieces``: a read is being served, whose end flushes it
    """

    __slots__ = (
        "_bytes",
        "_flush_planned",
        "_high_water_bytes",
        "_loop",
        "_monotonic",
        "_room",
        "_transport",
        "corked",
        "last_written",
        "pieces",
    )

    def __init__(self, transport: Any, high_water_bytes: int, monotonic: Callable[[], float]) -> None:
        self.corked = False
        self._bytes = 0
        self._flush_planned = False
        self._high_water_bytes = high_water_bytes
        self._loop = asyncio.get_running_loop()
        self._monotonic = monotonic
        self.pieces: list[bytes | memoryview] = []
        self._room: asyncio.Future[None] | None = None
        self._transport = transport
        self.last_written = monotonic()

    def write(self, data: bytes | memoryview | list[bytes] | list[bytes | memoryview]) -> None:
        """Send bytes together with what else is written in this read or this turn of the loop."""
        if isinstance(data, list):
            self.pieces.extend(data)
            self._bytes += sum(map(len, data))
        else:
            self.pieces.append(data)
            self._bytes += len(data)
        if self._bytes > self._high_water_bytes or (self._bytes >= _AT_ONCE_BYTES and not self.corked):
            if self._transport.is_closing():  # it broke in this turn, ``connection_lost`` follows
                self.clear()
            else:
                self.flush()
        elif not self.corked and not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush_at_end)

    def _flush_at_end(self) -> None:
        self._flush_planned = False
        self.flush()

    def flush(self) -> None:
        """Hand everything written so far to the transport now."""
        pieces = self.pieces
        if not pieces:
            return
        self.last_written = self._monotonic()
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        elif self._bytes <= len(pieces) * _JOIN_BYTES:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)
        self.pieces = []
        self._bytes = 0

    async def emptied(self) -> None:
        """Wait until the transport has room again; see ``wake``."""
        if self._room is None:
            self._room = self._loop.create_future()
        await asyncio.shield(self._room)

    def wake(self) -> None:
        """Let those go on who wait for room."""
        if self._room is not None:
            self._room.set_result(None)
            self._room = None

    def clear(self) -> None:
        """Forget what was written and not flushed."""
        self.pieces.clear()
        self._bytes = 0
