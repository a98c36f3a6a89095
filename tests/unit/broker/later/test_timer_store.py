"""The timer on a real store: what is in its files, what a start finds there, how many fit."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from rocketcore._fast.consume_queue import unit
from rocketcore._fast.properties import encode_properties
from rocketcore._fast.timer_heap import timer_code_due
from rocketcore.broker.later.timer import TimerService
from rocketcore.broker.record import RecordReader
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.store import FlushDiskType, MessageStore, StoredMessage
from rocketcore.codes import TIMER_TOPIC
from rocketcore.service import ManualClock
from tests.fixtures.cold_disk import ColdDisk, forget_all
from tests.fixtures.stores import running_store
from tests.unit.broker.later.test_delay_store import repaired

UNIT_SIZE = 20
PENDING = int(os.environ.get("ROCKETCORE_TIMER_PENDING", "20000"))
DUE = int(os.environ.get("ROCKETCORE_TIMER_DUE", "2000"))


def service(store: MessageStore, clock: ManualClock, folder: Path) -> TimerService:
    timer = TimerService(
        store,
        JsonFile(folder / "timerOffset.json"),
        on_put=lambda *_: None,
        is_gone=lambda *_: False,
        clock=clock,
    )
    timer.load()
    return timer


def put(store: MessageStore, timer: TimerService, body: bytes, *, topic: str = "T", **asked: str) -> int:
    """Put a message as admission does; returns where it ends."""
    message = timer.schedule(StoredMessage(topic=topic, queue_id=0, body=body), asked)
    message.properties = encode_properties(asked)
    result = store.put(message)
    timer.was_put(result, asked)
    return result.end_offset


async def settled(store: MessageStore) -> None:
    done = asyncio.get_running_loop().create_future()
    store.wait(store.max_physical_offset, done.set_result)
    await done


async def deliver(store: MessageStore, timer: TimerService) -> None:
    """Deliver what is due, and wait until it is stored."""
    end = -1
    while end != store.max_physical_offset:
        end = store.max_physical_offset
        timer.deliver_due()
        await settled(store)


def dues_of(store: MessageStore) -> list[int]:
    units = store.units(TIMER_TOPIC, 0, 0, 100)
    rows = [unit(units, index) for index in range(len(units) // UNIT_SIZE)]
    return [timer_code_due(code, place, size) for place, size, code in rows]


def bodies(store: MessageStore) -> list[bytes]:
    found: list[bytes] = []
    while read := store.get("T", 0, len(found), 32).body:
        found += [bytes(record.message.body) for record in RecordReader(32).read(read)]
    return found


def test_units_say_when_messages_are_due_also_when_they_are_made_again(tmp_path: Path) -> None:
    clock = ManualClock()
    began = clock.time_millis()
    dues = [began + 5_123, began + 61_000, began + 7_000]

    async def run() -> None:
        async with running_store(tmp_path, clock=clock) as store:
            timer = service(store, clock, tmp_path)
            put(store, timer, b"1", TIMER_DELIVER_MS=str(dues[0]))
            put(store, timer, b"2", TIMER_DELAY_SEC="61")
            put(store, timer, b"3", TIMER_DELAY_MS="7000")
            await settled(store)
            assert dues_of(store) == dues
        store = MessageStore(store.config, clock=clock)
        store.load(rebuild=True)
        await store.start()
        assert dues_of(store) == dues
        await store.stop()

    asyncio.run(run())


def test_a_start_delivers_what_is_left(tmp_path: Path) -> None:
    clock = ManualClock()

    async def run() -> None:
        async with running_store(tmp_path, clock=clock) as store:
            timer = service(store, clock, tmp_path)
            for number in range(120):
                put(store, timer, b"%d" % number, TIMER_DELAY_MS=str(1_000 + 10 * number))
            await settled(store)
            timer.message_arrived(0, 120)
            clock.advance(1.5)
            await deliver(store, timer)
            assert len(bodies(store)) == 51
        async with running_store(tmp_path, clock=clock) as store:
            timer = service(store, clock, tmp_path)
            assert len(timer) == 69
            clock.advance(5)
            await deliver(store, timer)
            assert bodies(store) == [b"%d" % number for number in range(120)]
            assert timer.needed_from() is None

    asyncio.run(run())


def test_a_damaged_unit_is_repaired_and_its_message_comes_at_its_time(tmp_path: Path) -> None:
    clock = ManualClock()

    async def run() -> None:
        async with running_store(tmp_path, clock=clock) as store:
            timer = service(store, clock, tmp_path)
            for number in range(4):
                put(store, timer, b"%d" % number, TIMER_DELIVER_MS=str(clock.time_millis() + 10_000))
            await settled(store)
        path = tmp_path / "consumequeue" / TIMER_TOPIC / "0" / f"{0:020d}"
        data = bytearray(path.read_bytes())
        data[1 * UNIT_SIZE + 7] ^= 1  # leads elsewhere
        data[2 * UNIT_SIZE + 12] ^= 64  # is due in some million years
        path.write_bytes(data)
        async with running_store(tmp_path, clock=clock) as store:
            timer = service(store, clock, tmp_path)
            clock.advance(9.9)
            await deliver(store, timer)
            assert bodies(store) == []
            clock.advance(0.2)
            timer.deliver_due()
            assert store.is_in_repair(TIMER_TOPIC, 0)
            await repaired(store)
            await deliver(store, timer)
            assert sorted(bodies(store)) == [b"0", b"1", b"2", b"3"]
            assert timer.skipped == 0

    asyncio.run(run())


def test_the_timer_waits_for_the_disk_and_the_loop_does_not(tmp_path: Path) -> None:
    clock, disk = ManualClock(), ColdDisk()

    async def run() -> None:
        async with asyncio.timeout(60), running_store(tmp_path, clock=clock, files=disk) as store:
            timer = service(store, clock, tmp_path)
            for number in range(100):
                put(store, timer, b"%d" % number + bytes(500), TIMER_DELAY_MS="1000")
            await settled(store)
            timer.message_arrived(0, 100)
            clock.advance(1.5)
            forget_all(store, disk)
            disk.gate.clear()
            timer.deliver_due()
            timer.deliver_due()
            assert len(store.reads) == 1
            assert store.max_offset("T", 0) == 0
            disk.gate.set()
            while store.max_offset("T", 0) < 100:  # noqa: ASYNC110  # a state of the store, without an event
                await asyncio.sleep(0.001)
            assert bodies(store) == [b"%d" % number + bytes(500) for number in range(100)]

    asyncio.run(run())


def test_damaged_units_do_not_say_that_messages_came(tmp_path: Path) -> None:
    """What is saved says that all up to a time are delivered, and a damaged unit may say such a time, or zeros."""
    clock = ManualClock()

    async def run() -> None:
        async with running_store(tmp_path, clock=clock) as store:
            timer = service(store, clock, tmp_path)
            for number in range(10):
                put(store, timer, b"%d" % number, TIMER_DELAY_SEC=str(2 + number % 2 * 100))
            await settled(store)
            timer.message_arrived(0, 10)
            clock.advance(5)
            await deliver(store, timer)
            assert bodies(store) == [b"0", b"2", b"4", b"6", b"8"]
            timer.file.save(timer.encode_file())
        path = tmp_path / "consumequeue" / TIMER_TOPIC / "0" / f"{0:020d}"
        data = bytearray(path.read_bytes())
        data[1 * UNIT_SIZE + 15] ^= 1
        data[2 * UNIT_SIZE + 15] ^= 1
        data[3 * UNIT_SIZE + 14 : 3 * UNIT_SIZE + 20] = bytes(6)
        data[5 * UNIT_SIZE : 10 * UNIT_SIZE] = bytes(5 * UNIT_SIZE)
        path.write_bytes(data)
        async with running_store(tmp_path, clock=clock) as store:
            timer = service(store, clock, tmp_path)
            timer.deliver_due()
            await repaired(store)
            await deliver(store, timer)
            assert len(bodies(store)) == 5
            clock.advance(100)
            await deliver(store, timer)
            assert sorted(bodies(store)) == [b"%d" % number for number in range(10)]
            assert timer.skipped == 0

    asyncio.run(run())


@pytest.mark.timeout(60 + PENDING // 5_000)
def test_many_wait_and_those_of_one_second_come_within_a_second(tmp_path: Path) -> None:
    """``ROCKETCORE_TIMER_PENDING=1000000 ROCKETCORE_TIMER_DUE=10000`` is what is promised."""
    clock = ManualClock()

    async def run() -> None:
        large: dict[str, Any] = {
            "mapped_file_size_commit_log": 64 << 20,
            "mapped_file_size_consume_queue": 300_000 * UNIT_SIZE,
        }
        kind: dict[str, Any] = {"flush_disk_type": FlushDiskType.ASYNC_FLUSH}
        async with running_store(tmp_path, clock=clock, **large, **kind) as store:
            timer = service(store, clock, tmp_path)
            due = clock.time_millis() + 60_000
            for number in range(PENDING):
                # Those that are due together lie far from one another.
                is_due = number % (PENDING // DUE) == 0
                millis = due + number % 1_000 if is_due else due + 5_000 + number * 7
                end = put(store, timer, b"%d" % number, TIMER_DELIVER_MS=str(millis))
                if number % 1_000 == 0:
                    await settled(store)
            await settled(store)
            timer.message_arrived(0, PENDING)
            assert store.max_physical_offset == end
            clock.advance(61)
            began, slowest, before = time.monotonic(), 0.0, time.monotonic()
            timer.deliver_due()
            while store.max_offset("T", 0) < DUE:
                await asyncio.sleep(0)
                timer.deliver_due()
                slowest, before = max(slowest, time.monotonic() - before), time.monotonic()
            seconds = time.monotonic() - began
            print(f"{PENDING} wait; {DUE} came in {seconds:.3f} s, the loop stood still for {slowest:.3f} s at most")
            assert seconds < 1.0 * max(1, DUE / 10_000)
        began = time.monotonic()
        async with running_store(tmp_path, clock=clock, **large, **kind) as store:
            loaded = time.monotonic()
            timer = service(store, clock, tmp_path)
            print(f"found by a start in {time.monotonic() - loaded:.3f} s")
            assert len(timer) == PENDING - DUE

    asyncio.run(run())
