"""Every public call × {second loop, closed, forked child, callback, handler, signal}: its result, or a clear error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.calls_family import CLASSES, SITUATIONS, calls

pytestmark = pytest.mark.timeout(150)


def run(situation: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.integration.calls_family", situation],
        capture_output=True,
        text=True,
        timeout=140,
        cwd=Path(__file__).parents[2],
    )


@pytest.fixture(scope="module")
def running() -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """Each situation in a process, three at once: for the most part they wait for answers that do not come."""
    with ThreadPoolExecutor(3) as threads:
        yield {situation: threads.submit(run, situation) for situation in SITUATIONS}
        threads.shutdown(cancel_futures=True)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_call_has_a_result_or_one_clear_error(
    running: dict[str, Future[subprocess.CompletedProcess[str]]], situation: str
) -> None:
    done = running[situation].result()
    assert done.returncode == 0, done.stderr[-6000:]
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert not {call: wrong for call, wrong in outcomes.items() if wrong}
    world = "aio" if situation.startswith("aio") else "blocking"
    for kind in CLASSES[world]:
        names = {call.rpartition(".")[2] for call in outcomes if f" {kind.__name__}." in call}
        if kind.__name__ != "LocalCluster" or situation in ("closed", "forked", "in_signal"):
            assert names == set(calls(kind)), kind
