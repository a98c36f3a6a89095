"""The note of the queues' bounds: it costs what changed, and whatever a crash or a disk leaves of it is true."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcore.broker.store import MessageStore
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.notes.queue_bounds import ROOM, BoundsEnd, QueueBounds, pack_rows
from tests.fixtures.stores import FailingFiles, crash_copy, put, read_queue, running_store

FILES = FileSystem()
FIRST = QueueBounds(
    begin_offset=5,
    sealed_from=7,
    confirm_offset=100,
    store_timestamp=1,
    file_bytes=1000,
    rows={"T": pack_rows({0: (0, 3), 11: (2, 9)}), "Gone": pack_rows({0: (0, 1)}), "Same": pack_rows({2: (1, 1)})},
    deleted_before={"D": 12},
)
SECOND = QueueBounds(
    begin_offset=6,
    confirm_offset=200,
    store_timestamp=2,
    file_bytes=1000,
    rows={"T": pack_rows({0: (1, 4), 11: (2, 9), 12: (0, 1)}), "Gone": b"", "New": pack_rows({0: (0, 1)})},
    deleted_before={"Gone": 150},
)
THIRD = QueueBounds(begin_offset=6, confirm_offset=300, store_timestamp=3, file_bytes=1000)


def added(path: Path, *records: QueueBounds) -> list[BoundsEnd]:
    ends = [records[0].write(path, FILES)]
    for record in records[1:]:
        ends.append(record.add(path, ends[-1], FILES))
    return ends


def read(path: Path) -> QueueBounds:
    found = QueueBounds.read(path, FILES)
    assert found is not None
    return found


def test_a_record_changes_the_topics_that_it_names_and_all_else(tmp_path: Path) -> None:
    path = tmp_path / "queuebounds"
    ends = added(path, FIRST, SECOND)
    assert path.stat().st_size == ends[-1].position
    found = read(path)
    assert found.queues == {
        "T": {0: (1, 4), 11: (2, 9), 12: (0, 1)}, "Same": {2: (1, 1)}, "New": {0: (0, 1)}
    }  # fmt: skip
    assert (found.begin_offset, found.sealed_from, found.confirm_offset, found.store_timestamp) == (6, None, 200, 2)
    assert found.deleted_before == {"Gone": 150}
    assert not found.is_cut


def test_what_a_crash_leaves_of_a_record_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "queuebounds"
    ends = [end.position for end in added(path, FIRST, SECOND, THIRD)]
    whole = path.read_bytes()
    states = {ends[0]: 100, ends[1]: 200, ends[2]: 300}
    for length in range(len(whole)):
        for rest in (b"", bytes(len(whole) - length), b"\xff" * 40):
            path.write_bytes(whole[:length] + rest)
            if whole[:length] + rest == whole:
                continue
            found = QueueBounds.read(path, FILES)
            confirmed = [state for end, state in states.items() if end <= length]
            if not confirmed:
                assert found is None
            else:
                assert found is not None
                assert found.confirm_offset == confirmed[-1]
                assert found.is_cut is (len(whole[:length] + rest) not in ends or bool(rest))


def test_any_byte_changed_ends_what_is_believed_before_it(tmp_path: Path) -> None:
    path = tmp_path / "queuebounds"
    ends = [end.position for end in added(path, FIRST, SECOND, THIRD)]
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        found = QueueBounds.read(path, FILES)
        believed = sum(end <= position for end in ends)
        assert (0 if found is None else found.confirm_offset) == 100 * believed


def test_records_of_another_file_do_not_follow(tmp_path: Path) -> None:
    """A sector of before lies behind a new first record, as an append that was lost leaves it."""
    path = tmp_path / "queuebounds"
    end = added(path, FIRST, SECOND)[0]
    rest = path.read_bytes()[end.position :]
    other = QueueBounds(confirm_offset=101, rows=dict(FIRST.rows))
    other.write(path, FILES)
    path.write_bytes(path.read_bytes() + rest)
    assert (read(path).confirm_offset, read(path).is_cut) == (101, True)


def test_the_whole_is_due_when_records_outgrow_it() -> None:
    assert BoundsEnd(1000, 0, 1000).has_room
    assert BoundsEnd(2 * 1000 + ROOM, 0, 1000).has_room
    assert not BoundsEnd(2 * 1000 + ROOM + 1, 0, 1000).has_room


OFTEN: dict[str, Any] = {"flush_interval_consume_queue": 1, "flush_consume_queue_thorough_interval": 1}


async def noted(store: MessageStore, root: Path) -> int:
    """Wait until all that was put is noted; returns the size of the note."""
    async with asyncio.timeout(20):
        while True:
            found = QueueBounds.read(root / "queuebounds", FILES)
            if found is not None and found.confirm_offset == store.durable_offset:
                return (root / "queuebounds").stat().st_size
            await asyncio.sleep(0.002)


def test_a_note_is_added_of_the_topics_that_changed(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path, **OFTEN) as store:
            for number in range(50):
                await put(store, topic=f"Topic-{number}")
            before = await noted(store, tmp_path)
            await put(store, topic="Topic-7", queue_id=3)
            after = await noted(store, tmp_path)
            assert 0 < after - before < 200
            await store.delete_topic("Topic-8")
            found = read(tmp_path / "queuebounds")
            assert (len(found.rows), found.queues["Topic-7"]) == (49, {0: (0, 1), 3: (0, 1)})
            crash_copy(tmp_path, tmp_path / "copy")
        for root in (tmp_path, tmp_path / "copy"):
            async with running_store(root) as store:
                assert not store.recovery.rebuilt
                assert len(list(store.queues())) == 50
                assert store.max_offset("Topic-7", 3) == 1

    asyncio.run(run())


def test_a_torn_record_costs_nothing_but_a_look_at_the_log(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path, **OFTEN) as store:
            await put(store, b"0")
            await noted(store, tmp_path)
            for number in range(1, 4):
                await put(store, b"%d" % number)
                await put(store, b"other", topic="U")
                await noted(store, tmp_path)
            crash_copy(tmp_path, tmp_path / "copy")
        note = tmp_path / "copy" / "queuebounds"
        note.write_bytes(note.read_bytes()[:-5])
        async with running_store(tmp_path / "copy", **OFTEN) as store:
            assert not store.recovery.rebuilt
            assert store.recovery.messages in (1, 2)
            assert [one["body"] for one in read_queue(store)] == [b"0", b"1", b"2", b"3"]
            await put(store, b"4")
            await noted(store, tmp_path / "copy")
            assert not read(note).is_cut
        async with running_store(tmp_path / "copy") as store:
            assert not store.recovery.rebuilt
            assert [one["body"] for one in read_queue(store)] == [b"0", b"1", b"2", b"3", b"4"]
            assert len(read_queue(store, "U")) == 3

    asyncio.run(run())


class FullForNotes(FailingFiles):
    """Has no room for a record of the note, nor for a whole one beside it, when it is told so."""

    full = False

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.full and Path(f"/proc/self/fd/{fd}").readlink().name.startswith("queuebounds"):
            super().write(fd, data[: len(data) // 2], position)
            raise OSError(errno.ENOSPC, "no room")
        super().write(fd, data, position)


def test_after_half_a_record_the_whole_is_written(tmp_path: Path) -> None:
    files = FullForNotes()

    async def run() -> None:
        async with running_store(tmp_path, files=files, **OFTEN) as store:
            await put(store, topic="T")
            await put(store, topic="U")
            await noted(store, tmp_path)
            files.full = True
            await put(store, topic="U")
            async with asyncio.timeout(20):
                while not read(tmp_path / "queuebounds").is_cut:  # noqa: ASYNC110  # a file, without an event
                    await asyncio.sleep(0.002)
            assert read(tmp_path / "queuebounds").queues == {"T": {0: (0, 1)}, "U": {0: (0, 1)}}
            files.full = False
            await noted(store, tmp_path)
            found = read(tmp_path / "queuebounds")
            assert (found.is_cut, found.queues) == (False, {"T": {0: (0, 1)}, "U": {0: (0, 2)}})

    asyncio.run(run())


@pytest.mark.parametrize("read_before", [False, True])
@pytest.mark.parametrize("damage", [lambda data: data[:40] + bytes(range(20)) + data[60:], lambda data: data[:400]])
def test_queues_of_topics_nobody_looked_at_are_cut_to_their_bounds(
    tmp_path: Path, read_before: bool, damage: Callable[[bytes], bytes]
) -> None:
    """Stale units behind the end, as a crash leaves them, are messages to Apache, which refuses a short file."""

    async def run() -> None:
        async with running_store(tmp_path) as store:
            for number in range(3):
                await put(store, topic=f"Topic-{number}")
        path = tmp_path / "consumequeue" / "Topic-1" / "0" / f"{0:020d}"
        content = path.read_bytes()
        path.write_bytes(damage(content))
        (tmp_path / "abort").touch()
        async with running_store(tmp_path) as store:
            if read_before:
                assert store.max_offset("Topic-1", 0) == 1
        assert path.read_bytes() == content

    asyncio.run(run())


def test_another_size_of_queue_files_is_noticed(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            for number in range(120):
                await put(store, b"%d" % number)
        async with running_store(tmp_path, mapped_file_size_consume_queue=20 * 30) as store:
            assert store.recovery.rebuilt
            assert [one["body"] for one in read_queue(store)] == [b"%d" % number for number in range(120)]

    asyncio.run(run())


@pytest.mark.parametrize("files", ["gone", "there", "emptied"])
def test_bounds_of_before_a_deletion_are_not_those_of_the_new_topic(tmp_path: Path, files: str) -> None:
    """The power goes when the deletion is in ``deletedtopics`` and not in the bounds; the new topic begins at 0."""

    async def run() -> None:
        async with running_store(tmp_path) as store:
            for number in range(3):
                await put(store, b"old %d" % number)
        note = (tmp_path / "queuebounds").read_bytes()
        old = shutil.copytree(tmp_path / "consumequeue" / "T", tmp_path / "old")
        async with running_store(tmp_path) as store:
            await store.delete_topic("T")
            await put(store, b"new")
            crash_copy(tmp_path, tmp_path / "copy")
        (tmp_path / "copy" / "queuebounds").write_bytes(note)
        left = tmp_path / "copy" / "consumequeue" / "T"
        shutil.rmtree(left, ignore_errors=True)
        if files != "gone":
            shutil.copytree(old, left)
        if files == "emptied":
            (left / "0" / f"{0:020d}").unlink()
        async with running_store(tmp_path / "copy") as store:
            assert [one["body"] for one in read_queue(store)] == [b"new"]

    asyncio.run(run())


def test_files_that_are_not_ours_among_those_of_a_queue_are_left_alone(tmp_path: Path) -> None:
    """Neither when a start cuts stale units off, nor when old files go; and none ends the taking of messages."""
    folder = tmp_path / "consumequeue" / "T" / "0"

    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, b"1")
            await store._queue_saver.save_now()
            foreign = [folder / name for name in ("\u00b2", "7", "notes.txt", "0" * 21)]
            for path in foreign:
                path.write_text("mine")
            copy = crash_copy(tmp_path, tmp_path / "killed")
        async with running_store(copy) as store:
            await put(store, b"2")
            await store._queue_saver.save_now()
            await store.delete_expired_units()
            assert store.read_only_reason is None
            assert [one["body"] for one in read_queue(store)] == [b"1", b"2"]
        for path in foreign:
            assert (copy / path.relative_to(tmp_path)).read_text() == "mine"

    asyncio.run(run())
