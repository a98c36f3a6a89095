"""SQL92 expressions on message properties, compiled for ``rocketcore/_fast/sql_filter.pyx``.

The grammar and the types are Apache's, with what they leave out and what they let through: no ``!=`` and no ``LIKE``,
and nothing is read behind the token that follows a complete expression.

precedence  OR · AND · = <> IS [NOT] NULL · > >= < <= [NOT] BETWEEN, IN, CONTAINS, STARTSWITH, ENDSWITH · + - NOT
RocketMQ    filter/parser/SelectorParser.jj, filter/expression/*.java (5.5.0)
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rocketcore._fast import sql_filter as machine
from rocketcore._fast.sql_filter import SqlFilter
from rocketcore.errors import ConfigError

__all__ = ["SqlFilter", "compile_for_retries", "compile_sql"]

_NESTED: Final = 64
"""Parentheses and signs within each other. Each takes six calls and up to three values of the machine's stack."""
_ROWS: Final = 1 << 14
"""BETWEEN evaluates its left side twice, so that expressions exist whose programs have 2⁶⁴ rows."""

_SHOWN: Final = 40
"""Characters of the expression that an error shows."""

LONGEST: Final = 16_384
"""Characters of an expression: to compile so many takes some milliseconds."""
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_LONG_DIGITS = 19

