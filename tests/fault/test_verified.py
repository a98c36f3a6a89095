"""What a verification says of a damaged store is what a broker that starts on it serves and names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocketcore.broker.store.verify import Report
from tests.fault.verified import run_verified

SEED = int(os.environ.get("ROCKETCORE_FAULT_SEED", "20261120"))
STORES = int(os.environ.get("ROCKETCORE_FAULT_VERIFIED", "60"))

pytestmark = pytest.mark.fault


def run(stores: int) -> tuple[list[str], int]:
    """Return what went wrong, each with the command that shows it again, and how many messages were named."""
    outcomes = [run_verified(SEED, number) for number in range(stores)]
    failing = [
        f"python -m tests.fault.verified {SEED} {outcome.number}   # {'; '.join(outcome.what)}: {outcome.wrong}"
        for outcome in outcomes
        if outcome.wrong
    ]
    return failing, sum(outcome.named for outcome in outcomes)


@pytest.mark.timeout(120 + STORES)
def test_a_verification_agrees_with_a_start() -> None:
    failing, named = run(STORES)
    assert not failing, "\n".join(failing[:20])
    assert named > STORES // 10, "hardly any message was damaged: the mutator does nothing"


def test_a_verification_that_keeps_silent_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(self: Report, path: Path, physical_offset: int, length: int, what: str) -> None:
        pass

    monkeypatch.setattr(Report, "name_log", silent)
    failing, _ = run(30)
    assert any("lost" in line for line in failing)


def test_a_verification_that_cries_wolf_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    name = Report.name_log

    def loud(self: Report, path: Path, physical_offset: int, length: int, what: str) -> None:
        name(self, path, physical_offset, length + 3000, what)

    monkeypatch.setattr(Report, "name_log", loud)
    failing, _ = run(30)
    assert any("called damaged" in line for line in failing)
