"""Reads of what is not in memory: they wait on a thread, in order and within bounds; the event loop does not wait."""

from __future__ import annotations

import asyncio
import errno
import os
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketcore._fast import mapped
from rocketcore._fast.properties import encode_properties
from rocketcore._fast.record import tags_code
from rocketcore.broker.store import Cold, GetResult, GetStatus, MessageStore
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.log.pages import ASKED_BYTES, CHUNK_BYTES
from rocketcore.broker.store.log.unreadable import READS
from rocketcore.broker.store.log.unreadable import SECONDS as DAMAGED_AFTER
from rocketcore.broker.store.reading import cold_reads
from rocketcore.broker.store.reading.cold_reads import SECONDS
from rocketcore.codes import BoundaryType, ResponseCode
from rocketcore.errors import BrokerError, StoreError
from rocketcore.filter_sql import compile_sql
from rocketcore.service import ManualClock
from tests.fixtures.cold_disk import PAGE, ColdDisk, forget_all, stop_looks
from tests.fixtures.stores import UNITS_PER_FILE, message, put, records, running_store, store_config

BODY = bytes(3000)
COUNT = 60


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is so; the test's own time limit ends a wait in vain."""
    while not condition():  # noqa: ASYNC110  # what is waited for sets no event
        await asyncio.sleep(0.001)


class Scene:
    """A store on a cold disk whose time the test turns."""

    def __init__(self, store: MessageStore, disk: ColdDisk, clock: ManualClock) -> None:
        self.store = store
        self.disk = disk
        self.clock = clock
        self.reads = store.reads

    def get(self, queue_offset: int = 0, count: int = 1) -> GetResult:
        return self.store.get("T", 0, queue_offset, count)

    async def read(self, owner: object, queue_offset: int = 0, count: int = 1) -> list[int]:
        """Read messages and return their numbers."""
        found = await self.reads.read(owner, self.get, queue_offset, count)
        return [int(one["body"][-4:]) for one in records(found.body)]

    def task(self, owner: object, queue_offset: int = 0) -> asyncio.Task[list[int]]:
        return asyncio.get_running_loop().create_task(self.read(owner, queue_offset))

    def forget_all(self) -> None:
        forget_all(self.store, self.disk)

    async def waiting(self, count: int) -> None:
        """Wait until so many reads wait."""
        await until(lambda: len(self.reads) == count)

    async def loaded(self, count: int) -> None:
        """Wait until so many ranges were read, and the loop knows."""
        await until(lambda: len(self.disk.loads) >= count and not self.reads._busy)

    async def reached(self) -> None:
        """Wait until a thread is in the disk."""
        assert await asyncio.to_thread(self.disk.reached.wait, 30)


@asynccontextmanager
async def scene(root: Path, *, count: int = COUNT, body: bytes = BODY, **settings: Any) -> AsyncIterator[Scene]:
    """A store with messages, none of them in memory."""
    disk, clock = ColdDisk(), ManualClock()
    async with running_store(root, files=disk, clock=clock, **settings) as store:
        for number in range(count):
            clock.advance(0.001)
            await put(store, body + b"%04d" % number)
        one = Scene(store, disk, clock)
        await stop_looks(store)
        one.forget_all()
        try:
            yield one
        finally:
            disk.gate.set()


def play(root: Path, test: Callable[[Scene], Any], **options: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), scene(root, **options) as one:
            await test(one)

    asyncio.run(run())


# ---------------------------------------------------------------------- what a read gets


