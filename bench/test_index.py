"""The index of keys: entries of 1 MiB of log, beside the reference, and a look for a key in a file of a million."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from bench import data
from rocketcore._fast import index
from tests.reference import index as reference

SLOTS = 5_000_000
ENTRIES = 1_000_000


@pytest.mark.parametrize("row", ["scan", "scan-and-put", "reference"])
def test_put(benchmark: Any, row: str) -> None:
    segment = data.stored_messages((1 << 20) // 1254, 1024)
    rows = np.zeros((1 << 14, index.KEY_COLUMNS), np.int64)
    slots, header = bytearray(index.SLOT_SIZE * SLOTS), array("q", [0, 0, 0, 0, 0, 1])
    entries = bytearray(index.ENTRY_SIZE * len(rows))
    count = index.scan_keys(segment, 0, len(segment), 0, rows, len(rows))[0]
    benchmark.group = "index-put"
    benchmark.extra_info |= {"bytes": len(segment), "messages": (1 << 20) // 1254, "entries": count}

    def put() -> None:
        found = index.scan_keys(segment, 0, len(segment), 0, rows, len(rows))[0]
        index.put_entries(rows, found, header, slots, entries)

    if row == "reference":
        benchmark(reference.scan, segment, 0, len(segment), 0, len(rows), 0)
    elif row == "scan":
        benchmark(index.scan_keys, segment, 0, len(segment), 0, rows, len(rows))
    else:
        benchmark(put)


def test_find(benchmark: Any) -> None:
    hashes = np.random.default_rng(7).integers(0, 1 << 31, ENTRIES)
    rows = np.zeros((ENTRIES, index.KEY_COLUMNS), np.int64)
    rows[:, index.KEY_HASH] = hashes
    rows[:, index.KEY_OFFSET] = np.arange(ENTRIES) * 1000
    rows[:, index.KEY_TIMESTAMP] = 1
    slots, header = bytearray(index.SLOT_SIZE * SLOTS), array("q", [0, 0, 0, 0, 0, 1])
    file = bytearray(index.HEADER_SIZE + len(slots) + index.ENTRY_SIZE * (ENTRIES + 1))
    with memoryview(file) as view:
        index.put_entries(rows, ENTRIES, header, slots, view[index.HEADER_SIZE + len(slots) + index.ENTRY_SIZE :])
    out = array("q", bytes(8 * 64))
    wanted = [int(number) for number in hashes[:: ENTRIES // 1000]]
    benchmark.group = "index-find-1000"

    def find() -> int:
        return sum(index.find_offsets(file, slots, ENTRIES + 1, 0, number, 0, 9, out)[0] > 0 for number in wanted)

    assert benchmark(find) == len(wanted)
