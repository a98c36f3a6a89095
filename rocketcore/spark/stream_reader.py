"""The source of streaming queries, as Spark calls it: ``TopicStream`` decides, tasks read (``range_task``).

Spark makes a reader in the driver, one process for each query, and asks it for offsets and partitions; the readers that
it pickles into tasks only read. From pyspark 4.2 on Spark says where a batch begins and how much it may take
(``RocketMQStreamReader``); before, a batch takes all that is there (``UnlimitedStreamReader``).

When a batch is done Spark says so only once there is another (``commit``), and never of the last one; in the end it
kills the process. But it asks how far the next batch goes (``latestOffset``) only after one is done, so that the start
it names then has been read to. A batch that was planned is never taken for done: it may be running, or have failed.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterator
from typing import Any, Final, TypeVar

import pyspark
from pyarrow import RecordBatch
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from rocketcore.errors import ConfigError, RocketError
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.spark.connection import connect
from rocketcore.spark.group_offsets import GroupOffsets
from rocketcore.spark.offsets import Offsets, parse_offsets, print_offsets
from rocketcore.spark.options import StreamSourceOptions
from rocketcore.spark.planning import plan_tasks
from rocketcore.spark.range_task import Projection, RangePartition, read_partition
from rocketcore.spark.topic_stream import TopicStream

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # pyspark 4.1
    HAS_LIMITS = False
else:
    HAS_LIMITS = True

__all__ = ["HAS_LIMITS", "UnlimitedStreamReader", "stream_reader"]

T = TypeVar("T")

Json = dict[str, dict[str, int]]
"""Offsets as Spark keeps them, see ``print_offsets``."""

_REPORT_SECONDS: Final = 1.0
"""How long the brokers' word is waited for where nothing else is to be done."""


class _Driven:
    """What a reader has in the driver, made when Spark first asks it something; never pickled."""

    def __init__(self, options: StreamSourceOptions, clock: Clock) -> None:
        self.connection = connect(options)
        instance = self.connection.instance
        self.stream = TopicStream(instance, options, clock)
        self._group: GroupOffsets | None = None
        if options.group_id is not None:
            self._group = GroupOffsets(instance, options.group_id, options.request_timeout)

    async def latest(self, start: Offsets, most: int | None, least: int | None) -> Offsets:
        """Return where the batch that begins at ``start`` ends; up to there everything is read."""
        end = await self.stream.latest(start, most, least)
        # The last call of a query finds nothing new; then Spark kills the process.
        await self.report(start, wait=end == start)
        return end

    async def report(self, offsets: Offsets, *, wait: bool) -> None:
        """Tell the brokers that everything up to here is read.

        wait  until they know; else they are told in the background
        """
        if self._group is not None:
            self._group.report(offsets)
            if wait:
                await self._group.settle(_REPORT_SECONDS)

    async def close(self) -> None:
        if self._group is not None:
            await self._group.settle(_REPORT_SECONDS)
            await self._group.close()
        await self.stream.close()


