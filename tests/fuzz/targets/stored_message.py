"""Stored messages, as a pull brings them: scan, messages and Arrow columns against the reference.

input  u8: bit 0 compare CRCs, bit 1 tag codes, bit 2 put the CRCs right first, bits 3 and 4 rows of the table · records
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from rocketcore._fast import arrow_out
from rocketcore._fast import record as record_kernel
from rocketcore.addresses import host_text
from rocketcore.errors import BadChecksum, BadMagic, DecodeError
from rocketcore.protocol.compression import decompress
from rocketcore.protocol.message import decode_messages
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, exact, refused
from tests.reference import batch as reference_batch
from tests.reference import columns as reference_columns
from tests.reference import header as reference_header
from tests.reference import message as reference
from tests.reference.message import Bad, Stored

MAX_BODY = 1 << 16
COMPRESSED, BATCH = 0x1, 0xC0
FAULTS = {"magic": BadMagic, "checksum": BadChecksum}


def run(data: bytes) -> None:
    if not data:
        return
    check_crc, tags, repair, capacity = data[0] & 1, data[0] & 2, data[0] & 4, (data[0] >> 3 & 3) + 1
    records = with_checksums(data[1:]) if repair else data[1:]
    want, bad = reference.decode_all(records, 0, len(records), check_crc=bool(check_crc))
    block = exact(records)
    scan(records, block, capacity, bool(check_crc), bool(tags), want, bad)
    to_columns(block, bool(check_crc), want, bad)
    to_messages(records, bool(check_crc), want, bad)


def with_checksums(records: bytes) -> bytes:
    """Return the records with the CRC that each body has, as far as they decode."""
    repaired = bytearray(records)
    for record in reference.decode_all(records, 0, len(records))[0]:
        repaired[record.position + 8 : record.position + 12] = (zlib.crc32(record.body) & 0x7FFFFFFF).to_bytes(4)
    return bytes(repaired)


def same_fault(error: DecodeError | None, bad: Bad | None) -> bool:
    if error is None or bad is None:
        return error is None and bad is None
    return type(error) is FAULTS.get(bad.reason, DecodeError) and error.position == bad.position


def scan(
    records: bytes, block: memoryview, capacity: int, check_crc: bool, tags: bool, want: list[Stored], bad: Bad | None
) -> None:
    rows = np.zeros((capacity, record_kernel.STORED_COLUMNS), np.int64)
    found: list[Any] = []
    position, error = 0, None
    while position < len(records) and error is None:
        try:
            count, position = record_kernel.scan_stored(block, position, len(records), rows, check_crc, tags)
        except DecodeError as caught:
            error = caught
        else:
            found += rows[:count].tolist()
    assert same_fault(error, bad)
    assert len(found) == len(want)
    for row, record in zip(found, want, strict=True):
        assert stored_of(records, row) == record
        text = dict(reference.properties_of(record.properties)).get(b"TAGS")
        code = reference.java_hash(reference_header.java_text(text)) if tags and text is not None else 0
        assert row[record_kernel.TAGS_CODE] == code


def stored_of(data: bytes, row: list[int]) -> Stored:
    def cut(start: int, length: int) -> bytes:
        return data[row[start] : row[start] + length]

    sys_flag = row[record_kernel.SYS_FLAG]
    return Stored(
        topic=cut(record_kernel.TOPIC_START, row[record_kernel.TOPIC_LENGTH]),
        body=cut(record_kernel.BODY_START, row[record_kernel.BODY_LENGTH]),
        properties=cut(record_kernel.PROPERTIES_START, row[record_kernel.PROPERTIES_LENGTH]),
        queue_id=row[record_kernel.QUEUE_ID],
        flag=row[record_kernel.FLAG],
        queue_offset=row[record_kernel.QUEUE_OFFSET],
        physical_offset=row[record_kernel.PHYSICAL_OFFSET],
        sys_flag=sys_flag,
        born_timestamp=row[record_kernel.BORN_TIMESTAMP],
        born_host=cut(record_kernel.BORN_HOST, 20 if sys_flag & 0x10 else 8),
        store_timestamp=row[record_kernel.STORE_TIMESTAMP],
        store_host=cut(record_kernel.STORE_HOST, 20 if sys_flag & 0x20 else 8),
        reconsume_times=row[record_kernel.RECONSUME_TIMES],
        prepared_offset=row[record_kernel.PREPARED_OFFSET],
        magic=row[record_kernel.MAGIC] & 0xFFFFFFFF,
        body_crc=row[record_kernel.BODY_CRC],
        position=row[record_kernel.POSITION],
        size=row[record_kernel.TOTAL_SIZE],
    )


def to_columns(block: memoryview, check_crc: bool, want: list[Stored], bad: Bad | None) -> None:
    stored = arrow_out.StoredColumns(arrow_out.COLUMNS)
    position, error = 0, None
    while position < len(block) and error is None:
        try:
            _, position = stored.append(block, position, len(block), None, check_crc)
        except DecodeError as caught:
            error = caught
    assert same_fault(error, bad)
    assert stored.rows == len(want)
    found = stored.finish()
    assert texts_of(found["body"]) == [record.body for record in want]
    assert numbers_of(found["queueOffset"]) == [record.queue_offset for record in want]
    assert texts_of(found["bornHost"]) == [reference_columns.host_text(record.born_host).encode() for record in want]
    assert texts_of(found["topic"]) == [reference_header.java_text(record.topic).encode() for record in want]


def texts_of(buffers: arrow_out.ColumnBuffers) -> list[bytes]:
    """Return the values of a text column: offsets, then bytes."""
    _, offsets, values = (None if buffer is None else bytes(memoryview(buffer)) for buffer in buffers)
    assert offsets is not None
    assert values is not None
    ends = np.frombuffer(offsets, np.int32).tolist()
    return [values[start:end] for start, end in itertools.pairwise(ends)]


def numbers_of(buffers: arrow_out.ColumnBuffers) -> list[int]:
    values = buffers[1]
    assert values is not None
    return list(memoryview(values).cast("B").cast("q"))


def to_messages(records: bytes, check_crc: bool, want: list[Stored], bad: Bad | None) -> None:
    found = refused(lambda: decode_messages(records, "b", check_crc=check_crc, max_body_bytes=MAX_BODY))
    if bad is not None:
        assert found is None
        return
    bodies = [bodies_of(record) for record in want]
    if None in bodies:
        assert found is None
        return
    assert found is not None
    expected = [
        (record, body, index)
        for record, each in zip(want, bodies, strict=True)
        for index, body in enumerate(each or ())
    ]
    for received, (record, body, index) in zip(found, expected, strict=True):
        assert received.body == body
        assert received.queue.topic == reference_header.java_text(record.topic)
        assert received.offset == record.queue_offset + index
        assert received.store_host == host_text(record.store_host)


def bodies_of(record: Stored) -> list[bytes] | None:
    """Return the body that a consumer sees, or those of an inner batch; None where the record is refused."""
    body: bytes | None = record.body
    if record.sys_flag & COMPRESSED and record.body:
        body = refused(lambda: decompress(record.body, record.sys_flag, MAX_BODY))  # looked at by a target of its own
    if body is None or record.sys_flag & BATCH != BATCH:
        return None if body is None else [body]
    try:
        return [element.body for element in reference_batch.decode(body, 0, len(body))]
    except Bad:
        return None


def seeds() -> Iterable[bytes]:
    for record in vectors("stored_messages.jsonl"):
        if 0 < len(record.get("hex") or "") < 2000:
            yield b"\x0b" + bytes.fromhex(record["hex"])
            yield b"\x0e" + bytes.fromhex(record["hex"])
    small = Stored(topic=b"T", body=b"body", properties=b"TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x010A\x02")
    six = replace(small, born_host=bytes(range(20)), store_host=bytes(20), sys_flag=1, topic=b"t" * 130)
    yield b"\x0f" + reference.encode(small) * 3
    yield b"\x0f" + reference.encode(six) + reference.encode(small)
    element = b"\x00\x00\x00\x1d" + bytes(12) + b"\x00\x00\x00\x02hi\x00\x03k\x01v"
    yield b"\x07" + reference.encode(replace(small, sys_flag=0xC0, body=element * 2))
    yield b"\x07" + reference.encode(replace(small, sys_flag=0x3C1, body=zlib.compress(element * 3)))
    yield b"\x07" + reference.encode(replace(small, sys_flag=0x301, body=b"", topic=b"\xed\xa0\x80x"))
    yield b"\x07" + reference.encode(replace(small, sys_flag=0x301, body=zlib.compress(b"long " * 50)))


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab", b"\xcb\xd4\x31\x94", b"\x00\x00\x00\x5b", b"\x00\x00\x00\x10",
        b"\x00\x00\x00\x30", b"\x00\x00\x00\xc1", b"\x00\x00\x03\x01", b"\xff\xff\xff\xff", b"TAGS\x01",
        b"UNIQ_KEY\x01", b"\x02", b"%RETRY%", b"KEYS\x01", b"RETRY_TOPIC\x01",
    ),
)  # fmt: skip
