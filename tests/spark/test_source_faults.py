"""The source while brokers die, and over topics that are not plain: every message once. Without Spark around it."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy
import pyarrow as pa
import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from rocketcore.admin.client import Admin
from rocketcore.client import arrow_reader
from rocketcore.client.api import PullStatus
from rocketcore.client.arrow_ranges import QueueRange
from rocketcore.client.arrow_reader import RangeReader, ReadSettings
from rocketcore.client.instance import ClientInstance
from rocketcore.errors import ConfigError, OffsetOutOfRange, RequestTimeout, TransportError
from rocketcore.message import MessageQueue
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.protocol.headers.message import PullMessageResponseHeader
from rocketcore.service import ManualClock
from rocketcore.spark import planning
from rocketcore.spark.options import SourceOptions, parse_options
from rocketcore.spark.range_task import Projection, RangePartition
from rocketcore.spark.reader import RocketMQReader
from tests.spark.halting import at_log, halting_broker
from tests.spark.rows import write_bodies

MakeTopic = Callable[..., str]


def reader(cluster: LocalCluster, topic: str, *columns: str, **options: str) -> RocketMQReader:
    settings = parse_options(SourceOptions, {"nameServer": cluster.namesrv, "topic": topic, **options})
    return RocketMQReader(settings, Projection(columns or ("body",)))


def batches(source: RocketMQReader) -> Iterator[pa.RecordBatch]:
    for partition in source.partitions():
        yield from source.read(partition)


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, in_process=False, flush="async") as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=2)
        yield cluster


def test_a_broker_that_is_killed_and_comes_back(killable: LocalCluster) -> None:
    """A pull had three attempts within 0.4 s."""
    write_bodies(killable, "T", [f"{number}" for number in range(20_000)])
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
    write_bodies(killable, "T", [f"{number}" for number in range(20_000)])
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
    write_bodies(cluster, topic, [f"{number}" for number in range(100)])
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
        write_bodies(cluster, "T", ["a", "b"])
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
        write_bodies(cluster, "T", [f"body {number}" for number in range(1000)])
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


class _Pulled:
    """A broker whose answers a test makes: a client that asks one thing at a time."""

    def __init__(self, answer: Callable[[str, int], tuple[PullStatus, int, int]], clock: ManualClock) -> None:
        self.asked: list[tuple[str, int]] = []
        self.clock = clock
        self.remoting = self.routes = self.runtime = self
        self._answer = answer

    def find(self, topic: str) -> object:
        return topic

    def subscribe_address(self, broker: str, broker_id: int = 0) -> tuple[str, int]:
        return ("slave", 1) if broker_id else ("master", 0)

    def invoke_nowait(self, address: str, command: RemotingCommand, timeout: float) -> None:
        """There is no connection that is open."""

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        offset = int((command.ext_fields or {})["queueOffset"])
        self.asked.append((address, offset))
        status, following, advised = self._answer(address, offset)
        header = PullMessageResponseHeader(
            next_begin_offset=following, min_offset=0, max_offset=10, suggest_which_broker_id=advised
        )
        response = RemotingCommand.response(command, status.value, None, header)
        [answer] = FrameDecoder().feed(response.encode())
        return answer

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None:
        raise AssertionError("pulls have answers")

    def close_channel(self, address: str) -> None:
        raise AssertionError("no one closes channels here")

    async def pause(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def reader(self, settings: ReadSettings) -> RangeReader:
        return RangeReader(cast(ClientInstance, self), [QueueRange(MessageQueue("T", "broker-a", 0), 0, 10)], settings)


async def _all_answers(reader: RangeReader) -> list[tuple[int, int]]:
    answers = []
    while part := await reader.next_answers():
        answers += [(answer.begin, answer.end) for answer in part]
    await reader.close()
    return answers


def test_a_slave_that_lags_is_no_loss() -> None:
    """What a slave does not have yet its master has."""

    def answer(address: str, offset: int) -> tuple[PullStatus, int, int]:
        if address == "slave":
            return PullStatus.OFFSET_ILLEGAL, 7, 1
        return PullStatus.FOUND, min(10, offset + 8), int(offset == 0)

    broker = _Pulled(answer, ManualClock())
    assert asyncio.run(_all_answers(broker.reader(ReadSettings()))) == [(0, 8), (8, 10)]
    assert broker.asked == [("master", 0), ("slave", 8), ("master", 8)]


@pytest.mark.parametrize("status", [PullStatus.NO_MATCHED_MSG, PullStatus.NO_NEW_MSG, PullStatus.FOUND])
@pytest.mark.parametrize("silent_seconds", [60, 200])
def test_a_queue_that_its_broker_is_at_is_waited_for(
    caplog: pytest.LogCaptureFixture, silent_seconds: int, status: PullStatus
) -> None:
    """Five answers without a message within a second, and the whole range counted as lost."""
    clock = ManualClock()
    begin = clock.monotonic()

    def answer(address: str, offset: int) -> tuple[PullStatus, int, int]:
        if clock.monotonic() - begin < silent_seconds:
            return status, offset, 0
        return PullStatus.FOUND, 10, 0

    settings = ReadSettings(fail_on_data_loss=False)
    with caplog.at_level("WARNING"):
        answers = asyncio.run(_all_answers(_Pulled(answer, clock).reader(settings)))
    late = silent_seconds > settings.fetch_timeout
    assert answers == ([] if late else [(0, 10)])
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
    write_bodies(cluster, topic, [f"{number}" for number in range(100)])
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


def test_each_topic_is_pulled_from_each_broker_in_the_driver(
    cluster: LocalCluster, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a broker does not give of one it may give of another."""
    asked = []
    probe = planning.probe  # type: ignore[attr-defined]

    async def noted(instance: ClientInstance, queue: MessageQueue, offset: int, *others: Any) -> None:
        asked.append((queue.topic, queue.broker))
        await probe(instance, queue, offset, *others)

    monkeypatch.setattr(planning, "probe", noted)
    topics = make_topic(queues=4), make_topic(queues=2)
    reader(cluster, ",".join(topics)).partitions()
    assert sorted(asked) == sorted((topic, f"broker-{name}") for topic in topics for name in "ab")


