"""The recipes of examples/, as docs/recipes.md has them run: what they print and leave, and what another run adds."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
import pytest
from pyspark.errors import PySparkException

import rocketcore as rmq
from rocketcore.cli.main import run as run_rocket
from rocketcore.local import LocalCluster
from rocketcore.spark.stream_reader import HAS_LIMITS
from tests.integration.test_api_snippets import run as run_snippet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "rocketcore" / "sample"
PAGE = (ROOT / "docs" / "recipes.md").read_text()

MakeTopic = Callable[..., str]
RunExample = Callable[..., None]


@pytest.fixture
def run_example(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> RunExample:
    """``run_example(script, *arguments)``: run it as a program, in the session of all tests."""

    class Session:
        def __enter__(self) -> SparkSession:
            return spark

        def __exit__(self, *_: object) -> None:
            """The session goes on."""

    def run(script: str, *arguments: str) -> None:
        monkeypatch.setattr("rocketcore.spark.local_session", lambda name: Session())
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")

    return run


closes_windows = pytest.mark.skipif(not HAS_LIMITS, reason="a run of PySpark 4.1 ends before it sends closed windows")


def earthquakes() -> list[str]:
    return (SAMPLE / "earthquakes.ndjson").read_text().splitlines()


def stored(namesrv: str, topic: str, *columns: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rmq.read_arrow(namesrv, topic=topic, columns=list(columns)).to_pylist()
    return found


def bodies(namesrv: str, topic: str) -> Counter[str]:
    return Counter(row["body"].decode() for row in stored(namesrv, topic, "body"))


def send(namesrv: str, topic: str, texts: list[str]) -> None:
    with rmq.Producer(namesrv, group="tests") as producer:
        producer.send_arrow(topic, pa.record_batch({"body": texts}), body="body")


def table_rows(spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spark.read.parquet(str(folder)).toArrow().to_pylist()
    return found


def forget_last_batch(checkpoint: Path) -> None:
    """Make a checkpoint that of a query that died when its last batch was done, before it had noted so."""
    last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdecimal())
    for file in (checkpoint / "commits").glob(f"*{last}*"):
        file.unlink()


def by_day(lines: list[str]) -> dict[tuple[str, str], tuple[int, float]]:
    """What there is to say of each day and type: the number of events, and the largest magnitude."""
    found = defaultdict(list)
    for event in map(json.loads, lines):
        day = datetime.fromtimestamp(event["time"] / 1000, UTC).strftime("%Y-%m-%d")
        found[day, event["type"]].append(event["mag"])
    return {key: (len(values), max(values)) for key, values in found.items()}


def told_by_day(texts: list[str]) -> dict[tuple[str, str], tuple[int, float]]:
    windows = [json.loads(text) for text in texts]
    found = {(one["start"][:10], one["type"]): (one["events"], one["strongest"]) for one in windows}
    assert len(found) == len(windows)
    for one in windows:
        assert datetime.fromisoformat(one["end"]) - datetime.fromisoformat(one["start"]) == timedelta(days=1)
    return found


# The page


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with LocalCluster() as running:
        yield running.namesrv


def steps() -> list[tuple[list[str], str]]:
    """The commands of the page in their order, and what each prints."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        for step in block.split("$ ")[1:]:
            command, _, output = step.partition("\n")
            found.append((shlex.split(command), output))
    return found


def expected(output: str) -> str:
    """Return what matches an output of the page, in which … is any text, and as a line of its own any lines."""
    lines = output.splitlines(keepends=True)
    return "".join("(.*\\n)*" if line == "…\n" else ".*".join(map(re.escape, line.split("…"))) for line in lines)


