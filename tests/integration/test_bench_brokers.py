"""The brokers that benchmarks use where nothing is to reach a disk, or where that is slow."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocketcore as rmq
from tests.fixtures.processes import SMALL_FILES, Processes

BODY = b"a body to look for"


@pytest.mark.parametrize(
    ("command", "kept"),
    [("rocketcore.cli.main", True), ("bench.discarding_broker", False), ("bench.slow_disk_broker", True)],
)
def test_what_is_acknowledged_is_in_the_log_or_nowhere(tmp_path: Path, command: str, kept: bool) -> None:
    processes = Processes(tmp_path, {**SMALL_FILES, "SYNC_MILLIS": "0"}, command=command)
    try:
        namesrv = processes.namesrv().address
        broker = processes.broker(namesrv, "--flush", "async", store=tmp_path / "store")
        with rmq.Admin(namesrv) as admin:
            admin.create_topic("T", queues=1)
        with rmq.Producer(namesrv, group="p") as producer:
            producer.send(rmq.Message("T", BODY))
        assert broker.stop() == 0
    finally:
        processes.end()
    log = b"".join(path.read_bytes() for path in sorted((tmp_path / "store" / "commitlog").iterdir()))
    assert (BODY in log) is kept
