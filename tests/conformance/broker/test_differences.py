"""Every difference that these tests allow for is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.broker.differences import DIFFERENCES

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[2] / "docs" / "compatibility.md"


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_has_its_row_and_a_test(name: str) -> None:
    difference = DIFFERENCES[name]
    assert difference.apache != difference.ours
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {difference.row}")]
    assert len(rows) == 1
    assert any(f'"{name}"' in each.read_text() for each in FOLDER.glob("test_*.py"))
