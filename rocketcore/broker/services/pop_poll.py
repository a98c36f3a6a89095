"""POPs that found nothing and wait for a message, and who asked to be told of one (Java: ``PopLongPollingService``).

A message wakes one of those of a group that it is for, the one that has waited longest: only one can have it. One that
finds nothing after all, since another was faster, waits on. The topics by which messages come again wake as well.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rocketcore.broker.selection import Selection
from rocketcore.broker.services.held import HeldRequests
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.pop_info import RETRY_V1, RETRY_V2, pop_retry_topic
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.transport import exchange
from rocketcore.transport.channel import Channel

__all__ = ["CAPACITY", "PER_GROUP", "PER_TOPIC", "HeldPop", "Look", "PopPoll"]

CAPACITY = 100_000
PER_TOPIC = 10_000
"""Each message of a topic looks at those who wait for it."""
STOP_SECONDS = 1.0
PER_GROUP = 1024
"""Of one group for one topic (Java: ``popPollingSize``, which counts by queue)."""


@dataclass(slots=True, eq=False)
class HeldPop:
    """Who waits for a message of a topic for a group, in which queue (below 0: any), for which of its messages.

    text_length  characters of the texts of the header that says so
    again        looks again and returns the answer, None where it is held once more
    """

    channel: Channel
    request: RemotingCommand
    key: tuple[str, str]
    queue_id: int
    wanted: Selection
    text_length: int
    deadline: float
    again: Callable[[], Coroutine[Any, Any, RemotingCommand | None]]


class Look:
    """A request at work on what may come meanwhile; ``missed``: something came, perhaps to where it had looked."""

    __slots__ = ("missed",)

    def __init__(self) -> None:
        self.missed = False


class PopPoll(HeldRequests[HeldPop]):
    """Held by topic and group. What is woken looks again in a task of its own; the last time at its deadline."""

    def __init__(self, *, capacity: int = CAPACITY, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__("broker-pop-poll", self._look_again, capacity=capacity, per_key=PER_GROUP, clock=clock)
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_topic: Counter[str] = Counter()
        """How many wait for a topic."""
        self._listening: dict[str, dict[tuple[str, str], None]] = {}
        """Stored topic → what waits for its messages."""
        self._looks: dict[str, set[Look]] = {}
        """Stored topic → who looks for its messages now, until one comes."""

    async def stop(self) -> None:
        self._stopped = True
        await super().stop()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
            for task in left:  # of connections that do not take their answers
                task.cancel()

    def hold(self, held: HeldPop) -> bool:
        if self._stopped or self._of_topic[held.key[0]] >= PER_TOPIC or not super().hold(held):
            return False
        self._of_topic[held.key[0]] += 1
        for topic in _topics(held.key):
            self._listening.setdefault(topic, {})[held.key] = None
        return True

    @contextmanager
    def look(self, key: tuple[str, str]) -> Iterator[Look]:
        """Hear of what comes for a topic and group while a request looks at queue after queue."""
        look = Look()
        topics = _topics(key)
        for topic in topics:
            self._looks.setdefault(topic, set()).add(look)
        try:
            yield look
        finally:
            for topic in topics:
                looks = self._looks.get(topic)
                if looks is not None:
                    looks.discard(look)
                    if not looks:
                        del self._looks[topic]

    def _look_again(self, held: HeldPop) -> None:
        if not held.channel.closed:
            task = asyncio.create_task(self._answer(held), name="broker-pop")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _answer(held: HeldPop) -> None:
        channel, request = held.channel, held.request
        try:
            await channel.turn()
            response = None if channel.closed else await held.again()
        except Exception as error:
            response = exchange.failure(request, error, "broker", channel.remote_address)
        if response is not None and not channel.closed and not request.is_oneway:
            channel.send(response)

    def waiting(self, key: tuple[str, str], queue_id: int) -> int:
        """How many wait with this queue id."""
        return sum(1 for held in self._held.get(key, ()) if held.queue_id == queue_id)

    def message_arrived(self, topic: str, queue_id: int, tags_code: int | None) -> None:
        """Wake one of each group that a new message is for; called once per readable message.

        tags_code  None: whatever its tags are
        """
        if self._looks:
            self._miss(topic)
        listening = self._listening.get(topic)
        if listening is None:
            return
        for key in list(listening):
            comes_again = topic != key[0]
            for held in self._held[key]:
                if comes_again or (
                    (held.queue_id < 0 or held.queue_id == queue_id)
                    and (tags_code is None or held.wanted.takes_code(tags_code))
                ):
                    self._wake([held])
                    break

    def offset_reset(self, topic: str, group: str) -> None:
        """Wake all of a group that wait for a topic: there may be messages for each of them."""
        self._miss(topic)
        self._wake(list(self._held.get((topic, group), ())))

    def _miss(self, topic: str) -> None:
        for look in self._looks.pop(topic, ()):
            look.missed = True

    def _forget(self, held: HeldPop) -> None:
        super()._forget(held)
        self._of_topic[held.key[0]] -= 1
        if held.key not in self._held:
            if not self._of_topic[held.key[0]]:
                del self._of_topic[held.key[0]]
            for topic in _topics(held.key):
                keys = self._listening[topic]
                del keys[held.key]
                if not keys:
                    del self._listening[topic]


def _topics(key: tuple[str, str]) -> tuple[str, str, str]:
    """The stored topics whose messages are for a topic and a group."""
    topic, group = key
    return topic, pop_retry_topic(topic, group, RETRY_V1), pop_retry_topic(topic, group, RETRY_V2)
