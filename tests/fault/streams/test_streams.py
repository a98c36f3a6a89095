"""Streams whose driver, workers, brokers and name server are killed in turn: no message is lost, none twice in a table.

From one topic run two queries at once: into a Parquet table, where every message is to be exactly once, and through a
shuffle into another topic, where it is to be at least once, each copy under the same id.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fault.streams.campaign import SEED, Report, run_campaign
from tests.fault.streams.driver import QUERIES
from tests.fixtures.apache import require_java

KILLS = int(os.environ.get("ROCKETCORE_FAULT_STREAM_KILLS", "0"))
SECONDS_A_KILL = 60
SECONDS = 300 + KILLS * SECONDS_A_KILL

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.timeout(SECONDS),
    pytest.mark.skipif(not KILLS, reason="minutes: make fault-streams"),
]


def survive(folder: Path, on: str) -> Report:
    report = run_campaign(folder, on, SEED, tuple(QUERIES), KILLS)
    print(f"\n{report}")
    assert not report.wrong, report.wrong
    assert not report.unexpected
    assert report.acknowledged > 100 * KILLS
    return report


def test_killed_streams_lose_and_repeat_nothing(tmp_path: Path) -> None:
    survive(tmp_path, "ours")


@pytest.mark.interop
def test_killed_streams_on_apache_lose_and_repeat_nothing(tmp_path: Path) -> None:
    require_java()
    survive(tmp_path, "5.5.0")
