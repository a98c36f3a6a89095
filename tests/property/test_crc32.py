"""Every CRC-32 implementation against the bitwise oracle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore._fast import crc32 as kernel
from tests.reference import crc32 as reference

VALUES = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("name", kernel.available())
@given(data=st.binary(max_size=600), value=VALUES)
def test_is_the_bitwise_sum(name: str, data: bytes, value: int) -> None:
    assert kernel.crc32_with(name, data, value) == reference.crc32(data, value)


@pytest.mark.parametrize("name", kernel.available())
@given(data=st.binary(max_size=2000), cut=st.integers(0, 2000), value=VALUES)
def test_of_parts_is_of_the_whole(name: str, data: bytes, cut: int, value: int) -> None:
    whole = kernel.crc32_with(name, data, value)
    assert kernel.crc32_with(name, data[cut:], kernel.crc32_with(name, data[:cut], value)) == whole


@pytest.mark.parametrize("name", kernel.available())
@given(data=st.binary(min_size=1, max_size=1500), bit=st.integers(0))
def test_every_flipped_bit_shows(name: str, data: bytes, bit: int) -> None:
    changed = bytearray(data)
    changed[bit // 8 % len(data)] ^= 1 << bit % 8
    assert kernel.crc32_with(name, changed) != kernel.crc32_with(name, data)
