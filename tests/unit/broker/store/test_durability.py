"""What is said to be durable: a group whose disk took too long, a topic's deletion."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.store import FlushDiskType, MessageStore, PutStatus
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.notes import deleted_topics
from rocketcore.broker.store.notes.checkpoint import Checkpoint
from rocketcore.broker.store.notes.queue_bounds import QueueBounds
from rocketcore.errors import StoreError
from rocketcore.service import ManualClock
from tests.fixtures.retention import life
from tests.fixtures.stores import (
    SEGMENT_BYTES,
    FailingFiles,
    crash_copy,
    message,
    put,
    read_queue,
    running_store,
    stored,
)


class SlowFiles(FailingFiles):
    """An fdatasync takes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def sync(self, fd: int) -> None:
        assert self.go.wait(30)
        super().sync(fd)


async def put_slowly(store: MessageStore, files: SlowFiles, clock: ManualClock) -> int:
    """Put a message whose group the disk does not answer for in time; returns its end."""
    files.go.clear()
    result = store.put(message(b"slow"))
    answer = asyncio.ensure_future(stored(store, result))
    await asyncio.sleep(0)
    clock.advance(61)
    assert await answer is PutStatus.FLUSH_DISK_TIMEOUT
    return result.end_offset


async def outcome(store: MessageStore, end_offset: int) -> PutStatus:
    """Wait again and again until it is known what became of a message."""
    status = PutStatus.FLUSH_DISK_TIMEOUT
    while status is PutStatus.FLUSH_DISK_TIMEOUT:
        answer: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        store.wait(end_offset, answer.set_result)
        status = await answer
    return status


@pytest.mark.parametrize(("fails", "status"), [(False, PutStatus.PUT_OK), (True, PutStatus.SERVICE_NOT_AVAILABLE)])
def test_what_becomes_of_what_timed_out_is_told(tmp_path: Path, fails: bool, status: PutStatus) -> None:
    files = SlowFiles()
    clock = ManualClock()

    async def run() -> None:
        alone: dict[str, Any] = {"flush_consume_queue_thorough_interval": 10_000_000}
        async with running_store(tmp_path, files=files, clock=clock, **alone) as store:
            await put(store)
            end_offset = await put_slowly(store, files, clock)
            assert store.durable_offset < end_offset
            if fails:
                files.fail(0, errno.EIO, only="sync")
            files.go.set()
            async with asyncio.timeout(10):
                assert await outcome(store, end_offset) is status
                assert await outcome(store, end_offset) is status
            assert (store.durable_offset >= end_offset) != fails
            assert fails == ("commitlog" in (store.read_only_reason or ""))

    asyncio.run(run())


def test_a_deletion_is_durable_when_it_is_answered(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path / "live") as store:
            await put(store, b"old")
            await put(store, b"other", topic="U")
            await store.delete_topic("T")
            crash_copy(tmp_path / "live", tmp_path / "crash")
        async with running_store(tmp_path / "crash") as store:
            assert list(store.queues()) == [("U", 0)]
            assert [one["body"] for one in read_queue(store, "U")] == [b"other"]
            assert (await put(store, b"new")).queue_offset == 0

    asyncio.run(run())


def test_folders_of_deleted_topics_that_a_crash_left_go_at_the_start(tmp_path: Path) -> None:
    """Those of a new topic of the name are its own."""
    live, crash = tmp_path / "live", tmp_path / "crash"
    folder = crash / "consumequeue"

    async def run() -> None:
        async with running_store(live) as store:
            for queue_id in range(2):
                await put(store, b"old", queue_id=queue_id)
                await put(store, b"old", queue_id=queue_id, topic="again")
            await put(store, b"other", topic="U")
            await store._queue_saver.save_now()
            crash_copy(live / "consumequeue", tmp_path / "before")
            for topic in ("T", "again"):
                await store.delete_topic(topic)
            await put(store, b"new", queue_id=1, topic="again")
            await store._queue_saver.save_now()
            crash_copy(live, crash)
        shutil.copytree(tmp_path / "before" / "T", folder / "T")
        shutil.copytree(tmp_path / "before" / "again" / "0", folder / "again" / "0")
        async with running_store(crash) as store:
            assert not store.recovery.rebuilt
            assert sorted(path.name for path in folder.iterdir()) == ["U", "again"]
            assert [path.name for path in (folder / "again").iterdir()] == ["1"]
            assert [one["body"] for one in read_queue(store, "again", 1)] == [b"new"]

    asyncio.run(run())


