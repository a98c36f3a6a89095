"""The checksum of a record: every put writes it, every reader of the log compares it, older records do without."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketcore._fast import batch as batch_kernel
from rocketcore.broker.store import GetStatus, MessageStore, PutStatus, StoredMessage
from rocketcore.protocol.message import decode_messages
from tests.fixtures.stores import crash_copy, message, put, read_queue, running_store, stored
from tests.reference.message import Stored, decode_all, verdict

STALE = b"__CRC32#\x010123456789\x02"


def log_of(root: Path, end: int) -> tuple[bytes, list[Stored]]:
    data = (root / "commitlog" / f"{0:020d}").read_bytes()[:end]
    records, bad = decode_all(data, 0, end)
    assert bad is None
    return data, records


@contextmanager
def byte_changed(path: Path, position: int) -> Iterator[None]:
    with path.open("r+b") as file:
        for _ in range(2):
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 4]))
            file.flush()
            if _ == 0:
                yield


def all_ways(store: MessageStore, properties: bytes) -> list[StoredMessage]:
    """Put a message, and a batch of three, with these properties."""
    batch = batch_kernel.encode_batch([b"a", b"b", b"c"], [properties, b"", properties.removesuffix(b"\x02")])
    single = message(b"single", properties=properties)
    assert store.put(single).status is PutStatus.PUT_OK
    assert store.put_batch(message(batch, queue_id=1)).status is PutStatus.PUT_OK
    return [single]


@pytest.mark.parametrize(
    "properties",
    [b"", b"k\x01v\x02", b"k\x01v", STALE, STALE[:-1], b"k\x01v\x02" + STALE + b"TAGS\x01a\x02", STALE * 2 + b"k\x01v"],
)
@pytest.mark.parametrize("checksum", [True, False])
def test_each_record_has_one_checksum_and_it_is_right(tmp_path: Path, properties: bytes, *, checksum: bool) -> None:
    async def run() -> None:
        async with running_store(tmp_path, enabled_append_prop_crc=checksum) as store:
            all_ways(store, properties)
            last = await put(store, properties=properties)
            data, records = log_of(tmp_path, last.end_offset)
            assert len(records) == 5
            for record in records:
                raw = data[record.position : record.position + record.size]
                assert verdict(raw, record, sealed=checksum) == ("sealed" if checksum else "bare")
                assert record.properties.count(b"__CRC32#") == checksum
            kept = [message.properties for message in decode_messages(data, "b")]
            for one in kept:
                assert ("__CRC32#" in one) is checksum
                assert one.get("k") == ("v" if b"k\x01" in properties and one is not kept[2] else None)

    asyncio.run(run())


def test_a_message_stored_again_gets_a_checksum_of_its_own(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            first = await put(store, properties=b"k\x01v")
            _, (before,) = log_of(tmp_path, first.end_offset)
            again = await put(store, properties=before.properties)
            data, records = log_of(tmp_path, again.end_offset)
            assert records[1].size == records[0].size
            assert verdict(data[records[1].position :], records[1], sealed=True) == "sealed"
            # At the limit too: the old checksum makes room for the new one.
            longest = b"k\x01" + bytes(32767 - 2 - 1 - 20).replace(b"\0", b"x") + b"\x02"
            result = store.put(message(properties=longest))
            assert await stored(store, result) is PutStatus.PUT_OK
            _, records = log_of(tmp_path, result.end_offset)
            assert len(records[2].properties) == 32767
            result = store.put(message(properties=records[2].properties))
            assert await stored(store, result) is PutStatus.PUT_OK
            over = store.put(message(properties=b"k\x01x" + longest[2:]))
            assert over.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
            assert "32768" in over.reason

    asyncio.run(run())


def test_damage_to_topic_or_properties_is_not_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with running_store(tmp_path) as store:
            places = [await put(store, properties=b"k\x01value\x02") for _ in range(3)]
            path = tmp_path / "commitlog" / f"{0:020d}"
            middle = places[1]
            # Time of birth, store time, flag, topic, the value of a property, a digit and the name of the checksum.
            for offset in (18, 45, 58, middle.size - 35, middle.size - 24, middle.size - 5, middle.size - 15):
                with byte_changed(path, middle.physical_offset + offset):
                    caplog.clear()
                    result = store.get("T", 0, 0, 32)
                    assert result.status is GetStatus.FOUND
                    assert result.count == 2
                    assert f"position={middle.physical_offset}" in caplog.text
                    assert store.lookup(middle.physical_offset) is None
            assert store.get("T", 0, 0, 32).count == 3
            assert store.lookup(middle.physical_offset) is not None

    asyncio.run(run())


@pytest.mark.parametrize("ends", [b"\x02", b"\0"])
def test_a_store_without_checksums_stays_readable(tmp_path: Path, ends: bytes) -> None:
    """Also where properties end in a zero byte, as a batch element may."""

    async def run() -> None:
        async with running_store(tmp_path / "a", enabled_append_prop_crc=False) as store:
            for _ in range(3):
                await put(store, properties=b"k\x01v" + ends)
            crash_copy(tmp_path / "a", tmp_path / "b")
        async with running_store(tmp_path / "b") as store:
            assert store.max_offset("T", 0) == 3
            await put(store, b"with one", properties=b"k\x01v\x02")
            assert len(read_queue(store)) == 4
            crash_copy(tmp_path / "b", tmp_path / "c")
        async with running_store(tmp_path / "c") as store:
            assert len(read_queue(store)) == 4

    asyncio.run(run())


def test_a_batch_whose_last_property_ends_in_a_zero_byte_survives_a_kill(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_store(tmp_path / "a") as store:
            batch = batch_kernel.encode_batch([b"one", b"two"], [b"K\x01v\x02", b"K\x01v\0"])
            assert await stored(store, store.put_batch(message(batch))) is PutStatus.PUT_OK
            crash_copy(tmp_path / "a", tmp_path / "b")
        async with running_store(tmp_path / "b") as store:
            assert store.max_offset("T", 0) == 2
            assert store.get("T", 0, 0, 32).count == 2

    asyncio.run(run())


def test_a_record_without_checksum_among_others_is_read(tmp_path: Path) -> None:
    """As when Apache's broker, with the setting off, appended to a store of ours."""

    async def run() -> None:
        async with running_store(tmp_path / "a") as store:
            for _ in range(3):
                await put(store, properties=b"k\x01v\x02")
        async with running_store(tmp_path / "a", enabled_append_prop_crc=False) as store:
            for _ in range(3):
                await put(store, properties=b"k\x01v\x02TRACE_ON\x01true\x02")
            crash_copy(tmp_path / "a", tmp_path / "b")
        for bounds in (True, False):
            if not bounds:
                (tmp_path / "b" / "queuebounds").unlink()
            async with running_store(tmp_path / "b") as store:
                assert store.max_offset("T", 0) == 6
                assert len(read_queue(store)) == 6

    asyncio.run(run())
