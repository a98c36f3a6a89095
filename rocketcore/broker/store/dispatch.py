"""Dispatch: what was committed enters its queues, then whoever listens hears of it (Java: ``ReputMessageService``).

Two passes over a group, in the order of the log. First every message gets its unit: what is acknowledged is readable,
whatever a listener does. Then each is announced, and a listener that raises loses that one call and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rocketcore.broker.store.consume_queue import ConsumeQueue

__all__ = ["Arrival", "Dispatcher", "Entry"]

Arrival = Callable[[str, int, int, int], None]
"""topic, queue id, the queue's new max offset, tags code; runs on the loop when a message becomes visible."""

Entry = tuple[ConsumeQueue, int, int, int, int]
"""A message on its way to its queue: queue offset, physical offset, size, tags code."""

logger = logging.getLogger(__name__)


class Dispatcher:
    """Loop thread only.

    on_arrival       called for each message that became visible, None for nobody
    changed          gets each queue that a message entered
    listener_errors  calls of it that raised, since the start
    """

    def __init__(self, on_arrival: Arrival | None, changed: set[ConsumeQueue]) -> None:
        self.on_arrival = on_arrival
        self._changed = changed
        self.listener_errors = 0

    def dispatch(self, entries: list[Entry]) -> None:
        """Make the messages of a committed group readable and announce them."""
        changed = self._changed
        for queue, queue_offset, physical_offset, size, tags_code in entries:
            queue.append(queue_offset, physical_offset, size, tags_code)
            changed.add(queue)
        arrived = self.on_arrival
        if arrived is None:
            return
        for queue, queue_offset, _, _, tags_code in entries:
            try:
                arrived(queue.topic, queue.queue_id, queue_offset + 1, tags_code)
            except Exception:
                self._listener_failed(arrived, queue, queue_offset)

    def _listener_failed(self, listener: Arrival, queue: ConsumeQueue, queue_offset: int) -> None:
        self.listener_errors += 1
        logger.exception(
            "arrival listener failed listener=%s topic=%s queue_id=%d queue_offset=%d failures=%d",
            getattr(listener, "__qualname__", repr(listener)),
            queue.topic,
            queue.queue_id,
            queue_offset,
            self.listener_errors,
        )
