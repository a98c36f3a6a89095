"""Verification: a whole store is whole, each damage is named with file and position, and no file is ever changed."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketcore._fast.mapped import PaddedMap
from rocketcore.broker.store.segment_file import FileSystem
from rocketcore.broker.store.verify import Damage, ReadOnlyFiles, Report, sized, verify
from rocketcore.broker.store.verify.read_ahead import PIECE_BYTES
from rocketcore.broker.verify import repair_broker, verify_broker
from rocketcore.codes import SCHEDULE_TOPIC
from rocketcore.errors import StoreCorrupted, StoreLocked
from tests.fault.unreadable_page import lose_page
from tests.fixtures import stores
from tests.fixtures.retention import life
from tests.fixtures.stores import (
    SEGMENT_BYTES,
    UNITS_PER_FILE,
    crash_copy,
    message,
    put,
    read_queue,
    stored,
)

INDEX: dict[str, Any] = {"message_index_enable": True, "max_hash_slot_num": 100, "max_index_num": 1000}
"""An index of a size that is copied in no time."""

running_store = partial(stores.running_store, **INDEX)
store_config = partial(stores.store_config, **INDEX)

COUNT = 160
BODY = bytes(2000)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two queues, three log files and three files of a queue, stopped in order."""
    root = tmp_path_factory.mktemp("whole")

    async def run() -> None:
        async with running_store(root) as store:
            for number in range(COUNT):
                result = store.put(message(b"%06d" % number + BODY, queue_id=number % 8 and 1))
            assert (await stored(store, result)).name == "PUT_OK"

    asyncio.run(run())
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return Path(shutil.copytree(whole, tmp_path / "store"))


def log_file(root: Path, number: int = 0) -> Path:
    return root / "commitlog" / f"{number * SEGMENT_BYTES:020d}"


def queue_file(root: Path, queue_id: int = 1, number: int = 0) -> Path:
    return root / "consumequeue" / "T" / str(queue_id) / f"{number * UNITS_PER_FILE * 20:020d}"


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def look(root: Path, **settings: object) -> Report:
    """Verify, and make sure that nothing is changed by it."""
    before = content(root)
    report = verify(store_config(root, **settings))
    assert content(root) == before
    return report


def only(report: Report) -> Damage:
    assert len(report.damaged) == 1, report.damaged
    return report.damaged[0]


def repaired(root: Path) -> Report:
    """Repair, and make sure that what the log holds is served."""
    before = verify(store_config(root))
    after = repair(root)
    assert [each for each in after.damaged if each.kind != "config"] == []
    assert after.served == before.served
    asyncio.run(_serves(root, after.served))
    return after


def repair(root: Path) -> Report:
    return repair_broker(store_config(root), verify_broker(store_config(root)))


async def _serves(root: Path, count: int) -> None:
    async with running_store(root) as store:
        assert sum(len(read_queue(store, queue_id=queue_id)) for queue_id in (0, 1)) == count
        assert not store.recovery.rebuilt


