"""Columns of Arrow as values of JSON, exactly: no type is guessed and none is rounded.

Whole numbers of any width, booleans and texts are themselves. A decimal is a number with all its digits, a float the
shortest number that reads as the same, or the text NaN, Infinity or -Infinity. Times are RFC 3339, in UTC where they
have a zone, with as many digits as their unit has; a duration is ISO 8601 (``PT1.5S``). Bytes are base64. Lists,
structures and maps are arrays and objects. Any other type is refused with its column.
"""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import numpy
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from rocketcore.errors import ConfigError

__all__ = ["json_column", "key_text"]

_UNIT_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def json_column(array: pa.Array, name: str) -> list[Any]:
    """Return the values of a column for msgspec's JSON encoder; null is None.

    name    of the column, for errors
    raises  ConfigError for a type that has no JSON, and for a value that Arrow cannot write
    """
    convert = next((convert for fits, convert in _CONVERTERS if fits(array.type)), None)
    if convert is None:
        raise ConfigError(
            f"column {name!r} is {array.type}, which is not read: have it written as text, or leave it out of the file"
        )
    return convert(array, name)


def key_text(value: Any) -> str | None:
    """Return a value of a column as a key or tag: texts and numbers; None for any other."""
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode()
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    return None


def _plain(array: pa.Array, name: str) -> list[Any]:
    return list(array.to_pylist())


def _null(array: pa.Array, name: str) -> list[Any]:
    return [None] * len(array)


def _floats(array: pa.Array, name: str) -> list[Any]:
    values = array.to_pylist()
    if not types.is_float64(array.type):
        kind = numpy.float16 if types.is_float16(array.type) else numpy.float32
        values = [None if value is None else float(str(kind(value))) for value in values]
    return [value if value is None or math.isfinite(value) else _odd_float(value) for value in values]


def _odd_float(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimals(array: pa.Array, name: str) -> list[Any]:
    return [None if value is None else msgspec.Raw(f"{value:f}".encode()) for value in array.to_pylist()]


def _bytes(array: pa.Array, name: str) -> list[Any]:
    return [None if value is None else base64.b64encode(value).decode() for value in array.to_pylist()]


def _dates_and_times(array: pa.Array, name: str) -> list[Any]:
    zone = ""
    if types.is_timestamp(array.type) and array.type.tz is not None:
        array, zone = array.cast(pa.timestamp(array.type.unit)), "Z"
    texts = array.cast(pa.string()).to_pylist()
    for row, text in enumerate(texts):
        if text is not None and text.startswith("<"):  # as Arrow writes what is beyond the years that it knows
            raise ConfigError(f"column {name!r} is {array.type}: row {row} of its batch is {text.strip('<>')}")
    return [None if text is None else text.replace(" ", "T") + zone for text in texts]


def _durations(array: pa.Array, name: str) -> list[Any]:
    digits = _UNIT_DIGITS[array.type.unit]
    return [None if count is None else _duration(count, digits) for count in array.cast(pa.int64()).to_pylist()]


def _duration(count: int, digits: int) -> str:
    whole, part = divmod(abs(count), 10**digits)
    fraction = f".{part:0{digits}}".rstrip("0").rstrip(".") if digits else ""
    return f"{'-' if count < 0 else ''}PT{whole}{fraction}S"


def _dictionary(array: pa.DictionaryArray, name: str) -> list[Any]:
    values = json_column(array.dictionary, name)
    return [None if index is None else values[index] for index in array.indices.to_pylist()]


def _lists(array: pa.Array, name: str) -> list[Any]:
    edges = array.offsets.to_pylist()
    values = json_column(array.values.slice(edges[0], edges[-1] - edges[0]), name) if edges else []
    parts = [values[begin - edges[0] : end - edges[0]] for begin, end in itertools.pairwise(edges)]
    return _with_nulls(array, parts)


def _single_lists(array: pa.Array, name: str) -> list[Any]:
    """Lists of a fixed length, and views, whose rows may lie anywhere."""
    return [json_column(row.values, name) if row.is_valid else None for row in array]


def _structures(array: pa.StructArray, name: str) -> list[Any]:
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        raise ConfigError(f"column {name!r} is {array.type}, with two fields of one name: give each its own")
    if not names:
        return _with_nulls(array, [{}] * len(array))
    parts = array.flatten()
    fields = [json_column(part, f"{name}.{each}") for each, part in zip(names, parts, strict=True)]
    return _with_nulls(array, [dict(zip(names, row, strict=True)) for row in zip(*fields, strict=True)])


def _maps(array: pa.MapArray, name: str) -> list[Any]:
    edges = array.offsets.to_pylist()
    begin, size = (edges[0], edges[-1] - edges[0]) if edges else (0, 0)
    keys = list(map(key_text, json_column(array.keys.slice(begin, size), name)))
    items = json_column(array.items.slice(begin, size), name)
    if None in keys:
        raise ConfigError(f"column {name!r} is {array.type}: its keys must be text or numbers")
    rows: list[dict[str | None, Any]] = []
    for first, end in itertools.pairwise(edges):
        row = dict(zip(keys[first - begin : end - begin], items[first - begin : end - begin], strict=True))
        if len(row) < end - first:
            raise ConfigError(f"column {name!r} is {array.type}: row {len(rows)} of its batch has a key twice")
        rows.append(row)
    return _with_nulls(array, rows)


def _with_nulls(array: pa.Array, values: Iterable[Any]) -> list[Any]:
    valid = array.is_valid().to_pylist()
    return [value if there else None for there, value in zip(valid, values, strict=True)]


def _read_storage(array: pa.ExtensionArray, name: str) -> list[Any]:
    """Values of an extension as they are stored: what it adds to them is not known here, but for UUIDs."""
    values = json_column(array.storage, name)
    if array.type.extension_name != "arrow.uuid":
        return values
    from uuid import UUID

    return [None if value is None else str(UUID(bytes=value)) for value in array.storage.to_pylist()]


def _run_ends(array: pa.Array, name: str) -> list[Any]:
    return json_column(pc.run_end_decode(array), name)


def _named(*names: str) -> Callable[[pa.DataType], bool]:
    """Return what tells types by pyarrow's functions; one that this pyarrow does not have is of no type of its own."""
    known = [getattr(types, f"is_{name}") for name in names if hasattr(types, f"is_{name}")]
    return lambda kind: any(fits(kind) for fits in known)


_CONVERTERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, str], list[Any]]], ...]] = (
    (lambda kind: isinstance(kind, pa.BaseExtensionType), _read_storage),
    (_named("integer", "boolean", "string", "large_string", "string_view"), _plain),
    (_named("floating"), _floats),
    (_named("null"), _null),
    (_named("decimal"), _decimals),
    (_named("binary", "large_binary", "fixed_size_binary", "binary_view"), _bytes),
    (_named("date", "time", "timestamp"), _dates_and_times),
    (_named("duration"), _durations),
    (_named("dictionary"), _dictionary),
    (_named("run_end_encoded"), _run_ends),
    (_named("struct"), _structures),
    (_named("map"), _maps),
    (_named("list", "large_list"), _lists),
    (_named("fixed_size_list", "list_view", "large_list_view"), _single_lists),
)
