"""Delayed delivery on a real store: what a crash leaves, in files."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from rocketcore._fast.properties import encode_properties
from rocketcore.broker.later.delay import DelayService, schedule
from rocketcore.broker.later.delivery import ERROR_SECONDS
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.store import FlushDiskType, MessageStore, StoredMessage
from rocketcore.broker.store.reading.cold_reads import SECONDS as READ_SECONDS
from rocketcore.codes import SCHEDULE_TOPIC
from rocketcore.service import ManualClock
from tests.fixtures.cold_disk import ColdDisk, forget_all
from tests.fixtures.stores import SEGMENT_BYTES, FailingFiles, crash_copy, read_queue, running_store, stored

LEVELS = (1_000, 5_000)
UNIT_SIZE = 20
V6 = bytes(range(16)) + (10911).to_bytes(4, "big")


async def store_delayed(store: MessageStore, count: int, *, born_host: bytes = bytes(8)) -> None:
    for number in range(count):
        message = StoredMessage(topic="T", queue_id=0, body=b"%d" % number + bytes(500), born_host=born_host)
        properties = {"TAGS": "a", "DELAY": "1"}
        message = schedule(message, properties, len(LEVELS))
        message.properties = encode_properties(properties)
        result = store.put(message)
    await stored(store, result)


def service(store: MessageStore, clock: ManualClock, path: Path) -> DelayService:
    delay = DelayService(store, LEVELS, JsonFile(path), on_put=lambda *_: None, is_gone=lambda *_: False, clock=clock)
    delay.load()
    return delay


async def deliver(store: MessageStore, delay: DelayService) -> None:
    """Deliver what is due, and wait until it is stored."""
    delay.deliver_due()
    done = asyncio.get_running_loop().create_future()
    store.wait(store.max_physical_offset, done.set_result)
    await done


def damage_unit(root: Path, queue_offset: int) -> None:
    """Have the unit of a message of level 1 lead to another place."""
    path = root / "consumequeue" / SCHEDULE_TOPIC / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[queue_offset * UNIT_SIZE + 7] ^= 1
    path.write_bytes(data)


async def repaired(store: MessageStore) -> None:
    """Wait until a repair is done."""
    async with asyncio.timeout(20):
        while not store.stats.repaired_queues:  # noqa: ASYNC110  # a state of the store, without an event
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("host", [bytes(8), V6])
def test_a_copy_taken_at_any_time_delivers_each_message_once(tmp_path: Path, host: bytes) -> None:
    """The messages fill several segments of the log; the first of them is the first record of all."""
    clock = ManualClock()
    count = 700

    async def run() -> None:
        async with running_store(tmp_path / "live", clock=clock, store_host=host) as store:
            await store_delayed(store, count, born_host=host)
            delay = service(store, clock, tmp_path / "live" / "delayOffset.json")
            clock.advance(1.5)
            delay.deliver_due()
            while (done := len(read_queue(store))) < count:
                crash_copy(tmp_path / "live", tmp_path / f"crash-{done}")
                await deliver(store, delay)
                delay.file.save(delay.encode_file())
            crash_copy(tmp_path / "live", tmp_path / f"crash-{done}")

    async def check(root: Path) -> None:
        async with running_store(root, clock=clock) as store:
            delay = service(store, clock, root / "delayOffset.json")
            while delay.positions()[1][0] < count:
                await deliver(store, delay)
            assert [int(one["body"].rstrip(b"\0")) for one in read_queue(store)] == list(range(count))

    asyncio.run(run())
    copies = list(tmp_path.glob("crash-*"))
    assert len(copies) >= 2
    for copy in copies:
        asyncio.run(check(copy))


@pytest.mark.parametrize("call", ["sync", "write"])
def test_a_delivery_whose_write_or_sync_failed_comes_once(tmp_path: Path, call: str) -> None:
    """Its record may be in the log when the store takes no more: the positions that the stop saves must not hide it."""
    clock, files = ManualClock(), FailingFiles()
    path = tmp_path / "delayOffset.json"

    async def run() -> None:
        async with running_store(tmp_path, clock=clock, files=files) as store:
            await store_delayed(store, 3)
            delay = service(store, clock, path)
            clock.advance(1.5)
            files.fail(0, errno.EIO, only=call)
            await deliver(store, delay)
            assert store.read_only_reason is not None
            await deliver(store, delay)
            assert read_queue(store) == []
            assert delay.take_changes()
            delay.file.save(delay.encode_file())

    async def check(there: int) -> None:
        async with running_store(tmp_path, clock=clock) as store:
            assert len(read_queue(store)) == there
            delay = service(store, clock, path)
            await deliver(store, delay)
            assert [int(one["body"].rstrip(b"\0")) for one in read_queue(store)] == [0, 1, 2]

    asyncio.run(run())
    asyncio.run(check(3 if call == "sync" else 0))
    asyncio.run(check(3))


def test_a_power_cut_under_asynchronous_flush_takes_no_message_whose_delivery_it_takes(tmp_path: Path) -> None:
    """Messages that were long on disk were lost: the positions came to the disk, and their deliveries did not."""
    clock = ManualClock()
    live, cut = tmp_path / "live", tmp_path / "cut"

    async def run() -> None:
        async with running_store(
            live, clock=clock, flush_disk_type=FlushDiskType.ASYNC_FLUSH, flush_interval_commit_log=3_600_000
        ) as store:
            await store_delayed(store, 3)
            end = store.max_physical_offset
            delay = service(store, clock, live / "delayOffset.json")
            clock.advance(1.5)
            await deliver(store, delay)
            assert len(read_queue(store)) == 3
            delay.file.save(delay.encode_file())
            crash_copy(live, cut)
        with (cut / "commitlog" / f"{0:020d}").open("r+b") as log:
            log.seek(end)
            log.write(bytes(SEGMENT_BYTES - end))

    async def check() -> None:
        async with running_store(cut, clock=clock) as store:
            delay = service(store, clock, cut / "delayOffset.json")
            await deliver(store, delay)
            assert [int(one["body"].rstrip(b"\0")) for one in read_queue(store)] == [0, 1, 2]
            assert delay.positions()[1] == (3, 3)

    asyncio.run(run())
    for _ in range(2):
        asyncio.run(check())


def test_the_position_follows_the_background_flush(tmp_path: Path) -> None:
    clock = ManualClock()

    async def run() -> None:
        async with running_store(
            tmp_path, clock=clock, flush_disk_type=FlushDiskType.ASYNC_FLUSH, flush_interval_commit_log=2
        ) as store:
            await store_delayed(store, 3)
            delay = service(store, clock, tmp_path / "delayOffset.json")
            clock.advance(1.5)
            await deliver(store, delay)
            async with asyncio.timeout(20):
                while store.synced_offset < store.max_physical_offset:  # noqa: ASYNC110  # the store's own timer syncs
                    await asyncio.sleep(0.002)
            delay.deliver_due()
            assert delay.positions()[1] == (3, 3)

    asyncio.run(run())


def test_deliveries_are_found_in_every_segment(tmp_path: Path) -> None:
    clock = ManualClock()

    async def run() -> None:
        async with running_store(tmp_path, clock=clock) as store:
            await store_delayed(store, 400)
            delay = service(store, clock, tmp_path / "delayOffset.json")
            middle = store.max_physical_offset
            clock.advance(1.5)
            await deliver(store, delay)
            assert len(store.deliveries(0, by_level=True)) == len(store.deliveries(middle, by_level=True)) == 400
            assert store.deliveries(store.max_physical_offset, by_level=True) == set()
            first = store.get(SCHEDULE_TOPIC, 0, 0, 1).body
            assert int.from_bytes(first[28:36], "big") + 1 in store.deliveries(middle, by_level=True)

    asyncio.run(run())


def test_damage_hides_no_delivery_behind_it(tmp_path: Path) -> None:
    """The rest of the file was given up, and everything in it came again."""
    clock = ManualClock()

    async def run() -> None:
        async with running_store(tmp_path, clock=clock) as store:
            await store_delayed(store, 20)
            result = store.put(StoredMessage(topic="T", queue_id=1, body=b"other"))
            await stored(store, result)
            delay = service(store, clock, tmp_path / "delayOffset.json")
            clock.advance(1.5)
            await deliver(store, delay)
            log = tmp_path / "commitlog" / f"{0:020d}"
            with log.open("r+b") as file:
                file.seek(result.physical_offset + 4)
                file.write(b"\0")
            assert len(store.deliveries(0, by_level=True)) == 20

    asyncio.run(run())


def test_a_body_that_looks_like_a_delivery_is_none(tmp_path: Path) -> None:
    """Only the broker writes the field that tells."""

    async def run() -> None:
        async with running_store(tmp_path) as store:
            properties = encode_properties({"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"})
            await stored(store, store.put(StoredMessage(topic="T", queue_id=0, body=b"x", properties=properties)))
            assert store.deliveries(0, by_level=True) == set()

    asyncio.run(run())


def test_what_was_delivered_is_not_repeated_after_the_repair_of_its_queue(tmp_path: Path) -> None:
    """The place of the message in its level is damaged while a start looks for what was delivered."""
    clock = ManualClock()

    async def run() -> None:
        async with running_store(tmp_path, clock=clock) as store:
            await store_delayed(store, 4)
            clock.advance(1.5)
            await deliver(store, service(store, clock, tmp_path / "delayOffset.json"))
        damage_unit(tmp_path, 1)
        async with running_store(tmp_path, clock=clock) as store:
            delay = service(store, clock, tmp_path / "delayOffset.json")
            await repaired(store)
            await deliver(store, delay)
            assert delay.positions()[1] == (4, 4)
            assert [int(one["body"].rstrip(b"\0")) for one in read_queue(store)] == list(range(4))

    asyncio.run(run())


def test_a_level_waits_for_the_repair_of_its_queue(tmp_path: Path) -> None:
    """The message behind the damaged place comes in its turn, in the same life."""
    clock = ManualClock()

    async def run() -> None:
        async with running_store(tmp_path, clock=clock) as store:
            await store_delayed(store, 4)
        damage_unit(tmp_path, 1)
        async with running_store(tmp_path, clock=clock) as store:
            clock.advance(1.5)
            delay = service(store, clock, tmp_path / "delayOffset.json")
            for _ in range(3):
                delay.deliver_due()
            assert store.is_in_repair(SCHEDULE_TOPIC, 0)
            await repaired(store)
            await deliver(store, delay)
            assert delay.positions()[1] == (4, 4)
            assert delay.skipped == 0
            assert [int(one["body"].rstrip(b"\0")) for one in read_queue(store)] == list(range(4))

    asyncio.run(run())


def test_a_level_waits_for_the_disk_and_the_loop_does_not(tmp_path: Path) -> None:
    clock, disk = ManualClock(), ColdDisk()

    async def run() -> None:
        async with asyncio.timeout(60), running_store(tmp_path, clock=clock, files=disk) as store:
            delay = service(store, clock, tmp_path / "delayOffset.json")
            await store_delayed(store, 100)
            delay.message_arrived(0, 100)
            clock.advance(1.5)
            forget_all(store, disk)
            disk.gate.clear()
            delay.deliver_due()
            delay.deliver_due()
            assert len(store.reads) == 1
            assert store.max_offset("T", 0) == 0
            disk.gate.set()
            while store.max_offset("T", 0) < 100:  # noqa: ASYNC110  # a state of the store, without an event
                await asyncio.sleep(0.001)
            assert [one["body"] for one in read_queue(store)] == [b"%d" % number + bytes(500) for number in range(100)]

    asyncio.run(run())


def test_a_level_whose_disk_does_not_answer_tries_again(tmp_path: Path) -> None:
    clock, disk = ManualClock(), ColdDisk()

    async def run() -> None:
        async with asyncio.timeout(60), running_store(tmp_path, clock=clock, files=disk) as store:
            delay = service(store, clock, tmp_path / "delayOffset.json")
            await store_delayed(store, 3)
            delay.message_arrived(0, 3)
            clock.advance(1.5)
            forget_all(store, disk)
            disk.gate.clear()
            delay.deliver_due()
            clock.advance(READ_SECONDS)
            store.reads.look()
            assert (len(store.reads), store.reads.timeouts) == (0, 1)
            disk.gate.set()
            clock.advance(ERROR_SECONDS)
            delay.deliver_due()
            while store.max_offset("T", 0) < 3:  # noqa: ASYNC110  # a state of the store, without an event
                await asyncio.sleep(0.001)
            assert delay.skipped == 0

    asyncio.run(run())
