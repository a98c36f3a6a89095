"""Send requests: a chunk of them read to rows, and put into the log's write buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench import data
from rocketcore._fast import command as command_kernel
from rocketcore._fast import frame
from rocketcore._fast import sends as kernel

FORMS = {"json": 0, "binary": 1}
HOST = bytes([10, 0, 0, 1]) + (10911).to_bytes(4)


@pytest.mark.parametrize("count", [1, 32])
@pytest.mark.parametrize("form", FORMS)
def test_send_to_columns(benchmark: Any, form: str, count: int) -> None:
    """A chunk of sends as a broker reads it: boundaries, fixed fields, typed fields."""
    chunk = command_kernel.encode_frame(310, 0, 479, 8, 0, None, data.SEND_FIELDS, b"hi", FORMS[form]) * count
    rows, heads, out = (
        np.zeros((count, columns), np.int64).data
        for columns in (frame.FRAME_COLUMNS, frame.HEAD_COLUMNS, kernel.SEND_COLUMNS)
    )
    scratch = bytearray(4096)

    def read() -> int:
        found, _, _ = frame.read_frames(chunk, 0, rows, heads)
        return kernel.scan_send(chunk, rows, heads, 0, found, out, scratch)

    benchmark.group = f"send-columns-{form}-{count}"
    benchmark.extra_info |= {"bytes": len(chunk), "headers": count}
    assert benchmark(read) == count
    assert out[0, kernel.SEND_STATUS] == 0


@pytest.mark.parametrize("size", [128, 1024])
def test_put_records(benchmark: Any, size: int) -> None:
    """32 plain messages of one topic."""
    fields = data.SEND_FIELDS | {"i": data.stored_properties(7).split(b"CLUSTER")[0].decode()}
    chunk = b"".join(
        command_kernel.encode_frame(310, 0, 479, index, 0, None, fields, body, 1)
        for index, body in enumerate(data.bodies(32, size))
    )
    rows, heads, sends, results = (
        np.zeros((32, columns), np.int64).data
        for columns in (frame.FRAME_COLUMNS, frame.HEAD_COLUMNS, kernel.SEND_COLUMNS, kernel.RESULT_COLUMNS)
    )
    scratch, out, offsets = bytearray(8192), bytearray(1 << 16), np.zeros(4, np.int64).data
    frame.read_frames(chunk, 0, rows, heads)
    assert kernel.scan_send(chunk, rows, heads, 0, 32, sends, scratch) == 32
    benchmark.group = f"put-records-{size}"
    benchmark.extra_info |= {"bytes": len(chunk), "messages": 32}
    stored = benchmark(
        kernel.put_records, out, 0, len(out), 0, chunk, scratch, sends, 0, 32, topic=b"T", next_offsets=offsets,
        born_host=HOST, store_host=HOST, store_timestamp=0, extra_properties=b"CLUSTER\x01c\x02", max_body=1 << 20,
        results=results,
    )  # fmt: skip
    assert stored == 32
