"""Pulls that found nothing and wait for a message (Java: ``PullRequestHoldService``, 5.5.0).

A held pull ends when a message that its filter lets through becomes readable, when its time is over, or, every few
seconds, when messages came that its filter does not let through: the answer then moves the client past them.

Tags are told with each message. For a filter by properties the new messages of a turn are read together at its end.

A tick looks at the pulls whose second has come and at the queues that got messages which some pull did not want, not at
all that are held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import PullMessageRequestHeader
from rocketcore.service import SYSTEM_CLOCK, Clock, PeriodicTask
from rocketcore.transport.channel import Channel

TICK_SECONDS = 1.0
PER_CONNECTION = 1024
"""Pulls that one connection may hold. A client holds one for each queue that it reads."""

_TICKS_PER_SCAN = 5


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits: who asked for what, which tag codes it wants (None: all), until when (monotonic).

    search    for a filter by properties: looks at the messages from a queue offset on, and returns the offset to look
              from next, or None where the pull has to be executed
    searched  queue offset up to which nothing is for the pull

    Of the request only the head is kept, not the bytes that it came with.
    """

    channel: Channel
    request: RemotingCommand
    header: PullMessageRequestHeader
    tag_codes: frozenset[int] | None
    deadline: float
    search: Callable[[int], int | None] | None = None
    searched: int = 0


class LongPoll:
    """Held pulls by queue. ``resume`` executes a pull again, for the last time; it is called on the event loop.

    max_offset  (topic, queue_id) → next offset to be written
    capacity    pulls held at most, ``PER_CONNECTION`` of them by one connection
    """

    def __init__(
        self,
        resume: Callable[[HeldPull], None],
        max_offset: Callable[[str, int], int],
        *,
        capacity: int = 100_000,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._capacity = capacity
        self._count = 0
        self._resume = resume
        self._max_offset = max_offset
        self._clock = clock
        self._held: dict[tuple[str, int], dict[HeldPull, None]] = {}
        # By the second of their deadline: each ends at a tick of that second or the next.
        self._due: dict[int, dict[HeldPull, None]] = {}
        self._passed_by: set[tuple[str, int]] = set()
        self._by_channel: dict[Channel, set[HeldPull]] = {}
        self._ready: list[HeldPull] = []
        self._to_search: dict[HeldPull, None] = {}
        self._ticks = 0
        self._task = PeriodicTask("broker-long-poll", self.tick, TICK_SECONDS)

    def __len__(self) -> int:
        return self._count

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        """Stop the timer and answer every held pull, so that no client waits for a broker that is gone."""
        await self._task.stop()
        self._wake([pull for held in list(self._held.values()) for pull in held])
        self._run_ready()

    def hold(self, pull: HeldPull) -> bool:
        """Keep a pull; False, and not kept, where too many are held already, in all or by its connection.

        Call it in the turn of the loop that executed the pull, so that no arrival falls between.
        """
        mine = self._by_channel.setdefault(pull.channel, set())
        if self._count >= self._capacity or len(mine) >= PER_CONNECTION:
            if not mine:
                del self._by_channel[pull.channel]
            return False
        pull.request.drop()
        self._count += 1
        mine.add(pull)
        self._held.setdefault((pull.header.topic, pull.header.queue_id), {})[pull] = None
        self._due.setdefault(int(pull.deadline), {})[pull] = None
        return True

    def message_arrived(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        """Wake the pulls of a queue that a new message is for; called once per readable message."""
        held = self._held.get((topic, queue_id))
        if held is None:
            return
        matching = []
        for pull in held:
            if pull.header.queue_offset >= max_offset or (
                pull.tag_codes is not None and tags_code not in pull.tag_codes
            ):
                continue
            if pull.search is None:
                matching.append(pull)
            else:
                self._run_soon()
                self._to_search[pull] = None
        if len(matching) < len(held):
            self._passed_by.add((topic, queue_id))
        if matching:
            self._wake(matching)

    def tick(self) -> None:
        """End what is over time; every fifth call also what has unwanted messages before it."""
        now = self._clock.monotonic()
        over = [pull for second in sorted(self._due) if second <= now for pull in self._due[second]]
        self._wake([pull for pull in over if pull.deadline <= now])
        self._ticks += 1
        if self._ticks % _TICKS_PER_SCAN == 0:
            passed_by, self._passed_by = self._passed_by, set()
            for key in passed_by:
                newest = self._max_offset(*key)
                self._wake([pull for pull in self._held.get(key, ()) if pull.header.queue_offset < newest])

    def channel_closed(self, channel: Channel) -> None:
        """Drop the pulls of a connection that is gone."""
        for pull in self._by_channel.pop(channel, ()):
            self._forget(pull)

    def _wake(self, pulls: list[HeldPull]) -> None:
        """Take pulls out and execute them at the end of this turn, when all messages of one dispatch are readable."""
        if not pulls:
            return
        self._run_soon()
        self._take_out(pulls)
        self._ready += pulls

    def _run_soon(self) -> None:
        if not self._ready and not self._to_search:
            asyncio.get_running_loop().call_soon(self._run_ready)

    def _take_out(self, pulls: list[HeldPull]) -> None:
        for pull in pulls:
            self._forget(pull)
            mine = self._by_channel.get(pull.channel)
            if mine is not None:
                mine.discard(pull)
                if not mine:
                    del self._by_channel[pull.channel]

    def _run_ready(self) -> None:
        ready, self._ready = self._ready, []
        to_search, self._to_search = self._to_search, {}
        found = [pull for pull in to_search if self._is_held(pull) and self._finds(pull)]
        self._take_out(found)
        for pull in ready + found:
            self._resume(pull)

    def _is_held(self, pull: HeldPull) -> bool:
        return pull in self._held.get((pull.header.topic, pull.header.queue_id), ())

    @staticmethod
    def _finds(pull: HeldPull) -> bool:
        """Whether a pull by properties has to be executed."""
        assert pull.search is not None
        offset = pull.search(max(pull.searched, pull.header.queue_offset))
        if offset is None:
            return True
        pull.searched = offset
        return False

    def _forget(self, pull: HeldPull) -> None:
        key = (pull.header.topic, pull.header.queue_id)
        held, due = self._held[key], self._due[int(pull.deadline)]
        del held[pull], due[pull]
        self._count -= 1
        if not held:
            del self._held[key]
        if not due:
            del self._due[int(pull.deadline)]
