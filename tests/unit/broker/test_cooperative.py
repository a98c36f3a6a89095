"""Long work of a broker's loop: others get their turn, and long work each its own."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from rocketcore.broker.cooperative import CooperativeWork
from rocketcore.service import ManualClock


def test_all_long_work_together_has_a_slice_in_a_turn() -> None:
    async def main() -> None:
        cooperative, steps, others = CooperativeWork(ManualClock()), 0, [0]

        async def work() -> None:
            nonlocal steps
            for _ in range(250):
                steps += 1
                await cooperative.step()

        works = [asyncio.create_task(work()) for _ in range(50)]
        given_up = asyncio.create_task(work())
        await asyncio.sleep(0)
        given_up.cancel()
        while not all(each.done() for each in works):
            await asyncio.sleep(0)
            others.append(steps)
        assert max(later - before for before, later in pairwise(others)) <= 2 * 100 + len(works)
        assert steps >= 50 * 250

    asyncio.run(asyncio.wait_for(main(), 20))


def test_work_that_has_its_time_of_a_turn_goes_on_in_the_next() -> None:
    async def main() -> None:
        clock, turns = ManualClock(), 0
        cooperative = CooperativeWork(clock)

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        for _ in range(10):
            await cooperative.step()
        assert turns == 0
        for _ in range(10):
            clock.advance(0.001)
            await cooperative.step()
        assert turns >= 10
        counting.cancel()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_few_have_a_large_answer_in_their_hands() -> None:
    async def main() -> None:
        cooperative, at_work, most = CooperativeWork(ManualClock()), 0, 0

        async def handle(number: int) -> int:
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            await cooperative.beside(lambda: None)
            at_work -= 1
            return number

        handler = cooperative.one_of_few(handle)
        assert await asyncio.gather(*map(handler, range(20))) == list(range(20))
        assert most == 4

    asyncio.run(asyncio.wait_for(main(), 20))
