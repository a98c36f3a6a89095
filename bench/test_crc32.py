"""CRC-32 of one body: the kernel's implementations, zlib, ISA-L; the bitwise reference at the smallest size."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from bench import data
from rocketcore._fast import crc32
from tests.reference import crc32 as reference

isal_zlib = pytest.importorskip("isal.isal_zlib")

ROWS: dict[str, Callable[[bytes], int]] = {"kernel": crc32.crc32, "isal": isal_zlib.crc32, "zlib": zlib.crc32}
ROWS |= {f"kernel-{name}": partial(crc32.crc32_with, name) for name in crc32.available()}


@pytest.mark.parametrize("row", [*ROWS, "reference"])
@pytest.mark.parametrize("size", data.SIZES)
def test_crc32(benchmark: Any, row: str, size: str) -> None:
    if row == "reference" and size != "64":
        pytest.skip("bit by bit, this takes too long")
    body = data.body(data.SIZES[size])
    benchmark.group = f"crc32-{size}"
    benchmark.extra_info |= {"bytes": len(body), "implementation": crc32.implementation()}
    function = ROWS.get(row, reference.crc32)
    assert benchmark(function, body) == zlib.crc32(body)
