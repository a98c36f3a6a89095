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
    known: Collection[int] | None = None,
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
        if (offset, size) == (0, BLANK_SIZE):
            continue
        if codes is not None and code not in codes:
            if known is not None and code not in known:
                return rows, index
            continue
        if len(rows) == capacity:
            return rows, index
        rows.append((offset, size, index))
        taken += size
    return rows, len(units)


class Row(NamedTuple):
    """What a walk over the log tells of a message, as far as its unit needs it."""

    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    unit: Unit


class UnitCollector:
    """What the kernel's does, with dictionaries."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[bytes, int], int] = {}
        self.next_offsets: list[int] = []
        self.units: list[list[Unit]] = []
        self.unused: list[int] = []

    def follow(self, topic: bytes, queue_id: int, queue_offset: int) -> int:
        number = self.numbers.get((topic, queue_id))
        if number is None:
            if self.unused:
                number = self.unused.pop()
            else:
                number = len(self.units)
                self.units.append([])
                self.next_offsets.append(0)
            self.numbers[topic, queue_id] = number
        assert not self.units[number]
        self.next_offsets[number] = queue_offset
        return number

    def forget(self, number: int) -> None:
        (name,) = [name for name, each in self.numbers.items() if each == number]
        del self.numbers[name]
        self.units[number] = []
        self.unused.append(number)

    def collect(self, rows: Sequence[Row], first: int, last: int) -> int:
        for index in range(first, last):
            row = rows[index]
            number = self.numbers.get((row.topic, row.queue_id))
            if number is None or row.sys_flag & 4 or self.next_offsets[number] != row.queue_offset:
                return index
            self.units[number].append(row.unit)
            self.next_offsets[number] += 1
        return last

    def take(self, number: int) -> bytes:
        taken, self.units[number] = self.units[number], []
        return encode(taken)

    def take_all(self) -> dict[int, bytes]:
        return {number: self.take(number) for number in self.numbers.values() if self.units[number]}
