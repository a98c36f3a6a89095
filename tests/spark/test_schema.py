"""Schemas of the source and the sink."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from rocketcore.client.arrow_batches import COLUMNS, DEFAULT_COLUMNS
from rocketcore.errors import ConfigError
from rocketcore.spark.options import SinkOptions
from rocketcore.spark.schema import READ_COLUMNS, check_read_schema, check_write_schema, read_schema

TYPES: dict[str, DataType] = {
    "array<int>": ArrayType(IntegerType()),
    "array<string>": ArrayType(StringType()),
    "bigint": LongType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "map<string,int>": MapType(StringType(), IntegerType()),
    "map<string,string>": MapType(StringType(), StringType()),
    "smallint": ShortType(),
    "string": StringType(),
}


def ddl(text: str) -> StructType:
    """Return the schema of a column list; Spark's own reader of such texts needs a running JVM."""
    schema = StructType()
    for column in text.split(", "):
        name, kind = column.split(" ")
        schema.add(name, TYPES[kind])
    return schema


def test_read_schema() -> None:
    assert tuple(read_schema(False, False).fieldNames()) == DEFAULT_COLUMNS
    assert read_schema(True, False).fieldNames()[10:] == ["properties"]
    assert read_schema(False, True).fieldNames()[10:] == [
        "bornHost",
        "storeHost",
        "flag",
        "sysFlag",
        "reconsumeTimes",
        "commitLogOffset",
        "storeSize",
    ]
    assert read_schema(True, True).fieldNames() == list(READ_COLUMNS)


def test_record_batches_have_the_schema_that_spark_expects() -> None:
    """Spark compares the whole Arrow schema, and refuses a batch that differs in anything."""
    # PySpark 4.1 has no parameter for the time zone, which is UTC.
    given: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    assert to_arrow_schema(read_schema(True, True), **given).equals(pyarrow.schema(list(COLUMNS.items())))


def test_a_schema_of_the_user_is_a_projection() -> None:
    assert check_read_schema(ddl("body binary, queueOffset bigint")) == ("body", "queueOffset")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [("value binary", "a read has no column 'value'"), ("body string", "column body is read as binary, not as string")],
)
def test_read_schema_refuses(schema: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_read_schema(ddl(schema))


@pytest.mark.parametrize(
    "schema",
    [
        "body binary",
        "body string",
        "body string, tags string, keys string",
        "body string, keys array<string>",
        "body string, keys bigint",
        "body string, properties map<string,string>",
        "body string, properties string",
        "body string, flag smallint",
        "body string, brokerName string, queueId int",
        "body string, shardingKey string, msgId string",
    ],
)
def test_write_schema_takes(schema: str) -> None:
    check_write_schema(ddl(schema), SinkOptions(topic="T"))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("tags string", "needs the column body"),
        ("body int", "column body is int, a write takes binary or string"),
        ("body string, value string", "a write has no column 'value'"),
        ("body string, keys array<int>", "column keys is array<int>, a write takes string or byte or short or"),
        ("body string, properties map<string,int>", r"a write takes string or map<string,string>"),
        ("body string, topic string", "the option topic or the column topic, not both"),
        ("body string, tags string", "the option tags or the column tags, not both"),
        ("body string, queueId int", "needs the column brokerName"),
        ("body string, brokerName string", "needs the column queueId"),
        ("body string, delayTimeLevel int", "delayed messages are not sent in batches"),
        ("body string, body string", "occurs twice"),
    ],
)
def test_write_schema_refuses(schema: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_write_schema(ddl(schema), SinkOptions(topic="T", tags="all"))
    assert reason in str(refused.value)


def test_write_schema_needs_a_topic_and_a_key_to_hash() -> None:
    with pytest.raises(ConfigError, match="option topic or the column topic"):
        check_write_schema(ddl("body string"), SinkOptions())
    with pytest.raises(ConfigError, match="queueSelector=hash needs the column shardingKey"):
        check_write_schema(ddl("body string"), SinkOptions(topic="T", queue_selector="hash"))
    read = SinkOptions(topic="T", queue_selector="hash", ignore_system_columns=True)
    assert check_write_schema(ddl("body string, properties map<string,string>"), read) == ("body", "properties")
    for schema in ("body string", "body string, properties string"):
        with pytest.raises(ConfigError, match="shardingKey, or messages that were read, whose properties are a map"):
            check_write_schema(ddl(schema), read)
    with pytest.raises(ConfigError, match="queueSelector=hash or the columns brokerName and queueId"):
        check_write_schema(
            ddl("body string, shardingKey string, brokerName string, queueId int"),
            SinkOptions(topic="T", queue_selector="hash"),
        )


def test_names_are_compared_without_case() -> None:
    assert check_read_schema(ddl("BODY binary, queueid int")) == ("body", "queueId")
    with pytest.raises(ConfigError, match="column Body occurs twice"):
        check_read_schema(ddl("body binary, Body binary"))
    assert check_write_schema(ddl("Body string, KEYS string"), SinkOptions(topic="T")) == ("body", "keys")
    with pytest.raises(ConfigError, match="occurs twice"):
        check_write_schema(ddl("Body string, body string"), SinkOptions(topic="T"))


def test_columns_that_are_never_null() -> None:
    """A schema taken from a table may say so; messages always have these columns, but for two."""
    assert check_read_schema(StructType().add("body", BinaryType(), nullable=False)) == ("body",)
    with pytest.raises(ConfigError, match="column tags is declared as never null"):
        check_read_schema(StructType().add("tags", StringType(), nullable=False))


def test_a_whole_read_can_be_written() -> None:
    whole = read_schema(False, False)
    with pytest.raises(ConfigError, match="queueOffset, bornTimestamp, storeTimestamp can be read, not written: drop"):
        check_write_schema(whole, SinkOptions())
    roles = check_write_schema(whole, SinkOptions(topic="T", ignore_system_columns=True))
    assert roles == (None, None, None, None, "msgId", "tags", "keys", "body", None, None)
    roles = check_write_schema(whole, SinkOptions(ignore_system_columns=True))
    assert roles[0] == "topic"
