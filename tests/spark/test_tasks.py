"""What a Spark worker runs for a task, without Spark: pauses longer than every timeout lose and repeat nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from rocketcore.client.arrow_delivery import BodyDelivery
from rocketcore.message import SHARDING_KEY
from rocketcore.spark.connection import connect
from rocketcore.spark.options import SinkOptions, SourceOptions, parse_options
from rocketcore.spark.range_task import Projection, RangePartition
from rocketcore.spark.reader import RocketMQReader
from rocketcore.spark.source import RocketMQDataSource
from rocketcore.spark.task_summary import TaskSummary
from rocketcore.spark.writer import RocketMQWriter
from rocketcore.transport.client import RemotingClient
from tests.spark.rows import planned

MakeTopic = Callable[..., str]

PAUSE_SECONDS = 0.5
TIMEOUT_MILLIS = "200"


def batches(count: int, rows: int) -> list[pa.RecordBatch]:
    """``count`` batches of ``rows`` rows whose bodies are numbered from 0."""
    return [
        pa.record_batch({"body": [f"{number}" for number in range(begin, begin + rows)]})
        for begin in range(0, count * rows, rows)
    ]


def pausing(items: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hand over each item after time that is longer than the timeout of a request."""
    for item in items:
        yield item
        threading.Event().wait(PAUSE_SECONDS)


def stored(cluster: LocalCluster, topic: str) -> list[int]:
    return sorted(int(body) for body in rmq.read_arrow(cluster.namesrv, topic=topic)["body"].to_pylist())


def writer(cluster: LocalCluster, topic: str, **options: str) -> RocketMQWriter:
    return planned(parse_options(SinkOptions, {"nameServer": cluster.namesrv, "topic": topic, **options}))


def reader(cluster: LocalCluster, topic: str, **options: str) -> RocketMQReader:
    settings = parse_options(SourceOptions, {"nameServer": cluster.namesrv, "topic": topic, **options})
    return RocketMQReader(settings, Projection(("body",)))


@pytest.mark.parametrize("batch_bytes", ["1m", "2k"])
def test_rows_that_come_slowly_are_sent_once(cluster: LocalCluster, make_topic: MakeTopic, batch_bytes: str) -> None:
    """A pause of the rows looked like an answer that was late: its batch was sent again, or the write failed."""
    topic = make_topic(queues=1)
    slow = writer(cluster, topic, sendTimeoutMs=TIMEOUT_MILLIS, requestTimeoutMs=TIMEOUT_MILLIS, batchBytes=batch_bytes)
    summary = slow.write(pausing(batches(3, 500)))
    assert isinstance(summary, TaskSummary)
    assert (summary.rows, summary.retries) == (1500, 0)
    assert stored(cluster, topic) == list(range(1500))


def test_rows_leave_while_the_next_are_waited_for(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """What was handed over is stored although no further row comes."""
    topic = make_topic(queues=1)

    def upstream() -> Iterator[pa.RecordBatch]:
        first, second = batches(2, 300)
        yield first
        for _ in range(200):
            if len(seen := stored(cluster, topic)) == 300:
                break
            threading.Event().wait(0.05)
        yield second
        result.append(len(seen))

    result: list[int] = []
    writer(cluster, topic).write(upstream())
    assert result == [300]
    assert stored(cluster, topic) == list(range(600))


def test_batches_leave_on_the_thread_of_the_task(
    cluster: LocalCluster, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that take turns wake each other six times a body."""
    topic = make_topic(queues=4)
    written: list[int] = []
    answered: list[int] = []
    write, take = RemotingClient.invoke_nowait, BodyDelivery._handle_answer

    def invoke_nowait(*arguments: Any) -> Any:
        written.append(threading.get_ident())
        return write(*arguments)

    def taken(*arguments: Any) -> None:
        answered.append(threading.get_ident())
        take(*arguments)

    monkeypatch.setattr(RemotingClient, "invoke_nowait", invoke_nowait)
    monkeypatch.setattr(BodyDelivery, "_handle_answer", taken)
    summary = writer(cluster, topic, batchBytes="16k").write(iter(batches(60, 500)))
    assert isinstance(summary, TaskSummary)
    assert summary.rows == 30_000
    here = threading.get_ident()
    assert written.count(here) > len(written) // 2
    assert here in answered
    assert stored(cluster, topic) == list(range(30_000))


def test_batches_that_are_used_slowly_are_pulled_once(
    cluster: LocalCluster, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(queues=1)
    writer(cluster, topic).write(iter(batches(1, 3000)))
    slow = reader(cluster, topic, requestTimeoutMs=TIMEOUT_MILLIS, pullBatchBytes="16k", arrowBatchBytes="16k")
    found: list[int] = []
    count = 0
    with caplog.at_level("INFO"):
        for partition in slow.partitions():
            assert isinstance(partition, RangePartition)
            for batch in slow.read(partition):
                found += [int(body) for body in batch["body"].to_pylist()]
                count += 1
                if count <= 3:
                    threading.Event().wait(PAUSE_SECONDS)
    assert sorted(found) == list(range(3000))
    assert count > 3
    assert "asked again" not in caplog.text


def test_a_copy_keeps_groups_together(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """A read has a message's group among the properties that RocketMQ sets, and a write as a column."""
    topic, copy = make_topic(queues=4), make_topic(queues=4)
    with rmq.Producer(cluster.namesrv, group="p") as producer:
        for number in range(60):
            properties = {"n": str(number)} if number % 2 else None
            producer.send(rmq.Message(topic, f"{number}", properties=properties, message_group=f"group {number % 6}"))
        producer.send(rmq.Message(topic, "60"))
    source = RocketMQDataSource({"nameServer": cluster.namesrv, "topic": topic, "includeProperties": "true"})
    schema = source.schema()
    reading = source.reader(schema)
    rows = [batch for partition in reading.partitions() for batch in reading.read(partition)]
    options = {"topic": copy, "ignoreSystemColumns": "true", "queueSelector": "hash"}
    RocketMQDataSource({"nameServer": cluster.namesrv, **options}).writer(schema, False).write(iter(rows))
    assert stored(cluster, copy) == list(range(61))

    def groups(name: str) -> dict[str, list[tuple[int, int]]]:
        """Group → its messages in the order of their queue, each with its number among all."""
        read = rmq.read_arrow(cluster.namesrv, topic=name, columns=("brokerName", "queueId", "body", "properties"))
        found: dict[str, list[tuple[int, int]]] = {}
        for row in read.to_pylist():
            queue = 10 * ord(row["brokerName"][-1]) + row["queueId"]
            group = dict(row["properties"]).get(SHARDING_KEY)
            if group is not None:
                found.setdefault(group, []).append((queue, int(row["body"])))
        return found

    copied = groups(copy)
    assert copied.keys() == groups(topic).keys() == {f"group {number}" for number in range(6)}
    for group, messages in copied.items():
        assert len({queue for queue, _ in messages}) == 1
        assert [number for _, number in messages] == list(range(int(group[-1]), 60, 6))


def test_the_loop_runs_while_nobody_asks(cluster: LocalCluster) -> None:
    connection = connect(SourceOptions(name_server=cluster.namesrv, topics=("T",)))
    happened = threading.Event()

    async def plan() -> None:
        import asyncio

        asyncio.get_running_loop().call_later(0.01, happened.set)

    connection.run(plan())
    assert happened.wait(10)
