"""Data on stdout, in the form that ``-o`` names.

Rows are dictionaries of JSON values under snake_case keys; unknown is None, printed as – in tables. A table on a
terminal is drawn by rich; into a pipe it is plain aligned text, because importing rich takes longer than most commands.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rocketcore.cli.options import current

__all__ = ["Column", "progress", "show_line", "show_object", "show_rows", "timestamp"]

UNKNOWN = "–"
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the key of its value and its title; ``wide`` ones are left out of plain tables.

    ``text`` makes the value's text, None where it is unknown; a column with one has its title in CSV as well.
    """

    key: str
    title: str = ""
    wide: bool = False
    text: Callable[[Any], str | None] | None = None

    def cell(self, row: Row) -> str | None:
        """Return the text of a row's value; None where it is unknown."""
        value = row.get(self.key)
        if value is None:
            return None
        return _cell(value) if self.text is None else self.text(value)

    @property
    def heading(self) -> str:
        return self.title or self.key.replace("_", " ").upper()


def show_rows(rows: Iterable[Row], columns: Sequence[Column], *, name: str | None = None) -> None:
    """Print a list of like things; ``name`` is the key that ``-o name`` prints, the first column's by default."""
    output = current().output
    name = name or columns[0].key
    if output == "jsonl":
        for row in rows:
            print(_json(row))
        return
    rows = list(rows)
    if output == "json":
        print(_json(rows, indent=2))
    elif output == "yaml":
        print("\n".join(_yaml(rows, 0)) if rows else "[]")
    elif output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([column.key if column.text is None else column.heading for column in columns])
        writer.writerows([[column.cell(row) or "" for column in columns] for row in rows])
    elif output == "name":
        for row in rows:
            print(row[name])
    else:
        _table([c for c in columns if output == "wide" or not c.wide], rows)


def show_object(value: Row, columns: Sequence[Column] | None = None) -> None:
    """Print one thing: a field a line, or an object in the form asked for."""
    output = current().output
    if output in ("table", "wide"):
        columns = columns or [Column(key) for key in value]
        width = max((len(column.heading) for column in columns), default=0)
        for column in columns:
            print(f"{column.heading:<{width}}  {_shown(column, value)}")
    elif output == "csv":
        show_rows([value], columns or [Column(key) for key in value])
    elif output == "name":
        print(next(iter(value.values())))
    elif output == "yaml":
        print("\n".join(_yaml(dict(value), 0)))
    else:
        print(_json(value, indent=2 if output == "json" else None))


def show_line(value: Row, text: str) -> None:
    """Print one item of a stream at once: ``text`` for people, an object a line for programs."""
    print(text if current().output in ("table", "wide", "name", "csv") else _json(value), flush=True)


def progress(text: str) -> None:
    """Tell people what goes on, on stderr, unless they asked for quiet."""
    if not current().quiet:
        print(text, file=sys.stderr, flush=True)


def timestamp(millis: int | None) -> str | None:
    """Return milliseconds since the epoch as RFC 3339 in UTC; None where there is no time."""
    if millis is None or millis <= 0:
        return None
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _shown(column: Column, row: Row) -> str:
    text = column.cell(row)
    return UNKNOWN if text is None else text


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value)) or UNKNOWN
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_cell(item)}" for key, item in value.items()) or UNKNOWN
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return str(value)


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    cells = [[_shown(column, row) for column in columns] for row in rows]
    right = [bool(rows) and all(_is_number(row.get(column.key)) for row in rows) for column in columns]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column, numeric in zip(columns, right, strict=True):
            table.add_column(column.heading, justify="right" if numeric else "left", overflow="fold")
        for row in cells:
            table.add_row(*row)
        Console(highlight=False, markup=False).print(table)
        return
    lines = [[column.heading for column in columns], *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        padded = [
            text.rjust(width) if numeric else text.ljust(width)
            for text, width, numeric in zip(line, widths, right, strict=True)
        ]
        print("  ".join(padded).rstrip())


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _yaml(value: Any, depth: int) -> list[str]:
    """Block style; scalars in JSON's form, which YAML reads as the same value."""
    pad = "  " * depth
    lines = []
    items: Iterable[tuple[str, Any]]
    if isinstance(value, Mapping):
        items = [(f"{_json(key)}:", item) for key, item in value.items()]
    else:
        items = [("-", item) for item in value]
    for lead, item in items:
        if isinstance(item, (Mapping, list, tuple)) and item:
            nested = _yaml(item, depth + 1)
            if lead == "-":
                lines.append(f"{pad}- {nested[0].lstrip()}")
                lines.extend(nested[1:])
            else:
                lines.append(f"{pad}{lead}")
                lines.extend(nested)
        else:
            lines.append(f"{pad}{lead} {_json(item)}")
    return lines
