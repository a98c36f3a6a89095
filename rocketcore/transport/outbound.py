"""What a connection of an event loop sends: bytes, without a notion of frames and requests.

What is to be written is collected and leaves in one write, at the end of the read that caused it or of the loop's turn.
A peer that takes less than is written pauses those who write.

RocketMQ: Netty's ``ChannelOutboundBuffer``.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from rocketcore.transport.endpoint import Endpoint

__all__ = ["Outbound"]

_JOIN_BYTES: Final = 1 << 12
"""Pieces that are shorter than this at the mean are copied into one to be sent; longer ones go out as they are."""


class Outbound(asyncio.Protocol):
    """The sending half of a channel, which has the transport from ``attach`` on.

    last_written  monotonic seconds
    """

    __slots__ = (
        "_closed",
        "_corked",
        "_drained",
        "_endpoint",
        "_flush_planned",
        "_loop",
        "_monotonic",
        "_out",
        "_out_bytes",
        "_transport",
        "_write_paused",
        "last_written",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._closed = False
        self._corked = False  # a read is being served: what it writes leaves at its end
        self._drained: asyncio.Future[None] | None = None
        self._flush_planned = False
        self._loop = asyncio.get_running_loop()
        self._monotonic = endpoint.clock.monotonic
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._transport: Any = None
        self._write_paused = False
        self.last_written = self._monotonic()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def write_paused(self) -> bool:
        """Whether the peer has to take some of what was written before more should be."""
        return self._write_paused

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._endpoint.stop_reading_when_full and not self._closed:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._wake_writers()

    def write(self, data: bytes | memoryview | list[bytes]) -> None:
        """Send bytes, together with what else is written in this turn of the loop; nothing on a closed channel.

        What is more than the high-water mark does not wait for the end of the turn, so that whoever writes without end
        is paused.
        """
        if self._closed:
            return
        if isinstance(data, list):
            self._out.extend(data)
            self._out_bytes += sum(map(len, data))
        else:
            self._out.append(data)
            self._out_bytes += len(data)
        if self._corked:
            return
        if self._out_bytes > self._endpoint.limits.write_high_water_bytes:
            if self._transport.is_closing():
                # It broke in this turn, ``connection_lost`` follows.
                self._out.clear()
                self._out_bytes = 0
            else:
                self.flush()
        elif not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._planned_flush)

    def _planned_flush(self) -> None:
        self._flush_planned = False
        self.flush()

    def flush(self) -> None:
        """Hand everything written so far to the socket now."""
        out = self._out
        if not out or self._closed:
            return
        self.last_written = self._monotonic()
        if len(out) == 1:
            self._transport.write(out[0])
        elif self._out_bytes <= len(out) * _JOIN_BYTES:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)
        self._out = []
        self._out_bytes = 0

    async def drain(self) -> None:
        """Wait until the peer has taken enough of what was written."""
        while self._write_paused and not self._closed:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    def _wake_writers(self) -> None:
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    def close(self) -> None:
        """Send what was written, then close."""
        if not self._closed:
            self._corked = False
            self.flush()
            self._closed = True
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        self._closed = True
        self._out.clear()
        self._transport.abort()
