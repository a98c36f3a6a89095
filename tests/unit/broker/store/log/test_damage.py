"""Damage in the log: named, put aside, bridged; what lies behind it is kept."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from pathlib import Path

import pytest

from rocketcore._fast.commit_log import COLUMNS, walk
from rocketcore._fast.record import encode_stored, put_stored
from rocketcore.broker.store import MessageStore, PutResult
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.log.damage import TOMBSTONE_MAX_BYTES, TOMBSTONE_MIN_BYTES, bridge
from rocketcore.broker.store.log.segment_file import Segment
from rocketcore.errors import StoreCorrupted
from rocketcore.table import Table
from tests.fixtures.stores import (
    SEGMENT_BYTES,
    STORE_HOST,
    FailingFiles,
    crash_copy,
    put,
    read_queue,
    running_store,
    store_config,
)
from tests.reference import commit_log as reference
from tests.reference.message import MAGIC_V1

LOG = Path("commitlog") / f"{0:020d}"


async def crashed(root: Path, count: int = 20, *, noted: int = 0, size: int = 500) -> list[PutResult]:
    """Leave a store as a kill does, with ``count`` messages, ``noted`` of them before the last note; none without."""
    live = root.with_name(root.name + "-live")
    places = []
    if noted:
        async with running_store(live) as store:
            places += [await put(store, b"%06d" % number + bytes(size)) for number in range(noted)]
    async with running_store(live) as store:
        for number in range(len(places), count):
            places.append(await put(store, b"%06d" % number + bytes(size)))
        crash_copy(live, root)
    if not noted:
        (root / "queuebounds").unlink(missing_ok=True)
    return places


def numbers(store: MessageStore) -> list[int]:
    return [int(one["body"][:6]) for one in read_queue(store)]


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int) -> None:
    overwrite(path, position, bytes([path.read_bytes()[position] ^ 8]))


def without(count: int, *lost: int) -> list[int]:
    return [number for number in range(count) if number not in lost]


@pytest.mark.parametrize("noted", [0, 5, 11, 15])
@pytest.mark.parametrize("where", ["size", "body", "topic", "checksum", "offset", "all"])
def test_damage_costs_one_message_wherever_the_note_is(
    tmp_path: Path, noted: int, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In what was read before and after the last note, in the last record before it, and without a note."""
    root = tmp_path / "s"

    async def run() -> None:
        places = await crashed(root, noted=noted)
        hit = places[10]
        at = {"size": 2, "body": 300, "topic": hit.size - 23, "checksum": hit.size - 4, "offset": 30, "all": 0}[where]
        if where == "all":
            overwrite(root / LOG, hit.physical_offset, bytes(hit.size))
        else:
            flip(root / LOG, hit.physical_offset + at)
        if noted > 10:
            # The queues were lost with the damage, so that the log is read before the note too.
            shutil.rmtree(root / "consumequeue")
        raw = (root / LOG).read_bytes()[hit.physical_offset : hit.end_offset]
        with caplog.at_level(logging.ERROR):
            async with running_store(root) as store:
                assert [tuple(one) for one in store.recovery.damaged] == [(root / LOG, hit.physical_offset, hit.size)]
                assert store.recovery.damaged_bytes == hit.size
                assert f"path={root / LOG} position={hit.physical_offset} bytes={hit.size}" in caplog.text
                assert numbers(store) == without(20, 10)
                assert (await put(store, b"%06d" % 20)).queue_offset == 20
        aside = root / "damaged" / f"{hit.physical_offset:020d}"
        assert aside.read_bytes() == raw if any(raw) else not aside.exists()
        log = (root / LOG).read_bytes()
        walked = reference.walk(log, 0, len(log), 0, 1000)
        assert len(walked.records) == 22 - 1
        assert {record.topic for record in walked.records} == {b"T", b"RMQ_SYS_DAMAGED"}
        (root / "queuebounds").unlink()
        async with running_store(root) as store:
            assert store.recovery.damaged == []
            assert numbers(store) == without(21, 10)

    asyncio.run(run())


