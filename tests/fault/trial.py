"""One mutation of a store after another: damage, start, read back, judge; write more, start again, judge again.

As a program, ``python -m tests.fault.trial SEED FIRST [LAST]`` runs trials and prints a line of JSON for each: that is
how a campaign runs them, in a process that may die of one, and how a failing one is seen again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import tempfile
from collections.abc import Collection
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from shutil import rmtree

from rocketcore.codes import ResponseCode
from rocketcore.errors import RocketError, StoreCorrupted
from rocketcore.service import ManualClock
from tests.fault.broker_run import DELAYS, DOOMED, SEGMENT_BYTES, TOPICS, Heard, Life
from tests.fault.image import Image, touched_log
from tests.fault.ledger import Damage, Found, Key, Ledger, Verdict, read_body
from tests.fault.mutator import mutate
from tests.fault.script import Base, copies_of, make_base

BASE_TRIALS = 50
"""Trials that share a store: to make one costs as much as ten starts."""

TRIAL_SECONDS = 60.0
AFTER = 4
"""Messages that are sent after the damage, beside the delayed ones."""


@dataclass(slots=True)
class Outcome:
    """What a trial came to; ``wrong`` is kind → first example, empty if all held."""

    number: int
    what: list[str]
    acknowledged: int = 0
    named: int = 0
    traceless: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)

    def add(self, verdict: Verdict, when: str) -> None:
        for kind, count in verdict.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + count
            self.wrong.setdefault(kind, f"{when}: {verdict.examples[kind]}")


def memory_folder() -> str | None:
    """Where small stores are made: in memory where the system has such a folder, else where TMPDIR says."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@lru_cache(maxsize=2)
def base_of(seed: int, number: int) -> Base:
    with tempfile.TemporaryDirectory(dir=memory_folder(), prefix="rocket-fault-") as folder:
        return make_base(f"{seed}:base:{number}", Path(folder))


