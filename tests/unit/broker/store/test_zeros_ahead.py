"""Zeros written ahead of the log: behind the data whatever is put meanwhile, after the answer, small groups only."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.log.segment_file import Segment
from tests.fixtures.stores import message, put, read_queue, running_store, stored


class RecordingFiles(FileSystem):
    """Notes writes of data and of zeros to the log, and syncs, in their order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        kind = "data" if any(bytes(data[:64])) else "zeros"
        self.calls.append((kind, position, len(data)))
        super().write(fd, data, position)

    def sync(self, fd: int) -> None:
        self.calls.append(("sync", 0, 0))
        super().sync(fd)

    def zeros(self) -> list[tuple[int, int]]:
        return [(position, length) for kind, position, length in self.calls if kind == "zeros"]


def test_zeros_follow_the_answer_and_are_used_before_the_next(tmp_path: Path) -> None:
    files = RecordingFiles()

    async def run() -> None:
        async with running_store(tmp_path, files=files, mapped_file_size_commit_log=4 << 20) as store:
            files.calls.clear()
            first = await put(store)
            assert [kind for kind, _, _ in files.calls[:2]] == ["data", "sync"]
            for _ in range(20):
                await put(store)
            assert files.zeros() == [(first.end_offset, 1 << 20)]
        # They are not in the sync that a sender waits for.
        kinds = [kind for kind, _, _ in files.calls]
        assert kinds[kinds.index("zeros") - 1] != "data"

    asyncio.run(run())


def test_large_groups_bring_no_zeros(tmp_path: Path) -> None:
    files = RecordingFiles()

    async def run() -> None:
        async with running_store(tmp_path, files=files, mapped_file_size_commit_log=4 << 20) as store:
            files.calls.clear()
            for _ in range(10):
                for _ in range(4):
                    result = store.put(message(b"x" * 30_000))
                await stored(store, result)
            assert files.zeros() == []

    asyncio.run(run())


def test_zeros_never_cover_what_is_put_meanwhile(tmp_path: Path) -> None:
    bodies = [b"%06d" % number * (1 + number % 700) for number in range(3000)]

    async def run() -> None:
        async with running_store(tmp_path, mapped_file_size_commit_log=4 << 20) as store:
            for number, body in enumerate(bodies):
                result = store.put(message(body))
                if number % 7 == 0:
                    # The next group is put while this one is on its way and the zeros are due.
                    await asyncio.sleep(0)
            await stored(store, result)
            assert [one["body"] for one in read_queue(store)] == bodies

    asyncio.run(run())


def test_room_that_was_only_read_does_not_count_as_written(tmp_path: Path) -> None:
    """Reading all of an allocated file made a start look through the whole of it: a second for each gigabyte."""
    segment = Segment.create(tmp_path, 0, 16 << 20, FileSystem())
    segment.write(b"x" * 5000, 0)
    segment.sync()
    written = segment.written_ranges(0)
    if written[-1][1] == segment.size:
        pytest.skip("a file system that does not tell what was written")
    segment.path.read_bytes()
    assert segment.written_ranges(0) == written
    assert segment.data_end(0)[0] == 5000
    segment.close()
