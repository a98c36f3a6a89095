"""Retention on disks that fail or are full, and what a crash in the middle of it leaves."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from pathlib import Path

import pytest

from rocketcore.broker.store import GetStatus, PutStatus
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.notes.queue_bounds import QueueBounds
from tests.fixtures.retention import BODY_BYTES, PER_SEGMENT, Disk, life, numbers
from tests.fixtures.stores import (
    SEGMENT_BYTES,
    UNITS_PER_FILE,
    crash_copy,
    message,
    put,
    read_queue,
    running_store,
    stored,
)


def test_a_crash_at_any_call_loses_nothing_that_was_to_stay(tmp_path: Path) -> None:
    """A copy of the folder before every call that changes a file, while files go, each then started."""
    copies: list[Path] = []
    root = tmp_path / "store"
    one_at_a_time = threading.Lock()  # the next file of the log is made by a thread of its own

    def copy(name: str) -> None:
        with one_at_a_time:
            copies.append(crash_copy(root, tmp_path / f"{len(copies):03d} {name}"))

    async def run() -> tuple[int, int]:
        async with life(root, flush_consume_queue_thorough_interval=10_000_000) as one:
            await one.fill(3, queue_id=1)
            await one.fill(3)
            one.age(0, 1, 2, 3)
            one.disk.before_call = copy
            await one.look()
            first = one.store.min_offset("T", 0)
            await one.save()
            await one.look()
            one.disk.before_call = None
            copy("end")
            return first, one.store.max_offset("T", 0)

    async def check(folder: Path, first: int, end: int) -> None:
        async with running_store(folder) as store:
            assert store.recovery.damaged == [], folder
            assert store.recovery.torn == [], folder
            found = [each["queue_offset"] for each in read_queue(store)]
            assert found == list(range(store.min_offset("T", 0), end)), folder
            assert found[0] <= first, folder
            begin = store.min_physical_offset
            assert all(each["physical_offset"] >= begin for each in read_queue(store)), folder
            other = [each["queue_offset"] for each in read_queue(store, queue_id=1)]
            assert other == list(range(store.min_offset("T", 1), store.max_offset("T", 1))), folder
            assert (await put(store)).queue_offset == end
            assert (await put(store, queue_id=1)).queue_offset == len(range(store.max_offset("T", 1) - 1)), folder

    first, end = asyncio.run(run())
    assert len(copies) > 12
    assert sum("remove commitlog" in each.name for each in copies) == 4
    for folder in copies:
        asyncio.run(check(folder, first, end))


def test_queues_are_built_again_from_what_is_left(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path / "store") as one:
            await one.fill(3)
            one.age(0, 1)
            await one.look()
            kept = numbers(one.store)
            crash_copy(tmp_path / "store", tmp_path / "copy")
        (tmp_path / "copy" / "queuebounds").unlink()
        async with running_store(tmp_path / "copy") as store:
            assert store.recovery.rebuilt
            assert store.recovery.damaged == []
            assert numbers(store) == kept

    asyncio.run(run())


def test_files_of_queues_that_a_crash_left_go_after_the_next_start(tmp_path: Path) -> None:
    def count(root: Path) -> int:
        return len(list((root / "consumequeue" / "T" / "0").iterdir()))

    async def run() -> None:
        async with life(tmp_path / "store") as one:
            await one.fill(6)
            one.age(0, 1, 2, 3)
            await one.save()
            await one.look()
            crash_copy(tmp_path / "store", tmp_path / "copy")
            before = count(tmp_path / "copy")
            await one.save()
            await one.look()
            after = count(tmp_path / "store")
        assert after < before
        async with life(tmp_path / "copy") as one:
            assert one.files()[0] == 4
            await put(one.store, b"%06d" % 0, topic="Other")
            await one.save()
            await one.look()
            assert count(tmp_path / "copy") == after

    asyncio.run(run())


@pytest.mark.parametrize("note", ["whole", "flipped", "missing", "unreadable"])
def test_a_queue_whose_messages_all_went_goes_on_where_it_ended(tmp_path: Path, note: str) -> None:
    """Also where the note is lost that says so, and lost once more: consumers are there already."""
    path = tmp_path / "queuebounds"

    class Unreadable(Disk):
        def read_file(self, of: Path) -> bytes:
            if of == path:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().read_file(of)

    def damage() -> Disk:
        if note == "missing":
            path.unlink()
        elif note == "flipped":
            data = bytearray(path.read_bytes())
            data[30] ^= 1
            path.write_bytes(data)
        return Unreadable() if note == "unreadable" else Disk()

    async def run() -> None:
        async with life(tmp_path) as one:
            for number in range(UNITS_PER_FILE + 10):
                await put(one.store, b"%06d" % number, topic="Quiet", queue_id=3)
            await one.fill(3)
            one.age(0, 1)
            await one.look()
            await one.save()
        for added in range(3):
            end = UNITS_PER_FILE + 10 + added
            async with life(tmp_path, damage()) as one:
                assert one.store.recovery.rebuilt is (note != "whole")
                assert (one.store.min_offset("Quiet", 3), one.store.max_offset("Quiet", 3)) == (end - added, end)
                assert (await put(one.store, b"%06d" % end, topic="Quiet", queue_id=3)).queue_offset == end
                found = one.store.get("Quiet", 3, end, 32)
                assert (found.status, found.count) == (GetStatus.FOUND, 1)

    asyncio.run(run())


def test_a_topic_made_anew_does_not_go_on_where_the_deleted_one_ended(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path / "store") as one:
            for _ in range(9):
                await put(one.store, topic="Twice")
            await one.fill(3)
            await one.save()
            crash_copy(tmp_path / "store" / "consumequeue" / "Twice", tmp_path / "Twice")
            await one.store.delete_topic("Twice")
            one.age(0, 1)
            await one.look()
            await one.save()
        # As a crash leaves it between the note of the deletion and that of the folder.
        (tmp_path / "Twice").rename(tmp_path / "store" / "consumequeue" / "Twice")
        (tmp_path / "store" / "queuebounds").unlink()
        async with life(tmp_path / "store") as one:
            assert (await put(one.store, topic="Twice")).queue_offset == 0

    asyncio.run(run())


@pytest.mark.parametrize("stopped", [True, False])
def test_units_of_what_is_gone_are_passed_over_where_the_begin_could_not_be_looked_for(
    tmp_path: Path, stopped: bool
) -> None:
    class NoDescriptors(Disk):
        fails = False

        def open(self, path: Path, flags: int = 2) -> int:
            if self.fails and path.is_relative_to(tmp_path / "consumequeue"):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().open(path, flags)

    async def run() -> None:
        async with life(tmp_path, disk := NoDescriptors()) as one:
            await one.fill(4)
            await one.save()
            one.age(0, 1)
            disk.fails = True
            await one.look()
            disk.fails = False
            assert one.store.min_physical_offset == 2 * SEGMENT_BYTES
            assert one.store.min_offset("T", 0) == 0
            found = one.store.get("T", 0, 0, 32)
            assert (found.status, found.next_begin_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 32)
            assert numbers(one.store) == list(range(2 * PER_SEGMENT, one.number))
            await one.save()
            if stopped:
                return
            await one.look()
            assert one.store.min_offset("T", 0) == 2 * PER_SEGMENT
            await one.fill(1)
            one.age(2)
            await one.look()
            assert one.store.min_offset("T", 0) == 3 * PER_SEGMENT
            assert (one.store.stats.repaired_queues, one.store.stats.damaged_records) == (0, 0)

    async def start_again() -> None:
        async with life(tmp_path) as one:
            assert one.store.min_offset("T", 0) == (2 if stopped else 3) * PER_SEGMENT
            assert numbers(one.store)[0] == one.store.min_offset("T", 0)
            assert (one.store.stats.repaired_queues, one.store.stats.damaged_records) == (0, 0)

    asyncio.run(run())
    asyncio.run(start_again())


@pytest.mark.parametrize("deletes_more", [True, False])
def test_a_crash_while_a_begin_could_not_be_looked_for(tmp_path: Path, deletes_more: bool) -> None:
    """The next start knows that units may lead to what was deleted, and calls none of them damaged."""
    root = tmp_path / "store"

    class NoDescriptors(Disk):
        fails = False

        def open(self, path: Path, flags: int = 2) -> int:
            if self.fails and path.is_relative_to(root / "consumequeue"):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().open(path, flags)

    async def run() -> None:
        async with life(root, disk := NoDescriptors()) as one:
            await one.fill(4)
            await one.save()
            one.age(*([0] if deletes_more else [0, 1]))
            disk.fails = True
            await one.look()
            disk.fails = False
            await one.save()
            if deletes_more:
                one.age(1)
                disk.fails = True
                await one.look()
                disk.fails = False
                await one.save()
            assert one.store.min_physical_offset == 2 * SEGMENT_BYTES
            assert one.store.min_offset("T", 0) == 0
            crash_copy(root, tmp_path / "crashed")

    async def start_again() -> None:
        async with life(tmp_path / "crashed") as one:
            assert one.store.recovery.damaged == []
            assert not one.store.recovery.rebuilt
            assert one.store.min_offset("T", 0) == 2 * PER_SEGMENT
            assert numbers(one.store)[0] == 2 * PER_SEGMENT
            assert (one.store.stats.repaired_queues, one.store.stats.damaged_records) == (0, 0)
            await one.save()
            bounds = QueueBounds.read(tmp_path / "crashed" / "queuebounds", FileSystem())
            assert bounds is not None
            assert bounds.begin_offset == 2 * SEGMENT_BYTES

    asyncio.run(run())
    asyncio.run(start_again())


def test_a_file_that_cannot_be_removed_is_tried_again_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(3)
            one.age(0, 1)
            one.disk.fail(0, errno.EBUSY, only="remove commitlog")
            await one.look()
            assert one.files()[:3] == [0, 1, 2]
            assert one.store.min_physical_offset == 2 * SEGMENT_BYTES, "they do not count as there"
            await one.look()
            assert one.files()[0] == 0
            one.clock.advance(121)
            await one.look()
            assert one.files()[0] == 2
            assert one.store.stats.deleted_bytes == 2 * SEGMENT_BYTES

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "old file not deleted" in caplog.text


def test_a_start_does_not_fail_for_an_old_file_that_cannot_be_removed(tmp_path: Path) -> None:
    disk = Disk()

    async def run() -> None:
        async with life(tmp_path, disk) as one:
            await one.fill(3)
            one.age(0)
            disk.fail(0, errno.EPERM, only="remove commitlog")
            await one.look()
            kept = numbers(one.store)
        disk.fail(0, errno.EPERM, only="remove commitlog")
        async with life(tmp_path, disk) as one:
            assert one.files()[0] == 0
            assert one.store.min_physical_offset == SEGMENT_BYTES
            assert numbers(one.store) == kept

    asyncio.run(run())


def test_no_file_goes_behind_one_that_cannot_be_removed(tmp_path: Path) -> None:
    """The disk would be as full as before, and their messages gone."""

    async def run() -> None:
        async with life(tmp_path, delete_file_batch_max=1) as one:
            await one.fill(4)
            one.disk.percent = 99.0
            one.disk.fail(0, errno.EBUSY, only="remove commitlog")
            for _ in range(5):
                await one.look()
                assert one.store.min_physical_offset == SEGMENT_BYTES
            one.clock.advance(121)
            one.disk.percent = 10.0
            await one.look()
            assert one.files()[0] == 1
            assert one.store.min_physical_offset == SEGMENT_BYTES

    asyncio.run(run())


def test_a_file_that_could_not_be_removed_goes_at_the_next_start(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(3)
            one.age(0, 1)
            one.disk.fail(0, errno.EBUSY, only="remove commitlog")
            await one.look()
            kept = numbers(one.store)
        async with life(tmp_path) as one:
            assert one.files()[0] == 2
            assert one.store.recovery.damaged == []
            assert not one.store.recovery.rebuilt
            assert numbers(one.store) == kept

    asyncio.run(run())


@pytest.mark.parametrize(
    ("call", "error", "read_only"),
    [("write", errno.ENOSPC, False), ("write", errno.EIO, True), ("sync", errno.EIO, True)],
)
def test_nothing_goes_whose_end_cannot_be_noted(tmp_path: Path, call: str, error: int, read_only: bool) -> None:
    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(2)
            await one.save()
            one.age(0)
            one.disk.fail(0, error, only=call)
            await one.look()
            assert one.files()[0] == 0
            assert (one.store.read_only_reason is not None) == read_only
            if not read_only:
                await one.look()
                assert one.files()[0] == 1

    asyncio.run(run())


def test_a_full_disk_heals_by_itself(tmp_path: Path) -> None:
    """No room for the next file of the log: sends are refused until old files have gone."""

    class Small(Disk):
        """Room for four files of the log."""

        def allocate(self, fd: int, size: int) -> None:
            if size == SEGMENT_BYTES and len(list((tmp_path / "commitlog").glob("[0-9]" * 20))) >= 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().allocate(fd, size)

        def used_percent(self, path: Path) -> float:
            return 22.0 * len(list((tmp_path / "commitlog").glob("[0-9]" * 20)))

    async def run() -> None:
        async with life(tmp_path, Small(), disk_space_warning_level_ratio=100) as one:
            refused = 0
            for number in range(12 * PER_SEGMENT):
                result = one.store.put(message(b"%06d" % number + bytes(BODY_BYTES)))
                while result.status is not PutStatus.PUT_OK:
                    assert "disk full" in one.store.refusal
                    refused += 1
                    await one.look()
                    one.clock.advance(1)
                    result = one.store.put(message(b"%06d" % number + bytes(BODY_BYTES)))
                assert await stored(one.store, result) is PutStatus.PUT_OK
            assert refused
            kept = numbers(one.store)
            assert kept == list(range(kept[0], 12 * PER_SEGMENT))

    asyncio.run(run())


@pytest.mark.parametrize("crashed", [False, True])
def test_a_store_starts_on_a_full_disk_and_heals(tmp_path: Path, crashed: bool) -> None:
    class Full(Disk):
        """No byte goes where none was."""

        def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
            if self.percent > 99 and os.fstat(fd).st_blocks * 512 < position + len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(fd, data, position)

        def allocate(self, fd: int, size: int) -> None:
            if self.percent > 99:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().allocate(fd, size)

    async def run() -> None:
        root = tmp_path / "store"
        async with life(root) as one:
            await one.fill(4)
            await one.save()
            last = one.number - 1
            if crashed:
                crash_copy(root, tmp_path / "copy")
        disk = Full()
        disk.percent = 100
        async with life(tmp_path / "copy" if crashed else root, disk) as one:
            await one.look()
            assert one.files()[0] == 4
            assert numbers(one.store)[-1] == last
            disk.percent = 40
            await one.look()
            await put(one.store)

    asyncio.run(run())


def test_a_start_that_has_no_room_for_its_mark_names_it(tmp_path: Path) -> None:
    class Full(Disk):
        def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def run() -> None:
        async with life(tmp_path):
            pass
        (tmp_path / "abort.off").unlink()
        with pytest.raises(OSError, match=str(tmp_path / "abort")):
            async with life(tmp_path, Full()):
                pass

    asyncio.run(run())


@pytest.mark.parametrize("end", ["kill", "power cut"])
def test_no_file_goes_before_it_is_noted_where_its_queues_end(tmp_path: Path, end: str) -> None:
    """A fast broker on a full disk turns its log over between two notes: the log does not tell their ends any more."""

    async def run() -> None:
        async with life(tmp_path / "store", flush_consume_queue_thorough_interval=10_000_000) as one:
            for number in range(3):
                await put(one.store, b"%06d" % number, topic="B")
            await one.save()
            if end == "power cut":
                crash_copy(tmp_path / "store" / "consumequeue", tmp_path / "queues")
            for number in range(3, 7):
                await put(one.store, b"%06d" % number, topic="B")
            await one.fill(2)
            one.disk.percent = 86
            await one.look()
            assert one.files()[0] == 2
            assert one.store.max_offset("B", 0) == 7
            crash_copy(tmp_path / "store", tmp_path / "copy")
        async with life(tmp_path / "copy") as one:
            assert one.store.max_offset("B", 0) == 7
            assert (await put(one.store, topic="B")).queue_offset == 7

    asyncio.run(run())


def test_files_of_queues_stay_until_their_begin_is_noted_whoever_cut_the_log_meanwhile(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(6)
            await one.save()
            one.age(0)
            await one.look()
            await one.save()
            one.age(1, 2)
            begin = one.store._log_begin
            await asyncio.gather(one.store._cleaner._retire(any_age=False), begin.remove_old_units())
            assert one.store._queue_saver.notes.noted_begin < one.store.min_physical_offset
            crash_copy(tmp_path, tmp_path / "copy")
        async with running_store(tmp_path / "copy") as store:
            assert not store.recovery.rebuilt

    asyncio.run(run())


@pytest.mark.parametrize("name", ["checkpoint", "queuebounds", "consumequeue/Q/0/00000000000000000000"])
def test_a_start_that_lacks_a_descriptor_removes_and_rebuilds_nothing(tmp_path: Path, name: str) -> None:
    class Lacking(Disk):
        def open(self, path: Path, flags: int = 2) -> int:
            if path == tmp_path / name:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().open(path, flags)

    async def run() -> None:
        async with life(tmp_path) as one:
            for number in range(7):
                await put(one.store, b"%06d" % number, topic="Q")
            await one.fill(2)
            one.age(0)
            await one.look()
        if name.startswith("consumequeue"):
            (tmp_path / "queuebounds").unlink()
        with pytest.raises(OSError, match="Too many open files"):
            async with life(tmp_path, Lacking()):
                pass
        async with life(tmp_path) as one:
            assert one.store.recovery.damaged == []
            assert one.store.max_offset("Q", 0) == 7

    asyncio.run(run())