@pytest.mark.parametrize("size", [TOMBSTONE_MIN_BYTES, 100, 106, 125, 126, 127, 1000, 3 * TOMBSTONE_MAX_BYTES + 50])
@pytest.mark.parametrize("checksum", [True, False])
def test_tombstones_are_records_that_nobody_queues(tmp_path: Path, size: int, *, checksum: bool) -> None:
    whole = 4 * TOMBSTONE_MAX_BYTES
    path = tmp_path / f"{whole:020d}"
    path.write_bytes(b"\xff" * whole)
    segment = Segment(path, whole, whole, FileSystem())
    bridge(segment, 1000, 1000 + size, 1700000000000, checksum=checksum)
    bridge(segment, 1000 + size, whole, 1700000000000, checksum=checksum)
    segment.close()
    log = path.read_bytes()
    assert log[:1000] == b"\xff" * 1000
    walked = reference.walk(log, 1000, whole, whole, 1000)
    assert (walked.position, walked.status) == (1000 + size, reference.FILLER)
    for record in walked.records:
        assert (record.magic, record.sys_flag & 0xC) == (MAGIC_V1, 4)
        assert record.topic
        assert b"RMQ_SYS_DAMAGED".startswith(record.topic)
        assert record.size <= TOMBSTONE_MAX_BYTES + TOMBSTONE_MIN_BYTES
    assert walked.sealed is (checksum and size >= 126)


@pytest.mark.parametrize("forever", [False, True])
def test_a_start_that_fails_anywhere_on_damage_is_done_again(tmp_path: Path, *, forever: bool) -> None:
    """Each call that changes a file fails once, or that one and all after it; the next start comes to the same."""

    async def run() -> None:
        places = await crashed(tmp_path / "s", noted=5)
        for at in (7, 8, 12):
            flip(tmp_path / "s" / LOG, places[at].physical_offset + 100)
        raw = (tmp_path / "s" / LOG).read_bytes()
        shutil.rmtree(tmp_path / "s" / "consumequeue")
        number, failed = 0, True
        while failed:
            root = tmp_path / f"t{number}"
            shutil.copytree(tmp_path / "s", root)
            files = FailingFiles()
            files.fail(number, errno.EIO, forever=forever)
            store = MessageStore(store_config(root), store_host=STORE_HOST, files=files)
            failed = False
            try:
                store.load()
                await store.stop()
            except OSError:
                failed = True
            async with running_store(root) as store:
                assert numbers(store) == without(20, 7, 8, 12)
                assert (await put(store, b"%06d" % 20)).queue_offset == 20
            begin, end = places[7].physical_offset, places[8].end_offset
            assert (root / "damaged" / f"{begin:020d}").read_bytes() == raw[begin:end]
            shutil.rmtree(root)
            number += 1
        assert number > 10

    asyncio.run(run())


def test_a_bridge_that_was_torn_is_laid_again(tmp_path: Path) -> None:
    root = tmp_path / "s"

    async def run() -> None:
        places = await crashed(root, size=5000)
        hit = places[10]
        flip(root / LOG, hit.physical_offset + 1000)
        raw = (root / LOG).read_bytes()
        async with running_store(root) as store:
            assert numbers(store) == without(20, 10)
        for cut in (0, 8, 60, 3000, hit.size - 5):
            # What the disk has of the tombstone: its begin; the rest is as before.
            bridged = (root / LOG).read_bytes()[hit.physical_offset : hit.end_offset]
            overwrite(root / LOG, hit.physical_offset + cut, raw[hit.physical_offset + cut : hit.end_offset])
            (root / "queuebounds").unlink()
            async with running_store(root) as store:
                assert numbers(store) == without(20, 10)
            assert (root / LOG).read_bytes()[hit.physical_offset : hit.end_offset][-20:-11] == b"__CRC32#\x01"
            assert len(bridged) == hit.size
        aside = root / "damaged" / f"{hit.physical_offset:020d}"
        assert aside.read_bytes() == raw[hit.physical_offset : hit.end_offset]

    asyncio.run(run())


@pytest.mark.parametrize("pages", [1, 3, 15])
def test_lost_pages(tmp_path: Path, pages: int) -> None:
    root = tmp_path / "s"

    async def run() -> None:
        places = await crashed(root, 60, size=1500)
        begin = 5 * 4096
        end = begin + pages * 4096
        overwrite(root / LOG, begin, bytes(end - begin))
        lost = [n for n, place in enumerate(places) if place.physical_offset < end and place.end_offset > begin]
        async with running_store(root) as store:
            assert numbers(store) == without(60, *lost)
            (damaged,) = store.recovery.damaged
            assert (damaged.physical_offset, damaged.length) == (
                places[lost[0]].physical_offset,
                places[lost[-1]].end_offset - places[lost[0]].physical_offset,
            )

    asyncio.run(run())


