"""The index of keys: what is found, after which ends of a run, and what a disk that fails does to it."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketcore._fast import index
from rocketcore._fast.properties import encode_properties
from rocketcore.broker.store import IndexQuery, MessageStore, PutStatus, QueryResult
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.index import index_folder
from rocketcore.broker.store.notes.checkpoint import Checkpoint
from rocketcore.message import KeyKind
from rocketcore.service import ManualClock
from tests.fixtures import stores
from tests.fixtures.stores import (
    FailingFiles,
    IndexFails,
    crash_copy,
    message,
    put,
    records,
    stored,
)

SMALL: dict[str, Any] = {"max_hash_slot_num": 50, "max_index_num": 100}

running_store = partial(stores.running_store, message_index_enable=True)


def keyed(*keys: str, unique: str = "", tag: str = "") -> dict[str, Any]:
    values = {"KEYS": " ".join(keys) or None, "UNIQ_KEY": unique or None, "TAGS": tag or None}
    return {"properties": encode_properties(values)}


async def ask(
    store: MessageStore, key: str, kind: KeyKind = KeyKind.KEY, *, topic: str = "T", most: int = 64, **times: int
) -> QueryResult:
    query = IndexQuery(topic, key, kind, times.get("begin", 0), times.get("end", 1 << 60))
    result = await store.query(query, most, 60)
    assert result is not None
    return result


async def bodies(store: MessageStore, key: str, kind: KeyKind = KeyKind.KEY, **values: Any) -> list[bytes]:
    result = await ask(store, key, kind, **values)
    assert result.behind == 0
    return [record["body"] for record in records(b"".join(result.records))]


async def fill(store: MessageStore, numbers: Iterable[int]) -> None:
    for number in numbers:
        await put(store, b"%d" % number, **keyed(f"k{number}", "all", unique=f"u{number}", tag=f"t{number % 2}"))


def files(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "index").iterdir())


def test_a_message_is_found_by_key_id_and_tag(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, b"1", **keyed("a", "b", unique="id", tag="red"))
            await put(store, b"2", **keyed("b"))
            await put(store, b"3", topic="U", **keyed("b"))
            assert await bodies(store, "a") == [b"1"]
            assert await bodies(store, "b") == [b"1", b"2"]
            assert await bodies(store, "id") == [b"1"]
            assert await bodies(store, "id", KeyKind.UNIQUE) == [b"1"]
            assert await bodies(store, "a", KeyKind.UNIQUE) == []
            assert await bodies(store, "red", KeyKind.TAG) == [b"1"]
            assert await bodies(store, "red") == []
            assert await bodies(store, "b", topic="U") == [b"3"]
            assert await bodies(store, "none") == []

    asyncio.run(run())


def test_keys_of_the_same_hash_are_told_apart(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            for key in ("Aa", "BB", "Aa", "BB"):
                await put(store, key.encode(), **keyed(key))
            assert await bodies(store, "Aa", most=2) == [b"Aa", b"Aa"]

    asyncio.run(run())


def test_the_newest_are_found_and_answered_in_order(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path, **SMALL) as store:
            await fill(store, range(100))
            assert await bodies(store, "all", most=3) == [b"97", b"98", b"99"]
            assert len(await bodies(store, "all")) == 64
            assert len(files(tmp_path)) == 5

    asyncio.run(run())


def test_times_are_those_of_messages(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path, **SMALL) as store:
            await fill(store, range(60))
            times = [record["store_timestamp"] for record in records(b"".join((await ask(store, "all")).records))]
            for begin, end in ((times[10], times[20]), (0, times[5]), (times[50], 1 << 60)):
                found = await ask(store, "all", begin=begin, end=end)
                wanted = [time for time in times if begin <= time <= end]
                assert [record["store_timestamp"] for record in records(b"".join(found.records))] == wanted

    asyncio.run(run())


def test_an_answer_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketcore.broker.store.index.index_query.ANSWER_BYTES", 2500)

    async def run() -> None:
        async with running_store(tmp_path) as store:
            for number in range(5):
                await put(store, b"%d" % number + bytes(999), **keyed("all"))
            assert [body[:1] for body in await bodies(store, "all")] == [b"3", b"4"]
            await put(store, b"5" + bytes(5000), **keyed("all"))
            assert [body[:1] for body in await bodies(store, "all")] == [b"5"]

    asyncio.run(run())


def test_messages_of_a_deleted_topic_are_not_found(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            await put(store, b"old", **keyed("a"))
            await store.delete_topic("T")
            assert await bodies(store, "a") == []
            await put(store, b"new", **keyed("a"))
            assert await bodies(store, "a") == [b"new"]

    asyncio.run(run())


def test_a_store_without_an_index(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path, message_index_enable=False) as store:
            await fill(store, range(3))
            assert await store.query(IndexQuery("T", "k1", KeyKind.KEY, 0, 1 << 60), 64, 1) is None
        assert not (tmp_path / "index").exists()
        async with running_store(tmp_path) as store:
            assert await bodies(store, "k1") == [b"1"]

    asyncio.run(run())


# ---------------------------------------------------------------------- starts


def test_a_store_that_stopped_goes_on_in_its_file(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path, **SMALL) as store:
            await fill(store, range(10))
        before = files(tmp_path)
        async with running_store(tmp_path, **SMALL) as store:
            await fill(store, range(10, 20))
            assert await bodies(store, "all") == [b"%d" % number for number in range(20)]
            assert files(tmp_path) == before
        checkpoint = Checkpoint.read(tmp_path / "checkpoint", FileSystem())
        assert checkpoint.index_msg_timestamp == checkpoint.physic_msg_timestamp

    asyncio.run(run())


@pytest.mark.parametrize("noted", [False, True])
def test_a_crash_loses_nothing_of_the_index(tmp_path: Path, noted: bool) -> None:
    async def run() -> None:
        async with running_store(tmp_path / "a", **SMALL) as store:
            await fill(store, range(40))
            await bodies(store, "all")
            if noted:
                await store.index.note()
            await fill(store, range(40, 70))
            await bodies(store, "all")
            crash_copy(tmp_path / "a", tmp_path / "b")
        async with running_store(tmp_path / "b", **SMALL) as store:
            assert await bodies(store, "all") == [b"%d" % number for number in range(6, 70)]
            for number in range(70):
                assert await bodies(store, f"k{number}") == [b"%d" % number]

    asyncio.run(run())


def test_a_lost_index_is_made_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path, **SMALL) as store:
            await fill(store, range(60))
        names = files(tmp_path)
        for name in names[1:]:
            (tmp_path / "index" / name).unlink()
        async with running_store(tmp_path, **SMALL) as store:
            assert files(tmp_path)[0] == names[0]
            for number in range(60):
                assert await bodies(store, f"k{number}") == [b"%d" % number]

    asyncio.run(run())


SLOTS, ENTRY = index.HEADER_SIZE, index.HEADER_SIZE + 50 * index.SLOT_SIZE + 7 * index.ENTRY_SIZE


@pytest.mark.parametrize("name", [0, -1], ids=["full", "newest"])
@pytest.mark.parametrize(
    ("position", "damage"),
    [(0, b"\xff"), (SLOTS, bytes(200)), (SLOTS, b"\x00\x00\x00\x63" * 50), (ENTRY + 3, b"\xff"), (ENTRY + 11, b"\xff"),
     (ENTRY + 15, b"\xff"), (ENTRY + 19, b"\x7f")],
    ids=["header", "no slots", "slots", "hash", "offset", "time", "chain"],
)  # fmt: skip
def test_a_damaged_file_is_made_again_when_it_is_met(tmp_path: Path, name: int, position: int, damage: bytes) -> None:
    async def run() -> None:
        async with running_store(tmp_path, **SMALL) as store:
            await fill(store, range(60))
        path = tmp_path / "index" / files(tmp_path)[name]
        data = bytearray(path.read_bytes())
        data[position : position + len(damage)] = damage
        path.write_bytes(data)
        async with running_store(tmp_path, **SMALL) as store:
            for number in range(60):
                assert await bodies(store, f"k{number}") == [b"%d" % number]
            assert store.index.files.damaged == 1

    asyncio.run(run())


@pytest.mark.parametrize("setting", ["max_hash_slot_num", "max_index_num"])
def test_files_of_another_size_are_made_again(tmp_path: Path, setting: str) -> None:
    async def run() -> None:
        async with running_store(tmp_path, **SMALL) as store:
            await fill(store, range(40))
        async with running_store(tmp_path, **(SMALL | {setting: 64})) as store:
            assert await bodies(store, "k3") == [b"3"]

    asyncio.run(run())


def test_files_of_another_log_are_not_believed(tmp_path: Path) -> None:
    async def run() -> None:
        for name, first in (("a", 0), ("b", 100)):
            async with running_store(tmp_path / name, **SMALL) as store:
                await fill(store, range(first, first + 20))
        for name in ("index", "indexbounds"):
            (tmp_path / "b" / name).rename(tmp_path / "b" / f"{name}.own")
            (tmp_path / "a" / name).rename(tmp_path / "b" / name)
        async with running_store(tmp_path / "b", **SMALL) as store:
            assert await bodies(store, "k103") == [b"103"]
            assert await bodies(store, "k3") == []

    asyncio.run(run())


@pytest.mark.parametrize("damage", [b"", b"00000000\n{}", b"what is this"])
def test_without_its_note_the_index_is_made_again(tmp_path: Path, damage: bytes) -> None:
    """Nothing else tells that the place of a message in an entry is not what was written."""

    async def run() -> None:
        async with running_store(tmp_path, **SMALL) as store:
            await fill(store, range(60))
        (tmp_path / "indexbounds").write_bytes(damage)
        path = tmp_path / "index" / files(tmp_path)[0]
        content = bytearray(path.read_bytes())
        content[40 + 4 * 50 + 20 * 8 + 11] ^= 2  # the last entry of a message: its place, still in order
        path.write_bytes(content)
        async with running_store(tmp_path, **SMALL) as store:
            assert store.index.whole_until() == 0
            for number in range(60):
                for key, kind in ((f"k{number}", KeyKind.KEY), (f"u{number}", KeyKind.UNIQUE)):
                    assert await bodies(store, key, kind) == [b"%d" % number]
            assert len(await bodies(store, "t1", KeyKind.TAG)) == len(await bodies(store, "t0", KeyKind.TAG)) == 30

    asyncio.run(run())


def test_a_gap_between_files_is_filled(tmp_path: Path) -> None:
    """As a crash of RocketMQ leaves it, which removes a file and does not read the log for it again."""

    async def run() -> None:
        async with running_store(tmp_path, **SMALL) as store:
            await fill(store, range(80))
        names = files(tmp_path)
        checkpoint = Checkpoint.read(tmp_path / "checkpoint", FileSystem())
        replace(checkpoint, begin_offset=-1).write(tmp_path / "checkpoint", FileSystem())
        (tmp_path / "index" / names[1]).unlink()
        async with running_store(tmp_path, **SMALL) as store:
            for number in range(80):
                assert await bodies(store, f"k{number}") == [b"%d" % number]
            assert files(tmp_path)[0] == names[0]
            assert names[2] not in files(tmp_path)

    asyncio.run(run())


def test_the_keys_of_one_message_may_be_in_several_files(tmp_path: Path) -> None:
    many = [f"k{number}" for number in range(250)]

    async def run() -> None:
        async with running_store(tmp_path / "a", **SMALL) as store:
            await put(store, b"many", **keyed(*many, unique="u", tag="t"))
            assert await bodies(store, "k0") == [b"many"]
            assert len(files(tmp_path / "a")) == 3
            await store.index.note()
            await put(store, b"more", **keyed(*many))
            assert await bodies(store, "k0") == [b"many", b"more"]
            crash_copy(tmp_path / "a", tmp_path / "b")
        for root in (tmp_path / "a", tmp_path / "b"):
            async with running_store(root, **SMALL) as store:
                for key in many:
                    assert await bodies(store, key) == [b"many", b"more"]
                assert await bodies(store, "t", KeyKind.TAG) == [b"many"]
                assert sum(file.header[index.ENTRIES] - 1 for file in store.index.files.files) == 502

    asyncio.run(run())


def test_few_files_stay_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last that were asked; a query that goes through all of them finds what is in the others too."""
    monkeypatch.setattr(index_folder, "MAPPED_FILES", 2)

    async def run() -> None:
        async with running_store(tmp_path, **SMALL) as store:
            await fill(store, range(150))
            assert await bodies(store, "k0") == [b"0"]
            kept = store.index.files.files
            assert len(kept) > 3
            for key in ("k149", "k0", "k70"):
                assert await bodies(store, key) == [key[1:].encode()]
                assert [file for file in kept if file._map is not None] == kept[:2]

    asyncio.run(run())


