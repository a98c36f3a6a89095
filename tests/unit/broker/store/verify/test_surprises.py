"""Verification while the unexpected happens: a broker that runs, a disk that fails, files that are none."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketcore._fast.mapped import PaddedMap
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.verify import ReadOnlyFiles, verify
from rocketcore.broker.store.verify.read_ahead import PIECE_BYTES
from rocketcore.errors import StoreLocked
from tests.fault.unreadable_page import lose_page
from tests.fixtures.stores import (
    SEGMENT_BYTES,
    put,
)
from tests.fixtures.verified_store import (
    COUNT,
    look,
    only,
    running_store,
    serves,
    store_config,
)


def test_a_folder_in_use_is_refused(root: Path) -> None:
    async def run() -> None:
        async with running_store(root):
            with pytest.raises(StoreLocked, match="in use"):
                verify(store_config(root))

    asyncio.run(run())
    assert look(root).is_whole


def test_a_store_does_not_start_while_it_is_verified(root: Path) -> None:
    refused = []

    def start(done: int, total: int) -> None:
        if not refused:
            with pytest.raises(StoreLocked) as error:
                asyncio.run(serves(root, COUNT))
            refused.append(error)

    assert verify(store_config(root), progress=start).is_whole
    assert refused


def test_a_link_to_a_store_is_the_store(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    assert verify(store_config(tmp_path / "link")).served == COUNT


def test_no_log_is_no_message(tmp_path: Path) -> None:
    report = look(tmp_path)
    assert (report.is_whole, report.messages, report.log_end) == (True, 0, 0)


def test_a_log_that_is_gone_is_missing(root: Path) -> None:
    end = look(root).log_end
    shutil.rmtree(root / "commitlog")
    report = look(root)
    assert [(each.kind, each.length) for each in report.damaged if each.kind == "log"] == [("log", end)]


class LosingFiles(ReadOnlyFiles):
    """A disk that does not give a page of the first file of the log."""

    def map(self, fd: int, size: int) -> mmap.mmap | PaddedMap:
        mapped = super().map(fd, size)
        if os.readlink(f"/proc/self/fd/{fd}").endswith(f"{0:020d}") and isinstance(mapped, mmap.mmap):
            lose_page(mapped, 3)
        return mapped


@pytest.mark.parametrize("name", ["queuebounds", "checkpoint"])
def test_a_note_that_may_not_be_read_is_named_and_the_rest_looked_at(root: Path, name: str) -> None:
    class Forbidden(ReadOnlyFiles):
        def read_file(self, path: Path) -> bytes:
            if path.name == name:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return super().read_file(path)

    report = verify(store_config(root), files=Forbidden())
    assert [(each.kind, each.path.name) for each in report.damaged] == [("note", name)]
    assert report.served == COUNT


def test_a_page_that_the_disk_does_not_give(root: Path) -> None:
    report = verify(store_config(root), files=LosingFiles())
    assert {each.kind for each in report.damaged} == {"log"}
    assert report.is_named(3 * mmap.PAGESIZE)
    assert "cannot be read" in report.damaged[0].what
    assert "Errno" not in report.damaged[0].what
    assert COUNT - 4 <= report.served < COUNT


class FailingReads(ReadOnlyFiles):
    """A disk that does not give the files of queues."""

    def read(self, fd: int, size: int, position: int) -> bytes:
        if "consumequeue" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(5, "Input/output error")
        return super().read(fd, size, position)


def test_a_queue_that_the_disk_does_not_give(root: Path) -> None:
    report = verify(store_config(root), files=FailingReads())
    assert {each.kind for each in report.damaged} == {"queue"}
    assert any(each.what == "it cannot be read: Input/output error" for each in report.damaged)
    assert report.served == COUNT


class FailingIndex(ReadOnlyFiles):
    """A disk that does not give the files of the index."""

    def map(self, fd: int, size: int) -> mmap.mmap | PaddedMap:
        if "/index/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(5, "Input/output error")
        return super().map(fd, size)


def test_an_index_that_the_disk_does_not_give(indexed: Path) -> None:
    """Its number was told, and not what it means."""
    damage = only(verify(store_config(indexed), files=FailingIndex()))
    assert (damage.kind, damage.what) == ("index", "it cannot be read: Input/output error")


@pytest.mark.parametrize(
    "call",
    [
        lambda files, path: files.allocate(0, 1),
        lambda files, path: files.resize(0, 1),
        lambda files, path: files.write(0, b"x", 0),
        lambda files, path: files.rename(path, path),
        lambda files, path: files.remove(path),
        lambda files, path: files.remove_tree(path),
        lambda files, path: files.make_folder(path / "new"),
    ],
)
def test_the_files_of_a_verification_refuse_every_change(
    tmp_path: Path, call: Callable[[FileSystem, Path], None]
) -> None:
    with pytest.raises(OSError, match="changes nothing"):
        call(ReadOnlyFiles(), tmp_path)
    assert tmp_path.exists()


def test_progress_is_told_up_to_the_end(root: Path) -> None:
    told: list[tuple[int, int]] = []
    verify(store_config(root), progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] <= told[-1][1]
    assert told[-1][1] % SEGMENT_BYTES == 0


def test_a_padded_map_has_zeros_behind_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    fd = os.open(path, os.O_RDONLY)
    mapped = PaddedMap(fd, 3, 10_000)
    os.close(fd)
    assert bytes(mapped) == b"abc" + bytes(9997)
    mapped.madvise(mmap.MADV_DONTNEED, 0, 10_000)
    with pytest.raises(ValueError, match="10000 bytes from 1"):
        mapped.madvise(mmap.MADV_DONTNEED, 1, 10_000)
    mapped.close()
    mapped.close()
    with pytest.raises(ValueError, match="closed"):
        bytes(mapped)
    with pytest.raises(ValueError, match="11 of 10 bytes"):
        PaddedMap(0, 11, 10)


def test_large_files_are_read_ahead_and_given_back(tmp_path: Path) -> None:
    size = 4 * PIECE_BYTES

    async def run() -> None:
        async with running_store(tmp_path, mapped_file_size_commit_log=size, max_message_size=4 << 20) as store:
            for _ in range(2 * size // (4 << 20)):
                await put(store, bytes(4_000_000))

    asyncio.run(run())
    report = look(tmp_path, mapped_file_size_commit_log=size, max_message_size=4 << 20)
    assert report.is_whole
    assert report.served == 2 * size // (4 << 20)
