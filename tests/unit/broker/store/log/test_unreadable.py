"""Pages that the disk does not give: an error of the reads that need them, in a process that lives on."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from rocketcore._fast import commit_log as kernel
from rocketcore._fast import mapped
from rocketcore._fast.consume_queue import UnitCollector
from rocketcore._fast.mapped import PaddedMap
from rocketcore.broker.store import GetStatus
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.log.unreadable import READS, SECONDS, UnreadablePages
from rocketcore.broker.store.reading import deliveries
from rocketcore.filter_sql import compile_sql
from rocketcore.service import ManualClock
from tests.fixtures.stores import SEGMENT_BYTES, put, read_queue, records, running_store

PAGE = os.sysconf("SC_PAGESIZE")
BODY = bytes(10_000)

HANDLERS = {
    "alone": "",
    "before": "import faulthandler; faulthandler.enable()",
    "after": "import rocketcore._fast.mapped, faulthandler; faulthandler.enable()",
}
"""Whose handler of SIGBUS is there when ours comes."""


def in_subprocess(test: str, folder: Path, handlers: str) -> subprocess.CompletedProcess[str]:
    """Run a function of this module in a process of its own: a bus error would end this one."""
    code = f"{handlers}\nfrom pathlib import Path\nfrom {__name__} import {test}\n{test}(Path({str(folder)!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def serve_around_a_cut_segment(root: Path) -> None:
    async def run() -> None:
        async with running_store(root) as store:
            for number in range(40):
                await put(store, BODY + b"%d" % number)
            assert len(read_queue(store)) == 40
            cut = root / "commitlog" / f"{SEGMENT_BYTES:020d}"
            in_cut = [
                one["queue_offset"]
                for one in read_queue(store)
                if SEGMENT_BYTES <= one["physical_offset"] < 2 * SEGMENT_BYTES
            ]
            os.truncate(cut, 4 * PAGE)
            # One message lies whole before the cut and is served, with those of the segment before.
            first, last = in_cut[1], in_cut[-1]
            found = store.get("T", 0, 0, 32)
            assert (found.count, found.next_begin_offset) == (first, first)
            assert [one["body"] for one in records(found.body)] == [BODY + b"%d" % number for number in range(first)]
            for offset in range(first, last + 1):
                with pytest.raises(OSError, match=rf"the page at byte {4 * PAGE}|the page at byte \d+") as raised:
                    store.get("T", 0, offset, 32)
                assert raised.value.filename == str(cut)
                with pytest.raises(OSError, match=r"cannot be read"):
                    store.get("T", 0, offset, 32, message_filter=compile_sql("TRUE"))
            assert store.stats.read_errors == 2 * (last - first + 1) + 1
            found = store.get("T", 0, last + 1, 32)
            assert found.status is GetStatus.FOUND
            assert records(found.body)[-1]["queue_offset"] == 39
            assert (await put(store, b"goes on")).queue_offset == 40
            os.truncate(cut, SEGMENT_BYTES)

    asyncio.run(run())


@pytest.mark.parametrize("handlers", list(HANDLERS))
def test_other_segments_are_served_when_one_cannot_be_read(tmp_path: Path, handlers: str) -> None:
    done = in_subprocess("serve_around_a_cut_segment", tmp_path, HANDLERS[handlers])
    assert (done.returncode, done.stderr.count("Fatal Python error")) == (0, 0), done.stderr


def fault_outside_of_a_guard(folder: Path) -> None:
    path = folder / "file"
    path.write_bytes(bytes(2 * PAGE))
    files = FileSystem()
    data = files.map(files.open(path), 2 * PAGE)
    os.truncate(path, PAGE)
    with pytest.raises(OSError, match=f"the page at byte {PAGE} cannot be read"):
        mapped.read(data, 0, 2 * PAGE)
    print(data[PAGE])  # type: ignore[index]


@pytest.mark.parametrize("handlers", list(HANDLERS))
def test_other_faults_are_left_to_who_was_there_before(tmp_path: Path, handlers: str) -> None:
    done = in_subprocess("fault_outside_of_a_guard", tmp_path, HANDLERS[handlers])
    assert done.returncode == -7
    assert ("Fatal Python error: Bus error" in done.stderr) is (handlers != "alone")


def walk_and_gather(folder: Path) -> None:
    async def run() -> None:
        async with running_store(folder / "store") as store:
            for number in range(10):
                await put(store, bytes(PAGE // 4) + b"%d" % number)

    asyncio.run(run())
    path = folder / "store" / "commitlog" / f"{0:020d}"
    files = FileSystem()
    data = files.map(files.open(path), SEGMENT_BYTES)
    rows = np.zeros((100, kernel.COLUMNS), np.int64)
    whole, _, status, _ = kernel.walk(data, 0, SEGMENT_BYTES, 0, rows)
    assert (whole, status) == (10, kernel.END_OF_LOG)
    offsets, sizes = rows[:10, kernel.PHYSICAL_OFFSET].tolist(), rows[:10, kernel.SIZE].tolist()
    units = np.array([offsets, sizes, range(10)]).T.copy()
    assert kernel.gather(units, 0, 10, data, 0, 0, 0)[1] == 10
    for pages in (2, 1, 0):
        os.truncate(path, pages * PAGE)
        within = sum(offset + size <= pages * PAGE for offset, size in zip(offsets, sizes, strict=True))
        count, position, status, _ = kernel.walk(data, 0, SEGMENT_BYTES, 0, rows)
        assert (count, position, status) == (within, offsets[within], kernel.UNREADABLE)
        body, row = kernel.gather(units, 0, 10, data, 0, 0, 0)
        assert (row, len(body)) == (within, sum(sizes[:within]))
        body, row = kernel.gather(units, within, 10, data, 0, 0, 0)
        assert (row, body) == (within, b"")


def test_walk_and_gather_stop_before_what_cannot_be_read(tmp_path: Path) -> None:
    done = in_subprocess("walk_and_gather", tmp_path, "")
    assert done.returncode == 0, done.stderr


class HalfReadable(FileSystem):
    """Reads through a map of one file fail from a place on; its bytes can be written and read by ``read``."""

    def __init__(self, scratch: Path, name: str, readable: int) -> None:
        self._scratch = scratch
        self._name = name
        self._readable = readable
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, flags: int = os.O_RDWR) -> int:
        fd = super().open(path, flags)
        self._paths[fd] = path
        return fd

    def map(self, fd: int, size: int) -> mmap.mmap | PaddedMap:
        if self._paths[fd].name != self._name:
            return super().map(fd, size)
        copy = self._scratch / "copy"
        copy.write_bytes(self._paths[fd].read_bytes())
        copied = os.open(copy, os.O_RDWR)
        data = super().map(copied, size)
        os.truncate(copy, self._readable)
        os.close(copied)
        return data


def recover_around_what_cannot_be_read(folder: Path) -> None:
    root = folder / "store"
    cut = f"{SEGMENT_BYTES:020d}"
    readable = 4 * PAGE

    async def run() -> None:
        async with running_store(root) as store:
            for number in range(40):
                await put(store, BODY + b"%d" % number)
            places = {one["queue_offset"]: one["physical_offset"] for one in read_queue(store)}
        (root / "queuebounds").unlink()
        lost = {
            queue_offset
            for queue_offset, place in places.items()
            if SEGMENT_BYTES + readable - len(BODY) - 100 < place < 2 * SEGMENT_BYTES
        }
        assert 5 < len(lost) < 30
        async with running_store(root, files=HalfReadable(folder, cut, readable)) as store:
            assert store.recovery.rebuilt
            assert store.recovery.damaged_bytes > len(lost) * len(BODY)
            got = {one["queue_offset"] for one in read_queue(store)}
            assert got == places.keys() - lost, (sorted(got), sorted(lost))
            assert (await put(store, b"goes on")).queue_offset == 40

    asyncio.run(run())


def test_a_start_goes_on_behind_what_cannot_be_read(tmp_path: Path) -> None:
    done = in_subprocess("recover_around_what_cannot_be_read", tmp_path, "")
    assert done.returncode == 0, done.stderr


def collect_topics(folder: Path) -> None:
    """The topics of rows that were walked lie on a page that is gone by now."""
    path = folder / "file"
    path.write_bytes(b"T" * PAGE + b"U" * PAGE)
    files = FileSystem()
    data = files.map(files.open(path), 2 * PAGE)
    rows = np.zeros((3, kernel.COLUMNS), np.int64)
    rows[:, kernel.TOPIC_LENGTH] = 1
    rows[:, kernel.TOPIC_START] = 0, 1, PAGE
    rows[:, kernel.QUEUE_OFFSET] = 0, 1, 0
    collector = UnitCollector()
    numbers = [collector.follow(b"T", 0, 0), collector.follow(b"U", 0, 0)]
    os.truncate(path, PAGE)
    assert collector.collect(data, rows, 0, 3) == 2
    assert [len(collector.take(number)) for number in numbers] == [40, 0]


def test_units_stop_before_a_topic_that_cannot_be_read(tmp_path: Path) -> None:
    done = in_subprocess("collect_topics", tmp_path, "")
    assert done.returncode == 0, done.stderr


def lose_pages_behind_the_walk(folder: Path) -> None:
    """Pages that a walk has read are gone when what it found is used."""
    root = folder / "store"
    name = f"{SEGMENT_BYTES:020d}"
    whole = HalfReadable(folder, name, SEGMENT_BYTES)

    async def run() -> None:
        async with running_store(root) as store:
            for number in range(40):
                await put(store, BODY + b"%d" % number, properties=b"DELAY\x011\x02", prepared_transaction_offset=7)
            places = {one["queue_offset"]: one["physical_offset"] for one in read_queue(store)}
        (root / "queuebounds").unlink()
        lost = {
            queue_offset
            for queue_offset, place in places.items()
            if SEGMENT_BYTES + 4 * PAGE - len(BODY) - 100 < place < 2 * SEGMENT_BYTES
        }
        assert len(lost) > 5
        with patch.object(kernel, "walk", losing(4 * PAGE)):
            async with running_store(root, files=whole) as store:
                assert {one["queue_offset"] for one in read_queue(store)} == places.keys() - lost
                assert store.recovery.damaged_bytes > len(lost) * len(BODY)
        async with running_store(root, files=whole) as store:
            with patch.object(deliveries, "walk", losing(0)):
                assert store.deliveries(0, by_level=True) == {7}
        assert (folder / "copy").stat().st_size == 0

    def losing(readable: int) -> Callable[..., Any]:
        """The walk, behind whose first look at a segment pages of that go."""
        walk = kernel.walk

        def walk_and_lose(view: memoryview, at: int, end: int, start: int, *more: Any, **named: Any) -> Any:
            found = walk(view, at, end, start, *more, **named)
            if start == SEGMENT_BYTES and at == 0 and (folder / "copy").stat().st_size > readable:
                os.truncate(folder / "copy", readable)
            return found

        return walk_and_lose

    asyncio.run(run())


def test_pages_that_go_while_the_log_is_scanned_end_no_start(tmp_path: Path) -> None:
    done = in_subprocess("lose_pages_behind_the_walk", tmp_path, "")
    assert done.returncode == 0, done.stderr


def give_up_what_stays_unreadable(root: Path) -> None:
    clock = ManualClock()

    async def run() -> None:
        async with running_store(root, clock=clock) as store:
            for number in range(40):
                await put(store, BODY + b"%d" % number)
            places = {one["queue_offset"]: one["physical_offset"] for one in read_queue(store)}
            cut = root / "commitlog" / f"{SEGMENT_BYTES:020d}"
            os.truncate(cut, 4 * PAGE)
            lost = [
                queue_offset
                for queue_offset, place in places.items()
                if SEGMENT_BYTES + 4 * PAGE - len(BODY) - 100 < place < 2 * SEGMENT_BYTES
            ]
            for seconds in (0.0, 20.0, 20.0, 19.0):
                clock.advance(seconds)
                for _ in range(3):
                    with pytest.raises(OSError, match="cannot be read"):
                        store.get("T", 0, lost[0], 32)
            assert store.stats.damaged_records == 0
            # It was not asked for in a while: the disk may have been away in between.
            clock.advance(61)
            with pytest.raises(OSError, match="cannot be read"):
                store.get("T", 0, lost[0], 32)
            passed, offset = [], lost[0]
            for _ in range(10_000):
                try:
                    result = store.get("T", 0, offset, 32)
                except OSError:
                    clock.advance(20)
                    continue
                assert result.next_begin_offset > offset
                passed += [one["queue_offset"] for one in records(result.body)]
                offset = result.next_begin_offset
                if offset == 40:
                    break
            assert passed == list(range(lost[-1] + 1, 40))
            assert store.stats.damaged_records == len(lost)
            result = store.get("T", 0, lost[0], 1)
            assert (result.status, result.count) == (GetStatus.MESSAGE_WAS_REMOVING, 0)
            assert store.stats.damaged_records == len(lost)
            assert store.store_time("T", 0, lost[1]) == -1
            os.truncate(cut, SEGMENT_BYTES)

    asyncio.run(run())


def test_what_stays_unreadable_for_a_minute_is_passed_over(tmp_path: Path) -> None:
    done = in_subprocess("give_up_what_stays_unreadable", tmp_path, "import logging; logging.basicConfig()")
    assert done.returncode == 0, done.stderr
    given_up = [line for line in done.stderr.splitlines() if "message given up" in line]
    assert len(given_up) == len(set(given_up)) > 5
    assert all(f"path={tmp_path / 'commitlog' / f'{SEGMENT_BYTES:020d}'} position=" in line for line in given_up)


def test_what_is_known_of_a_page_goes_with_its_file() -> None:
    def read(position: int, size: int) -> bytes:
        raise OSError(errno.EIO, "the page cannot be read")

    clock = ManualClock()
    log = SimpleNamespace(min_offset=0, find_segment=lambda offset: SimpleNamespace(path="log", start=0))
    pages = UnreadablePages(log, read, clock)  # type: ignore[arg-type]
    for _ in range(READS):
        clock.advance(SECONDS / (READS - 1))
        pages.failed(3 * PAGE, 10)
    assert pages.passed_over == 1
    log.min_offset = 10 * PAGE
    pages.failed(20 * PAGE, 10)
    assert list(pages._pages) == [20]
    assert pages._given_up == set()
    assert pages.passed_over == 1
