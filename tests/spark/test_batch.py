"""Batch writes and reads through a Spark session and brokers of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import rocketcore as rmq
from rocketcore import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MakeTopic = Callable[..., str]


def write(frame: DataFrame, cluster: LocalCluster, **options: str) -> None:
    frame.write.format("rocketmq").mode("append").option("nameServer", cluster.namesrv).options(**options).save()


def read(spark: SparkSession, cluster: LocalCluster, schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).options(**options)
    return (reader.schema(schema) if schema else reader).load()


def test_rows_there_and_back(spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic, count = make_topic(queues=2), 30_000
    rows = spark.range(count).selectExpr(
        "concat('body ', id) body",
        "concat('key-', id) keys",
        "if(id % 2 = 0, 'even', null) tags",
        "map('number', cast(id as string)) properties",
    )
    write(rows.repartition(3), cluster, topic=topic, batchBytes="64k", properties='{"source": "spark"}')
    messages = read(spark, cluster, topic=topic, includeProperties="true", includeHosts="true", minPartitions="8")
    assert messages.rdd.getNumPartitions() == 8
    answer = messages.selectExpr(
        "count(*)",
        "count(distinct msgId)",
        "count(distinct keys)",
        "sum(int(properties['number']))",
        "count_if(properties['source'] = 'spark')",
        "count_if(tags = 'even')",
        "count_if(tags is null)",
        "count_if(string(body) = concat('body ', properties['number']))",
        f"count_if(topic = '{topic}')",
        "count(distinct brokerName)",
        "count_if(bornHost like '127.0.0.1:%')",
        "max(reconsumeTimes)",
    ).first()
    assert answer is not None
    assert tuple(answer) == (
        count,
        count,
        count,
        sum(range(count)),
        count,
        count // 2,
        count // 2,
        count,
        count,
        2,
        count,
        0,
    )


def test_ids_are_the_same_in_a_second_run(spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """The rows of a write are known by write id, partition and row, so repeats can be told from other messages."""
    topic = make_topic(queues=1)
    rows = spark.range(0, 1000, 1, 2).selectExpr("string(id) body")
    for _ in range(2):
        write(rows, cluster, topic=topic, writeId="abc")
    write(rows, cluster, topic=topic)
    messages = read(spark, cluster, "msgId string, body binary", topic=topic)
    counts = messages.groupBy("msgId").count()
    answer = counts.selectExpr("count(*)", "count_if(count = 2)", "count_if(count = 1)").first()
    assert answer is not None
    assert tuple(answer) == (2000, 1000, 1000)
    ids = {row.msgId for row in messages.where("msgId like '0000000000000ABC%'").distinct().collect()}
    assert {id[16:24] for id in ids} == {"00000000", "00000001"}
    assert {int(id[24:], 16) for id in ids} == set(range(500))


def test_columns_choose_topic_queue_and_order(
    spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic
) -> None:
    one, two = make_topic(queues=2), make_topic(queues=2)
    rows = spark.range(600).selectExpr(
        f"if(id % 3 = 0, '{one}', '{two}') topic",
        "string(id) body",
        "concat('group ', id % 5) shardingKey",
        "concat('id-', id) msgId",
        "int(id % 4) flag",
        "array('a', concat('k', id)) keys",
    )
    write(rows.coalesce(1), cluster, queueSelector="hash")
    for topic, expected in ((one, range(0, 600, 3)), (two, [n for n in range(600) if n % 3])):
        found = read(spark, cluster, topic=topic, includeProperties="true", includeHosts="true").collect()
        assert sorted(int(row.body) for row in found) == list(expected)
        assert all(row.msgId == f"id-{int(row.body)}" and row.flag == int(row.body) % 4 for row in found)
        assert all(row["keys"] == f"a k{int(row.body)}" for row in found)
        queues: dict[str, set[tuple[str, int]]] = {}
        order: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for row in found:
            queues.setdefault(row.properties["__SHARDINGKEY"], set()).add((row.brokerName, row.queueId))
            order.setdefault((row.brokerName, row.queueId), []).append((row.queueOffset, int(row.body)))
        assert all(len(places) == 1 for places in queues.values())
        for places in order.values():
            bodies = [body for _, body in sorted(places)]
            for group in range(5):
                assert [n for n in bodies if n % 5 == group] == sorted(n for n in bodies if n % 5 == group)


def test_rows_may_name_their_queue(spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=4)
    rows = spark.range(40).selectExpr("string(id) body", "'broker-b' brokerName", "id % 4 queueId")
    write(rows, cluster, topic=topic)
    found = read(spark, cluster, "brokerName string, queueId int, body binary", topic=topic).collect()
    assert len(found) == 40
    assert all((row.brokerName, row.queueId) == ("broker-b", int(row.body) % 4) for row in found)


def test_ranges(spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    with rmq.Producer(cluster.namesrv, group="spark") as producer:
        sent = [producer.send(topic, f"{number}", tag="odd" if number % 2 else "even") for number in range(20)]
    queue = next(result.queue for result in sent)
    offset = max(result.offset for result in sent if result.queue == queue) - 3
    edge = json.dumps({topic: {queue.broker: {"0": offset}}})
    only = json.dumps({topic: {queue.broker: [0]}})

    def bodies(**options: str) -> list[int]:
        return sorted(int(row.body) for row in read(spark, cluster, "body binary", **options).collect())

    in_queue = {int(n) for n, result in enumerate(sent) if result.queue == queue}
    assert bodies(topic=topic) == list(range(20))
    assert bodies(topic=topic, subExpression="odd") == list(range(1, 20, 2))
    assert bodies(assign=only) == sorted(in_queue)
    assert bodies(assign=only, startingOffsets=edge) == sorted(in_queue)[-4:]
    assert bodies(assign=only, endingOffsets=edge) == sorted(in_queue)[:-4]
    assert bodies(assign=only, startingOffsets=edge, maxRecordsPerPartition="1") == sorted(in_queue)[-4:]
    assert bodies(topic=topic, endingTimestamp="1") == []
    assert bodies(topic=topic, startingTimestamp="2001-01-01T00:00:00Z") == list(range(20))
    assert bodies(subscribePattern=topic[:-1] + ".") == list(range(20))


def test_data_loss(spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=1)
    with rmq.Producer(cluster.namesrv, group="spark") as producer:
        queue = producer.send(topic, "only").queue
    beyond = json.dumps({topic: {queue.broker: {"0": 50}}})
    with pytest.raises(PySparkException, match="ends at 50, the queue at 1; failOnDataLoss=false reads what is there"):
        read(spark, cluster, topic=topic, endingOffsets=beyond).collect()
    assert read(spark, cluster, topic=topic, endingOffsets=beyond, failOnDataLoss="false").count() == 1


def test_nothing_to_write_and_nothing_to_read(
    spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    write(spark.range(0).selectExpr("string(id) body"), cluster, topic=topic)
    assert read(spark, cluster, topic=topic).count() == 0


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        (["if(id = 1500, null, 'x') body"], {}, "partition 0, row 1500: the body is null"),
        (["'x' body", "if(id = 1500, 'a\\u0001', 'a') tags"], {}, "partition 0, row 1500: "),
        (["'x' body", "id value"], {}, "a write has no column 'value'"),
        (["'x' body"], {"batchSize": "1"}, "unknown option batchsize; did you mean batchBytes?"),
        (["'x' body"], {"topic": "not a topic"}, "option topic: the topic name 'not a topic'"),
    ],
)
def test_a_bad_write_says_what_is_wrong(
    spark: SparkSession,
    cluster: LocalCluster,
    make_topic: MakeTopic,
    columns: list[str],
    options: dict[str, str],
    reason: str,
) -> None:
    rows = spark.range(0, 2000, 1, 1).selectExpr(*columns)
    with pytest.raises(PySparkException) as failed:
        write(rows, cluster, **{"topic": make_topic(), **options})
    assert reason in str(failed.value)


def test_overwriting_is_refused(spark: SparkSession, make_topic: MakeTopic) -> None:
    topic = make_topic()
    rows = spark.range(1).selectExpr("string(id) body")
    with pytest.raises(PySparkException, match="a topic cannot be overwritten"):
        rows.write.format("rocketmq").mode("overwrite").option("topic", topic).save()
