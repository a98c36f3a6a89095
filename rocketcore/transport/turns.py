"""Which requests begin in a turn of the loop, of those whose handlers are coroutines.

A read may bring hundreds of them, and each may take milliseconds before it waits for anything: those of half a
millisecond begin in a turn, the others in later ones, in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["Turns"]

_TURN_SECONDS: Final = 0.0005
_MOST_AT_ONCE: Final = 16


class Turns:
    """Loop thread only."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._began = 0.0
        self._is_open = False
        self._at_once = 1
        """How many of those that wait begin in the next turn: more while they are quick."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    def has_room(self) -> bool:
        """Whether one more may begin in this turn, and before nobody who came earlier."""
        if self._waiting:
            return False
        now = self._monotonic()
        if not self._is_open:
            self._open(now)
        return now - self._began < _TURN_SECONDS

    async def wait(self) -> None:
        """Wait for a turn."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if not self._is_open:
            self._open(self._monotonic())
        await turn

    def _open(self, now: float) -> None:
        self._is_open = True
        self._began = now
        asyncio.get_running_loop().call_soon(self._over)

    def _over(self) -> None:
        self._is_open = False
        if not self._waiting:
            return
        now = self._monotonic()
        quick = now - self._began < _TURN_SECONDS
        self._at_once = min(2 * self._at_once, _MOST_AT_ONCE) if quick else 1
        begun = 0
        while self._waiting and begun < self._at_once:
            turn = self._waiting.popleft()
            if not turn.done():  # else who waited was cancelled
                turn.set_result(None)
                begun += 1
        self._open(now)
