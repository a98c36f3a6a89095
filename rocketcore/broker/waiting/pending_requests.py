"""Requests that are answered later: by key, by connection and by deadline; what ends one is for who holds it.

One message may be for thousands: they are resumed a millisecond at a time, and none whose connection does not take the
answers that it has.

A held request ends when it is woken, when its time is over, or with its connection. A tick looks at those whose second
has come, not at all that are held.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from rocketcore.protocol.command import RemotingCommand
from rocketcore.service import SYSTEM_CLOCK, Clock, PeriodicTask
from rocketcore.transport.channel import Channel

__all__ = ["LONGEST_SECONDS", "PER_CONNECTION", "TICK_SECONDS", "PendingRequests"]

TICK_SECONDS = 1.0
LONGEST_SECONDS = 3600.0
"""What is held ends, whatever time was asked for: clients ask for 20 s or so, and then again."""
PER_CONNECTION = 1024
"""Requests that one connection may hold. A client holds one for each queue that it reads."""
TURN_SECONDS = 0.001
UNREAD_SECONDS = 0.05
MOST_TEXT = 64 << 20
"""Characters of the headers of all that is held, a quarter of them of one connection: each may have 256 Ki."""


class _Held(Hashable, Protocol):
    """Who asked for what, what it waits for, until when (monotonic). Of the request only the head is kept."""

    channel: Channel
    request: RemotingCommand
    deadline: float

    @property
    def key(self) -> tuple[str, Hashable]: ...

    @property
    def text_length(self) -> int: ...


PendingT = TypeVar("PendingT", bound=_Held)


class PendingRequests(Generic[PendingT]):
    """Loop thread only. ``resume`` takes a request up again; it is called on the event loop.

    capacity  requests held at most, ``PER_CONNECTION`` of them by one connection, ``per_key`` of them for one key;
              ``MOST_TEXT`` characters of their headers at most
    """

    def __init__(
        self,
        name: str,
        resume: Callable[[PendingT], None],
        *,
        capacity: int = 100_000,
        per_key: int = 100_000,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._capacity = capacity
        self._per_key = per_key
        self._count = 0
        self._text = 0
        self._resume = resume
        self._clock = clock
        self._held: dict[tuple[str, Hashable], dict[PendingT, None]] = {}
        # By the second of their deadline: each ends at a tick of that second or the next.
        self._due: dict[int, dict[PendingT, None]] = {}
        self._by_channel: dict[Channel, set[PendingT]] = {}
        self._ready: deque[PendingT] = deque()
        self._runs_soon = False
        self._unread: dict[Channel, list[PendingT]] = {}
        """What is ready, of connections that do not take their answers: each is looked at again when they do."""
        self._tries_unread = False
        self._task = PeriodicTask(name, self.tick, TICK_SECONDS)

    def __len__(self) -> int:
        return self._count

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        """Stop the timer and answer every held request, so that no client waits for a broker that is gone."""
        await self._task.stop()
        self._wake([each for held in list(self._held.values()) for each in held])
        while self._ready:
            self._run_ready()
        self._unread.clear()

    def hold(self, held: PendingT) -> bool:
        """Keep a request, for ``LONGEST_SECONDS`` at most.

        Call it in the turn of the loop that executed the request, so that no arrival falls between.

        returns  False, and not kept: its connection closed, or too many are held already: in all, by its connection,
                 for its key
        """
        if held.channel.closed:
            return False  # nobody would tell of that again
        held.deadline = min(held.deadline, self._clock.monotonic() + LONGEST_SECONDS)
        key = held.key
        mine = self._by_channel.setdefault(held.channel, set())
        others = self._held.setdefault(key, {})
        if (
            self._count >= self._capacity
            or len(mine) >= PER_CONNECTION
            or len(others) >= self._per_key
            or not self._has_room_for(held.text_length, mine)
        ):
            if not mine:
                del self._by_channel[held.channel]
            if not others:
                del self._held[key]
            return False
        request = held.request
        request.drop()
        request.remark = request.ext_fields = None  # which an unusual header had made
        self._count += 1
        self._text += held.text_length
        mine.add(held)
        others[held] = None
        self._due.setdefault(int(held.deadline), {})[held] = None
        return True

    def _has_room_for(self, text_length: int, mine: set[PendingT]) -> bool:
        if self._text + text_length <= MOST_TEXT // 4:
            return True  # as it nearly always is
        of_connection = sum(each.text_length for each in mine)
        return self._text + text_length <= MOST_TEXT and of_connection + text_length <= MOST_TEXT // 4

    def tick(self) -> None:
        """End what is over time."""
        now = self._clock.monotonic()
        over = [each for second in sorted(self._due) if second <= now for each in self._due[second]]
        self._wake([each for each in over if each.deadline <= now])

    def channel_closed(self, channel: Channel) -> None:
        """Drop the requests of a connection that is gone."""
        for held in self._by_channel.pop(channel, ()):
            self._forget(held)
        self._unread.pop(channel, None)

    def _wake(self, woken: list[PendingT]) -> None:
        """Take requests out and resume them at the end of this turn, when all messages of one dispatch are readable."""
        if not woken:
            return
        self._run_soon()
        self._take_out(woken)
        self._ready += woken

    def _run_soon(self) -> None:
        if not self._runs_soon:
            self._runs_soon = True
            asyncio.get_running_loop().call_soon(self._run_ready)

    def _run_ready(self) -> None:
        """Resume what is ready, for a millisecond in a turn of the loop, and while its connection takes answers."""
        self._runs_soon = False
        monotonic = self._clock.monotonic
        ends = monotonic() + TURN_SECONDS
        while self._ready:
            held = self._ready.popleft()
            if held.channel.write_paused:
                self._unread.setdefault(held.channel, []).append(held)
                self._try_unread_soon()
                continue
            self._resume(held)
            if self._ready and monotonic() >= ends:
                self._run_soon()
                return

    def _try_unread_soon(self) -> None:
        if not self._tries_unread:
            self._tries_unread = True
            asyncio.get_running_loop().call_later(UNREAD_SECONDS, self._try_unread)

    def _try_unread(self) -> None:
        self._tries_unread = False
        for channel in [channel for channel in self._unread if not channel.write_paused]:
            self._ready += self._unread.pop(channel)
            self._run_soon()
        if self._unread:
            self._try_unread_soon()

    def _take_out(self, woken: list[PendingT]) -> None:
        for held in woken:
            self._forget(held)
            mine = self._by_channel.get(held.channel)
            if mine is not None:
                mine.discard(held)
                if not mine:
                    del self._by_channel[held.channel]

    def _forget(self, held: PendingT) -> None:
        key = held.key
        others, due = self._held[key], self._due[int(held.deadline)]
        del others[held], due[held]
        self._count -= 1
        self._text -= held.text_length
        if not others:
            del self._held[key]
        if not due:
            del self._due[int(held.deadline)]
