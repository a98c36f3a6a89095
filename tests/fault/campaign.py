"""Many trials in processes that may die of one, and the table of what they came to."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from tests.fault.trial import BASE_TRIALS, TRIAL_SECONDS, Outcome
from tests.fault.workers import WORKERS, spread

BLOCK_TRIALS = 10 * BASE_TRIALS
PATIENCE_SECONDS = 2 * TRIAL_SECONDS
"""A process without a word for so long hangs where no time-out of its own reaches."""

KINDS = {
    "lost": "neither served nor named",
    "blamed": "sound, but called damaged and not served",
    "corrupt": "served damaged",
    "phantom": "served twice, or never sent",
    "moved": "at another place",
    "reordered": "in another order",
    "alarm": "damage named where there is none",
    "unreadable": "queues or delays that stand still",
    "refused": "starts or sends refused",
    "state": "topics or offsets that are wrong",
    "hung": "no end",
    "died": "process died",
}


@dataclass(slots=True)
class Report:
    """Sums of many trials, and how to see each failing one again."""

    trials: int = 0
    acknowledged: int = 0
    named: int = 0
    traceless: int = 0
    seconds: float = 0.0
    wrong: Counter[str] = field(default_factory=Counter)
    failing: list[str] = field(default_factory=list)

    def add(self, seed: int, outcome: Outcome) -> None:
        self.trials += 1
        self.acknowledged += outcome.acknowledged
        self.named += outcome.named
        self.traceless += outcome.traceless
        self.wrong.update(outcome.counts)
        if outcome.wrong:
            what = ", ".join(f"{kind}: {example}" for kind, example in outcome.wrong.items())
            self.failing.append(
                f"python -m tests.fault.trial {seed} {outcome.number}   # {'; '.join(outcome.what)}: {what[:300]}"
            )

    def __str__(self) -> str:
        rows = [
            ("mutated stores", self.trials),
            ("messages acknowledged", self.acknowledged),
            ("damaged and named", self.named),
            ("gone with the end of the log", self.traceless),
            *((words, self.wrong[kind]) for kind, words in KINDS.items()),
        ]
        lines = [f"{words:<42}{number:>10,}" for words, number in rows]
        return "\n".join([*lines, f"{'seconds':<42}{self.seconds:>10,.0f}"])


def run_trials(seed: int, numbers: range, workers: int = WORKERS) -> Report:
    """Run the trials of ``numbers`` in ``workers`` processes."""
    report = Report()
    began = time.monotonic()

    def arguments(block: range) -> list[str]:
        return ["-m", "tests.fault.trial", str(seed), str(block[0]), str(block[-1])]

    # Whole stores for a process, as it makes each of them for itself, and enough blocks to end at one time.
    size = min(BLOCK_TRIALS, -(-len(numbers) // workers))
    for number, said, death in spread(arguments, numbers, size, PATIENCE_SECONDS, workers):
        dead = Outcome(number, [], counts={"died": 1}, wrong={"died": death})
        report.add(seed, dead if death else Outcome(**said))
    report.seconds = time.monotonic() - began
    return report
