"""SQL92 expressions: the compiled program against the tree that the Java classes make of the same text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketcore._fast.properties import decode_properties, encode_properties
from rocketcore.errors import ConfigError
from rocketcore.filter_sql import SqlFilter, compile_sql
from tests.reference import sql_filter as reference

NAMES = st.sampled_from(["a", "b", "c", "ab", "$x_1"])
NUMBERS = st.one_of(
    st.integers(-3, 3).map(str),
    st.integers(-(2**65), 2**65).map(str),
    st.sampled_from(
        ["2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "1e23", "0x1.8p1"]
    ),
    st.floats().map(repr),
    st.floats(0, 10).map(lambda value: f" {value:.3f}d"),
)
TEXTS = NUMBERS | st.sampled_from(
    ["true", "TRUE", "x", "xyz", "x'z", "NaN", "-Infinity", "１２", "٣", "𝟏", "", "é中🚀", "�"]
)
ANY_TEXT = TEXTS | st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=6)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


LITERALS = st.one_of(
    st.integers(0, 3).map(str),
    st.sampled_from(["1L", "2147483647", "2147483648", "9223372036854775807", "1.5", "1.", ".5e1", "1e300", "2e-9"]),
    st.sampled_from(["TRUE", "false", "NULL"]),
    TEXTS.map(quoted),
)
SIGNS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


def wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    no = st.sampled_from(["", "NOT "])
    inside = inner.map(lambda text: f"({text})")
    operand = inner | inside
    return st.one_of(
        st.builds("{} {} {}".format, operand, SIGNS, operand),
        st.builds("{} {} {}".format, operand, st.sampled_from(["AND", "or", "AND NOT"]), operand),
        st.builds("{} {}BETWEEN {} AND {}".format, operand, no, operand, operand),
        st.builds("{} IS {}NULL".format, operand, no),
        st.builds(
            lambda left, no, texts: f"{left} {no}IN ({', '.join(map(quoted, texts))})",
            NAMES,
            no,
            st.lists(ANY_TEXT, min_size=1, max_size=4),
        ),
        st.builds(
            lambda left, no, kind, text: f"{left} {no}{kind} {quoted(text)}",
            operand,
            no,
            st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]),
            ANY_TEXT,
        ),
        st.builds("{}{}".format, st.sampled_from(["NOT ", "-", "+", "- -"]), operand),
    )


EXPRESSIONS = st.recursive(NAMES | LITERALS, wider, max_leaves=8)
PROPERTIES = st.dictionaries(NAMES | st.just("other"), ANY_TEXT.filter(bool), max_size=5)


def compile_both(expression: str) -> tuple[SqlFilter, reference.Node] | None:
    """None for an expression that neither takes; what one alone refuses fails the test."""
    try:
        ours = compile_sql(expression)
    except ConfigError as error:
        try:
            oracle = reference.compile_sql(expression)
        except reference.Refused:
            return None
        raise AssertionError(f"refused, and means {oracle.text}") from error
    return ours, reference.compile_sql(expression)


def check(ours: SqlFilter, oracle: reference.Node, text: bytes) -> None:
    try:
        expected = reference.evaluate(oracle, decode_properties(text))
    except reference.NotConvertible:
        expected = None
        try:
            found = ours.evaluate(text)
        except ValueError:
            pass
        else:
            raise AssertionError(f"an error, and not {found}")
    else:
        assert ours.evaluate(text) is expected
    assert ours.matches(text) is (expected is True)


@given(expression=EXPRESSIONS, sets=st.lists(PROPERTIES, min_size=1, max_size=5))
def test_is_the_oracle(expression: str, sets: list[dict[str, str]]) -> None:
    both = compile_both(expression)
    for properties in sets if both else ():
        assert both is not None
        check(*both, encode_properties(properties))


TOKENS = "a b 1 1.5 'x' TRUE NULL NOT AND OR BETWEEN IN IS CONTAINS ( ) , = <> < >= + - -- /* */ ; 0x1 00 1e"


@given(words=st.lists(st.sampled_from([*TOKENS.split(), "\n"]), max_size=12), gap=st.sampled_from(["", " "]))
def test_reads_any_row_of_words_as_the_oracle_does(words: list[str], gap: str) -> None:
    both = compile_both(gap.join(words))
    if both is not None:
        check(*both, b"a\x011\x02b\x01x\x02")


PIECES = [b"\xff", b"\xed\xa0\x80", b"\xf0\x9f", b"x", b"z", "é".encode(), "�".encode(), b"\x01"]
MALFORMED = st.lists(st.sampled_from(PIECES), max_size=5).map(b"".join)


@given(values=st.lists(MALFORMED, min_size=2, max_size=2), wanted=st.text("xzé�", max_size=3))
def test_malformed_text(values: list[bytes], wanted: str) -> None:
    """Java sees U+FFFD there, and compares with that."""
    text = b"a\x01" + values[0] + b"\x02b\x01" + values[1] + b"\x02"
    for condition in (f"= {quoted(wanted)}", "= b", "> b", "= 1", "> 1.5", f"IN ({quoted(wanted)})"):
        check(compile_sql(f"a {condition}"), reference.compile_sql(f"a {condition}"), text)
    for kind in ("CONTAINS", "STARTSWITH", "ENDSWITH", "NOT CONTAINS", "NOT ENDSWITH"):
        condition = f"a {kind} {quoted(wanted)}"
        check(compile_sql(condition), reference.compile_sql(condition), text)


@given(text=st.binary(max_size=200))
def test_any_property_text(text: bytes) -> None:
    condition = "a = 1 OR b CONTAINS 'x' OR NOT (c IS NULL)"
    check(compile_sql(condition), reference.compile_sql(condition), text)


@given(number=NUMBERS | st.text("0123456789.eE+-xXpPdf ", max_size=12), other=NUMBERS)
def test_numbers_in_text(number: str, other: str) -> None:
    properties = {"a": number, "b": other}
    for condition in ("a > b", "a <= b", "a = 1.5", "a >= 1", "a < 2147483648", "1.5 > a", "a BETWEEN 1 AND b"):
        check(compile_sql(condition), reference.compile_sql(condition), encode_properties(properties))
