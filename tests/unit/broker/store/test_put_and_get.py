"""What is put is got: the whole way through log and queues, in both flush modes, with the limits of a pull."""

from __future__ import annotations

import asyncio
import shutil
import threading
from array import array
from pathlib import Path

import numpy as np
import pytest

from rocketcore._fast import batch as batch_kernel
from rocketcore._fast import command, frame, message_id
from rocketcore._fast import record as record_kernel
from rocketcore._fast import sends as sends_kernel
from rocketcore.broker.store import FlushDiskType, GetStatus, MessageStore, PutStatus, StoredMessage
from rocketcore.codes import SCHEDULE_TOPIC, BoundaryType
from rocketcore.filter_sql import compile_sql
from rocketcore.service import ManualClock
from tests.fixtures.stores import (
    SEGMENT_BYTES,
    STORE_HOST,
    UNITS_PER_FILE,
    FailingFiles,
    crash_copy,
    message,
    put,
    read_queue,
    records,
    running_store,
    stored,
)

MODES = pytest.mark.parametrize("mode", list(FlushDiskType))


@MODES
def test_messages_come_back_in_order_with_their_offsets(tmp_path: Path, mode: FlushDiskType) -> None:
    async def run() -> None:
        async with running_store(tmp_path, flush_disk_type=mode) as store:
            for number in range(200):
                result = await put(store, b"%d" % number, queue_id=number % 3, properties=b"TAGS\x01a\x02")
                assert result.queue_offset == number // 3
                assert store.lookup(result.physical_offset) is not None
            for queue_id in range(3):
                found = read_queue(store, queue_id=queue_id)
                assert [one["body"] for one in found] == [b"%d" % number for number in range(queue_id, 200, 3)]
                assert [one["queue_offset"] for one in found] == list(range(len(found)))
                assert {one["properties"] for one in found} == {b"TAGS\x01a\x02"}

    asyncio.run(run())


