"""Planning of a read, in the driver: which queues, from where to where, in which tasks.

Every range, ``[start, end)`` of one queue, is fixed before the first task; what arrives later is not read. Offsets of a
queue are dense, so a range splits anywhere. A task costs Spark some 30 ms: there are as few as ``minPartitions`` and
``maxRecordsPerPartition`` allow, and none for an empty range.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import Final, Literal

from rocketcore.client.arrow_ranges import Position, QueueRange, find_offsets, held_ranges, side_by_side
from rocketcore.client.arrow_reader import probe
from rocketcore.client.attempts import Retries, newest_route, until_answered
from rocketcore.client.instance import ClientInstance
from rocketcore.codes import (
    DLQ_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    RequestCode,
)
from rocketcore.errors import BrokerError, ConfigError, GroupNotExist, OffsetOutOfRange, RouteNotFound
from rocketcore.message import MessageQueue
from rocketcore.naming import is_system_topic
from rocketcore.protocol.bodies.topic import TopicList
from rocketcore.protocol.command import RemotingCommand
from rocketcore.spark.option_texts import EARLIEST, LATEST
from rocketcore.spark.options import ReadOptions, SourceOptions
from rocketcore.spark.range_task import READ_THE_REST, read_settings
from rocketcore.transport.remoting import Remoting

__all__ = [
    "MOST_TASKS",
    "check_pulls",
    "clamp_range",
    "find_held",
    "find_starts",
    "join_ranges",
    "matching_topics",
    "plan_ranges",
    "plan_tasks",
    "split_ranges",
]

logger = logging.getLogger(__name__)

_FEW_MESSAGES: Final = 1000
"""A task of fewer costs more to start than to run."""

_FEW_TASKS: Final = 32
_ENOUGH_MESSAGES: Final = 50_000
"""Of a task of several queues, where there are more than a few tasks: it takes longer than it costs to start."""

MOST_TASKS: Final = 100_000
"""Of one read: at some 30 ms each they take Spark the better part of an hour, and its driver keeps a note of each."""

_PARTS_OF_A_TASK: Final = 4
"""Parts that a task is joined of where there are too many of them: enough for tasks of about one size."""


_NOT_MATCHED = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)


def plan_tasks(ranges: list[QueueRange], options: ReadOptions, *, warn: bool = True) -> list[tuple[QueueRange, ...]]:
    """Return what each task reads; ``warn`` logs a warning for many small ones. ConfigError for too many.

    Where no option says how many there are, each queue has one; many queues with few messages share tasks.
    """
    most = options.max_partitions
    if most is None and options.min_partitions is None and options.max_records_per_partition is None:
        most = max(_FEW_TASKS, -(-sum(map(len, ranges)) // _ENOUGH_MESSAGES))
    parts = split_ranges(ranges, options.min_partitions, options.max_records_per_partition, most=most)
    if warn and len(parts) > len(ranges) and sum(map(len, parts)) < _FEW_MESSAGES * len(parts):
        logger.warning(
            "%d tasks of some %d messages each: a task costs some 30 ms, give a smaller minPartitions",
            len(parts),
            sum(map(len, parts)) // len(parts),
        )
    return join_ranges(parts, most)


async def plan_ranges(instance: ClientInstance, options: SourceOptions) -> list[QueueRange]:
    """Return the ranges that a batch query reads, within ``fetchTimeoutMs`` where brokers are away.

    raises  RouteNotFound, ConfigError naming an option, and OffsetOutOfRange for a range that is not all there
    """
    # Who waits for a plan sees nothing else.
    retries = Retries(options.fetch_timeout, instance.clock, level=logging.WARNING)
    held = await find_held(instance, options, retries)
    _check_named("endingOffsets", options.ending_offsets, held)
    starts = await find_starts(instance, held, options, retries)
    ends = await _find_edges(instance, held, options, retries, options.ending_offsets, options.ending_timestamp, "last")
    return [
        clamp_range(QueueRange(queue, starts[queue], ends[queue]), held[queue], options.fail_on_data_loss)
        for queue in held
    ]


async def find_held(instance: ClientInstance, options: ReadOptions, retries: Retries) -> dict[MessageQueue, QueueRange]:
    """Return what each queue that the options mean holds now, in order; every broker is asked for it, and for a pull.

    raises  RouteNotFound, ConfigError naming an option
    """
    queues = await _queues(instance, options, retries)
    _check_named("startingOffsets", options.starting_offsets, queues)
    await check_pulls(instance, queues, options, retries)
    return await held_ranges(instance, queues, retries, options.request_timeout)


async def find_starts(
    instance: ClientInstance, held: Mapping[MessageQueue, QueueRange], options: ReadOptions, retries: Retries
) -> dict[MessageQueue, int]:
    """Return the offsets that ``startingOffsets`` or ``startingTimestamp`` mean."""
    offsets, timestamp = options.starting_offsets, options.starting_timestamp
    return await _find_edges(instance, held, options, retries, offsets, timestamp, "first")


async def _find_edges(
    instance: ClientInstance,
    held: Mapping[MessageQueue, QueueRange],
    options: ReadOptions,
    retries: Retries,
    offsets: str | Mapping[MessageQueue, int],
    timestamp: int | None,
    default: Literal["first", "last"],
) -> dict[MessageQueue, int]:
    positions = {queue: _edge(queue, offsets, timestamp, default) for queue in held}
    return await find_offsets(instance, held, positions, retries, options.request_timeout, group=options.group)


def split_ranges(
    ranges: Iterable[QueueRange], min_partitions: int | None, max_records: int | None, most: int | None = None
) -> list[QueueRange]:
    """Cut ranges into tasks: the fewest of at most ``max_records`` messages, but at least ``min_partitions`` of them.

    The longest range is cut first, in equal parts; an empty one is left out. Fewer messages than ``min_partitions``
    make one task each. Where ``join_ranges`` makes at most ``most`` tasks of the parts, they may be longer.

    raises  ConfigError, before any part is made, for more tasks than Spark can run
    """
    filled = [queue_range for queue_range in ranges if len(queue_range)]
    counts = [max(1, -(-len(queue_range) // max_records)) if max_records else 1 for queue_range in filled]
    total = sum(map(len, filled))
    wanted = min(min_partitions or 1, total)
    parts_count = max(sum(counts), wanted)
    tasks = min(parts_count, most or parts_count)
    if tasks > MOST_TASKS:
        raise ConfigError(
            f"the read would be {tasks} tasks for {total} messages, {MOST_TASKS} are possible: give a smaller "
            "minPartitions or maxPartitions, or a larger maxRecordsPerPartition"
        )
    if most is not None and parts_count > most * _PARTS_OF_A_TASK:
        counts = [
            min(count, -(-len(queue_range) * most * _PARTS_OF_A_TASK // total))
            for queue_range, count in zip(filled, counts, strict=True)
        ]
    missing = wanted - sum(counts)
    if missing > 0:
        longest = [
            (-len(queue_range) / count, index)
            for index, (queue_range, count) in enumerate(zip(filled, counts, strict=True))
        ]
        heapify(longest)
        for _ in range(missing):
            index = longest[0][1]
            counts[index] += 1
            heapreplace(longest, (-len(filled[index]) / counts[index], index))
    parts = []
    for queue_range, count in zip(filled, counts, strict=True):
        edges = [queue_range.start + len(queue_range) * index // count for index in range(count + 1)]
        parts += [replace(queue_range, start=start, end=end) for start, end in pairwise(edges) if start < end]
    return parts


def join_ranges(ranges: list[QueueRange], most: int | None) -> list[tuple[QueueRange, ...]]:
    """Give each task one range, or put neighbours together until there are at most so many tasks of about one size."""
    if most is None or len(ranges) <= most:
        return [(queue_range,) for queue_range in ranges]
    groups: list[list[QueueRange]] = [[] for _ in range(most)]
    total, seen = sum(map(len, ranges)), 0
    for queue_range in ranges:
        # The middle of a range says which part of the whole it belongs to.
        groups[(2 * seen + len(queue_range)) * most // (2 * total)].append(queue_range)
        seen += len(queue_range)
    return [tuple(group) for group in groups if group]


def clamp_range(wanted: QueueRange, held: QueueRange, fail_on_data_loss: bool) -> QueueRange:
    """Bring a range that was asked for within what the queue holds; raises OffsetOutOfRange if that is not allowed."""
    problems = []
    if wanted.start < held.start:
        problems.append(f"starts at {wanted.start}, the queue at {held.start}")
    if wanted.start > held.end:
        problems.append(f"starts at {wanted.start}, the queue ends at {held.end}")
    if wanted.end > held.end:
        problems.append(f"ends at {wanted.end}, the queue at {held.end}")
    if problems:
        text = f"the range asked of {wanted.queue} {' and '.join(problems)}"
        if fail_on_data_loss:
            raise OffsetOutOfRange(f"{text}; {READ_THE_REST}")
        logger.warning("data loss: %s", text)
    start = min(max(wanted.start, held.start), held.end)
    return replace(wanted, start=start, end=max(start, min(wanted.end, held.end)))


def _check_named(option: str, offsets: str | Mapping[MessageQueue, int], queues: Collection[MessageQueue]) -> None:
    if not isinstance(offsets, str) and (strangers := sorted(set(offsets) - set(queues))):
        raise ConfigError(f"{option} names {strangers[0]}, which this read does not include")


async def check_pulls(
    instance: ClientInstance, queues: Iterable[MessageQueue], options: ReadOptions, retries: Retries
) -> None:
    """Pull once of each topic from each broker, as the tasks will.

    raises  ConfigError naming the option that a broker does not take, BrokerError where it gives nothing of the topic
    """
    settings = read_settings(options)

    async def ask(queue: MessageQueue) -> None:
        question = partial(probe, instance, queue, 0, settings)
        try:
            await until_answered(instance, queue.topic, retries, options.request_timeout, question)
        except GroupNotExist as error:
            raise ConfigError(f"option groupId is {options.group!r}, but {error}") from error
        except BrokerError as error:
            if settings.takes_all:
                raise
            name = "sqlExpression" if options.sql_expression is not None else "subExpression"
            raise ConfigError(f"option {name}: {error}") from error

    await side_by_side(ask, {(queue.broker, queue.topic): queue for queue in queues}.values())


def _edge(queue: MessageQueue, offsets: object, timestamp: int | None, default: Literal["first", "last"]) -> Position:
    if timestamp is not None:
        return datetime.fromtimestamp(timestamp / 1000, UTC)
    if isinstance(offsets, str):
        return "first" if offsets == "earliest" else "last"
    assert isinstance(offsets, Mapping)
    offset = offsets.get(queue)
    if offset is None:
        return default
    if offset in (EARLIEST, LATEST):
        return "first" if offset == EARLIEST else "last"
    return int(offset)


async def _queues(instance: ClientInstance, options: ReadOptions, retries: Retries) -> list[MessageQueue]:
    """Return the queues to read, in order; those that were named must be there."""
    if options.assignment:
        there = set()
        for topic in sorted({queue.topic for queue in options.assignment}):
            there |= set(await _readable(instance, topic, options.request_timeout, retries))
        if gone := sorted(set(options.assignment) - there):
            raise RouteNotFound(f"{gone[0]} is not a queue that can be read")
        return list(options.assignment)
    topics = options.topics
    if options.topic_pattern is not None:
        topics = await matching_topics(instance, options.topic_pattern, options.request_timeout)
        if not topics:
            raise RouteNotFound(f"no topic matches subscribePattern {options.topic_pattern!r}")
    queues: list[MessageQueue] = []
    for topic in topics:
        queues += await _readable(instance, topic, options.request_timeout, retries)
    return queues


async def _readable(instance: ClientInstance, topic: str, timeout: float, retries: Retries) -> tuple[MessageQueue, ...]:
    """Return a topic's queues by its route of now."""
    return (await newest_route(instance, topic, timeout, retries)).subscribe


async def matching_topics(instance: ClientInstance, pattern: str, timeout: float) -> tuple[str, ...]:
    """Return the topics whose whole name matches, the system's own left out."""

    async def question(remoting: Remoting, address: str, limit: float) -> list[str]:
        request = RemotingCommand.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        response = await remoting.invoke(address, request, limit)
        response.raise_for_code(address, "list of topics")
        return list(TopicList.decode(response.body).topic_list)

    names = await instance.ask_name_server(question, timeout)
    expression = re.compile(pattern)
    own = [name for name in names if not is_system_topic(name) and not name.startswith(_NOT_MATCHED)]
    return tuple(sorted(name for name in own if expression.fullmatch(name)))
