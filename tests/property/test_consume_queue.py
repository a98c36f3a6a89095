"""Consume-queue units: kernel and reference agree on valid and on damaged units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcore._fast import commit_log, consume_queue
from rocketcore.errors import DecodeError
from tests.reference import consume_queue as reference
from tests.reference.consume_queue import Row, Unit

OFFSETS = st.integers(0, 1 << 20) | st.integers(-(1 << 63), (1 << 63) - 1)
SIZES = st.integers(91, 5000) | st.sampled_from([0, -1, reference.BLANK_SIZE])
CODES = st.integers(-3, 3) | st.integers(-(1 << 63), (1 << 63) - 1)
UNITS = st.lists(st.builds(Unit, OFFSETS, SIZES, CODES), max_size=40)
SOUND = st.lists(st.builds(Unit, st.integers(0, 1 << 20), st.integers(91, 5000), st.integers(-9, 9)), max_size=60)


@given(UNITS, st.integers(0, 7))
def test_units_go_there_and_back(units: list[Unit], position: int) -> None:
    data = reference.encode(units)
    out = bytearray(position + len(data))
    at = position
    for item in units:
        at = consume_queue.put_unit(out, at, *item)
    assert bytes(out) == bytes(position) + data
    assert [consume_queue.unit(data, i) for i in range(len(units))] == units == reference.decode(data)


@settings(max_examples=300)
@given(
    UNITS | SOUND,
    st.none() | st.lists(st.integers(-9, 9), max_size=30),
    st.integers(0, 40),
    st.integers(0, 60000),
    st.integers(0, 12),
    st.integers(0, 1 << 20),
    st.none() | st.lists(st.integers(-9, 9), max_size=20),
)
def test_scan_is_the_references(
    units: list[Unit],
    codes: list[int] | None,
    max_count: int,
    max_bytes: int,
    capacity: int,
    disk_before: int,
    known: list[int] | None,
) -> None:
    out = np.zeros((capacity, consume_queue.OUT_COLUMNS), np.int64)
    wanted_codes = None if codes is None else np.array(sorted(codes), np.int64)
    known_codes = None if known is None else np.array(sorted(known), np.int64)
    rows, examined = reference.scan(units, codes, max_count, max_bytes, capacity, disk_before, 5, 9000, known)
    try:
        matched, seen = consume_queue.scan_units(
            reference.encode(units), wanted_codes, max_count, max_bytes, out, disk_before, 5, 9000, known_codes
        )
    except DecodeError:
        assert examined == 0
        assert units[0].physical_offset < 0 or units[0].size < 0
        return
    assert (out[:matched].tolist(), seen) == ([list(row) for row in rows], examined)


@given(SOUND, st.none() | st.lists(st.integers(-9, 9), max_size=4), st.integers(1, 8))
def test_scans_one_after_the_other_find_what_one_scan_finds(
    units: list[Unit], codes: list[int] | None, max_count: int
) -> None:
    wanted = [unit.physical_offset for unit in units if codes is None or unit.tags_code in codes]
    filter_codes = None if codes is None else np.array(sorted(codes), np.int64)
    out = np.zeros((8, consume_queue.OUT_COLUMNS), np.int64)
    data = reference.encode(units)
    found: list[int] = []
    at = 0
    while at < len(units):
        matched, examined = consume_queue.scan_units(data[20 * at :], filter_codes, max_count, 20000, out)
        found += out[:matched, consume_queue.PHYSICAL_OFFSET].tolist()
        assert examined > 0
        at += examined
    assert found == wanted


QUEUES = st.tuples(st.sampled_from([b"", b"T", b"TT", b"t" * 127]), st.integers(0, 40))
ROWS = st.lists(
    st.builds(
        lambda queue, offset, sys_flag, unit: Row(*queue, offset, sys_flag, unit),  # type: ignore[call-arg]
        QUEUES,
        st.integers(0, 3),
        st.sampled_from([0, 0, 0, 4, 8, 12, 0x31]),
        st.builds(Unit, st.integers(0, 1 << 50), st.integers(91, 1 << 22), st.integers(-(1 << 31), (1 << 31) - 1)),
    ),
    max_size=80,
)


@settings(max_examples=200)
@given(ROWS, st.integers(1, 30), st.lists(st.sampled_from(["", "", "take", "forget"]), min_size=1))
def test_units_of_a_walk_are_the_references(rows: list[Row], at_a_time: int, between: list[str]) -> None:
    """What stops the collector is dealt with as a start does: the queue is followed behind that message.

    between  what is done after each piece: take the units of all queues, or forget a queue
    """
    data = b"".join(row.topic for row in rows)
    table = np.zeros((len(rows), commit_log.COLUMNS), np.int64)
    position = 0
    for index, row in enumerate(rows):
        table[index, commit_log.TOPIC_START] = position
        position += len(row.topic)
        table[index, commit_log.TOPIC_LENGTH] = len(row.topic)
        table[index, commit_log.QUEUE_ID] = row.queue_id
        table[index, commit_log.QUEUE_OFFSET] = row.queue_offset
        table[index, commit_log.SYS_FLAG] = row.sys_flag
        table[index, commit_log.PHYSICAL_OFFSET] = row.unit.physical_offset
        table[index, commit_log.SIZE] = row.unit.size
        table[index, commit_log.TAGS_CODE] = row.unit.tags_code
    kernel, wanted = consume_queue.UnitCollector(), reference.UnitCollector()
    first = 0
    while first < len(rows):
        last = min(first + at_a_time, len(rows))
        stopped = kernel.collect(data, table, first, last)
        assert stopped == wanted.collect(rows, first, last)
        first = stopped
        what = between[first % len(between)]
        if what == "take":
            assert dict(kernel.take_all()) == wanted.take_all()
            assert kernel.take_all() == []
        elif what == "forget" and wanted.numbers:
            number = sorted(wanted.numbers.values())[first % len(wanted.numbers)]
            kernel.forget(number)
            wanted.forget(number)
            with pytest.raises(IndexError):
                kernel.take(number)
        if stopped < last:
            row = rows[stopped]
            number = wanted.numbers.get((row.topic, row.queue_id))  # type: ignore[assignment]
            if number is not None:
                assert kernel.take(number) == wanted.take(number)
            again = kernel.follow(row.topic, row.queue_id, row.queue_offset + 1)
            assert again == wanted.follow(row.topic, row.queue_id, row.queue_offset + 1)
            first += 1
    for number in wanted.numbers.values():
        assert kernel.take(number) == wanted.take(number)
        assert kernel.take(number) == b""


@given(st.lists(st.builds(Unit, st.integers(0, 9), st.integers(1, 9), st.integers(-3, 3))))
def test_tags_codes_come_once_each(units: list[Unit]) -> None:
    assert consume_queue.tags_codes(reference.encode(units)) == {unit.tags_code for unit in units}


@given(st.integers(0, 255))
def test_messages_of_transactions_that_are_open_or_rolled_back_get_no_unit(sys_flag: int) -> None:
    assert consume_queue.is_queued(sys_flag) is not bool(sys_flag & 4)
