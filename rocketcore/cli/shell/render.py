"""Data on stdout, in the form that ``-o`` names.

Rows are dictionaries of JSON values under snake_case keys; unknown is None, printed as – in tables. A table on a
terminal is drawn by rich; into a pipe it is plain aligned text, because importing rich takes longer than most commands.
What does not fit is left to the terminal, which breaks lines and loses nothing: a table drawn to its width folds
addresses and drops columns. Names and values come from the network, so every form shows control characters as escapes.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

import click

from rocketcore.admin.timestamps import timestamp
from rocketcore.cli.shell.options import current
from rocketcore.printable import printable, printable_json

__all__ = [
    "Column",
    "cell",
    "check_stream_form",
    "counted",
    "counted_are",
    "discard",
    "json_text",
    "print_line",
    "progress",
    "reader_may_leave",
    "run_without_stdout",
    "show_line",
    "show_object",
    "show_rows",
    "show_title",
    "tell",
    "timestamp",
    "width",
]

UNKNOWN = "–"
_GAP = "  "
Row = Mapping[str, Any]

_FORMULA = ("=", "+", "-", "@")
"""How a cell begins that a spreadsheet takes for a formula and runs."""


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
        return cell(value) if self.text is None else self.text(value)

    @property
    def heading(self) -> str:
        return self.title or self.key.replace("_", " ").upper()


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Print to a reader that may have enough before the end: the exit code of the command holds all the same."""
    try:
        yield
    except BrokenPipeError:
        discard(sys.stdout)


def show_rows(
    rows: Iterable[Row], shown: Sequence[Column | str], *, wide: Sequence[str] = (), name: str | None = None
) -> bool:
    """Print a list of like things; return whether anybody reads stdout.

    shown  its columns; of one that has nothing special about it the key
    wide   keys of columns behind them that are left out of plain tables
    name   key that ``-o name`` prints, the first column's by default
    """
    with reader_may_leave():
        _print_rows(rows, shown, wide, name)
        sys.stdout.flush()
        return True
    return False


def _print_rows(rows: Iterable[Row], shown: Sequence[Column | str], wide: Sequence[str], name: str | None) -> None:
    columns = [Column(column) if isinstance(column, str) else column for column in shown]
    columns += [Column(key, wide=True) for key in wide]
    output = current().output
    name = name or columns[0].key
    if output == "jsonl":
        for row in rows:
            print(json_text(row))
        return
    rows = list(rows)
    if output == "json":
        print(json_text(rows, indent=2))
    elif output == "yaml":
        print("\n".join(_yaml(rows, 0)) if rows else "[]")
    elif output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([column.key if column.text is None else column.heading for column in columns])
        writer.writerows([[_csv_cell(column, row) for column in columns] for row in rows])
    elif output == "name":
        for row in rows:
            print(printable(str(row[name])))
    else:
        _table([c for c in columns if output == "wide" or not c.wide], rows)


@reader_may_leave()
def show_object(value: Row, columns: Sequence[Column] | None = None, *, name: str | None = None) -> None:
    """Print one thing: a field a line, or an object in the form asked for; ``name`` as for ``show_rows``."""
    output = current().output
    if output in ("table", "wide"):
        columns = columns or [Column(key) for key in value]
        room = max((len(column.heading) for column in columns), default=0)
        for column in columns:
            print(f"{column.heading:<{room}}  {_shown(column, value)}".rstrip())
    elif output == "csv":
        show_rows([value], columns or [Column(key) for key in value])
    elif output == "name":
        print(printable(str(value[name or next(iter(value))])))
    elif output == "yaml":
        print("\n".join(_yaml(dict(value), 0)))
    else:
        print(json_text(value, indent=2 if output == "json" else None))


def show_title(text: str) -> None:
    """Print what stands above one of several tables."""
    with reader_may_leave():
        print(f"\n{text}:")


def show_line(value: Row, text: str) -> bool:
    """Print one item of a stream at once: ``text`` for people, an object a line for programs; see ``print_line``."""
    return print_line(text if current().output in ("table", "wide") else json_text(value))


