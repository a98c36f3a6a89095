"""What the Spark source and sink are made of, on Apache's servers of both lines."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

import rocketcore as rmq
from rocketcore.spark.options import SinkOptions, SourceOptions, parse_options
from rocketcore.spark.range_task import Projection
from rocketcore.spark.reader import RocketMQReader
from tests.fixtures.topics import await_messages, new_topic
from tests.peers import ApacheCluster
from tests.spark.rows import planned

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def cluster(apache_line: ApacheCluster) -> ApacheCluster:
    with rmq.Admin(apache_line.namesrv) as admin:
        admin.create_topic("T", queues=1, exist_ok=True)
    return apache_line


def bodies(cluster: ApacheCluster, **options: str) -> list[int]:
    settings = parse_options(SourceOptions, {"nameServer": cluster.namesrv, **options})
    reader = RocketMQReader(settings, Projection(("body",)))
    found = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            found += [int(body) for body in batch["body"].to_pylist()]
    return sorted(found)


def test_times_as_edges(cluster: ApacheCluster) -> None:
    """4.9 answers with a neighbour of the message meant, and with the last one when all are older."""
    with rmq.Producer(cluster.namesrv, group="spark") as producer:
        for number in range(40):
            producer.send("T", f"{number}")
            if number % 8 == 0:
                time.sleep(0.05)  # so that messages have different times, and some the same
    await_messages(cluster.namesrv, "T", 40)
    table = rmq.read_arrow(cluster.namesrv, topic="T", columns=["body", "storeTimestamp"])
    stored = {int(row["body"]): row["storeTimestamp"] for row in table.to_pylist()}
    later = datetime.now(UTC) + timedelta(minutes=5)
    assert bodies(cluster, topic="T", endingTimestamp=_millis(later)) == list(range(40))
    moments = {time_ + timedelta(milliseconds=step) for time_ in stored.values() for step in (-1, 0, 1, 20)}
    for moment in sorted(moments):
        text = _millis(moment)
        assert bodies(cluster, topic="T", startingTimestamp=text) == [n for n in stored if stored[n] >= moment]
        assert bodies(cluster, topic="T", endingTimestamp=text) == [n for n in stored if stored[n] < moment]


def _millis(moment: datetime) -> str:
    return str(round(moment.timestamp() * 1000))


@pytest.mark.parametrize("selector", ["roundrobin", "hash"])
def test_there_and_back(cluster: ApacheCluster, selector: str) -> None:
    """Apache's brokers pass over what only ours know."""
    topic = new_topic(cluster.namesrv)
    options = parse_options(SinkOptions, {"nameServer": cluster.namesrv, "topic": topic, "queueSelector": selector})
    numbers = range(10_000)
    rows = pa.record_batch({"body": [f"{n}" for n in numbers], "shardingKey": [f"key {n % 9}" for n in numbers]})
    planned(options).write(iter([rows]))
    await_messages(cluster.namesrv, topic, 10_000)
    assert bodies(cluster, topic=topic) == list(numbers)
