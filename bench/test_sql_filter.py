"""SQL92 expressions over the properties of 10,000 messages, about 80 bytes each: kernel and reference."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from rocketcore._fast.commit_log import COLUMNS, PROPERTIES_LENGTH, PROPERTIES_START
from rocketcore._fast.properties import decode_properties
from rocketcore.filter_sql import compile_sql
from rocketcore.table import Table
from tests.reference import sql_filter as reference

COUNT = 10_000
TEXTS = [
    (
        f"UNIQ_KEY\x010A0000010A2B18B4AAC2{i:012d}\x02WAIT\x01true\x02TAGS\x01t{i % 7}\x02"
        f"price\x01{i % 1000}\x02region\x01{'eu' if i % 3 else 'us'}\x02"
    ).encode()
    for i in range(COUNT)
]
EXPRESSIONS = {
    "two-comparisons": "price > 500 AND region = 'eu'",
    "between-in": "price BETWEEN 10.5 AND 800 AND region IN ('us', 'uk')",
}


def kernel(expression: str) -> Callable[[], int]:
    ours, data, table, out = (
        compile_sql(expression),
        b"".join(TEXTS),
        Table(COUNT, COLUMNS),
        array("q", bytes(8 * COUNT)),
    )
    start = 0
    for index, text in enumerate(TEXTS):
        table.flat[index * COLUMNS + PROPERTIES_START] = start
        table.flat[index * COLUMNS + PROPERTIES_LENGTH] = len(text)
        start += len(text)
    return lambda: ours.scan(data, table.view, 0, COUNT, out)


def plain(expression: str) -> Callable[[], int]:
    oracle = reference.compile_sql(expression)
    return lambda: sum(reference.evaluate(oracle, decode_properties(text)) is True for text in TEXTS)


ROWS: dict[str, Any] = {"kernel": kernel, "reference": plain}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_scan(benchmark: Any, row: str, name: str) -> None:
    benchmark.group = f"sql-filter-{name}"
    benchmark.extra_info["messages"] = COUNT
    assert 0 < benchmark(ROWS[row](EXPRESSIONS[name])) < COUNT
