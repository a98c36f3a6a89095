"""Names of a namespace on the wire, and what applications see of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocketcore.client.config import ConsumerConfig, ProducerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.pull import PullConsumer
from rocketcore.client.push import PushConsumer
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.sender import Sender
from rocketcore.errors import ConfigError
from rocketcore.message import Message, MessageQueue, ReceivedMessage, leave_namespace
from rocketcore.naming import with_namespace, without_namespace
from rocketcore.protocol.command import RemotingCommand
from tests.fixtures.vectors import family, name_of
from tests.unit.client.fakes import FakeRemoting, route


@pytest.mark.parametrize("record", family("names.jsonl", "namespace/"), ids=name_of)
def test_names_are_javas(record: dict[str, Any]) -> None:
    namespace, name = record["input"]["namespace"] or "", record["input"]["resource"] or ""
    wrapped = with_namespace(name, namespace)
    assert wrapped == (record["wrapNamespace"] or "")
    assert without_namespace(name, namespace) == (record["withoutThisNamespace"] or "")
    assert without_namespace(wrapped, namespace) == without_namespace(name, namespace)
    assert with_namespace(wrapped, namespace) == wrapped


def producer(**settings: Any) -> tuple[Sender, FakeRemoting]:
    config = ProducerConfig(group="pg", **settings)
    remoting = FakeRemoting({"shop%T": route("a"), "T": route("a")})
    return Sender(config, ClientInstance(config, remoting, ASYNCIO)), remoting


def test_a_send_goes_to_the_topic_of_the_namespace() -> None:
    sender, remoting = producer(namespace="shop")
    result = asyncio.run(sender.send("T", b"x", queue=MessageQueue("T", "a", 1)))
    assert result.queue == MessageQueue("T", "a", 1)
    [(_, request)] = remoting.asked
    fields = request.ext_fields or {}
    assert (fields["a"], fields["b"]) == ("shop%pg", "shop%T")
    assert "INSTANCE_ID\x01shop\x02" in fields["i"]


def test_a_batch_does_too() -> None:
    sender, remoting = producer(namespace="shop")
    asyncio.run(sender.send_batch([Message("T", b"x"), Message("T", b"y")]))
    [(_, request)] = remoting.asked
    assert (request.ext_fields or {})["b"] == "shop%T"


def test_what_hooks_add_is_sent() -> None:
    class Adding:
        def before_request(self, address: str, command: RemotingCommand) -> None:
            command.add_ext_field("mine", "x")

        def after_response(self, address: str, command: RemotingCommand, response: RemotingCommand) -> None:
            pass

    sender, _ = producer(hooks=[Adding()], namespace_v2="shop")
    publisher = asyncio.run(sender.publisher("T"))
    target = sender.target(publisher, None, None)
    assert target is not None
    request = target.request(_outgoing(), 1)
    for hook in sender.config.remoting["hooks"]:
        hook.before_request("a:1", request)
    text = request.encode()
    assert b'"mine":"x"' in text
    assert b'"ns":"shop"' in text
    assert b'"nsd":"true"' in text


def _outgoing() -> Any:
    from rocketcore.client.outgoing import outgoing_message

    return outgoing_message(Message("T", b"x"))


def test_a_consumer_subscribes_within_its_namespace() -> None:
    async def subscribe() -> None:
        consumer = PushConsumer(group="g", namespace="shop")
        consumer.subscribe("T")
        consumer.subscribe("shop%U")
        assert consumer.topics() == {"shop%T", "shop%U", "%RETRY%shop%g"}
        assert consumer.consumer_data().group_name == "shop%g"

    asyncio.run(subscribe())


def test_a_message_names_its_topic_as_the_application_does() -> None:
    message = ReceivedMessage("shop%T", b"", MessageQueue("shop%T", "a", 0), 0, "", "")
    leave_namespace([message], "other")
    assert message.topic == "shop%T"
    leave_namespace([message], "shop")
    assert message.topic == "T"


def test_one_namespace_is_enough() -> None:
    with pytest.raises(ConfigError, match="namespace or namespace_v2"):
        ProducerConfig(namespace="a", namespace_v2="b")
    config = ConsumerConfig(group="g", namespace="shop")
    assert PullConsumer(config=config).config.group == "shop%g"
