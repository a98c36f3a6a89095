"""Consume-queue units against the files of Apache RocketMQ's store, and the limits of one pull."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rocketcore._fast import commit_log, consume_queue
from rocketcore.errors import DecodeError
from tests.fixtures.vectors import family
from tests.reference import consume_queue as reference
from tests.reference.consume_queue import Unit

UNITS = [Unit(1000 * i, 100 + i, i % 3) for i in range(20)]


def scan(units: list[Unit], codes: list[int] | None, *limits: int, capacity: int = 64, **disk: Any) -> Any:
    out = np.zeros((capacity, consume_queue.OUT_COLUMNS), np.int64)
    wanted = None if codes is None else np.array(codes, np.int64)
    max_count, max_bytes = limits or (1000, 1 << 40)
    matched, examined = consume_queue.scan_units(reference.encode(units), wanted, max_count, max_bytes, out, **disk)
    return [tuple(row) for row in out[:matched].tolist()], examined


def test_units_are_those_of_the_java_store() -> None:
    (record,) = family("layouts.jsonl", "consume-queue/entries")
    wanted = bytes.fromhex(record["hex"])
    units = [Unit(item["physicalOffset"], item["size"], item["tagsCode"]) for item in record["input"]["entries"]]
    out = bytearray(len(wanted))
    position = 0
    for item in units:
        position = consume_queue.put_unit(out, position, *item)
    assert bytes(out) == wanted
    assert position == len(wanted)
    assert [consume_queue.unit(wanted, i) for i in range(4)] == units


def test_blanks_are_those_of_the_java_store() -> None:
    (record,) = family("layouts.jsonl", "consume-queue/pre-blank")
    given = record["input"]
    wanted = bytes.fromhex(record["hex"])
    blanks = given["queueOffset"] - int(record["files"][0]) // 20
    out = bytearray(len(wanted))
    position = consume_queue.put_blank(out, 0, blanks)
    consume_queue.put_unit(out, position, given["physicalOffset"], given["size"], given["tagsCode"])
    assert out == wanted
    table = np.zeros((9, 3), np.int64)
    assert consume_queue.scan_units(wanted[:80], None, 32, 1 << 20, table) == (1, 4)


@pytest.mark.parametrize("position", [-1, 1, 21])
def test_a_unit_that_does_not_fit_is_refused(position: int) -> None:
    out = bytearray(20)
    with pytest.raises(ValueError, match="do not fit"):
        consume_queue.put_unit(out, position, 0, 1, 0)
    with pytest.raises(ValueError, match="do not fit"):
        consume_queue.put_blank(out, position, 1)
    assert out == bytes(20)


def test_scan_without_a_filter_and_with_tags() -> None:
    assert scan(UNITS, None) == ([(u.physical_offset, u.size, i) for i, u in enumerate(UNITS)], 20)
    rows, examined = scan(UNITS, [2])
    assert ([row[2] for row in rows], examined) == ([2, 5, 8, 11, 14, 17], 20)
    assert scan(UNITS, []) == ([], 20)
    many = sorted(range(-50, 50, 2))
    assert scan(UNITS, many) == reference.scan(UNITS, many, 1000, 1 << 40, 64)
    assert scan([], None) == ([], 0)


def test_scan_stops_at_each_limit() -> None:
    """broker.md 14.2: limits come before the filter, and never stop the first message."""
    assert scan(UNITS, None, 5, 1 << 20)[1] == 5
    assert scan(UNITS, [1], 2, 1 << 20) == ([(1000, 101, 1), (4000, 104, 4)], 5)
    assert scan(UNITS, None, 100, 303)[1] == 3
    assert scan(UNITS, None, 100, 302)[1] == 2
    assert scan(UNITS, None, 0, 0)[1] == 1
    assert scan(UNITS, None, capacity=4)[1] == 4
    assert scan(UNITS, None, disk_before=3000, disk_max_count=2)[1] == 2
    assert scan(UNITS, None, disk_before=2000, disk_max_count=2)[1] == 20
    assert scan(UNITS, None, disk_before=10000, disk_max_bytes=250)[1] == 2


def test_scan_reports_a_broken_unit_after_the_good_ones() -> None:
    assert scan([*UNITS[:3], Unit(-1, 5, 0)], None)[1] == 3
    with pytest.raises(DecodeError, match="negative offset"):
        scan([Unit(-1, 5, 0)], None)
    with pytest.raises(DecodeError, match="negative size"):
        scan([Unit(1, -5, 0)], None)


def test_wrong_lengths() -> None:
    table = np.zeros((1, 3), np.int64)
    with pytest.raises(ValueError, match="whole number"):
        consume_queue.scan_units(bytes(19), None, 1, 1, table)
    with pytest.raises(IndexError):
        consume_queue.unit(bytes(20), 1)
    with pytest.raises(IndexError):
        consume_queue.unit(bytes(20), -1)


def row_of(topic_start: int, topic_length: int, queue_offset: int = 0) -> np.ndarray[Any, Any]:
    rows = np.zeros((1, commit_log.COLUMNS), np.int64)
    rows[0, commit_log.TOPIC_START] = topic_start
    rows[0, commit_log.TOPIC_LENGTH] = topic_length
    rows[0, commit_log.QUEUE_OFFSET] = queue_offset
    return rows


@pytest.mark.parametrize("place", [(0, 5), (5, 1), (-1, 2), (1, -1), (1, 1 << 62)])
def test_a_topic_outside_of_the_data_is_refused(place: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="topic of row 0 is not within the data"):
        consume_queue.UnitCollector().collect(b"TTTT", row_of(*place), 0, 1)


@pytest.mark.parametrize(("first", "last"), [(-1, 1), (1, 0), (0, 2)])
def test_rows_that_are_not_there_are_refused(first: int, last: int) -> None:
    with pytest.raises(ValueError, match="rows"):
        consume_queue.UnitCollector().collect(b"T", row_of(0, 1), first, last)


def test_a_queue_is_not_followed_elsewhere_before_its_units_are_taken() -> None:
    collector = consume_queue.UnitCollector()
    number = collector.follow(b"T", 0, 7)
    assert collector.collect(b"T", row_of(0, 1, 7), 0, 1) == 1
    with pytest.raises(ValueError, match="not taken"):
        collector.follow(b"T", 0, 7)
    assert collector.take(number) == reference.encode([Unit(0, 0, 0)])
    assert collector.follow(b"T", 0, 7) == number
    with pytest.raises(IndexError, match="queue 1 of 1"):
        collector.take(1)


def test_thousands_of_queues_are_told_apart() -> None:
    collector = consume_queue.UnitCollector()
    names = [(b"topic-%d" % (number // 8), number % 8) for number in range(5000)]
    assert [collector.follow(*name, 0) for name in names] == list(range(5000))
    assert [collector.follow(*name, 0) for name in names] == list(range(5000))
