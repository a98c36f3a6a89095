"""A segment of the commit log: the walk of recovery and dispatch, and the copy of a pull, against the reference.

input  u8: bit 0 compare CRCs, bits 1 and 2 rows of the table, bit 3 records begin at offset 0, bit 4 put offsets and
       CRCs right first · segment
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from rocketcore._fast import commit_log, consume_queue
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, exact
from tests.reference import commit_log as reference
from tests.reference import header as reference_header
from tests.reference.message import Bad, Stored, decode, encode, java_hash, properties_of

NUMBERS = (
    "PHYSICAL_OFFSET", "SIZE", "TAGS_CODE", "QUEUE_ID", "QUEUE_OFFSET", "STORE_TIMESTAMP", "SYS_FLAG", "DELAY_LEVEL",
)  # fmt: skip


def run(data: bytes) -> None:
    if not data:
        return
    check_crc, capacity, base = bool(data[0] & 1), data[0] >> 1 & 3, 0 if data[0] & 8 else 1 << 40
    segment = aligned(data[1:], base) if data[0] & 16 else data[1:]
    want = reference.walk(segment, 0, len(segment), base, capacity, check_crc=check_crc)
    rows = np.zeros((capacity, commit_log.COLUMNS), np.int64)
    found = commit_log.walk(exact(segment), 0, len(segment), base, rows, check_crc)
    assert found == (len(want.records), want.position, want.status, want.sealed)
    for row, record in zip(rows.tolist(), want.records, strict=False):
        columns = {name: row[getattr(commit_log, name)] for name in NUMBERS}
        assert columns == dispatched(record)
        for name, text in (("TOPIC", record.topic), ("PROPERTIES", record.properties)):
            start, length = (row[getattr(commit_log, f"{name}_{part}")] for part in ("START", "LENGTH"))
            assert segment[start : start + length] == text
    gather(segment, base, data[0], rows[: found[0]].tolist())


def dispatched(record: Stored) -> dict[str, int]:
    tags = dict(properties_of(record.properties)).get(b"TAGS")
    return {
        "PHYSICAL_OFFSET": record.physical_offset,
        "SIZE": record.size,
        "TAGS_CODE": 0 if tags is None else java_hash(reference_header.java_text(tags)),
        "QUEUE_ID": record.queue_id,
        "QUEUE_OFFSET": record.queue_offset,
        "STORE_TIMESTAMP": record.store_timestamp,
        "SYS_FLAG": record.sys_flag,
        "DELAY_LEVEL": reference.delay_level(record.properties),
    }


def gather(segment: bytes, base: int, seed: int, rows: list[list[int]]) -> None:
    """Copy what the walk found, and what some wrong units point at."""
    units = [(row[commit_log.PHYSICAL_OFFSET], row[commit_log.SIZE], i) for i, row in enumerate(rows)]
    units.append((base + seed, 91 + seed // 3, len(units)))
    units.append((base + len(segment) - 91, 91, len(units)))
    units.append(((1 << 63) - 1, (1 << 31) - 1, len(units)))
    queue_id, queue_offset = (rows[0][commit_log.QUEUE_ID], rows[0][commit_log.QUEUE_OFFSET]) if rows else (0, 0)
    table = np.array(units, np.int64).reshape(len(units), consume_queue.OUT_COLUMNS)
    block = exact(segment)
    for first in range(len(units)):
        found = commit_log.gather(table, first, len(units), block, base, queue_id, queue_offset)
        assert found == reference.gather(units, first, len(units), segment, base, queue_id, queue_offset)


def aligned(segment: bytes, base: int) -> bytes:
    """Return the segment with each record's physical offset and CRC put right, as far as records decode."""
    repaired = bytearray(segment)
    at = 0
    while at < len(segment):
        try:
            record = decode(segment, at, len(segment))
        except Bad:
            break
        repaired[at + 8 : at + 12] = (zlib.crc32(record.body) & 0x7FFFFFFF).to_bytes(4)
        repaired[at + 28 : at + 36] = (base + at).to_bytes(8)
        at += record.size
    return bytes(repaired)


def seeds() -> Iterable[bytes]:
    plain = Stored(topic=b"T", body=b"body", queue_id=3, queue_offset=7, physical_offset=1 << 40)
    texts = (b"TAGS\x01a\x02", b"DELAY\x015\x02TAGS\x01\xc3\xa9", b"DELAY\x0199999999999\x02", b"DELAY\x01+08\x02", b"")
    log = b""
    for index, text in enumerate(texts):
        log += encode(replace(plain, physical_offset=(1 << 40) + len(log), queue_offset=7 + index, properties=text))
    yield b"\x07" + log
    yield b"\x17" + log + bytes(20)
    yield b"\x17" + log + commit_log.encode_filler(64) + bytes(56)
    yield b"\x16" + log[:-3]
    yield b"\x1f" + encode(replace(plain, born_host=bytes(20), store_host=bytes(20), topic=b"t" * 128))
    for record in vectors("stored_messages.jsonl"):
        if 0 < len(record.get("hex") or "") < 1000:
            yield b"\x17" + bytes.fromhex(record["hex"])


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab", b"\xcb\xd4\x31\x94", b"\x00\x00\x00\x5b", b"\x00\x00\x00\x30",
        b"DELAY\x01", b"TAGS\x01", b"\x02", b"\x00\x00\x01\x00", b"\x7f\xff\xff\xff", b"\xff\xff", b"2147483648",
        bytes(8),
    ),
)  # fmt: skip
