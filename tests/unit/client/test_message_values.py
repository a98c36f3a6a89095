"""What becomes a key, a property, a tag, a message group and a JSON body; of each field the same."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from typing import Any
from uuid import UUID

import pytest

from rocketcore.client.config import ProducerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.runtime import THREADS
from rocketcore.client.sender import Sender
from rocketcore.errors import ConfigError, MessageIllegal
from rocketcore.message import Message
from rocketcore.protocol.headers.message import SendMessageRequestHeaderV2
from rocketcore.transport.blocking.client import run_sync
from tests.unit.client.fakes import FakeRemoting, route


class Colour(StrEnum):
    RED = "red"


class Mixed(str, Enum):  # noqa: UP042 (as applications have it)
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Plain(Enum):
    ONE = 1


class Text(str):
    """Text of an application's own kind, which prints as something else."""

    __slots__ = ()

    def __str__(self) -> str:
        return "printed"

    def __format__(self, spec: str) -> str:
        return "formatted"


class Thing:
    """Has a text that nobody means."""


ID = UUID("12345678-1234-5678-1234-567812345678")
TAKEN = [
    ("text", "text"),
    (7, "7"),
    (-(2**80), str(-(2**80))),
    (1.5, "1.5"),
    (Decimal("1.10"), "1.10"),
    (Fraction(1, 2), "1/2"),
    (ID, str(ID)),
    (Colour.RED, "red"),
    (Mixed.RED, "red"),
    (Level.HIGH, "3"),
    (Text("own"), "own"),
]
REFUSED = [
    (True, "got bool: write 'true' or 'false'"),
    (b"raw", r"got bytes: value\.decode\(\) makes text of it"),
    (date(2030, 1, 1), r"got date: write str\(value\)"),
    (Plain.ONE, r"got Plain: write str\(value\)"),
    (Thing(), r"got Thing: write str\(value\)"),
]
FIELDS: dict[str, Any] = {
    "tag": (lambda value: {"tag": value}, lambda message: message.tag),
    "keys": (lambda value: {"keys": value}, lambda message: message.properties["KEYS"]),
    "one of keys": (lambda value: {"keys": [value]}, lambda message: message.properties["KEYS"]),
    "properties": (lambda value: {"properties": {"n": value}}, lambda message: message.properties["n"]),
    "message_group": (lambda value: {"message_group": value}, lambda message: message.message_group),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(("value", "text"), TAKEN, ids=[type(value).__name__ for value, _ in TAKEN])
def test_a_value_with_one_text_is_that_text(field: str, value: Any, text: str) -> None:
    options, read = FIELDS[field]
    message = Message("T", b"x", **options(value))
    assert read(message) == text
    assert all(type(each) is str for each in message.properties.values())
    remoting = FakeRemoting({"T": route("a")})
    run_sync(Sender(ProducerConfig(), ClientInstance(ProducerConfig(), remoting, THREADS)).send(message))
    [(_, request)] = remoting.asked
    assert f"\x01{text}\x02" in (request.header(SendMessageRequestHeaderV2).properties or "")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(("value", "said"), REFUSED, ids=[type(value).__name__ for value, _ in REFUSED])
def test_a_value_without_one_text_is_refused_with_what_to_write(field: str, value: Any, said: str) -> None:
    options, _ = FIELDS[field]
    with pytest.raises(TypeError, match=f"must be text, a number or a UUID, {said}"):
        Message("T", b"x", **options(value))


@pytest.mark.parametrize("field", ["one of keys", "properties"])
def test_none_is_no_value_where_a_value_is_meant(field: str) -> None:
    options, _ = FIELDS[field]
    with pytest.raises(TypeError, match="got NoneType"):
        Message("T", b"x", **options(None))


def test_several_keys_of_several_kinds_are_found_each() -> None:
    assert Message("T", b"x", keys=[7, ID, "k"]).keys == ("7", str(ID), "k")
    assert Message("T", b"x", keys=(n for n in (1, 2))).keys == ("1", "2")
    with pytest.raises(MessageIllegal, match="holds no white space"):
        Message("T", b"x", keys=[Text("a b")])


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ({"id": 2}, b'{"id":2}'),
        ([1, "zwei", None, True], b'[1,"zwei",null,true]'),
        ("text", b'"text"'),
        (None, b"null"),
        (0, b"0"),
        ({}, b"{}"),
        ({"name": "M\u00fcller \U0001f680"}, '{"name":"M\u00fcller \U0001f680"}'.encode()),
        ({1: "a"}, b'{"1":"a"}'),
        ((1, 2), b"[1,2]"),
    ],
)
def test_json_is_the_body_and_sets_nothing_else(value: Any, body: bytes) -> None:
    message = Message("T", json=value)
    assert message.body == body
    assert message.properties == {}
    assert json.loads(message.body) == json.loads(json.dumps(value))


CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (Decimal("1.5"), TypeError, r"JSON has no form for json, Decimal\('1.5'\) \(Decimal\)"),
        ({"at": date(2030, 1, 1)}, TypeError, r"for json\['at'\], datetime\.date\(2030, 1, 1\) \(date\)"),
        ({"a": [1, {"b": b"raw"}]}, TypeError, r"for json\['a'\]\[1\]\['b'\], b'raw' \(bytes\)"),
        ({(1, 2): 3}, TypeError, r"for a key of json, \(1, 2\) \(tuple\)"),
        ([1.0, float("nan")], MessageIllegal, r"for json\[1\], nan"),
        ({"x": float("-inf")}, MessageIllegal, r"for json\['x'\], -inf"),
        (CIRCLE, MessageIllegal, "contains itself"),
        ("\ud800", MessageIllegal, "no UTF-8"),
    ],
)
def test_what_json_cannot_say_is_named(value: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=f"^message to 'T': .*{said}"):
        Message("T", json=value)


@pytest.mark.parametrize("call", ["send", "request", "send_oneway", "Message"])
def test_a_body_or_json(call: str) -> None:
    remoting = FakeRemoting({"T": route("a")})
    sender = Sender(ProducerConfig(), ClientInstance(ProducerConfig(), remoting, THREADS))

    def attempt(*arguments: Any, **options: Any) -> None:
        if call == "Message":
            Message(*arguments, **options)
        else:
            run_sync(getattr(sender, call)(*arguments, **options))

    with pytest.raises(ConfigError, match="give a body or json, not both"):
        attempt("T", b"x", json={})
    with pytest.raises(ConfigError, match="the body is missing"):
        attempt("T", keys=1)
    if call != "Message":
        with pytest.raises(ConfigError, match="give a Message alone"):
            attempt(Message("T", b"x"), json=None)
    assert not remoting.asked