def test_a_whole_store_is_whole(root: Path) -> None:
    report = look(root)
    assert report.is_whole
    assert (report.messages, report.served, report.unsaved, report.lost) == (COUNT, COUNT, 0, [])
    assert report.bounds == {("T", 0): (0, COUNT // 8), ("T", 1): (0, COUNT - COUNT // 8)}
    assert (report.log_begin, report.remarks, report.put_aside) == (0, [], [])
    assert 2 * SEGMENT_BYTES < report.log_end < report.read_bytes < 3 * SEGMENT_BYTES


@pytest.mark.parametrize(
    ("position", "what"),
    [(4, "no message: unknown magic code"), (0, "no message"), (28, "checksum differs"), (500, "checksum differs")],
)
def test_a_damaged_message_is_named_with_its_file_and_place(root: Path, position: int, what: str) -> None:
    size = int.from_bytes(log_file(root, 1).read_bytes()[:4], "big")
    overwrite(log_file(root, 1), size + position, b"\x05")
    report = look(root)
    damage = only(report)
    assert (damage.kind, damage.path, damage.position, damage.length) == ("log", log_file(root, 1), size, size)
    assert what in damage.what
    assert report.served == COUNT - 1
    assert report.lost_messages == 1
    after = repaired(root)
    assert [(each.physical_offset, each.length) for each in after.put_aside] == [(SEGMENT_BYTES + size, size)]
    assert after.messages == COUNT - 1, "a tombstone is no message"
    assert after.lost == report.lost


def test_a_message_of_another_place_is_none(root: Path) -> None:
    data = log_file(root, 1).read_bytes()
    size = int.from_bytes(data[:4], "big")
    overwrite(log_file(root, 1), size, data[:size])
    damage = only(look(root))
    assert damage.what == f"a message of another place, {SEGMENT_BYTES} of the log"
    repaired(root)


def test_the_last_message_is_known_to_be_lost_by_the_notes(root: Path) -> None:
    end = look(root).log_end
    overwrite(log_file(root, 2), end - 2 * SEGMENT_BYTES - 100, b"\xff" * 10)
    report = look(root)
    assert {each.kind for each in report.damaged} == {"log"}
    assert report.is_named(end - 1)
    assert [(each.queue_id, each.end - each.start) for each in report.lost] == [(1, 1)]
    repaired(root)


def test_bytes_behind_the_end_are_a_torn_tail(root: Path) -> None:
    end = look(root).log_end
    overwrite(log_file(root, 2), end - 2 * SEGMENT_BYTES, b"\0\0\1\0half a message")
    damage = only(look(root))
    assert (damage.kind, damage.position) == ("log", end - 2 * SEGMENT_BYTES)
    assert "no message lies behind it" in damage.what
    repaired(root)


@pytest.mark.parametrize("length", [0, 5000, SEGMENT_BYTES - 1, SEGMENT_BYTES + 100])
def test_a_file_of_the_log_that_is_too_short_or_too_long(root: Path, length: int) -> None:
    os.truncate(log_file(root, 1), length)
    report = look(root)
    sizes = [each for each in report.damaged if "bytes and not" in each.what]
    assert [(each.path, each.position) for each in sizes] == [(log_file(root, 1), min(length, SEGMENT_BYTES))]
    assert report.served >= COUNT - 64
    repaired(root)


def test_a_file_of_the_log_that_is_missing(root: Path) -> None:
    log_file(root, 1).unlink()
    damage = only(look(root))
    assert (damage.path, damage.position, damage.length) == (log_file(root, 1), 0, SEGMENT_BYTES)
    repaired(root)


def test_the_first_file_of_the_log_that_is_missing(root: Path) -> None:
    log_file(root, 0).unlink()
    report = look(root)
    assert [(each.path, each.length) for each in report.damaged] == [(log_file(root, 0), SEGMENT_BYTES)]
    assert report.log_begin == SEGMENT_BYTES
    assert report.lost_messages + report.served == COUNT
    repaired(root)


def test_files_of_another_size_are_refused_unless_that_is_found_out(root: Path) -> None:
    with pytest.raises(StoreCorrupted, match="not the configured"):
        look(root, mapped_file_size_commit_log=2 * SEGMENT_BYTES)
    found, is_told, _ = sized(
        store_config(root, mapped_file_size_commit_log=2 * SEGMENT_BYTES, mapped_file_size_consume_queue=60)
    )
    assert is_told
    assert found.mapped_file_size_commit_log == SEGMENT_BYTES
    assert found.queue_file_bytes == UNITS_PER_FILE * 20
    assert verify(found).is_whole


GIGABYTE = 1_000_000_000
"""No whole pages, as somebody may have set it."""
USUAL = 1 << 30


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ({0: USUAL}, USUAL),
        ({0: 64 << 20}, 64 << 20),
        ({0: 300_000_001}, 0),
        ({USUAL: 300_000_001}, 0),
        ({USUAL: 3 << 20}, 0),  # no file of that length begins there
        ({2 * USUAL: USUAL}, USUAL),
        ({0: USUAL, USUAL: 300_000_001}, USUAL),
        ({0: 4096, USUAL: USUAL}, USUAL),
        ({0: GIGABYTE, GIGABYTE: 5001}, GIGABYTE),
        ({0: 300_000_001, GIGABYTE: 5001}, GIGABYTE),
        ({0: USUAL, 2 * USUAL: USUAL, 3 * USUAL: 7}, USUAL),
        ({GIGABYTE: GIGABYTE, 2 * GIGABYTE: GIGABYTE}, GIGABYTE),
        ({}, 0),
    ],
    ids=str,
)
def test_which_size_the_files_of_a_log_tell(tmp_path: Path, files: dict[int, int], size: int) -> None:
    (tmp_path / "commitlog").mkdir()
    for start, length in files.items():
        with (tmp_path / "commitlog" / f"{start:020d}").open("wb") as file:
            file.truncate(length)
    found, is_told, doubt = sized(store_config(tmp_path, mapped_file_size_commit_log=2 * SEGMENT_BYTES))
    assert found.mapped_file_size_commit_log == (size or 2 * SEGMENT_BYTES)
    assert is_told == (size > 0 or not files)
    assert bool(doubt) == (len(files) == 1)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """A store with a few messages in one file of the log."""

    async def run() -> None:
        async with running_store(tmp_path / "single") as store:
            for number in range(9):
                await put(store, b"%06d" % number)

    asyncio.run(run())
    return tmp_path / "single"


