"""What drivers of a standalone cluster run for tests; see ``tests.fixtures.standalone.Driver.run``.

Python functions go to tasks as those of an RDD: those over Arrow batches would need pandas.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PADDING = "x" * 500
"""JVM and Python workers hand rows over by the 64 KiB: with this in each, those before one that halts get through."""


def write(spark: SparkSession, options: dict[str, str], rows: range, tasks: int = 2) -> None:
    """Write rows that are numbered in their bodies."""
    frame = spark.range(rows.start, rows.stop, rows.step, tasks).selectExpr("string(id) body")
    frame.write.format("rocketmq").mode("append").options(**options).save()


def write_bodies(spark: SparkSession, options: dict[str, str], rows: int, size: int, tasks: int) -> None:
    """Write so many rows of one size, which cost little to make."""
    body = f"cast(concat(repeat('x', {size - 8}), lpad(string(id), 8, '0')) as binary) body"
    frame = spark.range(0, rows, 1, tasks).selectExpr(body)
    frame.write.format("rocketmq").mode("append").options(**options).save()


def load(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("rocketmq").options(**options).load()


def read(spark: SparkSession, options: dict[str, str]) -> dict[str, Any]:
    """Count what a topic holds: rows, different ids, the sum of the numbers, and rows of one of the brokers."""
    counts = load(spark, options).selectExpr(
        "count(*) rows",
        "count(distinct msgId) ids",
        "sum(int(string(body))) sum",
        "count_if(brokerName = 'broker-b') of_broker_b",
    )
    row = counts.first()
    assert row is not None
    return row.asDict()


def copy(spark: SparkSession, source: dict[str, str], target: dict[str, str]) -> None:
    """Copy by a stream what is in a topic and not yet, says the checkpoint, in the other."""
    rows = spark.readStream.format("rocketmq").options(**source).load().selectExpr("body", "msgId as keys")
    run_stream(rows.writeStream.format("rocketmq").options(**target))


def run_stream(writer: DataStreamWriter) -> None:
    """Run a stream until it has taken what was there."""
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(120):
        query.stop()
        raise TimeoutError(f"the stream goes on: {query.lastProgress}")


class Halting:
    """A function of SQL that returns what it is given, and in one task of all, of the first partition, halts.

    That is after so many rows. Then ``folder/halted`` has the process id of the task's executor. It goes on when
    ``folder/go`` is there, or fails.
    """

    def __init__(self, folder: str, after: int, *, fails: bool = False) -> None:
        self._folder = Path(folder)
        self._after = after
        self._fails = fails
        self._count = 0

    def __call__(self, value: str) -> str:
        self._count += 1
        if self._count == self._after:
            self._reached()
        return value

    def _reached(self) -> None:
        context = TaskContext.get()
        halted, draft = self._folder / "halted", self._folder / "draft"
        if context is None or context.partitionId() or halted.exists():
            return
        daemon = os.getppid()
        draft.write_text(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
        draft.rename(halted)
        while not (self._folder / "go").exists():
            if os.getppid() != daemon:
                raise RuntimeError("the executor is gone")
            time.sleep(0.02)
        if self._fails:
            raise RuntimeError("the task is told to fail")


def halting(spark: SparkSession, column: str, function: Halting) -> Column:
    """Return the column, padded, as ``function`` lets it through."""
    from pyspark.sql import functions

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    # Through Arrow it would need pandas.
    through = functions.udf(function, "string", useArrow=False)
    return through(functions.expr(f"concat({column}, ' {PADDING}')"))


def copy_halting(spark: SparkSession, source: dict[str, str], target: dict[str, str], function: Halting) -> None:
    """Copy a topic by a batch query."""
    rows = load(spark, source).select(halting(spark, "string(body)", function).alias("body"))
    rows.write.format("rocketmq").mode("append").options(**target).save()


def stream_halting(
    spark: SparkSession, source: dict[str, str], target: dict[str, str], function: Halting, shuffled: bool
) -> None:
    """Copy a topic by a stream; with a shuffle between, and then the ids of the source, as a stream may not sort."""
    rows = spark.readStream.format("rocketmq").options(**source).load()
    columns = [halting(spark, "string(body)", function).alias("body")]
    if shuffled:
        rows = rows.repartition(2, "body")
        columns.append(rows["msgId"])
    run_stream(rows.select(columns).writeStream.format("rocketmq").options(**target))


def stream_sorted(spark: SparkSession, source: dict[str, str], target: dict[str, str]) -> None:
    """Copy a topic by a stream that sorts."""
    rows = spark.readStream.format("rocketmq").options(**source).load().select("body")
    run_stream(rows.sortWithinPartitions("body").writeStream.format("rocketmq").options(**target))


def write_shuffled(
    spark: SparkSession, options: dict[str, str], rows: int, function: Halting, advice: str | None
) -> None:
    """Write numbered rows that come from a shuffle; ``advice`` is ``sort``, ``msgId`` or None."""
    frame = spark.range(0, rows, 1, 8).repartition(2)
    if advice == "sort":
        frame = frame.sortWithinPartitions("id")
    frame = frame.select(halting(spark, "string(id)", function).alias("body"), "id")
    columns = ["body", "concat('row ', id) msgId"] if advice == "msgId" else ["body"]
    frame.selectExpr(*columns).write.format("rocketmq").mode("append").options(**options).save()


def write_all_but(spark: SparkSession, options: dict[str, str], rows: int, bad: int | None) -> None:
    """Write numbered rows, of which one has no body."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    frame = spark.range(0, rows, 1, 2).selectExpr(f"if(id = {bad or 'null'}, null, concat(id, ' {PADDING}')) body")
    frame.write.format("rocketmq").mode("append").options(**options).save()


def skim(spark: SparkSession, options: dict[str, str], columns: str) -> None:
    """Read a topic for nobody."""
    rows = spark.read.format("rocketmq").schema(columns).options(**options).load()
    rows.write.format("noop").mode("overwrite").save()


def places_of_read(spark: SparkSession, options: dict[str, str]) -> list[tuple[str, int]]:
    """For each task of a read the folder of its executor, and its rows."""

    def place(rows: Iterable[object]) -> Iterator[tuple[str, int]]:
        yield os.getcwd(), sum(1 for _ in rows)

    return load(spark, options).select("queueOffset").rdd.mapPartitions(place).collect()


def homes(spark: SparkSession) -> set[str]:
    """Where the Python workers of each executor have rocketcore from."""

    def home(_: Iterable[object]) -> Iterator[str]:
        import rocketcore

        yield rocketcore.__path__[0]

    return set(spark.sparkContext.parallelize(range(2), 2).mapPartitions(home).collect())
