"""What a message may be made of, and what is said of anything else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rocketcore.client.config import ProducerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.runtime import THREADS
from rocketcore.client.sender import Sender
from rocketcore.errors import ConfigError, MessageIllegal
from rocketcore.message import Message
from rocketcore.transport.blocking.client import run_sync
from tests.unit.client.fakes import FakeRemoting, route


def logic(remoting: FakeRemoting) -> Sender:
    return Sender(ProducerConfig(), ClientInstance(ProducerConfig(), remoting, THREADS))


@pytest.mark.parametrize(
    ("topic", "body", "options", "said"),
    [
        (None, b"x", {}, "topic must be text, got NoneType"),
        (5, b"x", {}, "topic must be text, got int"),
        ("T", 5, {}, "message to 'T': body must be bytes or text, got int"),
        ("T", [1, 2, 3], {}, r"message to 'T': body must be bytes or text, got list; json= encodes it"),
        ("T", ["a"], {}, "body must be bytes or text, got list"),
        ("T", {"a": 1}, {}, r"body must be bytes or text, got dict; json= encodes it"),
        ("T", b"x", {"tag": ["a"]}, "tag must be text, a number or a UUID, got list: give one value"),
        ("T", b"x", {"message_group": {}}, "message_group must be text, a number or a UUID, got dict"),
        ("T", b"x", {"properties": {1: "a"}}, "a property's name must be text, got int"),
        ("T", b"x", {"properties": ["a"]}, "properties must be a mapping of names to values, got list"),
        ("T", b"x", {"keys": True}, "keys must be text, a number or a UUID, got bool"),
        ("T", b"x", {"keys": b"ab"}, "keys must be text, a number or a UUID, got bytes"),
        ("T", b"x", {"keys": [None]}, "each of keys must be text, a number or a UUID, got NoneType"),
        ("T", b"x", {"flag": "a"}, "flag must be a whole number, got str"),
        ("T", b"x", {"delay_level": "3"}, "delay_level must be a whole number, got str"),
        ("T", b"x", {"delay_level": True}, "delay_level must be a whole number, got bool"),
        ("T", b"x", {"delay": "3"}, "delay must be seconds or a timedelta, got str"),
        ("T", b"x", {"deliver_at": 3}, "deliver_at must be a datetime, got int"),
        ("T", b"x", {"tags": "a"}, r"send\(\) has no option 'tags': did you mean tag\?"),
        ("T", b"x", {"colour": "a"}, r"send\(\) has no option 'colour'; there are json, tag, keys"),
    ],
)
def test_a_wrong_type_is_said_in_a_sentence(topic: Any, body: Any, options: dict[str, Any], said: str) -> None:
    remoting = FakeRemoting({"T": route("a")})
    with pytest.raises(TypeError, match=f"^.*{said}"):
        run_sync(logic(remoting).send(topic, body, **options))
    assert not remoting.asked


@pytest.mark.parametrize(
    "options",
    [
        {"keys": ["a b"]},
        {"keys": ["a", ""]},
        {"tag": "a || b"},
        {"tag": " a"},
        {"flag": 2**40},
        {"flag": -(2**31) - 1},
        {"properties": {"p": "\ud800"}},
        {"tag": "\udfff"},
        {"properties": {"p": ""}},
    ],
)
def test_what_no_broker_or_consumer_can_use_is_illegal(options: dict[str, Any]) -> None:
    remoting = FakeRemoting({"T": route("a")})
    with pytest.raises(MessageIllegal):
        run_sync(logic(remoting).send("T", b"x", **options))
    assert not remoting.asked


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), -1])
def test_a_delay_has_a_length(delay: float) -> None:
    with pytest.raises(ConfigError, match="delay must be a number of seconds"):
        Message("T", b"x", delay=delay)


def test_a_body_that_is_no_text_is_illegal() -> None:
    with pytest.raises(MessageIllegal, match="'T': the body has no UTF-8"):
        Message("T", "\ud800")


@pytest.mark.parametrize("body", [b"ab", bytearray(b"ab"), memoryview(b"ab"), "ab"])
def test_bytes_and_text_are_bodies(body: Any) -> None:
    assert Message("T", body).body == b"ab"


def test_arguments_that_are_right_are_kept() -> None:
    message = Message("T", b"x", tag="a", keys="k1 k2", flag=-(2**31), message_group="g", properties={"p": "ü"})
    assert (message.tag, message.keys, message.flag, message.message_group) == ("a", ("k1", "k2"), -(2**31), "g")
    assert Message("T", b"x", keys=("k1", "k2")).keys == ("k1", "k2")
    assert Message("T", b"x", tag="", keys="", properties={}).properties == {}
    Message("T", b"x", deliver_at=datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("batch", [Message("T", b"x"), 5, [b"x"], b"xy"])
def test_a_batch_is_several_messages(batch: Any) -> None:
    with pytest.raises(TypeError, match=r"send_batch\(\): a batch must be several messages"):
        run_sync(logic(FakeRemoting({"T": route("a")})).send_batch(batch))


@pytest.mark.parametrize(("name", "value"), [("body", "text"), ("body", None), ("flag", 2**31), ("topic", 5)])
def test_a_message_that_was_changed_after_it_was_made_is_checked_again(name: str, value: Any) -> None:
    message = Message("T", b"x")
    setattr(message, name, value)
    remoting = FakeRemoting({"T": route("a")})
    with pytest.raises((TypeError, MessageIllegal)):
        run_sync(logic(remoting).send(message))
    assert not remoting.asked
