"""Dispatch: what is in the log enters the consume queues, then whoever listens hears of it (Java:
``ReputMessageService``).

There is one way from the log to the queues, ``QueueFeed``: rows as a walk over the log fills them become units, whoever
made the log: a put, or what a start finds. ``Dispatcher`` goes it with each committed group, in the order of the log.
First every message gets its unit: what is acknowledged is readable, whatever a listener does. Then the queues that have
new messages are announced, and a listener that raises loses that one call and nothing else.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable
from typing import Protocol

from rocketcore._fast.commit_log import (
    COLUMNS,
    FILLER,
    FULL,
    PHYSICAL_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    SIZE,
    SYS_FLAG,
    TOPIC_LENGTH,
    TOPIC_START,
    walk,
)
from rocketcore._fast.consume_queue import UNIT_SIZE, UnitCollector, is_queued, put_unit, tags_codes
from rocketcore.broker.store.log.commit_log import Group, Run
from rocketcore.broker.store.queues.consume_queue import ConsumeQueue
from rocketcore.broker.store.queues.queue_table import QueueTable
from rocketcore.broker.store.timed import TIMED_TOPICS, timed_tags_code
from rocketcore.table import Table

__all__ = ["Arrival", "Dispatcher", "QueueFeed"]

ROWS = 1024

Arrival = Callable[[str, int, int, int], None]
"""topic, queue id, the queue's new max offset, tags code; runs on the loop when messages become visible."""

logger = logging.getLogger(__name__)


class Judge(Protocol):
    """What becomes of rows that are not simply the next message of a queue."""

    def not_queued(self, name: bytes, row: array[int]) -> None:
        """Hear of a record that gets no unit."""

    def refuses(self, name: bytes, topic: str, row: array[int]) -> bool:
        """Whether a message is left out, whatever its queue."""

    def refuses_place(self, queue: ConsumeQueue, row: array[int]) -> bool:
        """Whether a message is left out whose queue ends elsewhere than where it belongs; it may mend the queue."""


_NOTHING = bytearray()


class QueueFeed:
    """Puts what rows of the log tell at the ends of queues.

    deleted_before  the end of the log when a topic was deleted, 0 where it was not: what lies before it gets no unit
    judge           says what becomes of what is not as a store writes it; None: all of it is
    """

    def __init__(
        self,
        queues: QueueTable,
        deleted_before: Callable[[str], int],
        levels: tuple[int, ...],
        judge: Judge | None = None,
    ) -> None:
        self._queues = queues
        self._deleted_before = deleted_before
        self._levels = levels
        self._judge = judge
        # Takes the messages that have nothing special about them; these are the queues that it follows, by its number.
        self._collector = UnitCollector()
        self._followed: dict[int, ConsumeQueue] = {}
        self._numbers: dict[ConsumeQueue, int] = {}
        self._timed: dict[ConsumeQueue, bytearray] = {}  # units that their queues do not have yet

    def feed(self, data: memoryview | bytearray, rows: Table, count: int, read: Callable[[int, int], bytes]) -> int:
        """Take the first ``count`` rows, which a walk over ``data`` filled; ``settle`` has the queues know.

        read     returns bytes of the data, or raises OSError
        returns  how many were taken, up to one of which something cannot be read
        """
        done = 0
        while (done := self._collector.collect(data, rows.view, done, count)) < count:
            row = rows.row(done)
            try:
                is_followed = self._prepare(read(row[TOPIC_START], row[TOPIC_LENGTH]), row, read)
            except OSError:
                break
            if not is_followed:
                done += 1
        return done

    def _prepare(self, name: bytes, row: array[int], read: Callable[[int, int], bytes]) -> bool:
        """Have a row's queue followed from there on; False where that is not to be, and the row is dealt with."""
        judge = self._judge
        if not is_queued(row[SYS_FLAG]):
            if judge is not None:
                judge.not_queued(name, row)
            return False
        topic = name.decode("utf-8", "replace")
        timed = self._timed_unit(topic, row, read) if topic in TIMED_TOPICS else None
        if judge is not None and judge.refuses(name, topic, row):
            return False
        if row[PHYSICAL_OFFSET] < self._deleted_before(topic):
            return False
        queue = self._queues.topic(topic).queue(row[QUEUE_ID])
        number = self._numbers.get(queue)
        if number is not None:
            queue.extend(self._collector.take(number))
        queue_offset = row[QUEUE_OFFSET]
        waiting = self._timed.get(queue)
        if waiting is not None and queue_offset != queue.max_offset + len(waiting) // UNIT_SIZE:
            queue.extend(self._timed.pop(queue))
            waiting = None
        if waiting is None and queue_offset != queue.max_offset:
            if judge is not None and judge.refuses_place(queue, row):
                return False
            if queue_offset < queue.max_offset:
                raise RuntimeError(f"offset {queue_offset} of {topic}/{row[QUEUE_ID]} was given twice")
        if waiting is None and queue_offset != queue.max_offset:
            queue.blank_to(queue_offset, queue_offset)
        if timed is not None:
            self._timed.setdefault(queue, bytearray()).extend(timed)
            return False
        number = self._collector.follow(name, row[QUEUE_ID], queue_offset)
        self._followed[number] = queue
        self._numbers[queue] = number
        return True

    def _timed_unit(self, topic: str, row: array[int], read: Callable[[int, int], bytes]) -> bytearray:
        made = bytearray(UNIT_SIZE)
        put_unit(made, 0, row[PHYSICAL_OFFSET], row[SIZE], timed_tags_code(topic, row, self._levels, read))
        return made

    def settle(self) -> list[tuple[ConsumeQueue, bytes | bytearray]]:
        """Give the queues what was collected for them; returns which have which new units."""
        settled: list[tuple[ConsumeQueue, bytes | bytearray]] = []
        for number, units in self._collector.take_all():
            queue = self._followed[number]
            queue.extend(units)
            settled.append((queue, units))
        for queue, timed in self._timed.items():
            queue.extend(timed)
            settled.append((queue, timed))
        self._timed = {}
        return settled

    def forget(self, queues: Iterable[ConsumeQueue]) -> None:
        """Let go of queues that are no more: a topic was deleted."""
        for queue in queues:
            number = self._numbers.pop(queue, None)
            if number is not None:
                self._collector.forget(number)
                del self._followed[number]


