"""An error at every call on the store's files, a kill before it, a power cut before it: no promise is broken."""

from __future__ import annotations

import errno
import os
from collections import Counter

import pytest

from tests.fault.session import ERRORS, KILL, Fault, Session, judge_left

SEED = os.environ.get("ROCKETCORE_FAULT_SEED", "20261120")
STRIDE = int(os.environ.get("ROCKETCORE_FAULT_STRIDE", "29"))
"""Every so manyth call is failed, every third part of that is cut; 1 for all."""

SECONDS_A_RUN = 2

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def calls() -> list[str]:
    """The names of the calls of a run without errors, in order; another run has a few more or less."""
    return Session(SEED).run().calls


@pytest.mark.timeout(1800)
def test_an_error_at_any_call_loses_nothing_acknowledged(calls: list[str]) -> None:
    failing: list[str] = []
    done: Counter[str] = Counter()
    acknowledged = 0
    for number in range(0, len(calls), STRIDE):
        for error in (*ERRORS[calls[number]], KILL):
            session = Session(SEED, Fault(number, error)).run()
            if not session.failed:
                continue  # this run made fewer calls
            done["kill" if error == KILL else session.failed.split()[0]] += 1
            acknowledged += len(session.left[-1][1].ledger.acknowledged)
            for verdict in (session.verdict, *(judge_left(left) for _, left in session.left)):
                if not verdict:
                    name = "KILL" if error == KILL else errno.errorcode[error]
                    failing.append(
                        f"python -m tests.fault.session {SEED} {number} {name}   "
                        f"# {session.failed}: {str(verdict.examples)[:300]}"
                    )
    print(f"\n{done.total()} errors, {acknowledged} messages acknowledged, {len(failing)} wrong\n{dict(done)}")
    assert not failing, f"{len(failing)} of {done.total()} failed\n" + "\n".join(failing[:20])
    assert done["write"]
    assert done["sync"]
    assert done["kill"]


@pytest.mark.timeout(1800)
def test_a_power_cut_before_any_call_loses_nothing_acknowledged(calls: list[str]) -> None:
    session = Session(SEED, cuts=range(0, len(calls) + 100, max(1, STRIDE // 3))).run()
    failing = [
        f"python -m tests.fault.session {SEED} {number} cut   # {str(verdict.examples)[:300]}"
        for number, left in session.left
        if not (verdict := judge_left(left))
    ]
    print(f"\n{len(session.left)} power cuts, {len(failing)} wrong")
    assert not failing, f"{len(failing)} of {len(session.left)} failed\n" + "\n".join(failing[:20])
