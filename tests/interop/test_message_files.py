"""``rocket message export`` and ``import`` with Apache's servers, which answer with 32 messages a pull."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import rocketcore as rmq
from rocketcore.cli.main import run
from tests.fixtures.message_files import contents, groups, messages
from tests.fixtures.topics import await_messages
from tests.peers import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

pq = pytest.importorskip("pyarrow.parquet")

MESSAGES = 1000


@pytest.fixture(scope="module", params=["4.9.7", "5.5.0"])
def cluster(request: pytest.FixtureRequest, apache_clusters: Callable[[str], ApacheCluster]) -> ApacheCluster:
    running = apache_clusters(request.param)
    with rmq.Admin(running.namesrv) as admin:
        admin.create_topic("exported", queues=3)
    with rmq.Producer(running.namesrv, group="p") as producer:
        for i in range(MESSAGES):
            tag, text = ("even", "odd")[i % 2], {"n": str(i)} if i % 3 else None
            group = f"g{i % 2}" if i % 5 == 0 else None
            producer.send(
                rmq.Message("exported", f"hello {i}", tag=tag, keys=f"k{i}", properties=text, message_group=group)
            )
    await_messages(running.namesrv, "exported", MESSAGES)
    return running


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl"])
def test_there_and_back(cluster: ApacheCluster, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROCKET_NAMESRV", cluster.namesrv)
    copy = f"copy-{form}"
    assert run(["message", "export", "exported", "-o", f"a.{form}", "--part-bytes", "20000"]) == 0
    assert len(messages(f"a.{form}")) == MESSAGES
    assert run(["message", "import", f"a.{form}", "--topic", copy, "--create", "--queues", "2"]) == 0
    await_messages(cluster.namesrv, copy, MESSAGES)
    assert run(["message", "export", copy, "-o", f"b.{form}"]) == 0
    assert contents(f"a.{form}") == contents(f"b.{form}")
    assert groups(f"a.{form}") == groups(f"b.{form}")


def test_times(cluster: ApacheCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4.9 answers a question about a time with a neighbour of the message meant."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROCKET_NAMESRV", cluster.namesrv)
    assert run(["message", "export", "exported", "-o", "all.parquet"]) == 0
    stored = pq.read_table("all.parquet")["storeTimestamp"].to_pylist()
    for moment in (min(stored), sorted(stored)[MESSAGES // 2], max(stored), max(stored) + timedelta(seconds=1)):
        for option, count in (
            ("--since", sum(t >= moment for t in stored)),
            ("--until", sum(t < moment for t in stored)),
        ):
            code = run(["message", "export", "exported", "-o", "x.jsonl", option, moment.isoformat(), "--restart"])
            assert (code, len(messages("x.jsonl"))) == (0, count), (option, moment)
