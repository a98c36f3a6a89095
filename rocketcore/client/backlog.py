"""What the accumulator's batches wait in and for: backlogs of queues, and what is in flight at each broker.

Both belong to its loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

from rocketcore.client.future import Batch
from rocketcore.errors import RocketError
from rocketcore.message import MessageQueue

__all__ = ["Backlog", "InFlight"]

IN_FLIGHT: Final = 8
"""Batches that one broker may owe an answer to at a time."""


class Backlog:
    """Batches that wait for their turn: those of one queue, one after the other; those of a topic, side by side.

    key      the queue; the topic, for messages whose queues take turns; None for messages whose queue is not known yet
    lookup  asks for the topic's route while that is wanted
    failure  what asking for the route failed with last
    """

    __slots__ = ("failure", "key", "lookup", "queue", "topic", "under_way", "waiting")

    def __init__(self, topic: str, key: str | MessageQueue | None) -> None:
        self.topic = topic
        self.key = key
        self.queue = key if isinstance(key, MessageQueue) else None
        self.waiting: deque[Batch] = deque()
        self.under_way = 0
        self.lookup: asyncio.Task[None] | None = None
        self.failure: RocketError | None = None


class InFlight:
    """How many batches each broker has not answered, by address, and which backlogs wait for one that it answers.

    full  addresses of brokers that have enough to do
    """

    __slots__ = ("_backlogs", "_under_way", "full")

    def __init__(self) -> None:
        self.full: set[str] = set()
        self._under_way: dict[str, int] = {}
        self._backlogs: dict[str, dict[Backlog, None]] = {}

    def idle(self, address: str) -> bool:
        """Say whether a broker has nothing of ours to do."""
        return address not in self._under_way

    def enter(self, address: str) -> None:
        """Count a batch that is sent to a broker."""
        count = self._under_way[address] = self._under_way.get(address, 0) + 1
        if count >= IN_FLIGHT:
            self.full.add(address)

    def leave(self, address: str) -> None:
        """Count a batch that was answered."""
        count = self._under_way[address] - 1
        self.full.discard(address)
        if count:
            self._under_way[address] = count
        else:
            del self._under_way[address]

    def wait(self, backlog: Backlog, addresses: Iterable[str]) -> bool:
        """Have a backlog wait for the full ones of some brokers; False where none of them is full."""
        full = self.full.intersection(addresses)
        for address in full:
            self._backlogs.setdefault(address, {})[backlog] = None
        return bool(full)

    def next_backlog(self, address: str) -> Backlog | None:
        """Return the backlog that has waited longest for a broker, if that has room now."""
        backlogs = self._backlogs.get(address)
        if not backlogs or address in self.full:
            return None
        backlog = next(iter(backlogs))
        del backlogs[backlog]
        if not backlogs:
            del self._backlogs[address]
        return backlog
