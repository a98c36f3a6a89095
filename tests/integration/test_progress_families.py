"""How far a group is on our servers: the whole table of ``progress_family``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketcore.local import LocalCluster
from tests.integration.progress_family import ENDS, EVENTS, KINDS, OF_BROKERS, run_cases

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_stands_where_it_was_and_misses_nothing(
    cluster: LocalCluster, tmp_path: Path, group: str, kind: str
) -> None:
    rows = [
        (kind, event, end) for event in EVENTS for end in ENDS if kind != "push broadcast" or event not in OF_BROKERS
    ]
    failed = asyncio.run(run_cases(cluster.namesrv, group, rows, tmp_path))
    assert not failed, "\n".join(failed)