@pytest.mark.parametrize("byte", [5, 6])
def test_a_damaged_filler_costs_no_message(tmp_path: Path, byte: int) -> None:
    root = tmp_path / "s"

    async def run() -> None:
        places = await crashed(root, 100, size=2000)
        last = max(place.end_offset for place in places if place.end_offset <= SEGMENT_BYTES)
        flip(root / LOG, last + byte)
        async with running_store(root) as store:
            assert numbers(store) == list(range(100))
            assert store.recovery.damaged_bytes == SEGMENT_BYTES - last
        (root / "queuebounds").unlink()
        async with running_store(root) as store:
            assert numbers(store) == list(range(100))
            assert store.recovery.damaged == []

    asyncio.run(run())


def test_the_last_message_before_the_note_is_named_and_its_offset_not_given_again(tmp_path: Path) -> None:
    """Nothing lies behind it, but the note knows that it was on disk."""
    root = tmp_path / "s"

    async def run() -> None:
        places = await crashed(root, 10, noted=10)
        flip(root / LOG, places[9].physical_offset + 100)
        shutil.rmtree(root / "consumequeue")
        async with running_store(root) as store:
            assert [one.physical_offset for one in store.recovery.damaged] == [places[9].physical_offset]
            assert numbers(store) == list(range(9))
            assert (await put(store, b"%06d" % 10)).queue_offset == 10
        async with running_store(root) as store:
            assert numbers(store) == without(11, 9)

    asyncio.run(run())


def test_a_torn_tail_is_cleared_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "s"

    async def run() -> None:
        places = await crashed(root, 10)
        overwrite(root / LOG, places[9].physical_offset + 300, b"\xff" * 20)
        torn = (root / LOG).read_bytes()[places[9].physical_offset : places[9].end_offset]
        async with running_store(root) as store:
            assert numbers(store) == list(range(9))
            assert store.recovery.damaged == []
            begin = places[9].physical_offset
            (tail,) = store.recovery.torn
            assert (tail.path, tail.physical_offset) == (root / LOG, begin)
            assert tail.length >= places[9].size
            assert "no sound record lies behind it: a write that was cut off" in caplog.text
            assert f"path={root / LOG} position={begin} bytes={tail.length}" in caplog.text
            assert (await put(store, b"%06d" % 9)).physical_offset == begin
        assert (root / "damaged" / f"{begin:020d}").read_bytes() == torn

    asyncio.run(run())


def test_a_tail_that_cannot_be_put_aside_is_not_cleared(tmp_path: Path) -> None:
    root = tmp_path / "s"

    async def run() -> None:
        places = await crashed(root, 10)
        flip(root / LOG, places[9].physical_offset + 300)
        before = (root / LOG).read_bytes()
        files = FailingFiles()
        files.fail(0, errno.ENOSPC, only="write", forever=True)
        with pytest.raises(OSError, match="No space left"):
            MessageStore(store_config(root), store_host=STORE_HOST, files=files).load()
        assert (root / LOG).read_bytes() == before

    asyncio.run(run())


@pytest.mark.parametrize("noted", [True, False])
def test_first_files_that_are_gone_are_named(tmp_path: Path, *, noted: bool) -> None:
    """By either note: the bounds of the queues, or the checkpoint."""

    async def run() -> None:
        async with running_store(tmp_path) as store:
            places = [await put(store, b"%06d" % number + bytes(2000)) for number in range(200)]
        (tmp_path / LOG).unlink()
        if not noted:
            (tmp_path / "queuebounds").unlink()
        lost = sum(place.physical_offset < SEGMENT_BYTES for place in places)
        async with running_store(tmp_path) as store:
            assert [tuple(one) for one in store.recovery.damaged] == [(tmp_path / LOG, 0, SEGMENT_BYTES)]
            assert numbers(store) == list(range(lost, 200))
        async with running_store(tmp_path) as store:
            assert store.recovery.damaged == []
            assert numbers(store) == list(range(lost, 200))

    asyncio.run(run())


@pytest.mark.parametrize("noted", [0, 150])
def test_a_last_file_that_is_gone_is_named(tmp_path: Path, noted: int) -> None:
    """The filler of the one before tells that it was there."""
    root = tmp_path / "s"

    async def run() -> None:
        places = await crashed(root, 150, noted=noted, size=1500)
        gone = root / "commitlog" / f"{SEGMENT_BYTES:020d}"
        gone.unlink()
        (root / "commitlog" / f"{2 * SEGMENT_BYTES:020d}").unlink(missing_ok=True)
        left = sum(place.physical_offset < SEGMENT_BYTES for place in places)
        assert 0 < left < 150
        async with running_store(root) as store:
            (damaged,) = store.recovery.damaged
            assert (damaged.path, damaged.physical_offset) == (gone, SEGMENT_BYTES)
            assert damaged.length >= places[-1].end_offset - SEGMENT_BYTES
            assert numbers(store) == list(range(left))

    asyncio.run(run())


