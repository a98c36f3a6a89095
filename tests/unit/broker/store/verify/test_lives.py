"""Verification of stores that have been through something: crashes, deletions, old files that went."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fixtures.retention import life
from tests.fixtures.stores import (
    SEGMENT_BYTES,
    put,
)
from tests.fixtures.verified_store import (
    COUNT,
    INDEX,
    log_file,
    look,
    only,
    overwrite,
    repair,
    repaired,
    running_store,
)


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
