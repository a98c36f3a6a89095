"""JSON as Java's fastjson reads and writes it.

Bodies are standard JSON except where a map's keys are not texts: fastjson writes numbers bare (``{0:"a"}``) and objects
as objects (``{{"brokerName":"b","queueId":0,"topic":"T"}:7}``). It may also write ``{"$ref":"$.a"}`` for an object that
it has written before, and reads comments, single quotes, bare names, a trailing comma and more.

``loads`` parses standard JSON at C speed and falls back to a reader of this dialect. A key that is a number becomes an
int, one that is a message queue becomes a ``MessageQueue``, another object the JSON text of it.

RocketMQ: ``RemotingSerializable`` over fastjson 1.2 (4.9, 5.0 to 5.3) and fastjson2 (from 5.4).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import cache
from json.encoder import encode_basestring
from typing import Any, Final, NoReturn

from rocketcore.errors import DecodeError
from rocketcore.message_queue import MessageQueue

__all__ = ["dumps", "dumps_plain", "loads"]

MAX_DEPTH: Final = 256
"""Nesting that the reader of the dialect follows; it takes two Python frames a level."""
MAX_VALUES: Final = 1_000_000
"""Values of a document in the dialect, whose reader takes a microsecond or two for each while everyone else waits. Each
``$ref`` counts as what it refers to: some hundred bytes can claim billions."""

_REFERENCE: Final = b'"$ref"'
_QUEUE_FIELDS: Final = frozenset({"topic", "brokerName", "queueId"})


@cache
def _standard() -> tuple[Callable[[bytes], Any], type[Exception]]:
    """Return the parser of standard JSON and its error; to import it takes a twentieth of a server's start."""
    import msgspec

    return msgspec.json.Decoder().decode, msgspec.DecodeError


def loads(data: bytes | bytearray | memoryview, max_values: int = MAX_VALUES) -> Any:
    """Parse a body; raises DecodeError, also for more than ``max_values`` values in what is not standard JSON."""
    raw = bytes(data)
    if _REFERENCE not in raw:
        decode, error = _standard()
        try:
            return decode(raw)
        except (error, UnicodeDecodeError, RecursionError):
            pass
    return _Reader(raw.decode(errors="replace").removeprefix("\ufeff"), max_values).document()


def dumps(value: Any) -> bytes:
    """Write standard JSON as compact as Java does: keys sorted, text not escaped beyond need, number keys quoted."""
    return _utf8(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def dumps_plain(value: Any) -> bytes:
    """Write the dialect: keys sorted, an int key bare, a ``MessageQueue`` key as an object."""
    parts: list[str] = []
    _write(value, parts)
    return _utf8("".join(parts))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace")


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, dict):
        comma = "{"
        for key in sorted(value, key=_sort_key):
            parts.append(comma)
            comma = ","
            if isinstance(key, str):
                parts.append(encode_basestring(key))
            elif isinstance(key, MessageQueue):
                parts.append(_queue_text(key))
            else:
                parts.append(int.__repr__(key))
            parts.append(":")
            _write(value[key], parts)
        parts.append("}" if comma == "," else "{}")
    elif isinstance(value, (list, tuple)):
        comma = "["
        for item in value:
            parts.append(comma)
            comma = ","
            _write(item, parts)
        parts.append("]" if comma == "," else "[]")
    elif isinstance(value, str):
        parts.append(encode_basestring(value))
    elif isinstance(value, float):
        parts.append(_double_text(value))
    else:
        parts.append(json.dumps(value))


def _double_text(value: float) -> str:
    """Return a number as ``Double.toString`` does: plain from 10⁻³ to 10⁷, else like ``1.0E-7``."""
    if value == 0 or not math.isfinite(value) or 1e-3 <= abs(value) < 1e7:
        return repr(value) if math.isfinite(value) else "null"
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    if whole == "0":
        digits = fraction.lstrip("0")
        exponent = len(digits) - len(fraction) - 1
    else:
        digits = (whole + fraction).rstrip("0")
        exponent = int(power or 0) + len(whole) - 1
    return f"{'-' if value < 0 else ''}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _sort_key(key: str | int | MessageQueue) -> tuple[int, Any]:
    if isinstance(key, str):
        return 0, key
    return (1, key) if isinstance(key, int) else (2, key)


def _queue_text(queue: MessageQueue) -> str:
    broker, topic = encode_basestring(queue.broker), encode_basestring(queue.topic)
    return f'{{"brokerName":{broker},"queueId":{queue.queue_id},"topic":{topic}}}'


