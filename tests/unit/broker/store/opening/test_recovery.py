"""Starts: clean, after a crash, with queues lost or cut, with damage in the middle of the log."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import multiprocessing
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketcore.broker.store import MessageStore
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.keeping import queue_saver
from rocketcore.broker.store.log.damage import DamagedRange
from rocketcore.broker.store.notes.checkpoint import Checkpoint
from rocketcore.errors import StoreCorrupted, StoreLocked
from rocketcore.service import ManualClock
from tests.fault.system_calls import Call, SystemCalls
from tests.fixtures.stores import (
    SEGMENT_BYTES,
    UNITS_PER_FILE,
    crash_copy,
    message,
    put,
    read_queue,
    running_store,
    store_config,
)

LOG = Path("commitlog") / f"{0:020d}"


async def filled(root: Path, count: int = 120, *, body: bytes = bytes(2000), queues: int = 2) -> None:
    """Write messages, stop in order."""
    async with running_store(root) as store:
        for number in range(count):
            await put(store, b"%06d" % number + body, queue_id=number % queues)


def numbers(store: MessageStore, queue_id: int) -> list[int]:
    return [int(one["body"][:6]) for one in read_queue(store, queue_id=queue_id)]


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_clean_start_reads_no_messages(tmp_path: Path) -> None:
    async def run() -> None:
        await filled(tmp_path)
        async with running_store(tmp_path) as store:
            assert (store.recovery.messages, store.recovery.rebuilt) == (0, False)
            assert numbers(store, 0) == list(range(0, 120, 2))
            assert (await put(store, queue_id=1)).queue_offset == 60

    asyncio.run(run())


def test_start_after_a_crash_reads_what_followed_the_last_save(tmp_path: Path) -> None:
    async def run() -> None:
        await filled(tmp_path / "a", 50)
        async with running_store(tmp_path / "a") as store:
            for number in range(50, 80):
                await put(store, b"%06d" % number, queue_id=number % 2)
            crash_copy(tmp_path / "a", tmp_path / "b")
        async with running_store(tmp_path / "b") as store:
            assert (store.recovery.messages, store.recovery.rebuilt) == (30, False)
            assert numbers(store, 0) == list(range(0, 80, 2))
            assert numbers(store, 1) == list(range(1, 80, 2))

    asyncio.run(run())


@pytest.mark.parametrize(
    "damage", ["all", "topic", "bounds", "bounds damaged", "bounds of before", "checkpoint", "stale"]
)
def test_lost_queues_are_built_again(tmp_path: Path, damage: str) -> None:
    queue = tmp_path / "consumequeue" / "T" / "0"

    async def run() -> None:
        await filled(tmp_path, 240)
        match damage:
            case "all":
                shutil.rmtree(tmp_path / "consumequeue")
            case "topic":
                shutil.rmtree(queue.parent)
            case "bounds":
                (tmp_path / "queuebounds").unlink()
            case "bounds damaged":
                overwrite(tmp_path / "queuebounds", 20, b"9")
            case "bounds of before":
                line = b'{"begin":0,"confirm":1,"deleted":{},"queues":{"T":{"0":[0,1]}},"sealed":0,"time":1}'
                (tmp_path / "queuebounds").write_bytes(b"%08x\n%b" % (zlib.crc32(line), line))
            case "checkpoint":
                (tmp_path / "checkpoint").unlink()
            case "stale":
                # Units behind the end, as a crash leaves them when the log lost its tail.
                overwrite(queue / f"{UNITS_PER_FILE * 20 * 2:020d}", 20 * 20, bytes(range(20)) * 5)
                (tmp_path / "abort").touch()
        async with running_store(tmp_path) as store:
            assert store.recovery.rebuilt is (damage not in ("checkpoint", "stale"))
            for queue_id in range(2):
                assert numbers(store, queue_id) == list(range(queue_id, 240, 2))
            for number in range(240, 300):
                assert (await put(store, b"%06d" % number, queue_id=number % 2)).queue_offset == number // 2
        async with running_store(tmp_path) as store:
            assert not store.recovery.rebuilt
            assert numbers(store, 0) == list(range(0, 300, 2))

    asyncio.run(run())


def test_units_of_a_lost_tail_do_not_come_back(tmp_path: Path) -> None:
    async def run() -> None:
        await filled(tmp_path, 10, queues=1)
        async with running_store(tmp_path) as store:
            await put(store, b"gone")
            lost = await put(store, b"gone too")
            crash_copy(tmp_path, tmp_path / "crash")
        root = tmp_path / "crash"
        # The crash kept units that the queue's thread had written, and lost the log's last record.
        queue = Path("consumequeue") / "T" / "0" / f"{0:020d}"
        shutil.copy(tmp_path / queue, root / queue)
        overwrite(root / LOG, lost.physical_offset, bytes(lost.size))
        async with running_store(root) as store:
            assert store.max_offset("T", 0) == 11
        units = (root / queue).read_bytes()
        assert units[10 * 20 : 11 * 20] != bytes(20)
        assert units[11 * 20 :] == bytes(len(units) - 11 * 20)

    asyncio.run(run())


def test_records_behind_a_damaged_one_are_kept(tmp_path: Path) -> None:
    """Without a note of what was on disk: sound records behind a hole show that it is damage and no torn tail."""

    async def run() -> None:
        async with running_store(tmp_path) as store:
            places = [await put(store, b"%06d" % number) for number in range(6)]
            crash_copy(tmp_path, tmp_path / "crash")
        root = tmp_path / "crash"
        (root / "queuebounds").unlink(missing_ok=True)
        overwrite(root / LOG, places[3].physical_offset, bytes(16))
        hole = DamagedRange(root / LOG, places[3].physical_offset, places[3].size)
        raw = (root / LOG).read_bytes()[hole.physical_offset : hole.physical_offset + hole.length]
        async with running_store(root) as store:
            assert store.recovery.damaged == [hole]
            assert numbers(store, 0) == [0, 1, 2, 4, 5]
            again = await put(store, b"%06d" % 6)
            assert (again.physical_offset, again.queue_offset) == (places[5].end_offset, 6)
            crash_copy(root, tmp_path / "second")
        assert (root / "damaged" / f"{hole.physical_offset:020d}").read_bytes() == raw
        (tmp_path / "second" / "queuebounds").unlink(missing_ok=True)
        async with running_store(tmp_path / "second") as store:
            assert store.recovery.damaged == []
            assert numbers(store, 0) == [0, 1, 2, 4, 5, 6]

    asyncio.run(run())


def test_damage_in_the_middle_of_the_log_costs_only_what_it_hit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        await filled(tmp_path, 120, queues=1)
        overwrite(tmp_path / LOG, 2098 * 10 + 500, b"\xff" * 4)
        async with running_store(tmp_path) as store:
            # The damaged message is left out of the answer, and named.
            assert numbers(store, 0) == [number for number in range(120) if number != 10]
            assert store.stats.damaged_records == 1
            assert f"path={tmp_path / LOG}" in caplog.text
        (tmp_path / "queuebounds").unlink()
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            async with running_store(tmp_path) as store:
                assert store.recovery.rebuilt
                assert store.recovery.damaged_bytes > 2000
                assert numbers(store, 0) == [number for number in range(120) if number != 10]
                assert store.max_offset("T", 0) == 120
                assert "commit log damaged" in caplog.text

    asyncio.run(run())


def test_a_crash_right_after_a_roll(tmp_path: Path) -> None:
    """The filler is written, the next segment holds nothing or does not exist."""

    async def run() -> None:
        async with running_store(tmp_path) as store:
            while (await put(store, bytes(30_000))).end_offset <= SEGMENT_BYTES:
                pass
            count = store.max_offset("T", 0)
            crash_copy(tmp_path, tmp_path / "a")
            crash_copy(tmp_path, tmp_path / "b")
        second = Path("commitlog") / f"{SEGMENT_BYTES:020d}"
        third = Path("commitlog") / f"{2 * SEGMENT_BYTES:020d}"
        overwrite(tmp_path / "a" / second, 0, bytes(SEGMENT_BYTES))
        for name in (second, third):
            (tmp_path / "b" / name).unlink(missing_ok=True)
        (tmp_path / "b" / third.with_suffix(".tmp")).touch()
        for root in (tmp_path / "a", tmp_path / "b"):
            async with running_store(root) as store:
                assert store.max_physical_offset == SEGMENT_BYTES
                found = len(read_queue(store))
                assert found == count - 1
                result = await put(store)
                assert (result.physical_offset, result.queue_offset) == (SEGMENT_BYTES, found)
            async with running_store(root) as store:
                assert len(read_queue(store)) == found + 1

    asyncio.run(run())


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    async def run() -> None:
        await filled(tmp_path, 200)

    asyncio.run(run())
    before = {path.name: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}
    for size in (SEGMENT_BYTES * 3 // 4, SEGMENT_BYTES * 2):
        with pytest.raises(StoreCorrupted, match=f"has {SEGMENT_BYTES} bytes and not the configured {size}"):
            MessageStore(store_config(tmp_path, mapped_file_size_commit_log=size, max_message_size=4096)).load()
    for path in (tmp_path / "commitlog").iterdir():
        if path != tmp_path / LOG:
            path.unlink()
    for size in (SEGMENT_BYTES * 3 // 4, SEGMENT_BYTES * 2):
        # A single file that its filler fills is no shortened one of another size.
        with pytest.raises(StoreCorrupted, match=f"not the configured {size}"):
            MessageStore(store_config(tmp_path, mapped_file_size_commit_log=size, max_message_size=4096)).load()
    assert (tmp_path / LOG).read_bytes() == before[LOG.name]
    (tmp_path / "commitlog" / f"{100 * SEGMENT_BYTES:020d}").write_bytes(before[LOG.name])
    with pytest.raises(StoreCorrupted, match="no file starts at"):
        MessageStore(store_config(tmp_path)).load()


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "long", "short last"])
def test_a_file_that_is_lost_or_has_the_wrong_size_costs_what_it_held(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            places = [await put(store, b"%06d" % number + bytes(2000)) for number in range(200)]
        files = sorted((tmp_path / "commitlog").iterdir())
        hit = files[-1] if damage == "short last" else files[1]
        if hit.stat().st_size and int(hit.name) >= places[-1].end_offset:
            hit = files[-2]
        keep = SEGMENT_BYTES
        match damage:
            case "missing":
                hit.unlink()
                keep = 0
            case "empty":
                os.truncate(hit, 0)
                keep = 0
            case "short" | "short last":
                keep = 10_000
                os.truncate(hit, keep)
            case "long":
                with hit.open("ab") as file:
                    file.write(b"more")
        start = int(hit.name)
        lost = {
            number
            for number, place in enumerate(places)
            if start <= place.physical_offset < start + SEGMENT_BYTES and place.end_offset > start + keep
        }
        left = [number for number in range(200) if number not in lost]
        async with running_store(tmp_path) as store:
            assert numbers(store, 0) == left
            assert str(hit) in caplog.text
            assert bool(store.recovery.damaged_bytes) is (damage != "long")
            for one in sorted(lost):
                assert any(
                    damaged.physical_offset <= places[one].physical_offset
                    and places[one].end_offset <= damaged.physical_offset + damaged.length
                    for damaged in store.recovery.damaged
                )
            assert (await put(store, b"%06d" % 200)).queue_offset == 200
        async with running_store(tmp_path) as store:
            assert store.recovery.damaged == []
            assert numbers(store, 0) == [*left, 200]
        if damage == "long":
            assert (tmp_path / "damaged" / f"{start + SEGMENT_BYTES:020d}").read_bytes() == b"more"

    asyncio.run(run())


def _load_in_another_process(root: Path, answer: multiprocessing.queues.Queue[str]) -> None:
    try:
        MessageStore(store_config(root)).load()
    except StoreLocked as error:
        answer.put(str(error))
    else:
        answer.put("")


def test_a_folder_has_one_store(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")

    async def run() -> None:
        async with running_store(tmp_path):
            with pytest.raises(StoreLocked, match="in this process"):
                MessageStore(store_config(tmp_path)).load()
            answer: multiprocessing.queues.Queue[str] = context.Queue()
            process = context.Process(target=_load_in_another_process, args=(tmp_path, answer))
            process.start()
            assert "already started" in answer.get(timeout=30)
            process.join()
        async with running_store(tmp_path):
            pass

    asyncio.run(run())


def test_a_start_that_a_disk_stops_leaves_the_folder_free(tmp_path: Path) -> None:
    """Whichever call on the files fails: the next start of this process has the folder, and loses nothing."""

    async def write() -> None:
        async with running_store(tmp_path) as store:
            for number in range(3):
                await put(store, b"%06d" % number)

    def start(failing: int) -> int:
        """Load a store whose call of this number fails, and return how many calls there were."""
        made = 0

        def around(_: Call, function: Callable[[], object]) -> object:
            nonlocal made
            made += 1
            if made == failing:
                raise OSError(errno.EIO, "refused")
            return function()

        with SystemCalls(tmp_path, lambda _: None, around):
            store = MessageStore(store_config(tmp_path))
            with contextlib.suppress(OSError):
                store.load()
                asyncio.run(store.stop())
        return made

    asyncio.run(write())

    async def read() -> None:
        async with running_store(tmp_path) as store:
            assert numbers(store, 0) == [0, 1, 2]

    calls = start(0)
    assert calls > 30
    for failing in range(1, calls + 1):
        start(failing)
        asyncio.run(read())


def test_a_message_put_before_the_start_is_refused(tmp_path: Path) -> None:
    store = MessageStore(store_config(tmp_path))
    store.load()
    assert "not started" in store.put(message()).reason
    asyncio.run(store.stop())


def test_a_log_that_ends_before_what_was_noted_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            while (await put(store, bytes(30_000))).end_offset < SEGMENT_BYTES + 50_000:
                pass
        last = tmp_path / "commitlog" / f"{SEGMENT_BYTES:020d}"
        last.unlink()
        async with running_store(tmp_path) as store:
            assert read_queue(store)
            assert store.recovery.damaged == [(last, SEGMENT_BYTES, SEGMENT_BYTES)]
            assert f"path={last} position=0 bytes={SEGMENT_BYTES}: it is missing" in caplog.text

    asyncio.run(run())


def test_a_time_far_ahead_is_not_taken_over_by_the_next_run(tmp_path: Path) -> None:
    """A little ahead is: the time of messages does not fall along a queue."""
    clock = ManualClock(1_700_000_000_000)

    async def run() -> None:
        async with running_store(tmp_path, clock=clock) as store:
            await put(store)
        clock.set_wall(clock.time_millis() - 20_000)
        async with running_store(tmp_path, clock=clock) as store:
            assert (await put(store)).store_timestamp == 1_700_000_000_000
        clock.set_wall(4_000_000_000_000)
        async with running_store(tmp_path, clock=clock) as store:
            assert (await put(store)).store_timestamp == 4_000_000_000_000
        clock.set_wall(1_700_000_100_000)
        async with running_store(tmp_path, clock=clock) as store:
            assert (await put(store)).store_timestamp == 1_700_000_100_000 + 60_000

    asyncio.run(run())


def test_the_checkpoint_speaks_of_no_index(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            stored = (await put(store)).store_timestamp
        checkpoint = Checkpoint.read(tmp_path / "checkpoint", FileSystem())
        assert (checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) == (stored, stored)
        assert checkpoint.index_msg_timestamp == 0

    asyncio.run(run())


def test_a_rebuild_that_does_not_come_to_its_end_is_begun_again(tmp_path: Path) -> None:
    """The note of before must not be believed when only the last units of the queues are right again."""

    async def run() -> None:
        await filled(tmp_path, 240)
        shutil.rmtree(tmp_path / "consumequeue" / "T")
        store = MessageStore(store_config(tmp_path))
        store.load()
        assert store.recovery.rebuilt
        # The power goes before the next note.
        crash_copy(tmp_path, tmp_path / "crash")
        await store.stop()
        overwrite(tmp_path / "crash" / "consumequeue" / "T" / "1" / f"{0:020d}", 0, bytes(UNITS_PER_FILE * 20))
        async with running_store(tmp_path / "crash") as store:
            assert store.recovery.rebuilt
            assert numbers(store, 1) == list(range(1, 240, 2))

    asyncio.run(run())


def test_what_a_start_read_is_noted_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is killed before its first note, again and again, does not read more each time."""
    monkeypatch.setattr(queue_saver, "_MANY_MESSAGES", 5)

    async def life(root: Path, *, read: int, noted: bool) -> None:
        async with running_store(root, flush_interval_consume_queue=5) as store:
            assert store.recovery.messages == read
            async with asyncio.timeout(10):
                while noted and store._queue_saver.notes.noted_offset < store.recovery.end_offset:  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0.005)
            await put(store)
            crash_copy(root, root.parent / f"{root.name}+")

    async def run() -> None:
        async with running_store(tmp_path / "0") as store:
            for _ in range(5):
                await put(store)
            crash_copy(tmp_path / "0", tmp_path / "1")
        await life(tmp_path / "1", read=5, noted=True)
        await life(tmp_path / "1+", read=1, noted=False)
        await life(tmp_path / "1++", read=2, noted=False)

    asyncio.run(run())
