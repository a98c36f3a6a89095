"""docs/spark-options.md against the source: every option of the source and the sink, and every column.

``python -m tests.spark.test_options_page`` writes its tables anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field, fields
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, MapType

from rocketcore.client.arrow_batches import DEFAULT_COLUMNS
from rocketcore.spark import option_texts, schema
from rocketcore.spark.options import ConnectionOptions, ReadOptions, SinkOptions, SourceOptions, StreamSourceOptions
from tests.fixtures.pages import PAGES, table_of, write_tables

PAGE = PAGES / "spark-options.md"
TEST = "tests.spark.test_options_page"


def default_text(item: Field[Any]) -> str:
    """Return a default as one would write it."""
    value = item.default
    if value in (None, ()):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if item.metadata["parse"] is option_texts.read_millis:
        return f"`{round(value * 1000)}`"  # type: ignore[operator]
    if item.metadata["parse"] is option_texts.read_size:
        return f"`{value >> 20}m`"  # type: ignore[operator]
    return f"`{value}`"


def options_table(cls: type[ConnectionOptions], shared: type[ConnectionOptions] | None = None) -> str:
    """Return the options that a class has beyond those that it shares."""
    left_out = {item.name for item in fields(shared)} if shared is not None else set()
    lines = ["| option | default | |", "|---|---|---|"]
    for item in fields(cls):
        if item.name not in left_out:
            names = ", ".join(f"`{name}`" for name in (item.metadata["option"], *item.metadata["aliases"]))
            text = item.metadata["help"].replace("|", "\\|")
            lines.append(f"| {names} | {default_text(item)} | {text} |")
    return "\n".join(lines) + "\n"


def kinds(types: Iterable[Any]) -> str:
    names = {ArrayType: "array<string>", MapType: "map<string,string>"}
    return " or ".join(names[kind] if kind in names else kind().simpleString() for kind in types)


def read_columns() -> str:
    lines = ["| column | type | there |", "|---|---|---|"]
    for name, kind in schema.READ_COLUMNS.items():
        there = "always" if name in DEFAULT_COLUMNS else "`includeHosts`"
        there = "`includeProperties`" if name == "properties" else there
        lines.append(f"| `{name}` | {kind.simpleString()} | {there} |")
    return "\n".join(lines) + "\n"


def written_columns() -> str:
    lines = ["| column | type |", "|---|---|"]
    lines += [f"| `{name}` | {kinds(types)} |" for name, types in schema._WRITE_TYPES.items()]
    return "\n".join(lines) + "\n"


def tables() -> dict[str, str]:
    return {
        "options of both": options_table(ConnectionOptions),
        "options of reads": options_table(ReadOptions, ConnectionOptions),
        "options of batch reads": options_table(SourceOptions, ReadOptions),
        "options of streaming reads": options_table(StreamSourceOptions, ReadOptions),
        "options of writes": options_table(SinkOptions, ConnectionOptions),
        "columns of a read": read_columns(),
        "columns of a write": written_columns(),
    }


@pytest.mark.parametrize("name", list(tables()))
def test_the_tables_say_what_the_source_says(name: str) -> None:
    assert table_of(PAGE, name, TEST) == tables()[name], f"python -m {TEST} writes it anew"


if __name__ == "__main__":
    write_tables(PAGE, tables(), TEST)
