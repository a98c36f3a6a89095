"""Pulls that found nothing and wait for a message (Java: ``PullRequestHoldService``, 5.5.0).

A held pull ends when a message that its filter lets through becomes readable, when its group's offset is reset, when
its topic is deleted, when its time is over, or, every few seconds, when messages came that its filter does not let
through: the answer then moves the client past them.

Tags are told with each message. For a filter by properties the new messages of a turn are read together at its end.

A tick looks at the pulls whose second has come and at the queues that got messages which some pull did not want, not at
all that are held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rocketcore.broker.selection import Selection
from rocketcore.broker.waiting.pending_requests import PER_CONNECTION, TICK_SECONDS, PendingRequests
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import PullMessageRequestHeader
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.transport.channel import Channel

__all__ = ["PER_CONNECTION", "PER_QUEUE", "TICK_SECONDS", "LongPoll", "PendingPull"]

PER_QUEUE = 10_000
"""Each message of a queue looks at the pulls that wait there."""
_TICKS_PER_SCAN = 5


@dataclass(slots=True, eq=False)
class PendingPull:
    """A pull that waits: who asked for what, what of it is wanted, until when (monotonic).

    search    for a filter by properties: looks at the messages from a queue offset on, and returns the offset to look
              from next, or None where the pull has to be executed
    searched  queue offset up to which nothing is for the pull
    """

    channel: Channel
    request: RemotingCommand
    header: PullMessageRequestHeader
    wanted: Selection
    deadline: float
    search: Callable[[int], int | None] | None = None
    searched: int = 0
    key: tuple[str, int] = field(init=False)
    text_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.key = (self.header.topic, self.header.queue_id)
        self.text_length = self.header.text_length


class LongPoll(PendingRequests[PendingPull]):
    """Held pulls by queue. ``resume`` executes a pull again, for the last time.

    max_offset  (topic, queue_id) → next offset to be written
    """

    def __init__(
        self,
        resume: Callable[[PendingPull], None],
        max_offset: Callable[[str, int], int],
        *,
        capacity: int = 100_000,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__("broker-long-poll", resume, capacity=capacity, per_key=PER_QUEUE, clock=clock)
        self._max_offset = max_offset
        self._passed_by: set[tuple[str, int]] = set()
        self._to_search: dict[PendingPull, None] = {}
        self._ticks = 0

    def message_arrived(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        """Wake the pulls of a queue that a new message is for; called once per readable message."""
        held = self._held.get((topic, queue_id))
        if held is None:
            return
        matching = []
        for pull in held:
            if pull.header.queue_offset >= max_offset or not pull.wanted.takes_code(tags_code):
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

    def offset_reset(self, topic: str, group: str, queue_id: int) -> None:
        """Wake the pulls of a group, which is to go on elsewhere in a queue."""
        held = self._held.get((topic, queue_id), ())
        self._wake([pull for pull in held if pull.header.consumer_group == group])

    def topics_deleted(self, is_there: Callable[[str], object]) -> None:
        """Wake the pulls of topics that are not there any more: one that is made again begins with other messages."""
        gone = {topic for topic, _ in self._held if is_there(topic) is None}
        self._wake([pull for key, held in self._held.items() if key[0] in gone for pull in held])

    def tick(self) -> None:
        """End what is over time; every fifth call also what has unwanted messages before it."""
        super().tick()
        self._ticks += 1
        if self._ticks % _TICKS_PER_SCAN == 0:
            passed_by, self._passed_by = self._passed_by, set()
            for key in passed_by:
                newest = self._max_offset(*key)
                self._wake([pull for pull in self._held.get(key, ()) if pull.header.queue_offset < newest])

    def _run_ready(self) -> None:
        to_search, self._to_search = self._to_search, {}
        found = [pull for pull in to_search if pull in self._held.get(pull.key, ()) and self._finds(pull)]
        self._take_out(found)
        self._ready += found
        super()._run_ready()

    @staticmethod
    def _finds(pull: PendingPull) -> bool:
        """Whether a pull by properties has to be executed."""
        assert pull.search is not None
        offset = pull.search(max(pull.searched, pull.header.queue_offset))
        if offset is None:
            return True
        pull.searched = offset
        return False
