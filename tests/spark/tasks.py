"""Tasks of Spark without Spark: what a worker process knows of the task that it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark import TaskContext

from rocketcore.spark.stream_writer import BATCH_ID, QUERY_ID

__all__ = ["running_task"]


@contextlib.contextmanager
def running_task(
    partition: int = 0, *, attempt: int = 0, query: str = "", batch_id: int | None = None
) -> Iterator[None]:
    """Be the process of a task; of one of a stream, where a query and a batch are given."""
    before = TaskContext.get()
    TaskContext._setTaskContext(None)
    context = TaskContext._getOrCreate()
    context._partitionId, context._attemptNumber = partition, attempt
    context._localProperties = {} if batch_id is None else {QUERY_ID: query, BATCH_ID: str(batch_id)}
    try:
        yield
    finally:
        TaskContext._setTaskContext(before)
