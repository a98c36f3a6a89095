"""The kernels of the index and their reference agree, on valid and on damaged bytes."""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcore._fast import index
from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.index.index_file import IndexFile
from rocketcore.errors import DecodeError
from rocketcore.table import Table
from tests.property.test_record import DAMAGE, damaged
from tests.reference import index as reference
from tests.reference import message as reference_message
from tests.reference.message import Stored, encode

TEXT = st.text("ab \u00e9\u4e2d\U0001f600", max_size=8)
SLOTS_OF_PAGES = 4700
"""Slots of four pages and a half."""
TIMES = st.integers(0, 1 << 41) | st.sampled_from([-5, 0, 1, 999, 1000])


def properties(keys: str, unique: str, tags: str) -> bytes:
    pairs = {"KEYS": keys, "x": "y", "UNIQ_KEY": unique, "TAGS": tags}
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()


MESSAGES = st.builds(
    lambda topic, text, body, time, rollback: Stored(
        topic.encode(), body, text, store_timestamp=time, sys_flag=0xC if rollback else 0
    ),
    st.text("tT\u00e9", min_size=1, max_size=3),
    st.builds(properties, TEXT, TEXT, TEXT),
    st.binary(max_size=20),
    TIMES,
    st.booleans(),
)


def log_of(items: list[Stored], base: int, *, checksum: bool) -> bytes:
    data = b""
    for item in items:
        placed = replace(item, physical_offset=base + len(data))
        data += reference_message.put(placed, checksum=True) if checksum else encode(placed)
    return data


@settings(max_examples=200)
@given(
    st.lists(MESSAGES, max_size=6),
    st.booleans(),
    st.integers(0, 9),
    st.integers(0, 4),
    st.none() | st.just(-1) | st.integers(0, 1 << 42),
    st.integers(0, 400),
    DAMAGE,
)
def test_scan_is_the_references(
    items: list[Stored],
    checksum: bool,
    limit: int,
    done: int,
    begin: int | None,
    cut: int,
    damage: list[tuple[int, int]],
) -> None:
    base = 1 << 33
    data = log_of(items, base, checksum=checksum)
    end = max(len(data) - cut, 0)
    rows = np.zeros((9, index.KEY_COLUMNS), np.int64)
    count, *rest = index.scan_keys(data, 0, end, base, rows, limit, done, begin)
    wanted, *wanted_rest = reference.scan(data, 0, end, base, limit, done, begin)
    assert ([tuple(row) for row in rows[:count].tolist()], rest) == (wanted, wanted_rest)
    broken = damaged(data, damage, 0)
    count, position, _, _ = index.scan_keys(broken, 0, len(broken), base, rows, 9)
    assert 0 <= count <= 9
    assert 0 <= position <= len(broken)


@given(st.lists(MESSAGES, max_size=6), st.integers(1, 3))
def test_scans_one_after_the_other_find_what_one_scan_finds(items: list[Stored], limit: int) -> None:
    data = log_of(items, 0, checksum=True)
    rows = np.zeros((limit, index.KEY_COLUMNS), np.int64)
    found: list[list[int]] = []
    at = done = 0
    while True:
        count, at, done, status = index.scan_keys(data, at, len(data), 0, rows, limit, done)
        found += rows[:count].tolist()
        if status != 3:
            break
    assert [tuple(row) for row in found] == reference.scan(data, 0, len(data), 0, 1 << 30, 0)[0]


ROWS = st.lists(
    st.tuples(st.integers(0, 12) | st.integers(0, (1 << 31) - 1), st.integers(0, 1 << 50), TIMES), max_size=30
)


@settings(max_examples=200)
@given(ROWS, st.integers(1, 9), st.integers(0, 30), TIMES, st.integers(0, 12), TIMES, TIMES)
def test_a_file_is_the_references(
    rows: list[reference.Row], slot_count: int, split: int, previous: int, number: int, begin: int, end: int
) -> None:
    rows = sorted(rows, key=lambda row: row[1])
    wanted = reference.File(slot_count, previous, previous, 3, 3)
    wanted.put(rows)
    header = array("q", [previous, previous, 3, 3, 0, 1])
    slots, entries = bytearray(4 * slot_count), bytearray()
    for part in (rows[:split], rows[split:]):
        table = np.array(part, np.int64).reshape(len(part), index.KEY_COLUMNS)
        out = bytearray(20 * len(part))
        index.put_entries(table, len(part), header, slots, out)
        entries += out
    data = wanted.encode(40)
    assert header.tolist() == wanted.header
    assert data[40:].startswith(slots + bytes(20) + entries)

    made = bytearray(len(slots))
    assert index.restore_slots(data, len(rows) + 1, made) == (len(rows) + 1, wanted.used_slots)
    assert made == slots

    offsets = array("q", bytes(8 * 40))
    count, cursor = index.find_offsets(
        data, slots, len(rows) + 1, header[index.BEGIN_TIMESTAMP], number, begin, end, offsets
    )
    assert cursor == 0
    if header[index.BEGIN_TIMESTAMP] >= 0:
        assert offsets[:count].tolist() == wanted.find(number, begin, end)

    index.take_back(entries, len(rows), slots)
    assert not any(slots)


@given(ROWS, st.integers(1, 9), st.integers(0, 12), DAMAGE)
def test_a_damaged_file_is_an_error_or_gives_offsets(
    rows: list[reference.Row], slot_count: int, number: int, damage: list[tuple[int, int]]
) -> None:
    file = reference.File(slot_count)
    file.put(sorted(rows, key=lambda row: row[1]))
    data = file.encode(40)
    broken = damaged(data[40:], damage, 0)
    broken = data[:40] + broken[: len(data) - 40].ljust(len(data) - 40, b"\0")
    slots = broken[40 : 40 + 4 * slot_count]
    out = array("q", bytes(8 * 40))
    sound, _ = index.restore_slots(broken, len(rows) + 1, bytearray(len(slots)))
    assert 1 <= sound <= len(rows) + 1
    try:
        count, cursor = index.find_offsets(broken, slots, len(rows) + 1, 0, number, 0, 1 << 60, out)
    except DecodeError:
        return
    assert cursor == 0
    assert count <= len(rows)


@settings(max_examples=50, deadline=None)
@given(hashes=st.lists(st.integers(0, SLOTS_OF_PAGES - 1), min_size=1, max_size=60), parts=st.integers(1, 3))
def test_what_a_finished_file_holds_is_what_it_was_in_memory(
    hashes: list[int], parts: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whichever pages of its slots are in use, next to each other or apart, the last of them a short one."""
    path = tmp_path_factory.mktemp("index") / f"{1:017d}"
    file = IndexFile.create(path, SLOTS_OF_PAGES, 1000, None, 0, FileSystem())
    rows = Table(len(hashes), index.KEY_COLUMNS)
    for part in range(parts):
        for number, key_hash in enumerate(hashes):
            place = 100 * (part * len(hashes) + number)
            rows.view[number, 0], rows.view[number, 1], rows.view[number, 2] = key_hash, place, 1000 + place
        file.add(rows, len(hashes))
        file.finish()
        read = IndexFile(
            path, SLOTS_OF_PAGES, 1000, IndexFile.read_header(path, FileSystem()), 0, whole=True, files=FileSystem(),
            checksums=file.checksums,
        )  # fmt: skip
        assert read.fault() == (0, "")
        assert read.check()
        read.close()
    file.close()
