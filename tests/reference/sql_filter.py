"""SQL92 expressions, read and evaluated as the Java classes do it, a tree of nodes for each.

A value is None or (type, value): boolean, int, long, double, text.

RocketMQ: filter/parser/SelectorParser.jj, filter/expression/*.java (5.5.0).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Value = tuple[str, Any] | None
Properties = Mapping[str, str]

SKIPPED = (r"[ \t\n\r\f]", r"--[^\n\r]*(\r\n|\n|\r)", r"/\*[^*]*\*(\*|[^*/][^*]*\*)*/")
KEYWORDS = ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
LITERALS = {
    "whole": r"0|[1-9][0-9]*[lL]?",
    "real": r"[0-9]+\.[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+",
    "text": r"'(''|[^'])*'",
    "name": r"[a-zA-Z_$][a-zA-Z0-9_$]*",
}
SIGNS = ("=", "<>", ">", ">=", "<", "<=", "(", ",", ")", "+", "-")
DECIMAL = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)")
HEXADECIMAL = re.compile(r"([+-]?0[xX]([0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")


class Refused(Exception):
    """The expression does not compile."""


class NotConvertible(Exception):
    """A value has another type than what it meets, and does not convert to it."""


@dataclass(frozen=True)
class Node:
    """``kind`` is the Java class as far as it matters: constant, boolean constant, property, boolean, other."""

    kind: str
    text: str
    evaluate: Callable[[Properties], Value]
    constant: Value = None

    @property
    def is_boolean(self) -> bool:
        return self.kind in ("boolean", "boolean constant")

    @property
    def is_constant(self) -> bool:
        return self.kind in ("constant", "boolean constant")


def compile_sql(expression: str) -> Node:
    """Raises Refused."""
    return as_boolean(Parser(expression).disjunction())


def evaluate(node: Node, properties: Properties) -> bool | None:
    """Raises NotConvertible."""
    value = node.evaluate(properties)
    assert value is None or value[0] == "boolean"
    return None if value is None else bool(value[1])


def boolean(value: bool) -> Value:
    return "boolean", value


def as_boolean(node: Node) -> Node:
    if node.is_boolean:
        return node
    if node.kind != "property":
        raise Refused(node.text)

    def cast(properties: Properties) -> Value:
        return None if node.evaluate(properties) is None else boolean(False)

    return Node("boolean", node.text, cast)


# Numbers


def to_integer(text: str, largest: int) -> int:
    """``Integer.valueOf``, ``Long.valueOf``: the decimal digits of any script that are one UTF-16 unit."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits or not all(character.isdecimal() and ord(character) <= 0xFFFF for character in digits):
        raise NotConvertible(text)
    value = 0
    for character in digits:
        value = 10 * value + int(character)
    value = -value if text[0] == "-" else value
    if not -largest - 1 <= value <= largest:
        raise NotConvertible(text)
    return value


def to_double(text: str) -> float:
    """``Double.valueOf``."""
    trimmed = text.strip("".join(map(chr, range(33))))
    found = HEXADECIMAL.fullmatch(trimmed)
    if found:
        try:
            return float.fromhex(found[1])
        except OverflowError:
            return -math.inf if trimmed[0] == "-" else math.inf
    if DECIMAL.fullmatch(trimmed) is None:
        raise NotConvertible(text)
    return float(trimmed if trimmed.endswith(("NaN", "Infinity")) else trimmed.rstrip("fFdD"))


def order(left: Any, right: Any) -> int:
    return (left > right) - (left < right)


def order_doubles(left: float, right: float) -> int:
    """``Double.compare``."""
    if math.isnan(left) or math.isnan(right):
        return order(math.isnan(left), math.isnan(right))
    return order(left, right) or order(math.copysign(1, left), math.copysign(1, right))


def compare(left: Value, right: Value) -> int:
    """``ComparisonExpression.__compare``; raises NotConvertible."""
    assert left is not None
    assert right is not None
    (left_type, one), (right_type, other) = left, right
    types = {left_type, right_type}
    if left_type != right_type:
        if left_type == "boolean":
            if right_type == "text":
                raise NotConvertible("a boolean cast to text")
            return -1
        if right_type == "boolean":
            return order(one.lower() == "true", other) if left_type == "text" else -1
        if "double" in types:
            one = to_double(one) if left_type == "text" else float(one)
            other = to_double(other) if right_type == "text" else float(other)
        elif "text" in types:
            largest = 2**31 - 1 if "int" in types else 2**63 - 1
            one = to_integer(one, largest) if left_type == "text" else one
            other = to_integer(other, largest) if right_type == "text" else other
    return order_doubles(one, other) if "double" in types else order(one, other)


