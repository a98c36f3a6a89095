"""Rows of Spark's streams: what one costs at rest, how long a trigger takes that finds nothing, rows a second.

Each beside a stream of prebuilt batches in the same session; at rest, and with nothing to find, that is what Spark
itself costs.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench.comparison import Bench, report
from bench.spark_rows import QUEUES, SIZES, Broker, Place, broker, in_process, session
from rocketcore.spark.cpu_time import measure
from rocketcore.spark.workloads import WARM_ROUNDS, bodies, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["spark_streams"]

REST_SECONDS = 30.0
TRIGGERS: tuple[tuple[str, dict[str, str]], ...] = (
    ("no pause between triggers", {}),
    ("a trigger a second", {"processingTime": "1 second"}),
)
EMPTY_TRIGGERS = 10
BETWEEN_TRIGGERS = "500 milliseconds"
"""Longer than the pause that the source makes, before it looks again, where nothing came."""


def spark_streams(bench: Bench) -> None:
    """A stream at rest, an empty trigger, and a topic that is read to its end."""
    in_process(bench, _measure)


def _measure(bench: Bench) -> None:
    from rocketcore.spark.ceilings import Prebuilt

    place = Place.shared()
    with session(place) as opened:
        opened.dataSource.register(Prebuilt)
        opened.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")  # tell of triggers that found nothing
        with broker(bench, place) as started:
            for number, (title, trigger) in enumerate(TRIGGERS):
                streams = _streams(opened, started, f"rest{number}", 0, 1)
                _at_rest(bench, f"Spark, a stream at rest, {QUEUES} queues, {title}", streams, trigger, started)
            _empty_trigger(bench, _streams(opened, started, "empty", 0, 1))
        for size, full in SIZES:
            rows = round(full * bench.scale)
            with broker(bench, place) as started:
                streams = _streams(opened, started, "kept", rows, size)
                write(bodies(opened, rows, size, QUEUES), {"nameServer": started.namesrv, "topic": "kept"})
                title = f"Spark, stream to noop, {size} B, {rows:,} rows, one batch, {place.title}"
                _read_all(bench, title, streams, rows, started)


def _streams(session: SparkSession, started: Broker, topic: str, rows: int, size: int) -> dict[str, DataFrame]:
    """Return ours, of a new topic, and the prebuilt one."""
    ours = session.readStream.format("rocketmq").schema("body binary").options(**started.options(topic))
    prebuilt = session.readStream.format("prebuilt").options(rows=str(rows), size=str(size), tasks=str(QUEUES))
    return {"ours": ours.load(), "ceiling": prebuilt.load()}


_NUMBERS = itertools.count()


@contextlib.contextmanager
def _running(bench: Bench, stream: DataFrame, trigger: dict[str, str]) -> Iterator[StreamingQuery]:
    """A query into ``noop`` from a checkpoint of its own, which has seen all that there is."""
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(bench.folder / f"c-{next(_NUMBERS)}"))
    query = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        query.processAllAvailable()
        yield query
    finally:
        query.stop()


def _at_rest(bench: Bench, title: str, streams: dict[str, DataFrame], trigger: dict[str, str], started: Broker) -> None:
    row = bench.row(title)
    seconds = REST_SECONDS * bench.scale
    for name, stream in streams.items():
        with _running(bench, stream, trigger):
            time.sleep(seconds / 10)  # what the first batch left behind is compiled and collected
            cost = measure(lambda: time.sleep(seconds), time.monotonic, {started.pid})
        row.add(name, {"core_percent": 100 * cost.spark_cpu / cost.seconds})
        if name == "ours" and cost.brokers_cpu is not None:
            row.add(name, {"broker_core_percent": 100 * cost.brokers_cpu / cost.seconds})
    report(row)


def _empty_trigger(bench: Bench, streams: dict[str, DataFrame]) -> None:
    row = bench.row(f"Spark, a trigger that finds nothing, {QUEUES} queues, every {BETWEEN_TRIGGERS}")
    for number in range(bench.rounds):
        for name in bench.order(number, tuple(streams)):
            with _running(bench, streams[name], {"processingTime": BETWEEN_TRIGGERS}) as query:
                row.add(name, {"trigger_ms": statistics.median(_empty(query))})
    report(row)


def _empty(query: StreamingQuery) -> list[int]:
    """Wait for so many triggers without a row, the first ones left out; return their milliseconds."""
    while True:
        if (failed := query.exception()) is not None:
            raise failed
        found = [
            progress.durationMs["triggerExecution"] for progress in query.recentProgress if not progress.numInputRows
        ][5:]
        if len(found) >= EMPTY_TRIGGERS:
            return found
        time.sleep(0.1)


def _read_all(bench: Bench, title: str, streams: dict[str, DataFrame], rows: int, started: Broker) -> None:
    """Read a topic to its end, from the first offset on; the time is that of the batch, not of the query's start."""
    row = bench.row(title)
    for number in range(-WARM_ROUNDS, bench.rounds):
        for name in bench.order(number, tuple(streams)):
            query = None

            def read(stream: DataFrame = streams[name]) -> None:
                nonlocal query
                with _running(bench, stream, {}) as query:
                    pass

            cost = measure(read, time.monotonic, {started.pid})
            assert query is not None
            batches = [progress for progress in query.recentProgress if progress.numInputRows]
            if sum(batch.numInputRows for batch in batches) != rows:
                raise RuntimeError(f"{title}: {name} read {sum(batch.numInputRows for batch in batches)} rows")
            seconds = sum(batch.durationMs["triggerExecution"] for batch in batches) / 1000
            figures = {"rows_s": rows / seconds, "spark_us_per_row": 1e6 * cost.spark_cpu / rows}
            if name == "ours" and cost.brokers_cpu is not None:
                figures["broker_us_per_row"] = 1e6 * cost.brokers_cpu / rows
            if number >= 0:
                row.add(name, figures)
    report(row)
