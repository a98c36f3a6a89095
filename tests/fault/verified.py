"""One mutation of a store after another, verified: what a verification says of it, and what a broker then serves.

As a program, ``python -m tests.fault.verified SEED FIRST [LAST]`` runs trials and prints a line of JSON for each: that
is how a failing one is seen again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import tempfile
from collections.abc import Collection
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path

from rocketcore.broker.store.verify import Damage as Damaged
from rocketcore.broker.store.verify import Report
from rocketcore.broker.verify import repair_broker, verify_broker
from rocketcore.errors import StoreCorrupted
from tests.fault.broker_run import SEGMENT_BYTES, Heard, Life, store_config
from tests.fault.image import LOG, Image, touched_log
from tests.fault.ledger import Damage, Found, Ledger, Span, Verdict
from tests.fault.mutator import mutate
from tests.fault.script import Base
from tests.fault.trial import BASE_TRIALS, Outcome, base_of, memory_folder

IN_START_ONLY = ("config", "offset")
"""Kinds of damage that a repair leaves: nothing else knows what was there."""


def run_verified(seed: int, number: int) -> Outcome:
    """Run trial ``number``; it depends on nothing but its number and the seed."""
    base = base_of(seed, number // BASE_TRIALS)
    rng = random.Random(f"{seed}:verified:{number}")
    image = base.image.copy()
    outcome = Outcome(number, mutate(image, base.older, rng), acknowledged=len(base.ledger.acknowledged))
    with tempfile.TemporaryDirectory(dir=memory_folder(), prefix="rocket-verify-") as folder:
        _Verified(base, image, Path(folder), outcome).run()
    return outcome


class _Verified:
    def __init__(self, base: Base, image: Image, folder: Path, outcome: Outcome) -> None:
        self._base = base
        self._image = image
        self._folder = folder
        self._outcome = outcome
        self._verdict = Verdict()
        self._at_once = 0

    def run(self) -> None:
        root = self._folder / "verified"
        self._image.write(root)
        try:
            report = verify_broker(store_config(root))
        except StoreCorrupted:
            report = None
        if Image.read(root) != self._image:
            self._verdict.blame("changed", "the files are not as they were before the verification")
        served = self._start(report)
        if report is not None and served is not None:
            self._judge(report, *served)
            self._repair(served[0])
        self._outcome.add(self._verdict, "verified")

    def _start(self, report: Report | None) -> tuple[list[Found], list[Span]] | None:
        """Start a broker on a copy and return what it serves, and what it named."""
        root = self._folder / "started"
        self._image.write(root)
        try:
            found = asyncio.run(self._serve(root))
        except StoreCorrupted as error:
            if report is not None:
                self._verdict.blame("refused", f"a store that was verified: {error}")
            return None
        if report is None:
            self._verdict.blame("refused", "verification refused a store that starts")
        return found

    async def _serve(self, root: Path) -> tuple[list[Found], list[Span]]:
        with Heard() as heard:
            async with Life(root, Ledger(), deepcopy(self._base.clock), 100) as life:
                self._at_once = len(await life.waiting() + await life.read_now(Verdict()))
                found = await life.read_all(Verdict())
        return found, heard.named

    def _judge(self, report: Report, found: list[Found], named: list[Span]) -> None:
        """What is served is not called lost; what is not served is named, unless nothing can tell that it was there."""
        touched, gone = touched_log(self._base.image, self._image)
        before, after = self._base.image.files, self._image.files
        hurt = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        confirmed = 0 if {"queuebounds", "checkpoint"} <= hurt else self._base.noted
        lost = {(each.topic, each.queue_id, at) for each in report.lost for at in range(each.start, each.end)}
        for message in found:
            if self._base.records.get(message.physical_offset) != message.record:
                continue  # a delayed message, which was delivered now
            place = f"{message.topic}/{message.queue_id} {message.queue_offset} at {message.physical_offset}"
            if report.is_named(message.physical_offset):
                self._verdict.blame("blamed", f"{place} is served and called damaged")
            if (message.topic, message.queue_id, message.queue_offset) in lost:
                self._verdict.blame("blamed", f"{place} is served and called lost")
        spans = [_span(each) for each in report.damaged if each.kind == "log" and each.position < SEGMENT_BYTES]
        if report.gone_from is not None:
            spans.append((report.gone_from, report.log_begin))
        damage = Damage(touched, gone, confirmed, spans, self._base.records, self._base.copies)
        judged = self._base.ledger.judge(found, self._base.ledger.acknowledged, damage)
        for kind in ("lost", "blamed", "alarm"):
            if kind in judged.counts:
                self._verdict.blame(kind, judged.examples[kind])
        self._outcome.named, self._outcome.traceless = judged.named, judged.traceless
        for start, end in named:
            if not any(start < last and first < end for first, last in spans):
                self._verdict.blame("unnamed", f"{start} to {end} is named by a start and not by a verification")
        if report.served != self._at_once and not any(name.startswith("config/") for name in hurt):
            self._verdict.blame("miscounted", f"{report.served} are served, it says, and {self._at_once} are")
        for each in report.damaged:
            if not _explained(each, hurt):
                self._verdict.blame("alarm", f"{each}, though only {sorted(hurt)} changed")

    def _repair(self, served: list[Found]) -> None:
        """A repair leaves a store that is whole, and serves no message less than a start does."""
        root = self._folder / "repaired"
        self._image.write(root)
        after = repair_broker(store_config(root), verify_broker(store_config(root)))
        for damage in after.damaged:
            if damage.kind not in IN_START_ONLY:
                self._verdict.blame("unrepaired", str(damage))
        found, named = asyncio.run(self._serve(root))
        missing = {_place(message) for message in served} - {_place(message) for message in found}
        for place in missing:
            if place[-1] in self._base.records:
                self._verdict.blame("lost", f"{place} is served by a start and not after a repair")
        for start, end in named:
            self._verdict.blame("unrepaired", f"a start names {start} to {end} after a repair")


def _explained(damage: Damaged, hurt: Collection[str]) -> bool:
    """Whether one of the files that were changed is a reason for damage of this kind."""
    folders = {
        "log": (LOG,),
        "queue": ("consumequeue/", LOG),
        "index": ("index/", LOG),
        "config": ("config/",),
        "offset": ("config/", LOG),
    }
    notes = () if damage.kind == "config" else ("queuebounds", "indexbounds", "checkpoint", "abort", "deletedtopics")
    return any(name.startswith((*folders.get(damage.kind, ()), *notes)) for name in hurt)


def _span(damage: Damaged) -> Span:
    begin = int(damage.path.name) + damage.position
    return begin, begin + damage.length


def _place(message: Found) -> tuple[str, int, int, int]:
    return message.topic, message.queue_id, message.queue_offset, message.physical_offset


def main() -> None:
    seed, first = int(sys.argv[1]), int(sys.argv[2])
    last = int(sys.argv[3]) if len(sys.argv) > 3 else first
    logging.getLogger("rocketcore").addHandler(logging.NullHandler() if last > first else logging.StreamHandler())
    for number in range(first, last + 1):
        print(json.dumps(asdict(run_verified(seed, number))), flush=True)


if __name__ == "__main__":
    main()
