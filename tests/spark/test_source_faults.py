"""The source while brokers die, and over topics that are not plain: every message once. Without Spark around it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy
import pyarrow as pa
import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from rocketcore.admin.client import Admin
from rocketcore.client import api
from rocketcore.client.api import PullResult, PullStatus
from rocketcore.client.arrow_ranges import QueueRange
from rocketcore.client.arrow_reader import RangeReader, ReadSettings
from rocketcore.client.instance import ClientInstance
from rocketcore.client.runtime import THREADS
from rocketcore.errors import ConfigError, OffsetOutOfRange, RequestTimeout, TransportError
from rocketcore.message import MessageQueue
from rocketcore.protocol.headers.message import PullMessageRequestHeader
from rocketcore.service import ManualClock
from rocketcore.spark.options import SinkOptions, SourceOptions, parse_options
from rocketcore.spark.range_task import Projection, RangePartition
from rocketcore.spark.reader import RocketMQReader
from rocketcore.spark.writer import RocketMQWriter
from rocketcore.transport.blocking.client import run_sync
from tests.spark.halting import at_log, halting_broker

MakeTopic = Callable[..., str]


def reader(cluster: LocalCluster, topic: str, *columns: str, **options: str) -> RocketMQReader:
    settings = parse_options(SourceOptions, {"nameServer": cluster.namesrv, "topic": topic, **options})
    return RocketMQReader(settings, Projection(columns or ("body",)))


def batches(source: RocketMQReader) -> Iterator[pa.RecordBatch]:
    for partition in source.partitions():
        yield from source.read(partition)


def fill(cluster: LocalCluster, topic: str, bodies: list[str]) -> None:
    options = parse_options(SinkOptions, {"nameServer": cluster.namesrv, "topic": topic})
    RocketMQWriter(options).write(iter([pa.record_batch({"body": bodies})]))


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, in_process=False, flush="async") as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=2)
        yield cluster


def test_a_broker_that_is_killed_and_comes_back(killable: LocalCluster) -> None:
    """A pull had three attempts within 0.4 s."""
    fill(killable, "T", [f"{number}" for number in range(20_000)])
    source = reader(killable, "T", pullBatchBytes="16k", arrowBatchBytes="16k", requestTimeoutMs="2000")
    found: list[int] = []
    starts: list[threading.Timer] = []
    for batch in batches(source):
        found += [int(body) for body in batch["body"].to_pylist()]
        if not starts and len(found) > 5000:
            killable.stop_broker(kill=True)
            starts.append(threading.Timer(1.5, killable.start_broker))
            starts[0].start()
    starts[0].join(60)
    assert sorted(found) == list(range(20_000))


def test_a_broker_that_stays_away(killable: LocalCluster) -> None:
    fill(killable, "T", [f"{number}" for number in range(20_000)])
    source = reader(killable, "T", pullBatchBytes="16k", arrowBatchBytes="16k", fetchTimeoutMs="700")
    rows = batches(source)
    next(rows)
    killable.stop_broker(kill=True)
    with pytest.raises(TransportError):
        for _ in rows:
            pass


def test_a_read_is_planned_once_a_broker_answers(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """The driver gave up after one request, where a task would have waited."""
    topic = make_topic(queues=2)
    fill(cluster, topic, [f"{number}" for number in range(100)])
    address_of = cluster.broker_addresses[0]
    with halting_broker(address_of) as (address, moves):
        moves.clear()
        address_map = f'{{"{address_of}": "{address}"}}'
        source = reader(cluster, topic, brokerAddressMap=address_map, requestTimeoutMs="200")
        with at_log("rocketcore.client.attempts", "no answer within", moves.set):
            found = [int(body) for batch in batches(source) for body in batch["body"].to_pylist()]
        assert sorted(found) == list(range(100))
        moves.clear()
        source = reader(cluster, topic, brokerAddressMap=address_map, requestTimeoutMs="200", fetchTimeoutMs="500")
        with pytest.raises(RequestTimeout, match=r"no answer within 0\.\d+ s \(\d attempts within 0\.5 s\)"):
            source.partitions()


def test_a_read_is_planned_once_a_broker_is_back(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, flush="async") as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=1)
        fill(cluster, "T", ["a", "b"])
        cluster.stop_broker()
        start = threading.Thread(target=cluster.start_broker)
        with at_log("rocketcore.client.attempts", "no broker is registered", start.start):
            source = reader(cluster, "T", requestTimeoutMs="5001")  # a connection of its own, that knows no route
            assert sum(batch.num_rows for batch in batches(source)) == 2
        start.join(30)


def test_what_is_gone_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged message is not served; the error named some thousand offsets that it might have had."""
    with LocalCluster(tmp_path, flush="async") as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=1)
        fill(cluster, "T", [f"body {number}" for number in range(1000)])
        log = next((tmp_path / "broker-a" / "commitlog").iterdir())
        with log.open("r+b") as file:
            for body in (b"body 123", b"body 500", b"body 501"):
                file.seek(log.read_bytes().index(body + b"\x01T"))
                file.write(b"B")
        gone = "3 messages of MessageQueue.* are gone, those at 123, 500–501"
        with pytest.raises(OffsetOutOfRange, match=f"{gone}.*failOnDataLoss=false reads what is there"):
            list(batches(reader(cluster, "T")))
        with caplog.at_level("WARNING"):
            found = [row for batch in batches(reader(cluster, "T", failOnDataLoss="false")) for row in batch["body"]]
        assert len(found) == 997
    assert re.search(gone, caplog.text)


