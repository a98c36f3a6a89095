"""docs/troubleshooting.md: its codes and exit codes are those of the source. Verbs on pages of operators are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rocketcore.cli.main import COMMANDS, LazyGroup
from rocketcore.cli.shell.failures import _TABLE

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
ROW = re.compile(r"^\| `([A-Z_]+)` \| (\d+) \|", re.MULTILINE)


def listed() -> dict[str, int]:
    return {code: int(exit_code) for code, exit_code in ROW.findall(PAGE)}


def test_every_code_of_an_error_class_is_there_with_its_exit_code() -> None:
    known = {code: exit_code for _, exit_code, code, _ in _TABLE}
    found = listed()
    assert known.keys() - {"MESSAGE_ILLEGAL"} <= found.keys()
    assert {code: found[code] for code in known.keys() & found.keys()} == {
        code: known[code] for code in known.keys() & found.keys()
    }


def test_every_code_that_is_listed_is_one_that_commands_have() -> None:
    source = "".join(path.read_text() for path in (ROOT / "rocketcore" / "cli").rglob("*.py"))
    for code in listed():
        assert f'"{code}"' in source, code


@pytest.mark.parametrize("page", ["troubleshooting", "operating", "servers", "maintenance", "operations", "console"])
def test_verbs_that_are_named_are_there(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    named = re.findall(r"(?:`|^)rocket ([a-z]+)(?: ([a-z]+))?", text, re.MULTILINE)
    assert named
    for first, second in named:
        entry = COMMANDS[first]
        if isinstance(entry, LazyGroup) and second:
            assert second in entry.entries, (first, second)
