"""Every numbered call of a scripted run: failed in each way in which it can fail, killed before, power cut before.

As a program, ``python -m tests.fault.numbered SEED errors|cuts FIRST LAST STEP`` prints a line of JSON for each call:
so a run is spread over processes, each of which may die of what it does.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.fault.ledger import Verdict
from tests.fault.left import SESSION_SECONDS, judge_left
from tests.fault.session import ERRORS, KILL, Fault, Session, name_of
from tests.fault.workers import WORKERS, spread

BLOCK_CALLS = 25
PATIENCE_SECONDS = 4 * SESSION_SECONDS
"""A run and the starts after it, each with a time-out of its own."""


@dataclass(slots=True)
class Outcome:
    """What became of a call's experiments: how many of which kind were done, and each one that went wrong."""

    done: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, seed: str, number: int, error: str, what: str, *verdicts: Verdict) -> None:
        self.done[what.split()[0]] += 1
        examples = [str(verdict.examples)[:300] for verdict in verdicts if not verdict]
        if examples:
            again = f"python -m tests.fault.session {seed} {number} {error}"
            self.wrong.append(f"{again}   # {what}: {'; '.join(examples)}")


def fail_call(seed: str, calls: list[str], number: int) -> Outcome:
    """Fail a call in all ways; ``calls`` are those of a run without errors, which may differ by a call or two."""
    outcome = Outcome()
    for error in (*ERRORS[calls[number]], KILL):
        which = number if error >= 0 else calls[:number].count("map")
        session = Session(seed, Fault(which, error)).run()
        if session.failed:  # else this run made fewer calls, or the map is shorter
            outcome.acknowledged += len(session.left[-1][1].ledger.acknowledged)
            verdicts = [session.verdict, *(judge_left(left) for _, left in session.left)]
            outcome.add(seed, which, name_of(error), session.failed, *verdicts)
    return outcome


def run_numbered(seed: str, kind: str, numbers: range, workers: int = WORKERS) -> Outcome:
    """Do ``errors`` or ``cuts`` at the calls ``numbers`` of the run; returns the sum."""
    total = Outcome()
    began = time.monotonic()

    def arguments(block: range) -> list[str]:
        return ["-m", "tests.fault.numbered", seed, kind, *map(str, (block[0], block[-1], block.step))]

    for number, said, death in spread(arguments, numbers, BLOCK_CALLS, PATIENCE_SECONDS, workers):
        if death:
            total.wrong.append(f"the process died of {kind} at call {number}: {death}")
        else:
            done, acknowledged, wrong = said
            total.done.update(done)
            total.acknowledged += acknowledged
            total.wrong += wrong
    print(
        f"\n{total.done.total()} {kind}, {total.acknowledged} messages acknowledged, {len(total.wrong)} wrong, "
        f"{time.monotonic() - began:.0f} s\n{dict(total.done)}"
    )
    return total


def main() -> None:
    seed, kind = sys.argv[1:3]
    first, last, step = map(int, sys.argv[3:])
    numbers = range(first, last + 1, step)
    logger = logging.getLogger("rocketcore")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    session = Session(seed, cuts=numbers if kind == "cuts" else ()).run()
    cut = dict(session.left)
    for number in numbers:
        if kind == "errors":
            outcome = fail_call(seed, session.calls, number) if number < len(session.calls) else Outcome()
        else:
            outcome = Outcome()
            if number in cut:
                outcome.acknowledged = len(cut[number].ledger.acknowledged)
                outcome.add(seed, number, "cut", "cut", judge_left(cut[number]))
        print(json.dumps([outcome.done, outcome.acknowledged, outcome.wrong]), flush=True)


if __name__ == "__main__":
    main()