# Nodes


def equal(left: Node, right: Node) -> Node:
    def evaluate(properties: Properties) -> Value:
        one, other = left.evaluate(properties), right.evaluate(properties)
        if (one is None) != (other is None):
            return None if one is None else boolean(False)
        return boolean(one is None or compare(one, other) == 0)

    return Node("boolean", f"({left.text} == {right.text})", evaluate)


def checked_equal(left: Node, right: Node) -> Node:
    for node in (left, right):
        if node.is_constant and node.constant is None:
            raise Refused(f"'{node.text}' cannot be compared.")
    if left.kind == "boolean constant" and right.kind == "constant":
        raise Refused(f"'{left.text}' cannot be compared with '{right.text}'")
    return equal(left, right)


def ordered(left: Node, sign: str, right: Node) -> Node:
    for node in (left, right):
        number = node.constant is not None and node.constant[0] in ("int", "long", "double")
        if node.is_boolean or (node.is_constant and not number):
            raise Refused(f"Value '{node.text}' cannot be compared.")

    def evaluate(properties: Properties) -> Value:
        one = left.evaluate(properties)
        if one is None:
            return None
        other = right.evaluate(properties)
        if other is None:
            return None
        if one[0] == other[0] == "text":
            found = order_doubles(to_double(one[1]), to_double(other[1]))
        else:
            found = compare(one, other)
        return boolean({"<": found < 0, "<=": found <= 0, ">": found > 0, ">=": found >= 0}[sign])

    return Node("boolean", f"({left.text} {sign} {right.text})", evaluate)


def between(value: Node, low: Node, high: Node) -> Node:
    if low.is_constant and high.is_constant:
        if low.constant is None or high.constant is None:
            raise Refused("values can not be null!")
        try:
            if compare(high.constant, low.constant) < 0:
                raise Refused("left value must less than or equal to right value")
        except NotConvertible as error:
            raise Refused(str(error)) from error
    return joined(ordered(value, ">=", low), "&&", ordered(value, "<=", high))


def joined(left: Node, sign: str, right: Node) -> Node:
    """AND, which a false operand decides, and OR, which a true one decides."""
    decides = boolean(sign == "||")

    def evaluate(properties: Properties) -> Value:
        one = left.evaluate(properties)
        if one == decides:
            return decides
        other = right.evaluate(properties)
        if other == decides:
            return decides
        return None if one is None or other is None else boolean(sign == "&&")

    return Node("boolean", f"({left.text} {sign} {right.text})", evaluate)


def negation(node: Node) -> Node:
    def evaluate(properties: Properties) -> Value:
        value = node.evaluate(properties)
        return None if value is None else boolean(not value[1])

    return Node("boolean", f"(NOT {node.text})", evaluate)


def minus(node: Node) -> Node:
    def evaluate(properties: Properties) -> Value:
        value = node.evaluate(properties)
        return None if value is None or value[0] in ("boolean", "text") else (value[0], -value[1])

    return Node("other", f"(- {node.text})", evaluate)


def membership(node: Node, texts: list[str], negated: bool) -> Node:
    if node.kind != "property":
        raise Refused(f"Expected a property for In expression, got: {node.text}")

    def evaluate(properties: Properties) -> Value:
        value = node.evaluate(properties)
        return None if value is None else boolean((value[1] in texts) != negated)

    return Node("boolean", f"{node.text} {'NOT ' if negated else ''}IN ( {', '.join(texts)} )", evaluate)


def search(node: Node, kind: str, wanted: str, negated: bool) -> Node:
    def evaluate(properties: Properties) -> Value:
        value = node.evaluate(properties)
        if not wanted or value is None or value[0] != "text":
            return boolean(False)
        text = value[1]
        found = {
            "CONTAINS": wanted in text,
            "STARTSWITH": text.startswith(wanted),
            "ENDSWITH": text.endswith(wanted),
        }[kind]
        return boolean(found != negated)

    return Node("boolean", f"({'NOT ' if negated else ''}{kind} {node.text})", evaluate)


def constant(text: str, value: Value) -> Node:
    kind = "boolean constant" if value is None or value[0] == "boolean" else "constant"
    return Node(kind, text, lambda properties: value, value)


