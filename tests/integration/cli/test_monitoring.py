"""What servers that ``rocket`` runs tell monitors and systemd: the port of metrics and health, READY and STOPPING."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketcore.cli.servers.notify import notify
from tests.fixtures.processes import SMALL_FILES, Processes
from tests.reference.exposition import read_exposition


def read(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def test_servers_have_a_port_of_metrics_where_it_is_asked_for(processes: Processes) -> None:
    namesrv = processes.namesrv("--metrics-port", "0")
    broker = processes.broker(namesrv.address, "--metrics-port", "0", "--name", "broker-a")
    for server, name in ((namesrv, "rocketcore_broker_members"), (broker, "rocketmq_broker_permission")):
        address = server.ready["metrics"]
        assert read(address, "/livez") == read(address, "/readyz") == "ok\n"
        kinds, _ = read_exposition(read(address, "/metrics"))
        assert kinds[name] == "gauge"


@pytest.mark.parametrize("server", ["namesrv", "broker"])
def test_there_is_none_otherwise(processes: Processes, server: str) -> None:
    namesrv = processes.namesrv()
    started = namesrv if server == "namesrv" else processes.broker(namesrv.address)
    assert "metrics" not in started.ready


@contextmanager
def listening(name: str) -> Iterator[socket.socket]:
    """The socket of who started a service."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind("\0" + name[1:] if name.startswith("@") else name)
        told.settimeout(20)
        yield told


@pytest.mark.parametrize(
    "arguments",
    [
        ["namesrv", "start", "--listen", "127.0.0.1:0", "--home", "."],
        ["broker", "start", "--listen", "127.0.0.1:0", "--store", "."],
        ["broker", "start", "--shards", "2", "--listen", "127.0.0.1:0", "--store", "."],
        ["up", "--no-console", "--port", "0", "--store", "."],
        ["up", "--no-console", "--port", "0", "--store", ".", "--brokers", "2"],
        ["console", "--listen", "127.0.0.1:0"],
    ],
    ids=["name server", "broker", "shards", "up", "up with processes", "console"],
)
def test_who_started_a_server_is_told_when_it_is_ready_and_when_it_stops(tmp_path: Path, arguments: list[str]) -> None:
    path = str(tmp_path / "notify")
    command = [sys.executable, "-m", "rocketcore.cli.main", *arguments]
    env = {**os.environ, **SMALL_FILES, "NOTIFY_SOCKET": path}
    if "start" in arguments:
        env["ROCKETCORE_NAMESRV_ADDR"] = "127.0.0.1:1"
    with (
        listening(path) as told,
        subprocess.Popen(
            command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as server,
    ):
        try:
            assert told.recv(100) == b"READY=1"
            server.terminate()
            assert told.recv(100) == b"STOPPING=1"
            assert server.wait(30) == 0
            told.setblocking(False)
            with pytest.raises(BlockingIOError):
                told.recv(100)
        finally:
            server.kill()


def test_a_socket_in_no_folder_and_one_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    name = f"@rocketcore-test-{tmp_path}"
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with listening(name) as told:
        notify("READY=1")
        assert told.recv(100) == b"READY=1"
    assert not caplog.records
    notify("STOPPING=1")
    assert "STOPPING=1" in caplog.text
    caplog.clear()
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")
    assert not caplog.records
