"""A damaged consume queue is repaired while the store runs; the rest of it, and other queues, are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import shutil
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketcore._fast.record import tags_code
from rocketcore.broker.store import GetStatus, MessageStore, PutStatus
from rocketcore.broker.store.queues import queue_repair
from rocketcore.codes import SCHEDULE_TOPIC
from rocketcore.errors import StoreCorrupted
from rocketcore.service import ManualClock
from tests.fixtures.stores import (
    SEGMENT_BYTES,
    UNITS_PER_FILE,
    FailingFiles,
    crash_copy,
    message,
    put,
    read_queue,
    records,
    running_store,
    store_config,
    stored,
)

COUNT = 3 * UNITS_PER_FILE + 7
QUEUE = Path("consumequeue") / "T" / "0"


def body(number: int) -> bytes:
    return b"%06d" % number * 400


async def filled(root: Path) -> None:
    """Two queues that share some files of the log, saved."""
    async with running_store(root) as store:
        for number in range(COUNT):
            await put(store, body(number))
            await put(store, b"other", topic="U")


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


async def repaired(store: MessageStore) -> None:
    """Wait until a repair is done."""
    async with asyncio.timeout(20):
        while not store.stats.repaired_queues:  # noqa: ASYNC110  # a state of the store, without an event
            await asyncio.sleep(0.005)


def zero_page(root: Path) -> int:
    overwrite(root / QUEUE / f"{0:020d}", 10 * 20, bytes(20 * 20))
    return 10


def neighbour(root: Path) -> int:
    path = root / QUEUE / f"{0:020d}"
    overwrite(path, 7 * 20, path.read_bytes()[8 * 20 : 9 * 20])
    return 7


def cut(root: Path) -> int:
    os.truncate(root / QUEUE / f"{UNITS_PER_FILE * 20:020d}", 13)
    return UNITS_PER_FILE


def lost(root: Path) -> int:
    (root / QUEUE / f"{UNITS_PER_FILE * 20:020d}").unlink()
    return UNITS_PER_FILE


def garbage(root: Path) -> int:
    for start in range(0, 3 * UNITS_PER_FILE * 20, UNITS_PER_FILE * 20):
        overwrite(root / QUEUE / f"{start:020d}", 0, bytes(range(200)) * 5)
    return 0


@pytest.mark.parametrize("damage", [zero_page, neighbour, cut, lost, garbage])
def test_a_damaged_queue_is_repaired_online(tmp_path: Path, damage: Callable[[Path], int]) -> None:
    async def run() -> None:
        await filled(tmp_path)
        async with running_store(tmp_path) as store:
            assert not store.recovery.rebuilt
            hit = damage(tmp_path)
            with pytest.raises(StoreCorrupted, match=f"consumequeue/T/0 is damaged at offset {hit}: .*ask again"):
                store.get("T", 0, hit, 32)
            # Nothing else waits for the repair.
            assert len(read_queue(store, "U")) == COUNT
            assert store.get("T", 0, 3 * UNITS_PER_FILE, 32).status is GetStatus.FOUND
            assert (await put(store, body(COUNT))).queue_offset == COUNT
            await repaired(store)
            assert [one["body"] for one in read_queue(store)] == [body(number) for number in range(COUNT + 1)]
            assert store.stats.repaired_queues == 1
            for path in (tmp_path / QUEUE).iterdir():
                assert path.stat().st_size == UNITS_PER_FILE * 20
        async with running_store(tmp_path) as store:
            assert not store.recovery.rebuilt
            assert [one["body"] for one in read_queue(store)] == [body(number) for number in range(COUNT + 1)]

    asyncio.run(run())


def last_cut(root: Path) -> None:
    overwrite(root / QUEUE / f"{3 * UNITS_PER_FILE * 20:020d}", 3 * 20, bytes(4 * 20))


def last_lost(root: Path) -> None:
    (root / QUEUE / f"{3 * UNITS_PER_FILE * 20:020d}").unlink()


def all_lost(root: Path) -> None:
    shutil.rmtree(root / QUEUE)


@pytest.mark.parametrize("damage", [last_cut, last_lost, all_lost])
def test_a_queue_that_lost_its_end_before_the_start_is_repaired_when_it_is_read(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    async def run() -> None:
        await filled(tmp_path)
        damage(tmp_path)
        async with running_store(tmp_path) as store:
            assert not store.recovery.rebuilt
            assert (await put(store, body(COUNT))).queue_offset == COUNT
            with pytest.raises(StoreCorrupted, match="ask again"):
                store.get("T", 0, COUNT - 1, 32)
            await repaired(store)
            assert [one["body"] for one in read_queue(store)] == [body(number) for number in range(COUNT + 1)]
        async with running_store(tmp_path) as store:
            assert [one["body"] for one in read_queue(store)] == [body(number) for number in range(COUNT + 1)]
            assert store.stats.repaired_queues == 0

    asyncio.run(run())


def test_a_message_that_the_log_lost_is_named_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A page of the log reads as zeros: the unit leads to nothing, and no look at the log can mend that."""

    async def run() -> None:
        await filled(tmp_path)
        async with running_store(tmp_path) as store:
            hit = next(one for one in read_queue(store) if one["queue_offset"] == 60)
            segment, position = divmod(hit["physical_offset"], SEGMENT_BYTES)
            path = tmp_path / "commitlog" / f"{segment * SEGMENT_BYTES:020d}"
            overwrite(path, position, bytes(100))
            # What lies before it is answered first.
            assert store.get("T", 0, 58, 32).next_begin_offset == 60
            with pytest.raises(StoreCorrupted, match="damaged at offset 60"):
                store.get("T", 0, 60, 32)
            await repaired(store)
            found = [one["body"] for one in read_queue(store)]
            assert found == [body(number) for number in range(COUNT) if number != 60]
            assert f"commit log damaged path={path} position={position} bytes=" in caplog.text
            assert "from=60 to=61 lost=1" in caplog.text
            assert store.stats.damaged_records == 1
            assert len(read_queue(store, "U")) == COUNT

    asyncio.run(run())


