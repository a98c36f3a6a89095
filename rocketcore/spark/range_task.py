"""What a task of a read does: ranges of queues to the record batches that Spark asked for.

They are pulled on the thread of the process's connections and decoded on the task's own, both at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow
from pyarrow import RecordBatch
from pyspark.sql.datasource import InputPartition

from rocketcore.client.arrow_batches import DEFAULT_COLUMNS
from rocketcore.client.arrow_ranges import QueueRange
from rocketcore.client.arrow_reader import RangeReader, ReadSettings
from rocketcore.errors import OffsetOutOfRange
from rocketcore.spark.connection import connect
from rocketcore.spark.options import ReadOptions

__all__ = ["READ_THE_REST", "Projection", "RangePartition", "read_partition", "read_settings"]

READ_THE_REST: Final = "failOnDataLoss=false reads what is there"


@dataclass(frozen=True, slots=True)
class Projection:
    """What Spark wants of each message.

    columns  in this order
    fields   the names that Spark has for them, and whether they may be null; None: their own names, and nullable
    """

    columns: tuple[str, ...]
    fields: tuple[tuple[str, bool], ...] | None = None


class RangePartition(InputPartition):
    """What one task reads, range after range."""

    def __init__(self, ranges: tuple[QueueRange, ...]) -> None:
        super().__init__(tuple((queue_range.queue, queue_range.start, queue_range.end) for queue_range in ranges))
        self.ranges = ranges


def read_settings(options: ReadOptions, columns: tuple[str, ...] = DEFAULT_COLUMNS) -> ReadSettings:
    """Return how the client reads what the options say."""
    return ReadSettings(
        columns=columns,
        group=options.group,
        tags=options.tag_expression,
        sql=options.sql_expression,
        fail_on_data_loss=options.fail_on_data_loss,
        if_damaged=READ_THE_REST if options.fail_on_data_loss else None,
        pull_bytes=options.pull_batch_bytes,
        batch_bytes=options.arrow_batch_bytes,
        timeout=options.request_timeout,
        fetch_timeout=options.fetch_timeout,
    )


def read_partition(partition: InputPartition, options: ReadOptions, projection: Projection) -> Iterator[RecordBatch]:
    """Yield the messages of the ranges of a task; Spark's partition of None, for an empty plan, has none.

    raises  OffsetOutOfRange where messages are gone, DecodeError for a damaged one (``failOnDataLoss``), and what the
            pulls failed with in the end
    """
    if isinstance(partition, RangePartition):
        connection = connect(options)
        reader = RangeReader(connection.instance, partition.ranges, read_settings(options, projection.columns))
        try:
            # Decoded on this thread: the connections' thread pulls meanwhile.
            for batch in reader.record_batches(connection.run):
                yield _named(projection, batch)
        except OffsetOutOfRange as error:
            raise OffsetOutOfRange(f"{error}; {READ_THE_REST}") from None


def _named(projection: Projection, batch: RecordBatch) -> RecordBatch:
    """Return a record batch with exactly the Arrow schema that Spark compares it with."""
    if projection.fields is None:
        return batch
    fields = [
        field.with_name(name).with_nullable(nullable)
        for field, (name, nullable) in zip(batch.schema, projection.fields, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(batch.columns, schema=pyarrow.schema(fields))
