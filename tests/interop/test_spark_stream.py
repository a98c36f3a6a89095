"""Streams of Spark between topics of Apache's servers, of both lines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

import rocketcore as rmq
from tests.fixtures.topics import await_messages
from tests.peers import ApacheCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(300)]


def copy(spark: SparkSession, source: dict[str, str], target: dict[str, str]) -> None:
    rows = spark.readStream.format("rocketmq").options(**source).load().selectExpr("body", "tags", "msgId as keys")
    query = rows.writeStream.format("rocketmq").options(**target).trigger(availableNow=True).start()
    assert query.awaitTermination(120), query.lastProgress


def numbers(cluster: ApacheCluster, topic: str, count: int) -> Counter[int]:
    """Read a topic once so many messages are in its queues."""
    await_messages(cluster.namesrv, topic, count)
    bodies = rmq.read_arrow(cluster.namesrv, topic=topic, columns=["body"])["body"].to_pylist()
    return Counter(map(int, bodies))


def test_a_stream_goes_on_at_its_checkpoint(spark: SparkSession, apache_line: ApacheCluster, tmp_path: Path) -> None:
    """Every message is copied once; the group of the source has its offsets at the broker, as ordinary tools show."""
    topic, copied, group = (f"{name}-{uuid4().hex[:12]}" for name in ("Spark", "Spark", "group"))
    with rmq.Admin(apache_line.namesrv) as admin:
        for name in (topic, copied):
            admin.create_topic(name, queues=4)
        admin.create_group(group)
        source = {"nameServer": apache_line.namesrv, "topic": topic, "groupId": group}
        target = {"nameServer": apache_line.namesrv, "topic": copied, "checkpointLocation": str(tmp_path)}
        for begin, count in ((0, 1000), (1000, 1500)):
            with rmq.Producer(apache_line.namesrv, group="spark") as producer:
                for number in range(begin, count):
                    producer.send_nowait(rmq.Message(topic, f"{number}", tag="a"))
            assert numbers(apache_line, topic, count) == Counter(range(count))
            copy(spark, source, target)
            assert numbers(apache_line, copied, count) == Counter(range(count))
        offsets = [admin.consumer_offset(group, queue) for queue in admin.queues(topic)]
    assert sum(offset or 0 for offset in offsets) == 1500