def test_a_crash_at_any_call_on_the_index_loses_nothing_of_it(tmp_path: Path) -> None:
    """A copy of the folder before every call on files of the index, and on its note, each then started."""
    root = tmp_path / "store"
    copies: list[Path] = []
    disk = IndexFails(root)

    def copy() -> None:
        copies.append(crash_copy(root, tmp_path / f"{len(copies):03d}"))

    async def run() -> None:
        async with running_store(root, files=disk, flush_consume_queue_thorough_interval=10_000_000, **SMALL) as store:
            await fill(store, range(20))
            await bodies(store, "all")
            await store.index.note()
            disk.before_call = copy
            await fill(store, range(20, 45))
            await bodies(store, "all")
            await store.index.note()
            await fill(store, range(45, 50))
            await bodies(store, "all")

    async def check(folder: Path) -> None:
        async with running_store(folder, **SMALL) as store:
            count = store.max_offset("T", 0)
            assert count >= 20
            for number in range(count):
                assert await bodies(store, f"k{number}") == [b"%d" % number], folder
            assert await bodies(store, "all") == [b"%d" % number for number in range(count)], folder
            assert store.index.files.damaged == 0, folder

    asyncio.run(run())
    assert len(copies) > 20
    for folder in copies:
        asyncio.run(check(folder))


