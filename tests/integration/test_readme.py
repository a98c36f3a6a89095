"""The examples of README.md as they are written there, all but those of Spark, against a cluster of our own."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore.cli.main import run as run_rocket
from rocketcore.local import LocalCluster
from tests.integration.test_api_snippets import run

pytestmark = pytest.mark.timeout(60)

PAGE = (Path(__file__).resolve().parents[2] / "README.md").read_text()


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    with LocalCluster() as running:
        with rmq.Admin(running.namesrv) as admin:
            for topic in ("orders", "order-events", "metrics"):
                admin.create_topic(topic, queues=4)
        with rmq.Producer(running.namesrv, group="shop") as producer:
            producer.send("orders", b'{"id": 1}', tag="created", keys="order-1")
        yield running.namesrv


def example(beginning: str) -> str:
    """Return the block of Python that begins so."""
    [block] = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if beginning in block]
    return str(block)


def test_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    [block] = re.findall(r"```\n(rocket up .*?)```", PAGE, re.DOTALL)
    first, *lines = block.splitlines()
    assert shlex.split(first, comments=True) == ["rocket", "up", "--store", "data"]
    with LocalCluster() as cluster:
        monkeypatch.setenv("ROCKET_NAMESRV", cluster.namesrv)
        for line in lines:
            assert run_rocket(shlex.split(line, comments=True)[1:]) == 0, line
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("orders broker-a/")
    assert last.endswith('  tag=created  keys=order-1  {"id": 1}')


def test_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(example("rmq.LocalCluster("), "")
    with LocalCluster(store="data") as cluster, rmq.Admin(cluster.namesrv) as admin:
        assert sum(bounds.max_offset for bounds in admin.topic_stats("orders").values()) == 1
        with rmq.PullConsumer(cluster.namesrv, group="audit", start_from="first") as consumer:
            consumer.subscribe("orders")
            [message] = consumer.poll(20.0)
            assert message.json() == {"id": 0}, "the example of consuming reads JSON"


def test_send(shop: str) -> None:
    [line] = run(example("producer.send_nowait("), shop)
    assert line.startswith("SendStatus.SEND_OK ")
    with rmq.Admin(shop) as admin:
        assert sum(bounds.max_offset for bounds in admin.topic_stats("metrics").values()) == 100_500
        assert sorted(bounds.max_offset for bounds in admin.topic_stats("order-events").values()) == [0, 0, 0, 3]


def test_handlers(shop: str) -> None:
    names: dict[str, Any] = {"rmq": rmq}
    code = compile(example("@consumer.subscribe(").replace("127.0.0.1:9876", shop), "example", "exec")
    runner = threading.Thread(target=exec, args=(code, names))
    runner.start()
    with rmq.Admin(shop) as admin:
        for _ in range(2000):
            if any(admin.consumer_offset("billing", queue) for queue in admin.queues("orders")):
                break
            threading.Event().wait(0.01)
        else:
            pytest.fail("nothing was consumed")
    names["consumer"].close()
    runner.join(10)
    assert not runner.is_alive()


def test_iterate(shop: str) -> None:
    with rmq.Producer(shop, group="shop") as producer:
        producer.send("orders", b'{"id": 7}', tag="paid", keys="order-7")
    lines = run(example("for message in consumer:"), shop, lines=1, rmq=rmq)
    assert "paid ('order-7',) {'id': 7}" in lines


def test_pull_and_columns(shop: str) -> None:
    import pyarrow as pa

    archived: list[rmq.ReceivedMessage] = []
    run(example("rmq.PullConsumer("), shop, rmq=rmq, archive=archived.extend)
    assert b'{"id": 1}' in {message.body for message in archived}
    batch = pa.RecordBatch.from_pydict({"payload": [b"x"], "id": ["1"], "kind": ["a"]})
    names: dict[str, Any] = {"rmq": rmq, "record_batch": batch}
    with rmq.Producer(shop, group="shop") as names["producer"]:
        exec(example("rmq.read_arrow(").replace("127.0.0.1:9876", shop), names)
    assert names["table"].num_rows == len(archived)
    with rmq.Admin(shop) as admin:
        assert sum(bounds.max_offset for bounds in admin.topic_stats("orders").values()) == len(archived) + 1
