"""Frame boundaries against the oracle, on streams of frames, cut and damaged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore._fast import frame
from rocketcore.errors import DecodeError
from tests.reference import frame as reference

FRAMES = st.builds(reference.frame, st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 1))
STREAMS = st.lists(FRAMES, max_size=6).map(b"".join)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A stream with some bytes changed, most often those of length words."""
    data = bytearray(draw(STREAMS))
    for _ in range(draw(st.integers(0, 3))):
        if data:
            place = draw(st.integers(0, min(len(data), 16) - 1) | st.integers(0, len(data) - 1))
            data[place] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


@given(
    data=damaged() | st.binary(max_size=80),
    start=st.integers(0, 8),
    capacity=st.integers(0, 8),
    limit=st.sampled_from([8, 60, 16_777_216]),
)
def test_is_the_oracle(data: bytes, start: int, capacity: int, limit: int) -> None:
    start = min(start, len(data))
    rows = np.zeros((capacity, frame.FRAME_COLUMNS), np.int64)
    heads = np.zeros((capacity, frame.HEAD_COLUMNS), np.int64)
    try:
        want = reference.scan(data, start, len(data), capacity, limit)
    except DecodeError as error:
        with pytest.raises(DecodeError) as caught:
            frame.read_frames(data, start, rows, heads, limit)
        assert (caught.type, caught.value.position) == (type(error), error.position)  # noqa: PT017
        return
    count, position, _ = frame.read_frames(data, start, rows, heads, limit)
    assert ([tuple(row) for row in rows[:count].tolist()], position) == want


@given(data=STREAMS, cuts=st.lists(st.integers(0, 500), max_size=5))
def test_any_split_gives_the_same_frames(data: bytes, cuts: list[int]) -> None:
    rows, heads = np.zeros((2, frame.FRAME_COLUMNS), np.int64), np.zeros((2, frame.HEAD_COLUMNS), np.int64)
    found: list[list[int]] = []
    position = 0
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        while True:
            count, position, _ = frame.read_frames(data[:end], position, rows, heads)
            found += rows[:count].tolist()
            if count < len(rows):
                break
    assert [tuple(row) for row in found] == reference.scan(data, 0, len(data), 100)[0]
