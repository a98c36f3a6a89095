"""What a start knows by the notes of the last run: where the log began and ended, and what its records are like."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from struct import pack

import pytest

from rocketcore.broker.store import MessageStore, PutResult, PutStatus
from rocketcore.broker.store.notes.small_file import with_crc
from tests.fixtures.stores import SEGMENT_BYTES, crash_copy, message, put, read_queue, running_store, stored

LOG = Path("commitlog") / f"{0:020d}"
SECOND = Path("commitlog") / f"{SEGMENT_BYTES:020d}"
COUNT = 150


async def filled(root: Path, copy: Path | None = None) -> list[PutResult]:
    """Write messages into two files of the log, copy the store as a kill would leave it, stop in order."""
    async with running_store(root) as store:
        await put(store, b"early", topic="Early", queue_id=1)
        places = [store.put(message(b"%06d" % number + bytes(1500), properties=b"K\x01v")) for number in range(COUNT)]
        assert await stored(store, places[-1]) is PutStatus.PUT_OK
        if copy is not None:
            crash_copy(root, copy)
    assert SEGMENT_BYTES < places[-1].physical_offset < 2 * SEGMENT_BYTES
    return places


def numbers(store: MessageStore) -> list[int]:
    return [int(one["body"][:6]) for one in read_queue(store)]


def damaged(store: MessageStore) -> list[tuple[int, int]]:
    return [(one.physical_offset, one.length) for one in store.recovery.damaged]


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def as_rocketmq(root: Path) -> None:
    """Leave the checkpoint as a run of RocketMQ does, which writes its five fields into the file that is there."""
    overwrite(root / "checkpoint", 0, pack(">qqqqq", 1_700_000_000_123, 1_700_000_000_123, 0, 0, 0))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("queuebounds", b"RCQB\0\0\0\2" + bytes(100)),
        ("deletedtopics", with_crc(b'{"version":2,"topics":[["D",5]]}')),
        ("indexbounds", with_crc(b'{"version":2}')),
        ("abort", b"123 456 deadbeef 7".ljust(64)),
        ("checkpoint", bytes(8192)),
    ],
)
def test_a_note_of_another_version_costs_no_message(tmp_path: Path, name: str, content: bytes) -> None:
    """Neither does it bring back what was deleted: of that there are two notes."""

    async def run() -> None:
        async with running_store(tmp_path, message_index_enable=True) as store:
            await put(store, b"deleted", topic="D")
            await store.delete_topic("D")
            for number in range(3):
                await put(store, b"%06d" % number)
        (tmp_path / name).write_bytes(content)
        for _ in range(2):
            async with running_store(tmp_path, message_index_enable=True) as store:
                assert numbers(store) == [0, 1, 2]
                assert read_queue(store, "D") == []
                assert damaged(store) == []

    asyncio.run(run())


@pytest.mark.parametrize("how", ["removed", "zeroed", "garbage"])
def test_first_files_that_are_gone_are_named_when_no_note_is_left(tmp_path: Path, how: str) -> None:
    """A log begins at 0 until RocketMQ deletes from it: where nothing says that it did, messages may be missing."""

    async def run() -> None:
        places = await filled(tmp_path)
        (tmp_path / LOG).unlink()
        for note in (tmp_path / "queuebounds", tmp_path / "checkpoint"):
            if how == "removed":
                note.unlink()
            else:
                overwrite(note, 0, bytes(400) if how == "zeroed" else b"?" * 400)
        lost = sum(place.physical_offset < SEGMENT_BYTES for place in places)
        async with running_store(tmp_path) as store:
            assert damaged(store) == [(0, SEGMENT_BYTES)]
            assert numbers(store) == list(range(lost, COUNT))
        async with running_store(tmp_path) as store:
            assert damaged(store) == []
            assert numbers(store) == list(range(lost, COUNT))

    asyncio.run(run())


def test_a_damaged_queue_of_a_log_that_lost_its_first_file(tmp_path: Path) -> None:
    """Units of zeros lead before the log's begin, as those of the lost file do, but their messages are there."""

    async def run() -> None:
        places = await filled(tmp_path)
        (tmp_path / LOG).unlink()
        lost = sum(place.physical_offset < SEGMENT_BYTES for place in places)
        for path in sorted((tmp_path / "consumequeue/T/0").iterdir())[:-1]:
            overwrite(path, 0, bytes(path.stat().st_size))
        async with running_store(tmp_path) as store:
            assert numbers(store) == list(range(lost, COUNT))
            assert store.min_offset("T", 0) == lost

    asyncio.run(run())


@pytest.mark.parametrize("bounds", [True, False])
def test_files_that_rocketmq_deleted_are_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, bounds: bool
) -> None:
    """The log begins later, and so do the queues; a queue that had no message behind that keeps its end."""
    caplog.set_level(logging.WARNING)

    async def run() -> None:
        places = await filled(tmp_path)
        (tmp_path / LOG).unlink()
        as_rocketmq(tmp_path)
        if not bounds:
            (tmp_path / "queuebounds").unlink()
        gone = sum(place.physical_offset < SEGMENT_BYTES for place in places)
        async with running_store(tmp_path) as store:
            assert damaged(store) == []
            assert numbers(store) == list(range(gone, COUNT))
            assert store.min_offset("T", 0) == gone
            assert store.max_offset("Early", 1) == 1
        assert {record.levelname for record in caplog.records} == {"WARNING"}
        assert f"begins later path={tmp_path / LOG} position=0 bytes={SEGMENT_BYTES}" in caplog.text

    asyncio.run(run())


def test_a_store_of_rocketmqs_may_begin_anywhere(tmp_path: Path) -> None:
    async def run() -> None:
        places = await filled(tmp_path)
        (tmp_path / LOG).unlink()
        for name in ("queuebounds", "checkpoint"):
            (tmp_path / name).unlink()
        (tmp_path / "checkpoint").write_bytes(bytes(4096))
        as_rocketmq(tmp_path)
        gone = sum(place.physical_offset < SEGMENT_BYTES for place in places)
        async with running_store(tmp_path) as store:
            assert damaged(store) == []
            assert numbers(store) == list(range(gone, COUNT))

    asyncio.run(run())


def test_the_checkpoint_tells_how_far_the_log_went(tmp_path: Path) -> None:
    """Where ``queuebounds`` is lost with the end of the log."""

    async def run() -> None:
        places = await filled(tmp_path)
        (tmp_path / "queuebounds").unlink()
        begin = places[-10].physical_offset
        overwrite(tmp_path / SECOND, begin - SEGMENT_BYTES, bytes(2 * SEGMENT_BYTES - begin))
        async with running_store(tmp_path) as store:
            assert sum(length for _, length in damaged(store)) >= places[-1].end_offset - begin
            assert numbers(store) == list(range(COUNT - 10))

    asyncio.run(run())


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_records_that_lost_their_checksums_at_the_begin_of_a_file(tmp_path: Path, end: str) -> None:
    """The notes tell that records of this log have one: these are damaged and not of an older writer."""
    folder = tmp_path / end

    async def run() -> None:
        places = await filled(tmp_path / "stop", tmp_path / "kill")
        first = [place for place in places if place.physical_offset >= SEGMENT_BYTES][:2]
        for place in first:
            overwrite(folder / SECOND, place.end_offset - SEGMENT_BYTES - 20, bytes(20))
        async with running_store(folder) as store:
            kept = set(range(COUNT)) - {place.queue_offset for place in first}
            assert set(numbers(store)) == kept

    asyncio.run(run())
