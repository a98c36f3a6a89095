"""The source of batch queries: ranges fixed in the driver (``planning``), read by tasks (``range_task``)."""

from __future__ import annotations

from collections.abc import Iterator

from pyarrow import RecordBatch
from pyspark.sql.datasource import DataSourceReader, InputPartition

from rocketcore.errors import RocketError
from rocketcore.spark.connection import connect
from rocketcore.spark.options import SourceOptions
from rocketcore.spark.planning import plan_ranges, plan_tasks
from rocketcore.spark.range_task import Projection, RangePartition, read_partition

__all__ = ["RocketMQReader"]


class RocketMQReader(DataSourceReader):
    """Reads topics in a batch query; see ``SourceOptions``."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection

    def partitions(self) -> list[InputPartition]:
        """Fix the ranges, within ``fetchTimeoutMs`` where brokers are away.

        raises  RouteNotFound, and OffsetOutOfRange for a range that is not all there
        """
        connection = connect(self._options)
        try:
            ranges = connection.run(plan_ranges(connection.instance, self._options))
        except RocketError as error:
            raise error.with_traceback(None) from None  # Spark prints every frame; the last line is what counts
        # Spark reads an empty list as one partition of None, which is read as nothing.
        return [RangePartition(group) for group in plan_tasks(ranges, self._options)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the messages of the ranges of a task."""
        return read_partition(partition, self._options, self._projection)
