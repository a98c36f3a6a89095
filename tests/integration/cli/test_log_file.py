"""``--log-file``: lines go there, and at SIGHUP to what has the name then; with shards those of all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.fixtures.processes import SMALL_FILES, Processes


def wait_for(text: str, path: Path, count: int = 1) -> str:
    """Return what a file holds once it has a text so many times."""
    deadline = time.monotonic() + 30
    while not path.exists() or path.read_text().count(text) < count:
        assert time.monotonic() < deadline, f"{text!r} is not in {path}"
        time.sleep(0.01)
    return path.read_text()


def check_rotation(pid: int, log: Path, servers: int) -> None:
    rotated = log.with_suffix(".1")
    log.rename(rotated)
    os.kill(pid, signal.SIGHUP)
    wait_for("log file opened again", log, servers)
    assert "opened again" not in rotated.read_text()


def test_a_log_that_is_rotated(processes: Processes, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    server = processes.namesrv("--log-file", str(log))
    assert " INFO rocketcore." in wait_for("name server started", log)
    assert not server.log.read_text()
    check_rotation(server.pid, log, 1)


def test_the_log_of_shards_is_rotated(tmp_path: Path) -> None:
    log = tmp_path / "shards.log"
    command = [sys.executable, "-m", "rocketcore.child", "rocketcore.cli.main", "broker", "start", "--shards", "2",
               "--namesrv", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "store"),
               "--log-file", str(log)]  # fmt: skip
    env = {**os.environ, **SMALL_FILES}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shards:
        try:
            assert shards.stdout is not None
            assert b'"ready"' in shards.stdout.readline()
            wait_for("broker started", log, 2)
            check_rotation(shards.pid, log, 3)
        finally:
            shards.terminate()
            assert shards.wait(30) == 0


def test_a_file_that_cannot_be_opened_again_is_kept(processes: Processes, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    server = processes.namesrv("--log-file", str(folder / "server.log"))
    folder.rename(tmp_path / "elsewhere")
    os.kill(server.pid, signal.SIGHUP)
    wait_for("log file kept", tmp_path / "elsewhere" / "server.log")