def test_what_is_not_in_memory_is_read_by_a_thread_while_the_store_goes_on(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        one.disk.gate.clear()
        with pytest.raises(Cold):
            one.reads.now("a", one.get)
        reading = one.task("a")
        await one.reached()
        assert (await put(one.store, BODY)).queue_offset == COUNT
        assert not reading.done()
        one.disk.gate.set()
        assert await reading == [0]
        assert one.reads.cold_reads == len(one.disk.loads) == 1

    play(tmp_path, test)


def test_recent_and_known_pages_are_not_asked_about(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        await put(one.store, BODY + b"0060")
        assert await one.read("a", COUNT) == [COUNT]
        assert one.disk.asked == 0, "written a moment ago"
        assert await one.read("a") == [0]
        asked = one.disk.asked
        assert [await one.read("a", number) for number in range(30)] == [[number] for number in range(30)]
        assert one.disk.asked == asked, "read a moment ago"
        for _ in range(2):
            one.reads.look()
        assert await one.read("a") == [0]
        assert one.disk.asked == asked + 1, "it is remembered for a while only"

    play(tmp_path, test)


def test_a_direct_read_waits_and_asks_nothing(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        assert one.get(0, 32).count == 32
        assert one.store.lookup(0) is not None
        assert (one.disk.asked, one.disk.loads) == (0, [])

    play(tmp_path, test)


def test_one_who_reads_on_has_the_system_asked_seldom(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        async def read_all() -> None:
            seen: list[int] = []
            while len(seen) < 600:
                seen += await one.read("a", len(seen), 32)

        await read_all()
        for _ in range(2):
            one.reads.look()
        one.disk.asked = 0
        loads = len(one.disk.loads)
        await read_all()
        end = one.store.max_physical_offset
        assert end > 8 * CHUNK_BYTES
        assert one.disk.asked <= 1 + 2 * -(-end // ASKED_BYTES)
        assert len(one.disk.loads) == loads

    play(tmp_path, test, count=600, mapped_file_size_commit_log=4 << 20)


def test_an_answer_may_need_several_ranges(tmp_path: Path) -> None:
    """Messages of a queue that lie far apart, over two files, and its units."""

    async def test(one: Scene) -> None:
        for number in range(4):
            await put(one.store, BODY + b"%04d" % number, topic="Far", queue_id=1)
            for _ in range(400):
                one.store.put(message(BODY))
            await put(one.store, BODY)
        one.forget_all()
        found = await one.reads.read("a", one.store.get, "Far", 1, 0, 32)
        assert [one["body"][-4:] for one in records(found.body)] == [b"%04d" % number for number in range(4)]
        assert len(one.disk.loads) >= 4

    play(tmp_path, test, count=1, mapped_file_size_commit_log=2 << 20)


def test_lookups_and_searches_wait_too(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        times = [one.store.store_time("T", 0, number) for number in range(COUNT)]
        place = one.store.place("T", 0, 30)
        assert place is not None
        expected = one.store.lookup(place)
        assert one.disk.loads == []
        read = one.reads.read
        assert await read("a", one.store.lookup, place) == expected
        assert len(one.disk.loads) >= 1
        for boundary in (BoundaryType.LOWER, BoundaryType.UPPER):
            for number in range(0, COUNT, 7):
                one.forget_all()
                found = await read("a", one.store.offset_by_time, "T", 0, times[number], boundary)
                assert found == one.store.offset_by_time("T", 0, times[number], boundary)
                assert one.disk.loads
        one.forget_all()
        assert await read("a", one.store.earliest_time, "T", 0) == times[0]

    play(tmp_path, test)


@pytest.mark.parametrize("by_properties", [False, True])
def test_filters_wait_too(tmp_path: Path, by_properties: bool) -> None:
    async def test(one: Scene) -> None:
        tags = "abc"
        for number in range(COUNT):
            properties = encode_properties({"TAGS": tags[number % 3]})
            await put(one.store, BODY + b"%04d" % number, properties=properties, topic="F")
        found: list[int] = []
        offset = 0
        while offset < COUNT:
            one.forget_all()
            if by_properties:
                get = partial(one.store.get, "F", 0, offset, 4, message_filter=compile_sql("TAGS = 'b'"))
            else:
                get = partial(one.store.get, "F", 0, offset, 4, array("q", [tags_code(b"TAGS\x01b\x02")]))
            answer = await one.reads.read("a", get)
            assert answer.next_begin_offset > offset
            offset = answer.next_begin_offset
            found += [int(each["body"][-4:]) for each in records(answer.body)]
        assert found == list(range(1, COUNT, 3))
        assert one.reads.cold_reads > 3

    play(tmp_path, test, count=0)


def test_units_in_files_are_read_by_a_thread(tmp_path: Path) -> None:
    async def fill() -> None:
        async with running_store(tmp_path) as store:
            for number in range(2 * UNITS_PER_FILE):
                await put(store, b"%04d" % number)

    async def test(one: Scene) -> None:
        assert await one.read("a", UNITS_PER_FILE - 1) == [UNITS_PER_FILE - 1]
        assert one.disk.unit_reads == 1
        assert await one.read("a", 5) == [5]
        assert one.disk.unit_reads == 1
        assert await one.reads.read("a", one.store.tags_code, "T", 0, 7) == 0
        place = await one.reads.read("a", one.store.place, "T", 0, 7)
        assert place == one.store.place("T", 0, 7)

    asyncio.run(fill())
    play(tmp_path, test, count=0)


# ---------------------------------------------------------------------- order and bounds


def test_what_one_owner_reads_is_answered_in_order(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        await put(one.store, BODY + b"0060")
        answered: list[int] = []

        async def read(owner: str, queue_offset: int) -> None:
            answered.extend(await one.read(owner, queue_offset))

        one.disk.gate.clear()
        reading = [asyncio.create_task(read("a", 0))]
        await one.waiting(1)
        reading.append(asyncio.create_task(read("a", COUNT)))
        await one.waiting(2)
        await read("b", COUNT)
        assert answered == [COUNT], "another owner is served"
        one.disk.gate.set()
        await asyncio.gather(*reading)
        assert answered == [COUNT, 0, COUNT]

    play(tmp_path, test)


def test_one_range_is_read_once_for_all_who_want_it(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        one.disk.gate.clear()
        reading = [one.task(owner) for owner in range(10)]
        await one.waiting(10)
        one.disk.gate.set()
        assert await asyncio.gather(*reading) == [[0]] * 10
        assert len(one.disk.loads) == 1

    play(tmp_path, test)


def test_reads_of_an_owner_that_is_gone_are_forgotten(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        one.disk.gate.clear()
        reading = [one.task("a", number) for number in range(3)]
        await one.waiting(3)
        one.reads.forget("a")
        assert len(one.reads) == 0
        for each in reading:
            with pytest.raises(StoreError, match="its connection closed"):
                await each
        again = one.task("a", 1)
        await one.waiting(1)
        one.disk.gate.set()
        assert await again == [1]
        assert len(one.disk.loads) == 1

    play(tmp_path, test)


def test_a_read_whose_task_is_cancelled_harms_no_other(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        one.disk.gate.clear()
        first, second = one.task("a"), one.task("a", 1)
        await one.waiting(2)
        first.cancel()
        one.disk.gate.set()
        assert await second == [1]
        assert first.cancelled()

    play(tmp_path, test)


@pytest.mark.parametrize(("bound", "others"), [("PER_OWNER", 0), ("CAPACITY", 3)])
def test_more_than_may_wait_are_refused(
    tmp_path: Path, bound: str, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(one: Scene) -> None:
        monkeypatch.setattr(cold_reads, bound, 3)
        one.disk.gate.clear()
        reading = [one.task(("owner", number % (others or 1)), number) for number in range(3)]
        await one.waiting(3)
        with pytest.raises(BrokerError, match="too many reads wait for the disk") as raised:
            await one.read(("owner", others))
        assert raised.value.code == ResponseCode.SYSTEM_BUSY
        one.disk.gate.set()
        assert await asyncio.gather(*reading) == [[0], [1], [2]]
        assert await one.read(("owner", others)) == [0]

    play(tmp_path, test)


def test_what_waits_is_done_in_the_step_in_which_it_is_read(tmp_path: Path) -> None:
    """A pull that finds nothing is held in that step: no arrival falls between."""

    async def test(one: Scene) -> None:
        steps: list[str] = []
        ended = asyncio.Event()

        def call() -> int:
            if not one.disk.loads:
                one.reads._pages.want(0, 1)
            asyncio.get_running_loop().call_soon(steps.append, "next step")
            return 7

        def done(result: int) -> None:
            steps.append(f"done {result}")
            ended.set()
            raise OSError("done raises")

        failures: list[Exception] = []
        try:
            one.reads.now("a", call)
        except Cold as cold:
            one.reads.later("a", cold, call, done, failures.append)
        await ended.wait()
        await asyncio.sleep(0)
        assert steps == ["done 7", "next step"]
        assert [str(error) for error in failures] == ["done raises"]

    play(tmp_path, test)


# ---------------------------------------------------------------------- disks that fail


def test_a_page_that_cannot_be_read_fails_what_needs_it_alone(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        places = [one.store.place("T", 0, number) or 0 for number in range(20)]
        hit = next(number for number in range(20) if places[number] // PAGE == 5)
        on_page = [number for number in range(20) if places[number] < 6 * PAGE and places[number + 1] > 5 * PAGE]
        assert hit in on_page
        one.disk.bad.add(5 * PAGE)
        path = str(tmp_path / "commitlog" / f"{0:020d}")
        for number in range(15):
            if number in on_page:
                with pytest.raises(OSError, match=f"page at byte {5 * PAGE} cannot be read") as raised:
                    await one.read("a", number)
                assert (raised.value.errno, raised.value.filename) == (errno.EIO, path)
            else:
                assert await one.read("a", number) == [number]
        tries = [begin for begin, end in one.disk.loads if begin <= 5 * PAGE < end]
        assert len(tries) == 1, "it is not tried again at once"
        assert await one.read("a", 0, 32) == list(range(on_page[0])), "what lies before it is answered"
        assert one.store.stats.read_errors >= len(on_page)

    play(tmp_path, test)


def test_a_page_that_failed_for_a_minute_counts_as_damaged(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        one.disk.bad.add(5 * PAGE)
        hit = next(number for number in range(20) if (one.store.place("T", 0, number) or 0) // PAGE == 5)
        for _ in range(READS):
            with pytest.raises(OSError, match="cannot be read"):
                await one.read("a", hit)
            one.clock.advance(DAMAGED_AFTER / (READS - 1) - 0.01)
            one.forget_all()
        one.clock.advance(1)
        found = await one.reads.read("a", one.get, hit, 1)
        assert (found.status, found.next_begin_offset) == (GetStatus.MESSAGE_WAS_REMOVING, hit + 1)
        assert one.store.stats.damaged_records == 1

    play(tmp_path, test)


def test_units_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    async def fill() -> None:
        async with running_store(tmp_path) as store:
            for number in range(2 * UNITS_PER_FILE):
                await put(store, b"%04d" % number)

    async def test(one: Scene) -> None:
        def fail(fd: int, size: int, position: int) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        one.disk.read = fail  # type: ignore[method-assign]  # of this disk alone
        with pytest.raises(StoreError, match=r"is damaged at offset 3: .*Input/output error"):
            await one.read("a", 3)
        del one.disk.read
        await until(lambda: not one.store.is_in_repair("T", 0))
        one.forget_all()
        assert await one.read("a", 3) == [3]

    asyncio.run(fill())
    play(tmp_path, test, count=0)


def test_a_disk_that_does_not_answer_fails_the_read_and_keeps_the_store_going(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(one: Scene) -> None:
        one.disk.gate.clear()
        first = one.task("a")
        await one.waiting(1)
        one.clock.advance(SECONDS / 2 + 0.1)
        second = one.task("a", 1)
        await one.waiting(2)
        one.clock.advance(SECONDS / 2 + 0.1)
        one.reads.look()
        path = tmp_path / "commitlog" / f"{0:020d}"
        with pytest.raises(OSError, match="has not answered for 8 s") as raised:
            await first
        assert (raised.value.errno, raised.value.filename) == (errno.ETIMEDOUT, f"{path}:0")
        assert one.reads.timeouts == 1
        assert f"disk does not answer path={path}:0" in caplog.text
        assert not second.done()
        one.clock.advance(SECONDS / 2 + 0.1)
        one.reads.look()
        with pytest.raises(OSError, match="has not answered"):
            await second
        third = one.task("a", 2)
        await one.waiting(1)
        one.disk.gate.set()
        assert await third == [2]

    play(tmp_path, test)


def test_a_store_stops_while_a_thread_hangs_in_the_disk(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        one.disk.gate.clear()
        reading = one.task("a")
        await one.reached()
        await one.store.stop()
        with pytest.raises(StoreError, match="shutting down"):
            await reading
        with pytest.raises(StoreError, match="shutting down"):
            await one.read("a", 1)
        one.disk.gate.set()

    async def run() -> None:
        disk, clock = ColdDisk(), ManualClock()
        async with asyncio.timeout(60):
            store = MessageStore(store_config(tmp_path), clock=clock, files=disk)
            store.load()
            await store.start()
            for number in range(3):
                await put(store, BODY + b"%04d" % number)
            one = Scene(store, disk, clock)
            one.forget_all()
            await test(one)

    asyncio.run(run())


def test_a_file_may_be_deleted_while_a_thread_reads_it(tmp_path: Path) -> None:
    async def test(one: Scene) -> None:
        path = one.store._log.segments[0].path
        one.disk.gate.clear()
        reading = asyncio.create_task(one.reads.read("a", one.get))
        await one.reached()
        os.utime(path, (0, 0))
        one.store._cleaner.ask()
        await one.store._cleaner.look()
        assert not path.exists()
        one.disk.gate.set()
        found = await reading
        first = one.store.min_offset("T", 0)
        assert first > 0
        assert (found.status, found.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
        assert await one.read("a", first) == [first]

    play(tmp_path, test, count=100)


# ---------------------------------------------------------------------- the system


def test_pages_of_a_real_file(tmp_path: Path) -> None:
    path, files = tmp_path / "file", FileSystem()
    path.touch()
    with files.opened(path) as fd:
        os.ftruncate(fd, 8 * PAGE)
        view = memoryview(files.map(fd, 8 * PAGE))
        assert files.first_absent(view, 100, 8 * PAGE) == 100
        assert files.load(fd, 100, 8 * PAGE) == 8 * PAGE
        assert files.first_absent(view, 100, 8 * PAGE) == 8 * PAGE
        assert files.load(fd, 5, 5) == files.first_absent(view, 5, 5) == 5
        for begin, end in ((-1, 5), (6, 5), (0, 8 * PAGE + 1)):
            with pytest.raises(ValueError, match="is not within"):
                mapped.first_absent(view, begin, end)
        os.ftruncate(fd, 3 * PAGE)
        assert files.load(fd, 10, 8 * PAGE) == 3 * PAGE
        assert files.load(fd, 4 * PAGE + 7, 8 * PAGE) == 4 * PAGE + 7


def test_the_system_reads_nothing_ahead_of_what_is_loaded(tmp_path: Path) -> None:
    """What is in memory was touched by the thread that loaded it, and costs the loop no more than any memory."""
    path, files = tmp_path / "file", FileSystem()
    path.touch()
    with files.opened(path) as fd:
        os.ftruncate(fd, 4 << 20)
        view = memoryview(files.map(fd, 4 << 20))
        for begin, end in ((0, 1 << 17), (1 << 17, 1 << 20)):
            assert files.load(fd, begin, end) == end
            assert files.first_absent(view, begin, 4 << 20) == end


@pytest.mark.parametrize("code", [errno.EIO, errno.EBADF])
def test_a_disk_that_gives_no_more(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv

    def refuse(fd: int, rooms: list[bytearray], position: int) -> int:
        if position >= 2 * PAGE:
            raise OSError(code, os.strerror(code))
        return preadv(fd, [memoryview(rooms[0])[: 2 * PAGE - position]], position)

    path, files = tmp_path / "file", FileSystem()
    path.write_bytes(bytes(4 * PAGE))
    monkeypatch.setattr(os, "preadv", refuse)
    with files.opened(path) as fd:
        if code == errno.EIO:
            assert files.load(fd, 0, 4 * PAGE) == 2 * PAGE
        else:
            with pytest.raises(OSError, match="Bad file descriptor"):
                files.load(fd, 0, 4 * PAGE)


def test_reading_now_gives_what_reading_gives(tmp_path: Path) -> None:
    path, files = tmp_path / "file", FileSystem()
    path.write_bytes(b"0123456789")
    with files.opened(path) as fd:
        for size, position in ((10, 0), (3, 4), (10, 8), (1, 10)):
            assert files.read_now(fd, size, position) == files.read(fd, size, position)


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EAGAIN, errno.EIO])
def test_reading_now_where_the_system_refuses(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    path, files = tmp_path / "file", FileSystem()
    path.write_bytes(b"0123456789")
    monkeypatch.setattr(os, "preadv", refuse)
    with files.opened(path) as fd:
        read = partial(files.read_now, fd, 4, 2)
        if code == errno.EIO:
            with pytest.raises(OSError, match="Input/output"):
                read()
        else:
            assert read() == (b"2345" if code == errno.EOPNOTSUPP else None)
