"""Index files, plainly: the keys of a message, the entries of a file and the chains of its slots."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.reference.commit_log import walk
from tests.reference.message import Stored, properties_of

ROLLBACK = 0xC
INT32_MAX = (1 << 31) - 1

Row = tuple[int, int, int]
"""Hash of a key, physical offset and store time of its message."""


def key_hash(text: str) -> int:
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    value = value - (1 << 32) if value >> 31 else value
    return 0 if value == -(1 << 31) else abs(value)


def keys(record: Stored) -> list[str]:
    """What a message is found by, in the order of its entries."""
    if record.sys_flag & ROLLBACK == ROLLBACK:
        return []
    properties = dict(properties_of(record.properties))
    topic = record.topic.decode()
    found = []
    if unique := properties.get(b"UNIQ_KEY"):
        found.append(f"{topic}#{unique.decode()}")
    found += [f"{topic}#{word.decode()}" for word in properties.get(b"KEYS", b"").split(b" ") if word]
    if tags := properties.get(b"TAGS"):
        found.append(f"{topic}#T#{tags.decode()}")
    return found


def scan(
    data: bytes, start: int, end: int, base_offset: int, limit: int, done: int, newest: int | None = None
) -> tuple[list[Row], int, int, int]:
    """The rows of a run of records, where it stops, how many entries of the record there are done, and why.

    newest  time of their file, -1 for an empty one: a record with keys that is more than a second older is for another
    """
    rows: list[Row] = []
    log = walk(data, start, end, base_offset, len(data), check_crc=False)
    for record in log.records:
        wanted = keys(record)
        if newest is not None and limit > len(rows) and len(wanted) > done:
            if newest >= 0 and record.store_timestamp < newest - 1000:
                return rows, record.position, done, 3
            newest = max(newest, record.store_timestamp)
        for number, key in enumerate(wanted):
            if number < done:
                continue
            if len(rows) == limit:
                return rows, record.position, number, 3
            rows.append((key_hash(key), record.physical_offset, record.store_timestamp))
        done = 0
    return rows, log.position, 0, log.status


@dataclass(slots=True)
class File:
    """An index file in memory."""

    slot_count: int
    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slots: int = 0
    slots: dict[int, int] = field(default_factory=dict)
    entries: list[tuple[int, int, int, int]] = field(default_factory=lambda: [(0, 0, 0, 0)])

    def put(self, rows: Iterable[Row]) -> None:
        for number, offset, timestamp in rows:
            previous = self.slots.get(number % self.slot_count, 0)
            seconds = 0
            if self.begin_timestamp > 0:
                seconds = min(max((timestamp - self.begin_timestamp) // 1000, 0), INT32_MAX)
            if len(self.entries) == 1:
                self.begin_timestamp, self.begin_offset = timestamp, offset
            self.slots[number % self.slot_count] = len(self.entries)
            self.used_slots += previous == 0
            self.entries.append((number, offset, seconds, previous))
            self.end_timestamp, self.end_offset = timestamp, offset

    @property
    def header(self) -> list[int]:
        times = [self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset]
        return [*times, self.used_slots, len(self.entries)]

    def encode(self, max_entries: int) -> bytes:
        slots = b"".join(struct.pack(">i", self.slots.get(slot, 0)) for slot in range(self.slot_count))
        entries = b"".join(struct.pack(">iqii", *entry) for entry in self.entries)
        return struct.pack(">qqqqii", *self.header) + slots + entries.ljust(20 * max_entries, b"\0")

    def find(self, number: int, begin: int, end: int) -> list[int]:
        """Offsets of the chain, the newest first; the times of entries are in seconds, that of the first is none."""
        found = []
        cursor = self.slots.get(number % self.slot_count, 0)
        while cursor:
            entry_number, offset, seconds, previous = self.entries[cursor]
            time = self.begin_timestamp + 1000 * seconds
            if entry_number == number and (cursor == 1 or time <= end):
                found.append(offset)
            cursor = previous if time + 999 >= begin else 0
        return found