def run_trial(seed: int, number: int) -> Outcome:
    """Run trial ``number``; it depends on nothing but its number and the seed."""
    base = base_of(seed, number // BASE_TRIALS)
    rng = random.Random(f"{seed}:{number}")
    image = base.image.copy()
    outcome = Outcome(number, mutate(image, base.older, rng), acknowledged=len(base.ledger.acknowledged))
    folder = Path(tempfile.mkdtemp(dir=memory_folder(), prefix="rocket-fault-"))
    try:
        asyncio.run(asyncio.wait_for(_Trial(base, image, folder, rng, outcome).run(), TRIAL_SECONDS))
    except TimeoutError:
        outcome.wrong["hung"] = f"no end after {TRIAL_SECONDS} s"
        outcome.counts["hung"] = 1
    finally:
        rmtree(folder)
    return outcome


class _Trial:
    def __init__(self, base: Base, image: Image, folder: Path, rng: random.Random, outcome: Outcome) -> None:
        self._base = base
        self._image = image
        self._folder = folder
        self._rng = rng
        self._outcome = outcome
        self._ledger: Ledger = base.ledger.copy()
        self._clock: ManualClock = deepcopy(base.clock)
        before, after = base.image.files, image.files
        self._hurt = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}

    async def run(self) -> None:
        root = self._folder / "first"
        self._image.write(root)
        try:
            again, kept = await self._first(root)
            await self._second(again, kept)
        except (RocketError, OSError, AssertionError) as error:
            if not (isinstance(error, StoreCorrupted) and self._no_size_fits()):
                self._blame("refused", f"{type(error).__name__}: {error}")

    def _no_size_fits(self) -> bool:
        """Whether every file of the log has another size than the settings say: that store must be refused."""
        return all(len(content) != SEGMENT_BYTES for _, _, content in self._image.segments())

    def _blame(self, kind: str, what: str) -> None:
        verdict = Verdict()
        verdict.blame(kind, what)
        self._outcome.add(verdict, "start")

    async def _first(self, root: Path) -> tuple[Path, list[Found]]:
        """Start on the damaged files, judge, send a little more; returns the files left and what they must serve."""
        self._touched, gone = touched_log(self._base.image, self._image)
        confirmed = 0 if {"queuebounds", "checkpoint"} <= self._hurt else self._base.noted
        verdict = Verdict()
        with Heard() as heard:
            async with Life(root, self._ledger, self._clock, 100) as life:
                found = await life.read_all(verdict)
                await life.find_all(found, verdict)
                self._outcome.add(verdict, "first start")
                damage = Damage(self._touched, gone, confirmed, heard.named, self._base.records, self._base.copies)
                judged = self._ledger.judge(self._judged(found), self._ledger.acknowledged, damage)
                self._outcome.add(judged, "first start")
                self._outcome.named, self._outcome.traceless = judged.named, judged.traceless
                await self._judge_state(life)
                new = await self._send_more(life)
                kept = await life.read_all(verdict)
                await life.find_all(kept, verdict)
                self._outcome.add(self._ledger.judge(self._judged(kept), new, damage), "sent after the damage")
                killed = self._rng.random() < 0.5
                if killed:
                    again = self._folder / "again"
                    Image.read(root).write(again)
        self._heard = heard.named
        return (again if killed else root), kept

    async def _second(self, root: Path, kept: list[Found]) -> None:
        """Start once more: everything is as it was, and nothing is found damaged that was not before."""
        verdict = Verdict()
        with Heard() as heard:
            async with Life(root, self._ledger, self._clock, 101) as life:
                found = await life.read_all(verdict)
                await life.find_all(found, verdict)
        kept, found = self._judged(kept), self._judged(found)
        must = {key for message in kept if (key := read_body(message.body)) is not None}
        damage = Damage(
            touched=self._touched + self._heard,
            named=[(start, end) for start, end in heard.named],
            records={message.physical_offset: message.record for message in kept},
            copies=copies_of(kept),
        )
        judged = self._ledger.judge(found, must, damage)
        for message in set(map(_place, kept)) - set(map(_place, found)):
            judged.blame("moved", f"{message} is no longer there")
        self._outcome.add(verdict, "second start")
        self._outcome.add(judged, "second start")

    def _judged(self, found: list[Found]) -> list[Found]:
        """Leave out a topic that comes back when both notes that say that it was deleted were hurt."""
        return [message for message in found if message.topic != DOOMED or not self._forgets_deletions]

    @property
    def _forgets_deletions(self) -> bool:
        return self._base.deleted and {"queuebounds", "deletedtopics"} <= self._hurt

    async def _send_more(self, life: Life) -> set[Key]:
        """Send a few messages, one of each delay among them; returns those that were acknowledged: all."""
        before = set(self._ledger.acknowledged)
        levels = [0] * AFTER + list(range(1, len(DELAYS) + 1))
        for number, level in enumerate(levels):
            topic = self._rng.choice([topic for topic in TOPICS if topic != DOOMED])
            queue_id = self._rng.randrange(TOPICS[topic])
            answer = await life.send(topic, queue_id, self._rng, sender=number, level=level)
            if answer.code != ResponseCode.SUCCESS:
                self._blame("refused", f"a send after the damage: {answer.code} {answer.remark}")
        return self._ledger.acknowledged.keys() - before

    # ------------------------------------------------------------------ settings and offsets

    async def _judge_state(self, life: Life) -> None:
        """Topics and offsets are the last ones, or older ones where their file was hurt and that is said."""
        verdict = Verdict()
        hurt = _config_hurt(self._hurt, "topics")
        topics = await life.topics()
        for topic, queues in TOPICS.items():
            if topic == DOOMED and self._base.deleted:
                if topic in topics and not hurt and not self._forgets_deletions:
                    verdict.blame("state", f"deleted topic {topic} came back")
            elif topics.get(topic) != queues and not hurt:
                verdict.blame("state", f"topic {topic} has {topics.get(topic)} queues, not {queues}")
        hurt = _config_hurt(self._hurt, "consumerOffset")
        for (topic, queue_id), committed in self._base.committed.items():
            if topic == DOOMED:
                continue
            offset = await life.consumer_offset(topic, queue_id)
            if offset not in (0, *committed):
                verdict.blame("state", f"offset {offset} of {topic}/{queue_id}, committed were {committed}")
            elif self._base.stopped and not hurt and offset != committed[-1]:
                verdict.blame("state", f"offset {offset} of {topic}/{queue_id}, committed was {committed[-1]}")
        self._outcome.add(verdict, "first start")


def _config_hurt(hurt: Collection[str], name: str) -> bool:
    return any(path.startswith(f"config/{name}.json") for path in hurt)


def _place(message: Found) -> tuple[str, int, int, int]:
    return message.topic, message.queue_id, message.queue_offset, message.physical_offset


def main() -> None:
    seed, first = int(sys.argv[1]), int(sys.argv[2])
    last = int(sys.argv[3]) if len(sys.argv) > 3 else first
    logging.getLogger("rocketcore").addHandler(logging.NullHandler() if last > first else logging.StreamHandler())
    for number in range(first, last + 1):
        print(json.dumps(asdict(run_trial(seed, number))), flush=True)


if __name__ == "__main__":
    main()