class Left:
    """What each command of the page leaves: a method for each, by the name of its script."""

    def __init__(self, spark: SparkSession, namesrv: str, folder: Path) -> None:
        self._spark = spark
        self._namesrv = namesrv
        self._folder = folder
        self._lines = earthquakes()

    def file_to_topic(self) -> None:
        sent = {row["body"].decode(): row for row in stored(self._namesrv, "earthquakes", "body", "keys", "tags")}
        assert bodies(self._namesrv, "earthquakes") == Counter(self._lines)
        for line in self._lines:
            event = json.loads(line)
            assert (sent[line]["keys"], sent[line]["tags"]) == (event["id"], event["type"])

    def topic_to_parquet(self) -> None:
        rows = table_rows(self._spark, self._folder / "tables/earthquakes")
        assert Counter(row["body"] for row in rows) == Counter(self._lines)
        assert {row["day"] for row in rows} == {row["storeTimestamp"].date() for row in rows}

    def window_to_topic(self) -> None:
        told = told_by_day(list(bodies(self._namesrv, "earthquakes-by-day")))
        every = by_day(self._lines)
        last = max(day for day, _ in every)
        assert told == {key: value for key, value in every.items() if key[0] < last}
        assert len(told) > 10

    def topic_to_topic(self) -> None:
        columns = "body", "keys", "tags", "msgId"
        copied, sent = (
            sorted(tuple(row.values()) for row in stored(self._namesrv, topic, *columns))
            for topic in ("earthquakes-copy", "earthquakes")
        )
        assert copied == sent

    def back_fill(self) -> None:
        rows = table_rows(self._spark, self._folder / "tables/again")
        assert Counter(row["body"] for row in rows) == Counter(self._lines)

    def earthquakes(self) -> None:
        from matplotlib.image import imread

        picture = imread(str(self._folder / "earthquakes.png"))
        assert picture.shape[:2] == (900, 1100)
        upper = picture[:630, :900, :3]
        colours = {tuple(colour) for colour in upper.reshape(-1, 3).round(1).tolist()}
        assert len(colours) > 50, "from yellow to violet, by the depth"

    def flights(self) -> None:
        with pa.ipc.open_file(SAMPLE / "flights-200k.arrow") as file:
            flights = file.read_all()
        sent = [json.loads(row["body"]) for row in stored(self._namesrv, "flights", "body")]
        assert sum(one["delay"] for one in sent) == pc.sum(flights["delay"]).as_py()
        assert sum(one["distance"] for one in sent) == pc.sum(flights["distance"]).as_py()


