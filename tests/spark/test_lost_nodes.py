"""Tasks that run more than once on a Spark cluster: how many rows are lost (none), come twice, and under which ids."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from tests.fixtures.standalone import Driver, SparkCluster
from tests.spark import jobs

pytestmark = [pytest.mark.spark_cluster, pytest.mark.timeout(300)]

MakeTopic = Callable[..., str]

ROWS = 8000
TASKS = 4
HALF = ROWS // TASKS // 2

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "0ms",
}
ELSEWHERE = {
    # Both workers have an executor before the first task starts, and a task that failed goes to the other one.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.excludeOnFailure.taskAndStage.enabled": "true",
}


@dataclass
class Tally:
    """What a topic has of rows whose bodies begin with the numbers from 0 on."""

    lost: int
    repeated: int
    """Copies beyond the first of each row."""
    renamed: int = 0
    """Rows that have more ids than one."""
    shared: int = 0
    """Ids that more than one row has."""


def tally(cluster: LocalCluster, topic: str) -> Tally:
    rows: dict[int, list[str]] = defaultdict(list)
    owners: dict[str, set[int]] = defaultdict(set)
    for body, msg_id in stored(cluster, topic):
        rows[body].append(msg_id)
        owners[msg_id].add(body)
    assert set(rows) <= set(range(ROWS))
    return Tally(
        lost=ROWS - len(rows),
        repeated=sum(map(len, rows.values())) - len(rows),
        renamed=sum(len(set(ids)) > 1 for ids in rows.values()),
        shared=sum(len(bodies) > 1 for bodies in owners.values()),
    )


def stored(cluster: LocalCluster, topic: str) -> list[tuple[int, str]]:
    """Return number and id of each message."""
    table = rmq.read_arrow(cluster.namesrv, topic=topic, columns=["body", "msgId"])
    return [(int(row["body"].split()[0]), row["msgId"]) for row in table.to_pylist()]


@dataclass
class Task:
    """One that halts half-way, with some of its rows stored; its job ends when ``outcome`` does.

    executor  process id
    """

    executor: int
    outcome: Future[Any]
    folder: Path

    def go_on(self) -> None:
        (self.folder / "go").touch()


@contextlib.contextmanager
def halted(cluster: LocalCluster, topic: str, folder: Path, job: Callable[[], object]) -> Iterator[Task]:
    """Run a job up to where a task of it has halted, and what is on its way from there has been stored."""
    pool = ThreadPoolExecutor(1)
    outcome = pool.submit(job)
    try:
        wait_for(outcome, (folder / "halted").exists)
        wait_for(outcome, lambda: bool(stored(cluster, topic)))
        at_rest(cluster, topic)
        yield Task(int((folder / "halted").read_text()), outcome, folder)
    finally:
        (folder / "go").touch()
        pool.shutdown(wait=False)  # a job that hangs ends with its driver


def wait_for(outcome: Future[Any], found: Callable[[], bool], timeout: float = 90) -> None:
    deadline = time.monotonic() + timeout
    while not found():
        if outcome.done():
            raise AssertionError(f"the job has ended: {outcome.result()}")
        assert time.monotonic() < deadline, "the job does not get there"
        time.sleep(0.05)


def at_rest(cluster: LocalCluster, topic: str) -> None:
    """Wait until nothing comes any more."""
    before = -1
    while before != (now := len(stored(cluster, topic))):
        before = now
        time.sleep(1)


@pytest.fixture
def source(cluster: LocalCluster, make_topic: MakeTopic) -> dict[str, str]:
    """A topic with rows that are read by as many tasks as it has queues."""
    topic = make_topic(queues=TASKS // 2)
    with rmq.Producer(cluster.namesrv) as producer:
        producer.send_arrow(topic, pa.record_batch({"body": [f"{number}" for number in range(ROWS)]}), body="body")
    return {"nameServer": cluster.namesrv, "topic": topic, "minPartitions": str(TASKS)}


@pytest.fixture
def target(cluster: LocalCluster, make_topic: MakeTopic) -> dict[str, str]:
    return {"nameServer": cluster.namesrv, "topic": make_topic(queues=2), "batchBytes": "8k"}


@pytest.fixture(scope="module")
def driver(spark_cluster: SparkCluster, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """Of the settings that a test gives, one after the other: the cluster has room for one."""
    started = spark_cluster.driver(getattr(request, "param", {}))
    yield started
    started.stop()


def copying(
    driver: Driver, kind: str, source: dict[str, str], target: dict[str, str], folder: Path
) -> Callable[[], object]:
    """Return the job that copies a topic by a batch query, a stream, or a stream with a shuffle."""
    function = jobs.Halting(str(folder), HALF)
    if kind == "batch":
        return lambda: driver.run(jobs.copy_halting, source, target, function)
    target = {**target, "checkpointLocation": str(folder / "checkpoint")}
    return lambda: driver.run(jobs.stream_halting, source, target, function, kind == "shuffled stream")


@pytest.mark.parametrize("kind", ["batch", "stream", "shuffled stream"])
def test_an_executor_is_killed(
    driver: Driver, cluster: LocalCluster, source: dict[str, str], target: dict[str, str], tmp_path: Path, kind: str
) -> None:
    """Spark runs its task again; what the first attempt had sent is there twice, what it had read is read again."""
    with halted(cluster, target["topic"], tmp_path, copying(driver, kind, source, target, tmp_path)) as task:
        os.kill(task.executor, signal.SIGKILL)
        task.outcome.result(120)
    found = tally(cluster, target["topic"])
    assert found == Tally(lost=0, repeated=found.repeated)
    assert 0 < found.repeated <= ROWS // 2


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_worker_is_lost(
    spark_cluster: SparkCluster,
    driver: Driver,
    cluster: LocalCluster,
    source: dict[str, str],
    target: dict[str, str],
    tmp_path: Path,
    kind: str,
) -> None:
    """The other one does its work, too."""
    with halted(cluster, target["topic"], tmp_path, copying(driver, kind, source, target, tmp_path)) as task:
        lost = spark_cluster.lose_worker(task.executor)
        try:
            task.outcome.result(120)
        finally:
            spark_cluster.replace_worker(lost)
    found = tally(cluster, target["topic"])
    assert found == Tally(lost=0, repeated=found.repeated)
    assert 0 < found.repeated <= HALF


def test_a_stream_may_not_sort(driver: Driver, source: dict[str, str], target: dict[str, str], tmp_path: Path) -> None:
    """So behind a shuffle it brings its ids, as the one above does."""
    with pytest.raises(RuntimeError, match="Sorting is not supported on streaming"):
        driver.run(jobs.stream_sorted, source, {**target, "checkpointLocation": str(tmp_path)})


def test_a_job_that_is_run_again(
    driver: Driver, cluster: LocalCluster, make_topic: MakeTopic, target: dict[str, str]
) -> None:
    """What it had sent is there twice: under the same ids if the write is given its id, else under others."""
    for options in (target, {**target, "topic": make_topic(queues=2), "writeId": "5eed"}):
        with pytest.raises(RuntimeError, match="the body is null"):
            driver.run(jobs.write_all_but, options, ROWS, ROWS - 1)
        sent = tally(cluster, options["topic"])
        driver.run(jobs.write_all_but, options, ROWS, None)
        found = tally(cluster, options["topic"])
        assert ROWS // 4 < ROWS - sent.lost < ROWS
        again = 0 if "writeId" in options else ROWS - sent.lost
        assert found == Tally(lost=0, repeated=sent.repeated + ROWS - sent.lost, renamed=again)


@pytest.mark.parametrize("kind", ["batch", "stream"])
@pytest.mark.parametrize("driver", [SPECULATION], ids=["speculation"], indirect=True)
def test_a_second_copy_beside_a_slow_one(
    driver: Driver, cluster: LocalCluster, source: dict[str, str], target: dict[str, str], tmp_path: Path, kind: str
) -> None:
    """With ``spark.speculation``: what the slow one had sent is there twice."""
    with halted(cluster, target["topic"], tmp_path, copying(driver, kind, source, target, tmp_path)) as task:
        task.outcome.result(120)
    found = tally(cluster, target["topic"])
    assert found == Tally(lost=0, repeated=found.repeated)
    assert 0 < found.repeated <= HALF


# Without advice at the end: an executor that has run nothing yet may leave all of the shuffle to the other one, and
# what comes from one machine comes in one order.
@pytest.mark.parametrize("advice", ["sort", "msgId", None])
@pytest.mark.parametrize("driver", [ELSEWHERE], ids=["elsewhere"], indirect=True)
def test_ids_behind_a_shuffle(
    driver: Driver, cluster: LocalCluster, target: dict[str, str], tmp_path: Path, advice: str | None
) -> None:
    """A task has what its own machine holds of a shuffle first: on another one its rows come in another order.

    Their ids go by their place, so rows of the second attempt have ids of others of the first.
    """
    function = jobs.Halting(str(tmp_path), ROWS // 4, fails=True)

    def write() -> None:
        driver.run(jobs.write_shuffled, target, ROWS, function, advice)

    with halted(cluster, target["topic"], tmp_path, write) as task:
        task.go_on()
        task.outcome.result(120)
    found = tally(cluster, target["topic"])
    assert found.lost == 0
    assert found.repeated > 0
    if advice is None:
        assert (found.renamed > 0, found.shared > 0) == (True, True)
        kept = {msg_id: body for body, msg_id in stored(cluster, target["topic"])}
        assert len(set(kept.values())) < ROWS, "who keeps one row of each id loses others"
    else:
        assert (found.renamed, found.shared) == (0, 0)
