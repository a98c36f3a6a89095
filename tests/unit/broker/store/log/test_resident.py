"""Which pages of the log's maps stay resident: those read last, none at rest, and none behind the reader's back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocketcore.broker.store import FlushDiskType
from rocketcore.broker.store.log import resident
from rocketcore.broker.store.log.resident import PART_BYTES, PARTS, PARTS_AT_REST, Resident
from tests.fixtures.stores import put, running_store
from tests.unit.broker.store.test_windows import Puller

HALF = PART_BYTES // 2


class Log:
    """Segments of five parts and a half, the first of which was deleted; knows of halves of parts what is mapped."""

    size = 11 * HALF
    min_offset = size
    file_end = 20 * size

    def __init__(self) -> None:
        self.mapped: set[int] = set()
        self.resident = Resident(self)

    def find_segment(self, offset: int) -> Any:
        start = offset - offset % self.size
        if not self.min_offset <= start < self.file_end:
            return None

        def forget(begin: int, end: int) -> None:
            assert 0 <= begin < end <= self.size
            self.mapped -= set(range((start + begin) // HALF, (start + end) // HALF))

        return SimpleNamespace(start=start, end=start + self.size, forget_pages=forget)

    def read(self, *parts: int) -> None:
        for part in parts:
            self.mapped |= {2 * part, 2 * part + 1}
            self.resident.was_read(part * PART_BYTES, (part + 1) * PART_BYTES)

    def parts(self) -> set[int]:
        return {half // 2 for half in self.mapped}


def test_the_parts_that_were_read_last_are_kept() -> None:
    log = Log()
    log.read(*range(6, 6 + PARTS))
    assert log.parts() == set(range(6, 6 + PARTS))
    log.read(6, 6 + PARTS)
    assert log.parts() == {6, *range(8, 7 + PARTS)}


def test_at_rest_all_is_given_back_some_at_a_time() -> None:
    log = Log()
    log.read(30)
    log.resident.age()
    log.read(30)
    log.resident.age()
    assert log.parts() == {30}
    log.read(*range(6, 16))
    log.resident.age()
    assert log.parts() == set(range(6, 16))
    log.resident.age()
    assert log.parts() == set(range(6 + PARTS_AT_REST, 16))
    log.resident.age()
    assert not log.mapped


def test_what_was_read_without_a_word_is_forgotten() -> None:
    log = Log()
    log.mapped = set(range(11, 220))
    log.read(20, 40, 41)
    log.resident.age()
    assert log.parts() == {20, 40, 41}


def test_what_a_damaged_unit_says_is_cut_to_the_log() -> None:
    log = Log()
    log.read(20)
    log.resident.was_read(log.file_end - 1, 1 << 62)
    log.resident.was_read(-(1 << 62), log.min_offset + 1)
    log.resident.was_read(1 << 62, 1)
    assert log.parts() == {20}


def mapped_bytes(folder: Path) -> int:
    """What this process has resident of files in a folder."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.partition(" ")[0]:
            ours = str(folder) in line
        elif ours and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


def test_pulls_do_not_fill_the_memory_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size, body = 64 << 10, b"b" * 30_000
    monkeypatch.setattr(resident, "PART_BYTES", size)
    monkeypatch.setattr(resident, "PARTS", 4)

    async def run() -> None:
        options: dict[str, Any] = {"flush_disk_type": FlushDiskType.ASYNC_FLUSH, "mapped_file_size_commit_log": 8 << 20}
        async with running_store(tmp_path, **options) as store:
            for _ in range(30):
                await put(store, body)
            puller = Puller(store, 0, 1, "")
            for offset in range(30):
                store.get("T", 0, offset, 1)
                assert offset % 7 or mapped_bytes(tmp_path) <= 6 * size
            for offset in range(30):
                puller.check(offset)
                store.reads.look()
                assert offset % 7 or mapped_bytes(tmp_path) <= 6 * size
            assert puller.answered == 30
            assert mapped_bytes(tmp_path) > 0
            for _ in range(3):
                store.reads.look()
            assert mapped_bytes(tmp_path) == 0

    asyncio.run(run())
