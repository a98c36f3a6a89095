"""SQL92 expressions and the property text that they are asked of: kernel and reference agree.

input  u8: length of the property text · property text · expression (UTF-8, damage replaced)
"""

from __future__ import annotations

from collections.abc import Iterable

from rocketcore._fast.properties import decode_properties
from rocketcore.errors import ConfigError
from rocketcore.filter_sql import SqlFilter, compile_sql
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, exact
from tests.reference import sql_filter as reference

LIMITS = ("more than", "too long")


def run(data: bytes) -> None:
    if not data:
        return
    text, expression = data[1 : 1 + data[0]], data[1 + data[0] :].decode(errors="replace")
    ours = compiled(expression)
    if ours is None:
        return
    block = exact(text)
    try:
        expected = reference.evaluate(reference.compile_sql(expression), decode_properties(text))
    except reference.NotConvertible:
        assert not ours.matches(block)
        return
    assert ours.evaluate(block) is expected
    assert ours.matches(block) is (expected is True)


def compiled(expression: str) -> SqlFilter | None:
    """None for what neither takes, or for what is too much for ours."""
    try:
        return compile_sql(expression)
    except ConfigError as error:
        if any(limit in str(error) for limit in LIMITS):
            return None
        try:
            reference.compile_sql(expression)
        except reference.Refused:
            return None
        raise


def seeds() -> Iterable[bytes]:
    texts = (
        b"a\x0110\x02b\x01abc\x02c\x01true\x02",
        b"a\x012.5\x02b\x01\xff\xed\xa0\x80x",
        b"\xef\xbc\x91\x01x\x02a\x01\xef\xbc\x91",
    )
    for number, record in enumerate(vectors("filters.jsonl")):
        if "sets" not in record:
            expression = record["input"]["expression"].encode("utf-8", "surrogatepass")
            text = texts[number % len(texts)]
            yield bytes([len(text)]) + text + expression


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b" AND ", b" OR ", b"NOT ", b" BETWEEN ", b" IN (", b" IS NULL", b" CONTAINS '", b" STARTSWITH '", b"''", b"--",
        b"/*", b"*/", b"2147483648", b"1.5", b"1e308", b"TRUE", b"NULL", b"\x01", b"\x02", b"a\x01", b"<>", b"0x1p1",
    ),
    max_length=1024,
)  # fmt: skip
