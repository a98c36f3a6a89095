"""Offsets of a stream: as Spark keeps them, and how far the next batch goes. Nothing here asks a broker.

What Spark writes into a checkpoint is ``{"T": {"broker-a:0": 123}}``: topic → broker and queue → the offset that is
read next. Every queue is in there, also one that is empty or that is gone: were it left out, it would be read from its
begin again when it comes back. Keys are sorted, because Spark compares offsets as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rocketcore.client.arrow_ranges import QueueRange
from rocketcore.errors import ConfigError
from rocketcore.message import MessageQueue
from rocketcore.service import Clock
from rocketcore.spark.options import ReadOptions

__all__ = ["MAX_TRIGGER_DELAY", "Offsets", "Pacing", "advance", "check_belongs", "parse_offsets", "print_offsets"]

_PLACE: Final = re.compile(r"(.+):(0|[1-9][0-9]{0,9})", re.DOTALL)
"""Broker and queue as ``print_offsets`` writes them: one queue has one way to be named."""

Offsets = Mapping[MessageQueue, int]
"""Queue → the offset that is read next."""

MAX_TRIGGER_DELAY: Final = 900.0
"""Seconds that a batch waits for enough messages, as in Spark's Kafka source."""


def print_offsets(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return offsets as Spark keeps them."""
    printed: dict[str, dict[str, int]] = {}
    for queue in sorted(offsets):
        printed.setdefault(queue.topic, {})[f"{queue.broker}:{queue.queue_id}"] = offsets[queue]
    return {topic: dict(sorted(queues.items())) for topic, queues in printed.items()}


def parse_offsets(value: object) -> dict[MessageQueue, int]:
    """Read offsets as Spark hands them back; raises ConfigError for what this source has not written."""
    if not isinstance(value, dict):
        raise _malformed(value)
    offsets = {}
    for topic, queues in value.items():
        if not isinstance(queues, dict):
            raise _malformed(value)
        for place, offset in queues.items():
            match = _PLACE.fullmatch(place)
            if match is None or type(offset) is not int or not 0 <= offset < 1 << 63 or int(match[2]) >= 1 << 31:
                raise _malformed(value)
            offsets[MessageQueue(topic, match[1], int(match[2]))] = offset
    return offsets


def _malformed(value: object) -> ConfigError:
    try:
        shown = str(value)[:200]
    except (RecursionError, ValueError):
        shown = "of too many levels, or digits, to be shown"
    return ConfigError(
        f'the checkpoint has the offsets {shown}, expected {{"topic": {{"broker-a:0": 123}}}}: '
        "it is of another source or damaged; give another checkpointLocation"
    )


def check_belongs(offsets: Offsets, options: ReadOptions) -> None:
    """Refuse the checkpoint of a query that read something else; raises ConfigError naming both."""
    if options.assignment:
        name, own = "assign", set(options.assignment)
        strangers = [f"{queue}" for queue in sorted(offsets) if queue not in own]
        wanted = ", ".join(map(str, options.assignment))
    elif options.topic_pattern is not None:
        name, wanted = "subscribePattern", options.topic_pattern
        expression = re.compile(options.topic_pattern)
        strangers = [repr(topic) for topic in _topics(offsets) if not expression.fullmatch(topic)]
    else:
        name, wanted = "topic", ", ".join(options.topics)
        strangers = [repr(topic) for topic in _topics(offsets) if topic not in options.topics]
    if strangers:
        raise ConfigError(
            f"the checkpoint is of a query that read {strangers[0]}, which option {name} ({wanted}) does not include: "
            "give it the checkpointLocation of its own query, or a new one"
        )


def _topics(offsets: Offsets) -> list[str]:
    return sorted({queue.topic for queue in offsets})


def advance(waiting: Mapping[MessageQueue, QueueRange], most: int | None) -> dict[MessageQueue, int]:
    """Return how far each queue is read when a batch takes at most so many messages.

    waiting  queue → the messages that it has and that are not read yet; empty ranges are allowed

    The limit is shared out in proportion to what waits, and used up exactly. Each queue with messages gets at least
    one of them; where there are more such queues than messages allowed, they take turns.
    """
    filled = {queue: len(waiting[queue]) for queue in sorted(waiting) if len(waiting[queue])}
    total = sum(filled.values())
    if most is None or total <= most:
        return {queue: queue_range.end for queue, queue_range in waiting.items()}
    if most < len(filled):
        # Where the last turn ended is told by what was read so far: that has grown by as much as the last batch took.
        begin = sum(waiting[queue].start for queue in filled) % len(filled)
        queues = [*filled] * 2
        shares = dict.fromkeys(queues[begin : begin + most], 1)
    else:
        shares = _pro_rata(filled, most)
    return {queue: queue_range.start + shares.get(queue, 0) for queue, queue_range in waiting.items()}


def _pro_rata(filled: Mapping[MessageQueue, int], most: int) -> dict[MessageQueue, int]:
    """Share out one to each of those that would get less, and the rest in proportion, by the largest remainder."""
    shares: dict[MessageQueue, int] = {}
    total = sum(filled.values())
    for queue in sorted(filled, key=lambda queue: filled[queue]):
        if filled[queue] * most >= total:
            break
        shares[queue] = 1
        most, total = most - 1, total - filled[queue]
    parts = {queue: divmod(filled[queue] * most, total) for queue in filled if queue not in shares}
    left = most - sum(whole for whole, _ in parts.values())
    rounded_up = set(sorted(parts, key=lambda queue: -parts[queue][1])[:left])
    return shares | {queue: whole + (queue in rounded_up) for queue, (whole, _) in parts.items()}


class Pacing:
    """``minOffsetsPerTrigger``: a batch waits until there are enough messages, or has waited for long enough.

    As in Spark's Kafka source the time counts from the last batch, and the first one does not wait.
    """

    def __init__(self, delay: float | None, clock: Clock) -> None:
        self._delay = MAX_TRIGGER_DELAY if delay is None else delay
        self._clock = clock
        self._last = float("-inf")

    def due(self, waiting: int, least: int | None) -> bool:
        """Say whether to read ``waiting`` messages now; asked once for each batch."""
        now = self._clock.monotonic()
        if not waiting or (least is not None and waiting < least and now - self._last < self._delay):
            return False
        self._last = now
        return True
