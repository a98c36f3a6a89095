"""Damage in every file of a store, before every start: what was acknowledged is served whole, or named as damaged."""

from __future__ import annotations

import os

import pytest

from tests.fault.campaign import run_trials

SEED = int(os.environ.get("ROCKETCORE_FAULT_SEED", "20261120"))
MUTATIONS = int(os.environ.get("ROCKETCORE_FAULT_MUTATIONS", "200"))
WORKERS = int(os.environ.get("ROCKETCORE_FAULT_WORKERS", "1"))
SHOWN = 20

pytestmark = pytest.mark.fault


@pytest.mark.timeout(120 + MUTATIONS)
def test_damage_is_named_and_never_served() -> None:
    report = run_trials(SEED, range(MUTATIONS), WORKERS)
    print(f"\n{report}")
    assert report.trials == MUTATIONS
    assert not report.failing, f"{len(report.failing)} trials failed\n{report}\n" + "\n".join(report.failing[:SHOWN])
    assert report.named > report.trials // 20, "hardly any message was damaged: the mutator does nothing"
