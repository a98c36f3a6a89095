from __future__ import annotations

import pytest

from rocketcore.cli.messages.forms import compile_format, message_line, message_object
from rocketcore.message import MessageQueue, ReceivedMessage

MESSAGE = ReceivedMessage(
    topic="orders",
    body="héllo".encode(),
    queue=MessageQueue("orders", "broker-a", 3),
    offset=12,
    msg_id="ID",
    offset_msg_id="OFFSET",
    properties={"TAGS": "created", "KEYS": "k1 k2", "x": "y"},
    store_timestamp=1_700_000_000_123,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%s", "héllo"),
        (r"%t %b/%q@%o\t%i", "orders broker-a/3@12\tID"),
        ("%g [%k] %S %T", "created [k1 k2] 6 2023-11-14T22:13:20.123Z"),
        ("%p 100%%", "TAGS=created,KEYS=k1 k2,x=y 100%"),
        (r"\\n", r"\n"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert compile_format(text)(MESSAGE) == expected


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(ValueError, match="%z is unknown"):
        compile_format("%s %z")


def test_a_body_is_text_or_base64() -> None:
    value = message_object(MESSAGE)
    assert (value["body"], value["keys"], value["stored_at"]) == ("héllo", ["k1", "k2"], "2023-11-14T22:13:20.123Z")
    assert value["born_at"] is None
    binary = ReceivedMessage("t", b"\xff\x00", MessageQueue("t", "b", 0), 0, "", "")
    assert message_object(binary)["body_base64"] == "/wA="
    assert "body" not in message_object(binary)
    assert compile_format("%s %S")(binary) == "\ufffd\0 2"


def test_a_line() -> None:
    assert message_line(MESSAGE) == "orders broker-a/3@12  tag=created  keys=k1,k2  héllo"
    lines = ReceivedMessage("t", b"a\nb\x1b[2J", MessageQueue("t", "b", 0), 0, "", "")
    assert message_line(lines) == r"t b/0@0  a\nb\x1b[2J"


def test_a_time_that_no_calendar_has_is_unknown() -> None:
    late = ReceivedMessage("t", b"", MessageQueue("t", "b", 0), 0, "", "", born_timestamp=2**63 - 1)
    assert message_object(late)["born_at"] is None
