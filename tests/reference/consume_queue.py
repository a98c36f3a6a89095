"""Consume-queue units, plainly: 20 bytes each, and the scan of one pull."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import NamedTuple

BLANK_SIZE = 0x7FFFFFFF


class Unit(NamedTuple):
    physical_offset: int
    size: int
    tags_code: int


def encode(units: Sequence[Unit]) -> bytes:
    return b"".join(struct.pack(">qiq", *unit) for unit in units)


def decode(data: bytes) -> list[Unit]:
    return [Unit(*fields) for fields in struct.iter_unpack(">qiq", data)]


def scan(
    units: Sequence[Unit],
    codes: Collection[int] | None,
    max_count: int,
    max_bytes: int,
    capacity: int,
    disk_before: int = 0,
    disk_max_count: int = 8,
    disk_max_bytes: int = 65536,
) -> tuple[list[tuple[int, int, int]], int]:
    """Return the rows (physical offset, size, index) and how many units were examined."""
    rows: list[tuple[int, int, int]] = []
    taken = 0
    for index, (offset, size, code) in enumerate(units):
        if offset < 0 or size < 0:
            return rows, index
        if rows:
            on_disk = offset < disk_before
            if len(rows) + 1 > (disk_max_count if on_disk else max_count):
                return rows, index
            if taken + size > (disk_max_bytes if on_disk else max_bytes):
                return rows, index
        if (offset, size) == (0, BLANK_SIZE) or (codes is not None and code not in codes):
            continue
        if len(rows) == capacity:
            return rows, index
        rows.append((offset, size, index))
        taken += size
    return rows, len(units)


def recover(units: Sequence[Unit]) -> int:
    return next((i for i, unit in enumerate(units) if unit.physical_offset < 0 or unit.size <= 0), len(units))