def print_line(text: str) -> bool:
    """Print a line at once; returns whether anybody reads stdout."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard(sys.stdout)
        return False
    return True


def check_stream_form() -> None:
    """Refuse a form that a stream of items does not have."""
    output = current().output
    if output in ("yaml", "csv", "name"):
        raise click.UsageError(f"-o {output} needs a list: messages are printed as lines, or with -o json as objects")


def progress(text: str) -> None:
    """Tell people what goes on, on stderr, unless they asked for quiet."""
    if not current().quiet:
        tell(text)


def tell(text: str, end: str = "\n") -> None:
    """Write to stderr; what a command did does not fail because nobody can be told."""
    if not _fits(text, sys.stderr):  # a name of a file may have bytes that are no text
        encoding = sys.stderr.encoding or "utf-8"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(text, file=sys.stderr, end=end, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Lead a stream that cannot be written to nowhere: the interpreter's end tries once more to empty its buffer."""
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
    except (OSError, ValueError):  # it is no file
        return


def json_text(value: Any, indent: int | None = None, stream: TextIO | None = None) -> str:
    """Return JSON; in escapes what does something to a terminal, and all that a stream (stdout) cannot take."""
    text = printable_json(json.dumps(value, ensure_ascii=False, indent=indent))
    return text if _fits(text, stream or sys.stdout) else json.dumps(value, indent=indent)


def _fits(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def counted(number: int, thing: str) -> str:
    """Return a number with what it counts: ``1 message``, ``2 messages``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def counted_are(number: int, thing: str, things: str | None = None) -> str:
    """Return a number with what it counts and its verb: ``1 message is``, ``2 messages are``."""
    return f"1 {thing} is" if number == 1 else f"{number} {things or thing + 's'} are"


def width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _shown(column: Column, row: Row) -> str:
    text = column.cell(row)
    if text is None or text == UNKNOWN:
        return UNKNOWN if _fits(UNKNOWN, sys.stdout) else "-"
    text = printable(text)
    if not _fits(text, sys.stdout):  # in escapes already here, where columns are measured
        encoding = sys.stdout.encoding
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    return text


def _csv_cell(column: Column, row: Row) -> str:
    """Numbers without separators; empty where nothing is known, or a list has nothing; a text that is no formula."""
    value = row.get(column.key)
    if value is None or (column.text is None and value in ([], (), {})):
        return ""
    if isinstance(value, float):
        return json.dumps(value)
    text = printable(column.cell(row) or "")
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(cell, value)) or UNKNOWN
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={cell(item)}" for key, item in value.items()) or UNKNOWN
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return str(value)


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    cells = [[_shown(column, row) for column in columns] for row in rows]
    right = [bool(rows) and all(_is_number(row.get(column.key)) for row in rows) for column in columns]
    headings = [column.heading for column in columns]
    widths = [max(width(line[i]) for line in [headings, *cells]) for i in range(len(columns))]
    if sys.stdout.isatty():
        _draw(headings, cells, right, sum(widths) + len(_GAP) * (len(widths) - 1))
        return
    for line in [headings, *cells]:
        padded = []
        for text, room, numeric in zip(line, widths, right, strict=True):
            space = " " * (room - width(text))
            padded.append(space + text if numeric else text + space)
        print(_GAP.join(padded).rstrip())


def _draw(headings: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], room: int) -> None:
    """Draw a table as wide as it is: rich is told so, and takes neither names for emojis nor brackets for markup."""
    from rich.console import Console
    from rich.table import Table

    style = "" if os.environ.get("NO_COLOR") else "bold"
    table = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0), header_style=style)
    for heading, numeric in zip(headings, right, strict=True):
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=True)
    for line in cells:
        table.add_row(*line)
    Console(emoji=False, highlight=False, markup=False, width=room).print(table)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _yaml(value: Any, depth: int) -> list[str]:
    """Block style; scalars in JSON's form, which YAML reads as the same value."""
    pad = "  " * depth
    lines = []
    items: Iterable[tuple[str, Any]]
    if isinstance(value, Mapping):
        items = [(f"{json_text(key)}:", item) for key, item in value.items()]
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
            lines.append(f"{pad}{lead} {json_text(item)}")
    return lines


def run_without_stdout() -> None:
    """Lead stdout nowhere where the process was started without one; for servers, whose work is not what they print."""
    try:
        flags = fcntl.fcntl(sys.stdout.fileno(), fcntl.F_GETFL)
    except (OSError, ValueError):  # it is no file
        return
    if flags & os.O_ACCMODE == os.O_RDONLY:  # which ``main`` opened in its place
        discard(sys.stdout)