class Dispatcher:
    """Loop thread only.

    on_arrival       called for each queue that got messages, once for each of their tags codes; None for nobody
    listener_errors  calls of it that raised, since the start
    """

    def __init__(
        self,
        queues: QueueTable,
        deleted_before: Callable[[str], int],
        levels: tuple[int, ...],
        on_arrival: Arrival | None,
    ) -> None:
        self.on_arrival = on_arrival
        self.listener_errors = 0
        self._changed = queues.changed
        self._feed = QueueFeed(queues, deleted_before, levels)
        self._rows = Table(ROWS, COLUMNS)
        self._buffer = _NOTHING

    def dispatch(self, group: Group) -> None:
        """Make the messages of a committed group readable and announce them."""
        self._buffer = group.buffer
        for run in group.runs:
            self._walk(run)
        self._buffer = _NOTHING  # a group may have a hundred MiB, and the next one be hours away
        settled = self._feed.settle()
        changed = self._changed
        for queue, _ in settled:
            changed.add(queue)
        arrived = self.on_arrival
        if arrived is not None:
            for queue, units in settled:
                for tags_code in tags_codes(units):
                    self._announce(arrived, queue, tags_code)

    def _walk(self, run: Run) -> None:
        rows, base = self._rows, run.segment.start + run.position - run.begin
        at, status = run.begin, FULL
        while status == FULL and at < run.end:
            count, at, status, _ = walk(self._buffer, at, run.end, base, rows.view, False)
            self._feed.feed(self._buffer, rows, count, self._read)
        if at != run.end and status != FILLER:
            raise RuntimeError(f"the bytes put at {base + at} are not a record")

    def _read(self, start: int, length: int) -> bytes:
        return bytes(self._buffer[start : start + length])

    def _announce(self, listener: Arrival, queue: ConsumeQueue, tags_code: int) -> None:
        try:
            listener(queue.topic, queue.queue_id, queue.max_offset, tags_code)
        except Exception:
            self.listener_errors += 1
            logger.exception(
                "arrival listener failed listener=%s topic=%s queue_id=%d queue_offset=%d failures=%d",
                getattr(listener, "__qualname__", repr(listener)),
                queue.topic,
                queue.queue_id,
                queue.max_offset - 1,
                self.listener_errors,
            )

    def forget(self, queues: Iterable[ConsumeQueue]) -> None:
        """Let go of the queues of a topic that was deleted."""
        self._feed.forget(queues)
