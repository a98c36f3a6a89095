"""A listener that raises: messages are readable all the same, now and after a restart, and the failures are counted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from rocketcore._fast import batch as batch_kernel
from rocketcore._fast import record as record_kernel
from rocketcore._fast.consume_queue import UNIT_SIZE
from rocketcore.broker.store import FlushDiskType, MessageStore, PutStatus
from rocketcore.broker.store.queues.consume_queue import ConsumeQueue, Units
from rocketcore.broker.store.writing.dispatch import QueueFeed
from rocketcore.codes import SCHEDULE_TOPIC
from rocketcore.errors import StoreError
from tests.fixtures.stores import FailingFiles, crash_copy, message, put, read_queue, running_store, stored


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
            for number in range(4):
                await put(store, b"%d" % number)
            assert [one["body"] for one in read_queue(store)] == [b"0", b"1", b"2", b"3"]
            assert store.stats.listener_errors == 2
            await stored(store, store.put(message(b"4")))
        async with running_store(tmp_path) as store:
            assert [one["body"] for one in read_queue(store)] == [b"0", b"1", b"2", b"3", b"4"]

    asyncio.run(run())
    assert heard == [("T", 0, offset, 0) for offset in range(1, 6)]
    assert "test_a_listener_that_raises_loses_no_message" in caplog.text
    assert "topic=T queue_id=0 queue_offset=0 failures=1" in caplog.text
    assert "ValueError: broken listener" in caplog.text


def test_a_group_is_not_kept_until_the_next(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            results = [store.put(message(bytes(1 << 20))) for _ in range(4)]
            await stored(store, results[-1])
            assert not store._dispatcher._buffer

    asyncio.run(run())


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


def test_messages_of_a_topic_that_is_deleted_before_they_are_stored_get_no_unit(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            for number in range(3):
                await put(store, b"%d" % number)
            store.put(message(b"on its way"))
            deleted = store.delete_topic("T")
            new = [store.put(message(b"new %d" % number)) for number in range(2)]
            assert [one.queue_offset for one in new] == [0, 1]
            await stored(store, new[-1])
            await deleted
            assert [one["body"] for one in read_queue(store)] == [b"new 0", b"new 1"]
        async with running_store(tmp_path) as store:
            assert [one["body"] for one in read_queue(store)] == [b"new 0", b"new 1"]

    asyncio.run(run())


def test_what_is_dispatched_is_what_a_start_builds(tmp_path: Path) -> None:
    """Messages of all kinds that are put, group after group: the queues of the store are those built from its log."""
    rng = random.Random(7)

    async def run() -> None:
        async with running_store(tmp_path / "store") as store:
            for number in range(300):
                topic = rng.choice(["T", "T", "U", "Ünïcode", SCHEDULE_TOPIC])
                properties = rng.choice([b"", b"TAGS\1a\2", b"TAGS\1b\2", b"DELAY\0012\2", b"DELAY\00199\2TAGS\1a\2"])
                values: dict[str, Any] = {"topic": topic, "queue_id": rng.randrange(3), "properties": properties}
                if rng.random() < 0.3:
                    bodies = [b"%d" % number] * rng.randrange(1, 5)
                    batch = batch_kernel.encode_batch(bodies, [b"TAGS\1%d\2" % (one % 3) for one in range(len(bodies))])
                    result = store.put_batch(message(batch, topic=topic, queue_id=1))
                elif rng.random() < 0.1:
                    result = store.put(message(bytes(4000), sys_flag=rng.choice([4, 8, 12]), **values))
                else:
                    result = store.put(message(bytes(rng.randrange(3000)), **values))
                if rng.random() < 0.3:
                    await stored(store, result)
            await stored(store, result)
            dispatched = queues_of(store)
            assert sum(len(units) for units in dispatched.values()) > 20 * 300
            crash_copy(tmp_path / "store", tmp_path / "copy")
        shutil.rmtree(tmp_path / "copy" / "consumequeue", ignore_errors=True)
        async with running_store(tmp_path / "copy") as store:
            assert store.recovery.rebuilt
            assert queues_of(store) == dispatched

    asyncio.run(run())


def queues_of(store: MessageStore) -> dict[tuple[str, int], bytes]:
    """Return topic, queue id → units."""
    found = {}
    for name in store.queues():
        queue = store._queues.find(*name)
        assert queue is not None
        units, at = b"", queue.min_offset
        while at < queue.max_offset:
            more = queue.units(at, 1000)
            units, at = units + bytes(more), at + len(more) // UNIT_SIZE
        found[name] = units
    return found


@pytest.mark.parametrize("mode", list(FlushDiskType))
def test_what_cannot_be_dispatched_is_not_acknowledged(
    tmp_path: Path, mode: FlushDiskType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*arguments: object) -> int:
        raise MemoryError

    async def run() -> None:
        async with running_store(tmp_path, flush_disk_type=mode) as store:
            await put(store, b"1")
            with monkeypatch.context() as patch:
                patch.setattr(QueueFeed, "feed", no_memory)
                assert await stored(store, store.put(message(b"2"))) is PutStatus.SERVICE_NOT_AVAILABLE
            assert "dispatch failed" in (store.read_only_reason or "")
            assert [one["body"] for one in read_queue(store)] == [b"1"]
        async with running_store(tmp_path) as store:
            assert [one["body"] for one in read_queue(store)] == [b"1", b"2"]

    asyncio.run(run())


def test_delayed_messages_that_cannot_be_dispatched_are_not_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are those before them in the group, until the next start."""

    def no_memory(feed: QueueFeed) -> list[object]:
        raise MemoryError

    async def run() -> None:
        async with running_store(tmp_path) as store:
            for number in range(2):
                await put(store, b"%d" % number, topic=SCHEDULE_TOPIC, queue_id=2, properties=b"DELAY\0013\2")
            with monkeypatch.context() as patch:
                patch.setattr(QueueFeed, "settle", no_memory)
                for number in range(2, 4):
                    last = store.put(
                        message(b"%d" % number, topic=SCHEDULE_TOPIC, queue_id=2, properties=b"DELAY\0013\2")
                    )
                assert await stored(store, last) is PutStatus.SERVICE_NOT_AVAILABLE
            assert "dispatch failed" in (store.read_only_reason or "")
            assert store.max_offset(SCHEDULE_TOPIC, 2) == 2
            assert [one["body"] for one in read_queue(store, SCHEDULE_TOPIC, 2)] == [b"0", b"1"]
        async with running_store(tmp_path) as store:
            assert [one["body"] for one in read_queue(store, SCHEDULE_TOPIC, 2)] == [b"0", b"1", b"2", b"3"]

    asyncio.run(run())


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
