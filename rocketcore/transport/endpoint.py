"""What all connections of one server or client share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from rocketcore.protocol.frame import ChunkReader
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.transport.hooks import RpcHook
from rocketcore.transport.limits import ChannelLimits
from rocketcore.transport.routes import Routes
from rocketcore.transport.slow_requests import SlowRequests
from rocketcore.transport.turns import Turns

__all__ = ["Endpoint"]


class _Connection(Protocol):
    def check_idle(self, now: float) -> None: ...


C = TypeVar("C", bound=_Connection)


class Endpoint(Generic[C]):
    """What all connections of one server or client share: routes, limits, the reader's tables, running tasks.

    server           its connections were accepted: a peer that does not read its answers is not read either, and the
                     headers of requests have a limit
    going_away       a server that stops: those who understand it are asked to go
    takes_requests   False: what the others still ask is dropped unseen, for their connections are about to close
    slow             is told of requests that took too long; a client's are not looked at
    turns            which requests begin in a turn of the loop
    partial_bytes    of incomplete frames, held for all connections
    """

    def __init__(
        self,
        name: str,
        limits: ChannelLimits,
        *,
        server: bool,
        clock: Clock = SYSTEM_CLOCK,
        hooks: Iterable[RpcHook] = (),
        slow: SlowRequests | None = None,
    ) -> None:
        self.name = name
        self.limits = limits
        self.server = server
        self.clock = clock
        self.hooks = tuple(hooks)
        self.slow = slow or SlowRequests()
        self.reader = ChunkReader(limits.max_frame_bytes)
        self.routes = Routes()
        self.close_callbacks: list[Callable[[C], None]] = []
        self.channels: set[C] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.turns = Turns(clock.monotonic)
        self.going_away = False
        self.takes_requests = True
        self.partial_bytes = 0

    def sweep(self) -> None:
        """Close the connections that were silent for too long; called from time to time."""
        now = self.clock.monotonic()
        for channel in list(self.channels):
            channel.check_idle(now)
