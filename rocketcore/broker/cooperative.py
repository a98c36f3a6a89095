"""Long work of the event loop, in slices between which it serves others.

All such work together has one slice in a turn of the loop, each piece of work in its turn: thousands of questions that
take long keep nobody else waiting for longer than one does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Final, ParamSpec, TypeVar

from rocketcore.protocol.bodies.base import Body
from rocketcore.service import Clock

__all__ = ["AT_ONCE_BYTES", "CooperativeWork"]

P = ParamSpec("P")
T = TypeVar("T")
BodyT = TypeVar("BodyT", bound=Body)

AT_ONCE_BYTES: Final = 64 << 10
"""Of JSON that is read on the loop: some milliseconds."""

_SLICE_SECONDS: Final = 0.0005
_SLICE_STEPS: Final = 100
_FEW: Final = 4


class CooperativeWork:
    """Loop thread only."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._ends = 0.0
        self._steps = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turn_ends_soon = False
        self._thread = asyncio.Lock()
        self._few = asyncio.Semaphore(_FEW)

    async def step(self) -> None:
        """Called between two small pieces of work; returns in a later turn where this one had its slice."""
        loop = asyncio.get_running_loop()
        now = self._monotonic()
        if not self._steps:
            self._ends = now + _SLICE_SECONDS
        if not self._turn_ends_soon:
            self._turn_ends_soon = True
            loop.call_soon(self._turn_over)
        self._steps += 1
        if self._steps <= _SLICE_STEPS and now < self._ends:
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    async def beside(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, for work that cannot pause: a thread does it, one for all of it."""
        async with self._thread:
            return await asyncio.to_thread(work)

    async def decoded(self, kind: type[BodyT], data: bytes) -> BodyT:
        """Return a body that was received, a long one read by the thread; raises DecodeError."""
        return kind.decode(data) if len(data) <= AT_ONCE_BYTES else await self.beside(partial(kind.decode, data))

    def one_of_few(self, handler: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Return a handler that waits while ``_FEW`` of these are at work, as each has a large answer in its hands."""

        @wraps(handler)
        async def handle(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self._few:
                return await handler(*args, **kwargs)

        return handle

    def _turn_over(self) -> None:
        self._steps = 0
        self._turn_ends_soon = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else who waited was cancelled
                turn.set_result(None)
                break
        if self._waiting:
            self._turn_ends_soon = True
            asyncio.get_running_loop().call_soon(self._turn_over)
