"""Messages of a pull selected by their properties; ``tests/property/test_property_reader.py`` has damage."""

from __future__ import annotations

import pytest

from bench.data import stored_messages
from rocketcore._fast.consume_queue import put_blank, put_unit
from rocketcore._fast.selection import Selection
from rocketcore.filter_sql import SqlFilter, compile_sql

LOG = stored_messages(5, 100)
SIZE = len(LOG) // 5


def units(count: int = 5) -> bytearray:
    made = bytearray(20 * count)
    for index in range(count):
        put_unit(made, 20 * index, SIZE * index, SIZE, 0)
    return made


def selection(expression: str = "TRUE", *, max_count: int = 32, max_bytes: int = 1 << 20) -> Selection:
    return Selection(compile_sql(expression), units(), 1, 0, max_count, max_bytes)


def test_selects_within_the_limits() -> None:
    for one, count in (
        (selection(), 5),
        (selection(max_count=2), 2),
        (selection(max_bytes=3 * SIZE), 3),
        (selection(max_bytes=1), 1),
        (selection("TAGS = 'TagA'"), 5),
    ):
        assert one.run(LOG, 0, 0, len(LOG), False)
        assert (one.body(), one.count, one.examined) == (LOG[: count * SIZE], count, count)
    none = selection("TAGS = 'TagB'")
    assert none.run(LOG, 0, 0, len(LOG), False)
    assert (none.body(), none.count, none.examined) == (b"", 0, 5)


def test_what_it_cannot_say_is_for_the_caller() -> None:
    one = selection()
    assert not one.run(LOG, 0, SIZE, len(LOG), False)
    assert (one.next(), one.examined) == ((0, SIZE), 0)
    one.decide(LOG[:SIZE], 0, 0)
    damaged = bytearray(LOG)
    damaged[2 * SIZE + 95] ^= 1
    assert not one.run(damaged, 0, 0, len(LOG), False)
    assert one.examined == 2
    one.pass_over()
    assert not one.run(LOG[: 4 * SIZE], 0, 0, 4 * SIZE, False)
    assert one.examined == 4
    assert not one.run(b"", 0, 0, 0, False)
    assert one.run(LOG[4 * SIZE :], 4 * SIZE, 4 * SIZE, 5 * SIZE, False)
    assert one.body() == LOG[: 2 * SIZE] + LOG[3 * SIZE :]
    assert one.next() == (-1, 0)
    assert one.run(b"", 0, 0, 0, False)


def test_blanks_are_passed_over() -> None:
    some = units()
    put_blank(some, 0, 3)
    one = Selection(compile_sql("TRUE"), some, 1, 0, 32, 1 << 20)
    assert one.run(LOG, 0, 0, len(LOG), False)
    assert (one.body(), one.examined) == (LOG[3 * SIZE :], 5)


def test_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="19 bytes are not a whole number"):
        Selection(compile_sql("TRUE"), bytes(19), 1, 0, 1, 1)
    with pytest.raises(TypeError):
        Selection(None, b"", 1, 0, 1, 1)  # type: ignore[arg-type]
    one = selection()
    for begin, end in ((-1, 5), (5, 4), (0, len(LOG) + 1)):
        with pytest.raises(ValueError, match="is not within"):
            one.run(LOG, 0, begin, end, False)
    for start, length in ((-1, 2), (0, -1), (SIZE, 1)):
        with pytest.raises(ValueError, match="are not within"):
            one.decide(LOG[:SIZE], start, length)
    assert one.run(LOG, 0, 0, len(LOG), False)
    with pytest.raises(IndexError, match="unit 5 of 5"):
        one.pass_over()
    with pytest.raises(IndexError, match="unit 5 of 5"):
        one.decide(b"", 0, 0)
    assert isinstance(compile_sql("TRUE"), SqlFilter)
