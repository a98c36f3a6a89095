"""CRC-32 (IEEE 802.3) bit by bit, and the polynomial arithmetic behind the constants of the folding kernels.

A polynomial over GF(2) is an int: bit i is the coefficient of x^i.
"""

from __future__ import annotations

P = 0x1_04C1_1DB7


def crc32(data: bytes, value: int = 0) -> int:
    """Return the CRC-32 of bytes, continuing from ``value``."""
    state = value ^ 0xFFFF_FFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0xEDB8_8320 if state & 1 else 0)
    return state ^ 0xFFFF_FFFF


def divide(dividend: int) -> tuple[int, int]:
    """Return quotient and remainder of a polynomial and P."""
    quotient = 0
    while dividend.bit_length() > 32:
        shift = dividend.bit_length() - 33
        quotient |= 1 << shift
        dividend ^= P << shift
    return quotient, dividend


def reflect(value: int, bits: int) -> int:
    """Return the value with its lowest ``bits`` bits in reverse order."""
    return int(f"{value:0{bits}b}"[::-1], 2)


def fold(distance: int) -> tuple[int, int]:
    """Return the two constants that move 128 bits on by ``distance`` bits."""
    first, last = (divide(1 << distance + step)[1] for step in (32, -32))
    return reflect(first, 32) << 1, reflect(last, 32) << 1