@pytest.mark.parametrize("lost", ["queuebounds", "deletedtopics"])
@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_a_deletion_outlives_the_loss_of_either_note(tmp_path: Path, lost: str, how: str) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, b"old")
            await put(store, b"other", topic="U")
            await store.delete_topic("T")
        path = tmp_path / lost
        if how == "removed":
            path.unlink()
        else:
            path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
        for _ in range(2):
            async with running_store(tmp_path) as store:
                assert list(store.queues()) == [("U", 0)]
                assert [one["body"] for one in read_queue(store, "U")] == [b"other"]

    asyncio.run(run())


def test_a_start_does_not_take_an_unreadable_table_of_deletions_for_an_empty_one(tmp_path: Path) -> None:
    """The other note of what was deleted is lost, and this one is there, but the disk does not give it now."""

    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, b"old")
            await store.delete_topic("T")
        (tmp_path / "queuebounds").unlink()
        table, aside = tmp_path / "deletedtopics", tmp_path / "aside"
        table.rename(aside)
        table.mkdir()
        with pytest.raises(OSError, match="deletedtopics"):
            async with running_store(tmp_path):
                pass
        table.rmdir()
        aside.rename(table)
        async with running_store(tmp_path) as store:
            assert not list(store.queues())

    asyncio.run(run())


def test_a_deletion_that_a_later_note_overtakes_stays(tmp_path: Path) -> None:
    """A save in flight, prepared before the deletion, must not write its note behind that of the deletion."""

    async def run() -> None:
        files = SlowFiles()
        settings: dict[str, Any] = {"flush_interval_consume_queue": 1, "flush_consume_queue_thorough_interval": 1}
        async with running_store(tmp_path / "live", files=files, **settings) as store:
            for number in range(20):
                topic = f"T{number}"
                await put(store, topic=topic)
                await store.delete_topic(topic)
                # No save is under way while the files are copied.
                async with store._queue_saver.lock:
                    crash_copy(tmp_path / "live", tmp_path / str(number))
        for number in range(20):
            async with running_store(tmp_path / str(number)) as store:
                assert list(store.queues()) == []

    asyncio.run(run())


def test_a_deletion_that_cannot_be_noted_says_so_and_is_tried_again(tmp_path: Path) -> None:
    files = FailingFiles()

    async def run() -> None:
        async with running_store(tmp_path / "live", files=files, flush_disk_type=FlushDiskType.ASYNC_FLUSH) as store:
            await put(store)
            files.fail(0, errno.ENOSPC, only="write", forever=True)
            for _ in range(2):
                with pytest.raises(StoreError, match=r"the deletion of topic T is not durable: .*No space left"):
                    await store.delete_topic("T")
            files.heal()
            await store.delete_topic("T")
            crash_copy(tmp_path / "live", tmp_path / "crash")
        async with running_store(tmp_path / "crash") as store:
            assert list(store.queues()) == []

    asyncio.run(run())


