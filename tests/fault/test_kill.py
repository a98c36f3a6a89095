"""kill -9 and power cuts under synchronous flush: what was acknowledged is there, once, whole, in place, in order."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from tests.fault.harness import BrokerProcess, FaultRun
from tests.fault.ledger import Found, Ledger, make_body, read_body
from tests.fault.workers import WORKERS

CYCLES = int(os.environ.get("ROCKETCORE_FAULT_CYCLES", "20"))
SEED = int(os.environ.get("ROCKETCORE_FAULT_SEED", "20261120"))
PLANTED_CYCLES = 10
SECONDS_A_CYCLE = 15

pytestmark = pytest.mark.fault


async def survive_all(folder: Path, seed: int, cycles: int, disk: str) -> list[FaultRun]:
    """Share the cycles among as many stores as there are workers."""
    runs = []
    async with asyncio.TaskGroup() as group:
        for number in range(WORKERS):
            (mine := folder / str(number)).mkdir()
            share = len(range(number, cycles, WORKERS))
            runs.append(group.create_task(survive(mine, seed + number, share, disk)))
    return [run.result() for run in runs]


async def survive(folder: Path, seed: int, cycles: int, disk: str) -> FaultRun:
    async with FaultRun(folder, seed, disk=disk) as run:
        for number in range(cycles):
            verdict = await run.cycle()
            assert verdict, f"seed {seed} cycle {number}: {dict(verdict.counts)} {verdict.examples}"
        verdict = await run.judge_all()
        assert verdict, f"seed {seed} at the end: {dict(verdict.counts)} {verdict.examples}"
        return run


def told(runs: list[FaultRun]) -> str:
    deleted, found = sum(run.deleted_bytes for run in runs), sum(run.found_by_id for run in runs)
    return f"{deleted >> 20} MiB deleted by retention, {found} messages found by their ids"


@pytest.mark.timeout(60 + CYCLES * SECONDS_A_CYCLE)
def test_a_killed_broker_loses_nothing(tmp_path: Path) -> None:
    runs = asyncio.run(survive_all(tmp_path, SEED, CYCLES, "kept"))
    cycles, acknowledged = sum(run.cycles for run in runs), sum(len(run.ledger.acknowledged) for run in runs)
    print(f"{cycles} kills, {acknowledged} messages acknowledged, none lost, moved or damaged; {told(runs)}")
    assert cycles == CYCLES
    assert acknowledged > 10 * cycles
    assert all(run.deleted_bytes for run in runs), "retention deleted nothing"
    assert all(run.found_by_id for run in runs)


@pytest.mark.timeout(60 + CYCLES * SECONDS_A_CYCLE)
def test_a_power_cut_loses_nothing_acknowledged(tmp_path: Path) -> None:
    runs = asyncio.run(survive_all(tmp_path, SEED + WORKERS, CYCLES // 2, "honest"))
    cycles, acknowledged = sum(run.cycles for run in runs), sum(len(run.ledger.acknowledged) for run in runs)
    print(f"{cycles} power cuts, {acknowledged} messages acknowledged, none lost, moved or damaged; {told(runs)}")
    assert acknowledged > 10 * cycles
    assert any(run.power_cuts for run in runs), "no cut ever hit a write under way: the simulation does nothing"


@pytest.mark.timeout(60 + PLANTED_CYCLES * SECONDS_A_CYCLE)
def test_a_store_that_acknowledges_before_fsync_is_caught(tmp_path: Path) -> None:
    """The harness is worth something: the planted bug is found, as messages that were acknowledged and are gone."""

    async def run_until_caught() -> int:
        async with FaultRun(tmp_path, SEED + 2, disk="early") as run:
            for _ in range(PLANTED_CYCLES):
                verdict = await run.cycle()
                if verdict.counts["lost"]:
                    return verdict.counts["lost"]
        return 0

    assert asyncio.run(run_until_caught()) > 0


@pytest.mark.timeout(60)
def test_a_broker_that_does_not_start_is_seen_by_its_end(tmp_path: Path) -> None:
    """Not by the time that one may take."""
    (tmp_path / "broker.conf").write_text("defaultTopicQueueNums=-5\n")
    with pytest.raises(RuntimeError, match=r"ended with [1-9](.|\n)*defaultTopicQueueNums"):
        asyncio.run(BrokerProcess(tmp_path, "kept").ready())


@pytest.mark.parametrize("kind", ["lost", "phantom", "corrupt", "moved", "reordered"])
def test_the_judge_sees_each_kind_of_wrong(kind: str) -> None:
    rng = random.Random(1)
    ledger = Ledger()
    found = []
    for sequence in range(5):
        key = (0, 0, sequence)
        body = make_body(key, rng)
        assert read_body(body) == key
        ledger.send(key, 0)
        ledger.acknowledge(key, (0, sequence, sequence * 1000))
        found.append(Found(0, sequence, sequence * 1000, body))
    assert ledger.judge(found, ledger.acknowledged)
    match kind:
        case "lost":
            del found[2]
        case "phantom":
            found.append(found[2])
        case "corrupt":
            found[2] = Found(0, 2, 2000, found[2].body[:-1] + b"\0")
        case "moved":
            found[2] = Found(0, 2, 2001, found[2].body)
        case "reordered":
            found[2], found[3] = found[3], found[2]
    assert ledger.judge(found, ledger.acknowledged).counts[kind] == 1