# ---------------------------------------------------------------------- retention


def test_files_of_the_index_follow_the_log(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path, **SMALL) as store:
            await fill_files(store, 3)
            await bodies(store, "all")
            before = files(tmp_path)
            segment = store._log.segments[1]
            store._log.begin_at(segment.start)
            await store.index.remove_before(segment.start)
            left = files(tmp_path)
            assert 0 < len(left) < len(before)
            assert left == before[-len(left) :]
            assert store.index.files.files[0].header[index.END_OFFSET] >= segment.start
            last = store.max_offset("T", 0) - 1
            assert await bodies(store, f"k{last}") != []
            assert await bodies(store, "k0") == []

    asyncio.run(run())


def test_an_index_that_is_behind_goes_on_where_the_log_begins(tmp_path: Path) -> None:
    disk = IndexFails(tmp_path)

    async def run() -> None:
        async with running_store(tmp_path, files=disk, **SMALL) as store:
            disk.failing = "resize"
            await fill_files(store, 3)
            segment = store._log.segments[1]
            store._log.begin_at(segment.start)
            await store.index.remove_before(segment.start)
            disk.failing = ""
            last = store.max_offset("T", 0) - 1
            assert await bodies(store, f"k{last}") != []
            assert await bodies(store, "k0") == []

    asyncio.run(run())


