"""The harness is worth something: it finds each of seven bugs when the store has it, and not when it has not."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Generator
from itertools import islice

import pytest

from tests.fault.ledger import Verdict
from tests.fault.left import judge_left
from tests.fault.planted import BUGS, plant
from tests.fault.session import Fault, Session
from tests.fault.trial import run_trial

SEEDS = ("b", "a", "c")
"""The first finds most bugs within a few cuts."""
CUTS = range(0, 2000, 3)
TRIALS = 60

pytestmark = pytest.mark.fault


def cuts() -> Generator[Verdict, None, None]:
    """Power cuts before the calls of a run."""
    for seed in SEEDS:
        for _, left in Session(seed, cuts=CUTS).run().left:
            yield judge_left(left)


def failed_syncs() -> Generator[Verdict, None, None]:
    """Runs in which one sync of a file fails."""
    for seed in SEEDS:
        calls = Session(seed).run().calls
        for number, name in enumerate(calls):
            if name == "sync":
                for _, left in Session(seed, Fault(number, errno.EIO)).run().left:
                    yield judge_left(left)


def damage() -> Generator[Verdict, None, None]:
    """Mutated stores."""
    for number in range(TRIALS):
        verdict = Verdict()
        verdict.counts.update(run_trial(1, number).counts)
        yield verdict


FOUND_BY = {
    "ack before fsync": (cuts, "lost"),
    "wrong truncation": (damage, "blamed"),
    "dispatch ahead of the durable mark": (cuts, "lost"),
    "offset file written in place": (cuts, "state"),
    "note too early": (cuts, "lost"),
    "no folder fsync": (cuts, "lost"),
    "fsync tried again": (failed_syncs, "lost"),
}
"""What finds the bug, and how it shows."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    look, kind = FOUND_BY[bug]
    with plant(bug), contextlib.closing(look()) as verdicts:
        found = next((count for count, verdict in enumerate(verdicts, 1) if verdict.counts[kind]), 0)
    assert found, f"no trace of: {bug}"
    with contextlib.closing(look()) as verdicts:
        assert not any(verdict.counts[kind] for verdict in islice(verdicts, found)), f"{kind} without the bug as well"
