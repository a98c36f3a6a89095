"""Spark's rows: our sink and source in one JVM with a sink that takes all and a source that has its batches ready.

The broker runs on the cores that Spark has, so a share of the ceiling pays for both sides. Beside rates stands the CPU
time a row took: of Spark with its Python workers, and of the broker. What a share would be with the broker elsewhere
follows from the former alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import rocketcore as rmq
from bench.comparison import HERE, Bench, report
from tests.fixtures.processes import Processes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

QUEUES = 4
TICK = os.sysconf("SC_CLK_TCK")
SIZES = ((100, 1_000_000, 4_000_000), (1024, 250_000, 1_000_000))
"""Bytes of a body, rows of a write, rows of a read."""
WARM_ROUNDS = 3


def spark(bench: Bench) -> None:
    """Writes from a cached frame, reads into ``noop``; alternating with the ceilings after rounds of warm-up."""
    from bench.peers.ceilings import Nowhere, Prebuilt
    from rocketcore.spark import local_session, register

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
    with contextlib.ExitStack() as stack:
        processes = Processes(bench.folder)
        stack.callback(processes.end)
        namesrv = processes.namesrv()
        broker = processes.broker(namesrv.address, "--flush", "async", store=bench.folder / "store-spark")
        session = local_session("side by side", driver_memory="3g")
        stack.callback(session.stop)
        register(session)
        session.dataSource.register(Nowhere)
        session.dataSource.register(Prebuilt)
        for size, written, read in SIZES:
            measure(bench, session, namesrv.address, broker.pid, size, round(written * bench.scale))
            measure_reads(bench, session, namesrv.address, broker.pid, size, round(read * bench.scale))


def measure(bench: Bench, session: SparkSession, namesrv: str, broker: int, size: int, rows: int) -> None:
    topic = f"written{size}"
    make_topic(namesrv, topic)
    body = f"cast(lpad(cast(id as string), {size}, 'x') as binary) body"
    frame = session.range(0, rows, 1, QUEUES).selectExpr(body).cache()
    frame.count()

    def ours() -> None:
        frame.write.mode("append").format("rocketmq").options(nameServer=namesrv, topic=topic).save()

    def nowhere() -> None:
        frame.write.mode("append").format("nowhere").save()

    alternate(bench, f"Spark, sink, {size} B, {rows:,} rows, local[2]", ours, nowhere, rows, broker)
    frame.unpersist()


def measure_reads(bench: Bench, session: SparkSession, namesrv: str, broker: int, size: int, rows: int) -> None:
    topic = f"kept{size}"
    make_topic(namesrv, topic)
    kept = session.range(0, rows, 1, QUEUES).selectExpr(f"cast(lpad(cast(id as string), {size}, 'x') as binary) body")
    kept.write.mode("append").format("rocketmq").options(nameServer=namesrv, topic=topic).save()
    ours = session.read.format("rocketmq").schema("body binary").options(nameServer=namesrv, topic=topic)
    prebuilt = session.read.format("prebuilt").options(rows=str(rows), size=str(size))
    [(total,)] = ours.load().selectExpr("sum(length(body))").collect()
    if total != rows * size:
        raise RuntimeError(f"{topic}: {total} bytes were read, {rows * size} were written")
    alternate(
        bench, f"Spark, source, {size} B, {rows:,} rows, local[2]",
        lambda: ours.load().write.format("noop").mode("overwrite").save(),
        lambda: prebuilt.load().write.format("noop").mode("overwrite").save(),
        rows, broker,
    )  # fmt: skip


def make_topic(namesrv: str, topic: str) -> None:
    with rmq.Admin(namesrv) as admin:
        admin.create_topic(topic, queues=QUEUES)


def alternate(
    bench: Bench, title: str, ours: Callable[[], None], ceiling: Callable[[], None], rows: int, broker: int
) -> None:
    """Run both in each round and note rows a second, and the CPU time a row took on either side."""
    row = bench.row(title)
    for number in range(-WARM_ROUNDS, bench.rounds):
        for name in bench.order(number, ("ours", "ceiling")):
            spark_before, broker_before, began = cpu_of_tree(os.getpid(), broker), cpu_seconds(broker), time.monotonic()
            (ours if name == "ours" else ceiling)()
            seconds = time.monotonic() - began
            figures = {
                "ops_s": rows / seconds,
                "client_us_per_msg": 1e6 * (cpu_of_tree(os.getpid(), broker) - spark_before) / rows,
            }
            if name == "ours":
                figures["server_us_per_msg"] = 1e6 * (cpu_seconds(broker) - broker_before) / rows
            if number >= 0:
                row.add(name, figures)
    report(row)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its children that have ended."""
    return sum(map(int, _stat(pid)[11:15])) / TICK


def cpu_of_tree(root: int, without: int) -> float:
    """CPU time of a process and all below it, but for one of them."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    total, waiting = 0.0, [root]
    while waiting:
        pid = waiting.pop()
        if pid != without:
            with contextlib.suppress(OSError):
                total += cpu_seconds(pid)
            waiting += children.get(pid, [])
    return total


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
