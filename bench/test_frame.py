"""Frame boundaries of a receive buffer: one frame, and 256 frames of a pipelined chunk; a loop over ``struct``."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from bench import data
from rocketcore._fast import command, frame
from tests.reference import frame as reference


def struct_scan(stream: bytes) -> int:
    """A tight loop with ``struct``: what Python does without a kernel."""
    words = struct.Struct(">ii")
    rows, at = [], 0
    while at < len(stream):
        length, header_word = words.unpack_from(stream, at)
        header_length = header_word & 0xFFFFFF
        body = at + 8 + header_length
        rows.append((at, at + 8, header_length, body, length - 4 - header_length, header_word >> 24))
        at += 4 + length
    return len(rows)


@pytest.mark.parametrize("row", ["kernel", "struct", "reference"])
@pytest.mark.parametrize("count", [1, 256])
def test_scan(benchmark: Any, row: str, count: int) -> None:
    stream = command.encode_frame(310, 3, 407, 5, 0, None, data.SEND_FIELDS, data.body(64), 1) * count
    rows, heads = (np.zeros((256, columns), np.int64).data for columns in (frame.FRAME_COLUMNS, frame.HEAD_COLUMNS))
    benchmark.group = f"frame-scan-{count}"
    benchmark.extra_info |= {"bytes": len(stream), "frames": count}
    if row == "kernel":
        assert benchmark(frame.read_frames, stream, 0, rows, heads) == (count, len(stream), 310)
    elif row == "struct":
        assert benchmark(struct_scan, stream) == count
    else:
        assert benchmark(reference.scan, stream, 0, len(stream), 256)[1] == len(stream)
