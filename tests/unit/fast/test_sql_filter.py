"""The machine that runs SQL92 expressions: what it refuses to run, and what expressions alone do not show."""

from __future__ import annotations

import unicodedata
from array import array

import pytest

from rocketcore._fast.sql_filter import (
    CONTAINS,
    EQUAL,
    IN,
    JUMP_IF_FALSE,
    MEMBER,
    NAMES,
    NEGATE,
    NOT,
    PUSH_BOOLEAN,
    PUSH_LONG,
    PUSH_PROPERTY,
    PUSH_TEXT,
    STACK,
    SqlFilter,
)
from rocketcore.filter_sql import compile_sql

TRUE = (PUSH_BOOLEAN, 1, 0)


def filter_of(*rows: tuple[int, int, int], names: tuple[int, ...] = (0, 1), pool: bytes = b"ab") -> SqlFilter:
    return SqlFilter(array("q", [number for row in rows for number in row]), pool, array("q", names))


def test_runs_a_program() -> None:
    assert filter_of(TRUE).matches(b"")
    ours = filter_of((PUSH_PROPERTY, 0, 0), (PUSH_TEXT, 1, 1), (EQUAL, 0, 0))
    assert ours.matches(b"a\x01b\x02")
    assert ours.matches(memoryview(b"a\x01x\x02a\x01b"))
    assert not ours.matches(b"a\x01x\x02")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ((), "0 values at the end"),
        ((TRUE, TRUE), "2 values at the end"),
        (((NOT, 0, 0),), "cannot do"),
        ((TRUE, (EQUAL, 0, 0)), "cannot do"),
        (((-1, 0, 0),), "cannot do"),
        (((99, 0, 0),), "cannot do"),
        (((MEMBER, 0, 0),), "cannot do"),
        ((TRUE,) * (STACK + 1), "more than 256 values"),
        (((PUSH_PROPERTY, 1, 0),), "property 1 of 1"),
        (((PUSH_PROPERTY, -1, 0),), "property -1 of 1"),
        (((PUSH_TEXT, 0, 3),), "not in the pool"),
        (((PUSH_TEXT, -1, 1),), "not in the pool"),
        (((PUSH_TEXT, 0, -1),), "not in the pool"),
        (((PUSH_TEXT, 2**62, 2**62),), "not in the pool"),
        ((TRUE, (CONTAINS, 1, 2)), "not in the pool"),
        ((TRUE, (IN, 1, 0)), "has 1 members"),
        ((TRUE, (IN, -1, 0)), "has -1 members"),
        ((TRUE, (IN, 1, 0), TRUE), "no member"),
        ((TRUE, (IN, 1, 0), (MEMBER, 0, 3)), "not in the pool"),
        ((TRUE, (JUMP_IF_FALSE, 1, 0), (IN, 1, 0), (MEMBER, 0, 1)), "no member"),
        ((TRUE, (JUMP_IF_FALSE, 1, 0)), "rows forward"),
        ((TRUE, (JUMP_IF_FALSE, -1, 0)), "rows forward"),
        ((TRUE, (JUMP_IF_FALSE, 1, 0), TRUE, (EQUAL, 0, 0)), "stacks that differ"),
        ((TRUE, (JUMP_IF_FALSE, 1, 0), TRUE), "values at the end"),
    ],
)
def test_refuses_what_could_leave_its_bounds(rows: tuple[tuple[int, int, int], ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        filter_of(*rows)


def test_refuses_other_tables() -> None:
    with pytest.raises(ValueError, match="4 numbers are no rows of 3"):
        SqlFilter(array("q", [*TRUE, 0]), b"", array("q"))
    with pytest.raises(ValueError, match="not in the pool"):
        filter_of(TRUE, names=(0, 3))
    with pytest.raises(ValueError, match=f"{NAMES + 1} properties"):
        filter_of(TRUE, names=(0, 1) * (NAMES + 1))


def test_the_least_long_stays_when_it_is_negated() -> None:
    ours = filter_of((PUSH_LONG, -(2**63), 0), (NEGATE, 0, 0), (PUSH_LONG, -(2**63), 0), (EQUAL, 0, 0))
    assert ours.matches(b"")


def test_takes_the_decimal_digits_of_every_script() -> None:
    """Those of one UTF-16 unit. A Python whose Unicode is newer than the table's may know more."""
    ours = compile_sql("a = 7")
    sevens = [
        chr(code)
        for code in range(0x10000)
        if unicodedata.category(chr(code)) == "Nd" and unicodedata.digit(chr(code)) == 7
    ]
    assert len(sevens) == 37
    for seven in sevens:
        assert ours.evaluate(f"a\x01{seven}\x02".encode()) is True
    for code in range(0x80, 0x10000, 1):
        character = chr(code)
        if not 0xD800 <= code < 0xE000 and unicodedata.category(character) != "Nd":
            with pytest.raises(ValueError):
                ours.evaluate(f"a\x01{character}\x02".encode())
    with pytest.raises(ValueError):
        ours.evaluate("a\x01\U0001d7d5\x02".encode())


@pytest.mark.parametrize(
    "text",
    [
        "2.2250738585072011e-308",
        "9007199254740993",
        "9007199254740993.0000000000000000000001",
        "179769313486231580793728971405301e276",
        "1.00000000000000011102230246251565404236316680908203125",
        "1" + "0" * 400,
        "0." + "0" * 400 + "1",
        "123456789012345678e-20",
        "4.9e-324",
        "2.4e-324",
        "0e999999999999",
        "1e99999999999999999999",
        "1e-99999999999999999999",
    ],
)
def test_doubles_round_once(text: str) -> None:
    """Against Python's own conversion, by whether the double is above, below or at what it gives."""
    expected = float(text)
    ours = compile_sql("a = b AND c = 1.0")
    pair = compile_sql("a >= b AND a <= b")
    spelled = "Infinity" if expected == float("inf") else repr(expected)
    assert pair.evaluate(f"a\x01{text}\x02b\x01{spelled}\x02".encode()) is True
    assert ours.evaluate(f"a\x01{text}\x02b\x01{text}\x02c\x01 1d \x02".encode()) is True
