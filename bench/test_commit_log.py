"""The walk over a log segment of 1 MiB, beside the reference and memcpy: what recovery and dispatch cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench import data
from rocketcore._fast import commit_log
from tests.reference import commit_log as reference

SIZES = {"128": 128, "1k": 1024}


@pytest.mark.parametrize("row", ["kernel", "kernel-crc", "reference", "memcpy"])
@pytest.mark.parametrize("size", SIZES)
def test_walk(benchmark: Any, row: str, size: str) -> None:
    count = (1 << 20) // (SIZES[size] + 230)
    segment = data.stored_messages(count, SIZES[size])
    rows = np.zeros((count, commit_log.COLUMNS), np.int64)
    benchmark.group = f"commit-log-walk-{size}"
    benchmark.extra_info |= {"bytes": len(segment), "messages": count}
    if row == "memcpy":
        copy = memoryview(bytearray(len(segment)))
        benchmark(copy.__setitem__, slice(None), segment)
        assert copy == segment
    elif row == "reference":
        assert len(benchmark(reference.walk, segment, 0, len(segment), 0, count + 1).records) == count
    else:
        found = benchmark(commit_log.walk, segment, 0, len(segment), 0, rows, row == "kernel-crc")
        assert found == (count, len(segment), commit_log.END_OF_DATA, False)
