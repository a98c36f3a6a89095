"""Rows of a CSV file (RFC 4180): cells are texts as they stand.

The separator is a comma, quotes are doubled within quotes, and the first line has the names. Nothing is guessed: no
types, no other separator, no value that means null.
"""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rocketcore.files.faults import TextFault

__all__ = ["csv_rows"]

_LIMIT_LOCK: Final = threading.Lock()
"""Guards csv's limit of a cell, which is the process's."""


@contextmanager
def _cells_of_any_length(longest: int) -> Iterator[None]:
    with _LIMIT_LOCK:
        before = csv.field_size_limit(max(1, longest))
        try:
            yield
        finally:
            csv.field_size_limit(before)


def csv_rows(text: str) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns and the rows; empty lines are passed over. Raises TextFault."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    names: list[str] = []
    rows: list[list[str]] = []
    line = 1
    with _cells_of_any_length(len(text)):
        while True:
            try:
                row = next(reader, None)
            except csv.Error as error:
                raise TextFault(f"{error}, in the row that begins here", line, 1) from None
            if row is None:
                return names, rows
            if row and not names:
                names = row
                _check_names(names, line)
            elif row:
                if len(row) != len(names):
                    reason = f"the row has {len(row)} cells, the first line names {len(names)} columns"
                    raise TextFault(reason, line, _cell_column(row, len(names)))
                rows.append(row)
            line = reader.line_num + 1


def _check_names(names: list[str], line: int) -> None:
    for number, name in enumerate(names):
        if name in names[:number]:
            raise TextFault(f"column {number + 1} is called {name!r}, as one before it is", line)


def _cell_column(row: list[str], wanted: int) -> int | None:
    """Return where the first cell too many begins, or the row ends that has too few; None where quotes hide it."""
    if any(set(cell) & set('",\r\n') for cell in row):
        return None
    return len(",".join(row[:wanted])) + (2 if len(row) > wanted else 1)
