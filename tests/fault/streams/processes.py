"""The driver as a process to kill, with its JVM and its Python workers, found in /proc; and how far its queries are."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.fault.streams.driver import Plan
from tests.fault.workers import CHECKOUT

DAEMON: Final = "pyspark.daemon"
SOURCE: Final = "pyspark.sql.streaming.python_streaming_source_runner"
END_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.01
WORK_SECONDS: Final = 0.03
"""In which a process that works is seen to: three ticks of its clock."""


@dataclass(frozen=True, slots=True)
class Process:
    """A line of the process table; ``ticks`` of processor time it has had."""

    pid: int
    parent: int
    ticks: int
    command: tuple[str, ...]

    def runs(self, module: str) -> bool:
        return module in self.command

    @property
    def is_jvm(self) -> bool:
        return Path(self.command[0]).name == "java"


def process_table() -> dict[int, Process]:
    """Return all processes that are neither gone nor dead."""
    table = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # proc(5): the fields behind the name, which may hold blanks
                state, parent, *fields = entry.joinpath("stat").read_text().rpartition(")")[2].split()
                ticks = int(fields[9]) + int(fields[10])
                command = entry.joinpath("cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
                if state not in "ZX" and command:
                    table[int(entry.name)] = Process(int(entry.name), int(parent), ticks, tuple(command.split("\0")))
    return table


def descendants(pid: int) -> list[Process]:
    """Return the children of a process, and theirs, the nearest first."""
    table = process_table()
    found: list[Process] = []
    parents = {pid}
    while parents:
        children = [process for process in table.values() if process.parent in parents]
        found += children
        parents = {process.pid for process in children}
    return found


class DriverProcess:
    """One life of the driver: from its start to its death, or to its end when it was to drain."""

    def __init__(self, plan: Plan, number: int) -> None:
        folder = Path(plan.folder)
        self._events = folder / f"driver-{number}.events"
        self._read = 0
        self.log = folder / f"driver-{number}.log"
        plan = replace(plan, events=str(self._events))
        path = os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH"))))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rocketcore.child", "tests.fault.streams.driver", plan.to_json()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=CHECKOUT,
                env={**os.environ, "PYTHONPATH": path},
            )

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def events(self) -> list[dict[str, Any]]:
        """Return what the program has said since the last call."""
        if not self._events.exists():
            return []
        with self._events.open() as file:
            file.seek(self._read)
            text = file.read()
        text = text[: text.rfind("\n") + 1]
        self._read += len(text.encode())
        return [json.loads(line) for line in text.splitlines()]

    def kill(self) -> None:
        """Kill the JVM and the program at once; Python workers are left to find out by themselves."""
        jvms = [process.pid for process in descendants(self._process.pid) if process.is_jvm]
        for pid in (*jvms, self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait()
        # Two drivers of one checkpoint would be another test.
        while any(pid in process_table() for pid in jvms):
            time.sleep(POLL_SECONDS)

    def kill_busy_worker(self, rng: random.Random) -> bool:
        """Kill a Python process of the JVM that is at work, of a task, of a plan or of a source; False if none is."""
        before = {process.pid: process.ticks for process in self._workers()}
        time.sleep(WORK_SECONDS)
        busy = [process.pid for process in self._workers() if process.ticks > before.get(process.pid, process.ticks)]
        if busy:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(busy), signal.SIGKILL)
        return bool(busy)

    def _workers(self) -> list[Process]:
        found = descendants(self._process.pid)
        jvms = {process.pid for process in found if process.is_jvm}
        daemons = {process.pid for process in found if process.runs(DAEMON) and process.parent in jvms}
        return [process for process in found if process.parent in daemons or process.runs(SOURCE)]

    def end(self) -> None:
        """End it as its user would, and all that it started."""
        if not self.has_ended:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
        self.kill()

    def wait(self, timeout: float | None = None) -> int:
        code = self._process.wait(timeout)
        assert self._process.stdin is not None
        self._process.stdin.close()
        return code


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a query is, by its checkpoint: the last batch that was planned, and the last that is done."""

    planned: int
    done: int

    @property
    def is_inside(self) -> bool:
        """Whether a batch is under way."""
        return self.planned > self.done


def progress(checkpoint: Path) -> Progress:
    return Progress(_newest(checkpoint / "offsets"), _newest(checkpoint / "commits"))


def _newest(log: Path) -> int:
    try:
        return max((int(entry.name) for entry in log.iterdir() if entry.name.isdecimal()), default=-1)
    except FileNotFoundError:
        return -1


def table_files(table: Path) -> list[Path]:
    """Return the files of a table that a stream has written, by the stream's own log, in no order.

    The log is a folder of batches: each a version, then a line of JSON a file; every tenth holds all before it, too.
    """
    found = set()
    log = table / "_spark_metadata"
    for entry in log.iterdir() if log.exists() else ():
        if entry.name.removesuffix(".compact").isdecimal():
            version, *lines = entry.read_text().splitlines()
            assert version == "v1", f"{entry} is of version {version}"
            found |= {json.loads(line)["path"] for line in lines}
    return [Path(path.removeprefix("file://")) for path in found]
