"""What all connections of one server or client share, and what each of them may cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rocketcore.codes import FRAME_MAX_BYTES
from rocketcore.protocol.frame import ChunkReader
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.transport.hooks import RpcHook
from rocketcore.transport.routes import Route

if TYPE_CHECKING:
    from rocketcore.transport.channel import Channel

__all__ = ["ChannelLimits", "Endpoint", "address_text"]


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


class Endpoint:
    """What all connections of one server or client share: routes, limits, the reader's tables, running tasks.

    going_away       a server that stops: those who understand it are asked to go
    takes_requests   False: what the others still ask is dropped unseen, for their connections are about to close
    """

    def __init__(
        self,
        name: str,
        limits: ChannelLimits,
        *,
        clock: Clock = SYSTEM_CLOCK,
        stop_reading_when_full: bool,
        hooks: Iterable[RpcHook] = (),
    ) -> None:
        self.name = name
        self.limits = limits
        self.clock = clock
        self.stop_reading_when_full = stop_reading_when_full
        self.hooks = tuple(hooks)
        self.reader = ChunkReader(limits.max_frame_bytes)
        self.routes: dict[int, Route] = {}
        self.max_runs: dict[int, int] = {}
        self.close_callbacks: list[Callable[[Channel], None]] = []
        self.channels: set[Channel] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.going_away = False
        self.takes_requests = True
        self.partial_bytes = 0

    def sweep(self) -> None:
        """Close the connections that were silent for too long; called from time to time."""
        now = self.clock.monotonic()
        for channel in list(self.channels):
            channel.check_idle(now)


def address_text(name: Any) -> str:
    """Return ``ip:port`` of a socket name, IPv6 in brackets; empty where there is none."""
    if not isinstance(name, tuple) or len(name) < 2:
        return ""
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