def test_deletions_are_noted_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of topics that hold nothing, too, while something waits. What is over the bound stays as it is."""
    monkeypatch.setattr(deleted_topics, "_MOST_NAMES", 2)

    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, b"waits", topic="Waiting")
            await store.delete_topic("None")
            assert not store.is_deleted("None", 0)
            store.keep_from(lambda: 0)
            for name in ("A", "B"):
                await store.delete_topic(name)
                assert store.is_deleted(name, 0)
            for name in ("C", "Waiting"):
                with pytest.raises(StoreError, match=f"topic {name} is not deleted: 2 deleted topics are remembered"):
                    await store.delete_topic(name)
            assert [one["body"] for one in read_queue(store, "Waiting")] == [b"waits"]
            await put(store, b"new", topic="A")
            await store.delete_topic("A")
            assert read_queue(store, "A") == []
            monkeypatch.undo()
            await store.delete_topic("Waiting")
            assert store.is_deleted("Waiting", 0)

    asyncio.run(run())


def test_a_topic_made_again_while_its_deletion_is_noted_keeps_its_messages(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, b"old", queue_id=3)
            await put(store, b"old")
            deleted = store.delete_topic("T")
            await put(store, b"new")
            await deleted
            await store.delete_topic("unknown")
            await put(store, b"newer")
        async with running_store(tmp_path) as store:
            assert not store.recovery.rebuilt
            assert [one["body"] for one in read_queue(store)] == [b"new", b"newer"]

    asyncio.run(run())


class ReportsOnce(FailingFiles):
    """The log's pages are lost behind the store's back; the system says so to the first who syncs, and then never.

    Any other thread than the flush thread asks only after that one was told, which is the worst that can happen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lost_from = -1
        self.syncing: set[str] = set()
        self._log: set[int] = set()
        self._reported = threading.Event()

    def open(self, path: Path, flags: int = os.O_RDWR) -> int:
        fd = super().open(path, flags)
        (self._log.add if path.parent.name == "commitlog" and not path.suffix else self._log.discard)(fd)
        return fd

    def sync(self, fd: int) -> None:
        if fd not in self._log:
            super().sync(fd)
            return
        thread = threading.current_thread().name
        self.syncing.add(thread)
        if self.lost_from < 0:
            super().sync(fd)
        elif thread != "rocket-store-flush":
            assert self._reported.wait(10)
        elif not self._reported.is_set():
            self._reported.set()
            raise OSError(errno.EIO, "lost in writeback")


def test_a_lost_write_that_is_reported_once_is_never_noted_as_durable(tmp_path: Path) -> None:
    files = ReportsOnce()
    settings: dict[str, Any] = {"flush_interval_consume_queue": 1, "flush_consume_queue_thorough_interval": 1}

    async def run() -> None:
        async with running_store(
            tmp_path,
            files=files,
            flush_disk_type=FlushDiskType.ASYNC_FLUSH,
            flush_interval_commit_log=5,
            **settings,
        ) as store:
            await put(store, b"safe")
            files.lost_from = store.max_physical_offset
            await put(store, b"lost")
            async with asyncio.timeout(10):
                while store.read_only_reason is None:  # noqa: ASYNC110  # a state of the store, without an event
                    await asyncio.sleep(0.002)
        bounds = QueueBounds.read(tmp_path / "queuebounds", FileSystem())
        assert bounds is None or bounds.confirm_offset <= files.lost_from
        assert Checkpoint.read(tmp_path / "checkpoint", FileSystem()).confirm_physical_offset <= files.lost_from
        assert files.syncing == {"rocket-store-flush"}

    asyncio.run(run())


@pytest.mark.parametrize("mode", list(FlushDiskType))
def test_one_thread_alone_syncs_the_log(tmp_path: Path, mode: FlushDiskType) -> None:
    files = ReportsOnce()

    async def run() -> None:
        async with running_store(
            tmp_path,
            files=files,
            flush_disk_type=mode,
            flush_interval_commit_log=2,
            flush_interval_consume_queue=1,
            flush_consume_queue_thorough_interval=1,
        ) as store:
            for _ in range(20):
                await put(store)
                await asyncio.sleep(0.002)

    asyncio.run(run())
    assert files.syncing == {"rocket-store-flush"}
    bounds = QueueBounds.read(tmp_path / "queuebounds", FileSystem())
    assert bounds is not None
    assert bounds.queues == {"T": {0: (0, 20)}}