@pytest.mark.parametrize("zeroed", [0, 4096])
def test_a_last_file_that_is_gone_is_named_by_the_one_behind_it(tmp_path: Path, zeroed: int) -> None:
    """The next file was made ahead and is empty; the end of the file before may be lost as well."""
    root = tmp_path / "s"

    async def run() -> None:
        places = await crashed(root, 150, size=1500)
        gone = root / "commitlog" / f"{SEGMENT_BYTES:020d}"
        gone.unlink()
        (root / "commitlog" / f"{2 * SEGMENT_BYTES:020d}").write_bytes(bytes(SEGMENT_BYTES))
        overwrite(root / LOG, SEGMENT_BYTES - zeroed, bytes(zeroed))
        left = [place for place in places if place.end_offset <= SEGMENT_BYTES - max(zeroed, 8)]
        begin = left[-1].end_offset if zeroed else SEGMENT_BYTES
        async with running_store(root) as store:
            named = [(one.physical_offset, one.length) for one in store.recovery.damaged]
            assert named == [(begin, 2 * SEGMENT_BYTES - begin)]
            assert numbers(store) == list(range(len(left)))
        async with running_store(root) as store:
            assert store.recovery.damaged == []

    asyncio.run(run())


@pytest.mark.parametrize("length", [0, 5000, SEGMENT_BYTES - 1])
def test_what_a_short_last_file_lacks_is_named(tmp_path: Path, length: int) -> None:
    """Files are made at full size: whatever it held is gone, whether or not a note says that it held something."""
    root = tmp_path / "s"

    async def run() -> None:
        places = await crashed(root, 150, size=1500)
        os.truncate(root / "commitlog" / f"{SEGMENT_BYTES:020d}", max(length, 1))
        (root / "commitlog" / f"{2 * SEGMENT_BYTES:020d}").unlink(missing_ok=True)
        left = [place for place in places if place.end_offset <= SEGMENT_BYTES + length]
        assert len(left) < 150 or length > 5000
        async with running_store(root) as store:
            named = [(one.physical_offset, one.physical_offset + one.length) for one in store.recovery.damaged]
            assert named == [(left[-1].end_offset if length else SEGMENT_BYTES, 2 * SEGMENT_BYTES)]
            assert numbers(store) == list(range(len(left)))
            await put(store, b"%06d" % len(left))
        async with running_store(root) as store:
            assert store.recovery.damaged == []
            assert numbers(store)[-1] == len(left)

    asyncio.run(run())


def test_files_with_other_names_are_left_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, b"%06d" % 0)
        other = tmp_path / "commitlog" / f"{SEGMENT_BYTES * 9:021d}"
        other.write_bytes(b"of somebody else")
        async with running_store(tmp_path) as store:
            assert numbers(store) == [0]
        assert other.read_bytes() == b"of somebody else"

    asyncio.run(run())


FIELDS = {"size": 2, "magic": 5, "queue id": 15, "offset": 30, "system flag": 39, "body length": 86, "end": -3}


async def with_forged_body(live: Path) -> tuple[PutResult, int]:
    """Three messages, the second of which holds a record of the very place where it lies: (the second, that place)."""
    async with running_store(live) as store:
        first = await put(store, b"%06d" % 0)
        at = first.end_offset + 88 + 6
        forged = encode_stored(
            topic=b"T", queue_id=0, flag=0, queue_offset=1, physical_offset=at, sys_flag=0, born_timestamp=1,
            born_host=bytes(8), store_timestamp=1, store_host=bytes(8), reconsume_times=0, prepared_offset=0,
            body=b"%06d" % 666, properties=b"", checksum=True,
        )  # fmt: skip
        hit = await put(store, b"%06d" % 1 + forged + bytes(100))
        assert hit.physical_offset + 88 == at - 6
        await put(store, b"%06d" % 2)
        log = (live / LOG).read_bytes()
        assert walk(log, at, len(log), 0, Table(1, COLUMNS).view)[0] == 1
        assert store.lookup(at) is None
        assert store.lookup(hit.physical_offset) is not None
    return hit, at


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("field", FIELDS)
def test_bytes_in_a_body_do_not_pass_as_a_record_of_the_log(tmp_path: Path, field: str, *, last: bool) -> None:
    """Behind damage to the message that holds them, wherever that is hit: what is inside of it is not looked at."""
    root = tmp_path / "s"

    async def run() -> None:
        hit, _ = await with_forged_body(root)
        flip(root / LOG, (hit.end_offset if field == "end" else hit.physical_offset) + FIELDS[field])
        shutil.rmtree(root / "consumequeue")
        if last:
            (root / "queuebounds").unlink()
            overwrite(root / LOG, hit.end_offset, bytes(SEGMENT_BYTES - hit.end_offset))
        async with running_store(root) as store:
            assert numbers(store) == ([0] if last else [0, 2])
            [named] = store.recovery.damaged
            assert named.physical_offset == hit.physical_offset
            # A message that was noted to be on disk, and is gone, is named with the one before it.
            assert named.length > hit.size if last else named.length == hit.size

    asyncio.run(run())


