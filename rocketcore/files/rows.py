"""Rows of a file as messages: bodies of JSON, keys, tags.

ndjson, jsonl         a JSON value a line
json                  JSON values one after the other, whatever lines they take; of one array its elements
csv                   a row an object of texts
parquet, arrow, feather   a row an object; Arrow's file format or its stream

Of text also what is compressed as ``.gz`` or ``.zst``. JSON values are the texts that stand in the file. Members or
columns ``id`` and ``type`` are key and tag. The file is opened by this process, under the name that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import msgspec

from rocketcore.errors import ConfigError, MessageIllegal
from rocketcore.files.csv_rows import csv_rows
from rocketcore.files.faults import TextFault, unpacking_errors, unreadable
from rocketcore.files.json_text import JsonFault, Value, json_documents, json_value
from rocketcore.files.text import (
    HEAD_BYTES,
    decoded,
    decompressed,
    kind_of,
    suffixes_of,
)
from rocketcore.message import NAME_SEPARATOR, PROPERTY_SEPARATOR, Message
from rocketcore.printable import error_text, printable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Row", "read_rows"]

_MOST_CHARACTERS: Final = 1000
"""Of a key or a tag: all properties of a message have 32,767 bytes."""


class Row(NamedTuple):
    """A message of a file; its key is not yet known to be its own."""

    body: str
    key: str | None
    tag: str | None


def _check_known(path: Path) -> None:
    """Raise ConfigError for a file that is not there, or of an unknown kind."""
    if not path.is_file():
        raise ConfigError(f"file not found: {printable(str(path))}")
    suffix, compression = suffixes_of(path)
    if suffix in _TEXTS or (suffix in _TABLES and compression is None):
        return
    known = f"{', '.join(sorted((*_TEXTS, *_TABLES)))}, those of text also with .gz or .zst behind it"
    raise ConfigError(f"{_name(path)}: the demo reads {known}")


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file, in their order; keys are all there and all different, else they are row numbers.

    raises  ConfigError naming the file, and where in it is what cannot be read; or the extra that is missing
    """
    _check_known(path)
    suffix, compression = suffixes_of(path)
    try:
        with path.open("rb") as file:
            if suffix in _TABLES:
                rows = list(_table_rows(file, _TABLES[suffix]))
            else:
                rows = list(_text_rows(file, suffix, compression))
    except unpacking_errors() as error:
        raise ConfigError(f"{_name(path)}: it cannot be read: {error_text(error)}") from error
    except ConfigError as error:
        raise ConfigError(f"{_name(path)}: {error}") from error
    except TextFault as error:
        raise ConfigError(f"{_name(path)}: {error}") from None
    if not rows:
        raise ConfigError(f"{_name(path)} has no rows")
    if len({row.key for row in rows if row.key}) < len(rows):
        rows = [row._replace(key=str(number)) for number, row in enumerate(rows)]
    return rows


def _name(path: Path) -> str:
    return printable(path.name)


def _row(body: str, key: str | None, tag: str | None) -> Row:
    return Row(body, key if key and _can_be_key(key) else None, tag if tag and _can_be_tag(tag) else None)


def _can_be_key(text: str) -> bool:
    return len(text) <= _MOST_CHARACTERS and text.split() == [text] and _is_property(text)


def _can_be_tag(text: str) -> bool:
    try:
        Message("T", b"", tag=text)
    except MessageIllegal:
        return False
    return len(text) <= _MOST_CHARACTERS and _is_property(text)


def _is_property(text: str) -> bool:
    return not any(separator in text for separator in (NAME_SEPARATOR, PROPERTY_SEPARATOR)) and text.isprintable()


def _text_rows(file: BinaryIO, suffix: str, compression: str | None) -> Iterator[Row]:
    head = file.read(HEAD_BYTES)
    file.seek(0)
    found = kind_of(head)
    if found != compression:
        wanted = f"{suffix.lstrip('.')} that is compressed as {compression}" if compression else f"{suffix[1:]}, a text"
        raise ConfigError(f"it looks like {found or 'a text'}, and its name says {wanted}: name it as what it is")
    data = decompressed(file, compression).read()
    if (found := kind_of(data[:HEAD_BYTES])) is not None:
        raise ConfigError(f"it looks like {found}, and its name says {suffix[1:]}: name it as what it is")
    return _TEXTS[suffix](decoded(data))


