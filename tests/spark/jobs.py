"""What drivers of a standalone cluster run for tests; see ``tests.fixtures.standalone.Driver.run``.

Python functions go to tasks as those of an RDD: those over Arrow batches would need pandas.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write(spark: SparkSession, options: dict[str, str], rows: range, tasks: int = 2) -> None:
    """Write rows that are numbered in their bodies."""
    frame = spark.range(rows.start, rows.stop, rows.step, tasks).selectExpr("string(id) body")
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
    query = rows.writeStream.format("rocketmq").options(**target).trigger(availableNow=True).start()
    if not query.awaitTermination(120):
        query.stop()
        raise TimeoutError(f"the stream goes on: {query.lastProgress}")


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