def test_bytes_in_a_body_do_not_get_into_a_queue_that_is_repaired(tmp_path: Path) -> None:
    async def run() -> None:
        hit, _ = await with_forged_body(tmp_path)
        async with running_store(tmp_path) as store:
            flip(tmp_path / LOG, hit.physical_offset + FIELDS["offset"])
            with pytest.raises(StoreCorrupted, match="damaged at offset 1"):
                store.get("T", 0, 1, 32)
            async with asyncio.timeout(20):
                while not store.stats.repaired_queues:  # noqa: ASYNC110  # a state of the store, without an event
                    await asyncio.sleep(0.005)
            assert numbers(store) == [0, 2]

    asyncio.run(run())


def test_a_gap_between_sound_records_is_blank_and_a_repeated_offset_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Records without checksum whose queue offset changed: the sound ones behind them are served."""
    root = tmp_path / "s"

    async def run() -> None:
        async with running_store(root, enabled_append_prop_crc=False) as store:
            places = [await put(store, b"%06d" % number) for number in range(30)]
        (root / "queuebounds").unlink()
        overwrite(root / LOG, places[17].physical_offset + 20, (16).to_bytes(8))
        with caplog.at_level(logging.ERROR):
            async with running_store(root) as store:
                assert numbers(store) == without(30, 17)
                assert store.recovery.damaged == []
                assert f"path={root / LOG} position={places[17].physical_offset}" in caplog.text
                assert "gap topic=T queue_id=0 from=17 to=18" in caplog.text
                assert store.max_offset("T", 0) == 30

    asyncio.run(run())


def test_a_sound_record_of_an_impossible_queue_is_named(tmp_path: Path) -> None:
    root = tmp_path / "s"

    async def run() -> None:
        async with running_store(root) as store:
            await put(store, b"%06d" % 0)
            end = store.max_physical_offset
        out = bytearray(400)
        size = put_stored(
            out, 0, topic=b"\xff", queue_id=0, flag=0, queue_offset=0, physical_offset=end, sys_flag=0,
            born_timestamp=1, born_host=bytes(8), store_timestamp=1, store_host=bytes(8), reconsume_times=0,
            prepared_offset=0, body=b"x", properties=b"", checksum=True,
        )  # fmt: skip
        overwrite(root / LOG, end, bytes(out[:size]))
        async with running_store(root) as store:
            assert [(one.physical_offset, one.length) for one in store.recovery.damaged] == [(end, size)]
            assert (await put(store, b"%06d" % 1)).physical_offset == end + size
            assert numbers(store) == [0, 1]

    asyncio.run(run())


def test_files_that_are_all_shortened_are_mended(tmp_path: Path) -> None:
    """Each by another length: no other setting made them."""

    async def run() -> None:
        async with running_store(tmp_path) as store:
            places = [await put(store, b"%06d" % number + bytes(2000)) for number in range(100)]
        kept = {}
        for number, path in enumerate(sorted((tmp_path / "commitlog").iterdir())):
            kept[int(path.name)] = 60_000 + number
            os.truncate(path, 60_000 + number)
        left = [
            number
            for number, place in enumerate(places)
            if place.end_offset % SEGMENT_BYTES <= kept[place.physical_offset // SEGMENT_BYTES * SEGMENT_BYTES]
        ]
        assert 0 < len(left) < 100
        async with running_store(tmp_path) as store:
            assert numbers(store) == left
            assert store.recovery.damaged_bytes > 0

    asyncio.run(run())
