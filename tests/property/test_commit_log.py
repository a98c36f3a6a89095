"""The walk over a log segment: kernel and reference agree, whatever the bytes are."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rocketcore._fast import commit_log, consume_queue
from rocketcore._fast import record as record_kernel
from rocketcore.errors import DecodeError
from tests.property.test_record import DAMAGE, MESSAGES, damaged
from tests.reference import commit_log as reference
from tests.reference import message as reference_message
from tests.reference.message import Stored, encode
from tests.unit.fast.test_commit_log import dispatch_row

TEXT = st.sampled_from([b"", b"TAGS\x01a\x02", b"DELAY\x015\x02TAGS\x01\xc3\xa9", b"DELAY\x01x\x02", b"k\x01v\x02"])


def segment(items: list[Stored], texts: list[bytes], checksums: list[bool], base: int, tail: bytes) -> bytes:
    data = b""
    for item, text, checksum in zip(items, texts, checksums, strict=False):
        placed = replace(item, physical_offset=base + len(data), properties=text)
        data += reference_message.put(placed, checksum=True) if checksum else encode(placed)
    return data + tail


def check(data: bytes, base: int, capacity: int, *, check_crc: bool, sealed: bool = False) -> int:
    rows = np.zeros((capacity, commit_log.COLUMNS), np.int64)
    count, *rest = commit_log.walk(data, 0, len(data), base, rows, check_crc, sealed)
    wanted = reference.walk(data, 0, len(data), base, capacity, check_crc=check_crc, sealed=sealed)
    assert (count, *rest) == (len(wanted.records), wanted.position, wanted.status, wanted.sealed)
    valid = [record for record in wanted.records if is_text(record.properties)]
    if len(valid) == count:
        assert [dispatch_row(data, row) for row in rows[:count]] == list(map(reference.dispatch_row, valid))
    return count


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


SEGMENTS = st.builds(
    segment,
    st.lists(MESSAGES, max_size=4),
    st.lists(TEXT, min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.just(1 << 40),
    st.sampled_from([b"", bytes(64), commit_log.encode_filler(64) + bytes(56), b"\x00\x00\x00", b"\xff" * 20]),
)


@given(SEGMENTS, st.integers(0, 5), st.booleans())
def test_walk_is_the_references(data: bytes, capacity: int, check_crc: bool) -> None:
    check(data, 1 << 40, capacity, check_crc=check_crc)


@settings(max_examples=300)
@given(SEGMENTS, DAMAGE, st.integers(0, 300), st.booleans(), st.booleans())
def test_walk_over_a_damaged_segment_is_the_references(
    data: bytes, damage: list[tuple[int, int]], cut: int, check_crc: bool, sealed: bool
) -> None:
    check(damaged(data, damage, cut if cut % 2 else 0), 1 << 40, 8, check_crc=check_crc, sealed=sealed)


@settings(max_examples=200)
@given(SEGMENTS, DAMAGE, st.integers(0, 200), st.integers(0, 2000), st.booleans())
def test_find_is_the_references(
    data: bytes, damage: list[tuple[int, int]], start: int, length: int, sealed: bool
) -> None:
    data = damaged(data, damage, 0)
    start = min(start, len(data))
    last = min(start + length, len(data))
    wanted = reference.find(data, start, min(last, len(data) - 91), 1 << 40, sealed=sealed)
    assert commit_log.find(data, start, last, 1 << 40, sealed) == wanted


@settings(max_examples=50)
@given(MESSAGES, TEXT, st.booleans())
def test_every_flipped_bit_of_a_record_with_a_checksum_is_found(item: Stored, text: bytes, before: bool) -> None:
    """By the walk, by the reads through a queue and by those that scan the log; among others and alone."""
    item = replace(item, properties=text, queue_id=3, queue_offset=7, physical_offset=0, body=item.body[:40])
    first = reference_message.put(item, checksum=True) if before else b""
    record = reference_message.put(replace(item, physical_offset=len(first)), checksum=True)
    rows = np.zeros((2, commit_log.COLUMNS), np.int64)
    scanned = np.zeros((2, record_kernel.STORED_COLUMNS), np.int64)
    unit = np.array([[len(first), len(record), 0]], np.int64)
    log = bytearray(first + record)
    assert commit_log.walk(log, 0, len(log), 0, rows)[0] == 1 + before
    assert commit_log.gather(unit, 0, 1, log, 0, 3, 7) == (record, 1)
    for place in range(8 * len(first), 8 * len(log)):
        log[place // 8] ^= 1 << place % 8
        assert commit_log.walk(log, 0, len(log), 0, rows)[0] == before
        assert commit_log.gather(unit, 0, 1, log, 0, 3, 7) == (b"", 0)
        with contextlib.suppress(DecodeError):
            record_kernel.scan_stored(log, len(first), len(log), scanned, whole=True)
            raise AssertionError(f"bit {place} flipped and not found")
        log[place // 8] ^= 1 << place % 8


@settings(max_examples=100)
@given(MESSAGES, TEXT, st.binary(min_size=40, max_size=40), st.integers(0, 19))
def test_rubbish_at_the_end_of_a_record_is_found(item: Stored, text: bytes, rubbish: bytes, kept: int) -> None:
    """Over the whole checksum or a part of it, where bytes are not made up to be text."""
    rubbish = bytes([rubbish[0] | 0x80]) + rubbish[1:]
    assume(not reference_message.is_property_text(text + rubbish[: 20 - kept]))
    record = reference_message.put(replace(item, properties=text, physical_offset=0), checksum=True)
    hit = record[:-20] + rubbish[: 20 - kept] + record[len(record) - kept :]
    rows = np.zeros((2, commit_log.COLUMNS), np.int64)
    assert commit_log.walk(hit, 0, len(hit), 0, rows, True, True)[0] == (hit == record)


@settings(max_examples=50)
@given(st.lists(MESSAGES, min_size=2, max_size=3), TEXT, st.data())
def test_lost_pages_of_records_with_checksums_are_found(items: list[Stored], text: bytes, data: st.DataObject) -> None:
    """Zeros in place of any bytes of a record: never read as a record without checksum."""
    records, log = [], b""
    for index, item in enumerate(items):
        record = reference_message.put(
            replace(item, properties=text, physical_offset=len(log), queue_offset=index), checksum=True
        )
        records.append((len(log), len(record)))
        log += record
    hit = data.draw(st.integers(0, len(items) - 1))
    begin = data.draw(st.integers(records[hit][0], sum(records[hit]) - 1))
    end = data.draw(st.integers(begin + 1, sum(records[hit])))
    lost = log[:begin] + bytes(end - begin) + log[end:]
    if lost == log:
        return
    rows = np.zeros((4, commit_log.COLUMNS), np.int64)
    count, position, _, _ = commit_log.walk(lost, 0, len(lost), 0, rows)
    assert (count, position) == (hit, records[hit][0])


@given(SEGMENTS, st.integers(0, 1 << 12))
def test_records_before_a_cut_are_kept(data: bytes, cut: int) -> None:
    whole = reference.walk(data, 0, len(data), 1 << 40, 8)
    end = cut % (len(data) + 1)
    kept = check(data[:end], 1 << 40, 8, check_crc=True)
    assert kept == sum(record.position + record.size <= end for record in whole.records)


@given(st.binary(max_size=200), st.integers(0, 1 << 40))
def test_walk_over_anything(data: bytes, base: int) -> None:
    check(data, base, 2, check_crc=True)


@settings(max_examples=300)
@given(
    st.lists(MESSAGES, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 2), st.integers(-1, 1)), max_size=2),
    DAMAGE,
    st.integers(0, 300),
    st.integers(0, 5),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
)
def test_gather_is_the_references(
    items: list[Stored],
    wrong_units: list[tuple[int, int, int]],
    damage: list[tuple[int, int]],
    cut: int,
    first: int,
    last: int,
    checksum: bool,
    sealed: bool,
) -> None:
    base, queue_id, queue_offset = 1 << 40, 3, 1000
    log, units = b"", []
    for index, item in enumerate(items):
        log += bytes(item.flag % 5)
        placed = replace(item, queue_id=queue_id, queue_offset=queue_offset + index, physical_offset=base + len(log))
        record = reference_message.put(placed, checksum=True) if checksum and index % 2 else encode(placed)
        units.append((base + len(log), len(record), index))
        log += record
    for row, moved, grown in wrong_units:
        if row < len(units):
            offset, size, index = units[row]
            units[row] = (offset + moved, size + grown, index)
    log = damaged(log, damage, cut if cut % 2 else 0)
    first, last = sorted((min(first, len(units)), min(last, len(units))))
    table = np.array(units, np.int64).reshape(len(units), consume_queue.OUT_COLUMNS)
    gathered = commit_log.gather(table, first, last, log, base, queue_id, queue_offset, sealed)
    assert gathered == reference.gather(units, first, last, log, base, queue_id, queue_offset, sealed=sealed)


@settings(max_examples=30, deadline=None)
@given(MESSAGES, TEXT, st.booleans(), st.booleans())
def test_the_end_of_a_record_is_known_whichever_bit_is_flipped(
    item: Stored, text: bytes, followed: bool, checksum: bool
) -> None:
    """With records of the same size behind it, and as the last one."""
    item = replace(item, properties=text, body=item.body[:200])
    log = bytearray()
    for _ in range(4 if followed else 1):
        placed = replace(item, physical_offset=len(log))
        log += reference_message.put(placed, checksum=True) if checksum else encode(placed)
    size = len(log) // (4 if followed else 1)
    log += bytes(0 if followed else 1000)
    for place in range(8 * size):
        log[place // 8] ^= 1 << place % 8
        # Nothing stands behind the last record but its checksum, where the flipped bit hit neither.
        if followed or (checksum and place // 8 < size - 20):
            assert commit_log.damaged_end(log, 0, 0, checksum) == size, place
        log[place // 8] ^= 1 << place % 8


@given(st.binary(max_size=400), st.integers(0, 400), st.booleans())
def test_the_end_of_no_record_at_all_is_within_the_data(data: bytes, at: int, sealed: bool) -> None:
    at = min(at, len(data))
    end = commit_log.damaged_end(data, at, 0, sealed)
    assert min(at + 92, len(data)) <= end <= len(data)
