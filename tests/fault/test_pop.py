"""kill -9 and power cuts while groups pop: nothing acknowledged comes again, nothing that is not is lost."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.fault.pop_run import QUIET_SECONDS, PopRun
from tests.fault.test_kill import SEED

CYCLES = max(1, int(os.environ.get("ROCKETCORE_FAULT_CYCLES", "12")) // 4)
SECONDS_A_CYCLE = 15

pytestmark = pytest.mark.fault


@pytest.mark.timeout(60 + QUIET_SECONDS + CYCLES * SECONDS_A_CYCLE)
@pytest.mark.parametrize("disk", ["kept", "honest"])
def test_groups_pop_while_the_broker_is_killed(tmp_path: Path, disk: str) -> None:
    async def main() -> PopRun:
        async with PopRun(tmp_path, SEED, disk=disk) as run:
            for _ in range(CYCLES):
                await run.cycle()
            await run.drain()
            return run

    run = asyncio.run(main())
    print(f"{run.kills} kills, {len(run.stored)} messages, {run.again} came again {dict(run.wrong)}")
    assert not run.wrong, run.examples
    assert len(run.stored) > 10 * CYCLES
    assert run.again > CYCLES