class NotingFiles(FailingFiles):
    """Notes what was written to the log, and what of that was then synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: set[tuple[str, int]] = set()
        self.folders: list[Path] = []
        self.written: set[tuple[str, int]] = set()
        self.paths: dict[int, Path] = {}

    def open(self, path: Path, flags: int = os.O_RDWR) -> int:
        fd = super().open(path, flags)
        self.paths[fd] = path
        return fd

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        super().write(fd, data, position)
        if self.paths[fd].parent.name == "commitlog":
            self.written |= {(self.paths[fd].name, at) for at in range(position, position + len(data))}

    def sync(self, fd: int) -> None:
        super().sync(fd)
        if self.paths[fd].parent.name == "commitlog":
            self.synced |= {(name, position) for name, position in self.written if name == self.paths[fd].name}

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        self.folders.append(path)


@pytest.mark.parametrize("note", ["old", "lost"])
def test_what_an_unclean_end_left_is_written_and_synced_before_it_is_shown(tmp_path: Path, note: str) -> None:
    """After a failed fsync the page cache shows bytes that are not on disk, as clean: also to the next process."""

    async def run() -> None:
        files = FailingFiles()
        async with running_store(tmp_path, files=files) as store:
            await put(store, topic="U")
            first = await put(store, b"safe")
            await store.delete_topic("U")
            files.fail(0, errno.EIO, only="sync")
            refused = store.put(message(b"refused"))
            assert await stored(store, refused) is PutStatus.SERVICE_NOT_AVAILABLE
        if note == "lost":
            (tmp_path / "queuebounds").unlink()
        noting = NotingFiles()
        async with running_store(tmp_path, files=noting) as store:
            assert tmp_path / "commitlog" in noting.folders
            assert [one["body"] for one in read_queue(store)] == [b"safe", b"refused"]
            wanted = {(f"{0:020d}", position) for position in range(first.end_offset, refused.end_offset)}
            assert wanted <= noting.synced

    asyncio.run(run())


def test_a_group_over_two_files_is_durable_in_the_first_before_the_second_is_written(tmp_path: Path) -> None:
    """Else a power cut leaves a hole between them, with sound messages behind it."""
    holes: list[set[tuple[str, int]]] = []

    class Watching(NotingFiles):
        def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
            if self.paths[fd].parent.name == "commitlog" and any(data):
                holes.append({one for one in self.written if one[0] < self.paths[fd].name} - self.synced)
            super().write(fd, data, position)

    async def run() -> None:
        files = Watching()
        async with running_store(tmp_path, files=files) as store:
            for _ in range(3 * SEGMENT_BYTES // 5000):
                result = store.put(message(bytes([1]) * 5000))
            assert await stored(store, result) is PutStatus.PUT_OK
            assert result.end_offset > 3 * SEGMENT_BYTES

    asyncio.run(run())
    assert len(holes) == 4
    assert not any(holes)


def test_a_clean_start_writes_nothing_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store)
        files = NotingFiles()
        async with running_store(tmp_path, files=files):
            assert not any(name == f"{0:020d}" for name, _ in files.synced)

    asyncio.run(run())


def test_a_deletion_is_forgotten_with_the_part_of_the_log_that_it_concerns(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, b"old", topic="Old")
            await store.delete_topic("Old")
            while (await put(store, bytes(30_000))).end_offset < 2 * SEGMENT_BYTES:
                pass
            await put(store, b"new", topic="New")
            await store.delete_topic("New")
        (tmp_path / "commitlog" / f"{0:020d}").unlink()
        async with running_store(tmp_path) as store:
            await put(store)
        bounds = QueueBounds.read(tmp_path / "queuebounds", FileSystem())
        assert bounds is not None
        assert list(bounds.deleted_before) == ["New"]

    asyncio.run(run())


def test_deletions_at_once_are_each_told_and_leave_no_folder(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            for topic in "AB":
                await put(store, topic=topic)
            saver = store._queue_saver
            async with saver.lock:
                await saver.save_under_lock()
            first = store.delete_topic("A")
            while not saver.lock.locked():  # noqa: ASYNC110  # taken by a task of the store
                await asyncio.sleep(0)
            second = store.delete_topic("B")
            await asyncio.gather(first, second)
            await saver.save_now()
            assert list((tmp_path / "consumequeue").iterdir()) == []

    asyncio.run(run())


def test_a_topic_made_anew_at_once_has_none_of_the_old_queues(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path) as one:
            for _ in range(7):
                await put(one.store, topic="D", queue_id=1)
            await one.save()
            deleted = one.store.delete_topic("D")
            await put(one.store, topic="D", queue_id=0)
            await deleted
            await one.store._queue_saver.save_now()
            assert [path.name for path in (tmp_path / "consumequeue" / "D").iterdir()] == ["0"]
            await one.fill(3)
            one.age(0, 1)
            await one.look()
            await one.save()
        (tmp_path / "queuebounds").unlink()
        async with life(tmp_path) as one:
            assert one.store.max_offset("D", 1) == 0
            assert (await put(one.store, topic="D", queue_id=1)).queue_offset == 0

    asyncio.run(run())
