"""What writing and reading costs the executors of a Spark cluster, for the sizes in docs/spark-cluster.md.

``python -m bench.spark_nodes``: a master, two workers of one core, a broker as a process. What is counted is CPU time,
which, unlike rates, is about the same on a machine that does other things too. The JVMs also make the rows that are
written, and drop those that are read.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import rocketcore as rmq
from rocketcore.spark.cpu_time import cpu_seconds
from tests.fixtures.processes import Processes
from tests.fixtures.standalone import Driver, SparkCluster
from tests.spark import jobs

QUEUES = 4
TASKS_PER_QUEUE = (1, 2, 4, 16)
WARM_ROUNDS = 2


class Executors:
    """The JVMs of a cluster's executors and their Python workers."""

    def __init__(self, cluster: SparkCluster) -> None:
        self._work = cluster.folder / "work"

    def cpu(self) -> tuple[float, float]:
        """Seconds of the JVMs, and of the Python workers."""
        spent = [0.0, 0.0]
        for pid, python in self._processes():
            with contextlib.suppress(OSError):
                spent[python] += cpu_seconds(pid)
        return spent[0], spent[1]

    def memory(self) -> tuple[int, int]:
        """The most MiB that one of the JVMs has had resident, and one of the Python workers."""
        most = [0, 0]
        for pid, python in self._processes():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                most[python] = max(most[python], int(status.partition("VmHWM:")[2].split()[0]) >> 10)
        return most[0], most[1]

    def _processes(self) -> Iterator[tuple[int, bool]]:
        """Process ids, and whether each is a Python worker."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cwd").readlink().is_relative_to(self._work):
                    yield int(process.name), b"pyspark.daemon" in (process / "cmdline").read_bytes()


def measure(title: str, executors: Executors, broker: int, rows: int, call: Callable[[], object], rounds: int) -> None:
    """Print what a row cost in the cheapest round after the first few."""
    costs = []
    for number in range(-WARM_ROUNDS, rounds):
        before, served, began = executors.cpu(), cpu_seconds(broker), time.monotonic()
        call()
        seconds, after = time.monotonic() - began, executors.cpu()
        spent = (after[0] - before[0], after[1] - before[1], cpu_seconds(broker) - served)
        if number >= 0:
            costs.append((*(1e6 * each / rows for each in spent), seconds))
    jvm, python, served, seconds = min(costs, key=lambda each: each[0] + each[1])
    cores = (jvm + python) / 10
    print(f"{title:34} {jvm:7.2f} {python:7.2f} {served:7.2f} {cores:10.2f} {seconds:10.1f}", flush=True)


def make_topics(namesrv: str, size: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of two new topics, one to write to and one to read."""
    written, kept = ({"nameServer": namesrv, "topic": f"{name}-{size}"} for name in ("written", "kept"))
    with rmq.Admin(namesrv) as admin:
        for target in (written, kept):
            admin.create_topic(target["topic"], queues=QUEUES, exist_ok=True)
    return written, kept


def measure_size(
    driver: Driver, executors: Executors, broker: int, namesrv: str, size: int, options: argparse.Namespace
) -> None:
    rows = options.megabytes * 1_000_000 // size
    written, kept = make_topics(namesrv, size)
    write = partial(driver.run, jobs.write_bodies, written, rows, size, QUEUES)
    measure(f"write {size:,} B", executors, broker, rows, write, options.rounds)
    driver.run(jobs.write_bodies, kept, rows, size, QUEUES)
    for tasks in TASKS_PER_QUEUE:
        read = partial(driver.run, jobs.skim, {**kept, "minPartitions": f"{tasks * QUEUES}"}, "body binary")
        measure(f"read {size:,} B, tasks of a queue: {tasks}", executors, broker, rows, read, options.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024], help="bytes of a body")
    parser.add_argument("--megabytes", type=int, default=200, help="bodies of a round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-nodes-")))
        processes = Processes(folder)
        stack.callback(processes.end)
        namesrv = processes.namesrv().address
        broker = processes.broker(namesrv, "--flush", "async").pid
        cluster = SparkCluster(folder)
        stack.callback(cluster.stop)
        cluster.start()
        driver = cluster.driver()
        stack.callback(driver.stop)
        executors = Executors(cluster)
        print(f"{'CPU µs a row':34} {'JVM':>7} {'Python':>7} {'broker':>7} {'cores/100k':>10} {'seconds':>10}")
        for size in options.sizes:
            measure_size(driver, executors, broker, namesrv, size, options)
            jvm, python = executors.memory()
            print(f"most memory so far, MiB: JVM of an executor {jvm}, Python worker {python}", flush=True)


if __name__ == "__main__":
    main()
