"""What the suites of ``side_by_side`` share: targets, rows of figures, and the load generator.

A row is one question; each target answers it once a round, in an order that turns round with the rounds, so that drifts
of the machine hit all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.peers.apache import free_port

__all__ = ["FIGURES", "HERE", "VERSION", "Bench", "Row", "Target", "repeats", "report", "wait_for_port"]

HERE = Path(__file__).resolve().parent
VERSION = "5.5.0"

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """A server under load: how the table calls it, where it listens, which process to charge."""

    name: str
    port: int
    pid: int


@dataclass
class Row:
    """One question: a title, and what each target answered in each round."""

    title: str
    results: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, name: str, result: dict[str, Any]) -> None:
        self.results.setdefault(name, []).append(result)

    def figure(self, name: str, path: str) -> tuple[float, float, float] | None:
        """Return median, least and greatest of a figure such as ``lat_us.p50``."""
        values = []
        for result in self.results.get(name, ()):
            value: Any = result
            for key in path.split("."):
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                values.append(float(value))
        return (statistics.median(values), min(values), max(values)) if values else None


FIGURES = (
    ("msgs_s", "msg/s"),
    ("ops_s", "ops/s"),
    ("rows_s", "rows/s"),
    ("lat_us.p50", "p50 µs"),
    ("lat_us.p99", "p99 µs"),
    ("server_us_per_op", "server µs/op"),
    ("server_us_per_msg", "server µs/msg"),
    ("client_us_per_msg", "client µs/msg"),
    ("spark_us_per_row", "Spark CPU, µs a row"),
    ("broker_us_per_row", "broker CPU, µs a row"),
    ("best_share", "best share that the broker's CPU leaves"),
    ("share_of_best", "share of that"),
    ("core_percent", "% of a core"),
    ("broker_core_percent", "broker, % of a core"),
    ("trigger_ms", "ms"),
    ("server_rss_mb", "server MB"),
    ("ready_s", "ready s"),
    ("first_s", "first answer s"),
    ("rss_mb", "MB"),
    ("growth_mb", "growth MB"),
    ("kib_per_connection", "KiB/connection"),
)
SAME_AS = {"msgs_s": "ops_s", "server_us_per_msg": "server_us_per_op"}
"""What a figure per message repeats where a request carries one."""


class Bench:
    """A folder, a built load generator, and the rows measured so far.

    scale     share of the topics and connections that the large questions take; short measurements take a tenth
    cold_gib  size of the log that is read from the disk
    peers     whom that suite has beside ours
    """

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.rounds: int = arguments.rounds
        self.seconds: float = arguments.seconds
        self.warm: float = arguments.warm
        self.peers: list[str] = arguments.peers.split(",")
        self.scale: float = 1.0 if arguments.seconds >= 1 else 0.1
        self.cold_gib: float = arguments.cold_gib * self.scale
        self.folder = folder
        self.rows: list[Row] = []
        self.frameload = folder / "frameload"
        command = ["cc", "-std=c11", "-O2", "-o", str(self.frameload), str(HERE / "peers" / "frameload.c")]
        subprocess.run(command, check=True)

    @contextlib.contextmanager
    def suite(self, name: str) -> Iterator[None]:
        """Give what runs within a folder of its own: stores are gigabytes, and the next suite needs the disk."""
        whole, self.folder = self.folder, self.folder / name
        self.folder.mkdir()
        try:
            yield
        finally:
            shutil.rmtree(self.folder)
            self.folder = whole

    def row(self, title: str) -> Row:
        row = Row(title)
        self.rows.append(row)
        return row

    def load(
        self, target: Target, *arguments: object, seconds: float | None = None, attempts: int = 2
    ) -> dict[str, Any]:
        """Run the load generator and return its last result: one of several phases, else the only one."""
        return self.phases(target, *arguments, seconds=seconds, attempts=attempts)[-1]

    def phases(
        self, target: Target, *arguments: object, seconds: float | None = None, attempts: int = 2
    ) -> list[dict[str, Any]]:
        """Run the load generator; a wrong or missing answer is an error, but a cold JVM that is busy is asked again."""
        command = [str(self.frameload), *map(str, arguments), "--port", str(target.port), "--pid", str(target.pid)]
        command += ["--seconds", str(seconds or self.seconds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if not done.stdout.strip():
            raise RuntimeError(f"{target.name}: {' '.join(command)}: {done.stderr}")
        results: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.strip().splitlines()]
        kinds = ("errors", "mismatch", "bad", "closed", "unanswered")
        wrong = [{kind: result[kind] for kind in kinds if result.get(kind)} for result in results]
        if any(wrong) and target.name == "apache" and attempts > 1:
            return self.phases(target, *arguments, seconds=seconds, attempts=attempts - 1)
        if any(wrong):
            raise RuntimeError(f"{target.name}: {' '.join(command)}: {wrong}")
        return results

    @staticmethod
    def order(number: int, names: Sequence[T]) -> Sequence[T]:
        """Return what is measured in a round, in its order there."""
        return names if number % 2 == 0 else list(reversed(names))

    def alternate(self, title: str, targets: Sequence[Target], *arguments: object) -> Row:
        row = self.row(title)
        for number in range(self.rounds):
            self.forget_written()
            for target in self.order(number, targets):
                row.add(target.name, self.load(target, *arguments))
        report(row)
        return row

    def forget_written(self) -> None:
        """Have the system forget what is in its memory of the files that the servers wrote before.

        Where it has to find memory for gigabytes more, a page may cost ten times what it costs to fill (a virtual
        machine asks its host): the faster a server, the more of that it would pay for later.
        """
        for path in self.folder.rglob("*"):
            with contextlib.suppress(OSError):  # a file of a server that runs may go at any time
                if path.is_file():
                    fd = os.open(path, os.O_RDONLY)
                    try:
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    finally:
                        os.close(fd)

    @contextlib.contextmanager
    def echo(self, *options: object) -> Iterator[Target]:
        """The ceiling: a minimal C server on a free port."""
        port = free_port(set())
        command = [str(self.frameload), "echo", "--port", str(port), *map(str, options)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for_port(port)
            yield Target("ceiling", port, process.pid)
        finally:
            process.kill()
            process.wait()


def wait_for_port(port: int, timeout: float = 10.0) -> None:
    end = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def repeats(row: Row, name: str, path: str) -> bool:
    """Tell whether a figure says nothing new next to the one per request."""
    figure, per_request = row.figure(name, path), row.figure(name, SAME_AS.get(path, ""))
    return figure is not None and per_request is not None and math.isclose(figure[0], per_request[0], rel_tol=0.01)


def report(row: Row) -> None:
    """Print one row as lines of text."""
    print(f"\n## {row.title}")
    for name in row.results:
        cells = []
        for path, title in FIGURES:
            figure = row.figure(name, path)
            if figure is None or not figure[2] or repeats(row, name, path):
                continue
            median, least, greatest = figure
            peer_name = "apache" if "apache" in row.results else "ceiling"
            peer = row.figure(peer_name, path)
            ratio = f" {median / peer[0]:.2f}x" if peer and peer[0] and name != peer_name else ""
            cells.append(f"{title} {median:.4g} [{least:.4g}–{greatest:.4g}]{ratio}")
        print(f"{name:>8}: " + " · ".join(cells), flush=True)
