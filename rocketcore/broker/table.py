"""Tables of int64 for the kernels."""

from __future__ import annotations

from array import array


def flat_table(rows: int, columns: int) -> array[int]:
    """Return a zeroed table as Python indexes it fastest: ``row * columns + column``."""
    return array("q", bytes(8 * rows * columns))


def rows_of(table: array[int], columns: int) -> memoryview[int]:
    """Return the same memory as rows of columns, the form that kernels take."""
    return memoryview(table).cast("B").cast("q", (len(table) // columns, columns))
