"""Arrow columns of messages to send, brought to the few shapes that the kernel reads.

All work is Arrow's own compute functions over whole columns. Errors name the first row at fault, counted from the first
row that its sender got.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy
import numpy.typing
import pyarrow as pa
import pyarrow.compute as pc

from rocketcore._fast.arrow_in import check_property_texts
from rocketcore.codes import RESERVED_PROPERTIES
from rocketcore.errors import ConfigError, MessageIllegal
from rocketcore.message import KEY_SEPARATOR, NAME_SEPARATOR, PROPERTY_SEPARATOR, SHARDING_KEY

__all__ = ["Codes", "Columns", "Rows", "codes_of", "copied_columns", "message_columns", "refuse_rows", "taken"]

Columns: TypeAlias = dict[str, pa.Array]
"""Name → array; all of one length."""

Codes: TypeAlias = numpy.typing.NDArray[numpy.int64]
"""For each row a position in a list, -1 for none of it."""

Rows: TypeAlias = numpy.typing.NDArray[numpy.int64] | None
"""Positions within the columns; None: all of them."""

_RESERVED: Final = tuple(name.encode() for name in sorted(RESERVED_PROPERTIES))
_SEPARATORS: Final = f"[{NAME_SEPARATOR}{PROPERTY_SEPARATOR}]"
_TEXT_COLUMNS: Final = ("topic", "tags", "shardingKey", "brokerName", "msgId")
_NUMBER_COLUMNS: Final = ("queueId", "flag")
_READ_TEXTS: Final = frozenset({pa.string().id, pa.large_string().id})
_READ_BINARY: Final = _READ_TEXTS | {pa.binary().id, pa.large_binary().id}
"""Types that the kernel reads, by their numbers: to ask a function for each costs a column as much as all else."""


def message_columns(batch: pa.RecordBatch, first_row: int, names: Sequence[str] | None = None) -> Columns:
    """Return the columns of a record batch as the sender wants them.

    names  what each column means to a message; None: what it is called

    ``body`` is binary or string, as it came; ``keys`` a string of keys with spaces between them; ``properties`` a
    property string, with the sharding key in it; the others are strings and int64.

    raises  ConfigError for a column that a message does not have or that has the wrong type; MessageIllegal for a row
    """
    columns: Columns = {}
    for name, array in zip(names or batch.schema.names, batch.columns, strict=True):
        if name == "body":
            columns[name] = _plain(array, name, binary=True)
        elif name in _TEXT_COLUMNS:
            columns[name] = _plain(array, name)
        elif name in _NUMBER_COLUMNS:
            if not pa.types.is_integer(array.type):
                raise ConfigError(f"column {name} is {array.type}, a whole number is needed")
            columns[name] = array.cast(pa.int64())
        elif name == "keys":
            columns[name] = _joined_keys(array, first_row)
        elif name == "properties":
            columns[name] = _property_texts(array, first_row)
        else:
            raise ConfigError(f"messages have no column {name!r}")
    if "body" not in columns:
        raise ConfigError("rows need the column body")
    if "brokerName" in columns and "queueId" in columns:
        _check_places(columns["brokerName"], columns["queueId"], first_row)
    if "shardingKey" in columns:
        sharding = columns["shardingKey"]
        refuse_rows(pc.match_substring_regex(sharding, _SEPARATORS), first_row, "the sharding key holds a separator")
        # Arrow's joins take texts of one type only.
        text = pc.binary_join_element_wise(
            SHARDING_KEY + NAME_SEPARATOR, sharding.cast(pa.string()), PROPERTY_SEPARATOR, ""
        )
        columns["properties"] = _appended(columns.get("properties"), text)
    return columns


def refuse_rows(faulty: pa.Array, first_row: int, reason: str) -> None:
    """Raise MessageIllegal for the first row that is true; nulls are fine."""
    index = pc.index(faulty, True).as_py()
    if index >= 0:
        raise MessageIllegal(f"row {first_row + index}: {reason}")


def taken(array: pa.Array, rows: Rows) -> pa.Array:
    """Return the array at the given positions."""
    return array if rows is None else array.take(pa.array(rows))


def copied_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return read messages as columns to send: without the properties that RocketMQ itself sets.

    A message's group, which is one of its properties, becomes the column ``shardingKey`` where there is none. Where
    ``properties`` is no map it stays as it is.
    """
    index = batch.schema.get_field_index("properties")
    if index < 0 or not pa.types.is_map(batch.column(index).type):
        return batch
    properties = batch.column(index)
    groups = pc.map_lookup(properties, pa.scalar(SHARDING_KEY, properties.type.key_type), "first")
    if groups.null_count == len(groups) or "shardingKey" in batch.schema.names:
        return batch.set_column(index, "properties", _without_reserved(properties))
    batch = batch.set_column(index, "properties", _without_reserved(properties, SHARDING_KEY))
    return batch.append_column("shardingKey", groups)


def _without_reserved(properties: pa.Array, *others: str) -> pa.Array:
    """Return a map column without the entries that RocketMQ itself sets, and others."""
    keys, items, offsets = _entries(properties)
    kept = pc.invert(pc.is_in(keys, pa.array(sorted({*RESERVED_PROPERTIES, *others}), keys.type)))
    before = numpy.append([0], numpy.cumsum(kept.to_numpy(zero_copy_only=False))).astype(numpy.int32)
    no_map = numpy.append(properties.is_null().to_numpy(zero_copy_only=False), [False])
    edges = pa.array(before[offsets.to_numpy()], mask=no_map)
    return pa.MapArray.from_arrays(edges, keys.filter(kept), items.filter(kept))


