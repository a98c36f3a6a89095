"""Spark and the Java clients on Apache's servers of both lines: each reads what the other wrote."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.topics import await_messages, new_group, new_topic
from tests.peers import ApacheCluster, JavaDriver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(300)]

JavaDrivers = Callable[[str, str], JavaDriver]

FROM_FIRST = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}


@pytest.fixture
def driver(apache_line: ApacheCluster, java: JavaDrivers) -> JavaDriver:
    return java(apache_line.version, apache_line.namesrv)


@pytest.fixture
def topic(apache_line: ApacheCluster) -> str:
    return new_topic(apache_line.namesrv)


def read(spark: SparkSession, cluster: ApacheCluster, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").options(nameServer=cluster.namesrv, **options).load()


def read_all(spark: SparkSession, cluster: ApacheCluster, count: int, **options: str) -> list[Any]:
    """Read once so many messages are in the queues."""
    await_messages(cluster.namesrv, options["topic"], count)
    rows = read(spark, cluster, **options).collect()
    assert len(rows) == count
    return rows


def test_java_messages_as_rows(spark: SparkSession, apache_line: ApacheCluster, driver: JavaDriver, topic: str) -> None:
    """Single ones, a batch, a body that the client compresses; columns are what Java says of each message."""
    handle = driver.call("producer.start", group=new_group())["handle"]
    big = "compressed " * 1000
    properties = {"number": "7", "name": "ä € 😀"}
    begin = datetime.now(UTC).replace(microsecond=0)
    one = driver.call(
        "producer.send", handle=handle, topic=topic, text="ü one", tags="a", keys="k1 k2", properties=properties, flag=3
    )
    driver.call("producer.send", handle=handle, topic=topic, text=big, tags="b")
    driver.call("producer.sendBatch", handle=handle, topic=topic, messages=[{"text": f"part {i}"} for i in range(3)])
    driver.call("producer.shutdown", handle=handle)

    rows = read_all(spark, apache_line, 5, topic=topic, includeProperties="true", includeHosts="true")
    by_body = {bytes(row["body"]).decode(): row for row in rows}
    assert set(by_body) == {"ü one", big, "part 0", "part 1", "part 2"}
    row = by_body["ü one"]
    place = one["messageQueue"]
    assert (row["topic"], row["brokerName"], row["queueId"]) == (topic, place["brokerName"], place["queueId"])
    assert (row["queueOffset"], row["msgId"]) == (one["queueOffset"], one["msgId"])
    assert (row["tags"], row["keys"], row["flag"], row["reconsumeTimes"]) == ("a", "k1 k2", 3, 0)
    assert {name: row["properties"][name] for name in properties} == properties
    assert row["bornHost"].startswith("127.0.0.1:")
    assert row["storeHost"] == apache_line.brokers[0]
    assert (by_body[big]["tags"], by_body["part 0"]["tags"]) == ("b", None)
    for row in rows:
        for name in ("bornTimestamp", "storeTimestamp"):
            assert begin <= row[name].replace(tzinfo=UTC) <= datetime.now(UTC) + timedelta(seconds=1)


def test_rows_as_java_messages(spark: SparkSession, apache_line: ApacheCluster, driver: JavaDriver, topic: str) -> None:
    """A Java consumer takes every row once, with its tag, keys, properties and the id that Spark gave it."""
    count = 3000
    rows = spark.range(0, count, 1, 3).selectExpr(
        "concat('row ', id) body",
        "if(id % 2 = 0, 'even', 'odd') tags",
        "concat('key-', id) keys",
        "map('number', string(id), 'name', 'ä € 😀') properties",
        "concat('group ', id % 7) shardingKey",
        "int(id % 5) flag",
    )
    target = {"nameServer": apache_line.namesrv, "topic": topic, "writeId": "abc", "batchBytes": "32k"}
    rows.write.format("rocketmq").mode("append").options(queueSelector="hash", **target).save()
    consumer = driver.call("push.start", group=new_group(), topic=topic, expression="even", options=FROM_FIRST)[
        "handle"
    ]
    received: list[dict[str, Any]] = []
    while len(received) < count // 2:
        batch = driver.call("push.consumed", handle=consumer, count=1, timeoutMillis=30_000)
        assert batch, f"{len(received)} of {count // 2} messages came"
        received += batch
    driver.call("push.shutdown", handle=consumer)
    by_number = {int(message["properties"]["number"]): message for message in received}
    assert sorted(by_number) == list(range(0, count, 2))
    queues: dict[str, set[int]] = {}
    for number, message in by_number.items():
        assert base64.b64decode(message["body"]) == b"row %d" % number
        assert (message["tags"], message["keys"], message["flag"]) == ("even", f"key-{number}", number % 5)
        assert message["properties"]["name"] == "ä € 😀"
        assert message["msgId"] == f"{0xABC:016X}{number // 1000:08X}{number % 1000:08X}"
        queues.setdefault(f"group {number % 7}", set()).add(message["queueId"])
    assert all(len(ids) == 1 for ids in queues.values())


def test_filters_of_the_broker(spark: SparkSession, apache_line: ApacheCluster, driver: JavaDriver, topic: str) -> None:
    handle = driver.call("producer.start", group=new_group())["handle"]
    for number in range(20):
        driver.call(
            "producer.send", handle=handle, topic=topic, text=f"{number}", tags="abc"[number % 3],
            properties={"number": f"{number}"},
        )  # fmt: skip
    driver.call("producer.shutdown", handle=handle)
    read_all(spark, apache_line, 20, topic=topic)

    def numbers(**options: str) -> list[int]:
        return sorted(int(row["body"]) for row in read(spark, apache_line, topic=topic, **options).collect())

    assert numbers(subExpression="a || b") == [number for number in range(20) if number % 3 < 2]
    assert numbers(sqlExpression="number > 7 and number between 0 and 11") == [8, 9, 10, 11]
    whole = json.dumps({topic: {"broker-a": {f"{queue}": -1 for queue in range(4)}}})
    assert numbers(sqlExpression="TAGS = 'c'", endingOffsets=whole, maxRecordsPerPartition="2") == list(range(2, 20, 3))


def test_times_as_edges(spark: SparkSession, apache_line: ApacheCluster, driver: JavaDriver, topic: str) -> None:
    """A read up to a time in the future has the last message of every queue: a broker of 4.9 would leave it out."""
    handle = driver.call("producer.start", group=new_group())["handle"]
    for number in range(12):
        driver.call("producer.send", handle=handle, topic=topic, text=f"{number}")
    driver.call("producer.shutdown", handle=handle)
    later = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    read_all(spark, apache_line, 12, topic=topic, startingTimestamp="2001-01-01T00:00:00Z", endingTimestamp=later)
    assert not read(spark, apache_line, topic=topic, startingTimestamp=later).count()
