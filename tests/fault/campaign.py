"""Many trials in processes that may die of one, and the table of what they came to."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fault.trial import TRIAL_SECONDS, Outcome

CHECKOUT = Path(__file__).parents[2]
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


def run_trials(seed: int, numbers: range, workers: int = 1) -> Report:
    """Run the trials of ``numbers`` in ``workers`` processes, one block of them each."""
    report = Report()
    began = time.monotonic()
    size = -(-len(numbers) // workers)
    blocks = [numbers[at : at + size] for at in range(0, len(numbers), size)]
    for outcome in _merge([_Block(seed, block) for block in blocks]):
        report.add(seed, outcome)
    report.seconds = time.monotonic() - began
    return report


class _Block:
    """One process at a time, which runs the trials that are left of a block."""

    def __init__(self, seed: int, numbers: range) -> None:
        self._seed = seed
        self._left = numbers
        self._rest = b""
        self.heard = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self) -> bool:
        """Start a process for what is left; False if nothing is."""
        if not self._left:
            return False
        command = [sys.executable, "-m", "tests.fault.trial", str(self._seed), str(self._left[0]), str(self._left[-1])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=CHECKOUT)
        self.heard = time.monotonic()
        return True

    def hear(self) -> Iterator[Outcome]:
        """Read what there is; a process that ended before its last trial died of the one it was at."""
        assert self.process is not None
        assert self.process.stdout is not None
        self.heard = time.monotonic()
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            outcome = Outcome(**json.loads(line))
            self._left = self._left[1:]
            yield outcome
        if not data:
            self.process.stdout.close()
            status = self.process.wait()
            self.process = None
            if self._left:
                number, self._left, self._rest = self._left[0], self._left[1:], b""
                yield Outcome(number, [], counts={"died": 1}, wrong={"died": f"exit status {status}"})


def _merge(blocks: Iterable[_Block]) -> Iterator[Outcome]:
    with selectors.DefaultSelector() as selector:
        running: set[_Block] = set()

        def begin(block: _Block) -> None:
            if block.begin():
                assert block.process is not None
                assert block.process.stdout is not None
                selector.register(block.process.stdout, selectors.EVENT_READ, block)
                running.add(block)

        for block in blocks:
            begin(block)
        try:
            while running:
                for key, _ in selector.select(1.0):
                    block = key.data
                    yield from block.hear()
                    if block.process is None:
                        selector.unregister(key.fileobj)
                        running.discard(block)
                        begin(block)
                for block in running:
                    if block.process is not None and time.monotonic() - block.heard > PATIENCE_SECONDS:
                        block.process.kill()
        finally:
            for block in running:
                if block.process is not None:
                    block.process.kill()
                    block.process.wait()
