"""The walk over a log segment: kernel and reference agree, whatever the bytes are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcore._fast import commit_log, consume_queue
from tests.property.test_message import DAMAGE, MESSAGES, damaged
from tests.reference import commit_log as reference
from tests.reference.message import Stored, encode
from tests.unit.fast.test_commit_log import dispatch_row

TEXT = st.sampled_from([b"", b"TAGS\x01a\x02", b"DELAY\x015\x02TAGS\x01\xc3\xa9", b"DELAY\x01x\x02", b"k\x01v\x02"])


def segment(items: list[Stored], texts: list[bytes], base: int, tail: bytes) -> bytes:
    data = b""
    for item, text in zip(items, texts, strict=False):
        data += encode(replace(item, physical_offset=base + len(data), properties=text))
    return data + tail


def check(data: bytes, base: int, capacity: int, *, check_crc: bool) -> int:
    rows = np.zeros((capacity, commit_log.COLUMNS), np.int64)
    count, position, status = commit_log.walk(data, 0, len(data), base, rows, check_crc)
    wanted = reference.walk(data, 0, len(data), base, capacity, check_crc=check_crc)
    assert (count, position, status) == (len(wanted.records), wanted.position, wanted.status)
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
    st.just(1 << 40),
    st.sampled_from([b"", bytes(64), commit_log.encode_filler(64) + bytes(56), b"\x00\x00\x00", b"\xff" * 20]),
)


@given(SEGMENTS, st.integers(0, 5), st.booleans())
def test_walk_is_the_references(data: bytes, capacity: int, check_crc: bool) -> None:
    check(data, 1 << 40, capacity, check_crc=check_crc)


@settings(max_examples=300)
@given(SEGMENTS, DAMAGE, st.integers(0, 300), st.booleans())
def test_walk_over_a_damaged_segment_is_the_references(
    data: bytes, damage: list[tuple[int, int]], cut: int, check_crc: bool
) -> None:
    check(damaged(data, damage, cut if cut % 2 else 0), 1 << 40, 8, check_crc=check_crc)


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
)
def test_gather_is_the_references(
    items: list[Stored],
    wrong_units: list[tuple[int, int, int]],
    damage: list[tuple[int, int]],
    cut: int,
    first: int,
    last: int,
) -> None:
    base, queue_id, queue_offset = 1 << 40, 3, 1000
    log, units = b"", []
    for index, item in enumerate(items):
        log += bytes(item.flag % 5)
        record = encode(
            replace(item, queue_id=queue_id, queue_offset=queue_offset + index, physical_offset=base + len(log))
        )
        units.append((base + len(log), len(record), index))
        log += record
    for row, moved, grown in wrong_units:
        if row < len(units):
            offset, size, index = units[row]
            units[row] = (offset + moved, size + grown, index)
    log = damaged(log, damage, cut if cut % 2 else 0)
    first, last = sorted((min(first, len(units)), min(last, len(units))))
    table = np.array(units, np.int64).reshape(len(units), consume_queue.OUT_COLUMNS)
    gathered = commit_log.gather(table, first, last, log, base, queue_id, queue_offset)
    assert gathered == reference.gather(units, first, last, log, base, queue_id, queue_offset)
