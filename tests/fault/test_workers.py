"""Experiments in processes: each is heard of once, also the ones that their process dies of, or never ends."""

from __future__ import annotations

import pytest

from tests.fault.workers import spread

pytestmark = pytest.mark.fault

SCRIPT = """
import json, os, sys, time
for number in range(*map(int, sys.argv[1:])):
    if number == {dies}: os._exit(3)
    if number == {hangs}: time.sleep(1000)
    print(json.dumps(number * number), flush=True)
"""


def arguments(numbers: range, dies: int = -1, hangs: int = -1) -> list[str]:
    bounds = map(str, (numbers.start, numbers.stop, numbers.step))
    return ["-c", SCRIPT.format(dies=dies, hangs=hangs), *bounds]


@pytest.mark.parametrize("numbers", [range(10), range(0, 40, 3), range(0)])
def test_each_is_heard_of_once(numbers: range) -> None:
    assert sorted(spread(arguments, numbers, 4, 60.0, workers=2)) == [(n, n * n, "") for n in numbers]


def test_a_process_that_dies_of_one_goes_on_with_the_next() -> None:
    heard = {number: (said, death) for number, said, death in spread(lambda n: arguments(n, dies=5), range(8), 4, 60.0)}
    assert heard.pop(5) == (None, "exit status 3")
    assert heard == {number: (number * number, "") for number in range(8) if number != 5}


def test_a_process_that_says_nothing_for_long_is_killed() -> None:
    heard = {number: (said, death) for number, said, death in spread(lambda n: arguments(n, hangs=2), range(4), 4, 5.0)}
    assert heard.pop(2) == (None, "exit status -9")
    assert heard == {number: (number * number, "") for number in range(4) if number != 2}
