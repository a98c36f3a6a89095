"""SQL92 expressions against Java's, and against the plain reading of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rocketcore._fast.properties import encode_properties
from rocketcore._fast.sql_filter import NAMES
from rocketcore.errors import ConfigError
from rocketcore.filter_sql import compile_sql
from tests.fixtures.vectors import name_of, vectors
from tests.reference import sql_filter as reference

RECORDS = [record for record in vectors("filters.jsonl") if "sets" not in record]
SETS = {record["java"]: record["sets"] for record in vectors("filters.jsonl") if "sets" in record}
COMPILED = [record for record in RECORDS if record["compiles"]]
REFUSED = [record for record in RECORDS if not record["compiles"]]


def properties_of(record: dict[str, Any], name: str) -> dict[str, str]:
    if record["input"]["sets"] == "properties":
        return dict(SETS[record["java"]][name])
    return {"a": name}


@pytest.mark.parametrize("record", COMPILED, ids=name_of)
def test_values(record: dict[str, Any]) -> None:
    ours, oracle = compile_sql(record["input"]["expression"]), reference.compile_sql(record["input"]["expression"])
    assert " IN (" in record["text"] or oracle.text.replace("e+", "E") == record["text"]
    for name, expected in record["results"].items():
        properties = properties_of(record, name)
        # A property without value does not come through property text: Java's broker never meets one.
        found: dict[Callable[..., bool | None], Any] = {
            reference.evaluate: properties,
            ours.evaluate: encode_properties(properties),
        }
        if "" in properties.values():
            del found[ours.evaluate]
        else:
            assert ours.matches(encode_properties(properties)) == (name in record["matched"])
        for evaluate, argument in found.items():
            arguments = (oracle, argument) if evaluate is reference.evaluate else (argument,)
            if isinstance(expected, dict):
                with pytest.raises((ValueError, reference.NotConvertible)):
                    evaluate(*arguments)
            else:
                assert evaluate(*arguments) is expected


@pytest.mark.parametrize("record", REFUSED, ids=name_of)
def test_what_does_not_compile(record: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="SQL92 expression"):
        compile_sql(record["input"]["expression"])
    with pytest.raises(reference.Refused):
        reference.compile_sql(record["input"]["expression"])


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "SQL92 expression, character 1, after '': something is missing"),
        ("a = ", "character 5, after 'a = ': something is missing"),
        ("a = AND", "character 5, after 'a = ': 'AND' is not expected"),
        ("a != 1", "character 3, after 'a ': '!' begins nothing that SQL92 knows"),
        ("a = 'x", '"\'" begins nothing'),
        ("a > 'x'", "'x' is not a number: only numbers can be greater or less"),
        ("(a = 1) > 2", "a = 1 is not a number"),
        ("a = NULL", "only IS NULL and IS NOT NULL"),
        ("TRUE = 1", "TRUE cannot be compared with 1"),
        ("1 IN ('1')", "IN needs a property, got 1"),
        ("a BETWEEN 2 AND 1.5", "BETWEEN 2 AND 1.5 holds for nothing"),
        ("a = 1 AND 5", "5 is not a condition"),
        ("a = 9223372036854775808", "is greater than 9223372036854775807"),
        ("a = " + "9" * 5000, "is greater than 9223372036854775807"),
        ("a > 0.0", "0.0 is less than any double"),
        ("a > 1e999", "1e999 is greater than any double"),
        ("(" * 65 + "a" + ")" * 65, "more than 64 parentheses and signs within each other"),
        ("NOT " * 100 + "a", "more than 64 parentheses"),
        (" OR ".join(f"a{i} = 1" for i in range(NAMES + 1)), "more than 128 properties"),
        ("a" * 16_385, "too long: 16385 characters, at most 16384 are read"),
        ("-(" * 30 + "a" + " BETWEEN 1 AND 2)" * 30 + " BETWEEN 1 AND 2", "too long"),
        ("a = '\ud83d'", "half a surrogate pair at character 6"),
    ],
)
def test_what_an_error_says(expression: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compile_sql(expression)
    assert reason in str(caught.value)


def test_the_deepest_expression() -> None:
    """Every level of the grammar at every depth: what the machine's stack has to hold."""
    expression = "a"
    for _ in range(62):
        expression = f"(FALSE OR TRUE AND TRUE = {expression})"
    assert compile_sql(expression).evaluate(b"") is not True
    assert compile_sql("(" * 63 + "a = 1" + ")" * 63).matches(b"a\x011\x02")


def test_a_long_chain() -> None:
    expression = " OR ".join(f"a = {i}" for i in range(1300))
    assert compile_sql(expression).matches(b"a\x011299\x02")
    assert not compile_sql(expression).matches(b"a\x011300\x02")


def test_a_broker_starts_without_it() -> None:
    """Its tables take longer to make than a fiftieth of a start; most brokers are asked for tags alone."""
    code = "import sys, rocketcore.broker.broker; sys.exit('rocketcore.filter_sql' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
