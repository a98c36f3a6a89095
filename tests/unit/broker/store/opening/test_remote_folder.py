"""A store whose folders are on no disk of this machine says so once, and works as well as it can."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from rocketcore.broker.store.file_system import FileSystem
from tests.fixtures.stores import put, read_queue, running_store

NFS, FUSE, EXT4 = 0x6969, 0x65735546, 0xEF53


class Mounted(FileSystem):
    """Types of file systems by the folder that they are mounted at."""

    def __init__(self, mounts: dict[Path, int]) -> None:
        self.mounts = mounts

    def type(self, path: Path) -> int:
        return next((self.mounts[each] for each in (path, *path.parents) if each in self.mounts), EXT4)


@pytest.mark.parametrize(
    ("mounts", "named"),
    [
        ({}, ""),
        ({"root": NFS}, "path={0}/root (NFS): acknowledged messages"),
        ({"root": NFS, "log": FUSE}, "path={0}/root (NFS), {0}/log (FUSE): acknowledged messages"),
        ({"": FUSE}, "path={0}/root (FUSE), {0}/log (FUSE): acknowledged messages"),
    ],
)
def test_is_said_once(tmp_path: Path, mounts: dict[str, int], named: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "log").mkdir()
    files = Mounted({tmp_path / name: kind for name, kind in mounts.items()})

    async def run() -> None:
        async with running_store(tmp_path / "root", files=files, store_path_commit_log=tmp_path / "log") as store:
            await put(store, b"kept")
            assert [one["body"] for one in read_queue(store)] == [b"kept"]

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    said = [record.getMessage() for record in caplog.records if "not on a local disk" in record.getMessage()]
    assert len(said) == bool(named)
    if named:
        assert named.format(tmp_path) in said[0]
        assert "only as durable as its sync" in said[0]


def test_the_system_says_which_it_is(tmp_path: Path) -> None:
    assert FileSystem().type(Path("/proc")) == 0x9FA0
    assert FileSystem().type(tmp_path) not in (0, 0x9FA0)
    assert FileSystem().type(tmp_path / "missing") == 0
