"""The console as users start it: alone, and beside the servers of rocket up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketcore.local import LocalCluster


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rocketcore.cli.main", *arguments]


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    with subprocess.Popen(
        command_line(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            yield process, json.loads(line)
        finally:
            process.kill()


def page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert answer.status == 200
        return str(answer.read().decode())


def end(process: subprocess.Popen[str], number: signal.Signals) -> int:
    process.send_signal(number)
    return process.wait(60)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_console_alone(cluster: LocalCluster, number: signal.Signals, code: int) -> None:
    with started("console", "--namesrv", cluster.namesrv, "--listen", "127.0.0.1:0") as (process, ready):
        assert "broker-b" in page(ready["url"] + "brokers")
        assert end(process, number) == code


def test_a_live_tail_ends_with_its_console(cluster: LocalCluster, make_topic: Callable[..., str]) -> None:
    with started("console", "--namesrv", cluster.namesrv, "--listen", "127.0.0.1:0") as (process, ready):
        with urllib.request.urlopen(f"{ready['url']}topic/tail?name={make_topic(1)}", timeout=60) as tail:
            assert tail.readline() == b"event: count\n"
            process.send_signal(signal.SIGINT)
            assert tail.read().endswith(b"\n\n"), "a whole answer"
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.alone
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_first_page_of_rocket_up_costs_a_second_at_most() -> None:
    def spent() -> float:
        with started("up", "--port", "0", "--console-port", "0", "-o", "json") as (process, ready):
            assert "Overview" in page(ready["console"])
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            assert end(process, signal.SIGTERM) == 0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # Of the processor, however busy the machine is; where others share its caches, half as much again.
    assert min(spent(), spent()) < 1.5


def test_one_beside_the_servers_and_none_where_none_is_wanted() -> None:
    with started("up", "--port", "0", "--console-port", "0", "-o", "json") as (process, ready):
        assert "broker-a" in page(ready["console"] + "brokers")
        taken = ready["console"].rsplit(":", 1)[1].strip("/")
        # The port is taken: servers run without, unless a console was asked for.
        with started("up", "--port", "0", "--console-port", taken, "-o", "json") as (other, without):
            assert without["console"] is None
            assert end(other, signal.SIGTERM) == 0
        asked = command_line("up", "--port", "0", "--console", "--console-port", taken)
        failed = subprocess.run(asked, capture_output=True, text=True, timeout=60)
        assert failed.returncode == 1
        assert "in use" in failed.stderr
        assert end(process, signal.SIGTERM) == 0
    with started("up", "--port", "0", "--no-console", "-o", "json") as (process, ready):
        assert ready["console"] is None
        assert end(process, signal.SIGTERM) == 0


@pytest.mark.parametrize("shards", ["1", "2"])
def test_one_beside_a_broker_and_one_beside_all_its_shards(tmp_path: Path, shards: str) -> None:
    options = ("--listen", "127.0.0.1:0", "--shards", shards, "--store", str(tmp_path), "--console", "127.0.0.1:0")
    with (
        LocalCluster() as own,
        started("broker", "start", "--namesrv", own.namesrv, "--name", "extra", *options) as (process, ready),
    ):
        assert "extra" in page(ready["console"] + "brokers")
        assert len(ready.get("brokers", ["alone"])) == int(shards)
        assert end(process, signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--console", "0.0.0.0:0"], "beside a broker: --console-auth FILE"),
        (["--console-readonly"], "need --console"),
    ],
)
def test_a_broker_is_refused_a_console_that_cannot_be(tmp_path: Path, options: list[str], text: str) -> None:
    line = command_line("broker", "start", "--listen", "127.0.0.1:0", "--store", str(tmp_path), *options)
    refused = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert text in refused.stderr


def test_it_is_refused_where_others_could_change_something() -> None:
    refused = subprocess.run(
        command_line("console", "--listen", "0.0.0.0:0"), capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 2
    assert "--auth FILE, or --readonly" in refused.stderr
