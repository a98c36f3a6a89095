"""The sink of streams: each batch of a query to messages, at least once.

Spark makes the writer anew for each batch, and again, in another process, for its commit: it has no state. The ids of
the rows are made of the query, the batch, the partition and the row, all of which a batch keeps when it is repeated,
by another attempt of a task or by the query's next life: what was sent before the failure has the same UNIQ_KEYs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pyarrow import RecordBatch
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rocketcore.errors import ConfigError, RocketError
from rocketcore.spark.options import SPARK_OPTIONS, SinkOptions, parse_options
from rocketcore.spark.task_summary import TaskSummary, log_failure, log_success
from rocketcore.spark.write_ids import write_id
from rocketcore.spark.write_task import WritePlan, write_partition
from rocketcore.spark.writer import plan_write

__all__ = ["BATCH_ID", "QUERY_ID", "RocketMQStreamWriter", "plan_stream_write"]

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that Spark gives every task of a stream (``StreamExecution``, ``MicroBatchExecution``)."""


def plan_stream_write(options: Mapping[str, str], schema: StructType) -> WritePlan:
    """Check options, rows and topic of a stream, and fix the queues of keys for a batch; in the driver.

    Name servers and brokers that are away are waited for: a stream outlives their restarts.

    raises  ConfigError naming the option or the column
    """
    parsed = parse_options(SinkOptions, options, ignored=SPARK_OPTIONS)
    if parsed.write_id is not None:
        raise ConfigError(
            "option writeId belongs to batch writes: a stream has one for each batch, of the query's id and the batch's"
        )
    return plan_write(parsed, schema, patient=True)


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of a batch of a stream; see ``SinkOptions``.

    plan  None for a writer that only commits or aborts
    """

    def __init__(self, plan: WritePlan | None) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[RecordBatch]) -> TaskSummary:
        """Send a partition and wait for every answer; raises for the first row or request that fails."""
        assert self._plan is not None, "tasks get the writer that was planned"
        return write_partition(iterator, self._plan, _task_write_id())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log the sum of the tasks; there is nothing left to do, every row is stored.

        raises  RouteNotFound when a topic's route changed between tasks: rows of one key may be in two queues
        """
        log_success(_name(messages, batchId), messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log what stays: messages that were sent are not taken back, and are sent again with the batch."""
        log_failure(_name(messages, batchId), messages)


def _task_write_id() -> int:
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context is not None else None
    batch_id = context.getLocalProperty(BATCH_ID) if context is not None else None
    if query is None or batch_id is None:
        raise RocketError(f"a task of a stream is told {QUERY_ID} and {BATCH_ID} by Spark, got {query} and {batch_id}")
    return int(write_id(query, int(batch_id)), 16)


def _name(messages: list[WriterCommitMessage | None], batch_id: int) -> str:
    ids = {f" write_id={message.write_id:016x}" for message in messages if isinstance(message, TaskSummary)}
    return f"batch_id={batch_id}{''.join(ids)}"
