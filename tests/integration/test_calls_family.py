"""Every public call × {second loop, closed, forked child, callback, handler, signal}: its result, or a clear error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.calls_family import CLASSES, SITUATIONS, calls

pytestmark = pytest.mark.timeout(150)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_call_has_a_result_or_one_clear_error(situation: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.calls_family", situation],
        capture_output=True,
        text=True,
        timeout=140,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-6000:]
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert not {call: wrong for call, wrong in outcomes.items() if wrong}
    world = "aio" if situation.startswith("aio") else "blocking"
    for kind in CLASSES[world]:
        names = {call.rpartition(".")[2] for call in outcomes if f" {kind.__name__}." in call}
        if kind.__name__ != "LocalCluster" or situation in ("closed", "forked", "in_signal"):
            assert names == set(calls(kind)), kind
