"""Queue rotation, plainly: Java's ``TopicPublishInfo``, one counter and a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class QueueRotation:
    """The queues of one topic in turn; ``brokers`` holds each queue's broker."""

    def __init__(self, brokers: Sequence[int], start: int) -> None:
        self.brokers = brokers
        self.counter = start

    def next(self) -> int:
        """Return the queue whose turn it is."""
        self.counter += 1
        return (self.counter - 1) % len(self.brokers)

    def find(self, accept: Callable[[int], bool]) -> int | None:
        """Return the next queue whose broker is accepted; None after one whole turn without."""
        for _ in self.brokers:
            queue = self.next()
            if accept(self.brokers[queue]):
                return queue
        return None

    def next_skipping(self, broker: int) -> int:
        """Return the next queue that is not on a broker, or the next one."""
        queue = self.find(lambda other: other != broker)
        return self.next() if queue is None else queue