def _json_row(text: str, value: Value) -> Row:
    members = value.content if isinstance(value.content, dict) else {}
    key, tag = members.get("id"), members.get("type")
    return _row(
        text[value.begin : value.end],
        key if isinstance(key, str) else None,
        tag if isinstance(tag, str) else None,
    )


def _line_rows(text: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip(" \t\r"):
            continue
        try:
            yield _json_row(line, json_value(line))
        except JsonFault as error:
            hint = "; a file of one array is read where it is called .json" if line.lstrip().startswith("[") else ""
            raise TextFault(f"{error.reason}{hint}", number, error.position + 1) from None


def _document_rows(text: str) -> Iterator[Row]:
    try:
        for value in json_documents(text):
            yield _json_row(text, value)
    except JsonFault as error:
        begin = text.rfind("\n", 0, error.position) + 1
        line = text.count("\n", 0, error.position) + 1
        raise TextFault(error.reason, line, error.position - begin + 1) from None


def _csv_rows(text: str) -> Iterator[Row]:
    names, rows = csv_rows(text)
    key, tag = _position(names, "id"), _position(names, "type")
    for row in rows:
        body = msgspec.json.encode(dict(zip(names, row, strict=True))).decode()
        yield _row(body, None if key is None else row[key], None if tag is None else row[tag])


def _position(names: list[str], wanted: str) -> int | None:
    """Return which column has a name, in these letters or, where none has, in others."""
    if wanted in names:
        return names.index(wanted)
    return next((number for number, name in enumerate(names) if name.lower() == wanted), None)


_TEXTS: Final[dict[str, Callable[[str], Iterator[Row]]]] = {
    ".ndjson": _line_rows,
    ".jsonl": _line_rows,
    ".json": _document_rows,
    ".csv": _csv_rows,
}
_TABLES: Final = {".parquet": "parquet", ".arrow": "arrow", ".arrows": "arrow", ".feather": "arrow"}


def _table_rows(file: BinaryIO, form: str) -> Iterator[Row]:
    head = file.read(HEAD_BYTES)
    file.seek(0)
    found = kind_of(head)
    if found is None or found.split()[0] != form:
        what = found or _kind_of_text(head)
        raise ConfigError(f"it looks like {what}, and its name says {form}: name it as what it is")
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{form} needs the extra: pip install 'rocketcore[arrow]'") from error
    behind = 0
    try:
        for batch in _batches(file, found):
            batch.validate(full=True)
            yield from _batch_rows(batch)
            behind += batch.num_rows
    except ConfigError as error:
        raise ConfigError(f"{error} (its batch begins with row {behind})" if behind else str(error)) from error
    except unreadable() as error:
        raise ConfigError(f"not a valid {form} file, or damaged after row {behind}: {error_text(error)}") from error


def _kind_of_text(head: bytes) -> str:
    if not head:
        return "an empty file"
    return "JSON" if head.lstrip()[:1] in (b"{", b"[") else "a text"


def _batches(file: BinaryIO, found: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if found == "parquet":
        yield from pq.ParquetFile(file).iter_batches()
    elif found == "arrow":
        source = pa.ipc.open_file(file)
        yield from map(source.get_batch, range(source.num_record_batches))
    else:
        yield from pa.ipc.open_stream(file)


def _batch_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    from rocketcore.files.arrow_json import json_column, key_text

    names = batch.schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two columns are called {twice!r}: give each its own name")
    columns: list[list[Any]] = [json_column(column, name) for name, column in zip(names, batch.columns, strict=True)]
    key, tag = _position(names, "id"), _position(names, "type")
    encode = msgspec.json.encode
    for row in zip(*columns, strict=True):
        yield _row(
            encode(dict(zip(names, row, strict=True))).decode(),
            None if key is None else key_text(row[key]),
            None if tag is None else key_text(row[tag]),
        )