def test_delays_keep_their_times(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)

    async def run() -> None:
        async with running_store(tmp_path, clock=clock) as store:
            for _ in range(UNITS_PER_FILE * 12):
                await put(store, topic=SCHEDULE_TOPIC, properties=b"DELAY\x012\x02")
            unit_file = tmp_path / "consumequeue" / SCHEDULE_TOPIC / "0" / f"{0:020d}"
        whole = unit_file.read_bytes()
        async with running_store(tmp_path, clock=clock) as store:
            overwrite(unit_file, 5 * 20, bytes(3 * 20))
            with pytest.raises(StoreCorrupted, match="damaged at offset 5"):
                store.get(SCHEDULE_TOPIC, 0, 5, 1)
            await repaired(store)
            assert unit_file.read_bytes() == whole

    asyncio.run(run())


def test_messages_of_a_deleted_topic_stay_out(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            for _ in range(3):
                await put(store, b"old")
            await store.delete_topic("T")
            for number in range(COUNT):
                await put(store, body(number))
        async with running_store(tmp_path) as store:
            overwrite(tmp_path / QUEUE / f"{0:020d}", 0, bytes(20 * 20))
            with pytest.raises(StoreCorrupted, match="damaged at offset 0"):
                store.get("T", 0, 0, 1)
            await repaired(store)
            assert [one["body"] for one in read_queue(store)] == [body(number) for number in range(COUNT)]

    asyncio.run(run())


def test_a_repair_that_finds_no_room_is_tried_with_the_next_read(tmp_path: Path) -> None:
    files = FailingFiles()

    async def run() -> None:
        await filled(tmp_path)
        async with running_store(tmp_path, files=files) as store:
            hit = zero_page(tmp_path)
            files.fail(0, errno.ENOSPC, only="write")
            async with asyncio.timeout(20):
                while not store.stats.repaired_queues:
                    with contextlib.suppress(StoreCorrupted):
                        store.get("T", 0, hit, 32)
                    await asyncio.sleep(0.005)
            assert files.calls.count("write") > 1
            assert [one["body"] for one in read_queue(store)] == [body(number) for number in range(COUNT)]
            assert store.read_only_reason is None

    asyncio.run(run())


def test_a_store_that_writes_no_more_does_not_say_that_it_repairs(tmp_path: Path) -> None:
    """Who was told to ask again did so until somebody looked into the broker's log."""
    files = FailingFiles()

    async def run() -> None:
        await filled(tmp_path)
        async with running_store(tmp_path, files=files) as store:
            hit = zero_page(tmp_path)
            files.fail(0, errno.EIO, only="sync")
            assert await stored(store, store.put(message())) is PutStatus.SERVICE_NOT_AVAILABLE
            for _ in range(2):
                with pytest.raises(StoreCorrupted) as caught:
                    store.get("T", 0, hit, 32)
                assert str(caught.value).endswith(f"; it is not repaired: {store.read_only_reason}")
                assert not store.is_in_repair("T", 0)
        async with running_store(tmp_path) as store:
            with pytest.raises(StoreCorrupted, match="ask again"):
                store.get("T", 0, hit, 32)
            await repaired(store)
            assert [one["body"] for one in read_queue(store)][:COUNT] == [body(number) for number in range(COUNT)]

    asyncio.run(run())


def test_a_repair_up_to_damage_of_the_log_finds_what_lies_before_it(tmp_path: Path) -> None:
    """The first unit that is not in the files stands for a message that is lost: it leads nowhere."""
    live, root = tmp_path / "live", tmp_path / "crashed"

    async def run() -> None:
        async with running_store(live) as store:
            places = [await put(store, body(number)) for number in range(10)]
        async with running_store(live) as store:
            places += [await put(store, body(number)) for number in range(10, 15)]
            crash_copy(live, root)
        overwrite(root / "commitlog" / f"{0:020d}", places[10].physical_offset + 300, b"damage")
        async with running_store(root) as store:
            assert not store.recovery.rebuilt
            overwrite(root / QUEUE / f"{0:020d}", 5 * 20, bytes(5 * 20))
            with pytest.raises(StoreCorrupted, match="damaged at offset 5"):
                store.get("T", 0, 5, 32)
            await repaired(store)
            assert [one["body"] for one in read_queue(store)] == [body(n) for n in range(15) if n != 10]

    asyncio.run(run())


def test_damage_that_is_found_by_a_start_that_fails_begins_no_repair(tmp_path: Path) -> None:
    """A broker reads its delays before the store is started; then something else may end the start."""
    failures: list[dict[str, object]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        await filled(tmp_path)
        hit = zero_page(tmp_path)
        store = MessageStore(store_config(tmp_path))
        store.load()
        with pytest.raises(StoreCorrupted, match=f"damaged at offset {hit}"):
            store.get("T", 0, hit, 1)
        repair = next(task for task in asyncio.all_tasks() if task.get_name() == "store-save")
        await store.stop()
        await asyncio.wait([repair])
        del repair
        gc.collect()
        assert not store.is_in_repair("T", 0)

    asyncio.run(run())
    assert not failures


def test_damage_that_is_found_before_the_store_starts_is_repaired(tmp_path: Path) -> None:
    async def run() -> None:
        await filled(tmp_path)
        hit = zero_page(tmp_path)
        store = MessageStore(store_config(tmp_path))
        store.load()
        with pytest.raises(StoreCorrupted, match=f"damaged at offset {hit}"):
            store.get("T", 0, hit, 1)
        await store.start()
        await repaired(store)
        assert len(read_queue(store)) == COUNT
        await store.stop()

    asyncio.run(run())


@pytest.mark.parametrize("bit", [0, 1, 20, 31, 32, 40, 63])
@pytest.mark.parametrize("hit", [0, 3, 40])
def test_a_tags_code_that_is_damaged_hides_no_message(tmp_path: Path, bit: int, hit: int) -> None:
    """The unit says that its message is not wanted. Messages of other tags stand beside it."""
    unit_file = tmp_path / QUEUE / f"{0:020d}"

    async def run() -> None:
        async with running_store(tmp_path) as store:
            for number in range(UNITS_PER_FILE):
                tag = b"wanted" if number in (0, 3, 40) else b"other%d" % (number % 3)
                await put(store, body(number), properties=b"TAGS\x01" + tag + b"\x02")
        whole = unit_file.read_bytes()
        place = 20 * hit + 19 - bit // 8
        overwrite(unit_file, place, bytes([whole[place] ^ 1 << bit % 8]))
        async with running_store(tmp_path) as store:
            wanted = array("q", [tags_code(b"TAGS\x01wanted\x02")])
            found: list[int] = []
            faults: list[str] = []
            offset = 0
            while offset < UNITS_PER_FILE:
                try:
                    result = store.get("T", 0, offset, 32, wanted)
                except StoreCorrupted as error:
                    faults.append(str(error).partition(";")[0].partition("is ")[2])
                    await repaired(store)
                    continue
                found += [one["queue_offset"] for one in records(result.body)]
                assert result.next_begin_offset > offset
                offset = result.next_begin_offset
            assert found == [0, 3, 40]
            assert faults == [f"damaged at offset {hit}: its tags code is not that of its message"]
            assert store.stats.repaired_queues == 1
            assert store.stats.damaged_records == 0
        assert unit_file.read_bytes() == whole

    asyncio.run(run())


def test_a_queue_of_a_thousand_tags_is_filtered_by_its_units(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            for number in range(600):
                await stored(store, store.put(message(b"x", properties=b"TAGS\x01tag%d\x02" % number)))
            wanted = array("q", [tags_code(b"TAGS\x01tag599\x02")])
            offset, found = 0, 0
            while offset < 600:
                result = store.get("T", 0, offset, 32, wanted)
                assert result.next_begin_offset > offset
                offset, found = result.next_begin_offset, found + result.count
            assert found == 1

    asyncio.run(run())


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_repair, "PIECE_UNITS", 1)
    monkeypatch.setattr(queue_repair, "PIECE_BYTES", 1)


@pytest.mark.usefixtures("_small_pieces")
def test_a_repair_holds_up_no_save(tmp_path: Path) -> None:
    """It takes hundreds of pieces; a deletion is noted, and files are removed, between two of them."""

    async def run() -> None:
        await filled(tmp_path)
        async with running_store(tmp_path) as store:
            hit = garbage(tmp_path)
            with pytest.raises(StoreCorrupted, match="ask again"):
                store.get("T", 0, hit, 32)
            await store.delete_topic("U")
            assert store.is_in_repair("T", 0)
            assert store.stats.repaired_queues == 0
            await repaired(store)
            assert [one["body"] for one in read_queue(store)] == [body(number) for number in range(COUNT)]

    asyncio.run(run())


@pytest.mark.usefixtures("_small_pieces")
def test_a_topic_that_is_deleted_while_it_is_repaired_gets_no_old_units(tmp_path: Path) -> None:
    async def run() -> None:
        await filled(tmp_path)
        async with running_store(tmp_path) as store:
            with pytest.raises(StoreCorrupted, match="ask again"):
                store.get("T", 0, garbage(tmp_path), 32)
            await store.delete_topic("T")
            await put(store, b"new")
        async with running_store(tmp_path) as store:
            assert [one["body"] for one in read_queue(store)] == [b"new"]
            assert store.stats.repaired_queues == 0
        assert (tmp_path / QUEUE / f"{0:020d}").read_bytes()[20:] == bytes((UNITS_PER_FILE - 1) * 20)

    asyncio.run(run())