def test_short_answers_are_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrow_reader._note_narrow.cache_clear()
    with LocalCluster(tmp_path, flush="async", properties={"maxPullCount": "32"}) as cluster:
        write_bodies(cluster, "T", [f"{number}" for number in range(200)], createTopic="true")
        for _ in range(2):
            assert sum(batch.num_rows for batch in batches(reader(cluster, "T"))) == 200
    assert caplog.text.count("broker broker-a sends 32 messages an answer, which is slow: its maxTransferCountOn") == 1


def test_an_unknown_group_is_said_in_the_driver(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, properties={"autoCreateSubscriptionGroup": "false"}) as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=1)
        with pytest.raises(ConfigError, match=r"option groupId is 'SPARK_SOURCE', but .*does not exist"):
            reader(cluster, "T").partitions()


def test_a_schema_of_a_table(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """Spark compares names and nullability exactly."""
    topic = make_topic(queues=1)
    write_bodies(cluster, topic, ["a", "b"])
    settings = parse_options(SourceOptions, {"nameServer": cluster.namesrv, "topic": topic})
    source = RocketMQReader(settings, Projection(("body", "queueId"), (("Body", False), ("queueid", True))))
    (batch,) = batches(source)
    assert batch.schema.equals(pa.schema([pa.field("Body", pa.binary(), nullable=False), ("queueid", pa.int32())]))
    assert batch.num_rows == 2


def test_many_tasks_of_few_messages_are_warned_of(
    cluster: LocalCluster, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(queues=1)
    write_bodies(cluster, topic, [f"{number}" for number in range(200)])
    with caplog.at_level("WARNING"):
        assert len(reader(cluster, topic, minPartitions="50").partitions()) == 50
    assert "50 tasks of some 4 messages each" in caplog.text
