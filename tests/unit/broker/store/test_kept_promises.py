"""What is acknowledged is kept: without a thread or memory to be had, and where notes say more than the log."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.store import PutStatus
from rocketcore.broker.store.config import FlushDiskType
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.notes.checkpoint import RunMark
from rocketcore.broker.store.notes.deleted_topics import DeletedTopics
from rocketcore.errors import StoreCorrupted
from tests.fixtures.stores import SEGMENT_BYTES, crash_copy, message, put, read_queue, records, running_store, stored

BODY = bytes(3000)


@pytest.mark.parametrize("mode", list(FlushDiskType))
def test_no_thread_for_the_next_file(tmp_path: Path, mode: FlushDiskType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group that was taken when the thread could not be started was never written, and called stored."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        async with running_store(tmp_path / "live", flush_disk_type=mode) as store:
            monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
            count = 2 * SEGMENT_BYTES // len(BODY)
            for number in range(count):
                result = store.put(message(b"%06d" % number + BODY))
                assert await stored(store, result) is PutStatus.PUT_OK
            monkeypatch.undo()
            crash_copy(tmp_path / "live", tmp_path / "crash")
        async with running_store(tmp_path / "crash") as store:
            assert [int(one["body"][:6]) for one in read_queue(store)] == list(range(count))

    asyncio.run(run())


def test_no_memory_for_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written when there is some again; nothing is lost, and the store does not latch."""

    async def run() -> None:
        async with running_store(tmp_path) as store:
            take, calls = store._log.take, []

            def short() -> Any:
                calls.append(1)
                if len(calls) == 1:
                    raise MemoryError
                return take()

            monkeypatch.setattr(store._log, "take", short)
            assert await stored(store, store.put(message())) is PutStatus.PUT_OK
            assert len(calls) > 1
            assert len(read_queue(store)) == 1

    asyncio.run(run())


def test_a_deletion_noted_ahead_of_the_log(tmp_path: Path) -> None:
    """It concerns what was put when the topic was deleted, of which a crash took a part; what comes there is new."""

    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, topic="Other")
        table = DeletedTopics(tmp_path, FileSystem())
        table.write({"T": 50_000})
        async with running_store(tmp_path) as store:
            for _ in range(5):
                await put(store)
            crash_copy(tmp_path, tmp_path.with_name("crash"))
        async with running_store(tmp_path.with_name("crash")) as store:
            assert len(read_queue(store)) == 5

    asyncio.run(run())


def test_queues_end_where_they_did_when_the_last_file_is_lost(tmp_path: Path) -> None:
    """Offsets that consumers have passed are not given again."""

    async def run() -> None:
        async with running_store(tmp_path) as store:
            while (last := await put(store, BODY)).end_offset < SEGMENT_BYTES + 5 * len(BODY):
                pass
        (tmp_path / "commitlog" / f"{SEGMENT_BYTES:020d}").unlink()
        async with running_store(tmp_path) as store:
            assert store.recovery.damaged
            assert (await put(store, BODY)).queue_offset == last.queue_offset + 1

    asyncio.run(run())


@pytest.mark.parametrize("content", [b"", b"x", b"1 " + b"9" * 5000, b"1 -1", b"1 2 3", b"1 2 4fc2b2a6", bytes(4096)])
def test_a_mark_that_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "abort").write_bytes(content)
    assert RunMark.read(tmp_path / "abort", FileSystem()) == RunMark(None)


def test_a_mark_within_a_record(tmp_path: Path) -> None:
    """It is damaged, and the record is not: without checksums nothing else tells where a run began."""

    async def run() -> None:
        async with running_store(tmp_path, enabled_append_prop_crc=False) as store:
            for _ in range(5):
                result = await put(store, BODY)
        RunMark(result.physical_offset - 1000).write(tmp_path / "abort", FileSystem())
        (tmp_path / "queuebounds").unlink()
        async with running_store(tmp_path) as store:
            assert (store.recovery.damaged, len(read_queue(store))) == ([], 5)

    asyncio.run(run())


def test_a_mark_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "abort").mkdir()
    assert RunMark.read(tmp_path / "abort", FileSystem()) == RunMark(None)


def test_a_tail_with_a_page_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for what to clear behind the log's end ended every start."""
    pread: Callable[[int, int, int], bytes] = os.pread

    def failing(fd: int, length: int, position: int) -> bytes:
        bad = 16 * 4096
        if position <= bad < position + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, length, position)

    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store)
        monkeypatch.setattr(os, "pread", failing)
        async with running_store(tmp_path) as store:
            await put(store)
            assert len(read_queue(store)) == 2

    asyncio.run(run())


def test_damage_at_a_place_where_there_was_damage_before(tmp_path: Path) -> None:
    """Both are put aside: a copy of other bytes is not this one's."""
    log = tmp_path / "commitlog" / f"{0:020d}"

    def overwrite(position: int, data: bytes) -> None:
        with log.open("r+b") as file:
            file.seek(position)
            file.write(data)

    async def run() -> None:
        async with running_store(tmp_path) as store:
            end = (await put(store)).end_offset
        overwrite(end, b"torn")
        async with running_store(tmp_path) as store:
            second = await put(store, b"second")
            assert second.physical_offset == end
            await put(store, b"third")
        raw = bytearray(log.read_bytes()[end : second.end_offset])
        raw[100] ^= 1
        overwrite(end, bytes(raw))
        (tmp_path / "queuebounds").unlink()
        async with running_store(tmp_path) as store:
            assert [one["body"] for one in read_queue(store)] == [b"body", b"third"]
        aside = {path.name: path.read_bytes() for path in (tmp_path / "damaged").iterdir()}
        assert aside == {f"{end:020d}": b"torn", f"{end:020d}.1": bytes(raw)}

    asyncio.run(run())


@pytest.mark.parametrize("segment", [0, 1])
def test_zeros_over_the_first_record_of_a_file(tmp_path: Path, segment: int) -> None:
    """They do not make a record one that never had a checksum: what lies behind, or before, tells."""

    async def run() -> None:
        async with running_store(tmp_path) as store:
            places = []
            while not places or places[-1].physical_offset < segment * SEGMENT_BYTES + 2 * len(BODY):
                places.append(await put(store, BODY, properties=b"K\x01v\x02"))
        hit = next(place for place in places if place.physical_offset >= segment * SEGMENT_BYTES)
        with (tmp_path / "commitlog" / f"{segment * SEGMENT_BYTES:020d}").open("r+b") as file:
            file.seek(hit.end_offset - segment * SEGMENT_BYTES - 24)
            file.write(bytes(30))  # and the head of the next one
        async with running_store(tmp_path) as store:
            got = []
            for place in places:
                with contextlib.suppress(StoreCorrupted):  # where the next one lay
                    got += records(store.get("T", 0, place.queue_offset, 1).body)
            offsets = {one["queue_offset"] for one in got}
            assert hit.queue_offset not in offsets
            assert len(offsets) >= len(places) - 2

    asyncio.run(run())
