"""Which requests begin in a turn of the loop: those of half a millisecond, the others later and in their order."""

from __future__ import annotations

import asyncio

from rocketcore.service import ManualClock
from rocketcore.transport.turns import Turns


def begun(count: int, seconds: float) -> list[list[int]]:
    """Return which of ``count`` requests, each of which takes so long, begin in each turn of the loop."""
    turns: list[list[int]] = [[]]

    async def main() -> None:
        clock = ManualClock()
        gate = Turns(clock.monotonic)

        async def serve(number: int) -> None:
            if not gate.has_room():
                await gate.wait()
            turns[-1].append(number)
            clock.advance(seconds)

        tasks = [asyncio.create_task(serve(number)) for number in range(count)]
        tasks.append(asyncio.create_task(serve(count)))
        await asyncio.sleep(0)
        tasks.pop().cancel()
        while not all(task.done() for task in tasks):
            turns.append([])
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(main(), 20))
    kept = [[number for number in turn if number < count] for turn in turns]  # the one that was cancelled apart
    return [turn for turn in kept if turn]


def test_quick_ones_begin_at_once() -> None:
    assert begun(100, 0.0)[0] == list(range(100))


def test_slow_ones_begin_one_in_a_turn() -> None:
    assert begun(30, 0.003) == [[number] for number in range(30)]


def test_more_begin_together_while_they_are_quick() -> None:
    turns = begun(400, 0.00002)
    assert [number for turn in turns for number in turn] == list(range(400))
    assert len(turns[0]) in range(20, 30)
    assert max(map(len, turns[1:])) == 16
