"""The memory of a Spark task does not grow with the rows that it writes or reads."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rocketcore.admin.client import Admin
from rocketcore.spark.cpu_time import tree
from tests.fixtures.processes import Processes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = int(os.environ.get("ROCKETCORE_SOAK_ROWS", "500000"))
EARLY = 100_000
"""Rows of the first job: what is kept between batches, and between tasks, is there after them."""
GROWTH_ALLOWED = 16 << 20

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(300 + ROWS / 10_000)]


def workers() -> Iterator[int]:
    """Spark's Python workers, and the daemon that they are forked from."""
    for pid in tree(os.getpid()):
        with contextlib.suppress(OSError):
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield pid


def peak_bytes(job: Callable[[], object]) -> int:
    """Run a job and return the most that a worker had resident meanwhile."""
    for pid in workers():
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew at what is resident
    job()
    peaks = []
    for pid in workers():
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            peaks += [int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")]
    return max(peaks)


def test_a_task_of_many_rows(spark: SparkSession, processes: Processes) -> None:
    namesrv = processes.namesrv().address
    processes.broker(namesrv, "--flush", "async", "--name", "broker-a")
    with Admin(namesrv) as admin:
        admin.create_topic("T", queues=1)
    options = {"nameServer": namesrv, "topic": "T"}

    def write(first: int, end: int) -> None:
        frame = spark.range(first, end, 1, 1).selectExpr("cast(lpad(string(id), 100, 'x') as binary) body")
        frame.write.format("rocketmq").mode("append").options(**options).save()

    def read(end: int) -> None:
        ends = json.dumps({"T": {"broker-a": {"0": end}}})
        rows = spark.read.format("rocketmq").options(**options, endingOffsets=ends, maxPartitions="1").load()
        assert rows.rdd.getNumPartitions() == 1
        rows.write.format("noop").mode("overwrite").save()

    for name, early, late in (
        ("write", lambda: write(0, EARLY), lambda: write(EARLY, ROWS)),
        ("read", lambda: read(EARLY), lambda: read(ROWS)),
    ):
        before, after = peak_bytes(early), peak_bytes(late)
        found = f"{name}: {before >> 20} MiB for {EARLY:,} rows, {after >> 20} MiB for {ROWS:,}"
        print(found)
        assert after < before + GROWTH_ALLOWED, found
    with Admin(namesrv) as admin:
        assert sum(bounds.max_offset for bounds in admin.topic_stats("T").values()) == ROWS
