"""The sink of streams while things fail, without Spark around it: what is lost, what comes twice, and with which ids.

Every test numbers its rows and counts, in the topic, the numbers that are missing and those that are there again.
"""

from __future__ import annotations

import errno
import logging
import pickle
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import rocketcore as rmq
from rocketcore import LocalCluster
from rocketcore.admin.client import Admin
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.errors import ConfigError, RocketError, ServiceNotAvailable
from rocketcore.spark.source import RocketMQDataSource
from rocketcore.spark.stream_writer import RocketMQStreamWriter
from rocketcore.spark.task_summary import TaskSummary
from rocketcore.spark.write_ids import write_id
from tests.fixtures.processes import Processes
from tests.spark.halting import at_log
from tests.spark.tasks import running_task

MakeTopic = Callable[..., str]

QUERY = "0f6bbd3d-51bd-4c70-a8f1-8c2f0b5cf9a8"
ROWS = StructType([StructField("body", StringType())])
KEYED_ROWS = StructType([StructField("body", StringType()), StructField("shardingKey", StringType())])


def batches(numbers: range, count: int, keys: int = 0) -> list[pa.RecordBatch]:
    """Rows with the given numbers as their bodies, in ``count`` record batches."""
    size = -(-len(numbers) // count)
    return [_batch(numbers[begin : begin + size], keys) for begin in range(0, len(numbers), size)]


def _batch(numbers: range, keys: int) -> pa.RecordBatch:
    columns = {"body": [f"{number}" for number in numbers]}
    if keys:
        columns["shardingKey"] = [f"key {number % keys}" for number in numbers]
    return pa.record_batch(columns)


class Stream:
    """A query that writes to a topic, as Spark drives its sink."""

    def __init__(self, namesrv: str, topic: str, schema: StructType = ROWS, **options: str) -> None:
        self._options = {"nameServer": namesrv, "topic": topic, "checkpointLocation": "/nowhere", **options}
        self._schema = schema

    def plan(self) -> RocketMQStreamWriter:
        """What the driver does before a batch: the writer as its tasks get it."""
        writer = RocketMQDataSource(dict(self._options)).streamWriter(self._schema, False)
        return pickle.loads(pickle.dumps(writer))

    def commit(self, batch_id: int, summaries: Sequence[TaskSummary | None]) -> None:
        """What the driver does after a batch, with a data source that it has kept since the query began."""
        source = pickle.loads(pickle.dumps(RocketMQDataSource(dict(self._options))))
        writer = source.streamWriter(self._schema, False)
        if None in summaries:
            writer.abort(list(summaries), batch_id)
        else:
            writer.commit(list(summaries), batch_id)

    def run(self, batch_id: int, rows: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> TaskSummary:
        """Run a batch of one partition."""
        summary = run_task(self.plan(), batch_id, iter(rows))
        self.commit(batch_id, [summary])
        return summary


def run_task(
    writer: RocketMQStreamWriter, batch_id: int, rows: Iterator[pa.RecordBatch], *, partition: int = 0, attempt: int = 0
) -> TaskSummary:
    with running_task(partition, attempt=attempt, query=QUERY, batch_id=batch_id):
        return writer.write(rows)


@dataclass
class Tally:
    """What a topic has of numbered rows."""

    lost: int
    repeated: int
    """Copies beyond the first of each row."""
    most: int
    """Copies of the row that has most of them."""
    ids: dict[int, set[str]]

    @property
    def repeats_have_their_ids(self) -> bool:
        """Whether each row has one id in all of its copies, and no other row has it."""
        each = [ids for ids in self.ids.values() if len(ids) == 1]
        return len(each) == len(self.ids) == len(set().union(*each))


def tally(namesrv: str, topic: str, rows: range) -> Tally:
    found: dict[int, list[str]] = defaultdict(list)
    for row in rmq.read_arrow(namesrv, topic=topic, columns=["body", "msgId"]).to_pylist():
        found[int(row["body"])].append(row["msgId"])
    assert set(found) <= set(rows)
    copies = [len(ids) for ids in found.values()]
    return Tally(
        lost=len(rows) - len(found),
        repeated=sum(copies) - len(found),
        most=max(copies, default=0),
        ids={number: set(ids) for number, ids in found.items()},
    )


def test_a_batch_that_is_repeated_repeats_its_ids(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """The query died between the sends and the note in its checkpoint: its next life sends the batch again."""
    topic = make_topic(queues=2)
    for _ in range(2):
        stream = Stream(cluster.namesrv, topic)
        writer = stream.plan()
        summaries = [
            run_task(writer, 7, iter(batches(range(part * 500, part * 500 + 500), 3)), partition=part)
            for part in range(2)
        ]
        stream.commit(7, summaries)
    Stream(cluster.namesrv, topic).run(8, batches(range(1000, 1500), 1))
    found = tally(cluster.namesrv, topic, range(1500))
    assert (found.lost, found.repeated, found.most) == (0, 1000, 2)
    assert found.repeats_have_their_ids
    seventh, eighth = write_id(QUERY, 7).upper(), write_id(QUERY, 8).upper()
    assert found.ids[0] == {f"{seventh}{0:08X}{0:08X}"}
    assert found.ids[999] == {f"{seventh}{1:08X}{499:08X}"}
    assert found.ids[1499] == {f"{eighth}{0:08X}{499:08X}"}


def test_a_write_id_is_of_query_and_batch() -> None:
    # blake2b with a digest of 8 bytes, by the reference implementation (b2sum -l 64).
    assert write_id("query", 1) == "7dc8d4b609961564"
    ids = {write_id(query, batch_id) for query in ("a", "b", "query") for batch_id in range(1000)}
    assert len(ids) == 3000


def test_a_broker_that_is_killed_and_back_after_5_seconds(tmp_path: Path) -> None:
    """In the middle of two batches, one that may go to any queue and one whose keys have theirs."""
    rows = range(20_000)
    schemas = {"roundrobin": ROWS, "hash": KEYED_ROWS}
    half = threading.Barrier(len(schemas) + 1, timeout=60)
    with LocalCluster(tmp_path, in_process=False, flush="async") as cluster:
        with Admin(cluster.namesrv) as admin:
            for selector in schemas:
                admin.create_topic(selector, queues=4)

        def upstream(keys: int) -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(batches(rows, 40, keys)):
                if number == 20:
                    half.wait()
                    half.wait()
                yield batch

        def write(selector: str) -> TaskSummary:
            options = {"queueSelector": selector, "batchBytes": "32k", "sendTimeoutMs": "2000"}
            writer = Stream(cluster.namesrv, selector, schemas[selector], **options).plan()
            return writer.write(upstream(50 if selector == "hash" else 0))

        with running_task(query=QUERY, batch_id=0), ThreadPoolExecutor(len(schemas)) as pool:
            writes = {selector: pool.submit(write, selector) for selector in schemas}
            half.wait()
            cluster.stop_broker(kill=True)
            half.wait()
            time.sleep(5)
            cluster.start_broker()
            summaries = {selector: future.result(60) for selector, future in writes.items()}
        for selector, summary in summaries.items():
            found = tally(cluster.namesrv, selector, rows)
            assert (summary.rows, found.lost) == (20_000, 0)
            assert summary.retries > 0
            # Only what had no answer when the broker died can be there twice: as many requests as may be under way.
            assert found.repeated <= 4 * 32 * 1024 // 60
            assert found.repeats_have_their_ids
        assert all(len(queues) == 1 for queues in key_queues(cluster, "hash").values())


def key_queues(cluster: LocalCluster, topic: str) -> dict[int, set[int]]:
    """Return the queues that the rows of each of 50 keys are in."""
    queues: dict[int, set[int]] = defaultdict(set)
    for row in rmq.read_arrow(cluster.namesrv, topic=topic, columns=["body", "queueId"]).to_pylist():
        queues[int(row["body"]) % 50].add(row["queueId"])
    return queues


def test_one_of_two_brokers_freezes(processes: Processes) -> None:
    namesrv = processes.namesrv()
    brokers = [processes.broker(namesrv.address, "--name", f"broker-{name}") for name in "ab"]
    with Admin(namesrv.address) as admin:
        admin.create_topic("T", queues=4)
    rows = range(40_000)

    def upstream() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(rows, 40)):
            if number == 10:
                brokers[1].freeze()
            yield batch

    summary = Stream(namesrv.address, "T", batchBytes="32k", sendTimeoutMs="1000").run(0, upstream())
    assert summary.rows == len(rows)
    # Each of the four requests under way may find out once that the broker does not answer.
    assert 0 < summary.retries <= 4
    brokers[1].process.send_signal(signal.SIGCONT)
    found = tally(namesrv.address, "T", rows)
    # What it had taken in when it froze, it stores when it wakes up: those of the requests above, once each.
    assert (found.lost, found.most <= 2, found.repeats_have_their_ids) == (0, True, True)
    assert found.repeated <= 4 * 32 * 1024 // 60


def test_a_stream_goes_on_without_name_servers(processes: Processes, caplog: pytest.LogCaptureFixture) -> None:
    """By the routes that are known; a process that knows none waits for a name server to come back."""
    namesrv = processes.namesrv()
    processes.broker(namesrv.address)
    with Admin(namesrv.address) as admin:
        admin.create_topic("T", queues=4)
    stream = Stream(namesrv.address, "T")
    stream.run(0, batches(range(1000), 2))
    namesrv.kill()
    with caplog.at_level(logging.INFO):
        stream.run(1, batches(range(1000, 2000), 2))
    assert "known route used, no name server answers topic=T" in caplog.text
    new_process = Stream(namesrv.address, "T", requestTimeoutMs="1001")  # another connection, which knows nothing
    restarted: list[threading.Thread] = []

    def restart() -> None:
        listen = ("--listen", namesrv.address)
        restarted.append(threading.Thread(target=processes.namesrv, args=listen))
        restarted[0].start()

    with at_log("rocketcore.client.attempts", "asked again topic=T", restart):
        new_process.run(2, batches(range(2000, 3000), 2))
    restarted[0].join(60)
    found = tally(namesrv.address, "T", range(3000))
    assert (found.lost, found.repeated) == (0, 0)


def test_a_task_that_is_tried_again(
    cluster: LocalCluster, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(queues=2)
    stream = Stream(cluster.namesrv, topic)
    writer = stream.plan()

    def upstream() -> Iterator[pa.RecordBatch]:
        yield from batches(range(600), 3)
        # The worker dies once everything that it was given has been stored.
        assert await_rows(cluster, topic, 600)
        raise KeyError("the worker died")

    with pytest.raises(KeyError):
        run_task(writer, 0, upstream())
    stream.commit(0, [None])
    assert "failed batch_id=0: at least 0 rows of 0 tasks were sent and stay" in caplog.text
    caplog.clear()
    stream.commit(0, [run_task(writer, 0, iter(batches(range(1000), 5)), attempt=1)])
    assert "attempt 1 of partition 0: rows may be there twice" in caplog.text
    found = tally(cluster.namesrv, topic, range(1000))
    assert (found.lost, found.repeated, found.most, found.repeats_have_their_ids) == (0, 600, 2, True)


def await_rows(cluster: LocalCluster, topic: str, count: int) -> bool:
    for _ in range(200):
        if rmq.read_arrow(cluster.namesrv, topic=topic, columns=["msgId"]).num_rows >= count:
            return True
        threading.Event().wait(0.05)
    return False


def test_two_attempts_at_once(cluster: LocalCluster, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture) -> None:
    """With spark.speculation a slow task gets a second attempt beside the first; the one that ends first is kept."""
    topic = make_topic(queues=2)
    writer = Stream(cluster.namesrv, topic).plan()
    waits, goes_on = threading.Event(), threading.Event()
    ended: list[TaskSummary] = []

    def slow() -> Iterator[pa.RecordBatch]:
        first, *rest = batches(range(1000), 5)
        yield first
        waits.set()
        goes_on.wait(60)
        yield from rest

    first = threading.Thread(target=lambda: ended.append(run_task(writer, 3, slow())))
    first.start()
    assert waits.wait(60)
    second = run_task(writer, 3, iter(batches(range(1000), 5)), attempt=1)
    goes_on.set()
    first.join(60)
    assert [summary.rows for summary in (*ended, second)] == [1000, 1000]
    assert "attempt 1 of partition 0: rows may be there twice" in caplog.text
    found = tally(cluster.namesrv, topic, range(1000))
    assert (found.lost, found.repeated, found.most, found.repeats_have_their_ids) == (0, 1000, 2, True)


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker refuses: the batch waits, and goes on where there is room again in time, else it fails in one line."""
    properties = {"mappedFileSizeCommitLog": str(6 << 20)}
    body = "x" * 1000
    rows = [
        pa.record_batch({"body": [f"{number:06d} {body}" for number in range(begin, begin + 500)]})
        for begin in range(0, 8000, 500)
    ]
    allocate = FileSystem.allocate
    full = False

    def allocates(files: FileSystem, fd: int, size: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(files, fd, size)

    monkeypatch.setattr(FileSystem, "allocate", allocates)

    def room() -> None:
        nonlocal full
        full = False

    with LocalCluster(tmp_path, flush="async", properties=properties) as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=4)
        full = True
        said = r"to broker-a, the last of \d attempts within 1\.5 s, at .*: disk full: no room for the next commit log"
        with pytest.raises(ServiceNotAvailable, match=said) as refused:
            Stream(cluster.namesrv, "T", deliveryTimeoutMs="1500").run(0, rows)
        assert "\n" not in str(refused.value)
        with at_log("rocketcore.client.attempts", "disk full", room):
            summary = Stream(cluster.namesrv, "T").run(0, rows)
        assert summary.retries > 0
        table = rmq.read_arrow(cluster.namesrv, topic="T", columns=["body", "msgId"])
    ids = defaultdict(list)
    for row in table.to_pylist():
        ids[int(row["body"][:6])].append(row["msgId"])
    assert set(ids) == set(range(8000))
    # What the first life of the batch had sent is there twice, with the same ids.
    assert max(map(len, ids.values())) == 2
    assert all(len(set(each)) == 1 for each in ids.values())


def test_a_commit_asks_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All is stored by then: a cluster that is away must not have the batch sent once more."""
    with LocalCluster(tmp_path, flush="async") as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("T", queues=1)
        stream = Stream(cluster.namesrv, "T", requestTimeoutMs="1002")
        writer = stream.plan()
        summaries = [run_task(writer, 5, iter(batches(range(100), 1)), partition=part) for part in range(3)]
    with caplog.at_level(logging.INFO):
        stream.commit(5, summaries)
    sent = sum(summary.sent_bytes for summary in summaries)
    line = (
        f"done batch_id=5 write_id={write_id(QUERY, 5)} tasks=3 rows=300 batches=3 sent_bytes={sent} retries=0 slowest"
    )
    assert line in caplog.text
    stream.commit(6, [summaries[0], None])
    assert "failed batch_id=6" in caplog.text
    assert "at least 100 rows of 1 tasks were sent and stay" in caplog.text


def test_a_topic_that_grows_between_batches(
    cluster: LocalCluster, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """Within a batch a key keeps its queue; that it moves between batches is said."""
    topic = make_topic(queues=2)
    stream = Stream(cluster.namesrv, topic, KEYED_ROWS, queueSelector="hash")
    for batch_id in range(2):
        stream.run(batch_id, batches(range(200), 2, keys=50))
    assert "keys go to other queues" not in caplog.text
    with Admin(cluster.namesrv) as admin:
        admin.update_topic(topic, queues=3)
    stream.run(2, batches(range(200), 2, keys=50))
    assert f"keys go to other queues than before topic={topic} queues=6 before=4" in caplog.text


def test_a_task_without_its_batch(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    writer = Stream(cluster.namesrv, make_topic()).plan()
    with running_task(), pytest.raises(RocketError, match=r"sql\.streaming\.queryId and streaming\.sql\.batchId"):
        writer.write(iter([]))


def test_no_rows(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    summary = Stream(cluster.namesrv, make_topic()).run(0, [])
    assert (summary.rows, summary.batches) == (0, 0)


def test_a_complete_result_is_sent_as_it_is(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """Output mode complete: Spark calls it overwriting, a topic takes each result whole, behind the one before it."""
    topic = make_topic(queues=1)
    source = RocketMQDataSource({"nameServer": cluster.namesrv, "topic": topic})
    for batch_id, last in ((0, 10), (1, 20)):
        run_task(source.streamWriter(ROWS, True), batch_id, iter(batches(range(last), 1)))  # type: ignore[arg-type]
    found = tally(cluster.namesrv, topic, range(20))
    assert (found.lost, found.repeated) == (0, 10)


def fields(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


@pytest.mark.parametrize(
    ("schema", "options", "reason"),
    [
        (fields("body"), {"batchSize": "1"}, "unknown option batchSize; did you mean batchBytes?"),
        (fields("body"), {"startingOffsets": "earliest"}, "option startingOffsets belongs to reading"),
        (fields("body"), {"writeId": "1"}, "option writeId belongs to batch writes"),
        (fields("body"), {"deliveryGuarantee": "transactional"}, "unknown option deliveryGuarantee"),
        (fields("tags"), {}, "a write needs the column body"),
        (fields("body"), {"topic": "no-such"}, "option topic: no name server knows topic 'no-such'; create it first"),
    ],
)
def test_what_is_refused_before_a_task_starts(
    cluster: LocalCluster, make_topic: MakeTopic, schema: StructType, options: dict[str, str], reason: str
) -> None:
    """By the same checks as for a batch write."""
    given = {"nameServer": cluster.namesrv, "topic": make_topic(), **options}
    with pytest.raises(ConfigError) as refused:
        RocketMQDataSource(given).streamWriter(schema, False)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_stream_needs_a_topic(cluster: LocalCluster) -> None:
    with pytest.raises(ConfigError, match="a write needs the option topic or the column topic"):
        RocketMQDataSource({"nameServer": cluster.namesrv}).streamWriter(ROWS, False)