def test_a_slave_that_lags_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a slave does not have yet its master has."""
    queue = MessageQueue("T", "broker-a", 0)
    asked: list[tuple[str, int]] = []

    class Routes:
        def subscribe_address(self, broker: str, broker_id: int = 0) -> tuple[str, int]:
            return ("slave", 1) if broker_id else ("master", 0)

    async def pull_message(
        remoting: object, address: str, header: PullMessageRequestHeader, timeout: float
    ) -> PullResult:
        asked.append((address, header.queue_offset))
        if address == "slave":
            return PullResult(PullStatus.OFFSET_ILLEGAL, 7, 0, 7, 1, 0, b"")
        advised = 1 if header.queue_offset == 0 else 0
        return PullResult(PullStatus.FOUND, min(10, header.queue_offset + 8), 0, 10, advised, 0, b"")

    monkeypatch.setattr(api, "pull_message", pull_message)
    instance = SimpleNamespace(routes=Routes(), remoting=None, clock=ManualClock(), runtime=THREADS)
    pulls = RangeReader(cast(ClientInstance, instance), QueueRange(queue, 0, 10), ReadSettings())
    answers = run_sync(pulls.next_answers())
    assert [(answer.begin, answer.end) for answer in answers] == [(0, 8), (8, 10)]
    assert asked == [("master", 0), ("slave", 8), ("master", 8)]


class _PassingTime:
    """A runtime whose pauses only move the clock."""

    concurrent = False

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    async def pause(self, seconds: float) -> None:
        self._clock.advance(seconds)


@pytest.mark.parametrize("status", [PullStatus.NO_MATCHED_MSG, PullStatus.NO_NEW_MSG, PullStatus.FOUND])
@pytest.mark.parametrize("silent_seconds", [60, 200])
def test_a_queue_that_its_broker_is_at_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, silent_seconds: int, status: PullStatus
) -> None:
    """Five answers without a message within a second, and the whole range counted as lost."""
    clock = ManualClock()
    begin = clock.monotonic()
    routes = SimpleNamespace(subscribe_address=lambda broker, broker_id=0: ("master", 0))
    instance = SimpleNamespace(routes=routes, remoting=None, clock=clock, runtime=_PassingTime(clock))

    async def pull_message(
        remoting: object, address: str, header: PullMessageRequestHeader, timeout: float
    ) -> PullResult:
        if clock.monotonic() - begin < silent_seconds:
            return PullResult(status, header.queue_offset, 0, 10, 0, 0, b"")
        return PullResult(PullStatus.FOUND, 10, 0, 10, 0, 0, b"")

    monkeypatch.setattr(api, "pull_message", pull_message)
    settings = ReadSettings(fail_on_data_loss=False)
    queue_range = QueueRange(MessageQueue("T", "broker-a", 0), 0, 10)
    pulls = RangeReader(cast(ClientInstance, instance), queue_range, settings)
    with caplog.at_level("WARNING"):
        answers = run_sync(pulls.next_answers())
    late = silent_seconds > settings.fetch_timeout
    assert [(answer.begin, answer.end) for answer in answers] == ([] if late else [(0, 10)])
    assert ("10 messages" in caplog.text) is late


def test_compressed_bodies_stay_within_a_batch(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """What was compressed counted as little: a topic of zeros made one record batch of 60 times the size asked for."""
    topic = make_topic(queues=1)
    noise = numpy.random.default_rng(7)
    bodies = [bytes(100_000) + noise.bytes(20) for _ in range(40)] + [b"small"]
    with rmq.Producer(cluster.namesrv, group="spark") as producer:
        for body in bodies:
            producer.send(topic, body)
    sizes = []
    found = []
    for batch in batches(reader(cluster, topic, "body", "queueOffset", arrowBatchBytes="256k")):
        batch.validate(full=True)
        found += batch["body"].to_pylist()
        sizes.append(batch.nbytes)
    assert sorted(found) == sorted(bodies)
    assert max(sizes) < 256 * 1024 + 110_000
    assert len(sizes) >= 14
    assert sum(batch.num_rows for batch in batches(reader(cluster, topic, "queueOffset"))) == 41


def test_several_ranges_in_a_task(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=8)
    fill(cluster, topic, [f"{number}" for number in range(100)])
    with rmq.Producer(cluster.namesrv, group="spark") as producer:
        for number in range(100, 400):
            producer.send(topic, f"{number}")
    source = reader(cluster, topic, maxPartitions="3")
    partitions = source.partitions()
    assert len(partitions) == 3
    found = []
    for partition in partitions:
        assert isinstance(partition, RangePartition)
        assert len(partition.ranges) > 1
        for batch in source.read(partition):
            found += [int(body) for body in batch["body"].to_pylist()]
    assert sorted(found) == list(range(400))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sqlExpression": "price >"}, "option sqlExpression: "),
        ({"minPartitions": "5", "maxPartitions": "4"}, "minPartitions is more than maxPartitions"),
    ],
)
def test_what_the_broker_does_not_take_is_said_in_the_driver(
    cluster: LocalCluster, make_topic: MakeTopic, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        reader(cluster, make_topic(), **options).partitions()


def test_an_unknown_group_is_said_in_the_driver(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, properties={"autoCreateSubscriptionGroup": "false"}) as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=1)
        with pytest.raises(ConfigError, match=r"option groupId is 'SPARK_SOURCE', but .*does not exist"):
            reader(cluster, "T").partitions()


def test_a_schema_of_a_table(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """Spark compares names and nullability exactly."""
    topic = make_topic(queues=1)
    fill(cluster, topic, ["a", "b"])
    settings = parse_options(SourceOptions, {"nameServer": cluster.namesrv, "topic": topic})
    source = RocketMQReader(settings, Projection(("body", "queueId"), (("Body", False), ("queueid", True))))
    (batch,) = batches(source)
    assert batch.schema.equals(pa.schema([pa.field("Body", pa.binary(), nullable=False), ("queueid", pa.int32())]))
    assert batch.num_rows == 2


def test_many_tasks_of_few_messages_are_warned_of(
    cluster: LocalCluster, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(queues=1)
    fill(cluster, topic, [f"{number}" for number in range(200)])
    with caplog.at_level("WARNING"):
        assert len(reader(cluster, topic, minPartitions="50").partitions()) == 50
    assert "50 tasks of some 4 messages each" in caplog.text
