"""What is left of a session is the shortest that still ends in a difference."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.conformance.shortening import shortest


class Difference(NamedTuple):
    steps: list[int]


@pytest.mark.parametrize(("wanted", "left"), [({3, 17}, [3, 17]), ({39}, [39]), (set(), [])])
def test_only_what_makes_the_difference_is_left(wanted: set[int], left: list[int]) -> None:
    def play(steps: list[int]) -> Difference | None:
        return Difference(steps) if wanted <= set(steps) else None

    assert shortest(Difference(list(range(40))), play).steps == left
    assert shortest(Difference(list(range(40))), play, seconds=0.0).steps == list(range(40))
