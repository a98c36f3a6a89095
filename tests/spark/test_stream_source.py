"""The streaming source: as Spark calls it, without Spark around it; and in queries of Spark's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rocketcore import LocalCluster
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.spark.options import SinkOptions, StreamSourceOptions, parse_options
from rocketcore.spark.range_task import Projection
from rocketcore.spark.stream_reader import Json, RocketMQStreamReader
from rocketcore.spark.writer import RocketMQWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeTopic = Callable[..., str]


def reader(
    cluster: LocalCluster, topic: str | None, *, clock: Clock = SYSTEM_CLOCK, **options: str
) -> RocketMQStreamReader:
    given = {"nameServer": cluster.namesrv, **({"topic": topic} if topic else {}), **options}
    return RocketMQStreamReader(parse_options(StreamSourceOptions, given), Projection(("body",)), clock)


def fill(cluster: LocalCluster, topic: str, numbers: range) -> None:
    """Send bodies that are numbers."""
    options = parse_options(SinkOptions, {"nameServer": cluster.namesrv, "topic": topic, "batchBytes": "1k"})
    RocketMQWriter(options).write(iter([pa.record_batch({"body": [f"{number}" for number in numbers]})]))


def read(source: RocketMQStreamReader, start: Json, end: Json) -> list[int]:
    batches: list[pa.RecordBatch] = []
    for partition in source.partitions(start, end):
        batches += source.read(partition)
    return [int(body) for batch in batches for body in batch["body"].to_pylist()]


def test_a_stream_reads_on(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=2)
    fill(cluster, topic, range(100))
    source = reader(cluster, topic)
    start = source.initialOffset()
    assert source.initialOffset() == start
    assert list(start[topic]) == ["broker-a:0", "broker-a:1", "broker-b:0", "broker-b:1"]
    end = source.latestOffset(start, source.getDefaultReadLimit())
    assert sorted(read(source, start, end)) == list(range(100))
    assert source.latestOffset(end, source.getDefaultReadLimit()) == end
    fill(cluster, topic, range(100, 150))
    further = source.latestOffset(end, source.getDefaultReadLimit())
    assert sorted(read(source, end, further)) == list(range(100, 150))
    assert source.reportLatestOffset() == further
    source.stop()


def test_a_query_goes_on_where_its_checkpoint_says(
    spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(queues=2)
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")

    def run(**options: str) -> list[int]:
        """Read what is there into the table; return how many rows each batch had."""
        stream = spark.readStream.format("rocketmq").options(nameServer=cluster.namesrv, topic=topic, **options).load()
        rows: DataFrame = stream.selectExpr("int(string(body)) number")
        writer = rows.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start(table)
        query.awaitTermination(60)
        assert query.exception() is None
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    fill(cluster, topic, range(1000))
    assert run(maxOffsetsPerTrigger="300") == [300, 300, 300, 100]
    fill(cluster, topic, range(1000, 1500))
    assert run() == [500]
    assert sorted(row.number for row in spark.read.parquet(table).collect()) == list(range(1500))
