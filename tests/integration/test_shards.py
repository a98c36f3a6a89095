"""``rocket broker start --shards``: several brokers under one process, as a user, a kill and a signal meet them."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from rocketcore.admin.client import Admin
from rocketcore.client.sync import Producer
from tests.fixtures.processes import SMALL_FILES, Processes

WAIT = 30


class Shards:
    """The parent of two brokers named s."""

    def __init__(self, namesrv: str, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "rocketcore.cli.main", "broker", "start", "--shards", "2", "--name", "s",
                   "--listen", "127.0.0.1:0", "--store", str(folder / "store"), "--namesrv", namesrv]  # fmt: skip
        self.log = folder / "shards.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *options], stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **SMALL_FILES}
            )

    def ready(self) -> list[dict[str, Any]]:
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        assert (said["event"], said["pid"]) == ("ready", self.process.pid)
        brokers: list[dict[str, Any]] = said["brokers"]
        return brokers

    def until_said(self, pattern: str) -> re.Match[str]:
        """Follow the log until a line is there."""
        with subprocess.Popen(["tail", "-n", "+1", "-F", str(self.log)], stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout is not None
            try:
                for line in tail.stdout:
                    if found := re.search(pattern, line):
                        return found
            finally:
                tail.kill()
        raise AssertionError(f"not said: {pattern}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT)


@pytest.fixture
def started(processes: Processes, tmp_path: Path) -> Iterator[Shards]:
    shards = Shards(processes.namesrv().address, tmp_path)
    try:
        yield shards
    finally:
        shards.process.kill()
        shards.process.wait()
        if shards.process.stdout is not None:
            shards.process.stdout.close()


def pidfds(pids: list[int], stack: ExitStack) -> list[int]:
    fds = [os.pidfd_open(pid) for pid in pids]
    for fd in fds:
        stack.callback(os.close, fd)
    return fds


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_topic_spreads_over_them_and_a_signal_ends_all(started: Shards, number: signal.Signals, code: int) -> None:
    brokers = started.ready()
    assert [each["broker"] for each in brokers] == ["s-0", "s-1"]
    assert [Path(each["store"]).name for each in brokers] == ["s-0", "s-1"]
    assert len({each["pid"] for each in brokers} | {started.process.pid}) == 3
    namesrv = str(started.process.args[-1])  # type: ignore[index]
    with Admin(namesrv) as admin, Producer(namesrv, group="p") as producer:
        admin.create_topic("spread", 2)
        used = {producer.send("spread", b"x").queue.broker for _ in range(8)}
        assert used == {"s-0", "s-1"}
    with ExitStack() as stack:
        fds = pidfds([each["pid"] for each in brokers], stack)
        assert started.end(number) == code
        assert select.select(fds, [], [], 0)[0] == fds, "a shard outlives the end"
    log = started.log.read_text()
    assert re.search(r"INFO s-1 rocketcore\.", log), "lines of a shard have its name"
    assert "out of order" not in log


def test_one_that_dies_is_started_again_and_the_others_serve(started: Shards) -> None:
    first, second = started.ready()
    os.kill(second["pid"], signal.SIGKILL)
    started.until_said(r"ERROR .* shard died shard=s-1 exit_code=-9 again_in_s=")
    again = started.until_said(rf"shard ready shard=s-1 address=\S+ pid=(?!{second['pid']}\b)(\d+)")
    with ExitStack() as stack:
        fds = pidfds([first["pid"], int(again[1])], stack)
        assert not select.select(fds, [], [], 0)[0], "the other one ran on"
        assert started.end() == 0
        assert select.select(fds, [], [], 0)[0] == fds


def test_they_end_with_their_parent_however_it_ends(started: Shards) -> None:
    with ExitStack() as stack:
        fds = pidfds([each["pid"] for each in started.ready()], stack)
        started.process.kill()
        for fd in fds:
            assert select.select([fd], [], [], WAIT)[0], "a shard outlives its parent"


def test_one_that_cannot_start_ends_all(started: Shards, tmp_path: Path, processes: Processes) -> None:
    started.ready()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "store").mkdir()
    (tmp_path / "other" / "store" / "s-1").write_text("not a folder")
    failing = Shards("127.0.0.1:1", tmp_path / "other")
    try:
        assert failing.process.wait(WAIT) == 1
        assert failing.process.stdout is not None
        assert failing.process.stdout.read() == ""
    finally:
        with suppress(ProcessLookupError):
            failing.process.kill()
        if failing.process.stdout is not None:
            failing.process.stdout.close()
    log = failing.log.read_text()
    assert "shard could not be started shard=s-1 exit_code=1" in log
    assert "Traceback" not in log
    assert str(tmp_path / "other" / "store" / "s-1") in log
