"""All consume queues of a store, by topic and queue id, and where each is on disk (Java: ``ConsumeQueueStore``)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from rocketcore.broker.store.notes.queue_bounds import Rows, pack_rows, unpack_rows
from rocketcore.broker.store.queues.consume_queue import ConsumeQueue, QueueFiles

__all__ = ["QueueTable", "Span", "TopicQueues"]


class Span(NamedTuple):
    """The units ``low`` to ``high`` - 1 of a queue are in its files."""

    topic: str
    queue_id: int
    low: int
    high: int


class TopicQueues:
    """The queues of a topic and, for appending, the next queue offset of each as an array that a kernel reads."""

    __slots__ = ("_files", "_view", "name", "next_offsets", "queues", "topic")

    def __init__(self, topic: str, files: QueueFiles) -> None:
        self.topic = topic
        self.name = topic.encode()
        self.next_offsets = array("q")
        self._view = memoryview(self.next_offsets)
        self.queues: list[ConsumeQueue | None] = []
        self._files = files

    def reserve(self, queue_count: int) -> None:
        """Make ``next_offsets`` cover the queues 0 to ``queue_count`` - 1."""
        if len(self.next_offsets) < queue_count:
            # A new array: an array that a view looks at cannot grow.
            self.next_offsets = self.next_offsets + array("q", bytes(8 * (queue_count - len(self.next_offsets))))
            self._view = memoryview(self.next_offsets)[:0]

    def offsets_view(self, queue_count: int) -> memoryview[int]:
        """Return the next offsets of queues 0 to ``queue_count`` - 1 for a kernel, which advances them."""
        if len(self._view) != queue_count:
            self.reserve(queue_count)
            self._view = memoryview(self.next_offsets)[:queue_count]
        return self._view

    def queue(self, queue_id: int) -> ConsumeQueue:
        """Return a queue, a new one where there is none."""
        while len(self.queues) <= queue_id:
            self.queues.append(None)
        queue = self.queues[queue_id]
        if queue is None:
            queue = self.queues[queue_id] = ConsumeQueue(self.topic, queue_id, self._files)
        return queue

    def adopt(self, rows: Rows, *, trim: bool) -> None:
        """Take over queues whose units are in their files; ``trim`` if stale ones may follow them."""
        for queue_id, (low, high) in unpack_rows(rows).items():
            self.reserve(queue_id + 1)
            self.queues += [None] * (queue_id + 1 - len(self.queues))
            self.queues[queue_id] = ConsumeQueue(self.topic, queue_id, self._files, low, high, trim=trim)
            self.next_offsets[queue_id] = high

    def rows(self) -> Rows:
        """Return where its queues begin and end."""
        return pack_rows({queue.queue_id: (queue.min_offset, queue.max_offset) for queue in self})

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return (queue for queue in self.queues if queue is not None)


class QueueTable:
    """All queues by topic. Those that a note bounds are there from the start, and made when they are first looked at.

    changed  those that may have units which are not in the files; one of a deleted topic can be among them
    """

    def __init__(self, files: QueueFiles) -> None:
        self.files = files
        self.changed: set[ConsumeQueue] = set()
        self._topics: dict[str, TopicQueues] = {}
        self._resting: dict[str, Rows] = {}  # not looked at since the start
        self._trim = False

    def adopt(self, rows: Mapping[str, Rows], *, trim: bool) -> None:
        """Take over the queues of topics; ``trim`` if stale units may follow those that are in the files."""
        self._resting = dict(rows)
        self._trim = trim

    def topic(self, topic: str) -> TopicQueues:
        """Return the queues of a topic, a new one where there is none."""
        return self._known(topic) or self._made(topic)

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queues = self._known(topic)
        if queues is None or not 0 <= queue_id < len(queues.queues):
            return None
        return queues.queues[queue_id]

    def bounds(self, topic: str, count: int) -> list[tuple[int, int]]:
        """Return where each of the first queues of a topic begins and ends; 0 and 0 for an unknown one."""
        queues = self._known(topic)
        made = [] if queues is None else queues.queues[:count]
        found = [(0, 0) if queue is None else (queue.min_offset, queue.max_offset) for queue in made]
        return found + [(0, 0)] * (count - len(found))

    def rows(self, topic: str) -> Rows:
        """Return where the queues of a topic begin and end; empty where it has none."""
        queues = self._topics.get(topic)
        return self._resting.get(topic, b"") if queues is None else queues.rows()

    def all_rows(self) -> dict[str, Rows]:
        """Return the same for all topics that have any."""
        made = {topic: queues.rows() for topic, queues in self._topics.items()}
        return {topic: rows for topic, rows in {**self._resting, **made}.items() if rows}

    def spans(self) -> list[Span]:
        """Return what is in the files of every queue, and may be read there; not of empty ones nobody looked at."""
        found = [
            Span(topic, queue_id, low, high)
            for topic, rows in self._resting.items()
            for queue_id, (low, high) in unpack_rows(rows).items()
            if low < high
        ]
        for queues in self._topics.values():
            found += [Span(queue.topic, queue.queue_id, queue.min_offset, queue.saved) for queue in queues]
        return found

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return where a queue begins, 0 for an unknown one."""
        return unpack_rows(self.rows(topic)).get(queue_id, (0, 0))[0]

    def names(self) -> Iterator[tuple[str, int]]:
        """Return (topic, queue id) of every queue that a message was put in; what changes meanwhile is no matter."""
        found = [(topic, queue_id) for topic, rows in self._resting.items() for queue_id in unpack_rows(rows)]
        found += [(queue.topic, queue.queue_id) for queues in self._topics.values() for queue in queues]
        return iter(found)

    def remove(self, topic: str) -> list[ConsumeQueue] | None:
        """Forget a topic; returns those of its queues that anybody looked at, None where there was no such topic."""
        was_resting = self._resting.pop(topic, None) is not None
        queues = self._topics.pop(topic, None)
        return list(queues) if queues is not None else [] if was_resting else None

    def clear(self) -> None:
        self._topics.clear()
        self._resting.clear()
        self._trim = False
        self.changed.clear()

    def begin(self) -> None:
        """After recovery: appending goes on where each queue ends."""
        for queues in self._topics.values():
            queues.reserve(len(queues.queues))
            for queue in queues:
                queues.next_offsets[queue.queue_id] = queue.max_offset
                self.changed.add(queue)

    def take_changed(self, trimmed_topics: int | None) -> list[ConsumeQueue]:
        """Return the queues that changed since the last call, without those of deleted topics.

        trimmed_topics  so many of those not looked at come with them, if stale units may be in their files; None: all
        """
        if self._trim:
            for topic in list(islice(self._resting, trimmed_topics)):
                self._known(topic)
            self._trim = bool(self._resting)
        changed = [queue for queue in self.changed if self.find(queue.topic, queue.queue_id) is queue]
        self.changed.clear()
        return changed

    def __contains__(self, topic: str) -> bool:
        """Whether a topic has queues."""
        return topic in self._topics or topic in self._resting

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for topic in list(self._resting):
            self._known(topic)
        for queues in self._topics.values():
            yield from queues

    def _known(self, topic: str) -> TopicQueues | None:
        queues = self._topics.get(topic)
        if queues is None and (rows := self._resting.pop(topic, None)) is not None:
            queues = self._made(topic)
            queues.adopt(rows, trim=self._trim)
            if self._trim:
                self.changed.update(queues)
        return queues

    def _made(self, topic: str) -> TopicQueues:
        queues = self._topics[topic] = TopicQueues(topic, self.files)
        return queues
