"""Columns that the source yields and that the sink takes, and the checks of a user's schema against them.

Everything here runs in the driver, before a task starts. Rows are checked by the kernel, which names the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from rocketcore.client.arrow_batches import COLUMNS, DEFAULT_COLUMNS
from rocketcore.client.arrow_roles import is_of_read, is_system_column, spelled
from rocketcore.errors import ConfigError
from rocketcore.spark.options import SinkOptions

__all__ = ["READ_COLUMNS", "check_read_schema", "check_write_schema", "read_schema"]

READ_COLUMNS: Final[Mapping[str, DataType]] = {name: from_arrow_type(kind) for name, kind in COLUMNS.items()}
"""Every column that a read can yield, in order; ``properties`` and what follows it are asked for by options."""

_TEXT: Final = (StringType,)
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_WRITE_TYPES: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "body": (BinaryType, StringType),
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": (StringType, *_WHOLE, ArrayType),
    "properties": (StringType, MapType),
    "shardingKey": _TEXT,
    "queueId": _WHOLE,
    "brokerName": _TEXT,
    "flag": _WHOLE,
    "msgId": _TEXT,
}
_SINGLE_SENDS: Final = ("delayTimeLevel", "deliverTimestamp")
_NULLABLE: Final = ("tags", "keys")


def read_schema(include_properties: bool, include_hosts: bool) -> StructType:
    """Return the schema of a read: the ten columns of every message, and those that options add."""
    schema = StructType()
    for name, kind in READ_COLUMNS.items():
        wanted = name in DEFAULT_COLUMNS or (include_properties if name == "properties" else include_hosts)
        if wanted:
            schema.add(name, kind)
    return schema


def check_read_schema(schema: StructType) -> tuple[str, ...]:
    """Return the columns of a user's ``.schema(…)``, which serves as a projection, in its order and in our spelling.

    Names are compared without case, as Spark does. A column may be declared as never null if a message always has it.

    raises  ConfigError for a column that a message does not have and for a type that it is not read as
    """
    columns = []
    for field in schema.fields:
        name = spelled(field.name, READ_COLUMNS)
        if name is None:
            raise ConfigError(f"a read has no column {field.name!r}; there are {', '.join(READ_COLUMNS)}")
        expected = READ_COLUMNS[name]
        if field.dataType != expected:
            raise ConfigError(
                f"column {field.name} is read as {expected.simpleString()}, not as {field.dataType.simpleString()}"
            )
        if not field.nullable and name in _NULLABLE:
            raise ConfigError(f"column {field.name} is declared as never null: a message may have none")
        if name in columns:
            raise ConfigError(f"column {field.name} occurs twice")
        columns.append(name)
    return tuple(columns)


def check_write_schema(schema: StructType, options: SinkOptions) -> tuple[str | None, ...]:
    """Refuse rows that cannot become messages, before the first task.

    returns  for each column what it means to a message, None where it is left out (``ignoreSystemColumns``)
    raises   ConfigError naming the column: unknown, of the wrong type, missing, given twice, or without effect
    """
    roles = _roles(schema, options)
    for field, role in zip(schema.fields, roles, strict=True):
        if role is None:
            continue
        allowed = _WRITE_TYPES[role]
        if not isinstance(field.dataType, allowed) or not _holds_text(field.dataType):
            wanted = " or ".join(_type_name(kind) for kind in allowed)
            raise ConfigError(f"column {field.name} is {field.dataType.simpleString()}, a write takes {wanted}")
    names = {role for role in roles if role is not None}
    if len(names) < len(roles) - roles.count(None):
        raise ConfigError("a column name occurs twice")
    with_map = "properties" in names and isinstance(schema.fields[roles.index("properties")].dataType, MapType)
    _check_roles(names, options, with_map)
    return roles


def _roles(schema: StructType, options: SinkOptions) -> tuple[str | None, ...]:
    roles: list[str | None] = []
    of_read = [field.name for field in schema.fields if is_of_read(field.name)]
    for field in schema.fields:
        if spelled(field.name, _SINGLE_SENDS):
            raise ConfigError(f"column {field.name}: delayed messages are not sent in batches; the sink has none yet")
        role = spelled(field.name, _WRITE_TYPES)
        if options.ignore_system_columns and is_system_column(field.name, topic_named=options.topic is not None):
            roles.append(None)
            continue
        if role is None:
            text = f"a write has no column {field.name!r}; there are {', '.join(_WRITE_TYPES)}"
            if field.name in of_read:
                text = f"{', '.join(of_read)} can be read, not written: drop them, or give ignoreSystemColumns=true"
            raise ConfigError(text)
        roles.append(role)
    return tuple(roles)


def _check_roles(names: set[str], options: SinkOptions, with_map: bool) -> None:
    """Refuse columns that do not go together; ``with_map``: properties are among them, as a map."""
    if "body" not in names:
        raise ConfigError("a write needs the column body (binary or string)")
    if options.topic is None and "topic" not in names:
        raise ConfigError("a write needs the option topic or the column topic")
    for name, constant in (("topic", options.topic), ("tags", options.tags)):
        if constant is not None and name in names:
            raise ConfigError(f"give the option {name} or the column {name}, not both")
    if "brokerName" in names and "queueId" not in names:
        raise ConfigError("column brokerName needs the column queueId")
    if "queueId" in names and "brokerName" not in names:
        raise ConfigError("column queueId needs the column brokerName: a queue is a broker and a number")
    # Messages that were read have their group among their properties.
    has_groups = "shardingKey" in names or (options.ignore_system_columns and with_map)
    if options.queue_selector == "hash" and not has_groups:
        text = "queueSelector=hash needs the column shardingKey"
        if options.ignore_system_columns:
            text += ", or messages that were read, whose properties are a map"
        raise ConfigError(text)
    if options.queue_selector == "hash" and "queueId" in names:
        raise ConfigError("give queueSelector=hash or the columns brokerName and queueId, not both")


def _holds_text(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return isinstance(kind.elementType, StringType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    return True


def _type_name(kind: type[DataType]) -> str:
    if kind is ArrayType:
        return "array<string>"
    if kind is MapType:
        return "map<string,string>"
    return kind.typeName()
