"""Reads the commit log's files with plain ``struct``: a second opinion that shares no code with the store."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from tests.fault.ledger import Found

FIXED = struct.Struct(">iIiiiqqiq8sq8siqi")
MAGIC = 0xDAA320A7
FILLER = 0xCBD43194


def log_files(store: Path) -> list[int]:
    """Return where the files of a store's log begin, in order; the first is where the log does."""
    return sorted(int(path.name) for path in (store / "commitlog").iterdir() if path.name.isdecimal())


def scan_log(folder: Path, topic: str, start: int = 0) -> tuple[list[Found], int]:
    """Return the topic's records from log position ``start`` on, and the end of the log."""
    found = []
    position = start
    for path in sorted(folder.iterdir()):
        first = int(path.name)
        size = path.stat().st_size
        if first + size <= position:
            continue
        if first > position:
            break
        data = path.read_bytes()
        at = position - first
        while at + 8 <= size:
            total, magic = struct.unpack_from(">iI", data, at)
            if magic == FILLER and total == size - at:
                at = size
                break
            if magic != MAGIC or total < FIXED.size or at + total > size:
                return found, first + at
            record = _record(data[at : at + total], topic)
            if record is None or record.physical_offset != first + at:
                return found, first + at
            if record.body:
                found.append(record)
            at += total
        position = first + at
    return found, position


def _record(record: bytes, topic: str) -> Found | None:
    """Return a record, with an empty body if it is of another topic, or None if it is none."""
    (_, _, crc, queue_id, _, queue_offset, physical_offset, _, _, _, _, _, _, _, length) = FIXED.unpack_from(record)
    body = record[FIXED.size : FIXED.size + length]
    if len(body) != length or zlib.crc32(body) & 0x7FFFFFFF != crc:
        return None
    at = FIXED.size + length
    name = record[at + 1 : at + 1 + record[at]]
    at += 1 + len(name)
    if at + 2 + int.from_bytes(record[at : at + 2], "big") != len(record):
        return None
    return Found(queue_id, queue_offset, physical_offset, body if name == topic.encode() else b"", topic)
