"""What is wrong with a file that was read: where, or which errors of libraries mean that it is damaged."""

from __future__ import annotations

import zlib

__all__ = ["DamagedText", "TextFault", "unpacking_errors", "unreadable"]


class TextFault(ValueError):
    """A text is not what it should be; ``line`` and ``column`` say where, both from 1 on, in characters."""

    def __init__(self, reason: str, line: int, column: int | None = None) -> None:
        place = f"line {line}" if column is None else f"line {line}, column {column}"
        super().__init__(f"{place}: {reason}")
        self.reason = reason
        self.line = line
        self.column = column


class DamagedText(ValueError):
    """A compressed file cannot be decompressed to its end."""


def unpacking_errors() -> tuple[type[Exception], ...]:
    """Return what reading a compressed file fails with."""
    return OSError, EOFError, zlib.error, DamagedText


def unreadable() -> tuple[type[Exception], ...]:
    """Return what pyarrow raises for a file that is not what it claims to be.

    Of wrong names, positions, types and sizes in it that is whatever Python or C++ has for them.
    """
    import pyarrow as pa

    return pa.ArrowException, OSError, ValueError, LookupError, MemoryError, OverflowError, TypeError, RuntimeError