@MODES
def test_nothing_is_visible_or_announced_before_it_is_stored(tmp_path: Path, mode: FlushDiskType) -> None:
    arrivals: list[tuple[str, int, int, int]] = []

    async def run() -> None:
        async with running_store(
            tmp_path, flush_disk_type=mode, on_arrival=lambda *arrival: arrivals.append(arrival)
        ) as store:
            first = store.put(message(b"1", properties=b"TAGS\x01TagA\x02"))
            second = store.put(message(b"2"))
            assert store.durable_offset < first.end_offset
            assert arrivals == []
            assert store.max_offset("T", 0) == 0
            assert store.get("T", 0, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
            assert store.lookup(first.physical_offset) is None
            order: list[int] = []
            store.wait(first.end_offset, lambda _status: order.append(1))
            store.wait(second.end_offset, lambda _status: order.append(2))
            assert await stored(store, second) is PutStatus.PUT_OK
            assert order == [1, 2]
            assert sorted(arrivals) == [("T", 0, 2, 0), ("T", 0, 2, 2598919)], "one for each tags code of a group"
            assert store.durable_offset >= second.end_offset
            assert store.stats.dispatch_behind == 0

    asyncio.run(run())


class SlowSync(FailingFiles):
    """An fsync that waits until it is let through."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.syncs = 0

    def sync(self, fd: int) -> None:
        assert self.may_sync.wait(10)
        self.syncs += 1
        super().sync(fd)


def test_while_the_disk_works_the_next_group_grows(tmp_path: Path) -> None:
    files = SlowSync()

    async def run() -> None:
        async with running_store(tmp_path, files=files) as store:
            files.may_sync.clear()
            before = files.syncs
            results = []
            for _ in range(50):
                results.append(store.put(message()))
                await asyncio.sleep(0)
            assert store.max_offset("T", 0) == 0
            files.may_sync.set()
            assert await stored(store, results[-1]) is PutStatus.PUT_OK
            assert files.syncs - before == 2
            assert len(read_queue(store)) == 50

    asyncio.run(run())


def test_a_slow_disk_is_a_timeout_and_the_message_comes_later(tmp_path: Path) -> None:
    files = SlowSync()
    clock = ManualClock()

    async def run() -> None:
        async with running_store(tmp_path, files=files, clock=clock, sync_flush_timeout=20) as store:
            files.may_sync.clear()
            result = store.put(message())
            answer = asyncio.ensure_future(stored(store, result))
            await asyncio.sleep(0)
            clock.advance(0.021)
            assert await answer is PutStatus.FLUSH_DISK_TIMEOUT
            files.may_sync.set()
            assert await stored(store, result) is PutStatus.PUT_OK

    asyncio.run(run())


def test_too_much_pending_is_busy_and_nothing_is_stored(tmp_path: Path) -> None:
    files = SlowSync()

    async def run() -> None:
        async with running_store(tmp_path, files=files, max_pending_bytes=1000) as store:
            files.may_sync.clear()
            taken = 0
            while (result := store.put(message(bytes(100)))).status is PutStatus.PUT_OK:
                last, taken = result, taken + 1
            assert result.status is PutStatus.OS_PAGE_CACHE_BUSY
            assert 4 < taken < 10
            files.may_sync.set()
            assert await stored(store, last) is PutStatus.PUT_OK
            assert len(read_queue(store)) == taken

    asyncio.run(run())


@pytest.mark.parametrize(
    ("bad", "status"),
    [
        (message(topic="x" * 128), PutStatus.MESSAGE_ILLEGAL),
        (message(topic=""), PutStatus.MESSAGE_ILLEGAL),
        (message(topic=".."), PutStatus.MESSAGE_ILLEGAL),
        (message(topic="a/b"), PutStatus.MESSAGE_ILLEGAL),
        (message(topic="%RETRY%" + "x" * 250), PutStatus.MESSAGE_ILLEGAL),
        (message(queue_id=-1), PutStatus.MESSAGE_ILLEGAL),
        (message(bytes(SEGMENT_BYTES)), PutStatus.MESSAGE_ILLEGAL),
        (message(properties=bytes(32768)), PutStatus.PROPERTIES_SIZE_EXCEEDED),
    ],
)
def test_what_cannot_be_stored_takes_no_offset(tmp_path: Path, bad: StoredMessage, status: PutStatus) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            before = store.max_physical_offset
            result = store.put(bad)
            assert result.status is status
            assert result.reason
            assert store.max_physical_offset == before
            assert (await put(store)).queue_offset == 0

    asyncio.run(run())


def test_a_long_retry_topic_and_ipv6_hosts(tmp_path: Path) -> None:
    topic = "%RETRY%" + "g" * 200

    async def run() -> None:
        async with running_store(tmp_path) as store:
            result = await put(store, b"again", topic=topic, born_host=bytes(range(20)))
            (found,) = read_queue(store, topic)
            assert found["body"] == b"again"
            assert store.store_time(topic, 0, 0) == result.store_timestamp == found["store_timestamp"]

    asyncio.run(run())


def test_segments_and_queue_files_roll(tmp_path: Path) -> None:
    body = bytes(1000)

    async def run() -> None:
        async with running_store(tmp_path) as store:
            for number in range(400):
                await put(store, body + b"%d" % number)
            assert [one["body"][1000:] for one in read_queue(store)] == [b"%d" % number for number in range(400)]
        names = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
        assert names[:4] == [f"{start * SEGMENT_BYTES:020d}" for start in range(4)]
        files = sorted(path.name for path in (tmp_path / "consumequeue" / "T" / "0").iterdir())
        assert files == [f"{start * UNITS_PER_FILE * 20:020d}" for start in range(8)]
        async with running_store(tmp_path) as store:
            assert not store.recovery.rebuilt
            assert len(read_queue(store)) == 400
            assert (await put(store)).queue_offset == 400

    asyncio.run(run())


def test_limits_of_a_pull(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            for _ in range(40):
                await put(store, bytes(400))
            size = len(store.get("T", 0, 0, 1).body)
            assert store.get("T", 0, 0, 100).count == 32
            assert store.get("T", 0, 0, 0).count == 1
            result = store.get("T", 0, 5, 32, max_bytes=3 * size)
            assert (result.count, result.next_begin_offset) == (3, 8)
            assert store.get("T", 0, 5, 32, max_bytes=1).count == 1
            for offset, status, begin in (
                (-1, GetStatus.OFFSET_TOO_SMALL, 0),
                (40, GetStatus.OFFSET_OVERFLOW_ONE, 40),
                (41, GetStatus.OFFSET_OVERFLOW_BADLY, 40),
            ):
                result = store.get("T", 0, offset, 32)
                assert (result.status, result.next_begin_offset) == (status, begin)
                assert (result.min_offset, result.max_offset) == (0, 40)
            assert store.get("T", 9, 3, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
            assert store.get("U", 0, 3, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE

    asyncio.run(run())


def test_filters_by_tag_and_by_properties(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            for number in range(30):
                tag = b"TagA" if number % 3 == 0 else b"TagB"
                await put(store, b"%d" % number, properties=b"TAGS\x01%s\x02n\x01%d\x02" % (tag, number))
            codes = array("q", [record_kernel.tags_code(b"TAGS\x01TagA\x02")])
            result = store.get("T", 0, 0, 32, codes)
            assert [int(one["body"]) for one in records(result.body)] == list(range(0, 30, 3))
            assert result.next_begin_offset == 30
            result = store.get("T", 0, 0, 32, None, compile_sql("TAGS = 'TagA' AND n = 9"))
            assert [int(one["body"]) for one in records(result.body)] == [9]
            assert result.next_begin_offset == 30
            result = store.get("T", 0, 0, 4, None, compile_sql("TAGS = 'TagB'"))
            assert [int(one["body"]) for one in records(result.body)] == [1, 2, 4, 5]
            assert result.next_begin_offset == 6
            result = store.get("T", 0, 4, 32, array("q", [1, 2]))
            assert (result.status, result.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 30)

    asyncio.run(run())


def test_search_by_time_and_a_clock_that_goes_back(tmp_path: Path) -> None:
    clock = ManualClock(10_000)

    async def run() -> None:
        async with running_store(tmp_path, clock=clock) as store:
            for millis in (10_000, 10_010, 10_010, 9_000, 10_020):
                clock.set_wall(millis)
                await put(store)
            times = [store.store_time("T", 0, offset) for offset in range(5)]
            assert times == [10_000, 10_010, 10_010, 10_010, 10_020]
            lower = [store.offset_by_time("T", 0, at) for at in (0, 10_000, 10_001, 10_010, 10_011, 10_021)]
            assert lower == [0, 0, 1, 1, 4, 5]
            upper = [store.offset_by_time("T", 0, at, BoundaryType.UPPER) for at in (0, 10_000, 10_001, 10_010, 10_021)]
            assert upper == [0, 0, 0, 3, 4]
            assert store.earliest_time("T", 0) == 10_000
            assert store.earliest_time("T", 1) == store.earliest_time("U", 0) == -1
        clock.set_wall(5_000)
        async with running_store(tmp_path, clock=clock) as store:
            assert (await put(store)).store_timestamp == 10_020

    asyncio.run(run())


def test_batch_has_consecutive_offsets_and_one_id_each(tmp_path: Path) -> None:
    body = batch_kernel.encode_batch([b"a", b"bb", b"ccc"], [b"TAGS\x01x\x02", b"", b"KEYS\x01k\x02"])

    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store)
            result = store.put_batch(message(body))
            assert await stored(store, result) is PutStatus.PUT_OK
            found = read_queue(store)
            assert (result.queue_offset, result.count) == (1, 3)
            assert [one["body"] for one in found[1:]] == [b"a", b"bb", b"ccc"]
            assert found[2]["properties"] == b""
            ids = [message_id.offset_msg_id(STORE_HOST, one["physical_offset"]) for one in found[1:]]
            assert result.msg_id == b",".join(ids)
            # A batch stays in one file, whatever room that leaves in the one before.
            large = batch_kernel.encode_batch([bytes(1000)] * 40, [b""] * 40)
            for _ in range(6):
                result = store.put_batch(message(large, queue_id=1))
                assert await stored(store, result) is PutStatus.PUT_OK
                assert result.physical_offset // SEGMENT_BYTES == (result.end_offset - 1) // SEGMENT_BYTES
            assert len(read_queue(store, queue_id=1)) == 240

    asyncio.run(run())


def test_transaction_records_and_delayed_ones(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)

    async def run() -> None:
        async with running_store(tmp_path, clock=clock) as store:
            prepared = await put(store, sys_flag=0x4)
            rolled_back = await put(store, sys_flag=0xC)
            assert (prepared.queue_offset, rolled_back.queue_offset) == (0, 0)
            assert store.max_offset("T", 0) == 0
            # Nothing in a queue leads to it, so nothing tells it from bytes in a body.
            assert store.lookup(prepared.physical_offset) is None
            assert (await put(store, sys_flag=0x8)).queue_offset == 0
            await put(store, topic=SCHEDULE_TOPIC, properties=b"TAGS\x01t\x02DELAY\x012\x02")
            due = array("q", [1_000_000 + 5000])
            assert store.get(SCHEDULE_TOPIC, 0, 0, 1, due).count == 1

    asyncio.run(run())


def test_a_deleted_topic_starts_anew_and_stays_deleted(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, b"old")
            await put(store, b"other", topic="U")
            await store.delete_topic("T")
            assert store.get("T", 0, 0, 1).status is GetStatus.NO_MESSAGE_IN_QUEUE
            assert (await put(store, b"new")).queue_offset == 0
            assert sorted(store.queues()) == [("T", 0), ("U", 0)]
        for lost in ((), ("consumequeue/U",)):
            for name in lost:
                shutil.rmtree(tmp_path / name)
            async with running_store(tmp_path) as store:
                assert store.recovery.rebuilt is bool(lost)
                assert [one["body"] for one in read_queue(store)] == [b"new"]
                assert [one["body"] for one in read_queue(store, "U")] == [b"other"]

    asyncio.run(run())


def send_chunk(bodies: list[bytes], topic: str = "T", queues: int = 4) -> tuple[bytes, np.ndarray, bytearray]:
    """Return the bytes of some sends, their rows as ``scan_send`` reads them, and its scratch."""
    frames = []
    for number, body in enumerate(bodies):
        fields = {
            "a": "group", "b": topic, "c": "TBW102", "d": "4", "e": str(number % queues), "f": "0", "g": "123",
            "h": "0", "i": f"UNIQ_KEY\x01{number:032d}\x02WAIT\x01true\x02", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        frames.append(command.encode_frame(310, 0, 499, number, 0, None, fields, body, 0))
    data = b"".join(frames)
    rows = np.empty((len(frames), frame.FRAME_COLUMNS), np.int64)
    heads = np.empty((len(frames), frame.HEAD_COLUMNS), np.int64)
    count, _, _ = frame.read_frames(data, 0, rows.data, heads.data)
    sends = np.empty((count, sends_kernel.SEND_COLUMNS), np.int64)
    scratch = bytearray(65536)
    assert sends_kernel.scan_send(data, rows.data, heads.data, 0, count, sends.data, scratch) == len(bodies)
    return data, sends, scratch


async def put_all(store: MessageStore, bodies: list[bytes], topic: str = "T") -> list[tuple[int, int]]:
    """Put sends through ``put_rows`` as the broker does, and return (queue offset, physical offset) of each."""
    data, sends, scratch = send_chunk(bodies, topic)
    results = np.empty((len(sends), sends_kernel.RESULT_COLUMNS), np.int64)
    done = 0
    places = []
    while done < len(sends):
        rows = store.put_rows(
            topic, data, scratch, sends.data, done, len(sends),
            born_host=STORE_HOST, extra_properties=b"CLUSTER\x01c\x02", results=results.data, queue_count=4,
        )  # fmt: skip
        assert rows.count
        for row in results[done : done + rows.count].tolist():
            places.append((row[sends_kernel.RESULT_QUEUE_OFFSET], rows.base + row[sends_kernel.RESULT_POSITION]))
        done += rows.count
    answer: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
    store.wait(rows.end_offset, answer.set_result)
    assert await answer is PutStatus.PUT_OK
    return places


@MODES
def test_rows_of_sends_are_stored_like_single_messages(tmp_path: Path, mode: FlushDiskType) -> None:
    bodies = [b"%d" % number + bytes(3000) for number in range(100)]

    async def run() -> None:
        async with running_store(tmp_path, flush_disk_type=mode) as store:
            assert (await put(store, b"first", queue_id=1)).queue_offset == 0
            places = await put_all(store, bodies)
            for queue_id in range(4):
                found = read_queue(store, queue_id=queue_id)
                if queue_id == 1:
                    assert found.pop(0)["body"] == b"first"
                assert [one["body"] for one in found] == bodies[queue_id::4]
                assert [(one["queue_offset"], one["physical_offset"]) for one in found] == places[queue_id::4]
                assert found[0]["properties"].endswith(b"\x02CLUSTER\x01c\x02")

    asyncio.run(run())


def test_a_row_that_is_not_plain_is_left_to_the_caller(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            data, sends, scratch = send_chunk([b"a", b"b", b"c"])
            results = np.empty((3, sends_kernel.RESULT_COLUMNS), np.int64)
            rows = store.put_rows(
                "T",
                data,
                scratch,
                sends.data,
                0,
                3,
                born_host=STORE_HOST,
                extra_properties=b"",
                results=results.data,
                queue_count=2,
            )
            assert rows.count == 2

    asyncio.run(run())


def test_a_queue_id_that_recovery_does_not_believe_is_not_stored(tmp_path: Path) -> None:
    """Whatever the topic's settings say: after a crash the log would end before such a message."""

    async def run() -> None:
        async with running_store(tmp_path / "live") as store:
            await put(store, b"before")
            data, sends, scratch = send_chunk([b"last", b"beyond"])
            sends[:, sends_kernel.SEND_QUEUE_ID] = [65_535, 65_536]
            results = np.empty((2, sends_kernel.RESULT_COLUMNS), np.int64)
            rows = store.put_rows(
                "T", data, scratch, sends.data, 0, 2,
                born_host=STORE_HOST, extra_properties=b"", results=results.data, queue_count=100_000,
            )  # fmt: skip
            assert rows.count == 1
            assert store.put(message(b"beyond", queue_id=65_536)).status is PutStatus.MESSAGE_ILLEGAL
            await put(store, b"after")
            crash_copy(tmp_path / "live", tmp_path / "crash")
        async with running_store(tmp_path / "crash") as store:
            assert [one["body"] for one in read_queue(store)] == [b"before", b"after"]
            assert [one["body"] for one in read_queue(store, queue_id=65_535)] == [b"last"]

    asyncio.run(run())
