"""The source: queues of topics to Arrow record batches for Spark.

Planning runs in the driver and fixes every range, ``[start, end)`` of one queue, before the first task; what arrives
later is not read. Offsets of a queue are dense, so a range splits anywhere. A task costs Spark some 30 ms: there are as
few as ``minPartitions`` and ``maxRecordsPerPartition`` allow, and none for an empty range.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pyspark.sql.datasource import DataSourceReader, InputPartition

from rocketcore.codes import (
    DLQ_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    RequestCode,
)
from rocketcore.errors import ConfigError, OffsetOutOfRange, RouteNotFound
from rocketcore.message import MessageQueue
from rocketcore.spark.options import EARLIEST, LATEST, SourceOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from rocketcore.client.arrow_reader import Position, QueueRange
    from rocketcore.client.instance import ClientInstance
    from rocketcore.transport.client import Remoting

__all__ = ["RangePartition", "RocketMQReader", "clamp_range", "split_ranges"]

logger = logging.getLogger(__name__)

_NOT_MATCHED = (SYSTEM_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, portion: QueueRange) -> None:
        super().__init__((portion.queue, portion.start, portion.end))
        self.portion = portion


class RocketMQReader(DataSourceReader):
    """Reads topics in a batch query; see ``SourceOptions``.

    columns  what Spark wants of each message, in this order
    """

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """Fix the ranges; raises RouteNotFound, and OffsetOutOfRange for a range that is not all there."""
        from rocketcore.spark.connection import connect

        connection = connect(self._options)
        ranges = connection.run(_plan(connection.instance, self._options))
        # Spark reads an empty list as one partition of None, which read() takes as nothing to do.
        portions = split_ranges(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        return [RangePartition(portion) for portion in portions]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the messages of one range."""
        if not isinstance(partition, RangePartition):
            return
        from rocketcore.client.arrow_reader import QueueReader, ReadSettings
        from rocketcore.spark.connection import connect

        options, queue = self._options, partition.portion.queue
        connection = connect(options)
        settings = ReadSettings(
            columns=self._columns,
            group=options.group_id,
            tags=options.tag_expression,
            sql=options.sql_expression,
            fail_on_data_loss=options.fail_on_data_loss,
            pull_bytes=options.pull_batch_bytes,
            batch_bytes=options.arrow_batch_bytes,
            timeout=options.request_timeout,
        )
        connection.run(connection.instance.refresh_topic(queue.topic, timeout=options.request_timeout))
        reader = QueueReader(connection.instance, partition.portion, settings)
        try:
            while (batch := connection.run(reader.next_batch())) is not None:
                yield batch
        finally:
            connection.run(reader.close())


def split_ranges(ranges: Iterable[QueueRange], min_partitions: int | None, max_records: int | None) -> list[QueueRange]:
    """Cut ranges into tasks: the fewest of at most ``max_records`` messages, but at least ``min_partitions`` of them.

    The longest range is cut first, in equal parts; an empty one is left out. Fewer messages than ``min_partitions``
    make one task each.
    """
    filled = [portion for portion in ranges if len(portion)]
    counts = [max(1, -(-len(portion) // max_records)) if max_records else 1 for portion in filled]
    wanted = min(min_partitions or 1, sum(map(len, filled)))
    while sum(counts) < wanted:
        largest = max(range(len(filled)), key=lambda index: len(filled[index]) / counts[index])
        counts[largest] += 1
    parts = []
    for portion, count in zip(filled, counts, strict=True):
        edges = [portion.start + len(portion) * index // count for index in range(count + 1)]
        parts += [replace(portion, start=start, end=end) for start, end in pairwise(edges) if start < end]
    return parts


def clamp_range(wanted: QueueRange, held: QueueRange, *, fail_on_data_loss: bool) -> QueueRange:
    """Bring a range that was asked for within what the queue holds; raises OffsetOutOfRange if that is not allowed."""
    problems = []
    if wanted.start < held.start:
        problems.append(f"starts at {wanted.start}, the queue at {held.start}")
    if wanted.end > held.end:
        problems.append(f"ends at {wanted.end}, the queue at {held.end}")
    if problems:
        text = f"the range asked of {wanted.queue} {' and '.join(problems)}"
        if fail_on_data_loss:
            raise OffsetOutOfRange(f"{text}; failOnDataLoss=false reads what is there")
        logger.warning("data loss: %s", text)
    start = min(max(wanted.start, held.start), held.end)
    return replace(wanted, start=start, end=max(start, min(wanted.end, held.end)))


async def _plan(instance: ClientInstance, options: SourceOptions) -> list[QueueRange]:
    from rocketcore.client.arrow_reader import find_range

    queues = await _queues(instance, options)
    for name, offsets in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
        if not isinstance(offsets, str) and (strangers := sorted(set(offsets) - set(queues))):
            raise ConfigError(f"{name} names {strangers[0]}, which this read does not include")
    ranges = []
    for queue in queues:
        start = _edge(queue, options.starting_offsets, options.starting_timestamp, "first")
        end = _edge(queue, options.ending_offsets, options.ending_timestamp, "last")
        wanted, held = await find_range(instance, queue, start, end, timeout=options.request_timeout)
        ranges.append(clamp_range(wanted, held, fail_on_data_loss=options.fail_on_data_loss))
    return ranges


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


async def _queues(instance: ClientInstance, options: SourceOptions) -> list[MessageQueue]:
    """Return the queues to read, in order; those that were named must be there."""
    if options.assignment:
        there = set()
        for topic in sorted({queue.topic for queue in options.assignment}):
            there |= set(await _readable(instance, topic, options.request_timeout))
        if gone := sorted(set(options.assignment) - there):
            raise RouteNotFound(f"{gone[0]} is not a queue that can be read")
        return list(options.assignment)
    topics = options.topics
    if options.topic_pattern is not None:
        topics = await _matching_topics(instance, options.topic_pattern, options.request_timeout)
    queues: list[MessageQueue] = []
    for topic in topics:
        queues += await _readable(instance, topic, options.request_timeout)
    return queues


async def _readable(instance: ClientInstance, topic: str, timeout: float) -> tuple[MessageQueue, ...]:
    """Return a topic's queues by its route of now: a kept connection may know an older one."""
    await instance.refresh_topic(topic, timeout=timeout)
    return (await instance.route(topic, timeout=timeout)).subscribe


async def _matching_topics(instance: ClientInstance, pattern: str, timeout: float) -> tuple[str, ...]:
    """Return the topics whose whole name matches, the system's own left out."""
    from rocketcore.protocol.bodies import TopicList
    from rocketcore.protocol.command import RemotingCommand

    async def question(remoting: Remoting, address: str, limit: float) -> list[str]:
        request = RemotingCommand.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        response = await remoting.invoke(address, request, limit)
        response.raise_for_code(address, "list of topics")
        return list(TopicList.decode(response.body).topic_list)

    names = await instance.ask_name_server(question, timeout)
    expression = re.compile(pattern)
    own = [name for name in names if name not in SYSTEM_TOPICS and not name.startswith(_NOT_MATCHED)]
    found = tuple(sorted(name for name in own if expression.fullmatch(name)))
    if not found:
        raise RouteNotFound(f"no topic matches subscribePattern {pattern!r}")
    return found