async def fill_files(store: MessageStore, count: int) -> None:
    number = 0
    while len(store._log.segments) < count:
        await put(store, b"%d" % number + bytes(1000), **keyed(f"k{number}", "all"))
        number += 1


# ---------------------------------------------------------------------- a disk that fails


@pytest.mark.parametrize("call", ["write", "resize", "sync"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_harms_the_index_only(
    tmp_path: Path, call: str, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr("rocketcore.broker.store.index.message_index.RETRY_SECONDS", 0.01)
        disk = IndexFails(tmp_path)
        async with running_store(tmp_path, files=disk, **SMALL) as store:
            await fill(store, range(20))
            await bodies(store, "all")
            disk.failing, disk.error = call, error
            await fill(store, range(20, 60))
            result = await store.query(IndexQuery("T", "k59", KeyKind.KEY, 0, 1 << 60), 64, 0.2)
            assert result is not None
            assert result.behind > 0
            assert store.index.errors > 0
            assert store.read_only_reason is None
            assert store.refusal == ""
            disk.failing = ""
            for number in range(60):
                assert await bodies(store, f"k{number}") == [b"%d" % number]

    asyncio.run(run())


def test_a_lost_sync_has_what_was_written_made_again(tmp_path: Path) -> None:
    disk = IndexFails(tmp_path)
    disk.error = errno.EIO

    async def run() -> None:
        async with running_store(tmp_path, files=disk, **SMALL) as store:
            await fill(store, range(10))
            await bodies(store, "all")
            before = files(tmp_path)
            disk.failing = "sync"
            await store.index.note()
            disk.failing = ""
            assert store.index.errors == 1
            assert files(tmp_path) == []
            assert await bodies(store, "all") == [b"%d" % number for number in range(10)]
            assert files(tmp_path) > before
            assert store.read_only_reason is None

    asyncio.run(run())


def test_a_store_that_failed_writes_no_index(tmp_path: Path) -> None:
    disk = FailingFiles()

    async def run() -> None:
        async with running_store(tmp_path, files=disk) as store:
            await fill(store, range(3))
            await bodies(store, "all")
            disk.fail(0, errno.EIO, only="sync")
            assert await stored(store, store.put(message(**keyed("lost")))) is PutStatus.SERVICE_NOT_AVAILABLE
            assert len(await bodies(store, "all")) == 3
            calls = len(disk.calls)
        assert disk.calls[calls:] == []

    asyncio.run(run())


def test_a_query_does_not_wait_longer_than_it_may(tmp_path: Path) -> None:
    async def run() -> None:
        disk = IndexFails(tmp_path)
        disk.failing = "resize"
        async with running_store(tmp_path, files=disk) as store:
            await fill(store, range(3))
            async with asyncio.timeout(30):
                result = await store.query(IndexQuery("T", "k1", KeyKind.KEY, 0, 1 << 60), 64, 0.05)
            assert result == QueryResult(behind=store.durable_offset)

    asyncio.run(run())


def test_messages_after_a_clock_was_set_back_are_found_by_their_time(tmp_path: Path) -> None:
    """The time of a store falls at a start only. An entry counts seconds from the begin of its file, and none below."""
    now, year, minute = 1_700_000_000_000, 365 * 86_400_000, 60_000
    sent = [b"%d" % (now + number * minute) for number in range(5)]

    async def run() -> None:
        clock = ManualClock(now + year)
        async with running_store(tmp_path, clock=clock) as store:
            await put(store, b"of the future", **keyed("k"))
        clock.set_wall(now - year)
        for again in range(2):
            async with running_store(tmp_path, clock=clock) as store:
                for body in sent[5 * again :]:
                    clock.set_wall(int(body))
                    await put(store, body, **keyed("k"))
                assert await bodies(store, "k", begin=now - year, end=now + 60 * minute) == sent
                assert await bodies(store, "k", begin=now + minute, end=now + 2 * minute) == sent[1:3]
                assert await bodies(store, "k", begin=now + year - 1, end=now + year + 1) == [b"of the future"]
                assert len(await bodies(store, "k")) == 6
                assert len(files(tmp_path)) == 2

    asyncio.run(run())


def test_a_clock_that_trembles_begins_no_file(tmp_path: Path) -> None:
    async def run() -> None:
        for number in range(5):
            async with running_store(tmp_path, clock=ManualClock(1_700_000_000_000 - number * 200)) as store:
                await put(store, **keyed("k"))
                assert len(await bodies(store, "k")) == number + 1
        assert len(files(tmp_path)) == 1

    asyncio.run(run())


@pytest.mark.parametrize("first", [{}, {"properties": b"", "sys_flag": 12}], ids=["no keys", "rolled back"])
def test_a_message_of_the_future_that_is_found_by_nothing_holds_up_none(tmp_path: Path, first: dict[str, Any]) -> None:
    now, year = 1_700_000_000_000, 365 * 86_400_000

    async def run() -> None:
        clock = ManualClock(now + year)
        async with running_store(tmp_path, clock=clock) as store:
            await put(store, b"of the future", **first)
        shutil.rmtree(tmp_path / "index")
        clock.set_wall(now)
        async with running_store(tmp_path, clock=clock) as store:
            await put(store, b"1", **keyed("k"))
            await put(store, b"2")
            await put(store, b"3", **keyed("k"))
            assert await bodies(store, "k") == [b"1", b"3"]
        assert len(files(tmp_path)) == 1

    asyncio.run(run())


def test_messages_of_a_clock_that_was_ahead_within_a_file_are_found_by_their_time(tmp_path: Path) -> None:
    now, hour = 1_700_000_000_000, 3_600_000

    async def run() -> None:
        for millis in (now, now + 5 * hour, now + hour):
            async with running_store(tmp_path, clock=ManualClock(millis)) as store:
                await put(store, str(millis).encode(), **keyed("k"))
        async with running_store(tmp_path, clock=ManualClock(now + 2 * hour)) as store:
            for millis in (now, now + 5 * hour):
                assert await bodies(store, "k", begin=millis - 1, end=millis + 1) == [str(millis).encode()]
            assert len(await bodies(store, "k", begin=now + hour - 1, end=now + hour + 100_000)) == 1
        assert len(files(tmp_path)) == 2

    asyncio.run(run())
