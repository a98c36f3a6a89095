"""What the accumulator's batches wait in and for: lanes of queues, windows of brokers. Both belong to its loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

from rocketcore.client.future import Batch
from rocketcore.errors import RocketError
from rocketcore.message import MessageQueue

__all__ = ["Lane", "Windows"]

IN_FLIGHT: Final = 8
"""Batches that one broker may owe an answer to at a time."""


class Lane:
    """Batches that wait for their turn: those of one queue, one after the other; those of a topic, side by side.

    key      the queue; the topic, for messages whose queues take turns; None for messages whose queue is not known yet
    looking  asks for the topic's route while that is wanted
    failure  what asking for the route failed with last
    """

    __slots__ = ("failure", "key", "looking", "queue", "topic", "under_way", "waiting")

    def __init__(self, topic: str, key: str | MessageQueue | None) -> None:
        self.topic = topic
        self.key = key
        self.queue = key if isinstance(key, MessageQueue) else None
        self.waiting: deque[Batch] = deque()
        self.under_way = 0
        self.looking: asyncio.Task[None] | None = None
        self.failure: RocketError | None = None


class Windows:
    """How many batches each broker has not answered, by address, and which lanes wait for one that it answers.

    full  addresses of brokers that have enough to do
    """

    __slots__ = ("_lanes", "_under_way", "full")

    def __init__(self) -> None:
        self.full: set[str] = set()
        self._under_way: dict[str, int] = {}
        self._lanes: dict[str, dict[Lane, None]] = {}

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

    def wait(self, lane: Lane, addresses: Iterable[str]) -> bool:
        """Have a lane wait for the full ones of some brokers; False where none of them is full."""
        full = self.full.intersection(addresses)
        for address in full:
            self._lanes.setdefault(address, {})[lane] = None
        return bool(full)

    def next_lane(self, address: str) -> Lane | None:
        """Return the lane that has waited longest for a broker, if that has room now."""
        lanes = self._lanes.get(address)
        if not lanes or address in self.full:
            return None
        lane = next(iter(lanes))
        del lanes[lane]
        if not lanes:
            del self._lanes[address]
        return lane
