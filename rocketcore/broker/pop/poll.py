"""POPs that found nothing and wait for a message, and who asked to be told of one (Java: ``PopLongPollingService``).

A message wakes one POP of those of a group that it is for, the one that has waited longest: only one can have it. One
that finds nothing after all, since another was faster, waits on. The topics by which messages come again wake as well.
Where the connection of the one that was woken closes before it has looked, or it may not look any more, the next is
woken in its place. Of those who asked to be told one is told, too: whether it pops then nobody knows.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from rocketcore.broker.selection import Selection
from rocketcore.broker.waiting.pending_requests import PendingRequests
from rocketcore.codes import ResponseCode
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.pop_info import RETRY_V1, RETRY_V2, pop_retry_topic
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.transport import exchange
from rocketcore.transport.channel import Channel

__all__ = ["CAPACITY", "PER_GROUP", "PER_TOPIC", "Look", "PendingPop", "PopPoll", "Wanted"]

CAPACITY = 100_000
PER_TOPIC = 10_000
"""Each message of a topic looks at those who wait for it."""
STOP_SECONDS = 1.0
_REFUSED = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
    }
)
"""Codes of answers to who may not look."""
_Key: TypeAlias = tuple[str, tuple[str, bool]]
"""Topic, group, whether it is to be told only."""
PER_GROUP = 1024
"""Of one group for one topic (Java: ``popPollingSize``, which counts by queue)."""
WOKEN_AT_ONCE = 100
"""Where nobody knows who of all that wait may have something: each look is work."""


class Wanted(NamedTuple):
    """What a POP is for: which messages of a topic for a group, in which queue (below 0: any).

    key      topic and group
    ordered  what comes again by other topics is none of it
    """

    key: tuple[str, str]
    queue_id: int
    selection: Selection
    ordered: bool = False

    def takes(self, topic: str, queue_id: int, tags_code: int | None) -> bool:
        """Whether a message may be for it, in a stored topic that is one of its; ``tags_code`` None: whatever it is."""
        if topic != self.key[0]:
            return not self.ordered
        return (self.queue_id < 0 or self.queue_id == queue_id) and (
            tags_code is None or self.selection.takes_code(tags_code)
        )


class Came(NamedTuple):
    """What there may be to take: something in a queue of a stored topic.

    tags_code  of the message; None: whatever it is
    in_order   only POPs in order may go on
    """

    topic: str
    queue_id: int
    tags_code: int | None = None
    in_order: bool = False

    def is_for(self, wanted: Wanted) -> bool:
        return wanted.takes(self.topic, self.queue_id, self.tags_code) and (wanted.ordered or not self.in_order)


@dataclass(slots=True, eq=False)
class PendingPop:
    """Who waits for what.

    text_length  characters of the texts of the header that says so
    again        looks again and returns the answer, None where it is held once more; it is given the deadline
    is_told      it takes nothing, and wants to be told of a message only
    woken_by     what woke it
    """

    channel: Channel
    request: RemotingCommand
    wanted: Wanted
    text_length: int
    deadline: float
    again: Callable[[float], Coroutine[Any, Any, RemotingCommand | None]]
    is_told: bool = False
    woken_by: Came | None = None

    @property
    def key(self) -> _Key:
        topic, group = self.wanted.key
        return topic, (group, self.is_told)


class Look:
    """A request at work, which may have looked at a place already when something comes there.

    missed    stored topic and queue id of what came for it
    anywhere  there may be something at every place
    """

    __slots__ = ("anywhere", "missed", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.missed: set[tuple[str, int]] = set()
        self.anywhere = False


class PopPoll(PendingRequests[PendingPop]):
    """Held by topic and group. What is woken looks again in a task of its own; the last time at its deadline."""

    def __init__(self, *, capacity: int = CAPACITY, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__("broker-pop-poll", self._look_again, capacity=capacity, per_key=PER_GROUP, clock=clock)
        self._stopped = False
        self._in_turn: deque[PendingPop] = deque()
        """Who waited when there was no room of any queue, and has not looked since."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_topic: Counter[str] = Counter()
        """How many wait for a topic."""
        self._listening: dict[str, dict[_Key, None]] = {}
        """Stored topic → what waits for its messages."""
        self._looks: dict[str, set[Look]] = {}
        """Stored topic → who looks for its messages now."""

    async def stop(self) -> None:
        self._stopped = True
        await super().stop()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
            for task in left:  # of connections that do not take their answers
                task.cancel()

    def hold(self, held: PendingPop) -> bool:
        if self._stopped or self._of_topic[held.key[0]] >= PER_TOPIC or not super().hold(held):
            return False
        self._of_topic[held.key[0]] += 1
        for topic in _topics(held.wanted.key):
            self._listening.setdefault(topic, {})[held.key] = None
        return True

    @contextmanager
    def look(self, wanted: Wanted) -> Iterator[Look]:
        """Hear of what comes while a request looks at place after place."""
        look = Look(wanted)
        topics = _topics(wanted.key)
        for topic in topics:
            self._looks.setdefault(topic, set()).add(look)
        try:
            yield look
        finally:
            for topic in topics:
                looks = self._looks[topic]
                looks.discard(look)
                if not looks:
                    del self._looks[topic]

    def channel_closed(self, channel: Channel) -> None:
        unread = self._unread.get(channel, ())
        super().channel_closed(channel)
        for held in unread:
            self._pass_on(held)

    def _pass_on(self, held: PendingPop) -> None:
        """Wake another for what woke one that could not look."""
        if held.woken_by is not None:
            self._wake_one(held.key, held.woken_by)

    def _look_again(self, held: PendingPop) -> None:
        if held.channel.closed:
            self._pass_on(held)
            return
        task = asyncio.create_task(self._answer(held), name="broker-pop")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, held: PendingPop) -> None:
        channel, request = held.channel, held.request
        try:
            await channel.turn()
            response = None if channel.closed else await held.again(held.deadline)
        except Exception as error:
            response = exchange.failure(request, error, "broker", channel.remote_address)
        if channel.closed or (response is not None and response.code in _REFUSED):
            self._pass_on(held)
        if response is not None and not channel.closed and not request.is_oneway:
            channel.send(response)

    def waiting(self, topic: str, group: str, queue_id: int) -> int:
        """How many POPs wait with this queue id."""
        return sum(1 for held in self._held.get((topic, (group, False)), ()) if held.wanted.queue_id == queue_id)

    def message_arrived(self, topic: str, queue_id: int, tags_code: int | None) -> None:
        """Wake one of each group that a new message is for; called once per readable message.

        tags_code  None: whatever its tags are
        """
        if topic not in self._looks and topic not in self._listening:
            return  # as of most topics
        came = Came(topic, queue_id, tags_code)
        self._missed(came)
        for key in list(self._listening.get(topic, ())):
            self._wake_one(key, came)

    def freed(self, topic: str, group: str, queue_id: int) -> None:
        """Wake a POP in order of a group: its queue may give something again."""
        self._came_again(Came(topic, queue_id, in_order=True), group)

    def has_room(self, topic: str, group: str, queue_id: int) -> None:
        """Wake a POP of a group: a queue that had handed out as much as it may gives something again."""
        self._came_again(Came(topic, queue_id), group)

    def has_any_room(self, was_full: bool) -> bool:
        """Wake some of those who waited for room of any queue, until all had their turn; called again and again.

        was_full  others may wait for it by now
        returns   whether that is taken note of: those who waited before come first
        """
        begins = was_full and not self._in_turn
        if begins:
            self._in_turn.extend(held for of_key in self._held.values() for held in of_key if not held.is_told)
            for looks in self._looks.values():
                for look in looks:
                    look.anywhere = True
        some = [self._in_turn.popleft() for _ in range(min(WOKEN_AT_ONCE, len(self._in_turn)))]
        self._wake([held for held in some if held in self._held.get(held.key, ())])
        return begins

    def more(self, topic: str, group: str, queue_id: int) -> None:
        """Have requests of a group that are at work look at a queue again: one of them did not get to its end."""
        self._missed(Came(topic, queue_id), group)

    def _came_again(self, came: Came, group: str) -> None:
        self._missed(came, group)
        for key in list(self._listening.get(came.topic, ())):
            if key[1][0] == group:
                self._wake_one(key, came)

    def _missed(self, came: Came, group: str | None = None) -> None:
        for look in self._looks.get(came.topic, ()):
            if group in (None, look.wanted.key[1]) and came.is_for(look.wanted):
                look.missed.add((came.topic, came.queue_id))

    def _wake_one(self, key: _Key, came: Came) -> None:
        for held in self._held.get(key, ()):
            if came.is_for(held.wanted):
                held.woken_by = came
                self._wake([held])
                return

    def offset_reset(self, topic: str, group: str) -> None:
        """Wake all of a group that wait for a topic: there may be messages for each of them."""
        self._look_anywhere(topic, group)

    def topic_changed(self, topic: str) -> None:
        """Wake all who wait for a topic: it may have other queues, or may be read now."""
        self._look_anywhere(topic)

    def _look_anywhere(self, topic: str, group: str | None = None) -> None:
        for look in self._looks.get(topic, ()):
            if group in (None, look.wanted.key[1]) and look.wanted.key[0] == topic:
                look.anywhere = True
        for key in list(self._listening.get(topic, ())):
            if group in (None, key[1][0]) and key[0] == topic:
                self._wake(list(self._held.get(key, ())))

    def _forget(self, held: PendingPop) -> None:
        super()._forget(held)
        self._of_topic[held.key[0]] -= 1
        if held.key not in self._held:
            if not self._of_topic[held.key[0]]:
                del self._of_topic[held.key[0]]
            for topic in _topics(held.wanted.key):
                keys = self._listening[topic]
                del keys[held.key]
                if not keys:
                    del self._listening[topic]


def _topics(key: tuple[str, str]) -> tuple[str, str, str]:
    """The stored topics whose messages are for a topic and a group."""
    topic, group = key
    return topic, pop_retry_topic(topic, group, RETRY_V1), pop_retry_topic(topic, group, RETRY_V2)
