"""Frame boundaries: golden frames, limits, and where the scan stops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rocketcore._fast import frame
from rocketcore.errors import DecodeError, FrameTooLarge
from tests.fixtures.vectors import family, name_of
from tests.reference import frame as reference

ONE = reference.frame(b"head", b"body!", 1)


def tables(capacity: int) -> tuple[Any, Any]:
    return np.zeros((capacity, frame.FRAME_COLUMNS), np.int64), np.zeros((capacity, frame.HEAD_COLUMNS), np.int64)


def scan(data: bytes, capacity: int = 16, **options: int) -> tuple[list[list[int]], int]:
    rows, heads = tables(capacity)
    count, position, _ = frame.read_frames(data, 0, rows, heads, **options)
    return rows[:count].tolist(), position


@pytest.mark.parametrize("vector", family("frames.jsonl", "encode/") + family("frames.jsonl", "typed/"), ids=name_of)
def test_golden_frames(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    rows, position = scan(data)
    assert position == len(data)
    [row] = rows
    assert row[frame.SERIALIZE_TYPE] == ["JSON", "ROCKETMQ"].index(vector["input"]["serializeType"])
    assert data[row[frame.BODY_START] :] == bytes.fromhex(vector["input"]["body"] or "")
    if vector.get("headerHex"):
        assert data[: row[frame.BODY_START]] == bytes.fromhex(vector["headerHex"])


@pytest.mark.parametrize("vector", family("frames.jsonl", "decode/frame/"), ids=name_of)
def test_odd_frames(vector: dict[str, Any]) -> None:
    """What Java refuses as a frame is refused here; what it refuses as a header still is a frame."""
    data = bytes.fromhex(vector["hex"])
    case = vector["name"].split("@")[0].split("/")[-1]
    if case in {"type-2", "type-255", "header-length-too-long", "header-length-max"}:
        with pytest.raises(DecodeError) as caught:
            scan(data)
        assert caught.value.position == 0
    else:
        rows, position = scan(data)
        assert len(rows) == 1
        assert position == len(data)


def test_columns() -> None:
    rows, position = scan(ONE + ONE)
    assert position == 2 * len(ONE)
    assert rows == [[0, 8, 4, 12, 5, 1], [17, 25, 4, 29, 5, 1]]


def test_positions_are_absolute() -> None:
    rows, heads = tables(4)
    assert frame.read_frames(b"xxx" + ONE + b"yy", 3, rows, heads)[:2] == (1, 3 + len(ONE))
    assert rows[0].tolist() == [3, 11, 4, 15, 5, 1]


@pytest.mark.parametrize("cut", range(len(ONE)))
def test_incomplete_frame_is_left(cut: int) -> None:
    rows, position = scan(ONE + ONE[:cut])
    assert len(rows) == 1
    assert position == len(ONE)


def test_full_table_stops_the_scan() -> None:
    rows, position = scan(ONE * 5, capacity=3)
    assert len(rows) == 3
    assert position == 3 * len(ONE)
    assert scan(ONE, capacity=0) == ([], 0)


def test_good_frames_come_before_the_error() -> None:
    data = ONE + b"\xff" * 8
    rows, position = scan(data)
    assert len(rows) == 1
    with pytest.raises(DecodeError, match="frame length") as caught:
        frame.read_frames(data, position, *tables(1))
    assert caught.value.position == len(ONE)


@pytest.mark.parametrize("length", [0, 3, -1, -(1 << 31)])
def test_impossible_length(length: int) -> None:
    with pytest.raises(DecodeError, match="below 4"):
        scan(length.to_bytes(4, signed=True))


def test_limit_counts_the_length_word() -> None:
    assert len(scan(ONE, limit=len(ONE))[0]) == 1
    with pytest.raises(FrameTooLarge):
        scan(ONE, limit=len(ONE) - 1)
    with pytest.raises(FrameTooLarge):
        scan((16_777_216 - 3).to_bytes(4))
    assert scan((16_777_216 - 4).to_bytes(4)) == ([], 0)
    with pytest.raises(FrameTooLarge):
        scan(b"\x7f\xff\xff\xff")


@pytest.mark.parametrize("start", [-1, len(ONE) + 1])
def test_start_outside_data(start: int) -> None:
    with pytest.raises(ValueError, match="not within"):
        frame.read_frames(ONE, start, *tables(1))


@pytest.mark.parametrize(
    "rows",
    [np.zeros((2, 5), np.int64), np.zeros((2, 6), np.int32), np.zeros(12, np.int64), np.zeros((6, 2), np.int64).T],
)
def test_table_of_another_shape(rows: Any) -> None:
    with pytest.raises((ValueError, BufferError)):
        frame.read_frames(ONE, 0, rows, tables(2)[1])


def test_read_only_table() -> None:
    rows, heads = tables(2)
    heads.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        frame.read_frames(ONE, 0, rows, heads)
    rows.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        frame.read_frames(ONE, 0, rows, tables(2)[1])


def test_a_failed_call_keeps_no_buffer() -> None:
    data = bytearray(ONE)
    with pytest.raises(ValueError, match="columns"):
        frame.read_frames(data, 0, tables(1)[0], np.zeros((1, 1), np.int64))
    data.append(0)  # a bytearray that someone holds cannot grow
