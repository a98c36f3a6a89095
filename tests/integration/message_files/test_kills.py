"""``rocket message export`` and ``import`` in processes that are killed, and with a broker that is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rocketcore.admin.client import Admin
from rocketcore.client.arrow import read_arrow
from rocketcore.client.sync import Producer
from rocketcore.local import LocalCluster
from tests.fixtures.commands import Rocket
from tests.fixtures.message_files import FORMS, messages
from tests.fixtures.processes import Processes


def _start(folder: Path, cluster: LocalCluster, *arguments: str, stdin: int | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "rocketcore.cli.main", "message", *arguments, "--namesrv", cluster.namesrv],
        cwd=folder, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def _noted_rows(notes: Path) -> int:
    try:
        return int(json.loads(notes.read_bytes())["state"]["rows"])
    except (FileNotFoundError, json.JSONDecodeError):
        return 0


def _killed_and_finished(
    folder: Path, cluster: LocalCluster, notes: Path, kills: list[signal.Signals], *arguments: str
) -> list[int]:
    """Kill a command as often, each time after some progress, and have it finish; return where it was each time."""
    seen = [0]
    for number in kills:
        with _start(folder, cluster, *arguments) as process:
            end = time.monotonic() + 60
            while _noted_rows(notes) <= seen[-1]:
                assert process.poll() is None, process.communicate()[1]
                assert time.monotonic() < end
                time.sleep(0.001)
            process.send_signal(number)
            _, error = process.communicate(timeout=60)
        assert process.returncode in (-signal.SIGKILL, 130), error
        seen.append(_noted_rows(notes))
    with _start(folder, cluster, *arguments) as process:
        _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert not notes.exists()
    return seen


@pytest.fixture(scope="module")
def many(cluster: LocalCluster) -> str:
    """A topic of 60,000 messages, and as many different bodies."""
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("many", 2)
    bodies = pa.array([b"%08d" % i + b"." * 92 for i in range(60_000)])
    with Producer(cluster.namesrv, group="p") as producer:
        producer.send_arrow("many", pa.table({"body": bodies}), body="body")
    return "many"


KILLS = [signal.SIGKILL, signal.SIGINT]
"""Each is followed by a run that goes on: a third one would follow a kill as the second does."""


@pytest.mark.parametrize("form", FORMS)
def test_an_export_that_is_killed_goes_on(many: str, cluster: LocalCluster, tmp_path: Path, form: str) -> None:
    path = tmp_path / f"a.{form}"
    arguments = ["export", many, "-o", str(path), "--part-bytes", "100000"]
    seen = _killed_and_finished(tmp_path, cluster, Path(f"{path}.progress"), KILLS, *arguments)
    assert len(set(seen)) == len(KILLS) + 1
    bodies = Counter(row["body"] for row in messages(path))
    assert (60_000 - len(bodies), sum(bodies.values()) - len(bodies)) == (0, 0), "lost, doubled"


@pytest.mark.parametrize("form", FORMS)
def test_an_import_that_is_killed_goes_on_with_the_same_ids(
    many: str, cluster: LocalCluster, tmp_path: Path, form: str
) -> None:
    bodies = [b"%08d" % i + b"." * 92 for i in range(60_000)]
    path, target = tmp_path / f"a.{form}", f"killed-{form}"
    table = pa.table({"body": pa.array(bodies)})
    if form == "parquet":
        pq.write_table(table, path, row_group_size=7_000)
    elif form == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=7_000)
    else:
        path.write_text("".join(json.dumps({"body": body.decode()}) + "\n" for body in bodies))
    arguments = ["import", str(path), "--topic", target, "--create", "--part-bytes", "300000", "--rate", "60000"]
    notes = Path(f"{path}.{target}.progress")
    _killed_and_finished(tmp_path, cluster, notes, KILLS, *arguments)
    stored = read_arrow(cluster.namesrv, topic=target, columns=["body", "msgId"])
    found = Counter(zip(stored["body"].to_pylist(), stored["msgId"].to_pylist(), strict=True))
    assert {body for body, _ in found} == set(bodies), "nothing is lost"
    assert len(found) == len(bodies), "a message that is there twice has the same id both times"
    ids = dict(list(found))
    write_id = ids[bodies[0]][:16]
    assert ids[bodies[-1]] == f"{write_id}{len(bodies) - 1:016X}"


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_broker_that_is_killed_and_comes_back(
    processes: Processes, rocket: Rocket, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Both wait for it; what was sent twice has the same id."""
    namesrv = processes.namesrv().address
    store = processes.folder / "store"
    broker = processes.broker(namesrv, store=store)
    monkeypatch.setenv("ROCKET_NAMESRV", namesrv)
    rows = 30_000
    pq.write_table(pa.table({"body": [b"%08d" % i + b"." * 92 for i in range(rows)]}), "in.parquet")
    Path("in.jsonl").write_text("".join(json.dumps({"body": f"{i:08}"}) + "\n" for i in range(rows)))
    source = "in.jsonl" if form == "jsonl" else "in.parquet"
    commands = [
        (["import", source, "--topic", "T", "--create", "--part-bytes", "100000", "--rate", "30000"],
         f"{source}.T.progress"),
        (["export", "T", "-o", f"out.{form}", "--part-bytes", "50000"], f"out.{form}.progress"),
    ]  # fmt: skip
    for arguments, notes in commands:
        with subprocess.Popen(
            [sys.executable, "-m", "rocketcore.cli.main", "message", *arguments],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            end = time.monotonic() + 60
            while not _noted_rows(Path(notes)):
                assert process.poll() is None, process.communicate()[1]
                assert time.monotonic() < end
                time.sleep(0.001)
            address = broker.address
            broker.kill()
            broker = processes.broker(namesrv, store=store, listen=address)
            _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
    found = {(row["body"], row["id"]) for row in messages(f"out.{form}")}
    assert len(found) == len({body for body, _ in found}) == rows


def test_memory_does_not_grow_with_the_file(cluster: LocalCluster, tmp_path: Path) -> None:
    """200,000 messages, of 80 MB, take as much memory as a tenth of them, either way.

    Arrow's own allocator keeps freed memory by the time it was freed, here 20 MiB and there 60: the system's does not.
    """
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    program = (
        "import sys; from rocketcore.cli.main import run; code = run(sys.argv[1:]); assert code == 0, code;"
        "[line] = [line for line in open('/proc/self/status') if line.startswith('VmHWM')];"
        "print(line.split()[1], file=sys.stderr)"
    )

    def peak_mib(*arguments: str) -> float:
        done = subprocess.run(
            [sys.executable, "-c", program, "message", *arguments, "-q", "--namesrv", cluster.namesrv],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return int(done.stderr.splitlines()[-1]) / 1024

    peaks = {}
    for rows in (20_000, 200_000):
        path = tmp_path / f"{rows}.parquet"
        with pq.ParquetWriter(path, pa.schema([("body", pa.binary())])) as writer:
            for start in range(0, rows, 10_000):
                bodies = pa.array([b"%08d" % i + b"." * 392 for i in range(start, start + 10_000)], pa.binary())
                writer.write_table(pa.table({"body": bodies}))
        sent = peak_mib("import", str(path), "--topic", f"rows-{rows}", "--create")
        options = ["--no-properties", "--part-bytes", str(8 << 20)]
        read = peak_mib("export", f"rows-{rows}", "-o", f"{rows}.arrow", *options)
        written = peak_mib("export", f"rows-{rows}", "-o", f"{rows}.back.parquet", *options)
        assert pq.ParquetFile(tmp_path / f"{rows}.back.parquet").metadata.num_rows == rows
        peaks[rows] = (sent, read, written)
    growth = [large - small for small, large in zip(*peaks.values(), strict=True)]
    assert max(growth) < 48, peaks


def _stored(cluster: LocalCluster, topic: str) -> list[str]:
    stored = read_arrow(cluster.namesrv, topic=topic, columns=["body"])
    return sorted(body.decode() for body in stored["body"].to_pylist())


@pytest.mark.parametrize("options", [[], ["--rate", "1000"]])
@pytest.mark.parametrize("fifo", [False, True])
def test_lines_of_a_slow_pipe_are_sent_as_they_come(
    cluster: LocalCluster, tmp_path: Path, options: list[str], fifo: bool
) -> None:
    """The third is in hand when the signal comes; it is sent as well."""
    target = f"slow-{fifo}-{len(options)}"
    with Admin(cluster.namesrv) as admin:
        admin.create_topic(target, 2)
    os.mkfifo(tmp_path / "lines")
    name, at = ("lines", tmp_path / "lines") if fifo else ("-", None)
    process = _start(tmp_path, cluster, "import", name, "--topic", target, *options, stdin=subprocess.PIPE)
    pipe = process.stdin if at is None else at.open("wb")
    assert pipe is not None
    assert process.stderr is not None
    with process, pipe:
        pipe.write(b'{"body": "1"}\n{"body": "2"}\n')
        pipe.flush()
        end = time.monotonic() + 60
        while (found := _stored(cluster, target)) != ["1", "2"]:
            assert time.monotonic() < end, found
        pipe.write(b'{"body": "3"}\n')
        pipe.flush()
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read().decode()
        assert process.wait(60) == 130
    found = _stored(cluster, target)
    assert f"{len(found)} messages of {name} are stored" in said


def test_what_is_acknowledged_before_a_signal_is_not_sent_again(cluster: LocalCluster, tmp_path: Path) -> None:
    bodies = [f"{i:03}" for i in range(60)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": body}) + "\n" for body in bodies))
    notes = tmp_path / "a.jsonl.noted.progress"
    arguments = ["import", "a.jsonl", "--topic", "noted", "--create", "--rate", "15"]
    with _start(tmp_path, cluster, *arguments) as process:
        end = time.monotonic() + 60
        while _noted_rows(notes) == 0:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    assert _stored(cluster, "noted") == bodies[: _noted_rows(notes)]
    with _start(tmp_path, cluster, *arguments[:-2]) as process:
        assert process.wait(60) == 0
    assert _stored(cluster, "noted") == bodies
