"""Spark's rows: our sink and source in one JVM with a sink that takes all and a source that has its batches ready.

Where the broker runs on the cores that Spark has (``spark``), it takes from ours what the ceiling keeps: beside the
share of the ceiling stand the CPU time a row took, of Spark with its Python workers and of the broker, the best share
that this leaves to anybody, and how much of that is ours. Where it has a core of its own and Spark the others
(``spark-apart``), also in the ceiling's turn, the share is what a broker on another machine gives. Where it keeps
nothing (``spark-discarding``, the sink alone), its CPU time is that of its own work, whatever the machine's memory and
disk cost.

Each suite runs in a process of its own, with a JVM of its own: its cores are settled when it starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING

import rocketcore as rmq
from bench.comparison import Bench, Row, report
from rocketcore.spark.workloads import Pair, Workload, alternate, sink, source
from tests.fixtures.processes import Processes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["QUEUES", "Broker", "Place", "in_process", "spark", "spark_apart", "spark_discarding"]

QUEUES = 4
SIZES = ((100, 4_000_000), (1024, 1_000_000))
"""Bytes of a body, rows of a job."""


@dataclass(frozen=True)
class Place:
    """The cores of Spark and those of the broker, and what titles call it."""

    spark: frozenset[int]
    broker: frozenset[int]

    @classmethod
    def shared(cls) -> Place:
        cores = frozenset(os.sched_getaffinity(0))
        return cls(cores, cores)

    @classmethod
    def apart(cls) -> Place:
        *others, last = sorted(os.sched_getaffinity(0))
        if not others:
            raise RuntimeError("a broker on a core of its own needs two cores")
        return cls(frozenset(others), frozenset({last}))

    @property
    def title(self) -> str:
        where = "the same cores" if self.spark == self.broker else "a core of its own"
        return f"local[{len(self.spark)}], broker on {where}"


@dataclass(frozen=True)
class Broker:
    """A broker with an empty store: its name server and its process."""

    namesrv: str
    pid: int

    def options(self, topic: str) -> dict[str, str]:
        """Make a topic and return how Spark reaches it."""
        with rmq.Admin(self.namesrv) as admin:
            admin.create_topic(topic, queues=QUEUES, exist_ok=True)
        return {"nameServer": self.namesrv, "topic": topic}


def spark(bench: Bench) -> None:
    """Writes from a cached frame, reads into ``noop``, beside the ceilings; the broker has the same cores."""
    in_process(bench, _shared)


def spark_apart(bench: Bench) -> None:
    """The same with the broker on a core of its own."""
    in_process(bench, _apart)


def spark_discarding(bench: Bench) -> None:
    """Writes alone, to a broker on the same cores that keeps nothing."""
    in_process(bench, _discarding)


def in_process(bench: Bench, suite: Callable[[Bench], None]) -> None:
    """Run a suite in a process of its own and take its rows."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        bench.rows += pool.submit(_rows, bench, suite).result()


def _rows(bench: Bench, suite: Callable[[Bench], None]) -> list[Row]:
    bench.rows = []
    suite(bench)
    return bench.rows


def _shared(bench: Bench) -> None:
    _measure(bench, Place.shared())


def _apart(bench: Bench) -> None:
    _measure(bench, Place.apart())


def _discarding(bench: Bench) -> None:
    _measure(bench, Place.shared(), keeps=False)


def _measure(bench: Bench, place: Place, *, keeps: bool = True) -> None:
    with session(place) as opened:
        for size, full in SIZES:
            rows = round(full * bench.scale)
            what = f"{size} B, {rows:,} rows, {place.title}{'' if keeps else ', which keeps nothing'}"
            with broker(bench, place, keeps=keeps) as started, sink(
                opened, started.options("written"), rows, size, QUEUES
            ) as workload:  # fmt: skip
                _alternate(bench, f"Spark, sink, {what}", workload, place, started, wrote=True)
            if not keeps:
                continue
            with broker(bench, place) as started:
                workload = source(opened, started.options("kept"), rows, size, QUEUES)
                _alternate(bench, f"Spark, source, {what}", workload, place, started)


@contextlib.contextmanager
def session(place: Place) -> Iterator[SparkSession]:
    """A JVM on Spark's cores, and this process, its driver, with it."""
    from rocketcore.spark import local_session, register

    os.sched_setaffinity(0, place.spark)
    opened = local_session("side by side", cores=len(place.spark), driver_memory="4g")
    try:
        register(opened)
        yield opened
    finally:
        opened.stop()


@contextlib.contextmanager
def broker(bench: Bench, place: Place, *, keeps: bool = True) -> Iterator[Broker]:
    """A broker on its cores, with a store that is deleted at the end: one row fills gigabytes.

    keeps  whether anything reaches the store
    """
    folder = bench.folder / "store-spark"
    processes = Processes(bench.folder, command="rocketcore.cli.main" if keeps else "bench.discarding_broker")
    try:
        namesrv = processes.namesrv()
        started = processes.broker(namesrv.address, "--flush", "async", store=folder)
        for thread in os.listdir(f"/proc/{started.pid}/task"):
            os.sched_setaffinity(int(thread), place.broker)
        yield Broker(namesrv.address, started.pid)
    finally:
        processes.end()
        shutil.rmtree(folder, ignore_errors=True)


def _alternate(
    bench: Bench, title: str, workload: Workload, place: Place, started: Broker, *, wrote: bool = False
) -> None:
    """Measure a row; what it ``wrote`` in a round is not in memory in the next one, see ``Bench.forget_written``."""
    row = bench.row(title)
    for pair in alternate(workload, bench.rounds, {started.pid}):
        row.add("ours", ours(pair, together=place.spark == place.broker))
        row.add("ceiling", ceiling(pair))
        if wrote:
            bench.forget_written()
    report(row)


def ours(pair: Pair, *, together: bool) -> dict[str, float | None]:
    """Return what our job took; with the broker on the same cores, also what this leaves to anybody."""
    figures = {
        "rows_s": pair.rows_per_second,
        "spark_us_per_row": pair.spark_us_per_row,
        "broker_us_per_row": pair.broker_us_per_row,
    }
    return figures | ({"best_share": pair.best_share, "share_of_best": pair.share_of_best} if together else {})


def ceiling(pair: Pair) -> dict[str, float | None]:
    """Return what the job in its place took."""
    return {"rows_s": pair.ceiling_rows_per_second, "spark_us_per_row": pair.ceiling_us_per_row}
