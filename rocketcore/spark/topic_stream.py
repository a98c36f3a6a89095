"""What a stream reads next: where it begins, how far a batch goes, and the ranges that a batch is.

A ``TopicStream`` lives as long as its query, in the driver, on the event loop of its connection. Nothing of it has to
outlive the process: what was read is what the checkpoint says.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from rocketcore.client.arrow_ranges import QueueRange
from rocketcore.client.attempts import Retries
from rocketcore.client.instance import ClientInstance
from rocketcore.errors import OffsetOutOfRange
from rocketcore.message import MessageQueue
from rocketcore.service import Backoff, Clock
from rocketcore.spark.offsets import Offsets, Pacing, advance, check_belongs
from rocketcore.spark.option_texts import LATEST
from rocketcore.spark.options import StreamSourceOptions
from rocketcore.spark.planning import check_pulls, clamp_range, find_held, find_starts
from rocketcore.spark.range_task import READ_THE_REST
from rocketcore.spark.topic_watch import Look, TopicWatch

__all__ = ["TopicStream"]

logger = logging.getLogger(__name__)

FIRST_REST: Final = 0.05
LONGEST_REST: Final = 0.5
"""Seconds between two looks when nothing came, and what they grow to. By default Spark asks again after 10 ms, and each
question costs CPU in its JVM, here and at the brokers: together 2 % of a core at this pace."""

CLOCK_DIFFERENCE: Final = 60_000
"""Milliseconds by which the clock of a broker may be behind ours: a time that has not come there may have here."""

QUEUE_REST: Final = 0.001
"""Seconds of rest for each queue, where there are so many that this is longer: a thousand take 10 ms of CPU a look."""


class TopicStream:
    """The queues of one streaming query; see ``StreamSourceOptions``."""

    def __init__(self, instance: ClientInstance, options: StreamSourceOptions, clock: Clock) -> None:
        self._instance = instance
        self._options = options
        self._clock = clock
        self._watch = TopicWatch(instance, options, clock)
        self._pacing = Pacing(options.max_trigger_delay, clock)
        self._initial: Offsets | None = None
        self._frozen: Look | None = None
        self._begins_late = False
        """Whether the first batch is still to be, and to be empty."""
        self._pulls_checked = False
        self._rests = Backoff(FIRST_REST, LONGEST_REST)
        self._rests_until = float("-inf")
        self._told: set[MessageQueue] = set()
        self._left: Offsets = {}
        """Queues that a batch left out: of a reader that is not told where that begins, whose broker was away."""
        self.ends: dict[MessageQueue, int] = {}
        """Where the queues ended when they were looked at last."""

    async def initial(self) -> Offsets:
        """Return where a new query begins; found once, then it stays.

        raises  RouteNotFound, ConfigError naming an option, OffsetOutOfRange for a start that is not there
        """
        if self._initial is None:
            options, retries = self._options, self._retries()
            held = await find_held(self._instance, options, retries)
            starts = await find_starts(self._instance, held, options, retries)
            self._initial = {
                queue: clamp_range(QueueRange(queue, starts[queue], there.end), there, options.fail_on_data_loss).start
                for queue, there in held.items()
            }
            at_an_end = any(self._initial[queue] == there.end for queue, there in held.items())
            self._begins_late = _begins_late(options, at_an_end, self._instance.clock.time_millis())
            self._pulls_checked = True
            if self._frozen is not None:
                self._frozen = _not_before(self._initial, self._frozen)
        return self._initial

    async def freeze(self) -> None:
        """Fix the end of all further batches to what is there now; every broker is waited for."""
        self._frozen = await self._look_at_queues((), None)

    async def latest(self, start: Offsets | None, most: int | None = None, least: int | None = None) -> Offsets:
        """Return where the batch that begins at ``start`` ends: there, if there is nothing to read.

        start   None: not known; the end of everything is returned
        most    messages in the batch at most
        least   messages that it waits for (see ``Pacing``), but not where the end is fixed
        raises  ConfigError for the checkpoint of another query; OffsetOutOfRange for a queue that is gone with messages
        """
        if start is None:
            look = await self._look_at_queues((), None)
            return {queue: there.end for queue, there in look.held.items()}
        check_belongs(start, self._options)
        start = {**self._left, **start}
        if self._begins_late and start == self._initial:
            self._begins_late = False
            return start
        look = await (
            self._frozen_look(self._frozen, start) if self._frozen else self._look_at_queues(start.keys(), ())
        )
        for queue in look.gone:
            self._check_gone(queue, start[queue], look)
        waiting, lost = _waiting(start, look)
        count = sum(map(len, waiting.values()))
        paced = count and not lost and self._frozen is None and not self._pacing.due(count, least)
        end = start if paced else {**start, **lost, **advance(waiting, most)}
        if end == start:
            self._rests_until = self._clock.monotonic() + max(self._rests.next(), QUEUE_REST * len(end))
        else:
            self._rests.reset()
            self._rests_until = float("-inf")
        return end

    @property
    def rest(self) -> float:
        """Seconds to let pass before the next look: nothing came at the last one."""
        return 0.0 if self._frozen else max(0.0, self._rests_until - self._clock.monotonic())

    async def ranges(self, start: Offsets, end: Offsets) -> list[QueueRange]:
        """Return what a batch reads.

        raises  OffsetOutOfRange where that is not all there (``failOnDataLoss``), else it is logged; ConfigError for
                the checkpoint of another query
        """
        for offsets in (start, end):
            check_belongs(offsets, self._options)
        moved = [queue for queue in end if start.get(queue) != end[queue]]
        vanished = start.keys() - end.keys()
        if not moved and not vanished:
            return []
        asked = {*moved, *vanished}
        look = await self._look_at_queues(asked, asked)
        for queue in sorted(vanished & look.gone.keys()):
            self._check_gone(queue, start[queue], look)
        self._left = {**self._left, **{queue: start[queue] for queue in vanished}}
        ranges = [self._range(queue, start.get(queue), end[queue], look) for queue in sorted(moved)]
        return [queue_range for queue_range in ranges if queue_range is not None]

    async def close(self) -> None:
        """Give up what is under way."""
        await self._watch.close()

    def _range(self, queue: MessageQueue, start: int | None, end: int, look: Look) -> QueueRange | None:
        if start is None:
            start = self._left.get(queue)
        if start == end:
            return None
        held = look.held.get(queue)
        if held is None:
            self._note_loss(f"the range asked of {queue} starts at {start} and ends at {end}, the queue is gone")
            return None
        if start is None:  # a queue that came while the query ran, or was stopped
            start = min(held.start, end)
        if start > end:
            # Of the first batch Spark keeps no start: made again after a restart, it begins where a new query would.
            if self._initial is not None and start == self._initial.get(queue):
                return None
            self._note_loss(f"the range asked of {queue} starts at {start} and ends at {end}: the topic was made anew")
            return None
        if queue in look.lagging:
            held = replace(held, end=max(held.end, end))
        return clamp_range(QueueRange(queue, start, end), held, self._options.fail_on_data_loss)

    async def _frozen_look(self, frozen: Look, start: Offsets) -> Look:
        """Return what was there when the ends were fixed, and what of ``start`` is gone since."""
        missing = start.keys() - frozen.held.keys() - frozen.gone.keys()
        if missing:
            # A broker that is gone has had its time once, not in each batch.
            gone = (await self._look_at_queues(missing, missing)).gone
            self._frozen = frozen = replace(frozen, gone={**frozen.gone, **gone})
        return replace(frozen, gone={queue: last for queue, last in frozen.gone.items() if queue in start})

    async def _look_at_queues(self, known: Collection[MessageQueue], needed: Iterable[MessageQueue] | None) -> Look:
        look = await self._watch.look(known, needed)
        self.ends |= {queue: there.end for queue, there in look.held.items()}
        if look.held and not self._pulls_checked:
            await check_pulls(self._instance, look.held, self._options, self._retries())
            self._pulls_checked = True
        return look

    def _retries(self) -> Retries:
        # Who waits for the first batch sees nothing else.
        return Retries(self._options.fetch_timeout, self._instance.clock, level=logging.WARNING)

    def _check_gone(self, queue: MessageQueue, offset: int, look: Look) -> None:
        """Accept that a queue is gone if nothing was left in it when it was seen last."""
        last = look.gone[queue]
        if queue in self._told or (last is not None and last.end <= offset):
            return
        self._told.add(queue)
        held = "" if last is None else f"; it had messages up to {last.end}"
        self._note_loss(f"{queue} is gone, and what it held from {offset} on{held}")

    def _note_loss(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRange(f"{text}; {READ_THE_REST}")
        logger.warning("data loss: %s", text)


def _begins_late(options: StreamSourceOptions, at_an_end: bool, now: int) -> bool:
    """Say whether what a new query begins with has not come yet; ``at_an_end``: it begins where a queue ends.

    Its first batch is empty then. Were there anything in it, the next life of a query that was ended during that batch
    would begin behind it: at what is the latest then, or the first behind a time that has come meanwhile.
    """
    if options.starting_timestamp is not None:
        return at_an_end and options.starting_timestamp > now - CLOCK_DIFFERENCE
    offsets = options.starting_offsets
    return offsets == "latest" or (not isinstance(offsets, str) and LATEST in offsets.values())


def _not_before(start: Offsets, frozen: Look) -> Look:
    """Return the ends that were fixed, none before where the query begins: Spark asks for that later."""
    held = {queue: replace(there, end=max(there.end, start.get(queue, 0))) for queue, there in frozen.held.items()}
    return replace(frozen, held=held)


def _waiting(start: Offsets, look: Look) -> tuple[dict[MessageQueue, QueueRange], dict[MessageQueue, int]]:
    """Return the messages that may be read next, and the ends of queues that lost some of what was to be read.

    Those ends make a batch, whose ranges are then refused or clamped. A queue that came is read from its first message.
    """
    waiting, lost = {}, {}
    for queue, held in look.held.items():
        offset = start.get(queue, held.start)
        end = max(offset, held.end) if queue in look.lagging else held.end
        if end < offset:
            lost[queue] = end
            continue
        waiting[queue] = QueueRange(queue, min(max(offset, held.start), end), end)
        if offset < held.start:
            lost[queue] = waiting[queue].start
    return waiting, lost
