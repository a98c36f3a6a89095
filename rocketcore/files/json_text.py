"""JSON as it stands in a text: where each value begins and ends.

A value that is decoded and encoded again is another text: 1.10 becomes 1.1, 1E400 no JSON at all, and of two members of
one name the first is lost. So bodies are cut out of the text, and numbers are their digits.

msgspec's ``Raw`` would do the same faster, but takes half a surrogate pair in an escape for the end of its input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple

__all__ = ["Digits", "JsonFault", "Value", "json_documents", "json_members", "json_value"]

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NO_NUMBER: Final = re.compile(r'"(?:[^"\\]|\\.)*"|(NaN|-?Infinity)')


class JsonFault(ValueError):
    """A text is no JSON; ``position`` says where, in characters from 0 on."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


class Digits(str):
    """A number as it stands."""

    __slots__ = ()


class Value(NamedTuple):
    """A value with its place in the text; numbers in ``content`` are ``Digits``."""

    content: Any
    begin: int
    end: int


def _refused(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_float=Digits, parse_int=Digits, parse_constant=_refused)

_scan_once: Final = _DECODER.scan_once  # type: ignore[attr-defined]


def _space_end(text: str, begin: int) -> int:
    found = _SPACE.match(text, begin)
    assert found is not None
    return found.end()


def _scan(text: str, begin: int) -> Value:
    try:
        content, end = _scan_once(text, begin)
    except StopIteration as error:
        raise JsonFault("a JSON value is missing", error.value) from None
    except json.JSONDecodeError as error:
        raise JsonFault(error.msg, error.pos) from None
    except RecursionError:
        raise JsonFault("nested too deeply", begin) from None
    except ValueError as error:  # of the number that is none: the first such word outside of strings
        found = next((word.start(1) for word in _NO_NUMBER.finditer(text, begin) if word[1]), begin)
        raise JsonFault(str(error), found) from None
    return Value(content, begin, end)


def json_value(text: str) -> Value:
    """Return the one value of a text; raises JsonFault."""
    value = _scan(text, _space_end(text, 0))
    if (end := _space_end(text, value.end)) < len(text):
        raise JsonFault("more follows after the JSON value", end)
    return value


def json_members(text: str) -> dict[str, Value]:
    """Return the members of the object that a text is; of several of one name the last. Raises JsonFault."""
    at = _space_end(text, 0)
    if text[at : at + 1] != "{":
        json_value(text)
        raise JsonFault("no object", at)
    members: dict[str, Value] = {}
    at = _space_end(text, at + 1)
    if text[at : at + 1] == "}":
        return _check_end(text, at + 1, members)
    while True:
        if text[at : at + 1] != '"':
            raise JsonFault("the name of a member is missing", at)
        try:
            name, at = scanstring(text, at + 1, True)
        except json.JSONDecodeError as error:
            raise JsonFault(error.msg, error.pos) from None
        at = _space_end(text, at)
        if text[at : at + 1] != ":":
            raise JsonFault("':' is missing", at)
        members[name] = value = _scan(text, _space_end(text, at + 1))
        at = _space_end(text, value.end)
        if text[at : at + 1] == "}":
            return _check_end(text, at + 1, members)
        if text[at : at + 1] != ",":
            raise JsonFault("',' or '}' is missing", at)
        at = _space_end(text, at + 1)


def _check_end(text: str, at: int, members: dict[str, Value]) -> dict[str, Value]:
    if (end := _space_end(text, at)) < len(text):
        raise JsonFault("more follows after the object", end)
    return members


def json_documents(text: str) -> Iterator[Value]:
    """Yield the values of a text one after the other, whatever lines they take; of an array that is all, its elements.

    raises  JsonFault, when the values before it were yielded
    """
    at = _space_end(text, 0)
    if text[at : at + 1] == "[":
        whole = _scan(text, at)
        if _space_end(text, whole.end) == len(text):
            yield from _elements(text, at)
            return
    while at < len(text):
        value = _scan(text, at)
        yield value
        at = _space_end(text, value.end)


def _elements(text: str, at: int) -> Iterator[Value]:
    """Yield the elements of an array that is known to be sound."""
    at = _space_end(text, at + 1)
    while text[at] != "]":
        value = _scan(text, at)
        yield value
        at = _space_end(text, value.end)
        if text[at] == ",":
            at = _space_end(text, at + 1)
