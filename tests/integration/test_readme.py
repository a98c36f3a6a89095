"""The examples of README.md and of the first pages, as they stand there, on clusters of our own; and examples/."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import runpy
import shlex
import subprocess
import threading
import time
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import rocketcore as rmq
from rocketcore.cli.main import run as run_rocket
from rocketcore.errors import TopicNotExist
from rocketcore.local import LocalCluster
from rocketcore.spark import write_id
from tests.fixtures.processes import RocketProcess
from tests.integration.test_api_snippets import ids, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).resolve().parents[2]
FIRST = {
    "README.md": ("producers ── send", "make demo", "pip install", "rocket up", "rocket topic create",
                  "for message in consumer:", "spark.read."),
    "docs/install.md": ("make setup", "make demo", "A week of earthquakes"),
    "docs/tour.md": ("producer.send_nowait(", "producer.request(", "def on_order(", "rmq.PullConsumer(",
                     "rmq.LocalCluster(", "rmq.read_arrow("),
    "docs/spark.md": ("events.groupBy(", "from_json(", "startingTimestamp"),
    "docs/spark-streams.md": ("spark.readStream.format(\"rocketmq\")", "register(spark)"),
    "docs/spark-writing.md": ("spark.read.", "by_hand = "),
}  # fmt: skip
"""By page, what only one of its blocks has, in the page's order and in that of the tests below."""


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def blocks(name: str) -> list[str]:
    return re.findall(r"^```(?:python)?\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)


def example(part: str, name: str) -> str:
    """Return the block of a page that has this part."""
    [block] = [block for block in blocks(name) if part in block]
    return block


def commands(part: str, name: str = "README.md") -> list[list[str]]:
    return [shlex.split(line, comments=True) for line in example(part, name).splitlines()]


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    with LocalCluster() as running:
        with rmq.Admin(running.namesrv) as admin:
            for topic in ("orders", "order-events", "metrics", "quotes"):
                admin.create_topic(topic, queues=4)
        with rmq.Producer(running.namesrv, group="shop") as producer:
            producer.send("orders", b'{"id": 1}', tag="created", keys="order-1")
        yield running.namesrv


@pytest.mark.parametrize("name", FIRST)
def test_every_example_is_here_in_the_order_of_the_page(name: str) -> None:
    assert [example(part, name) for part in FIRST[name]] == blocks(name)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/install.md"])
def test_every_target_of_make_exists(name: str) -> None:
    verbs = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", page(name), re.MULTILINE))
    assert {"demo", "test"} <= verbs
    targets = set(re.findall(r"^([a-z0-9-]+):", page("Makefile"), re.MULTILINE))
    assert verbs <= targets


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len(page("README.md").encode()) <= 5000


def test_the_extras_that_a_user_may_want_are_named() -> None:
    extras = tomllib.loads(page("pyproject.toml"))["project"]["optional-dependencies"]
    named = re.findall(r"^\| (`.*?`) \|", page("docs/install.md"), re.MULTILINE)
    assert set(re.findall(r"`([a-z0-9]+)`", " ".join(named))) == set(extras) - {"bench", "docs", "fuzz", "dev"}


def test_set_up() -> None:
    setup, activate = commands("make setup", "docs/install.md")
    planned = subprocess.run(["make", "-n", "-B", *setup[1:]], cwd=ROOT, capture_output=True, text=True, check=True)
    assert " -m venv .venv\n" in planned.stdout, "where the second line finds what it needs"
    assert activate == [".", ".venv/bin/activate"]
    for name in ("README.md", "docs/install.md"):
        assert commands("make demo", name) == [["make", "demo"], ["make", "test"]]
    title, *figures = example("A week of earthquakes", "docs/install.md").splitlines()
    source = (ROOT / "rocketcore" / "demo.py").read_text()
    for shown in (title, *(re.split(" {2,}", line)[1] for line in figures)):
        assert f'"{shown}"' in source, shown


def test_first_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster as a process, its first topic and message, the first program, and all of it there after a restart."""
    monkeypatch.chdir(tmp_path)
    [start] = commands("rocket up")
    assert start == ["rocket", "up", "--store", "data"]
    *lines, tail = commands("rocket topic create")
    cluster = RocketProcess(*start[1:], "--port", "0", "-o", "json", log=tmp_path / "log")
    monkeypatch.setenv("ROCKET_NAMESRV", cluster.address)
    try:
        for line in [*lines, tail]:
            assert run_rocket(line[1:]) == 0, line
        *_, last = capsys.readouterr().out.splitlines()
        assert last.startswith("orders broker-a/")
        assert last.endswith('  tag=created  keys=order-1  {"id": "order-1", "amount": 5}')
        sent, *received = run(example("for message in consumer:", "README.md"), cluster.address, lines=3)
        assert sent.startswith("SendStatus.SEND_OK ")
        assert sorted(received) == [
            "created ('order-1',) {'id': 'order-1', 'amount': 5}",
            "created ('order-2',) {'id': 'order-2', 'amount': 7}",
        ]
    finally:
        assert cluster.stop() == 0
    cluster = RocketProcess(*start[1:], "--port", "0", "-o", "json", log=tmp_path / "log")
    monkeypatch.setenv("ROCKET_NAMESRV", cluster.address)
    try:
        assert run_rocket(tail[1:]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 2
    finally:
        assert cluster.stop() == 0


def test_send(shop: str) -> None:
    run(example("producer.send_nowait(", "docs/tour.md"), shop, rmq=rmq)
    with rmq.Admin(shop) as admin:
        used = [queue for queue, bounds in admin.topic_stats("order-events").items() if bounds.max_offset]
    assert (len(ids(shop, "metrics")), len(ids(shop, "order-events")), len(used)) == (10_500, 3, 1)


def test_request(shop: str) -> None:
    names: dict[str, Any] = {"rmq": rmq}
    run(example("producer.request(", "docs/tour.md"), shop, **names)


def test_handlers(shop: str) -> None:
    names: dict[str, Any] = {"rmq": rmq}
    code = compile(example("def on_order(", "docs/tour.md").replace("127.0.0.1:9876", shop), "example", "exec")
    runner = threading.Thread(target=exec, args=(code, names))
    runner.start()
    with rmq.Admin(shop) as admin:
        for _ in range(2000):
            if any(admin.consumer_offset("invoices", queue) for queue in admin.queues("orders")):
                break
            threading.Event().wait(0.01)
        else:
            pytest.fail("nothing was consumed")
    names["consumer"].close()
    runner.join(10)
    assert not runner.is_alive()


def test_pull(shop: str) -> None:
    archived: list[rmq.ReceivedMessage] = []
    run(example("rmq.PullConsumer(", "docs/tour.md"), shop, rmq=rmq, archive=archived.extend)
    assert b'{"id": 1}' in {message.body for message in archived}


def test_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(example("rmq.LocalCluster(", "docs/tour.md"), "")
    with LocalCluster(store="test-data") as cluster, rmq.Admin(cluster.namesrv) as admin:
        assert sum(bounds.max_offset for bounds in admin.topic_stats("orders").values()) == 1
        with rmq.PullConsumer(cluster.namesrv, group="audit", start_from="first") as consumer:
            consumer.subscribe("orders")
            [message] = consumer.poll(20.0)
            assert message.json() == {"id": 0}, "the first program reads JSON"


def test_columns(shop: str) -> None:
    import pyarrow as pa

    batch = pa.RecordBatch.from_pydict({"payload": [b"x"], "id": ["1"], "kind": ["a"]})
    names: dict[str, Any] = {"rmq": rmq, "record_batch": batch}
    with rmq.Admin(shop) as admin:
        before = sum(bounds.max_offset for bounds in admin.topic_stats("orders").values())
        exec(example("rmq.read_arrow(", "docs/tour.md").replace("127.0.0.1:9876", shop), names)
        assert names["table"].num_rows == before
        assert sum(bounds.max_offset for bounds in admin.topic_stats("orders").values()) == before + 1


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["README.md", "docs/spark-writing.md"])
def test_a_copy_by_spark(shop: str, spark: SparkSession, name: str) -> None:
    def stored(topic: str) -> int:
        with rmq.Admin(shop) as admin, contextlib.suppress(TopicNotExist):
            return sum(bounds.max_offset for bounds in admin.topic_stats(topic).values())
        return 0  # the first write creates its topic

    before = stored("copies")
    printed = run(example("spark.read.", name), shop, spark=spark)
    assert any("created" in line for line in printed) == (name == "README.md")
    assert stored("copies") - before == stored("orders") > 0


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_table_of_spark(shop: str, spark: SparkSession) -> None:
    names: dict[str, Any] = {"spark": spark}
    text = example("events.groupBy(", "docs/spark.md") + example("from_json(", "docs/spark.md")
    printed = run(text, shop, **names)
    assert any("created" in line for line in printed)
    assert any(re.fullmatch(r"\|\s*order-1\|\s*1\|\s*NULL\|", line) for line in printed), printed
    today = datetime.now(UTC).date()
    text = example("startingTimestamp", "docs/spark.md")
    for shown, day in (("2026-11-23", today - timedelta(days=1)), ("2026-11-24", today + timedelta(days=2))):
        assert shown in text
        text = text.replace(shown, day.isoformat())
    assert any("order-1" in line for line in run(text, shop, spark=spark))


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_stream_of_spark(shop: str, spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource", reason="limits came with pyspark 4.2")
    names: dict[str, Any] = {"spark": spark}
    exec(example("register(spark)", "docs/spark-streams.md"), names)
    text = example('spark.readStream.format("rocketmq")', "docs/spark-streams.md").replace("127.0.0.1:9876", shop)
    exec(text.replace('"checkpoints/', f'"{tmp_path}/c/').replace('"tables/', f'"{tmp_path}/t/'), names)
    table = names["table"]
    table.processAllAvailable()
    table.stop()
    assert table.exception() is None
    rows = [row.json for row in spark.read.parquet(f"{tmp_path}/t/orders").collect()]
    assert rows.count('{"id": 1}') >= 1
    assert len(rows) == rmq.read_arrow(shop, topic="orders").num_rows
    with rmq.Admin(shop) as admin:
        assert sum(offsets.consumer_offset for offsets in admin.consume_stats("orders-table").values()) == len(rows)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_streams_of_spark(shop: str, spark: SparkSession, tmp_path: Path) -> None:
    names: dict[str, Any] = {"spark": spark}
    text = (
        example("by_hand = ", "docs/spark-writing.md")
        .replace("127.0.0.1:9876", shop)
        .replace("checkpoints/", f"{tmp_path}/")
    )
    exec(text, names)
    queries = names["query"], names["by_hand"]
    groups: dict[str, set[str]] = {}
    end = time.monotonic() + 120
    while len(groups) < 4 and time.monotonic() < end:
        for query in queries:
            assert query.exception() is None
        with contextlib.suppress(rmq.RouteNotFound):
            for row in rmq.read_arrow(shop, topic="ticks", columns=["body", "msgId"]).to_pylist():
                groups.setdefault(row["msgId"][:16], set()).add(row["body"])
        time.sleep(0.2)
    for query in queries:
        query.stop()
    by_hand = {write_id("ticks by hand", batch).upper() for batch in range(100)}
    assert len(groups.keys() & by_hand) > 0
    assert len(groups.keys() - by_hand) > 0


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_programs_of_the_examples(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Session:
        """The session of all tests, which the example does not end."""

        def __getattr__(self, name: str) -> Any:
            return getattr(spark, name)

        def stop(self) -> None:
            pass

    monkeypatch.setattr("rocketcore.spark.local_session", lambda name: Session())
    for program in ("orders.py", "spark_batch.py"):  # the others are those of docs/recipes.md
        runpy.run_path(str(ROOT / "examples" / program), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("created  order-") == 10
    assert printed.count("5000") == 2


def test_the_worker_of_the_applications_takes_the_first_orders(caplog: pytest.LogCaptureFixture) -> None:
    [of_shell] = [each[3] for each in commands("rocket topic create") if each[1] == "produce"]
    [of_python] = re.findall(r"^    order = (.*)$", page("README.md"), re.MULTILINE)
    bill = runpy.run_path(str(ROOT / "examples/applications/worker.py"))["bill"]
    with caplog.at_level("INFO", "worker"):
        for order in (json.loads(of_shell), ast.literal_eval(of_python)):
            bill(SimpleNamespace(json=lambda order=order: order))
    assert [record.getMessage() for record in caplog.records] == ["billed order-1: 5", "billed order-2: 7"]
