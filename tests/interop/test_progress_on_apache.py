"""How far a group is on Apache's brokers: the rows of ``progress_family`` in which the broker decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.topics import new_group
from tests.integration.progress_family import KINDS, OF_BROKERS, run_cases
from tests.peers import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

HAPPENS = (("lost", "close"), ("regained", "kill"), ("deleted", "store"), ("anew", "commit"), ("reset", "kill"))
ROWS = [(kind, event, end) for kind in KINDS for event, end in HAPPENS]
OF_5 = {"push pop", "simple"}
"""Kinds that pop, which brokers of 4.9 do not know."""
IMPOSSIBLE = {("4.9.7", "deleted"): "this broker keeps the offsets of a topic that it deletes: its group begins there"}
"""Events whose outcome Apache's broker makes impossible, and why; a broadcast group has its offsets elsewhere."""


def rows(version: str) -> list[tuple[str, str, str]]:
    return [
        (kind, event, end)
        for kind, event, end in ROWS
        if (version, event) not in IMPOSSIBLE or kind == "push broadcast"
        if kind not in OF_5 or version != "4.9.7"
        if kind != "push broadcast" or event not in OF_BROKERS
    ]


def test_a_group_stands_where_it_was_and_misses_nothing(
    apache_clusters: Callable[[str], ApacheCluster], tmp_path: Path
) -> None:
    """On brokers of both lines at once: the cases wait, for locks and for what was popped."""

    async def both() -> list[list[str]]:
        return await asyncio.gather(
            *(
                run_cases(apache_clusters(version).namesrv, new_group(), rows(version), tmp_path / version)
                for version in ("4.9.7", "5.5.0")
            )
        )

    of_4, of_5 = asyncio.run(both())
    assert not of_4, "\n".join(of_4)
    assert not of_5, "\n".join(of_5)