@closes_windows
def test_the_page(
    spark: SparkSession,
    namesrv: str,
    run_example: RunExample,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every command in its order, with what it prints and what it leaves."""
    monkeypatch.setenv("ROCKET_NAMESRV", namesrv)
    left = Left(spark, namesrv, tmp_path)
    again = datetime.now(UTC) - timedelta(hours=1)
    shown = {
        "tables/": f"{tmp_path}/tables/",
        "checkpoints/": f"{tmp_path}/checkpoints/",
        "earthquakes.png": f"{tmp_path}/earthquakes.png",
        "rocketcore/sample/": f"{SAMPLE}/",
        "2026-11-23T02:00": f"{again:%Y-%m-%dT%H:%M}",
        "2026-11-23T04:00": f"{again + timedelta(hours=2):%Y-%m-%dT%H:%M}",
        "20261123T020000": f"{again:%Y%m%dT%H%M00}",
    }

    def here(text: str) -> str:
        for part, ours in shown.items():
            text = text.replace(part, ours)
        return text

    scripts = []
    with rmq.Admin(namesrv) as admin:
        admin.create_topic("seismometers", queues=1)
    send(namesrv, "seismometers", earthquakes()[:3])  # as if an earlier run had been ended early
    for command, output in steps():
        arguments = list(map(here, command))
        if command[0] == "rocket":
            assert run_rocket(arguments[1:]) == 0, command
        else:
            assert command[0] == "python"
            script = Path(command[1])
            run_example(script.name, *arguments[2:], "--name-server", namesrv)
            getattr(left, script.stem)()
            scripts.append(script.name)
        printed = capsys.readouterr().out
        assert re.fullmatch(expected(here(output)), printed), printed
    programs = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert set(scripts) == programs - {"orders.py", "spark_batch.py"}
    assert set(re.findall(r"`(\w+\.py)`", PAGE)) == set(scripts)
    [lag] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    waiting = [line.rpartition(" ")[2] for line in run_snippet(lag, namesrv)]
    assert waiting == ["0"] * 4


def test_a_program_of_its_own(namesrv: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"id": 1, "type": "a"}\n{"id": 2}\n')
    with rmq.Admin(namesrv) as admin:
        admin.create_topic("two-rows", queues=1)
    command = [sys.executable, str(ROOT / "examples" / "file_to_topic.py"), "rows.json", "two-rows"]
    done = subprocess.run(
        [*command, "--name-server", namesrv], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stdout) == (0, "2 rows sent to topic two-rows\n"), done.stderr
    rows = [tuple(row.values()) for row in stored(namesrv, "two-rows", "body", "keys", "tags")]
    assert rows == [(b'{"id": 1, "type": "a"}', "1", "a"), (b'{"id": 2}', "2", None)]


# Other ways, and second runs


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_of_tables(
    cluster: LocalCluster, make_topic: MakeTopic, run_example: RunExample, tmp_path: Path, kind: str
) -> None:
    topic = make_topic(queues=1)
    table = pa.table({"number": ["n1", "n2", "n3"], "word": ["one", "two", 'th"ree']})
    write = {"csv": pyarrow.csv.write_csv, "parquet": pyarrow.parquet.write_table}[kind]
    write(table, str(tmp_path / f"rows.{kind}"))
    options = "--kind", kind, "--key", "number", "--tag", "none", "--name-server", cluster.namesrv
    for run in ("first", "first", "second"):
        run_example("file_to_topic.py", str(tmp_path), topic, *options, "--run", run)
    ids = defaultdict(list)
    for row in stored(cluster.namesrv, topic, "body", "keys", "tags", "msgId"):
        assert row["tags"] is None
        number, word = json.loads(row["body"]).values()
        assert number == row["keys"]
        ids[number, word].append(row["msgId"])
    assert ids.keys() == set(zip(*table.to_pydict().values(), strict=True))
    assert all(sorted(Counter(of_row).values()) == [1, 2] for of_row in ids.values()), "a run has ids of its own"


def test_a_missing_topic_is_told(cluster: LocalCluster, run_example: RunExample, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text("{}\n")
    with pytest.raises(PySparkException, match=r"option topic: .*'not-there'.* give createTopic=true"):
        run_example("file_to_topic.py", f"{tmp_path}/rows.json", "not-there", "--name-server", cluster.namesrv)


def test_a_table_goes_on(
    spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic, run_example: RunExample, tmp_path: Path
) -> None:
    """After a batch whose end the checkpoint has not seen, and with a batch in every second."""
    topic, table, checkpoint = make_topic(queues=2), tmp_path / "table", tmp_path / "checkpoint"
    arguments = topic, str(table), str(checkpoint), "--name-server", cluster.namesrv

    def numbers() -> list[int]:
        return sorted(int(row["body"]) for row in table_rows(spark, table))

    for batch in range(2):
        send(cluster.namesrv, topic, [f"{number}" for number in range(100 * batch, 100 * batch + 100)])
        run_example("topic_to_parquet.py", *arguments)
    forget_last_batch(checkpoint)
    run_example("topic_to_parquet.py", *arguments)
    assert numbers() == list(range(200))
    running = threading.Thread(target=run_example, args=("topic_to_parquet.py", *arguments, "--every", "1 second"))
    running.start()
    send(cluster.namesrv, topic, [f"{number}" for number in range(200, 300)])
    end = time.monotonic() + 120
    while len(numbers()) < 300 and running.is_alive() and time.monotonic() < end:
        running.join(0.2)
    for query in spark.streams.active:
        query.stop()
    running.join(60)
    assert not running.is_alive()
    assert numbers() == list(range(300))


@closes_windows
def test_windows_go_on(cluster: LocalCluster, make_topic: MakeTopic, run_example: RunExample, tmp_path: Path) -> None:
    """Windows that are open outlast the run; what is sent again has its ids again."""
    topic, results, checkpoint = make_topic(queues=2), make_topic(queues=1), tmp_path / "checkpoint"
    arguments = topic, results, str(checkpoint), "--name-server", cluster.namesrv
    lines = earthquakes()
    middle = len(lines) // 2
    send(cluster.namesrv, topic, lines[:middle])
    run_example("window_to_topic.py", *arguments)
    before = set(bodies(cluster.namesrv, results))
    later = {**json.loads(lines[-1]), "time": json.loads(lines[-1])["time"] + 48 * 3_600_000}
    send(cluster.namesrv, topic, [*lines[middle:], json.dumps(later)])
    run_example("window_to_topic.py", *arguments)
    ids = {row["body"]: row["msgId"] for row in stored(cluster.namesrv, results, "body", "msgId")}
    assert before < {body.decode() for body in ids}
    assert told_by_day([body.decode() for body in ids]) == by_day(lines)
    assert len(set(ids.values())) == len(ids)
    forget_last_batch(checkpoint)
    run_example("window_to_topic.py", *arguments)
    after = stored(cluster.namesrv, results, "body", "msgId")
    assert len(after) > len(ids)
    assert all(ids[row["body"]] == row["msgId"] for row in after)


def test_a_copy_in_another_cluster(
    cluster: LocalCluster, namesrv: str, make_topic: MakeTopic, run_example: RunExample, tmp_path: Path
) -> None:
    topic, copy = make_topic(queues=2), "copy-of-some"
    arguments = topic, copy, str(tmp_path / "checkpoint"), "--name-server", cluster.namesrv, "--to", namesrv
    with rmq.Producer(cluster.namesrv, group="tests") as producer:
        for batch in range(2):
            for number in range(20):
                word = ("a", "b", "c")[number % 3]
                producer.send(topic, f"{batch} {number}", tag=word, keys=f"k{number}", properties={"colour": word})
            run_example("topic_to_topic.py", *arguments, "--tags", "a || c")
    columns = "body", "tags", "keys", "msgId", "properties"
    copied = sorted(tuple(map(str, row.values())) for row in stored(namesrv, copy, *columns[:4]))
    sent = sorted(tuple(map(str, row.values())) for row in stored(cluster.namesrv, topic, *columns[:4]))
    assert copied == [row for row in sent if row[1] != "b"]
    assert len(copied) == 26
    for row in stored(namesrv, copy, "tags", "properties"):
        assert dict(row["properties"])["colour"] == row["tags"]


def test_a_range_of_times(
    spark: SparkSession, cluster: LocalCluster, make_topic: MakeTopic, run_example: RunExample, tmp_path: Path
) -> None:
    """From the first moment on, up to but without the second; a second run replaces the first."""
    topic, table = make_topic(queues=2), tmp_path / "table"
    for batch in range(3):
        send(cluster.namesrv, topic, [f"{batch} {number}" for number in range(50)])
        sent = [row["storeTimestamp"] for row in stored(cluster.namesrv, topic, "storeTimestamp")]
        while datetime.now(UTC) <= max(sent) + timedelta(milliseconds=1):
            pass
    times = {
        row["body"].decode(): row["storeTimestamp"] for row in stored(cluster.namesrv, topic, "body", "storeTimestamp")
    }
    start = min(when for body, when in times.items() if body.startswith("1"))
    until = min(when for body, when in times.items() if body.startswith("2"))
    texts = start.replace(tzinfo=None).isoformat(), until.isoformat()
    for _ in range(2):
        run_example("back_fill.py", topic, str(table), *texts, "--name-server", cluster.namesrv)
    assert sorted(row["body"] for row in table_rows(spark, table)) == sorted(f"1 {number}" for number in range(50))
    run_example(
        "back_fill.py", topic, str(table), "2001-01-01T00:00", "2001-01-02T00:00", "--name-server", cluster.namesrv
    )
    assert len(table_rows(spark, table)) == 50