# Nothing here can be matched in a second way, so what repeats is possessive and takes all that is plain at once: a
# repetition that may give back keeps a hundred bytes for each character, also of a text that never ends. Patterns are
# compiled when the first text needs them: few processes ever meet one.
_TOKEN: Final = r"""
        (?P<space>(?:[\s\0]++|/\*[^*]*+\*++(?:[^*/][^*]*+\*++)*+/|//[^\n]*+)++)
      | (?P<punctuation>[{}\[\],:])
      | (?P<string>"[^"\\]*+"|'[^'\\]*+')
      | (?P<escaped>"[^"\\]*+(?:\\.[^"\\]*+)*+"|'[^'\\]*+(?:\\.[^'\\]*+)*+')
      | (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[LSBFD]?)
      | (?P<name>[A-Za-z_$][\w$]*+)
    """
_ESCAPE: Final = r"(?s)\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))"
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0", "F": "\f"}
_WORDS: Final = {"true": True, "false": False, "null": None, "NaN": math.nan, "undefined": None}
_PATH_STEP: Final = r"\.((?:\\.|[^.\[\\]++)++)|\[(\d++)\]"
_SURROGATES: Final = "([\ud800-\udbff][\udc00-\udfff])|[\ud800-\udfff]"


class _Reference:
    """A ``$ref`` seen while parsing, to be put right when the whole document is known."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path


class _Reader:
    """A recursive reader of the dialect over one text."""

    def __init__(self, text: str, max_values: int) -> None:
        self._token = re.compile(_TOKEN, re.VERBOSE | re.DOTALL)
        self._text = text
        self._max_values = max_values
        self._values = 0
        self._position = 0
        self._references: list[tuple[Any, Any, _Reference]] = []
        self._depth = 0
        self._within_key = False
        self._keys: dict[int, dict[str, Any]] = {}

    def document(self) -> Any:
        kind, token = self._next()
        value = self._value(kind, token)
        kind, token = self._next()
        if kind != "end":
            self._fail(f"text after the value: {token[:20]!r}")
        if isinstance(value, _Reference):
            self._fail("a reference to what it is part of")
        for container, key, reference in self._references:
            container[key] = self._resolve(value, reference)
        if self._references:
            self._measure(value, 0, {})
        return value

    def _measure(self, value: Any, depth: int, measured: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
        """Return how many values a tree holds and how deep it is; fails where references made it endless or too large.

        measured  of containers by id, None while they are being measured
        """
        if not isinstance(value, (dict, list)):
            return 1, 0
        known = measured.get(id(value), (0, 0))
        if known is None:
            self._fail("a reference to what it is part of")
        count, height = known
        if count == 0:
            if depth >= MAX_DEPTH:
                self._fail(f"nested deeper than {MAX_DEPTH}")
            measured[id(value)] = None
            count, height = 1, 0
            for item in value.values() if isinstance(value, dict) else value:
                item_count, item_height = self._measure(item, depth + 1, measured)
                count, height = count + item_count, max(height, item_height + 1)
            measured[id(value)] = count, height
        if depth + height > MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH}")
        if count > self._max_values:
            self._fail(f"references that make more than {self._max_values} values")
        return count, height

    def _fail(self, reason: str) -> NoReturn:
        raise DecodeError(f"JSON: {reason}", self._position)

    def _next(self) -> tuple[str, str]:
        while True:
            match = self._token.match(self._text, self._position)
            if match is None:
                if self._position == len(self._text):
                    return "end", ""
                self._fail(f"unexpected {self._text[self._position : self._position + 20]!r}")
            self._position = match.end()
            kind = match.lastgroup
            if kind != "space":
                return kind or "", match[0]

    def _value(self, kind: str, token: str) -> Any:
        if kind == "string":
            return token[1:-1]
        if kind == "number":
            return self._number(token)
        if kind == "escaped":
            return _unescape(token[1:-1])
        if token == "{":
            return self._object()
        if token == "[":
            return self._array()
        if kind == "name" and token in _WORDS:
            return _WORDS[token]
        return self._fail(f"unexpected {token[:20]!r}" if token else "it ends too early")

    def _number(self, token: str) -> int | float:
        digits = token.rstrip("LSBFD")
        try:
            return float(digits) if any(mark in digits for mark in ".eE") else int(digits)
        except ValueError:
            return self._fail(f"a number of {len(digits)} digits")

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH}")

    def _object(self) -> Any:
        result: dict[Any, Any] = {}
        self._enter()
        while True:
            kind, token = self._next()
            if token == "}" and kind == "punctuation":
                break
            if kind in ("string", "escaped"):
                key: Any = self._value(kind, token)
            elif kind == "name":
                key = token
            elif kind == "number" or token == "{":
                key = self._key(kind, token)
            else:
                self._fail(f"unexpected {token[:20]!r} for a key" if token else "it ends within an object")
            if self._next()[1] != ":":
                self._fail("a key without ':'")
            self._store(result, key, self._value(*self._next()))
            token = self._next()[1]
            if token == "}":
                break
            if token != ",":
                self._fail("a member without ',' or '}' after it")
        self._depth -= 1
        if len(result) == 1 and isinstance(path := result.get("$ref"), str):
            return _Reference(path)
        return result

    def _key(self, kind: str, token: str) -> Any:
        """Read a key that is no text: a float becomes one, and an object that is no message queue its JSON.

        An object within such an object's keys is refused: texts quoted within texts double with every level.
        """
        if token == "{":
            if self._within_key:
                self._fail("an object for a key within a key")
            self._within_key = True
        key = self._value(kind, token)
        if token == "{":
            self._within_key = False
        if isinstance(key, _Reference):
            self._fail("a reference for a key")
        if isinstance(key, dict):
            # With other fields it may be no queue: whoever wants one reads it from the text.
            return (message_queue(key) if key.keys() <= _QUEUE_FIELDS else None) or dumps_plain(key).decode()
        return str(key) if isinstance(key, float) else key

    def _array(self) -> list[Any]:
        result: list[Any] = []
        self._enter()
        while True:
            kind, token = self._next()
            if token == "]" and kind == "punctuation":
                break
            result.append(None)
            self._store(result, len(result) - 1, self._value(kind, token))
            token = self._next()[1]
            if token == "]":
                break
            if token != ",":
                self._fail("an item without ',' or ']' after it")
        self._depth -= 1
        return result

    def _count(self) -> None:
        """Count a value, or a step on the way to one."""
        self._values += 1
        if self._values > self._max_values:
            self._fail(f"more than {self._max_values} values in what is not standard JSON")

    def _store(self, container: Any, key: Any, value: Any) -> None:
        self._count()
        if isinstance(value, _Reference):
            self._references.append((container, key, value))
            value = None
        container[key] = value

    def _resolve(self, root: Any, reference: _Reference) -> Any:
        """Follow ``$.path``; what leads nowhere is None. Each step counts as a value: paths may be long, and many.

        ``@`` (the holder), ``..`` (the holder's) and ``$`` (the root) make a document that has no end, as may a path:
        no class of RocketMQ has such values, and whoever walked one would not come back.
        """
        path = reference.path
        if path in ("@", ".."):
            self._fail("a reference to what it is part of")
        if not path.startswith("$"):
            return None
        found = root
        position = 1
        steps = re.compile(_PATH_STEP)
        while position < len(path):
            self._count()
            step = steps.match(path, position)
            if step is None:
                return None
            position = step.end()
            name = re.sub(r"\\(.)", r"\1", step[1]) if step[1] else step[2]
            found = self._member(found, name)
            if found is None:
                break
        return found

    def _member(self, holder: Any, name: str) -> Any:
        if isinstance(holder, list):
            return holder[int(name)] if name.isdecimal() and len(name) < 10 and int(name) < len(holder) else None
        if not isinstance(holder, dict):
            return None
        if name in holder:
            return holder[name]
        # Made once for each object: many references may lead through one of many keys.
        keys = self._keys.get(id(holder))
        if keys is None:
            keys = self._keys[id(holder)] = {_key_text(key): key for key in holder if not isinstance(key, str)}
        return holder[keys[name]] if name in keys else None


def _key_text(key: Any) -> str:
    if isinstance(key, MessageQueue):
        return f"MessageQueue [topic={key.topic}, brokerName={key.broker}, queueId={key.queue_id}]"
    return str(key)


def message_queue(value: Any) -> MessageQueue | None:
    """Return the queue that an object of Java's form names, whatever else it says; None where it is not one."""
    if isinstance(value, MessageQueue):
        return value
    if isinstance(value, str) and value.startswith("{"):
        value = loads(value.encode(errors="replace"))
    if not isinstance(value, dict):
        return None
    if not value.keys() <= _QUEUE_FIELDS:
        value = {plain_name(name): each for name, each in value.items()} | value
    topic, broker, queue_id = (
        value.get(name, value.get(plain_name(name))) for name in ("topic", "brokerName", "queueId")
    )
    if isinstance(queue_id, str):
        try:
            queue_id = int(queue_id)
        except ValueError:
            return None
    elif queue_id is None:
        queue_id = 0
    if type(queue_id) is not int or isinstance(topic, (dict, list)) or isinstance(broker, (dict, list)):
        return None
    return MessageQueue(str(topic or ""), str(broker or ""), queue_id)


def plain_name(name: Any) -> str:
    """Return how fastjson 1.2 compares names where none is the same: ``BrokerName`` and ``broker_name`` are one."""
    return str(name).lower().replace("_", "").replace("-", "")


def _unescape(text: str) -> str:
    """Resolve escapes. Half a surrogate pair becomes a question mark, as Java writes it: it has no UTF-8."""

    def replace(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        if code:
            return chr(int(code, 16))
        return _ESCAPES.get(match[3], match[3])

    return re.sub(_SURROGATES, _join_surrogates, re.sub(_ESCAPE, replace, text))


def _join_surrogates(match: re.Match[str]) -> str:
    pair = match[1]
    return chr(0x10000 + ((ord(pair[0]) - 0xD800) << 10) + ord(pair[1]) - 0xDC00) if pair else "?"
