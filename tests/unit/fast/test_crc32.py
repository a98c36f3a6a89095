"""CRC-32: Java's numbers, zlib's numbers, and the constants of the folding loops derived from the polynomial."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import rocketcore
from rocketcore._fast import crc32 as kernel
from rocketcore._fast.crc32 import crc32, crc32_ranges, crc32_with
from tests.fixtures.vectors import family, name_of
from tests.reference import crc32 as reference

SOURCE = Path(rocketcore.__file__).parent / "_fast" / "include" / "rc_hash.h"
# Around every block size of the three implementations: 4, 8, 16, 64, 128, 256 bytes.
LENGTHS = [*range(70), *(block * 64 + step for block in range(2, 18) for step in (-1, 0, 1, 15, 16, 17)), 4096, 5000]


@pytest.mark.parametrize("vector", family("crc.jsonl", "crc/"), ids=name_of)
def test_vector(vector: dict[str, Any]) -> None:
    """Java takes null as no bytes, and has a form for a part of an array."""
    given = vector["input"]
    data = bytes.fromhex(given["bytes"] or "")
    start = given.get("offset", 0)
    part = memoryview(data)[start : start + given.get("length", len(data))]
    assert crc32(part) & 0x7FFF_FFFF == vector["expected"]
    assert crc32(part) == vector.get("unmasked", crc32(part))


@pytest.mark.parametrize("name", kernel.available())
def test_every_implementation_at_every_length_and_alignment(name: str) -> None:
    random = Random(name)
    data = random.randbytes(6000)
    for length in LENGTHS:
        start, value = random.randrange(64), random.getrandbits(32)
        piece = memoryview(data)[start : start + length]
        assert crc32_with(name, piece, value) == zlib.crc32(piece, value), length


@pytest.mark.parametrize("name", kernel.available())
def test_reads_nothing_but_the_range(name: str) -> None:
    for length in LENGTHS:
        pieces = [edge * 64 + bytes(length) + edge * 64 for edge in (b"\x00", b"\xff")]
        sums = {crc32_with(name, memoryview(piece)[64 : 64 + length]) for piece in pieces}
        assert sums == {zlib.crc32(bytes(length))}


def test_portable_implementation_is_always_there() -> None:
    assert "portable" in kernel.available()
    assert kernel.implementation() in kernel.available()


def test_unknown_implementation() -> None:
    with pytest.raises(ValueError, match="portable"):
        crc32_with("crc32c", b"")


def test_folding_constants_follow_from_the_polynomial() -> None:
    source = SOURCE.read_text()
    pairs = re.findall(r"#define RC_FOLD_(\d+) (0x[0-9a-f]+), (0x[0-9a-f]+)", source)
    assert len(pairs) >= 6
    for distance, first, last in pairs:
        assert (int(first, 16), int(last, 16)) == reference.fold(int(distance)), distance
    single = dict(re.findall(r"#define RC_(X64|P|MU) (0x[0-9a-f]+)", source))
    quotient, remainder = reference.divide(1 << 64)
    assert int(single["X64"], 16) == reference.reflect(remainder, 32) << 1
    assert int(single["P"], 16) == reference.reflect(reference.P, 33)
    assert int(single["MU"], 16) == reference.reflect(quotient, 33)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_takes_any_contiguous_bytes(kind: Any) -> None:
    assert crc32(kind(b"rocket")) == zlib.crc32(b"rocket")


def test_large_input_without_the_gil() -> None:
    data = Random(1).randbytes(1 << 20)
    assert crc32(data) == zlib.crc32(data)
    assert crc32(memoryview(data)[1:]) == zlib.crc32(data[1:])


def test_continues_from_a_value() -> None:
    assert crc32(b"mq", crc32(b"rocket")) == crc32(b"rocketmq")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(("text",), TypeError), ((b"", -1), OverflowError), ((b"", 1 << 32), OverflowError), ((), TypeError)],
)
def test_wrong_arguments(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        crc32(*arguments)


def test_ranges() -> None:
    data = Random(2).randbytes(1000)
    ranges = np.array([[0, 1000], [10, 0], [999, 1], [100, 64], [1000, 0]])
    out = np.zeros(5, np.int64)
    crc32_ranges(data, ranges, out)
    assert out.tolist() == [zlib.crc32(data[start : start + length]) for start, length in ranges]


@pytest.mark.parametrize("bad", [(-1, 1), (0, 11), (10, 1), (11, 0), (5, -1), (1 << 62, 1 << 62), (2**63 - 1, 1)])
def test_range_outside_data_writes_nothing(bad: tuple[int, int]) -> None:
    out = np.full(2, 7, np.int64)
    with pytest.raises(ValueError, match="range 1"):
        crc32_ranges(bytes(10), np.array([(0, 1), bad]), out)
    assert out.tolist() == [7, 7]


@pytest.mark.parametrize(
    ("ranges", "out"),
    [
        (np.zeros((2, 2), np.int64), np.zeros(3, np.int64)),
        (np.zeros((2, 3), np.int64), np.zeros(2, np.int64)),
        (np.zeros((2, 2), np.int32), np.zeros(2, np.int64)),
        (np.zeros((2, 2), np.float64), np.zeros(2, np.int64)),
        (np.zeros((2, 2), np.int64), np.zeros(2, np.uint64)),
        (np.zeros((2, 2), np.int64), np.zeros((2, 1), np.int64)),
    ],
)
def test_ranges_of_another_shape(ranges: Any, out: Any) -> None:
    with pytest.raises(ValueError):
        crc32_ranges(b"", ranges, out)
