"""What connections may cost."""

from __future__ import annotations

from dataclasses import dataclass

from rocketcore.codes import FRAME_MAX_BYTES

__all__ = ["ChannelLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """What one connection may cost, and all of them together.

    max_frame_bytes        longest frame, length word included
    max_in_flight          requests that wait for an answer, in each direction
    write_high_water_bytes unsent bytes at which a server stops reading a connection and a client stops writing
    idle_timeout           seconds without a read or a write after which the connection is closed
    partial_frame_timeout  seconds that a frame may take to arrive
    max_partial_bytes      bytes of incomplete frames of all connections; the one that goes beyond is closed
    silent_timeout         seconds without a byte from the peer after which an overdue answer condemns the connection
    handshake_timeout      seconds that a PROXY preamble and a TLS handshake may take
    max_serving            requests of all connections that handlers are waiting with; more are refused as busy
    """

    max_frame_bytes: int = FRAME_MAX_BYTES
    max_in_flight: int = 65_535
    write_high_water_bytes: int = 8 << 20
    idle_timeout: float = 120.0
    partial_frame_timeout: float = 60.0
    max_partial_bytes: int = 512 << 20
    silent_timeout: float = 3.0
    handshake_timeout: float = 10.0
    max_serving: int = 10_000
