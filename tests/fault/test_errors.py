"""An error at every call on the store's files, a kill before it, a power cut before it: no promise is broken."""

from __future__ import annotations

import os

import pytest

from tests.fault.numbered import Outcome, run_numbered
from tests.fault.session import ERRORS, Session

SEED = os.environ.get("ROCKETCORE_FAULT_SEED", "20261120")
STRIDE = int(os.environ.get("ROCKETCORE_FAULT_STRIDE", "299"))
"""Every so manyth call is failed, every third part of that is cut; 1 for all."""

MORE = 100
"""Calls that a run may make more than another: on a busy machine fewer of what is done every so many milliseconds."""

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def calls() -> list[str]:
    """The names of the calls of a run without errors, in order; another run has a few more or less."""
    session = Session(SEED).run()
    assert session.verdict, session.verdict.examples
    return session.calls


def show(outcome: Outcome) -> str:
    return f"{len(outcome.wrong)} of {outcome.done.total()} failed\n" + "\n".join(outcome.wrong[:20])


def test_a_run_makes_calls_of_every_kind(calls: list[str]) -> None:
    assert set(calls) == set(ERRORS)


@pytest.mark.timeout(1800)
def test_an_error_at_any_call_loses_nothing_acknowledged(calls: list[str]) -> None:
    numbers = range(0, len(calls), STRIDE)
    outcome = run_numbered(SEED, "errors", numbers)
    assert not outcome.wrong, show(outcome)
    # Each is failed in one way at least, and killed before; the last ones may not come in another run.
    least = len(numbers) - 2 - MORE // STRIDE
    assert outcome.done["killed"] >= least
    assert outcome.done.total() >= 2 * least


@pytest.mark.timeout(1800)
def test_a_power_cut_before_any_call_loses_nothing_acknowledged(calls: list[str]) -> None:
    stride = max(1, STRIDE // 3)
    outcome = run_numbered(SEED, "cuts", range(0, len(calls) + MORE, stride))
    assert not outcome.wrong, show(outcome)
    assert outcome.done["cut"] >= len(calls) // stride - 2 - MORE // stride
