"""The operator's week of docs/operating.md: each task is one command, with this exit code and these keys.

Also: the verbs that docs/from-other-tools.md names are there.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import rocketcore as rmq
from rocketcore.cli.main import COMMANDS, Entry, LazyGroup
from rocketcore.local import LocalCluster
from tests.fixtures.commands import Rocket, rocket_command

DOCS = Path(__file__).resolve().parents[3] / "docs"


def rows(heading: str) -> list[list[str]]:
    """Return the rows of all tables below a heading of the page, in their order."""
    section = (DOCS / "operating.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return rows_of(section)


def rows_of(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| task |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def verbs(group: dict[str, Entry | LazyGroup], path: str = "") -> set[str]:
    found: set[str] = set()
    for name, entry in group.items():
        found |= verbs(entry.entries, f"{path}{name} ") if isinstance(entry, LazyGroup) else {f"{path}{name}"}
    return found


def test_each_task_is_one_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = rows("The operator's week")
    assert len(tasks) > 25
    monkeypatch.setattr("rocketcore.cli.cluster.doctor.used_ratio", lambda folder: 0.5)
    with LocalCluster() as cluster:
        rocket: Rocket = rocket_command(cluster.namesrv, monkeypatch, capsys)
        for task, command, code, keys in tasks:
            check_task(rocket, task, shlex.split(command.strip("`"))[1:], int(code), keys.strip("`"))


def test_a_group_that_has_dead_letters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = rows("A group that has dead letters")
    assert len(tasks) == 5
    with LocalCluster() as cluster:
        with rmq.PushConsumer(cluster.namesrv, group="billing", start_from="first", max_reconsume_times=0) as consumer:
            consumer.subscribe("orders")
            with rmq.Producer(cluster.namesrv, group="shop") as producer:
                producer.send("orders", "never", keys="order-1")
            next(iter(consumer)).retry()
        rocket: Rocket = rocket_command(cluster.namesrv, monkeypatch, capsys)
        for task, command, code, keys in tasks:
            check_task(rocket, task, shlex.split(command.strip("`"))[1:], int(code), keys.strip("`"))


def check_task(rocket: Rocket, task: str, arguments: list[str], code: int, shape: str) -> None:
    """Run one command, and compare its exit code and the keys of what it prints, also into a file."""
    *arguments, redirected, file = arguments if ">" in arguments else (*arguments, "", "")
    found, out, err = rocket(*arguments, "-o", "json", stdin=b"")
    if redirected:
        Path(file).write_text(out)
    assert found == code, (task, err)
    if not shape:
        assert out == "", task
        assert json.loads(err.splitlines()[-1])["error"]["code"], task
        return
    value = json.loads(out)
    if shape == "[]":
        assert value == [], task
        return
    assert isinstance(value, list) == shape.startswith("["), task
    wanted = shape.strip("[]").split()
    row = value[0] if isinstance(value, list) else value
    if "…" in wanted:
        assert set(wanted) - {"…"} <= row.keys(), (task, row)
    else:
        assert wanted == list(row), (task, row)


def test_other_tools_are_told_of_with_verbs_that_there_are() -> None:
    table = rows_of((DOCS / "from-other-tools.md").read_text())
    assert len(table) > 20
    known = verbs(COMMANDS)
    for row in table:
        assert len(row) == 4, row
        for verb in re.findall(r"`([^`]+)`", row[1]):
            assert verb in known, verb
