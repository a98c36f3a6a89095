"""Dispatch: what was committed enters its queues, then whoever listens hears of it (Java: ``ReputMessageService``).

Two passes over a group, in the order of the log. First every message gets its unit: what is acknowledged is readable,
whatever a listener does. Then each is announced, and a listener that raises loses that one call and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from typing import NamedTuple

from rocketcore._fast.consume_queue import UNIT_SIZE, unit
from rocketcore.broker.store.consume_queue import ConsumeQueue

__all__ = ["Arrival", "Batch", "Dispatcher", "Entry"]

Arrival = Callable[[str, int, int, int], None]
"""topic, queue id, the queue's new max offset, tags code; runs on the loop when a message becomes visible."""


class Batch(NamedTuple):
    """Messages on their way to one queue: the offset of the first, their units, and their tags codes, each once."""

    queue: ConsumeQueue
    queue_offset: int
    units: bytes | bytearray
    tags_codes: Set[int]


Entry = tuple[ConsumeQueue, int, int, int, int] | Batch
"""What is on its way to a queue: a message with its queue offset, physical offset, size and tags code, or a batch."""

logger = logging.getLogger(__name__)


class Dispatcher:
    """Loop thread only.

    on_arrival       called for each message that became visible, of a batch for each tags code; None for nobody
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
        for entry in entries:
            if isinstance(entry, Batch):
                _append_batch(entry)
            else:
                queue, queue_offset, physical_offset, size, tags_code = entry
                queue.append(queue_offset, physical_offset, size, tags_code)
            changed.add(entry[0])
        arrived = self.on_arrival
        if arrived is None:
            return
        for entry in entries:
            if isinstance(entry, Batch):
                end = entry.queue_offset + len(entry.units) // UNIT_SIZE
                for tags_code in entry.tags_codes:
                    self._announce(arrived, entry.queue, end, tags_code)
            else:
                queue, queue_offset, _, _, tags_code = entry
                self._announce(arrived, queue, queue_offset + 1, tags_code)

    def _announce(self, listener: Arrival, queue: ConsumeQueue, end: int, tags_code: int) -> None:
        try:
            listener(queue.topic, queue.queue_id, end, tags_code)
        except Exception:
            self._listener_failed(listener, queue, end - 1)

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


def _append_batch(batch: Batch) -> None:
    queue, queue_offset, units, _ = batch
    if queue_offset == queue.max_offset:
        queue.extend(units)
        return
    for index in range(len(units) // UNIT_SIZE):
        queue.append(queue_offset + index, *unit(units, index))
