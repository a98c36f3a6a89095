"""A listener that raises: messages are readable all the same, now and after a restart, and the failures are counted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from array import array
from pathlib import Path

import pytest

from rocketcore._fast import batch as batch_kernel
from rocketcore._fast import record as record_kernel
from rocketcore._fast.consume_queue import UNIT_SIZE, put_units, unit
from rocketcore.broker.store import FlushDiskType
from rocketcore.broker.store.consume_queue import ConsumeQueue, QueueFiles, Units
from rocketcore.broker.store.dispatch import Batch, Dispatcher
from rocketcore.broker.store.segment_file import FileSystem
from rocketcore.errors import StoreError
from tests.fixtures.stores import FailingFiles, message, put, read_queue, running_store, stored


@pytest.mark.parametrize("mode", list(FlushDiskType))
def test_a_listener_that_raises_loses_no_message(
    tmp_path: Path, mode: FlushDiskType, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[str, int, int, int]] = []

    def listener(*arrival: int | str) -> None:
        heard.append(arrival)  # type: ignore[arg-type]
        if arrival[2] in (1, 3):
            raise ValueError("broken listener")

    async def run() -> None:
        async with running_store(tmp_path, flush_disk_type=mode, on_arrival=listener) as store:
            last = [store.put(message(b"%d" % number)) for number in range(4)][-1]
            await stored(store, last)
            assert [one["body"] for one in read_queue(store)] == [b"0", b"1", b"2", b"3"]
            assert store.listener_errors == 2
            await stored(store, store.put(message(b"4")))
        async with running_store(tmp_path) as store:
            assert [one["body"] for one in read_queue(store)] == [b"0", b"1", b"2", b"3", b"4"]

    asyncio.run(run())
    assert heard == [("T", 0, offset, 0) for offset in range(1, 6)]
    assert "test_a_listener_that_raises_loses_no_message" in caplog.text
    assert "topic=T queue_id=0 queue_offset=0 failures=1" in caplog.text
    assert "ValueError: broken listener" in caplog.text


def test_a_batch_is_announced_once_for_each_tags_code(tmp_path: Path) -> None:
    """Whoever waits for any of them hears of it; a batch of thousands is not thousands of calls."""
    heard: list[tuple[object, ...]] = []

    async def run() -> None:
        async with running_store(tmp_path, on_arrival=lambda *arrival: heard.append(arrival)) as store:
            tags = [b"TAGS\x01%b\x02" % tag if tag else b"" for tag in (b"a", b"b", b"", b"a", b"b")]
            batch = batch_kernel.encode_batch([b"%d" % number for number in range(5)], tags)
            await stored(store, store.put(message(b"first")))
            await stored(store, store.put_batch(message(batch)))
            await stored(store, store.put(message(b"last")))
            bodies = [one["body"] for one in read_queue(store)]
            assert bodies == [b"first", b"0", b"1", b"2", b"3", b"4", b"last"]

    asyncio.run(run())
    codes = {record_kernel.tags_code(b"TAGS\x01%b\x02" % tag) for tag in (b"a", b"b")} | {0}
    assert heard[0] == ("T", 0, 1, 0)
    assert {arrival[3] for arrival in heard[1:-1]} == codes
    assert {arrival[:3] for arrival in heard[1:-1]} == {("T", 0, 6)}
    assert len(heard) == 5
    assert heard[-1] == ("T", 0, 7, 0)


def test_a_batch_behind_a_gap_and_one_that_the_queue_has_in_part(tmp_path: Path) -> None:
    """Batches enter a queue as their messages would, one by one."""
    queue = ConsumeQueue("T", 0, QueueFiles(tmp_path, 20 * UNIT_SIZE, FileSystem()))
    rows = [(100, 7, 1), (200, 8, 2), (300, 9, 3)]
    units = bytearray(3 * UNIT_SIZE)
    put_units(units, 0, *(array("q", column) for column in zip(*rows, strict=True)))
    dispatcher = Dispatcher(None, set())
    queue.append(0, 50, 6, 0)
    dispatcher.dispatch([Batch(queue, 3, bytes(units), {1, 2, 3})])
    assert queue.max_offset == 6
    dispatcher.dispatch([Batch(queue, 5, bytes(units), {1, 2, 3}), Batch(queue, 8, bytes(units), {1, 2, 3})])
    assert queue.max_offset == 11
    found = queue.units(3, 8)
    assert [unit(found, index) for index in range(8)] == [*rows, *rows[1:], *rows]


def test_a_save_asks_only_queues_that_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    unsaved = ConsumeQueue.unsaved

    def counting(queue: ConsumeQueue) -> Units | None:
        asked.append(queue.queue_id)
        return unsaved(queue)

    monkeypatch.setattr(ConsumeQueue, "unsaved", counting)

    async def run() -> None:
        files = FailingFiles()
        async with running_store(tmp_path, files=files, flush_disk_type=FlushDiskType.ASYNC_FLUSH) as store:
            for queue_id in range(300):
                await put(store, queue_id=queue_id)
            # A deletion saves: everything that is new, once.
            await put(store, topic="U")
            await store.delete_topic("U")
            assert sorted(asked) == list(range(300))
            asked.clear()
            await put(store, queue_id=7)
            await put(store, queue_id=9)
            # What could not be saved is asked again.
            await put(store, topic="U")
            files.fail(0, errno.ENOSPC, only="write")
            for _ in range(2):
                with contextlib.suppress(StoreError):
                    await store.delete_topic("U")
            assert sorted(asked) == [7, 7, 9, 9]
        async with running_store(tmp_path) as store:
            assert [store.max_offset("T", queue_id) for queue_id in range(6, 11)] == [1, 2, 1, 2, 1]

    asyncio.run(run())
