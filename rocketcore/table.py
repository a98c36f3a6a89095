"""Tables of int64 rows that kernels fill: one memory as rows of columns for the kernel and as a flat array for Python.

numpy would do, but importing it takes longer than a broker may take to start.
"""

from __future__ import annotations

from array import array

__all__ = ["Table"]


class Table:
    """``view`` is what a kernel takes; ``row``, ``column`` and ``flat``, the fastest to index, are for Python."""

    __slots__ = ("columns", "flat", "view")

    def __init__(self, rows: int, columns: int) -> None:
        self.columns = columns
        self.flat = array("q", bytes(8 * rows * columns))
        self.view = memoryview(self.flat).cast("B").cast("q", (rows, columns))

    def row(self, index: int) -> array[int]:
        return self.flat[index * self.columns : (index + 1) * self.columns]

    def column(self, column: int, count: int) -> array[int]:
        """Return one column of the first ``count`` rows."""
        return self.flat[column : count * self.columns : self.columns]
