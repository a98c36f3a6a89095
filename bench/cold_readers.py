"""What consumers that lag behind do to others: a log out of memory, read from its start, and clients of hot messages.

The log is written once: a topic for one reader, and four for four, one after the other, so that each reads a place of
its own. Before each round its files are dropped from the system's memory; Apache's broker, which has them mapped, is
started anew for that, and warmed. One client sends and another pulls what was sent a moment ago, both at a steady rate
over one connection each: alone, beside one cold reader, and beside four.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.comparison import VERSION, Bench, Row, Target, report
from tests.fixtures.processes import Processes
from tests.peers.apache import ApacheCluster

__all__ = ["cold"]

READERS = (0, 1, 4)
RATE = 500
"""Sends, and pulls, a second: few, so that what is measured is how long each waits."""
STEADY = ("--rate", RATE)
BATCH = 32
RECORD_BYTES = 1 << 10
HOT = ("--topic", "hot", "--queues", 4, "-c", 1, "-d", 64)


def cold(bench: Bench) -> None:
    conf = {"flushDiskType": "ASYNC_FLUSH", "mappedFileSizeCommitLog": 1 << 30}
    with contextlib.ExitStack() as stack:
        processes = Processes(bench.folder)
        stack.callback(processes.end)
        namesrv = processes.namesrv()
        started = processes.broker(namesrv.address, "--flush", "async", store=bench.folder / "ours")
        ours = Target("ours", int(started.address.rpartition(":")[2]), started.pid)
        cluster = None
        if "apache" in bench.peers:
            cluster = stack.enter_context(
                ApacheCluster(
                    VERSION, bench.folder / "apache", extra_broker_conf=conf, java_options=["-Xms2g", "-Xmx2g"]
                )
            )
        targets = [ours, *([_apache(cluster)] if cluster else [])]
        for target in targets:
            _fill(bench, target)
        size = f"{bench.cold_gib:g} GiB"
        rows = {
            (readers, what): bench.row(f"{what}, {RATE} a second, {_beside(readers)} of a log of {size}")
            for readers in READERS
            for what in ("send 1 KiB", "pull of hot messages")
        }
        read = {readers: bench.row(f"{_beside(readers)} of a log of {size}, what they read") for readers in READERS[1:]}
        for number in range(bench.rounds):
            for target in bench.order(number, targets):
                if target.name == "apache" and cluster is not None:
                    cluster.restart_broker(0, graceful=True)
                    target = _apache(cluster)
                _drop(bench.folder / target.name)
                bench.load(target, "send", *HOT, *STEADY, seconds=bench.warm if target.name == "apache" else 1)
                for readers in READERS:
                    _measure(bench, target, readers, rows, read)
        for row in (*rows.values(), *read.values()):
            report(row)


def _beside(readers: int) -> str:
    return f"beside {readers} cold reader{'s' * (readers != 1)}" if readers else "beside no reader"


def _apache(cluster: ApacheCluster) -> Target:
    return Target("apache", int(cluster.brokers[0].rpartition(":")[2]), cluster.pids["broker-a"])


def _fill(bench: Bench, target: Target) -> None:
    """Write the log, and enough hot messages for the pulls to start with."""
    topics = ["cold1-00000", *(f"cold4-{number:05}" for number in range(4))]
    batches = max(1, int(bench.cold_gib * (1 << 30) / RECORD_BYTES / BATCH / len(topics)))
    for topic in topics:
        load = ("send", "--create", "--queues", 1, "--topic", topic, "--batch", BATCH, "-c", 4, "-d", 1)
        bench.load(target, *load, "--warmup", 0, "--count", batches, seconds=250)
    bench.load(target, "send", "--create", *HOT, "--warmup", 0, "--count", 2000, seconds=60)


def _drop(store: Path) -> None:
    """Have the system forget the files of a store."""
    for path in sorted(store.rglob("*")):
        if path.is_file() and {"commitlog", "consumequeue"} & set(path.parts):
            with path.open("rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _measure(
    bench: Bench, target: Target, readers: int, rows: dict[tuple[int, str], Row], read: dict[int, Row]
) -> None:
    """Load a target with sends and pulls while so many readers go through the cold log."""
    with ThreadPoolExecutor(2) as pool:
        behind = _read_cold(bench, target, readers) if readers else None
        sends = pool.submit(bench.load, target, "send", *HOT, *STEADY, "--warmup", 0)
        pulls = pool.submit(bench.load, target, "pull", *HOT, *STEADY, "--max", 1, "--loop", "--warmup", 0)
        rows[readers, "send 1 KiB"].add(target.name, _waits(sends.result()))
        rows[readers, "pull of hot messages"].add(target.name, _waits(pulls.result()))
    if behind is None:
        return
    was_reading = behind.poll() is None
    output, _ = behind.communicate(timeout=300)
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    if result["errors"]:
        raise RuntimeError(f"{target.name}: cold readers: {result['errors']}")
    read[readers].add(target.name, result)
    if not was_reading:
        print(f"{target.name}: {readers} cold readers were done before the others: take a larger --cold-gib")


def _waits(result: dict[str, Any]) -> dict[str, Any]:
    """What of a result is the client's own: the server's CPU time is that of the readers too."""
    return {name: value for name, value in result.items() if name in ("ops_s", "lat_us", "late")}


def _read_cold(bench: Bench, target: Target, readers: int) -> subprocess.Popen[str]:
    command = [bench.frameload, "pull", "--topic", f"cold{readers}", "--topics", readers, "--queues", 1, "-c", readers]
    command += ["--port", target.port, "--pid", target.pid, "--warmup", 0, "--seconds", 120]
    return subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
