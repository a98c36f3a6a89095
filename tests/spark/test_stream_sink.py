"""Streams that end in a topic, through a Spark session: batches, their ids, output modes, what is refused."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import rocketcore as rmq
from rocketcore import LocalCluster
from rocketcore.errors import ConfigError
from rocketcore.spark import write_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter  # type: ignore[attr-defined]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MakeTopic = Callable[..., str]


def lines(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream of the lines of files, a file in each batch, the oldest first."""
    return spark.readStream.option("maxFilesPerTrigger", "1").text(str(folder))


def put_lines(folder: Path, batch: int, numbers: range) -> None:
    """Write the file of a batch; Spark goes by the times of files, which have to differ."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{batch}.txt"
    file.write_text("".join(f"{number}\n" for number in numbers))
    os.utime(file, times=(1_700_000_000 + batch,) * 2)


def run(writer: DataStreamWriter) -> str:
    """Run a query over what is there, and return its id."""
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return str(query.id)


def stored(cluster: LocalCluster, topic: str) -> dict[int, list[str]]:
    found = defaultdict(list)
    for row in rmq.read_arrow(cluster.namesrv, topic=topic, columns=["body", "msgId"]).to_pylist():
        found[int(row["body"])].append(row["msgId"])
    return found


def test_a_batch_that_the_checkpoint_has_not_seen_end_is_sent_again(
    spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, checkpoint, folder = make_topic(queues=2), tmp_path / "checkpoint", tmp_path / "files"
    for batch in range(3):
        put_lines(folder, batch, range(batch * 100, batch * 100 + 100))

    def copy() -> DataStreamWriter:
        rows = lines(spark, folder).selectExpr("value body").repartition(2)
        sink = rows.writeStream.format("rocketmq").queryName("lines to a topic")
        return sink.options(nameServer=cluster.namesrv, topic=topic, checkpointLocation=str(checkpoint))

    query = run(copy())
    before = stored(cluster, topic)
    assert sorted(before) == list(range(300))
    assert all(len(ids) == 1 for ids in before.values())
    for batch in range(3):
        own = {before[number][0] for number in range(batch * 100, batch * 100 + 100)}
        first = write_id(query, batch).upper()
        assert own <= {f"{first}{part:08X}{row:08X}" for part in range(2) for row in range(100)}
    # As if the query had died after the sends of its last batch, and before it had noted its end.
    for file in (checkpoint / "commits").glob("*2*"):
        file.unlink()
    put_lines(folder, 3, range(300, 400))
    assert run(copy()) == query
    after = stored(cluster, topic)
    assert sorted(after) == list(range(400))
    assert {number: len(ids) for number, ids in after.items()} == {n: 2 if 200 <= n < 300 else 1 for n in range(400)}
    assert all(set(ids) == set(before.get(number, ids)) for number, ids in after.items())


def test_topic_to_topic(spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Whole messages; a batch that is sent again has the same ranges, and so the same ids."""
    one, two, checkpoint = make_topic(queues=2), make_topic(queues=2), tmp_path / "checkpoint"
    with rmq.Producer(cluster.namesrv, group="spark") as producer:
        producer.send_arrow(one, pa.record_batch({"body": [f"{n}" for n in range(500)]}), body="body")

    def copy() -> DataStreamWriter:
        source = spark.readStream.format("rocketmq").options(nameServer=cluster.namesrv, topic=one).load()
        sink = source.writeStream.format("rocketmq").option("checkpointLocation", str(checkpoint))
        return sink.options(nameServer=cluster.namesrv, topic=two, ignoreSystemColumns="true")

    run(copy())
    before = stored(cluster, two)
    assert {number: len(ids) for number, ids in before.items()} == dict.fromkeys(range(500), 1)
    for file in (checkpoint / "commits").glob("*0*"):
        file.unlink()
    run(copy())
    after = stored(cluster, two)
    assert {number: len(ids) for number, ids in after.items()} == dict.fromkeys(range(500), 2)
    assert all(set(ids) == set(before[number]) for number, ids in after.items())


def test_output_modes(spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Complete sends the whole result of each batch; Spark itself refuses update, which no Python sink can have."""
    topic, folder = make_topic(queues=1), tmp_path / "files"
    for batch in range(2):
        put_lines(folder, batch, range(100))

    def counts(mode: str) -> DataStreamWriter:
        rows = lines(spark, folder).selectExpr("int(value) % 2 parity").groupBy("parity").count()
        sink = rows.selectExpr("string(1000 * parity + count) body").writeStream.format("rocketmq").outputMode(mode)
        return sink.options(nameServer=cluster.namesrv, topic=topic, checkpointLocation=str(tmp_path / mode))

    run(counts("complete"))
    assert Counter({number: len(ids) for number, ids in stored(cluster, topic).items()}) == {
        50: 1,
        1050: 1,
        100: 1,
        1100: 1,
    }
    with pytest.raises(PySparkException, match="does not support Update mode"):
        run(counts("update"))


def test_writes_in_foreach_batch(
    spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Each write is a batch write of its own; the writeId makes its ids those of the batch."""
    topic, checkpoint, folder = make_topic(queues=2), tmp_path / "checkpoint", tmp_path / "files"
    for batch in range(2):
        put_lines(folder, batch, range(batch * 100, batch * 100 + 100))

    def send(rows: DataFrame, batch_id: int) -> None:
        target = {"nameServer": cluster.namesrv, "topic": topic, "writeId": write_id("lines", batch_id)}
        rows.write.format("rocketmq").mode("append").options(**target).save()

    def copy() -> DataStreamWriter:
        rows = lines(spark, folder).selectExpr("value body")
        return rows.writeStream.foreachBatch(send).option("checkpointLocation", str(checkpoint))

    run(copy())
    for file in (checkpoint / "commits").glob("*1*"):
        file.unlink()
    run(copy())
    found = stored(cluster, topic)
    assert {number: len(ids) for number, ids in found.items()} == {n: 2 if n >= 100 else 1 for n in range(200)}
    for number, ids in found.items():
        assert {id[:16] for id in ids} == {write_id("lines", number // 100).upper()}
        assert len(set(ids)) == 1


def test_what_is_refused_is_the_end_of_the_query(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    put_lines(tmp_path / "files", 0, range(10))
    sink = lines(spark, tmp_path / "files").selectExpr("value body").writeStream.format("rocketmq")
    options = {"nameServer": cluster.namesrv, "topic": "no-such", "checkpointLocation": str(tmp_path / "checkpoint")}
    with pytest.raises(PySparkException, match="option topic: no name server knows topic 'no-such'; create it first"):
        run(sink.options(**options))


@pytest.mark.parametrize(("query", "batch"), [(3, 1), ("", 1), ("x", "3"), ("x", -1), ("x", 1 << 63)])
def test_a_write_id_is_of_a_name_and_a_number(query: Any, batch: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"write_id\(\) wants the (id or a name of the query|number of the batch), got"
    ):
        write_id(query, batch)