class Parser:
    """The generated parser: one token ahead, and no look at what is behind a complete expression."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.at = 0
        self.advance()

    def advance(self) -> str:
        """Return the kind of the current token and read the next: the longest match, of equal ones the first."""
        passed = getattr(self, "kind", "")
        while True:
            if self.at == len(self.expression):
                self.kind, self.text = "end", ""
                return passed
            best, length = "", 0
            patterns = [("skipped", pattern) for pattern in SKIPPED]
            patterns += [(word, f"(?i:{word})") for word in KEYWORDS]
            patterns += list(LITERALS.items())
            patterns += [(sign, re.escape(sign)) for sign in SIGNS]
            for kind, pattern in patterns:
                found = re.compile(pattern, re.ASCII).match(self.expression, self.at)
                if found is not None and len(found[0]) > length:
                    best, length = kind, len(found[0])
            if not length:
                raise Refused(f"Lexical error at {self.at}")
            self.kind, self.text = best, self.expression[self.at : self.at + length]
            self.at += length
            if best != "skipped":
                return passed

    def expect(self, kind: str) -> str:
        if self.kind != kind:
            raise Refused(f"Encountered {self.text!r}")
        text = self.text
        self.advance()
        return text

    def string(self) -> str:
        return self.expect("text")[1:-1].replace("''", "'")

    def disjunction(self) -> Node:
        left = self.conjunction()
        while self.kind == "OR":
            self.advance()
            right = self.conjunction()
            left = joined(as_boolean(left), "||", as_boolean(right))
        return left

    def conjunction(self) -> Node:
        left = self.equality()
        while self.kind == "AND":
            self.advance()
            right = self.equality()
            left = joined(as_boolean(left), "&&", as_boolean(right))
        return left

    def equality(self) -> Node:
        left = self.comparison()
        while self.kind in ("=", "<>", "IS"):
            match self.advance():
                case "=":
                    left = checked_equal(left, self.comparison())
                case "<>":
                    left = negation(checked_equal(left, self.comparison()))
                case "IS":
                    negated = self.kind == "NOT"
                    if negated:
                        self.advance()
                    self.expect("NULL")
                    left = equal(left, constant("NULL", None))
                    left = negation(left) if negated else left
        return left

    def comparison(self) -> Node:
        left = self.unary()
        while self.kind in (">", ">=", "<", "<=", "NOT", "CONTAINS", "STARTSWITH", "ENDSWITH", "BETWEEN", "IN"):
            kind = self.advance()
            if kind in (">", ">=", "<", "<="):
                left = ordered(left, kind, self.unary())
                continue
            negated = kind == "NOT"
            if negated:
                kind = self.advance()
            if kind == "BETWEEN":
                low = self.unary()
                self.expect("AND")
                high = self.unary()
                if negated:
                    left = joined(ordered(left, "<", low), "||", ordered(left, ">", high))
                else:
                    left = between(left, low, high)
            elif kind == "IN":
                self.expect("(")
                texts = [self.string()]
                while self.kind == ",":
                    self.advance()
                    texts.append(self.string())
                self.expect(")")
                left = membership(left, texts, negated)
            elif kind in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
                left = search(left, kind, self.string(), negated)
            else:
                raise Refused(f"Encountered {kind!r}")
        return left

    def unary(self) -> Node:
        if self.kind == "+":
            self.advance()
            return self.unary()
        if self.kind == "-":
            self.advance()
            return minus(self.unary())
        if self.kind == "NOT":
            self.advance()
            return negation(as_boolean(self.unary()))
        return self.primary()

    def primary(self) -> Node:
        text = self.text
        match self.kind:
            case "(":
                self.advance()
                node = self.disjunction()
                self.expect(")")
                return node
            case "name":
                self.advance()
                return Node("property", text, lambda properties: lookup(properties, text))
            case "text":
                value = self.string()
                return constant(text, ("text", value))
            case "whole":
                number = int(text.rstrip("lL"))
                if number >= 2**63:
                    raise Refused(text)
                self.advance()
                return constant(str(number), ("int" if number < 2**31 else "long", number))
            case "real":
                real = float(text)
                if not 0 < real < math.inf:
                    raise Refused(text)
                self.advance()
                return constant(repr(real), ("double", real))
            case "TRUE" | "FALSE" | "NULL" as word:
                self.advance()
                return constant(word, None if word == "NULL" else boolean(word == "TRUE"))
        raise Refused(f"Encountered {text!r}")


def lookup(properties: Properties, name: str) -> Value:
    return ("text", properties[name]) if name in properties else None
