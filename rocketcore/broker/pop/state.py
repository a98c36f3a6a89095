"""What groups popped and have not acknowledged, by queue: values only, changed by entries of a journal.

entry     a list, kind first, as the journal of ``pop/journal.py`` keeps it:

          pop     topic group queue_id  start [offset…] next pop_time invisible    messages were handed out
          order   topic group queue_id  [offset…] [count…] next pop_time invisible attempt_id   the same, in order
          ack     topic group queue_id  [offset…]                        they are done
          hide    topic group queue_id  offset pop_time invisible suspended    one is invisible for another while
          revive  topic group queue_id  offset retry_topic retry_queue retry_offset    one goes to the retry topic
          next    topic group queue_id  next                             the group goes on from here
          reset   topic group queue_id  next                             so it does, as an admin said
          drop    topic|"" group|""                                      a topic or a group was deleted

A change is made in the table and in the journal by the same entry, so that a start which reads the journal has the
table that was. Times are milliseconds of the wall clock, as clients are told; when an entry is applied, its deadline is
worked out for the monotonic clock.

Java: ``PopCheckPoint``, ``PopBufferMergeService``, ``ConsumerOrderInfoManager`` (5.5.0).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rocketcore.service import SYSTEM_CLOCK, Clock

__all__ = ["Checkpoint", "Entry", "PopQueue", "PopState", "QueueKey"]

_MOST_DONE = 1024
"""POPs that are done with and wait to be taken out of the order of deadlines, besides two for each message."""

QueueKey: TypeAlias = tuple[str, str, int]
"""Topic, group, queue id."""
Entry: TypeAlias = list[Any]


@dataclass(slots=True, eq=False)
class Checkpoint:
    """One POP of one queue: what it handed out and is not acknowledged.

    due        monotonic time from which on what is left comes again
    suspended  what comes again was not tried: it has no reconsumption more
    counts     of an ordered POP: offset → how often it was handed out before; None for others
    """

    key: QueueKey
    start: int
    pop_time: int
    invisible: int
    due: float
    left: set[int]
    counts: dict[int, int] | None = None
    attempt_id: str = ""
    suspended: bool = False

    def __lt__(self, other: Checkpoint) -> bool:
        return self.due < other.due


@dataclass(slots=True)
class PopQueue:
    """One group in one queue.

    next       queue offset behind the last message that was handed out, -1: none was
    in_flight  queue offset → the POP that handed it out
    ordered    the last POP was one in order
    reset      an admin moved the group since the last POP
    """

    next: int = -1
    in_flight: dict[int, Checkpoint] = field(default_factory=dict)
    ordered: bool = False
    reset: bool = False

    @property
    def done_until(self) -> int:
        """Where the group is: behind what was handed out; in order, at the first message that is not acknowledged."""
        return min(self.in_flight, default=self.next) if self.ordered and not self.reset else self.next


class PopState:
    """The table; event loop only."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.queues: dict[QueueKey, PopQueue] = {}
        self.in_flight = 0
        """Messages handed out and not acknowledged, of all groups."""
        self._clock = clock
        self._due: list[Checkpoint] = []
        self._of_topic: dict[str, set[QueueKey]] = {}

    def find(self, topic: str, group: str, queue_id: int) -> PopQueue | None:
        return self.queues.get((topic, group, queue_id))

    def delivery(self, topic: str, group: str, queue_id: int, offset: int, pop_time: int) -> Checkpoint | None:
        """Return the POP that handed a message out at a time, where that is its last one and it is not acknowledged."""
        queue = self.queues.get((topic, group, queue_id))
        found = None if queue is None else queue.in_flight.get(offset)
        return found if found is not None and found.pop_time == pop_time else None

    def in_order(self, key: QueueKey) -> dict[int, Checkpoint]:
        """Return what a queue handed out in order and is not acknowledged, by queue offset; nothing after a reset.

        The group gets nothing else of the queue until it is.
        """
        queue = self.queues.get(key)
        if queue is None or queue.reset or not queue.in_flight:
            return {}
        return {offset: each for offset, each in queue.in_flight.items() if each.counts is not None}

    def take_due(self) -> Checkpoint | None:
        """Return, once, a POP whose time is over and that left something; None where there is none now."""
        now = self._clock.monotonic()
        while self._due and (self._due[0].due <= now or not self._due[0].left):
            checkpoint = heapq.heappop(self._due)
            if checkpoint.left:
                return checkpoint
        return None

    def postpone(self, checkpoint: Checkpoint, seconds: float) -> None:
        """Have what a POP left come again later."""
        checkpoint.due = self._clock.monotonic() + seconds
        heapq.heappush(self._due, checkpoint)

    def first_in_flight(self) -> Iterator[tuple[QueueKey, int]]:
        """Return each queue with its first message that is not acknowledged."""
        return ((key, min(queue.in_flight)) for key, queue in self.queues.items() if queue.in_flight)

    # ------------------------------------------------------------------ entries

    def apply(self, entry: Entry) -> None:
        """Make the change that an entry tells; raises ValueError, and others, for one that is none."""
        kind, *rest = entry
        if kind == "drop":
            self._drop(*rest)
            return
        topic, group, queue_id, *values = rest
        key = (topic, group, queue_id)
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = PopQueue()
            self._of_topic.setdefault(topic, set()).add(key)
        if kind == "pop":
            start, offsets, queue.next, pop_time, invisible = values
            self._resume_group(queue, ordered=False)
            self._hand_out(queue, self._checkpoint(key, start, pop_time, invisible, offsets))
        elif kind == "order":
            offsets, counts, queue.next, pop_time, invisible, attempt_id = values
            self._resume_group(queue, ordered=True)
            checkpoint = self._checkpoint(key, offsets[0], pop_time, invisible, offsets)
            checkpoint.counts, checkpoint.attempt_id = dict(zip(offsets, counts, strict=True)), attempt_id
            self._hand_out(queue, checkpoint)
        elif kind == "ack":
            for offset in values[0]:
                self._forget(queue, offset)
        elif kind == "hide":
            self._hide(key, queue, *values)
        elif kind == "revive":
            self._forget(queue, values[0])
        elif kind == "next":
            self._resume_group(queue, ordered=queue.ordered)
            queue.next = values[0]
        elif kind == "reset":
            queue.next, queue.reset = values[0], True
        else:
            raise ValueError(f"an entry of no known kind: {kind!r}")

    def _checkpoint(self, key: QueueKey, start: int, pop_time: int, invisible: int, offsets: list[int]) -> Checkpoint:
        # A wall clock that went back between two starts makes nobody wait for longer than was asked for.
        seconds = min(pop_time + invisible - self._clock.time_millis(), invisible) / 1000
        return Checkpoint(key, start, pop_time, invisible, self._clock.monotonic() + seconds, set(offsets))

    def _resume_group(self, queue: PopQueue, *, ordered: bool) -> None:
        """Note that a group goes on: after a reset it has left what was handed out in order, which would come again."""
        if queue.reset:
            for offset in [offset for offset, each in queue.in_flight.items() if each.counts is not None]:
                self._forget(queue, offset)
        queue.ordered, queue.reset = ordered, False

    def _hand_out(self, queue: PopQueue, checkpoint: Checkpoint) -> None:
        for offset in checkpoint.left:
            self._forget(queue, offset)  # a group that went back gets it once more
            queue.in_flight[offset] = checkpoint
        self.in_flight += len(checkpoint.left)
        if len(self._due) > 2 * self.in_flight + _MOST_DONE:
            # One that is due in a day would keep all that is done and due after it.
            self._due = [each for each in self._due if each.left]
            heapq.heapify(self._due)
        heapq.heappush(self._due, checkpoint)

    def _hide(
        self, key: QueueKey, queue: PopQueue, offset: int, pop_time: int, invisible: int, suspended: bool
    ) -> None:
        before = queue.in_flight.get(offset)
        checkpoint = self._checkpoint(key, offset, pop_time, invisible, [offset])
        checkpoint.suspended = suspended
        if before is not None and before.counts is not None:
            checkpoint.counts, checkpoint.attempt_id = {offset: before.counts[offset]}, before.attempt_id
        self._hand_out(queue, checkpoint)

    def _forget(self, queue: PopQueue, offset: int) -> None:
        checkpoint = queue.in_flight.pop(offset, None)
        if checkpoint is not None:
            checkpoint.left.discard(offset)
            self.in_flight -= 1

    def _drop(self, topic: str, group: str) -> None:
        keys_of: Iterable[QueueKey] = self._of_topic.get(topic, ()) if topic else self.queues
        for key in [key for key in keys_of if group in ("", key[1])]:
            queue = self.queues.pop(key)
            keys = self._of_topic[key[0]]
            keys.discard(key)
            if not keys:
                del self._of_topic[key[0]]
            for offset in list(queue.in_flight):
                self._forget(queue, offset)

    # ------------------------------------------------------------------ the whole table

    def entries(self) -> Iterator[Entry]:
        """Return entries that make this table out of an empty one."""
        for key in self.queues:
            yield from self.entries_of(key)

    def entries_of(self, key: QueueKey) -> Iterator[Entry]:
        """Return entries that make what is known of one group in one queue; nothing where nothing is."""
        queue = self.queues.get(key)
        if queue is None:
            return
        for checkpoint in dict.fromkeys(queue.in_flight.values()):
            left = sorted(checkpoint.left)
            times = queue.next, checkpoint.pop_time, checkpoint.invisible
            if checkpoint.suspended and checkpoint.counts is None:
                for offset in left:
                    yield ["hide", *key, offset, checkpoint.pop_time, checkpoint.invisible, True]
            elif checkpoint.counts is None:
                yield ["pop", *key, checkpoint.start, left, *times]
            else:
                counts = [checkpoint.counts[offset] for offset in left]
                yield ["order", *key, left, counts, *times, checkpoint.attempt_id]
        yield ["reset" if queue.reset else "next", *key, queue.next]
