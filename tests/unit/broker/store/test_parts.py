"""Each part of the store alone: what it promises to the others, which the store's own tests see joined."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path
from typing import cast

import pytest

from rocketcore.broker.store import GetStatus, PutStatus
from rocketcore.broker.store.file_system import FileSystem, LostWrite
from rocketcore.broker.store.index.message_index import MessageIndex
from rocketcore.broker.store.keeping.cleaner import Cleaner
from rocketcore.broker.store.keeping.log_begin import LogBegin
from rocketcore.broker.store.keeping.queue_notes import QueueNote
from rocketcore.broker.store.keeping.topic_deletion import TopicDeletion
from rocketcore.broker.store.log.pages import Pages
from rocketcore.broker.store.log.segment_file import Segment
from rocketcore.broker.store.notes.checkpoint import Checkpoint
from rocketcore.broker.store.notes.queue_bounds import QueueBounds
from rocketcore.broker.store.reading.cold_reads import ColdReads
from rocketcore.broker.store.reading.reader import Reader
from rocketcore.broker.store.reading.records import Records
from rocketcore.errors import StoreError, StoreLocked
from rocketcore.service import SYSTEM_CLOCK
from tests.fixtures.retention import Disk
from tests.fixtures.store_parts import StoreParts, opened
from tests.fixtures.stores import SEGMENT_BYTES, FailingFiles, add_unit, message, records


async def committed(parts: StoreParts) -> None:
    await parts.committer.drain()


def running(parts: StoreParts) -> None:
    """Start what has threads."""
    loop = asyncio.get_running_loop()
    parts.committer.start(loop)
    parts.saver.start(loop, 0)


async def ended(parts: StoreParts) -> None:
    await parts.saver.stop()
    with contextlib.suppress(OSError):  # of a committer that failed
        await parts.committer.stop()


# Appender


def test_an_appender_lays_out_and_commits_nothing_itself(tmp_path: Path) -> None:
    async def run() -> None:
        with opened(tmp_path) as parts:
            running(parts)
            first, second = parts.put(b"1"), parts.put(b"2", queue_id=3)
            assert (first.physical_offset, second.physical_offset) == (0, first.end_offset)
            assert parts.log.end_offset == second.end_offset
            assert (parts.log.written, parts.committer.durable_offset, parts.arrived) == (0, 0, [])
            await committed(parts)
            assert parts.committer.durable_offset == second.end_offset
            await ended(parts)

    asyncio.run(run())


def test_an_appender_tells_the_oldest_of_its_refusals(tmp_path: Path) -> None:
    with opened(tmp_path) as parts:
        for cause in ("disk", "queues"):
            parts.appender.refuse(cause, f"{cause} full")
        assert parts.appender.put(message()).reason == "disk full"
        parts.appender.refuse("disk", "")
        assert parts.appender.put(message()).reason == "queues full"
        assert parts.log.end_offset == 0


# Committer


def test_a_committer_answers_in_order_and_not_before_the_group_is_dispatched(tmp_path: Path) -> None:
    told: list[tuple[int, PutStatus, int]] = []

    async def run() -> None:
        with opened(tmp_path) as parts:
            running(parts)
            for number in range(3):
                end = parts.put(b"%d" % number).end_offset
                parts.committer.wait(end, lambda status, n=number: told.append((n, status, len(parts.arrived))))  # type: ignore[misc]
            assert parts.committer.waiting == 3
            await committed(parts)
            await ended(parts)

    asyncio.run(run())
    assert told == [(number, PutStatus.PUT_OK, 1) for number in range(3)]


def test_a_committer_that_failed_answers_all_and_writes_no_more(tmp_path: Path) -> None:
    told: list[PutStatus] = []

    async def run() -> None:
        files = FailingFiles()
        with opened(tmp_path, files) as parts:
            running(parts)
            files.fail(0, errno.EIO, only="sync")
            parts.committer.wait(parts.put(b"1").end_offset, told.append)
            await parts.committer.drain()
            await ended(parts)
            assert "fsync" in (parts.committer.read_only_reason or "")
            assert parts.refusals["disk"] == parts.committer.read_only_reason
            calls = len(files.calls)
            parts.committer.wait(parts.log.end_offset, told.append)
            parts.committer.sync_log()
            assert len(files.calls) == calls

    asyncio.run(run())
    assert told == [PutStatus.SERVICE_NOT_AVAILABLE] * 2


# Dispatcher


def test_a_dispatcher_makes_a_group_readable_and_then_announces_it(tmp_path: Path) -> None:
    with opened(tmp_path) as parts:
        parts.committer.schedule = lambda: None  # type: ignore[method-assign]  # nobody commits what is put here
        for number in range(3):
            parts.put(b"%d" % number, queue_id=number % 2)
        group = parts.log.take()
        assert group is not None
        assert parts.queues.find("T", 0) is None
        parts.dispatcher.dispatch(group)
        queues = parts.queues.topic("T")
        assert [queue.max_offset for queue in queues] == [2, 1]
        assert sorted(parts.arrived) == [("T", 0, 2, 0), ("T", 1, 1, 0)]
        assert parts.queues.changed == set(queues)


# Reader


def test_a_reader_gives_a_queue_from_an_offset_on(tmp_path: Path) -> None:
    async def run() -> None:
        with opened(tmp_path) as parts:
            running(parts)
            parts.put(b"1")
            parts.put(b"2")
            await committed(parts)
            pages = Pages(parts.log)
            checked = Records(parts.log, parts.queues, pages, SYSTEM_CLOCK, lambda queue, offset: "it is not repaired")
            reader = Reader(parts.config, parts.log, parts.queues, pages, checked)
            found = reader.get("T", 0, 0, 32, None, None, None, parts.log.written, wide=False)
            assert [one["body"] for one in records(found.body)] == [b"1", b"2"]
            found = reader.get("T", 0, 1, 32, None, None, None, parts.log.written, wide=False)
            assert [one["body"] for one in records(found.body)] == [b"2"]
            assert reader.get("T", 0, 2, 32, None, None, None, 0, wide=False).status is GetStatus.OFFSET_OVERFLOW_ONE
            assert reader.get("T", 1, 0, 32, None, None, None, 0, wide=False).status is GetStatus.NO_MESSAGE_IN_QUEUE
            await ended(parts)

    asyncio.run(run())


# Cleaner


class Begin:
    """Where the log begins: remembers to where it was asked to move."""

    def __init__(self, parts: StoreParts) -> None:
        self.parts = parts
        self.moved: list[int] = []

    async def move_to(self, begin: int) -> list[Segment]:
        self.moved.append(begin)
        return self.parts.log.begin_at(begin)

    async def search_again(self) -> None:
        pass

    async def remove_old_units(self) -> int:
        return 0


class Index:
    """An index that holds nothing."""

    async def remove_before(self, begin: int) -> None:
        pass


def test_a_cleaner_asks_for_what_is_needed_before_it_moves_the_begin(tmp_path: Path) -> None:
    async def run() -> None:
        disk = Disk()
        with opened(tmp_path, disk, delete_when="00;12", delete_commit_log_files_interval=0) as parts:
            running(parts)
            while len(parts.log.segments) < 4:
                parts.put(bytes(16_000))
                await committed(parts)
            begin, reads = Begin(parts), ColdReads(Pages(parts.log), SYSTEM_CLOCK)
            reads.start(asyncio.get_running_loop())
            told: list[str] = []
            cleaner = Cleaner(
                parts.config, parts.log, parts.saver, cast(LogBegin, begin), cast(MessageIndex, Index()), reads, disk,
                SYSTEM_CLOCK, told.append,
            )  # fmt: skip
            await cleaner.look()
            assert (begin.moved, told) == ([], [""])
            disk.percent = 86
            cleaner.keep_from(lambda: SEGMENT_BYTES + 1)
            await cleaner.look()
            assert (begin.moved, parts.log.min_offset) == ([SEGMENT_BYTES], SEGMENT_BYTES)
            assert cleaner.deleted_bytes == SEGMENT_BYTES
            disk.percent = 91
            cleaner.keep_from(lambda: 0)
            await cleaner.look()
            assert begin.moved == [SEGMENT_BYTES]
            assert "disk full: 91.0 %" in told[-1]
            await reads.stop()
            await ended(parts)

    asyncio.run(run())


# Notes of the queues


def noted(parts: StoreParts, note: QueueNote | None) -> QueueBounds:
    assert note is not None
    parts.notes.write(note)
    parts.notes.noted(note)
    found = QueueBounds.read(parts.config.root / "queuebounds", FileSystem())
    assert found is not None
    return found


def test_a_note_has_what_changed_and_there_is_none_without_news(tmp_path: Path) -> None:
    with opened(tmp_path) as parts:
        for topic in ("A", "B"):
            add_unit(parts.queues.topic(topic).queue(0), 0, 0, 100, 0)
        first = parts.notes.next(100, 7)
        assert first is not None
        assert first.after is None
        assert noted(parts, first).queues == {"A": {0: (0, 1)}, "B": {0: (0, 1)}}
        assert parts.notes.next(100, 7) is None
        add_unit(parts.queues.topic("B").queue(0), 1, 100, 100, 0)
        parts.notes.grew({"B"})
        assert parts.notes.next(100, 7) is None  # of what was put behind it there is nothing to note yet
        second = parts.notes.next(200, 8)
        assert second is not None
        assert list(second.bounds.rows) == ["B"]
        assert noted(parts, second).queues == {"A": {0: (0, 1)}, "B": {0: (0, 2)}}
        checkpoint = Checkpoint.read(tmp_path / "checkpoint", FileSystem())
        assert (checkpoint.confirm_physical_offset, checkpoint.logics_msg_timestamp) == (200, 8)
        assert parts.notes.known_until == 200


def test_a_note_that_failed_is_made_again_with_all_topics(tmp_path: Path) -> None:
    files = FailingFiles()
    with opened(tmp_path, files) as parts:
        for topic in ("A", "B"):
            add_unit(parts.queues.topic(topic).queue(0), 0, 0, 100, 0)
        noted(parts, parts.notes.next(100, 7))
        parts.notes.changed("A")
        failed = parts.notes.next(100, 7)
        assert failed is not None
        files.fail(0, errno.EIO, only="sync")
        with pytest.raises(LostWrite):
            parts.notes.write(failed)
        parts.notes.not_noted(failed)
        again = parts.notes.next(100, 7)
        assert again is not None
        assert again.after is None
        assert sorted(again.bounds.rows) == ["A", "B"]


# QueueSaver


def test_a_saver_writes_units_and_notes_them_when_it_is_thorough(tmp_path: Path) -> None:
    async def run() -> None:
        with opened(tmp_path) as parts:
            running(parts)
            parts.put(b"1")
            await committed(parts)
            queue = parts.queues.topic("T").queue(0)
            await parts.saver.save_now(thorough=False)
            assert (queue.saved, parts.notes.noted_offset) == (1, -1)
            await parts.saver.save_now()
            assert parts.notes.noted_offset == parts.committer.durable_offset
            await ended(parts)

    asyncio.run(run())


def test_a_saver_that_cannot_write_has_sends_refused_until_it_can(tmp_path: Path) -> None:
    async def run() -> None:
        files = FailingFiles()
        with opened(tmp_path, files) as parts:
            running(parts)
            parts.put(b"1")
            await committed(parts)
            files.fail(0, errno.ENOSPC, only="resize")
            await parts.saver.save_now()
            assert "disk full: consume queues" in parts.refusals["queues"]
            assert parts.queues.topic("T").queue(0).saved == 0
            await parts.saver.save_now()
            assert parts.refusals["queues"] == ""
            assert parts.queues.topic("T").queue(0).saved == 1
            await ended(parts)

    asyncio.run(run())


def test_a_saver_whose_sync_failed_ends_the_taking_of_messages(tmp_path: Path) -> None:
    async def run() -> None:
        files = FailingFiles()
        with opened(tmp_path, files) as parts:
            running(parts)
            parts.put(b"1")
            await committed(parts)
            files.fail(0, errno.EIO, only="sync")
            await parts.saver.save_now()
            assert "consume queues" in (parts.committer.read_only_reason or "")
            calls = files.calls.count("sync")
            assert await parts.saver.save_all() is False
            async with parts.saver.lock:
                assert await parts.saver.save_under_lock() == parts.committer.read_only_reason
            assert files.calls.count("sync") == calls
            await ended(parts)

    asyncio.run(run())


# TopicDeletion


def test_a_deletion_is_told_when_it_is_noted_and_then_the_files_go(tmp_path: Path) -> None:
    async def run() -> None:
        with opened(tmp_path) as parts:
            running(parts)
            parts.put(b"1")
            await committed(parts)
            await parts.saver.save_now()
            deletion = TopicDeletion(parts.log, parts.dispatcher, parts.saver, lambda: False)
            told = deletion.delete("T")
            assert parts.queues.find("T", 0) is None
            await told
            bounds = QueueBounds.read(tmp_path / "queuebounds", FileSystem())
            assert bounds is not None
            assert (bounds.queues, bounds.deleted_before) == ({}, {"T": parts.log.end_offset})
            assert await parts.saver.save_all()
            assert not (tmp_path / "consumequeue" / "T").exists()
            assert not parts.notes.deleted.has_news
            await ended(parts)

    asyncio.run(run())


def test_a_deletion_that_is_not_noted_leaves_the_files(tmp_path: Path) -> None:
    async def run() -> None:
        files = FailingFiles()
        with opened(tmp_path, files) as parts:
            running(parts)
            parts.put(b"1")
            await committed(parts)
            await parts.saver.save_now()
            deletion = TopicDeletion(parts.log, parts.dispatcher, parts.saver, lambda: False)
            files.fail(0, errno.ENOSPC, only="rename")
            with pytest.raises(StoreError, match=r"the deletion of topic T is not durable: .*No space left"):
                await deletion.delete("T")
            assert (tmp_path / "consumequeue" / "T").exists()
            await deletion.delete("T")  # nothing waits, and it is noted now
            assert await parts.saver.save_all()
            assert not (tmp_path / "consumequeue" / "T").exists()
            await ended(parts)

    asyncio.run(run())


# StoreFolder


def test_a_folder_is_marked_while_a_store_runs_on_it(tmp_path: Path) -> None:
    with opened(tmp_path) as parts:
        assert (tmp_path / "abort").exists()
        with pytest.raises(StoreLocked), opened(tmp_path):
            pass
        parts.folder.run_ended()
        assert not (tmp_path / "abort").exists()
    with opened(tmp_path):
        pass
    again = StoreParts(tmp_path, FileSystem(), SYSTEM_CLOCK, {})
    again.folder.take()
    found = again.folder.open(rebuild=False)
    assert (found.is_clean, found.recovery.end_offset) == (False, 0)
    again.log.close()
    again.folder.close()
