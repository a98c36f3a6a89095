"""One rule says how full a disk is: what a broker deletes by, what it says, and what ``rocket doctor`` says."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocketcore.broker.store.file_system import FileSystem
from rocketcore.cli.cluster.doctor import _here
from rocketcore.disk import used_ratio


@pytest.fixture(autouse=True)
def reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of 1000 blocks: 300 are used, and of those that are free 600 are root's."""
    disk = SimpleNamespace(f_blocks=1000, f_bfree=700, f_bavail=100, f_frsize=1 << 20, f_bsize=1 << 20)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)


def test_blocks_of_root_are_neither_used_nor_free(tmp_path: Path) -> None:
    assert used_ratio(tmp_path) == 0.75
    assert FileSystem().used_percent(tmp_path) == 75
    assert [each.detail for each in _here() if each.check == "disk"] == ["75% used"]