def test_the_only_file_of_a_log_that_was_cut_short(single: Path) -> None:
    """Its length was taken for the size that the broker had set, and the store for whole."""
    config = store_config(single)
    assert verify(sized(config).config).is_whole
    end = look(single).log_end
    for length in (SEGMENT_BYTES - 1, end + 100, end // 2):
        os.truncate(log_file(single), length)
        found, is_told, doubt = sized(config)
        assert (found.mapped_file_size_commit_log, is_told) == (SEGMENT_BYTES, False)
        assert doubt == f"the length of its only file cannot be it; {SEGMENT_BYTES} is taken"
        damage = next(each for each in verify(found).damaged if "bytes and not" in each.what)
        assert (damage.kind, damage.path, damage.position) == ("log", log_file(single), length)
    os.truncate(log_file(single), 0)
    assert sized(config)[1:] == (False, f"it has no file; {SEGMENT_BYTES} is taken"), "the notes say that there was one"


def test_the_length_of_an_only_file_is_taken_with_a_word(single: Path) -> None:
    """Nothing tells it from one that was cut behind its messages."""
    cut = SEGMENT_BYTES * 3 // 4
    os.truncate(log_file(single), cut)
    found, is_told, doubt = sized(store_config(single))
    assert (found.mapped_file_size_commit_log, is_told) == (cut, True)
    assert doubt == f"{cut} is taken, the length of its only file, which may have been cut"
    assert verify(found).is_whole


def test_a_file_of_a_queue_that_was_cut_at_a_unit_is_damaged(single: Path) -> None:
    (path,) = (single / "consumequeue" / "T" / "0").iterdir()
    os.truncate(path, 20 * 9)
    damage = only(verify(sized(store_config(single)).config))
    assert (damage.path, damage.what) == (path, f"the file has 180 bytes and not {20 * UNITS_PER_FILE}")


def test_the_only_file_of_a_log_that_was_cut_at_a_page_is_told_by_the_notes(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            for _ in range(9):
                await put(store, BODY)

    asyncio.run(run())
    os.truncate(log_file(tmp_path), 4096)
    found, is_told, _ = sized(store_config(tmp_path))
    assert (found.mapped_file_size_commit_log, is_told) == (SEGMENT_BYTES, False)
    assert {each.kind for each in verify(found).damaged} >= {"log"}


def test_a_full_file_tells_its_size_though_the_next_is_lost(root: Path) -> None:
    for number in (1, 2):
        log_file(root, number).unlink()
    found, is_told, doubt = sized(store_config(root, mapped_file_size_commit_log=2 * SEGMENT_BYTES))
    assert (found.mapped_file_size_commit_log, is_told, doubt) == (SEGMENT_BYTES, True, "")
    assert not verify(found).is_whole


# ---------------------------------------------------------------------- queues


@pytest.mark.parametrize(
    ("position", "data", "what"),
    [
        (20 * 7, bytes(7) + b"\1", "leads elsewhere, units: 1"),  # its place in the log
        (20 * 7 + 8, b"\1", "leads elsewhere, units: 1"),  # the size
        (20 * 7 + 19, b"\1", "leads elsewhere, units: 1"),  # the code of its tags
        (20 * 7, bytes(40), "leads elsewhere, units: 2"),
        (20 * 7, bytes(8) + b"\x7f\xff\xff\xff" + bytes(8), "leads elsewhere, units: 1"),  # a blank
    ],
)
def test_a_damaged_unit_is_named_with_its_file_and_place(root: Path, position: int, data: bytes, what: str) -> None:
    overwrite(queue_file(root, number=1), position, data)
    report = look(root)
    damage = only(report)
    assert (damage.kind, damage.path, damage.position, damage.what) == ("queue", queue_file(root, number=1), 140, what)
    assert (report.served, report.lost) == (COUNT, [])
    repaired(root)


def test_damaged_ranges_of_a_queue_are_named_up_to_a_number(root: Path) -> None:
    for index in range(0, UNITS_PER_FILE, 2):
        overwrite(queue_file(root), 20 * index, b"\1")
    damaged = look(root).damaged
    assert [each.length for each in damaged[:-1]] == [20] * 16
    assert "units in the others: 9" in damaged[-1].what
    repaired(root)


def test_a_file_of_a_queue_that_is_missing(root: Path) -> None:
    queue_file(root, number=1).unlink()
    damage = only(look(root))
    assert (damage.path, damage.length) == (queue_file(root, number=1), 20 * UNITS_PER_FILE)
    assert damage.what == f"missing, and the file, units: {UNITS_PER_FILE}"
    repaired(root)


def test_queues_without_any_file(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    report = look(root)
    assert sum(each.length for each in report.damaged) == 20 * COUNT
    assert report.served == COUNT
    repaired(root)


def test_units_behind_the_end_of_a_queue(root: Path) -> None:
    overwrite(queue_file(root, 0), 20 * (COUNT // 8), (1 << 40).to_bytes(8, "big") + b"\0\0\1\0" + bytes(8))
    damage = only(look(root))
    assert (damage.position, damage.what) == (20 * (COUNT // 8), "leads behind the end of the log, units: 1")
    overwrite(queue_file(root, 0), 20 * (COUNT // 8), bytes(8) + b"\0\0\1\0" + bytes(8))
    assert only(look(root)).what == "leads to no message, units: 1"
    repaired(root)


def test_a_queue_that_the_log_knows_nothing_of(root: Path) -> None:
    other = root / "consumequeue" / "Other" / "3"
    other.mkdir(parents=True)
    shutil.copy(queue_file(root), other)
    assert {each.path.parent for each in look(root).damaged} == {other}
    repaired(root)


def test_a_file_of_a_queue_with_another_length_or_begin(root: Path) -> None:
    os.truncate(queue_file(root, 0), 20 * UNITS_PER_FILE + 7)
    (queue_file(root, 0).parent / f"{30:020d}").write_bytes(b"")
    (queue_file(root, 0).parent / "x.tmp").write_bytes(b"")
    report = look(root)
    assert sorted(each.what for each in report.damaged) == [
        "no file of a queue begins there",
        f"the file has {20 * UNITS_PER_FILE + 7} bytes and not {20 * UNITS_PER_FILE}",
    ]
    assert report.remarks == [f"{queue_file(root, 0).parent / 'x.tmp'} is no file of a queue"]
    repaired(root)


def test_what_a_killed_store_had_not_saved_is_no_damage(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path / "a", flush_interval_consume_queue=3_600_000) as store:
            for number in range(9):
                await put(store, b"%06d" % number)
            crash_copy(tmp_path / "a", tmp_path / "b")

    asyncio.run(run())
    report = look(tmp_path / "b")
    assert report.is_whole
    assert (report.served, report.unsaved) == (9, 9)


def test_delayed_messages_may_be_due_by_other_settings(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, topic=SCHEDULE_TOPIC, queue_id=2, properties=b"DELAY\x013\x02")

    asyncio.run(run())
    assert look(tmp_path).remarks == []
    report = look(tmp_path, message_delay_level="1s 5s 11s")
    assert report.is_whole
    assert report.remarks == ["1 delayed messages have another time than messageDelayLevel says"]


# ---------------------------------------------------------------------- what stores have been through


def test_files_that_retention_deleted_are_not_missed(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path, **INDEX) as one:
            await one.fill(3)
            one.age(0, 1)
            await one.look()
            await one.save()

    asyncio.run(run())
    report = look(tmp_path)
    assert report.is_whole, report.damaged
    assert report.log_begin == 2 * SEGMENT_BYTES
    assert (report.lost, report.served) == ([], report.messages)
    minimum = report.bounds["T", 0][0]
    assert minimum > 0
    # The queue's next offset outlives a rebuild, and what lies before its first message.
    assert repair(tmp_path).bounds["T", 0][0] == minimum


def test_a_queue_whose_messages_are_all_deleted_keeps_its_next_offset_through_a_repair(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path, **INDEX) as one:
            for _ in range(3):
                await put(one.store, topic="Old")
            await one.fill(3)
            one.age(0, 1)
            await one.look()
            await one.save()

    asyncio.run(run())
    overwrite(next((tmp_path / "consumequeue" / "T" / "0").iterdir()), 0, b"\xff" * 2000)
    assert not look(tmp_path).is_whole
    after = repair(tmp_path)
    assert after.bounds["Old", 0] == (3, 3)


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "without notes"])
def test_a_loss_at_the_begin_of_a_queue_is_told_for_ever(root: Path, noted: bool) -> None:
    """Once it had been repaired, verifications said no more of it."""
    size = int.from_bytes(log_file(root).read_bytes()[:4], "big")
    overwrite(log_file(root), 0, b"\xff" * 3 * size)  # messages 0 and 1 of queue 1, and the first of queue 0
    if not noted:
        for name in ("queuebounds", "checkpoint"):
            (root / name).unlink()
    lost = [("T", 0, 0, 1), ("T", 1, 0, 2)]
    assert [(each.topic, each.queue_id, each.start, each.end) for each in look(root).lost] == lost
    for _ in range(2):
        report = repaired(root)
        assert [(each.topic, each.queue_id, each.start, each.end) for each in look(root).lost] == lost
        assert report.bounds == {("T", 0): (0, COUNT // 8), ("T", 1): (0, COUNT - COUNT // 8)}


def test_a_queue_that_lost_all_its_messages(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            for topic in ("Lost", "Lost", "T"):
                await put(store, topic=topic)

    asyncio.run(run())
    size = int.from_bytes(log_file(tmp_path).read_bytes()[:4], "big")
    overwrite(log_file(tmp_path), 0, b"\xff" * 2 * size)
    for _ in range(2):
        report = repair(tmp_path)
        assert [(each.topic, each.start, each.end) for each in report.lost] == [("Lost", 0, 2)]
        assert report.bounds["Lost", 0] == (0, 2)


def test_what_was_lost_in_a_file_that_retention_deleted_is_no_loss_any_more(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path, **INDEX) as one:
            await one.fill(3)
        overwrite(log_file(tmp_path), 0, b"\xff" * 20)
        overwrite(log_file(tmp_path, 2), 0, b"\xff" * 20)

    asyncio.run(run())
    first, second = repair(tmp_path).lost
    assert first.start == 0

    async def later() -> None:
        async with life(tmp_path, **INDEX) as one:
            one.age(0)
            await one.look()
            await one.save()

    asyncio.run(later())
    report = look(tmp_path)
    assert report.is_whole, report.damaged
    assert (report.log_begin, report.lost) == (SEGMENT_BYTES, [second])


def test_a_loss_where_the_log_begins_after_retention_is_told_for_ever(tmp_path: Path) -> None:
    async def run() -> None:
        async with life(tmp_path, **INDEX) as one:
            await one.fill(3)
            one.age(0)
            await one.look()
            await one.save()

    asyncio.run(run())
    begin = look(tmp_path).bounds["T", 0][0]
    assert begin > 0
    overwrite(log_file(tmp_path, 1), 0, b"\xff" * 20)
    for _ in range(2):
        [lost] = repair(tmp_path).lost
        assert (lost.start, lost.end) == (begin, begin + 1)


def test_a_deleted_topic_is_not_missed(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, topic="Gone")
            await put(store)
            await store.delete_topic("Gone")

    asyncio.run(run())
    report = look(tmp_path)
    assert report.is_whole
    assert (report.messages, report.served) == (2, 1)


@pytest.mark.parametrize("name", ["queuebounds", "checkpoint", "deletedtopics"])
def test_a_damaged_note_is_named_and_written_anew(tmp_path: Path, name: str) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, topic="Gone")
            await put(store)
            await store.delete_topic("Gone")

    asyncio.run(run())
    overwrite(tmp_path / name, 70 if name == "checkpoint" else 12, b"?")
    damage = only(look(tmp_path))
    assert (damage.kind, damage.path) == ("note", tmp_path / name)
    assert damage.what == "its checksum is wrong"
    after = repair(tmp_path)
    assert [each for each in after.damaged if each.kind != "config"] == []
    assert after.served == 1


def test_a_mark_of_another_content_is_named(root: Path) -> None:
    (root / "abort").write_bytes(b"17 0 00000000")
    assert only(look(root)).path == root / "abort"
    (root / "abort").write_bytes(b"17")
    assert look(root).is_whole, "one of RocketMQ's"


def test_where_the_log_began_before_rocketmq_deleted_files(root: Path) -> None:
    log_file(root, 0).unlink()
    overwrite(root / "checkpoint", 8, b"\1")
    report = look(root)
    assert (report.gone_from, report.log_begin) == (0, SEGMENT_BYTES)
    assert report.is_whole
    assert "deletes old files" in report.remarks[0]


# ---------------------------------------------------------------------- surprises


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
                asyncio.run(_serves(root, COUNT))
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
    mapped.madvise(mmap.MADV_DONTNEED)
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


# ---------------------------------------------------------------------- the index


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    """A store whose messages have keys."""

    async def run() -> None:
        async with running_store(tmp_path / "store") as store:
            for number in range(30):
                await put(store, b"%06d" % number, properties=b"KEYS\x01key-%d\x02" % (number % 7))

    asyncio.run(run())
    return tmp_path / "store"


def index_file(root: Path) -> Path:
    return sorted((root / "index").iterdir())[-1]


@pytest.mark.parametrize(
    ("position", "what"),
    [
        (36, "no start believes it, and indexes again what it held"),  # its header
        (40, "its slots do not lead to its entries"),
        (-1, "entry 30 does not follow from those before it"),
    ],
)
def test_a_damaged_index_is_named_and_made_again(indexed: Path, position: int, what: str) -> None:
    assert look(indexed).is_whole
    config, path = store_config(indexed), index_file(indexed)
    if position < 0:
        position = 40 + 4 * config.max_hash_slot_num + 20 * 30 + 16
    overwrite(path, position, b"\x7f\x7f\x7f\x7f")
    if position == 36:
        (indexed / "indexbounds").unlink()
    damage = only(look(indexed))
    assert (damage.kind, damage.path, damage.what) == ("index", path, what)
    after = repair(indexed)
    assert [each for each in after.damaged if each.kind != "config"] == []
    assert index_file(indexed) != path


def test_a_damaged_note_of_the_index(indexed: Path) -> None:
    """No start believes the files that it told of."""
    overwrite(indexed / "indexbounds", 12, b"?")
    found = [(each.kind, each.path) for each in look(indexed).damaged]
    assert found == [("note", indexed / "indexbounds"), ("index", index_file(indexed))]
    assert [each for each in repair(indexed).damaged if each.kind != "config"] == []


def test_an_index_of_other_sizes_is_looked_at_by_its_note(indexed: Path) -> None:
    found = sized(stores.store_config(indexed)).config
    assert found.index_file_bytes == store_config(indexed).index_file_bytes
    assert verify(found).is_whole


# ---------------------------------------------------------------------- configuration


def configured(root: Path, name: str, text: bytes) -> Path:
    path = root / "config" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text)
    return path


def test_settings_that_are_damaged_are_named_in_each_generation(root: Path) -> None:
    configured(root, "topics.json", b'{"topicConfigTable":{}}')
    assert verify_broker(store_config(root)).is_whole
    bad = configured(root, "topics.json.bak", b'{"topicConfigTable":{}')
    assert only(verify_broker(store_config(root))).path == bad
    (root / "config" / "topics.json").rename(root / "config" / "topics.json.bak")
    assert "it is missing" in only(verify_broker(store_config(root))).what
    (root / "config" / "topics.json.bak").unlink()
    assert only(verify_broker(store_config(root))).what == "it is missing: no topic has settings"
    configured(root, "topics.json", b'{"topicConfigTable":{},"crc32":5}')
    assert only(verify_broker(store_config(root))).what == "the checksum does not fit"


def test_offsets_that_lead_behind_a_queue_are_named(root: Path) -> None:
    configured(root, "topics.json", b'{"topicConfigTable":{}}')
    configured(root, "consumerOffset.json", b'{"offsetTable":{"T@g":{0:20,1:140},"Other@g":{0:9}}}')
    assert verify_broker(store_config(root)).is_whole
    path = configured(root, "consumerOffset.json", b'{"offsetTable":{"T@g":{0:21,1:0}}}')
    report = verify_broker(store_config(root))
    damage = only(report)
    assert (damage.kind, damage.path, damage.what) == ("offset", path, "group g is at 21 of T/0, which ends at 20")
    assert repair_broker(store_config(root), report) is report, "nothing of it follows from the log"