class _StreamReader(DataSourceStreamReader):
    """Reads topics in a streaming query; see ``StreamSourceOptions``.

    clock  of intervals and of ``maxTriggerDelay``
    """

    def __init__(self, options: StreamSourceOptions, projection: Projection, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._projection = projection
        self._clock = clock
        self._made: _Driven | None = None

    def initialOffset(self) -> Json:
        """Return where a new query begins, within ``fetchTimeoutMs`` where brokers are away.

        raises  RouteNotFound, ConfigError naming an option, OffsetOutOfRange for a start that is not there
        """
        return print_offsets(self._run(self._driven.stream.initial()))

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Return the tasks of a batch.

        raises  OffsetOutOfRange for a range that is not all there, ConfigError for the checkpoint of another query
        """
        ranges = self._run(self._driven.stream.ranges(parse_offsets(start), parse_offsets(end)))
        # A batch of few messages is nothing to warn of: the next one is as small.
        return [RangePartition(group) for group in plan_tasks(ranges, self._options, warn=False)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the messages of the ranges of a task."""
        return read_partition(partition, self._options, self._projection)

    def commit(self, end: Json) -> None:
        """Tell the brokers how far the query is, if it has a ``groupId``."""
        self._report(parse_offsets(end), wait=False)

    def stop(self) -> None:
        """End what goes on in the background. Spark calls this where something failed in here, else it kills."""
        made, self._made = self._made, None
        if made is not None:
            made.connection.run(made.close())

    @property
    def _driven(self) -> _Driven:
        if self._made is None:
            self._made = _Driven(self._options, self._clock)
        return self._made

    def _rest(self) -> None:
        """Let Spark wait where nothing came: see ``TopicStream.rest``."""
        if rest := self._driven.stream.rest:
            time.sleep(rest)

    def _report(self, offsets: Offsets, *, wait: bool) -> None:
        self._run(self._driven.report(offsets, wait=wait))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return self._driven.connection.run(coroutine)
        except RocketError as error:
            raise error.with_traceback(None) from None  # Spark prints every frame; the last line is what counts


class UnlimitedStreamReader(_StreamReader):
    """Of pyspark 4.1: a batch takes all that is there. Where it begins is not said, but known from what was asked."""

    _end: Offsets | None = None
    _planned: Offsets | None = None

    def initialOffset(self) -> Json:
        """Return where a new query begins, see above."""
        begin = super().initialOffset()
        self._end = parse_offsets(begin)
        return begin

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Return the tasks of a batch, see above."""
        self._end = self._planned = parse_offsets(end)
        return super().partitions(start, end)

    def latestOffset(self) -> Json:  # type: ignore[override]  # Spark tells by the parameters which kind it is
        """Return where the queues end."""
        self._rest()
        end = self._run(self._driven.stream.latest(self._end))
        if self._planned is not None:
            self._report(self._planned, wait=end == self._planned)
        self._end = end
        return print_offsets(end)


if HAS_LIMITS:

    class RocketMQStreamReader(_StreamReader, SupportsTriggerAvailableNow):
        """Since pyspark 4.2: with limits, and with ends that are fixed where a query reads what is there and stops."""

        def getDefaultReadLimit(self) -> ReadLimit:
            """Return the limits of the options; there is no class for two, so ``latestOffset`` adds the lower one."""
            options = self._options
            if options.max_offsets_per_trigger is not None:
                return ReadMaxRows(options.max_offsets_per_trigger)
            if options.min_offsets_per_trigger is not None:
                return ReadMinRows(options.min_offsets_per_trigger)
            return ReadAllAvailable()

        def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
            """Return where the batch that begins at ``start`` ends; ``start`` if there is nothing to read."""
            self._rest()
            begin = parse_offsets(start)
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            least = None if isinstance(limit, ReadAllAvailable) else self._options.min_offsets_per_trigger
            end = self._run(self._driven.latest(begin, most, least))
            return print_offsets(end)

        def prepareForTriggerAvailableNow(self) -> None:
            """Fix the ends."""
            self._run(self._driven.stream.freeze())

        def reportLatestOffset(self) -> Json | None:
            """Return where the queues ended when they were last looked at."""
            return print_offsets(self._driven.stream.ends) or None


def stream_reader(options: StreamSourceOptions, projection: Projection) -> DataSourceStreamReader:
    """Return the reader for the pyspark that is installed; raises ConfigError for limits that it does not have."""
    if HAS_LIMITS:
        return RocketMQStreamReader(options, projection)
    for name, value in (
        ("maxOffsetsPerTrigger", options.max_offsets_per_trigger),
        ("minOffsetsPerTrigger", options.min_offsets_per_trigger),
    ):
        if value is not None:
            raise ConfigError(f"option {name} needs pyspark 4.2 or newer, this is {pyspark.__version__}")
    return UnlimitedStreamReader(options, projection)