_TOKEN = re.compile(
    r"""(?P<skipped> [ \t\n\r\f]+ | --[^\n\r]*(?:\r\n|\n|\r) | /\*.*?\*/ )
    | (?P<real> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<whole> 0 | [1-9][0-9]*[lL]? )
    | (?P<text> '(?:''|[^'])*' )
    | (?P<word> [A-Za-z_$][A-Za-z0-9_$]* )
    | (?P<sign> <> | >= | <= | [-=<>(),+] )""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
_ORDERS = {
    ">": machine.GREATER,
    ">=": machine.GREATER_EQUAL,
    "<": machine.LESS,
    "<=": machine.LESS_EQUAL,
}
_SEARCHES = {
    "CONTAINS": (machine.CONTAINS, machine.NOT_CONTAINS),
    "STARTSWITH": (machine.STARTS_WITH, machine.NOT_STARTS_WITH),
    "ENDSWITH": (machine.ENDS_WITH, machine.NOT_ENDS_WITH),
}
_WORDS = {"NULL": None, "TRUE": True, "FALSE": False}

_Constant = str | int | float | bool | None


def compile_sql(expression: str) -> SqlFilter:
    """Compile an expression.

    raises  ConfigError that says what is wrong with it, and where
    """
    return _Compiler(expression).compile()


def compile_for_retries(expressions: Mapping[str, str], origin: str) -> SqlFilter:
    """Compile the expressions of a group by topic, for messages that come again: each by that of its own topic.

    One that is for another topic, or for none, matches (Java: ``ExpressionForRetryMessageFilter``).

    origin  name of the property that has the topic
    raises  ConfigError where one does not compile, or together they are too long
    """
    quoted = {"'" + topic.replace("'", "''") + "'": text for topic, text in expressions.items()}
    others = f"{origin} IS NULL OR {origin} NOT IN ({', '.join(quoted)})"
    each = (f"{origin} = {topic} AND ({_Compiler(text).read_part()})" for topic, text in quoted.items())
    return compile_sql(" OR ".join((others, *each)))


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """A keyword or sign itself, or name, text, whole, real or end."""
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class _Operand:
    """What the rows of the program from ``row`` on leave on the stack."""

    row: int
    start: int
    end: int
    """Bounds in the expression."""
    is_boolean: bool = False
    is_property: bool = False
    is_constant: bool = False
    value: _Constant = None

    @property
    def is_number(self) -> bool:
        return isinstance(self.value, (int, float)) and not isinstance(self.value, bool)


def _is_less(left: _Constant, right: _Constant) -> bool:
    """Compare two numbers as Java does: as doubles if one is a double."""
    assert isinstance(left, (int, float))
    assert isinstance(right, (int, float))
    if isinstance(left, float) or isinstance(right, float):
        return float(left) < float(right)
    return left < right


class _Compiler:
    """One pass over the tokens by recursive descent, a method for each level of the grammar."""

    def __init__(self, expression: str) -> None:
        if len(expression) > LONGEST:
            raise ConfigError(f"SQL92 expression is too long: {len(expression)} characters, at most {LONGEST} are read")
        try:
            expression.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"SQL92 expression has half a surrogate pair at character {error.start + 1}") from error
        self._expression = expression
        self._tokens = self._read_tokens()
        self._program = array("q")
        self._pool = bytearray()
        self._texts: dict[str, tuple[int, int]] = {}
        self._names: dict[str, int] = {}
        self._nested = 0
        self._end = 0  # of the token before this one
        self._token = next(self._tokens)

    def compile(self) -> SqlFilter:
        self._cast(self._or())
        names = array("q", [bound for name in self._names for bound in self._place(name)])
        return SqlFilter(self._program, bytes(self._pool), names)

    def read_part(self) -> str:
        """Return the expression without what follows a complete one, and is passed over."""
        self.compile()
        return self._expression[: self._end]

    # Tokens

    def _read_tokens(self) -> Iterator[_Token]:
        """Yield the tokens as they are asked for: what is wrong behind the last one that is needed does not matter."""
        at = 0
        while at < len(self._expression):
            found = _TOKEN.match(self._expression, at)
            if found is None:
                raise self._error(f"{self._expression[at]!r} begins nothing that SQL92 knows", at)
            kind, text = found.lastgroup or "", found.group()
            if kind == "word":
                kind = text.upper() if text.upper() in _KEYWORDS else "name"
            if kind != "skipped":
                yield _Token(text if kind == "sign" else kind, text, at)
            at = found.end()
        while True:
            yield _Token("end", "", at)

    def _error(self, reason: str, at: int | None = None) -> ConfigError:
        where = self._token.start if at is None else at
        before = self._expression[max(0, where - _SHOWN) : where]
        return ConfigError(f"SQL92 expression, character {where + 1}, after {before!r}: {reason}")

    def _unexpected(self) -> ConfigError:
        return self._error(f"{self._token.text!r} is not expected" if self._token.text else "something is missing")

    def _next(self) -> _Token:
        """Return the current token and go on to the next."""
        token = self._token
        self._end = token.end
        self._token = next(self._tokens)
        return token

    def _take_token(self, kind: str) -> bool:
        """Go on if the current token is of this kind."""
        if self._token.kind != kind:
            return False
        self._next()
        return True

    def _expect(self, kind: str) -> _Token:
        if self._token.kind != kind:
            raise self._unexpected()
        return self._next()

    # Program

    def _emit(self, operation: int, first: int = 0, second: int = 0) -> int:
        """Append a row; returns its index."""
        self._program.extend((operation, first, second))
        return self._rows() - 1

    def _rows(self) -> int:
        rows = len(self._program) // machine.WIDTH
        if rows > _ROWS:
            raise self._error("the expression is too long")
        return rows

    def _land(self, *jumps: int) -> None:
        """Let jumps lead to the next row."""
        for row in jumps:
            self._program[machine.WIDTH * row + 1] = self._rows() - row - 1

    def _place(self, text: str) -> tuple[int, int]:
        """Return position and length of a text in the pool."""
        if text not in self._texts:
            encoded = text.encode()
            self._texts[text] = len(self._pool), len(encoded)
            self._pool += encoded
        return self._texts[text]

    def _cast(self, operand: _Operand) -> None:
        """Make a boolean of what is on the stack."""
        if operand.is_property:
            self._emit(machine.CAST)
        elif not operand.is_boolean:
            raise self._error(f"{self._source(operand)} is not a condition")

    def _boolean(self, left: _Operand) -> _Operand:
        """Return what a condition, which began with ``left``, came to."""
        return _Operand(left.row, left.start, self._end, is_boolean=True)

    def _source(self, operand: _Operand) -> str:
        return self._expression[operand.start : operand.end]

    # Grammar

    def _or(self) -> _Operand:
        left = self._and()
        while self._take_token("OR"):
            self._cast(left)
            jump = self._emit(machine.JUMP_IF_TRUE)
            self._cast(self._and())
            self._emit(machine.OR)
            self._land(jump)
            left = self._boolean(left)
        return left

    def _and(self) -> _Operand:
        left = self._equality()
        while self._take_token("AND"):
            self._cast(left)
            jump = self._emit(machine.JUMP_IF_FALSE)
            self._cast(self._equality())
            self._emit(machine.AND)
            self._land(jump)
            left = self._boolean(left)
        return left

    def _equality(self) -> _Operand:
        left = self._comparison()
        while self._token.kind in ("=", "<>", "IS"):
            kind = self._next().kind
            if kind == "IS":
                negated = self._take_token("NOT")
                self._expect("NULL")
                self._emit(machine.PUSH_NULL)
            else:
                negated = kind == "<>"
                right = self._comparison()
                self._check_equality(left, right)
            self._emit(machine.EQUAL)
            if negated:
                self._emit(machine.NOT)
            left = self._boolean(left)
        return left

    def _check_equality(self, left: _Operand, right: _Operand) -> None:
        for operand in (left, right):
            if operand.is_constant and operand.value is None:
                raise self._error("NULL cannot be compared, only IS NULL and IS NOT NULL")
        if left.is_constant and right.is_constant and left.is_boolean and not right.is_boolean:
            raise self._error(f"{self._source(left)} cannot be compared with {self._source(right)}")

    def _comparison(self) -> _Operand:
        left = self._unary()
        while True:
            if self._token.kind in _ORDERS:
                self._ordered(left, _ORDERS[self._next().kind])
                left = self._boolean(left)
                continue
            negated = self._take_token("NOT")
            kind = self._token.kind
            if kind in _SEARCHES:
                self._next()
                self._emit(_SEARCHES[kind][negated], *self._place(self._text()))
            elif kind == "BETWEEN":
                self._next()
                self._between(left, negated=negated)
            elif kind == "IN":
                self._next()
                self._in(left, negated=negated)
            elif negated:
                raise self._unexpected()
            else:
                return left
            left = self._boolean(left)

    def _ordered(self, left: _Operand, operation: int) -> _Operand:
        """Compare what is on the stack with the operand that follows; a null on the left is the result."""
        self._check_ordered(left)
        jump = self._emit(machine.JUMP_IF_NULL)
        right = self._unary()
        self._check_ordered(right)
        self._emit(operation)
        self._land(jump)
        return right

    def _check_ordered(self, operand: _Operand) -> None:
        if operand.is_boolean or (operand.is_constant and not operand.is_number):
            raise self._error(f"{self._source(operand)} is not a number: only numbers can be greater or less")

    def _between(self, value: _Operand, *, negated: bool) -> None:
        again = self._program[machine.WIDTH * value.row :]
        low = self._ordered(value, machine.LESS if negated else machine.GREATER_EQUAL)
        jump = self._emit(machine.JUMP_IF_TRUE if negated else machine.JUMP_IF_FALSE)
        self._expect("AND")
        self._program += again
        high = self._ordered(value, machine.GREATER if negated else machine.LESS_EQUAL)
        self._emit(machine.OR if negated else machine.AND)
        self._land(jump)
        if not negated and low.is_number and high.is_number and _is_less(high.value, low.value):
            raise self._error(f"BETWEEN {self._source(low)} AND {self._source(high)} holds for nothing")

    def _in(self, left: _Operand, *, negated: bool) -> None:
        texts = []
        self._expect("(")
        texts.append(self._text())
        while self._take_token(","):
            texts.append(self._text())
        self._expect(")")
        if not left.is_property:
            raise self._error(f"IN needs a property, got {self._source(left)}")
        texts = list(dict.fromkeys(texts))
        self._emit(machine.IN, len(texts))
        for text in texts:
            self._emit(machine.MEMBER, *self._place(text))
        if negated:
            self._emit(machine.NOT)

    def _text(self) -> str:
        return self._expect("text").text[1:-1].replace("''", "'")

    def _unary(self) -> _Operand:
        if self._nested == _NESTED:
            raise self._error(f"more than {_NESTED} parentheses and signs within each other")
        self._nested += 1
        row, start = self._rows(), self._token.start
        if self._take_token("+"):
            operand = self._unary()
        elif self._take_token("-"):
            self._unary()
            self._emit(machine.NEGATE)
            operand = _Operand(row, start, self._end)
        elif self._take_token("NOT"):
            self._cast(self._unary())
            self._emit(machine.NOT)
            operand = _Operand(row, start, self._end, is_boolean=True)
        else:
            operand = self._primary(row)
        self._nested -= 1
        return operand

    def _primary(self, row: int) -> _Operand:
        if self._take_token("("):
            operand = self._or()
            self._expect(")")
            return operand
        token = self._token
        if token.kind == "name":
            self._next()
            self._emit(machine.PUSH_PROPERTY, self._names.setdefault(token.text, len(self._names)))
            if len(self._names) > machine.NAMES:
                raise self._error(f"more than {machine.NAMES} properties")
            return _Operand(row, token.start, token.end, is_property=True)
        if token.kind in _WORDS:
            self._next()
            value = _WORDS[token.kind]
            if value is None:
                self._emit(machine.PUSH_NULL)
            else:
                self._emit(machine.PUSH_BOOLEAN, value)
            return _Operand(row, token.start, token.end, is_boolean=True, is_constant=True, value=value)
        return _Operand(row, token.start, token.end, is_constant=True, value=self._literal())

    def _literal(self) -> _Constant:
        token = self._token
        if token.kind == "text":
            text = self._text()
            self._emit(machine.PUSH_TEXT, *self._place(text))
            return text
        if token.kind == "whole":
            digits = token.text.rstrip("lL")
            number = _LONG_MAX + 1 if len(digits) > _LONG_DIGITS else int(digits)
            if number > _LONG_MAX:
                raise self._error(f"{token.text} is greater than {_LONG_MAX}")
            self._next()
            self._emit(machine.PUSH_INT if number <= _INT_MAX else machine.PUSH_LONG, number)
            return number
        if token.kind != "real":
            raise self._unexpected()
        real = float(token.text)
        if real in (0, float("inf")):
            raise self._error(f"{token.text} is {'greater' if real else 'less'} than any double but 0 and infinity")
        self._next()
        self._emit(machine.PUSH_DOUBLE, struct.unpack("=q", struct.pack("=d", real))[0])
        return real
