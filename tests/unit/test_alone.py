"""Who wants to be alone is: nobody else has a place meanwhile, and nobody gets in before it."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tests.fixtures.alone import place


def is_taken(path: Path, kind: int) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.mark.parametrize("alone", [False, True])
def test_a_place(tmp_path: Path, alone: bool) -> None:
    with place(tmp_path, alone=alone):
        assert is_taken(tmp_path / "door", fcntl.LOCK_EX) == alone
        assert is_taken(tmp_path / "room", fcntl.LOCK_SH) == alone
        assert is_taken(tmp_path / "room", fcntl.LOCK_EX)
    assert not is_taken(tmp_path / "door", fcntl.LOCK_EX)
    assert not is_taken(tmp_path / "room", fcntl.LOCK_EX)


def test_places_side_by_side(tmp_path: Path) -> None:
    with place(tmp_path, alone=False), place(tmp_path, alone=False):
        assert is_taken(tmp_path / "room", fcntl.LOCK_EX)
