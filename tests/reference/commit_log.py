"""The walk over a log segment, plainly."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from tests.reference.message import (
    MAGIC_FILLER,
    MAGIC_V1,
    MAGIC_V2,
    Bad,
    Stored,
    decode,
    properties_of,
    tags_code,
    verdict,
)

END_OF_DATA, FILLER, END_OF_LOG, FULL = range(4)


@dataclass(slots=True)
class Walk:
    records: list[Stored]
    position: int
    status: int
    sealed: bool


def walk(
    data: bytes, start: int, end: int, base_offset: int, capacity: int, *, check_crc: bool = True, sealed: bool = False
) -> Walk:
    """When the second record is the first with a checksum, the first is looked at again as among such records."""
    if not sealed:
        two = one_walk(data, start, end, base_offset, min(capacity, 2), check_crc=check_crc, sealed=False)
        if len(two.records) == 2 and two.sealed:
            again = one_walk(data, start, end, base_offset, 1, check_crc=check_crc, sealed=True)
            if not again.records:
                return again
    return one_walk(data, start, end, base_offset, capacity, check_crc=check_crc, sealed=sealed)


def one_walk(
    data: bytes, start: int, end: int, base_offset: int, capacity: int, *, check_crc: bool, sealed: bool
) -> Walk:
    records: list[Stored] = []
    while True:
        if end - start < 8:
            return Walk(records, start, END_OF_DATA, sealed)
        size, magic = struct.unpack_from(">iI", data, start)
        if magic == MAGIC_FILLER:
            return Walk(records, start, FILLER, sealed)
        if magic not in (MAGIC_V1, MAGIC_V2) or size < 91:
            return Walk(records, start, END_OF_LOG, sealed)
        if size > end - start:
            return Walk(records, start, END_OF_DATA, sealed)
        if len(records) == capacity:
            return Walk(records, start, FULL, sealed)
        record = own_record(data, start, end, base_offset, check_crc=check_crc, sealed=sealed)
        if record is None:
            return Walk(records, start, END_OF_LOG, sealed)
        if check_crc:
            sealed |= verdict(data[start : start + size], record, sealed=sealed) == "sealed"
        records.append(record)
        start += size


def own_record(data: bytes, at: int, end: int, base_offset: int, *, check_crc: bool, sealed: bool) -> Stored | None:
    """The record at ``at``, if it is undamaged and was written for this place."""
    try:
        record = decode(data, at, end)
    except Bad:
        return None
    if fields_size(record) != record.size or record.physical_offset != base_offset + at:
        return None
    if check_crc and verdict(data[at : at + record.size], record, sealed=sealed) == "damaged":
        return None
    return record


def find(data: bytes, start: int, last: int, base_offset: int, *, sealed: bool) -> int:
    for at in range(start, last):
        if own_record(data, at, len(data), base_offset, check_crc=True, sealed=sealed) is not None:
            return at
    return -1


def gather(
    units: list[tuple[int, int, int]],
    first: int,
    last: int,
    log: bytes,
    log_start: int,
    queue_id: int,
    base: int,
    *,
    sealed: bool = False,
) -> tuple[bytes, int]:
    """The records of units ``first`` to ``last``, up to the first one that is not the message its unit stands for."""
    records = b""
    for row in range(first, last):
        offset, size, index = units[row]
        at = offset - log_start
        if at < 0 or size < 91 or at + size > len(log):
            return records, row
        try:
            record = decode(log[at : at + size], 0, size)
        except Bad:
            return records, row
        found_is = verdict(log[at : at + size], record, sealed=sealed)
        if found_is == "damaged":
            return records, row
        sealed |= found_is == "sealed"
        found = (record.size, record.queue_id, record.queue_offset, record.physical_offset)
        if found != (size, queue_id, base + index, offset):
            return records, row
        records += log[at : at + size]
    return records, last


def fields_size(record: Stored) -> int:
    return (
        75
        + len(record.born_host)
        + len(record.store_host)
        + len(record.body)
        + len(record.topic)
        + (record.magic == MAGIC_V2)
        + len(record.properties)
    )


def delay_level(properties: bytes) -> int:
    number = re.fullmatch(rb"\+?0*([0-9]{1,10})", dict(properties_of(properties)).get(b"DELAY", b""))
    return int(number[1]) if number is not None and int(number[1]) < 1 << 31 else 0


def dispatch_row(record: Stored) -> dict[str, int | bytes]:
    """What dispatch needs of a record, by column name; texts instead of ranges."""
    return {
        "PHYSICAL_OFFSET": record.physical_offset,
        "SIZE": record.size,
        "TAGS_CODE": tags_code(record.properties),
        "QUEUE_ID": record.queue_id,
        "QUEUE_OFFSET": record.queue_offset,
        "STORE_TIMESTAMP": record.store_timestamp,
        "SYS_FLAG": record.sys_flag,
        "DELAY_LEVEL": delay_level(record.properties),
        "PREPARED_OFFSET": record.prepared_offset,
        "TOPIC": record.topic,
        "PROPERTIES": record.properties,
    }
