"""Apache's servers beside our tests and benchmarks: where they store messages, and the commands of their page."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.peers import apache


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of ``/dev/shm``."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setattr(apache, "MEMORY", folder)
    return folder


def use(monkeypatch: pytest.MonkeyPatch, used: int, free: int, memory_free: int = 8 << 30) -> None:
    """Have every disk that full; a part may be kept for root, so the two need not add up to the total."""

    def disk_usage(path: Path) -> SimpleNamespace:
        of_memory = path == apache.MEMORY
        return SimpleNamespace(total=200, used=used, free=memory_free if of_memory else free)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)


def test_stores_are_on_a_disk_that_has_room(tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, used=85, free=15)
    assert apache.room(tmp_path) == tmp_path
    assert not list(memory.iterdir())


def test_stores_are_in_memory_where_the_disk_is_nearly_full(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, used=86, free=14)
    assert apache.room(tmp_path).parent == memory


@pytest.mark.usefixtures("memory")
def test_memory_without_room_is_no_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, used=86, free=14, memory_free=64 << 20)
    assert apache.room(tmp_path) == tmp_path


def test_without_memory_the_disk_has_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, used=86, free=14)
    monkeypatch.setattr(apache, "MEMORY", tmp_path / "no such folder")
    assert apache.room(tmp_path) == tmp_path


def test_commands_of_the_page() -> None:
    page = (Path(apache.__file__).parent / "README.md").read_text()
    lines = re.findall(r"^python -m tests\.peers (.*)", page, re.MULTILINE)
    assert len(lines) == 4
    commands = [apache.command_line().parse_args(shlex.split(line, comments=True)).command for line in lines]
    assert commands == ["install", "namesrv", "cluster", "mqadmin"]
    (names,) = re.findall(r"from tests\.peers\.apache import (.*)", page)
    assert set(names.split(", ")) <= set(apache.__all__)
