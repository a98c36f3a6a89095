"""What `rocket bench spark` prints, on a broker of its own; what it is made of needs no Spark to run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from rocketcore import LocalCluster
from rocketcore.cli.main import run
from rocketcore.cli.shell.options import NAMESRV_VARIABLES, Settings
from rocketcore.cli.tools.bench_spark import connection_options
from rocketcore.spark.ceilings import Prebuilt
from rocketcore.spark.cpu_time import Cost, cpu_seconds, listening_process, measure
from rocketcore.spark.options import SinkOptions, parse_options
from rocketcore.spark.workloads import Pair, Workload, alternate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMAND = [
    "bench",
    "spark",
    "--rows",
    "20000",
    "--size",
    "100",
    "--queues",
    "2",
    "--rounds",
    "1",
    "--warm",
    "0",
    "-q",
    "-o",
    "json",
]
BURN = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\nsys.stdin.read()"


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_figures_of_a_broker_of_its_own(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in (*NAMESRV_VARIABLES, "ROCKET_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert run(COMMAND) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["direction"] for row in found] == ["sink", "source"]
    for row in found:
        assert (row["benchmark"], row["rows"], row["size_bytes"], row["rounds"]) == ("spark", 20_000, 100, 1)
        assert row["rows_per_second"] > 0
        assert row["ceiling_rows_per_second"] > 0
        assert row["mib_per_second"] == pytest.approx(row["rows_per_second"] * 100 / (1 << 20), abs=0.01)
        assert row["spark_us_per_row"] > 0
        assert row["broker_us_per_row"] >= 0  # twenty thousand rows are a tick of the system's clock, or none
        assert 0 < row["best_share"] <= 1
        assert row["share_of_best"] == pytest.approx(row["share"] / row["best_share"], abs=0.002)
    assert spark.range(1).count() == 1, "the session was here before the command"


def test_a_cluster_that_does_not_answer_is_told_before_spark_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--namesrv", "127.0.0.1:1", "--timeout", "1", *COMMAND]) == 5
    assert "127.0.0.1:1" in json.loads(capsys.readouterr().err)["error"]["message"]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_job_that_fails_is_told_in_a_line(
    spark: SparkSession, cluster: LocalCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    too_large = ["--rows", "1", "--size", str(4 << 20), "--queues", "1"]
    assert run(["--namesrv", cluster.namesrv, "bench", "spark", *too_large, "-q", "-o", "json"]) == 1
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith('{"error"')]
    assert len(told) == 1
    error = json.loads(told[0])["error"]
    assert error["code"] == "SPARK"
    assert error["message"].startswith("Spark: rocketcore.errors.MessageIllegal: ")


def test_the_connection_of_the_command_is_that_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKET_CONTEXT", "")
    monkeypatch.setenv("ROCKET_SECRET_KEY", "hidden")
    monkeypatch.setenv("ROCKET_NAMESRV", "b:9876")

    def read(settings: Settings) -> SinkOptions:
        return parse_options(SinkOptions, {**connection_options(settings), "topic": "T"})

    plain = read(Settings(namesrv_option="a:9876,b:9876"))
    assert (plain.name_server, plain.access_key, plain.tls) == ("a:9876;b:9876", None, False)
    files: dict[str, Any] = {"tls_ca": Path("/ca"), "tls_cert": Path("/cert"), "tls_key": Path("/key")}
    secured = read(Settings(access_key="ops", **files))
    assert (secured.name_server, secured.access_key, secured.secret_key) == ("b:9876", "ops", "hidden")
    assert (secured.tls, secured.tls_verify) == (True, True)
    assert (secured.tls_ca_file, secured.tls_cert_file, secured.tls_key_file) == ("/ca", "/cert", "/key")
    assert not read(Settings(tls_insecure=True)).tls_verify


@pytest.fixture
def burner() -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start a process that has used 0.3 s of CPU when it is handed out, and waits."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", BURN], stdin=-1, stdout=-1, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        return process

    yield start
    for process in started:
        process.communicate()


def test_the_processes_of_brokers_are_charged_apart(burner: Callable[[], subprocess.Popen[str]]) -> None:
    broker = burner()
    children: list[subprocess.Popen[str]] = []
    cost = measure(lambda: children.append(burner()), iter((1.0, 3.5)).__next__, {broker.pid})
    assert cost.seconds == 2.5
    assert cost.spark_cpu >= 0.25, "of a process below this one"
    assert cost.brokers_cpu == 0
    assert measure(lambda: None, iter((1.0, 2.0)).__next__, None).brokers_cpu is None
    assert cpu_seconds(broker.pid) >= 0.25


@pytest.mark.parametrize("waited_for", [True, False])
def test_a_worker_that_ends_takes_no_time_away(burner: Callable[[], subprocess.Popen[str]], waited_for: bool) -> None:
    worker = burner()
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL if waited_for else signal.SIG_IGN)
    try:
        cost = measure(worker.communicate, iter((1.0, 2.0)).__next__, None)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert 0 <= cost.spark_cpu < 0.2


def test_who_listens_at_an_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening_process(f"127.0.0.1:{port}") == os.getpid()
        assert listening_process(f"localhost:{port}") == os.getpid()
        assert listening_process(f"192.0.2.1:{port}") is None, "of another machine"
    assert listening_process(f"127.0.0.1:{port}") is None


@pytest.mark.parametrize("rows", [0, 1, 7, 30_001])
def test_prebuilt_rows_are_as_many_as_asked_for(rows: int) -> None:
    source = Prebuilt({"rows": str(rows), "size": "100", "tasks": "4"})
    batch = source.reader(StructType())
    stream = source.streamReader(StructType())
    for parts, read in (
        (batch.partitions(), batch.read),
        (stream.partitions(stream.initialOffset(), {"rows": rows}), stream.read),
    ):
        found = [each for part in parts for each in read(part)]
        assert sum(each.num_rows for each in found) == rows  # type: ignore[union-attr]
        assert all(each.nbytes < 2 << 20 for each in found)  # type: ignore[union-attr]
    assert stream.partitions({"rows": rows}, {"rows": rows}) == []


def test_the_rounds_of_a_pair_alternate() -> None:
    order: list[str] = []
    workload = Workload(10, lambda: order.append("ours"), lambda: order.append("ceiling"))
    pairs = list(alternate(workload, 2, None, warm_rounds=1))
    assert order == ["ceiling", "ours", "ours", "ceiling", "ceiling", "ours"]
    assert [pair.rows for pair in pairs] == [10, 10]


def test_what_the_brokers_leave() -> None:
    pair = Pair(1_000_000, Cost(4.0, 3.0, 1.0), Cost(2.0, 1.5, 0.0))
    assert pair.rows_per_second == 250_000
    assert (pair.spark_us_per_row, pair.broker_us_per_row, pair.ceiling_us_per_row) == (3.0, 1.0, 1.5)
    assert (pair.share, pair.best_share) == (0.5, 0.6)
    assert pair.share_of_best == pytest.approx(0.5 / 0.6)
    elsewhere = Pair(1_000_000, Cost(4.0, 3.0, None), Cost(2.0, 1.5, None))
    assert elsewhere.share == 0.5
    assert elsewhere.best_share is elsewhere.share_of_best is elsewhere.broker_us_per_row is None
