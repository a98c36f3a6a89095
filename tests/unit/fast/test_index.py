"""The kernels of the index against a file that Apache RocketMQ made, and what they refuse."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from rocketcore._fast import commit_log, index
from rocketcore.errors import DecodeError
from tests.fixtures.vectors import family
from tests.reference import index as reference
from tests.reference.message import Stored, put


def rows_of(items: list[tuple[int, int, int]]) -> np.ndarray[Any, Any]:
    return np.array(items, np.int64).reshape(len(items), index.KEY_COLUMNS)


def filled(
    items: list[tuple[int, int, int]], slot_count: int, header: list[int] | None = None
) -> tuple[bytes, bytearray, array[int]]:
    """Return a file with entries of these rows, its slots and its header."""
    values = array("q", header or [0, 0, 0, 0, 0, 1])
    slots = bytearray(index.SLOT_SIZE * slot_count)
    entries = bytearray(index.ENTRY_SIZE * len(items))
    index.put_entries(rows_of(items), len(items), values, slots, entries)
    return bytes(index.HEADER_SIZE) + bytes(slots) + bytes(index.ENTRY_SIZE) + entries, slots, values


def find(file: tuple[bytes, bytearray, array[int]], number: int, begin: int = 0, end: int = 1 << 60) -> list[int]:
    data, slots, header = file
    out = array("q", bytes(8 * 64))
    count, cursor = index.find_offsets(
        data, slots, header[index.ENTRIES], header[index.BEGIN_TIMESTAMP], number, begin, end, out
    )
    assert cursor == 0
    return out[:count].tolist()


TEXTS = [record for record in family("hash.jsonl", "string/") if record["input"]["text"] is not None]


@pytest.mark.parametrize("record", TEXTS, ids=lambda record: record["name"])
def test_hashes_are_those_of_java(record: dict[str, Any]) -> None:
    text = record["input"]["text"]
    assert reference.key_hash(text) == record["indexKeyHash"]
    if text.encode("utf-8", "ignore").decode() == text:  # others have no UTF-8
        assert index.key_hash(text.encode()) == record["indexKeyHash"]


def test_a_file_is_that_of_java() -> None:
    (record,) = family("layouts.jsonl", "index/file")
    given = record["input"]
    begin = [given["endTimestamp"], given["endTimestamp"], given["endPhyOffset"], given["endPhyOffset"], 0, 1]
    assert record["emptyHeader"] == b"".join(v.to_bytes(8, "big") for v in begin[:4]).hex() + "0000000000000001"
    items = [
        (index.key_hash(key["key"].encode()), key["phyOffset"], key["storeTimestamp"])
        for key, accepted in zip(given["keys"], record["accepted"], strict=True)
        if accepted
    ]
    file = filled(items, given["slots"], begin)
    wanted = bytes.fromhex(record["hex"])
    assert file[0][index.HEADER_SIZE :] == wanted[index.HEADER_SIZE :]
    times, offsets = file[2][:4].tolist(), file[2][4:].tolist()
    header = b"".join(v.to_bytes(8, "big") for v in times) + b"".join(v.to_bytes(4, "big") for v in offsets)
    assert header == wanted[: index.HEADER_SIZE]
    # Java's times are those of the seconds' begin, and its first entry's is wrong by its distance to the file before.
    for key, found in record["queries"].items():
        assert find(file, index.key_hash(key.encode())) == found
    assert find(file, index.key_hash(b"T#k1"), end=1700000000500) == [100]


def test_a_message_is_found_by_its_id_its_keys_and_its_tags() -> None:
    text = b"KEYS\x01 a  b\x02UNIQ_KEY\x01id\x02TAGS\x01red\x02"
    data = put(Stored(b"Topic", b"body", text, physical_offset=500, store_timestamp=7), checksum=True)
    rows = np.zeros((9, index.KEY_COLUMNS), np.int64)
    found = index.scan_keys(data, 0, len(data), 500, rows, 9)
    assert found == (4, len(data), 0, commit_log.END_OF_DATA)
    names = ["Topic#id", "Topic#a", "Topic#b", "Topic#T#red"]
    assert rows[:4].tolist() == [[reference.key_hash(name), 500, 7] for name in names]


def test_what_was_rolled_back_is_not_found() -> None:
    data = put(Stored(b"Topic", b"", b"KEYS\x01a\x02", sys_flag=0xC), checksum=True)
    rows = np.zeros((9, index.KEY_COLUMNS), np.int64)
    assert index.scan_keys(data, 0, len(data), 0, rows, 9) == (0, len(data), 0, commit_log.END_OF_DATA)


def test_entries_that_are_taken_back_leave_the_slots_as_they_were() -> None:
    _, slots, header = filled([(1, 10, 5), (5, 20, 5), (2, 30, 5)], 4)
    before = bytes(slots)
    entries = bytearray(3 * index.ENTRY_SIZE)
    index.put_entries(rows_of([(9, 40, 6), (13, 50, 6), (3, 60, 6)]), 3, header, slots, entries)
    assert slots != before
    index.take_back(entries, 3, slots)
    assert slots == before


@pytest.mark.parametrize(
    ("position", "value"),
    [(0, -1), (0, 6), (12, -1), (16, 2), (16, 9), (16, -1)],
    ids=["hash", "slot", "time", "itself", "forward", "negative"],
)
def test_a_chain_that_is_none_is_damage(position: int, value: int) -> None:
    data, slots, header = filled([(1, 10, 5), (5, 20, 5)], 4)
    damaged = bytearray(data)
    at = index.HEADER_SIZE + len(slots) + 2 * index.ENTRY_SIZE + position
    damaged[at : at + 4] = value.to_bytes(4, "big", signed=True)
    with pytest.raises(DecodeError, match="index entry"):
        find((bytes(damaged), slots, header), 5)


@pytest.mark.parametrize("head", [-1, 3, 1 << 30])
def test_a_slot_that_leads_nowhere_is_damage(head: int) -> None:
    data, slots, header = filled([(1, 10, 5), (5, 20, 5)], 4)
    slots[4:8] = head.to_bytes(4, "big", signed=True)
    with pytest.raises(DecodeError, match="index entry"):
        find((data, slots, header), 5)


def test_a_long_chain_is_followed_in_parts() -> None:
    data, slots, header = filled([(3, 10 * i, 5) for i in range(20)], 4)
    out = array("q", bytes(8 * 3))
    found: list[int] = []
    cursor = -1
    looks = 0
    while cursor:
        count, cursor = index.find_offsets(data, slots, header[index.ENTRIES], 5, 3, 0, 9, out, cursor, 2)
        found += out[:count]
        looks += 1
    assert found == [10 * i for i in reversed(range(20))]
    assert looks == 10


def test_slots_are_made_again_up_to_the_first_entry_that_does_not_follow() -> None:
    data, slots, header = filled([(3, 10, 5), (7, 20, 5), (1, 30, 5), (3, 40, 5)], 4)
    made = bytearray(len(slots))
    assert index.restore_slots(data, header[index.ENTRIES], made) == (5, 2)
    assert made == slots
    damaged = bytearray(data)
    damaged[index.HEADER_SIZE + len(slots) + 2 * index.ENTRY_SIZE + 3] ^= 1
    assert index.restore_slots(damaged, header[index.ENTRIES], bytearray(len(slots)))[0] == 2


def test_what_does_not_fit_is_refused() -> None:
    rows, header, slots = rows_of([(1, 2, 3)]), array("q", [0, 0, 0, 0, 0, 1]), bytearray(16)
    out = array("q", [0])
    with pytest.raises(ValueError, match="do not fit"):
        index.put_entries(rows, 1, header, slots, bytearray(19))
    with pytest.raises(ValueError, match="2 of 1 rows"):
        index.put_entries(rows, 2, header, slots, bytearray(40))
    with pytest.raises(ValueError, match="number of entries"):
        index.put_entries(rows, 1, array("q", [0] * 6), slots, bytearray(20))
    with pytest.raises(ValueError, match="no table of slots"):
        index.put_entries(rows, 1, header, bytearray(15), bytearray(20))
    with pytest.raises(ValueError, match="in a file of"):
        index.restore_slots(bytes(75), 2, slots)
    with pytest.raises(ValueError, match="in a file of"):
        index.find_offsets(bytes(75), slots, 1, 0, 0, 0, 0, out)
    with pytest.raises(ValueError, match="entry 1 of 1"):
        index.find_offsets(bytes(76), slots, 1, 0, 0, 0, 0, out, 1)
    with pytest.raises(ValueError, match="2 of 1 rows"):
        index.scan_keys(b"", 0, 0, 0, rows, 2)
    with pytest.raises(ValueError, match="2 entries in"):
        index.take_back(bytes(39), 2, slots)
