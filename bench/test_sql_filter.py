"""SQL92 expressions over the properties of 10,000 messages, about 80 bytes each: kernel and reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rocketcore._fast.properties import decode_properties
from rocketcore.filter_sql import compile_sql
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
    matches = compile_sql(expression).matches
    return lambda: sum(map(matches, TEXTS))


def plain(expression: str) -> Callable[[], int]:
    oracle = reference.compile_sql(expression)
    return lambda: sum(reference.evaluate(oracle, decode_properties(text)) is True for text in TEXTS)


ROWS: dict[str, Any] = {"kernel": kernel, "reference": plain}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_matches(benchmark: Any, row: str, name: str) -> None:
    benchmark.group = f"sql-filter-{name}"
    benchmark.extra_info["messages"] = COUNT
    assert 0 < benchmark(ROWS[row](EXPRESSIONS[name])) < COUNT
