"""Jobs that measure the sink and the source, each beside one that does the same without a broker (``ceilings``).

The two of a pair alternate in one session, so that whatever the machine does hits both. With the brokers on the cores
that Spark has, not even a sink or a source that costs nothing itself could reach the ceiling: the brokers' CPU time
leaves a share of ``ceiling / (ceiling + brokers)``, in CPU time a row.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocketcore.errors import RocketError
from rocketcore.spark.cpu_time import Cost, measure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Pair", "Workload", "alternate", "sink", "source"]

WARM_ROUNDS: Final = 3
"""A JVM's first write takes seconds, and it compiles until the fourth or fifth."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A job of ours, and the one that does nothing in its place."""

    rows: int
    ours: Callable[[], None]
    ceiling: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Pair:
    """What both jobs of a workload took in one round."""

    rows: int
    ours: Cost
    ceiling: Cost

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.ours.seconds

    @property
    def ceiling_rows_per_second(self) -> float:
        return self.rows / self.ceiling.seconds

    @property
    def spark_us_per_row(self) -> float:
        return 1e6 * self.ours.spark_cpu / self.rows

    @property
    def ceiling_us_per_row(self) -> float:
        return 1e6 * self.ceiling.spark_cpu / self.rows

    @property
    def broker_us_per_row(self) -> float | None:
        """None where the brokers are not on this machine."""
        return None if self.ours.brokers_cpu is None else 1e6 * self.ours.brokers_cpu / self.rows

    @property
    def share(self) -> float:
        """Of the ceiling's rows a second."""
        return self.ceiling.seconds / self.ours.seconds

    @property
    def best_share(self) -> float | None:
        """What the brokers' CPU time would leave of the ceiling to a source or sink without costs of its own."""
        if self.ours.brokers_cpu is None:
            return None
        return self.ceiling.spark_cpu / max(self.ceiling.spark_cpu + self.ours.brokers_cpu, 1e-9)

    @property
    def share_of_best(self) -> float | None:
        """The share, of the best that there could be."""
        best = self.best_share
        return self.share / best if best else None


@contextlib.contextmanager
def sink(session: SparkSession, options: Mapping[str, str], rows: int, size: int, tasks: int) -> Iterator[Workload]:
    """Writes of a cached frame to a topic, beside writes of it to nowhere.

    options  the connection, and ``topic``
    """
    from rocketcore.spark.ceilings import Nowhere

    session.dataSource.register(Nowhere)
    frame = bodies(session, rows, size, tasks).cache()
    try:
        frame.count()
        yield Workload(
            rows,
            lambda: write(frame, options),
            lambda: frame.write.mode("append").format("nowhere").save(),
        )
    finally:
        frame.unpersist()


def source(session: SparkSession, options: Mapping[str, str], rows: int, size: int, tasks: int) -> Workload:
    """Fill an empty topic and return reads of its bodies into ``noop``, beside reads of prebuilt ones.

    options  the connection, and ``topic``
    raises   RocketError where what is read is not what was written
    """
    from rocketcore.spark.ceilings import Prebuilt

    session.dataSource.register(Prebuilt)
    write(bodies(session, rows, size, tasks), options)
    ours = session.read.format("rocketmq").schema("body binary").options(**options)
    total = ours.load().selectExpr("sum(length(body))").collect()[0][0]
    if total != rows * size:
        raise RocketError(f"{options['topic']}: {total} bytes of bodies were read, {rows * size} were written")
    prebuilt = session.read.format("prebuilt").options(rows=str(rows), size=str(size), tasks=str(tasks))
    return Workload(
        rows,
        lambda: ours.load().write.format("noop").mode("overwrite").save(),
        lambda: prebuilt.load().write.format("noop").mode("overwrite").save(),
    )


def bodies(session: SparkSession, rows: int, size: int, tasks: int) -> DataFrame:
    """Return different bodies of one size, in so many partitions."""
    body = f"cast(lpad(cast(id as string), {size}, 'x') as binary) body"
    return session.range(0, rows, 1, tasks).selectExpr(body)


def write(frame: DataFrame, options: Mapping[str, str]) -> None:
    """Write a frame to a topic."""
    frame.write.mode("append").format("rocketmq").options(**options).save()


def alternate(
    workload: Workload, rounds: int, brokers: Collection[int] | None, *, warm_rounds: int = WARM_ROUNDS
) -> Iterator[Pair]:
    """Run both jobs in each round, in turning order; yield the rounds after the warm-up.

    brokers  processes of the brokers, where they are on this machine; see ``measure``
    """
    for number in range(-warm_rounds, rounds):
        costs = {}
        for name in ("ours", "ceiling") if number % 2 == 0 else ("ceiling", "ours"):
            job = workload.ours if name == "ours" else workload.ceiling
            costs[name] = measure(job, time.monotonic, brokers)
        if number >= 0:
            yield Pair(workload.rows, costs["ours"], costs["ceiling"])
