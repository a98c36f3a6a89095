"""Retention: which files of log and queues go, when, and what never does."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import time
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcore._fast.record import tags_code
from rocketcore.broker.store import FlushDiskType, GetStatus, PutStatus, StoreConfig
from rocketcore.broker.store.config import parse_hours
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.keeping.cleaner import MANUAL_LOOKS
from rocketcore.broker.store.queues.consume_queue import ConsumeQueue, QueueFiles
from rocketcore.config_file import BadSetting
from rocketcore.errors import StoreCorrupted
from rocketcore.service import ManualClock
from tests.fixtures.retention import HOUR, PER_SEGMENT, Disk, life, numbers
from tests.fixtures.stores import (
    SEGMENT_BYTES,
    UNITS_PER_FILE,
    add_unit,
    crash_copy,
    message,
    put,
    read_queue,
    records,
    running_store,
)


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
            assert one.store.stats.deleted_bytes == SEGMENT_BYTES
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


def test_a_clock_that_is_ahead_at_a_start_makes_no_file_old(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(3)
        ahead = ManualClock(time.time_ns() // 1_000_000 + 10 * 24 * HOUR * 1000)
        async with life(tmp_path, clock=ahead) as one:
            await one.look()
            assert one.files()[0] == 0, "the clock may have been set while the store was closed"
            one.clock.advance(HOUR + 1)
            await one.look()
            assert one.files()[0] == 3, "it is what it says"
        async with life(tmp_path) as one:
            await put(one.store)
        async with life(tmp_path) as one:
            await one.fill(1)
            one.age(3)
            await one.look()
            assert one.files()[0] == 4, "a start soon after the last message waits for nothing"

    asyncio.run(run())


def test_a_request_outlives_the_hour_in_which_no_file_is_old(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(3)
        later = ManualClock(time.time_ns() // 1_000_000 + 80 * HOUR * 1000)
        async with life(tmp_path, clock=later, delete_when=f"{(time.localtime().tm_hour + 12) % 24:02}") as one:
            one.store._cleaner.ask()
            for _ in range(2 * MANUAL_LOOKS):
                await one.look()
            assert one.files()[0] == 0
            one.clock.advance(HOUR + 1)
            await one.look()
            assert one.files()[0] == 3

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "no file is deleted for its age for an hour" in caplog.text


def test_a_store_that_rested_for_a_while_with_nothing_sent_has_a_clock_that_is_believed(tmp_path: Path) -> None:
    """What counts is when it was there for the last time, not its last message."""

    async def run() -> None:
        hours_ago = ManualClock(time.time_ns() // 1_000_000 - 80 * HOUR * 1000)
        async with life(tmp_path, clock=hours_ago) as one:
            await one.fill(3)
        async with life(tmp_path) as one:
            one.age(0)
            await one.look()
            assert one.files()[0] == 1

    asyncio.run(run())


def test_a_file_written_in_the_future_is_as_old_as_the_next(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(5)
            one.age(0, 3, hours=-8760)
            await one.look()
            assert one.files()[0] == 0, "the next is young"
            one.age(1, 2)
            await one.look()
            assert one.files()[0] == 3

    asyncio.run(run())


def test_what_is_needed_stays_whatever_the_disk_says(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(3)
            needed: int | None = SEGMENT_BYTES + 5
            for place in (lambda: 2 * SEGMENT_BYTES, lambda: needed, lambda: None):
                one.store.keep_from(place)
            one.age(0, 1, 2)
            one.disk.percent = 89.0
            await one.look()
            assert one.files()[0] == 1
            needed = None
            await one.look()
            assert one.files()[0] == 2

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
    page = (Path(__file__).resolve().parents[5] / "docs" / "store.md").read_text(encoding="utf-8")
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


def test_files_of_queues_that_were_read_give_their_room_back(tmp_path: Path) -> None:
    def deleted() -> list[str]:
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        held = [os.readlink(link) for link in links if os.path.lexists(link)]
        return [each for each in held if each.startswith(str(tmp_path)) and "deleted" in each]

    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(8)
            await one.save()
            numbers(one.store)
            one.age(*range(7))
            await one.look()
            await one.save()
            await one.look()
            assert len(list((tmp_path / "consumequeue" / "T" / "0").iterdir())) < 6
            assert deleted() == []
            assert numbers(one.store)[-1] == one.number - 1

    asyncio.run(run())


def test_units_that_come_to_the_files_while_a_begin_is_searched_are_looked_at(tmp_path: Path) -> None:
    """They lead to before the begin too: the search took those that were there for all."""

    async def run() -> None:
        async with life(tmp_path, flush_interval_consume_queue=10_000_000) as one:
            await one.fill(2)
            await one.save()
            await one.fill(2)
            one.age(0, 1, 2)
            search = one.store._log_begin._search

            def and_save(*arguments: Any) -> Any:
                found = search(*arguments)
                one.store._log_begin._search = search  # type: ignore[method-assign]
                asyncio.run_coroutine_threadsafe(one.save(), loop)
                return found

            loop = asyncio.get_running_loop()
            one.store._log_begin._search = and_save  # type: ignore[assignment, method-assign]
            saved = one.store._queues.find("T", 0)
            assert saved is not None
            before = saved.saved
            await one.look()
            assert saved.saved > before
            assert one.store.min_physical_offset == 3 * SEGMENT_BYTES
            assert one.store.min_offset("T", 0) == 3 * PER_SEGMENT
            assert numbers(one.store) == list(range(3 * PER_SEGMENT, one.number))

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
            assert one.store.stats.repaired_queues == 1

    asyncio.run(run())


@pytest.mark.parametrize("trimmed", [True, False])
@pytest.mark.parametrize("by_tag", [True, False])
@pytest.mark.parametrize("damage", [bytes(20), (7).to_bytes(8, "big")])
def test_a_damaged_unit_is_not_taken_for_one_of_a_deleted_file(
    tmp_path: Path, damage: bytes, by_tag: bool, trimmed: bool
) -> None:
    wanted = array("q", [tags_code(b"TAGS\x01a\x02")]) if by_tag else None

    async def run() -> None:
        async with life(tmp_path) as one:
            await one.fill(4, properties=b"TAGS\x01a\x02")
            if trimmed:
                one.age(0)
                await one.look()
            await one.save()
            first, end = one.store.min_offset("T", 0), one.store.max_offset("T", 0)
        offset = first + 30
        path = tmp_path / "consumequeue" / "T" / "0" / f"{offset // UNITS_PER_FILE * UNITS_PER_FILE * 20:020d}"
        with path.open("r+b") as file:
            file.seek(offset % UNITS_PER_FILE * 20)
            file.write(damage)
        async with life(tmp_path) as one:
            found: list[int] = []
            at = first
            while at < end:
                try:
                    answer = one.store.get("T", 0, at, 32, wanted)
                except StoreCorrupted:
                    while one.store.is_in_repair("T", 0):  # noqa: ASYNC110  # a thread of the store
                        await asyncio.sleep(0.001)
                    continue
                found += [each["queue_offset"] for each in records(answer.body)]
                at = answer.next_begin_offset
            assert found == list(range(first, end))
            assert (one.store.stats.repaired_queues, one.store.stats.damaged_records) == (1, 0)

    asyncio.run(run())


def test_units_that_are_in_memory_only_follow_too(tmp_path: Path) -> None:
    async def run() -> None:
        quiet: dict[str, Any] = {"flush_interval_consume_queue": 10_000_000}
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
        add_unit(queue, offset, place, 100, 0)
        units.append((offset, place))
        offset += 1 if rng.random() < 0.7 else rng.randrange(1, 20)
    unsaved = queue.unsaved()
    assert unsaved is not None
    files.write(unsaved)
    wanted = rng.randrange(place + 300)
    found = files.first_at(queue, queue.min_offset, queue.max_offset, wanted)
    assert found == next((at for at, where in units if where >= wanted), queue.max_offset)
    files.close()