def codes_of(encoded: pa.DictionaryArray) -> Codes:
    """Return the dictionary positions of an encoded column, -1 for null."""
    codes: Codes = pc.fill_null(encoded.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    return codes


def _check_places(brokers: pa.Array, queue_ids: pa.Array, first_row: int) -> None:
    """Refuse half a queue, which would be any queue."""
    no_broker, no_queue = brokers.is_null(), queue_ids.is_null()
    refuse_rows(pc.and_not(no_broker, no_queue), first_row, "brokerName is null, but queueId is not")
    refuse_rows(pc.and_not(no_queue, no_broker), first_row, "queueId is null, but brokerName is not")
    refuse_rows(pc.less(queue_ids, 0), first_row, "the queue id is negative")


def _plain(array: pa.Array, name: str, *, binary: bool = False, number: bool = False) -> pa.Array:
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if number and pa.types.is_integer(kind):
        return array.cast(pa.string())
    if kind.id in (_READ_BINARY if binary else _READ_TEXTS):
        return array
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if binary and (pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind)):
        return array.cast(pa.large_binary())
    raise ConfigError(f"column {name} is {array.type}, {'binary or string' if binary else 'string'} is needed")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _joined_keys(array: pa.Array, first_row: int) -> pa.Array:
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        return _plain(array, "keys", number=True)
    if not _is_text(array.type.value_type) and not pa.types.is_integer(array.type.value_type):
        raise ConfigError(f"column keys is {array.type}, string or a list of strings is needed, or whole numbers")
    # The cast makes the elements nullable and plain strings: binary_join takes no other lists, and Spark's say that
    # theirs are never null, and may be large.
    lists = array.cast(pa.list_(pa.string()))
    joined = pc.binary_join(lists, KEY_SEPARATOR)
    refuse_rows(pc.and_(array.is_valid(), joined.is_null()), first_row, "a key is null")
    wrong = pc.index(pc.match_substring_regex(lists.flatten(), r"^$|\s"), True).as_py()
    if wrong >= 0:
        row = pc.list_parent_indices(lists)[wrong].as_py()
        raise MessageIllegal(f"row {first_row + row}: a key is empty, or holds white space")
    return pc.if_else(pc.equal(joined, ""), pa.scalar(None, joined.type), joined)


def _property_texts(array: pa.Array, first_row: int) -> pa.Array:
    """Return a map column as property strings; a string column has to hold such strings already."""
    if not pa.types.is_map(array.type):
        texts = _plain(array, "properties")
        check_property_texts(texts, _RESERVED, first_row)
        return texts
    if not all(map(_is_text, (array.type.key_type, array.type.item_type))):
        raise ConfigError(f"column properties is {array.type}, map<string, string> is needed")
    keys, items, offsets = _entries(array)
    # Large strings are cast: Arrow's joins take no others within lists.
    keys, items = keys.cast(pa.string()), items.cast(pa.string())
    _check_entries(keys, items, offsets, first_row)
    entries = pc.binary_join_element_wise(keys, items, NAME_SEPARATOR)
    lists = pa.ListArray.from_arrays(offsets, entries)
    texts = pc.binary_join(lists, PROPERTY_SEPARATOR)
    texts = pc.if_else(pc.equal(texts, ""), "", pc.binary_join_element_wise(texts, PROPERTY_SEPARATOR, ""))
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, texts.type))


def _entries(array: pa.MapArray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the keys and the items of a map column, and where those of each row begin; a slice has all of them."""
    keys, items, offsets = array.keys, array.items, array.offsets
    start, end = offsets[0].as_py(), offsets[-1].as_py()
    if len(keys) != end - start:
        keys, items = keys.slice(start, end - start), items.slice(start, end - start)
    return keys, items, pc.subtract(offsets, start)


def _check_entries(keys: pa.Array, items: pa.Array, offsets: pa.Array, first_row: int) -> None:
    problems: list[tuple[Any, str]] = [
        (pc.is_in(keys, pa.array(sorted(RESERVED_PROPERTIES))), "property {!r} is reserved by RocketMQ"),
        (pc.equal(keys, ""), "a property has no name"),
        (pc.or_(pc.is_null(items), pc.equal(pc.fill_null(items, ""), "")), "property {!r} has no value"),
        (pc.match_substring_regex(keys, _SEPARATORS), "property name {!r} holds a separator (U+0001 or U+0002)"),
        (pc.match_substring_regex(items, _SEPARATORS), "property {!r} holds a separator (U+0001 or U+0002)"),
    ]
    for faulty, reason in problems:
        index = pc.index(faulty, True).as_py()
        if index >= 0:
            row = int(numpy.searchsorted(offsets.to_numpy(), index, side="right")) - 1
            raise MessageIllegal(f"row {first_row + row}: {reason.format(keys[index].as_py())}")


def _appended(properties: pa.Array | None, text: pa.Array) -> pa.Array:
    """Join two property strings row by row; either may be null."""
    if properties is None:
        return text
    complete = pc.or_(pc.ends_with(properties, PROPERTY_SEPARATOR), pc.equal(properties, ""))
    closed = pc.if_else(complete, properties, pc.binary_join_element_wise(properties, PROPERTY_SEPARATOR, ""))
    both = pc.binary_join_element_wise(pc.fill_null(closed, ""), pc.fill_null(text, ""), "")
    return pc.if_else(pc.and_(pc.is_null(properties), pc.is_null(text)), pa.scalar(None, both.type), both)
