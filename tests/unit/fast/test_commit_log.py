"""The walk over log segments, and the filler at their end, against what Apache RocketMQ's store writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rocketcore._fast import commit_log, consume_queue
from rocketcore._fast import record as record_kernel
from tests.fixtures.vectors import family, name_of
from tests.reference import commit_log as reference
from tests.reference.message import Stored, encode

FILLERS = [record for record in family("stored_messages.jsonl", "filler") if record["status"] == "END_OF_FILE"]
RECORDS = [record for record in family("stored_messages.jsonl", "filler") if record["status"] == "PUT_OK"]


def walk(
    data: bytes, base: int = 0, capacity: int = 64, start: int = 0, *, check_crc: bool = True
) -> tuple[np.ndarray[Any, Any], int, int]:
    rows = np.zeros((capacity, commit_log.COLUMNS), np.int64)
    count, position, status, _ = commit_log.walk(data, start, len(data), base, rows, check_crc)
    return rows[:count], position, status


def record_at(offset: int, *, body: bytes = b"hi", properties: bytes = b"TAGS\x01TagA\x02", **fields: Any) -> bytes:
    return encode(Stored(topic=b"T", body=body, properties=properties, physical_offset=offset, **fields))


def log_of(count: int, base: int) -> bytes:
    data = b""
    for i in range(count):
        data += record_at(base + len(data), queue_offset=i, queue_id=i % 4, store_timestamp=1700000000000 + i)
    return data


@pytest.mark.parametrize("record", FILLERS, ids=name_of)
def test_filler_is_the_one_of_the_java_store(record: dict[str, Any]) -> None:
    data = bytes.fromhex(record["hex"])
    assert commit_log.encode_filler(record["input"]["left"]) == data[:8]
    assert walk(data + bytes(record["input"]["left"] - 8))[1:] == (0, commit_log.FILLER)


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_a_record_that_leaves_room_for_a_filler_is_written(record: dict[str, Any]) -> None:
    data = bytes.fromhex(record["hex"])
    rows, position, status = walk(data, base=100)
    assert (len(rows), position, status) == (1, 94, commit_log.END_OF_DATA)


@pytest.mark.parametrize("left", [-1, 0, 7, 1 << 31])
def test_filler_needs_a_length_that_fits(left: int) -> None:
    with pytest.raises(ValueError, match="filler"):
        commit_log.encode_filler(left)


@pytest.mark.parametrize("record", family("stored_messages.jsonl", "append"), ids=name_of)
def test_walks_over_what_the_java_store_wrote(record: dict[str, Any]) -> None:
    data = bytes.fromhex(record["hex"])
    given = record["input"]
    rows, position, status = walk(data, base=given["physicalOffset"])
    if record["name"].startswith("append/topic-128-v1"):
        assert (len(rows), position, status) == (0, 0, commit_log.END_OF_LOG)
        return
    assert (len(rows), position, status) == (1, len(data), commit_log.END_OF_DATA)
    (wanted,) = reference.walk(data, 0, len(data), given["physicalOffset"], 1).records
    assert dispatch_row(data, rows[0]) == reference.dispatch_row(wanted)
    assert rows[0, commit_log.STORE_TIMESTAMP] == given["storeTimestamp"]
    assert rows[0, commit_log.QUEUE_ID] == given["queueId"]


def dispatch_row(data: bytes, row: Any) -> dict[str, int | bytes]:
    found: dict[str, int | bytes] = {
        name: int(row[getattr(commit_log, name)])
        for name in (
            "PHYSICAL_OFFSET", "SIZE", "TAGS_CODE", "QUEUE_ID", "QUEUE_OFFSET", "STORE_TIMESTAMP", "SYS_FLAG",
            "DELAY_LEVEL", "PREPARED_OFFSET",
        )
    }  # fmt: skip
    start, length = row[commit_log.TOPIC_START], row[commit_log.TOPIC_LENGTH]
    found["TOPIC"] = data[start : start + length]
    start, length = row[commit_log.PROPERTIES_START], row[commit_log.PROPERTIES_LENGTH]
    found["PROPERTIES"] = data[start : start + length]
    return found


def test_walks_to_the_zero_bytes_of_a_new_segment() -> None:
    base = 1 << 40
    data = log_of(5, base)
    rows, position, status = walk(data + bytes(1000), base)
    assert (len(rows), position, status) == (5, len(data), commit_log.END_OF_LOG)
    assert list(rows[:, commit_log.QUEUE_OFFSET]) == [0, 1, 2, 3, 4]
    assert rows[0, commit_log.PHYSICAL_OFFSET] == base
    assert set(rows[:, commit_log.TAGS_CODE]) == {2598919}


def test_walks_on_from_a_full_table_and_a_start_in_the_middle() -> None:
    data = log_of(5, 0)
    rows, position, status = walk(data, capacity=3)
    assert (len(rows), status) == (3, commit_log.FULL)
    rows, position, status = walk(data, capacity=2, start=position)
    assert (len(rows), position, status) == (2, len(data), commit_log.END_OF_DATA)
    assert list(rows[:, commit_log.QUEUE_OFFSET]) == [3, 4]


def test_every_cut_of_the_last_record_keeps_the_ones_before() -> None:
    data = log_of(3, 0)
    two = len(log_of(2, 0))
    topic = two + 91  # no checksum covers what follows; zeros there pass, as they do in Java
    for cut in range(two, len(data)):
        rows, position, status = walk(data[:cut])
        assert (len(rows), position, status) == (2, two, commit_log.END_OF_DATA)
        rows, position, status = walk(data[:cut] + bytes(len(data) - cut))
        if cut < topic:
            assert (len(rows), position, status) == (2, two, commit_log.END_OF_LOG)


def test_a_record_of_another_place_ends_the_log() -> None:
    """Bytes of an older file, or of a log that was cut and written again, are whole records for other offsets."""
    data = record_at(0) + record_at(5000)
    rows, position, status = walk(data)
    assert (len(rows), position, status) == (1, len(record_at(0)), commit_log.END_OF_LOG)


@pytest.mark.parametrize("position", [0, 4, 8, 28, 84, 88, 90, 92])
def test_damage_ends_the_log(position: int) -> None:
    first = record_at(0)
    damaged = bytearray(first + record_at(len(first)))
    damaged[len(first) + position] ^= 0x40
    rows, at, status = walk(bytes(damaged))
    assert (len(rows), at) == (1, len(first))
    assert status in (commit_log.END_OF_LOG, commit_log.END_OF_DATA)


def test_the_crc_is_checked_unless_told_otherwise() -> None:
    data = bytearray(record_at(0, body=b"0123456789"))
    data[88 + 3] ^= 1
    assert walk(bytes(data))[2] == commit_log.END_OF_LOG
    assert len(walk(bytes(data), check_crc=False)[0]) == 1


@pytest.mark.parametrize(
    ("properties", "level"),
    [
        (b"", 0),
        (b"DELAY\x013\x02", 3),
        (b"DELAY\x013\x02DELAY\x0118", 18),
        (b"DELAY\x012147483647\x02", 2147483647),
        (b"DELAY\x012147483648\x02", 0),
        (b"DELAY\x01-1\x02", 0),
        (b"DELAY\x01+5\x02", 5),
        (b"DELAY\x01+-5\x02", 0),
        (b"DELAY\x01+\x02", 0),
        (b"DELAY\x01" + b"0" * 30 + b"7\x02", 7),
        (b"DELAY\x01000\x02", 0),
        (b"DELAY\x01x\x02", 0),
        (b"DELAYED\x013\x02", 0),
    ],
)
def test_delay_level(properties: bytes, level: int) -> None:
    rows, _, _ = walk(record_at(0, properties=properties))
    assert rows[0, commit_log.DELAY_LEVEL] == reference.delay_level(properties) == level


def test_wrong_arguments() -> None:
    rows = np.zeros((1, commit_log.COLUMNS), np.int64)
    with pytest.raises(ValueError, match="range"):
        commit_log.walk(b"", 0, 1, 0, rows)
    with pytest.raises(ValueError, match="int64 table"):
        commit_log.walk(b"", 0, 0, 0, np.zeros((1, record_kernel.STORED_COLUMNS), np.int64))


UNITS = [(4096, 95, 0), (4191, 95, 1), (4286, 95, 2)]
QUEUED = b"".join(
    encode(Stored(topic=b"T", body=b"abc", queue_id=2, queue_offset=10 + index, physical_offset=offset))
    for offset, _, index in UNITS
)


def gather(units: list[tuple[int, int, int]], log: bytes = QUEUED, start: int = 4096) -> tuple[bytes, int]:
    table = np.array(units, np.int64)
    return commit_log.gather(table, 0, len(units), log, start, 2, 10)


def test_gather_takes_the_columns_of_a_queue_scan() -> None:
    columns = consume_queue.PHYSICAL_OFFSET, consume_queue.SIZE, consume_queue.INDEX, consume_queue.OUT_COLUMNS
    assert columns == (0, 1, 2, 3)


def test_gather_copies_what_the_units_lead_to() -> None:
    assert gather(UNITS) == (QUEUED, 3)
    assert gather([UNITS[0], UNITS[2]]) == (QUEUED[:95] + QUEUED[190:], 2)


@pytest.mark.parametrize(
    "unit",
    [
        (4095, 95, 1),
        (4381, 95, 1),
        (4287, 95, 2),
        (4191, 94, 1),
        (4191, 96, 1),
        (4191, 90, 1),
        (4191, 0, 1),
        (4191, -1, 1),
        (4191, (1 << 63) - 1, 1),
        ((1 << 63) - 1, 95, 1),
        (-(1 << 63), 95, 1),
        (4191, 95, 2),
        (4191, 95, -(1 << 63)),
    ],
)
def test_gather_stops_before_a_unit_that_leads_to_no_such_message(unit: tuple[int, int, int]) -> None:
    assert gather([UNITS[0], unit, UNITS[2]]) == (QUEUED[:95], 1)


@pytest.mark.parametrize("position", [0, 4, 8, 12, 20, 28, 84, 88])
def test_gather_stops_before_a_damaged_record(position: int) -> None:
    log = bytearray(QUEUED)
    log[95 + position] ^= 1
    assert gather(UNITS, bytes(log)) == (QUEUED[:95], 1)


def test_gather_stops_at_the_end_of_the_file() -> None:
    assert gather(UNITS, QUEUED[:-1]) == (QUEUED[:190], 2)
    assert gather(UNITS, QUEUED[95:], 4191) == (b"", 0)
    assert gather(UNITS, b"") == (b"", 0)


@pytest.mark.parametrize(("first", "last", "start"), [(-1, 1, 0), (2, 1, 0), (0, 4, 0), (0, 1, -1)])
def test_gather_refuses_wrong_arguments(first: int, last: int, start: int) -> None:
    with pytest.raises(ValueError, match="rows"):
        commit_log.gather(np.array(UNITS, np.int64), first, last, QUEUED, start, 2, 10)
