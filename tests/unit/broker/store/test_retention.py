"""Retention: which files of log and queues go, when, what never does, and what a crash in the middle leaves."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcore.broker.store import FlushDiskType, GetStatus, MessageStore, PutStatus, StoreConfig
from rocketcore.broker.store.cleaner import MANUAL_LOOKS
from rocketcore.broker.store.config import parse_hours
from rocketcore.broker.store.consume_queue import ConsumeQueue, QueueFiles
from rocketcore.broker.store.segment_file import FileSystem
from rocketcore.config_file import BadSetting
from rocketcore.service import ManualClock
from tests.fixtures.stores import (
    SEGMENT_BYTES,
    UNITS_PER_FILE,
    FailingFiles,
    crash_copy,
    message,
    put,
    read_queue,
    running_store,
    stored,
)

HOUR = 3600
ALWAYS = ";".join(f"{hour:02}" for hour in range(24))
BODY_BYTES = 1500
PER_SEGMENT = 80


class Disk(FailingFiles):
    """A disk as full as the test says, whose calls that change files can fail, and be watched."""

    def __init__(self) -> None:
        super().__init__()
        self.percent = 10.0
        self.before_call: Any = None

    def used_percent(self, path: Path) -> float:
        return self.percent

    def remove(self, path: Path) -> None:
        self._call(f"remove {path.parent.name}" if path.parent.name == "commitlog" else "remove")
        super().remove(path)

    def _call(self, name: str) -> None:
        if self.before_call is not None:
            self.before_call(name)
        super()._call(name)


class Life:
    """A store with a clock and a disk that tests turn."""

    def __init__(self, root: Path, store: MessageStore, clock: ManualClock, disk: Disk) -> None:
        self.root = root
        self.store = store
        self.clock = clock
        self.disk = disk
        self.number = 0

    async def fill(self, segments: int, **values: Any) -> None:
        """Put numbered messages until so many more files are full, at times that rise."""
        end = self.store.max_physical_offset // SEGMENT_BYTES + segments
        while self.store.max_physical_offset // SEGMENT_BYTES < end:
            result = self.store.put(message(b"%06d" % self.number + bytes(BODY_BYTES), **values))
            self.number += 1
            assert await stored(self.store, result) is PutStatus.PUT_OK

    def files(self) -> list[int]:
        """Which files of the log there are, by number."""
        return sorted(int(path.name) // SEGMENT_BYTES for path in (self.root / "commitlog").glob("[0-9]" * 20))

    def age(self, *numbers: int, hours: float = 73) -> None:
        """Have files of the log be last written some hours ago."""
        at = self.clock.time_millis() / 1000 - hours * HOUR
        for number in numbers:
            os.utime(self.root / "commitlog" / f"{number * SEGMENT_BYTES:020d}", (at, at))

    async def look(self) -> None:
        await self.store._cleaner.look()

    async def save(self) -> None:
        """Save the queues, durably, and note it."""
        saver = self.store._queue_saver
        async with saver._lock:
            assert await saver._save(thorough=True) is None


@asynccontextmanager
async def life(root: Path, disk: Disk | None = None, **values: Any) -> AsyncIterator[Life]:
    clock = ManualClock(time.time_ns() // 1_000_000)
    disk = disk or Disk()
    options: dict[str, Any] = {"delete_when": ALWAYS, "delete_commit_log_files_interval": 0}
    async with running_store(root, files=disk, clock=clock, **(options | values)) as store:
        yield Life(root, store, clock, disk)


def numbers(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[int]:
    return [int(one["body"][:6]) for one in read_queue(store, topic, queue_id)]


# ---------------------------------------------------------------------- policy


def test_expired_files_go_oldest_first_and_the_last_never(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(3)
            assert one.files()[:4] == [0, 1, 2, 3]
            await one.look()
            assert one.files()[:4] == [0, 1, 2, 3], "nothing is old"
            one.age(0, 2)
            await one.look()
            assert one.files()[:3] == [1, 2, 3], "an old file behind a young one stays"
            assert one.store.min_physical_offset == SEGMENT_BYTES
            assert one.store.deleted_bytes == SEGMENT_BYTES
            first = one.store.min_offset("T", 0)
            assert numbers(one.store) == list(range(first, one.number))
            assert first == read_queue(one.store)[0]["queue_offset"] > 0
            gone = one.store.get("T", 0, 0, 32)
            assert (gone.status, gone.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
            one.clock.advance(74 * HOUR)
            await one.look()
            last = one.store.max_physical_offset // SEGMENT_BYTES
            assert one.files()[0] == last or one.files()[0] == one.files()[-1]
            kept = numbers(one.store)
            assert kept == list(range(one.store.min_offset("T", 0), one.number))
            await put(one.store, b"%06d" % one.number)
        async with running_store(tmp_path) as store:
            assert not store.recovery.rebuilt
            assert store.recovery.damaged == []
            assert numbers(store) == [*kept, one.number]

    asyncio.run(run())


def test_the_hour_the_use_of_the_disk_and_a_request_let_old_files_go(tmp_path: Path) -> None:
    async def run() -> None:
        hour = time.localtime().tm_hour
        async with life(tmp_path, delete_when=f"{(hour + 12) % 24:02}") as one:
            await one.fill(4)
            one.age(0)
            await one.look()
            assert one.files()[0] == 0, "another hour"
            one.disk.percent = 75.0
            await one.look()
            assert one.files()[0] == 1
            one.disk.percent = 74.9
            one.age(1, 2)
            await one.look()
            assert one.files()[0] == 1
            one.store._cleaner.ask()
            await one.look()
            assert one.files()[0] == 3
            for _ in range(MANUAL_LOOKS):
                await one.look()
            one.age(3)
            await one.look()
            assert one.files()[0] == 3, "the request is over"

    asyncio.run(run())


@pytest.mark.parametrize("forcibly", [True, False])
def test_a_disk_that_is_almost_full_takes_young_files_unless_that_is_off(tmp_path: Path, forcibly: bool) -> None:
    async def run() -> None:
        async with life(tmp_path, clean_file_forcibly_enable=forcibly, delete_file_batch_max=2) as one:
            await one.fill(4)
            one.disk.percent = 85.0
            await one.look()
            assert one.files()[0] == (2 if forcibly else 0)
            await one.look()
            assert one.files()[0] == (4 if forcibly else 0)
            assert numbers(one.store)[-1] == one.number - 1

    asyncio.run(run())


def test_sends_are_refused_while_the_disk_is_too_full_and_taken_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path, clean_file_forcibly_enable=False) as one:
            await one.fill(1)
            one.disk.percent = 91.5
            await one.look()
            refused = one.store.put(message())
            assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
            assert "91.5 %" in one.store.refusal
            assert "diskSpaceWarningLevelRatio is 90" in one.store.refusal
            assert numbers(one.store) == list(range(one.number)), "reads go on"
            one.disk.percent = 89.0
            await one.look()
            assert one.store.refusal == ""
            await put(one.store)

    asyncio.run(run())


def test_a_disk_that_is_not_told_of_deletes_and_refuses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Unknown(Disk):
        def used_percent(self, path: Path) -> float:
            raise OSError(errno.EIO, "no answer", str(path))

    async def run() -> None:
        async with life(tmp_path, Unknown(), delete_when="00") as one:
            await one.fill(1)
            await one.look()
            assert one.files()[0] == 0
            assert one.store.refusal == ""

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "disk not looked at" in caplog.text


@pytest.mark.parametrize("hours", [100, -100])
def test_a_clock_that_is_set_makes_no_file_old(tmp_path: Path, hours: int) -> None:
    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(2)
            one.age(0)
            one.clock.set_wall(one.clock.time_millis() + hours * HOUR * 1000)
            await one.look()
            assert one.files()[0] == 0
            one.clock.set_wall(one.clock.time_millis() - hours * HOUR * 1000)
            await one.look()
            assert one.files()[0] == 0
            one.clock.advance(HOUR - 1)
            await one.look()
            assert one.files()[0] == 0
            one.clock.advance(2)
            await one.look()
            assert one.files()[0] == 1

    asyncio.run(run())


def test_what_is_needed_stays_whatever_the_disk_says(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(3)
            needed: int | None = SEGMENT_BYTES + 5
            one.store.keep_from(lambda: needed)
            one.age(0, 1, 2)
            one.disk.percent = 89.0
            await one.look()
            assert one.files()[0] == 1
            needed = None
            await one.look()
            assert one.files()[0] == 3

    asyncio.run(run())


def test_what_is_not_on_disk_yet_stays(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(
            tmp_path, flush_disk_type=FlushDiskType.ASYNC_FLUSH, flush_interval_commit_log=10_000_000
        ) as one:
            await one.fill(2)
            one.disk.percent = 89.0
            await one.look()
            assert one.files()[0] == 0
            one.store._committer.sync_log()
            await one.save()
            await one.look()
            assert one.files()[0] == 2

    asyncio.run(run())


def test_a_store_that_rocketmq_ran_on_deletes_nothing_before_it_noted_its_begin(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(2)
        with (tmp_path / "checkpoint").open("r+b") as file:
            file.write(bytes([0] * 7 + [1]) * 5)
        async with life(tmp_path) as one:
            one.age(0)
            await one.look()
            assert one.files()[0] == 0
            await put(one.store)
            await one.save()
            await one.look()
            assert one.files()[0] == 1

    asyncio.run(run())


@pytest.mark.parametrize("text", ["", "24", "4,5", "04;", "-1", "four", "04;1000000"])
def test_hours_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="deleteWhen"):
        StoreConfig(store_path_root_dir=tmp_path, delete_when=text)
    assert parse_hours("04;16") == {4, 16}


def test_the_page_about_files_gives_the_defaults_that_the_settings_have() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "store.md").read_text(encoding="utf-8")
    config = StoreConfig()
    for name, shown in {
        "fileReservedTime": f"`fileReservedTime` hours old ({config.file_reserved_time})",
        "deleteWhen": f"`deleteWhen` (`{config.delete_when}`;",
        "diskMaxUsedSpaceRatio": f"`diskMaxUsedSpaceRatio` ({config.disk_max_used_space_ratio} %)",
        "diskSpaceCleanForciblyRatio": f"`diskSpaceCleanForciblyRatio` ({config.disk_space_clean_forcibly_ratio} %)",
        "diskSpaceWarningLevelRatio": f"`diskSpaceWarningLevelRatio` ({config.disk_space_warning_level_ratio} %)",
        "deleteFileBatchMax": f"{config.delete_file_batch_max} files at most (`deleteFileBatchMax`)",
        "cleanResourceInterval": f"Every {config.clean_resource_interval // 1000} seconds (`cleanResourceInterval`)",
        "deleteCommitLogFilesInterval": f"{config.delete_commit_log_files_interval} ms apart",
    }.items():
        assert shown in page, name


# ---------------------------------------------------------------------- queues


def queue_files(root: Path, topic: str = "T") -> list[int]:
    return sorted(int(path.name) // (20 * UNITS_PER_FILE) for path in (root / "consumequeue" / topic / "0").iterdir())


def test_files_of_queues_follow_once_their_begin_is_noted(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path, flush_consume_queue_thorough_interval=10_000_000) as one:
            await one.fill(1, topic="Old")
            await one.fill(3)
            await one.save()
            assert queue_files(tmp_path)[0] == 0
            one.age(0, 1, 2)
            await one.look()
            assert one.store.min_physical_offset == 3 * SEGMENT_BYTES
            assert queue_files(tmp_path)[0] == 0, "the note says that the queue begins there"
            await one.save()
            await one.look()
            begin = one.store.min_offset("T", 0)
            assert begin > 2 * UNITS_PER_FILE
            assert queue_files(tmp_path)[0] == begin // UNITS_PER_FILE
            old = one.store.max_offset("Old", 0)
            assert one.store.min_offset("Old", 0) == old
            assert len(queue_files(tmp_path, "Old")) == 1, "the last file of a queue tells where it ends"
            assert one.store.get("Old", 0, old, 32).status is GetStatus.OFFSET_OVERFLOW_ONE
            assert (await put(one.store, topic="Old")).queue_offset == old
        async with running_store(tmp_path) as store:
            assert not store.recovery.rebuilt
            assert (store.min_offset("T", 0), store.min_offset("Old", 0)) == (begin, old)
            assert store.max_offset("Old", 0) == old + 1
            assert [each["queue_offset"] for each in read_queue(store)] == list(range(begin, store.max_offset("T", 0)))

    asyncio.run(run())


def test_a_stop_leaves_no_files_of_queues_that_lead_to_nothing(tmp_path: Path) -> None:
    """RocketMQ, opening the folder next, would take the first unit of such a file for a message."""

    async def run() -> int:
        async with life(tmp_path, flush_consume_queue_thorough_interval=10_000_000) as one:
            await one.fill(4)
            await one.save()
            one.age(0, 1, 2)
            await one.look()
            assert queue_files(tmp_path)[0] == 0
            return one.store.min_offset("T", 0)

    begin = asyncio.run(run())
    assert begin > 2 * UNITS_PER_FILE
    assert queue_files(tmp_path)[0] == begin // UNITS_PER_FILE


@pytest.mark.parametrize("damage", [bytes(20), (7).to_bytes(8, "big")])
def test_a_damaged_unit_takes_no_messages_with_it(tmp_path: Path, damage: bytes) -> None:
    """Where the search for the new begin of a queue looks, and would take all before it for older; it is repaired."""

    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(6)
            await one.save()
            queue = one.store._queues.find("T", 0)
            assert queue is not None
            middle = (queue.min_offset + queue.saved) // 2
            path = tmp_path / "consumequeue" / "T" / "0" / f"{middle // UNITS_PER_FILE * UNITS_PER_FILE * 20:020d}"
            with path.open("r+b") as file:
                file.seek(middle % UNITS_PER_FILE * 20)
                file.write(damage)
            one.age(0)
            await one.look()
            while one.store.is_in_repair("T", 0):  # noqa: ASYNC110  # a thread of the store
                await asyncio.sleep(0.001)
            await one.look()
            assert one.store.min_physical_offset == SEGMENT_BYTES
            assert numbers(one.store) == list(range(one.store.min_offset("T", 0), one.number))
            assert one.store.min_offset("T", 0) == PER_SEGMENT
            assert one.store.repaired_queues == 1

    asyncio.run(run())


def test_units_that_are_in_memory_only_follow_too(tmp_path: Path) -> None:
    async def run() -> None:
        quiet = {"flush_interval_consume_queue": 10_000_000}
        async with life(tmp_path, **quiet) as one:
            await one.fill(2)
            assert not (tmp_path / "consumequeue" / "T").exists()
            # One of another topic lies before those of the file that stays.
            await put(one.store, topic="Rare")
            one.age(0, 1)
            await one.look()
            assert one.files()[0] == 2
            first = one.store.min_offset("T", 0)
            assert read_queue(one.store)[0]["physical_offset"] >= 2 * SEGMENT_BYTES
            assert numbers(one.store) == list(range(first, one.number))
            assert one.store.min_offset("Rare", 0) == 0
            crash_copy(tmp_path, tmp_path.parent / "copy")
        for root in (tmp_path, tmp_path.parent / "copy"):
            async with running_store(root) as store:
                assert store.recovery.damaged == []
                assert numbers(store) == list(range(first, one.number))

    asyncio.run(run())


def test_a_topic_made_anew_keeps_its_begin(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(2)
            await one.store.delete_topic("T")
            await put(one.store, b"new")
            one.age(0, 1)
            await one.look()
            await one.save()
            await one.look()
            assert one.files()[0] == 2
            assert [each["body"] for each in read_queue(one.store)] == [b"new"]
        async with running_store(tmp_path) as store:
            assert [each["body"] for each in read_queue(store)] == [b"new"]

    asyncio.run(run())


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_the_first_unit_behind_a_place_is_found(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Against a plain search, with blanks, begins within a file, and several files."""
    rng = random.Random(data.draw(st.integers(0, 1 << 30)))
    root = tmp_path_factory.mktemp("queue")
    files = QueueFiles(root, 20 * 8, FileSystem())
    start = rng.randrange(20)
    queue = ConsumeQueue("T", 0, files)
    place, units = 0, []
    offset = start
    for _ in range(rng.randrange(1, 60)):
        place += rng.randrange(100, 300)
        queue.append(offset, place, 100, 0)
        units.append((offset, place))
        offset += 1 if rng.random() < 0.7 else rng.randrange(1, 20)
    unsaved = queue.unsaved()
    assert unsaved is not None
    files.write(unsaved)
    wanted = rng.randrange(place + 300)
    found = files.first_at(queue, queue.min_offset, queue.max_offset, wanted)
    assert found == next((at for at, where in units if where >= wanted), queue.max_offset)
    files.close()


# ---------------------------------------------------------------------- faults


def test_a_crash_at_any_call_loses_nothing_that_was_to_stay(tmp_path: Path) -> None:
    """A copy of the folder before every call that changes a file, while files go, each then started."""
    copies: list[Path] = []
    root = tmp_path / "store"

    def copy(name: str) -> None:
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
            assert one.store.deleted_bytes == 2 * SEGMENT_BYTES

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
