"""Replies that a broker sends on to who asked: 324, 325 and 326."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcore._fast.properties import decode_properties
from rocketcore.broker.processors import reply as processor
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import ReplyMessageRequestHeader, SendMessageRequestHeader
from rocketcore.transport.channel import Channel
from rocketcore.transport.client import RemotingClient
from rocketcore.transport.routes import Route
from tests.integration.broker_client import TIMEOUT, BrokerClient, running_broker

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


class Asker:
    """A producer that a broker knows, and what was sent on to it."""

    def __init__(self, client: BrokerClient, code: int = 0) -> None:
        self.received: list[tuple[ReplyMessageRequestHeader, bytes]] = []
        self.remoting = RemotingClient()
        self._broker = client.broker
        self._code = code
        self.remoting.add_routes(
            [Route(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._pushed, ReplyMessageRequestHeader)]
        )

    def _pushed(self, channel: Channel, request: RemotingCommand, header: ReplyMessageRequestHeader) -> RemotingCommand:
        self.received.append((header, request.body))
        return RemotingCommand.response(request, self._code, "as it was told")

    async def heartbeat(self, client_id: str = "asker", group: str = "askers") -> None:
        beat = HeartbeatData(client_id, [ProducerData(group)], []).encode()
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=beat)
        assert (await self.remoting.invoke(self._broker.address, request, TIMEOUT)).code == 0


def play(folder: Path, scenario: Callable[[BrokerClient], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), running_broker(folder, **settings) as client:
            await scenario(client)

    asyncio.run(run())


async def reply(client: BrokerClient, body: bytes = b"the answer", **properties: str) -> RemotingCommand:
    asked = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker", "MSG_TYPE": "reply", **properties}
    given = {name: text for name, text in asked.items() if text}
    return await client.send(REPLY_TOPIC, body, properties=given, code=RequestCode.SEND_REPLY_MESSAGE_V2)


def test_a_reply_goes_to_who_asked_and_is_stored(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        asker = Asker(client)
        await asker.heartbeat()
        answer = await reply(client)
        assert (answer.code, answer.remark) == (0, None)
        fields = answer.ext_fields or {}
        assert (fields["queueId"], fields["queueOffset"], fields["MSG_REGION"]) == ("0", "0", "DefaultRegion")
        assert len(fields["msgId"]) == 32
        [(header, body)] = asker.received
        assert (header.topic, header.producer_group, header.flag, body) == (REPLY_TOPIC, "producers", 7, b"the answer")
        assert header.store_host == client.broker.address
        assert header.born_host.startswith("127.0.0.1:")
        assert header.store_timestamp > header.born_timestamp == 1_700_000_000_000
        properties = decode_properties((header.properties or "").encode())
        assert properties["PUSH_REPLY_TIME"] == str(header.store_timestamp)
        assert properties["CORRELATION_ID"] == "c-1"
        assert (properties["MSG_REGION"], properties["TRACE_ON"]) == ("DefaultRegion", "true")
        [record] = await client.records(REPLY_TOPIC)
        assert bytes(record.message.body) == b"the answer"
        assert "PUSH_REPLY_TIME" not in decode_properties(record.message.properties)
        await asker.remoting.close()

    play(tmp_path, scenario)


def test_the_long_form_of_a_reply(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        asker = Asker(client)
        await asker.heartbeat()
        header = SendMessageRequestHeader(
            producer_group="producers", topic=REPLY_TOPIC, default_topic="TBW102", default_topic_queue_nums=4,
            queue_id=-1, sys_flag=0, born_timestamp=1, flag=0, properties="REPLY_TO_CLIENT\x01asker\x02",
        )  # fmt: skip
        answer = await client.ask(RequestCode.SEND_REPLY_MESSAGE, header, b"long")
        assert answer.code == 0
        assert [body for _, body in asker.received] == [b"long"]
        await asker.remoting.close()

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("client_id", "remark"),
    [
        ("nobody", "push reply message fail, channel of <nobody> not found."),
        ("", "reply message properties[REPLY_TO_CLIENT] is null"),
    ],
)
def test_a_reply_to_nobody_is_stored_all_the_same(tmp_path: Path, client_id: str, remark: str) -> None:
    async def scenario(client: BrokerClient) -> None:
        answer = await reply(client, REPLY_TO_CLIENT=client_id)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
        assert (answer.ext_fields or {})["queueOffset"] == "0"
        assert await client.bodies(REPLY_TOPIC) == [b"the answer"]

    play(tmp_path, scenario)


def test_replies_are_not_stored_where_the_setting_is_off(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        asker = Asker(client)
        await asker.heartbeat()
        answer = await reply(client)
        assert (answer.code, (answer.ext_fields or {})["msgId"]) == (0, "0")
        assert len(asker.received) == 1
        assert await client.bodies(REPLY_TOPIC) == []
        await asker.remoting.close()

    play(tmp_path, scenario, store_reply_message_enable=False)


def test_a_client_that_does_not_take_its_reply(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        asker = Asker(client, code=ResponseCode.SYSTEM_ERROR)
        await asker.heartbeat()
        answer = await reply(client)
        assert (answer.code, answer.remark) == (1, "push reply message to askerfail.")
        await asker.remoting.close()

    play(tmp_path, scenario)


def test_replies_are_checked_as_sends_are(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        assert (await client.send("SELF_TEST_TOPIC", code=code)).code == ResponseCode.NO_PERMISSION
        assert (await client.send("a b", code=code)).code == ResponseCode.INVALID_PARAMETER
        assert (await client.send(REPLY_TOPIC, queue_id=9, code=code)).code == ResponseCode.INVALID_PARAMETER
        assert (await client.send("New", default_topic="?", code=code)).code == ResponseCode.TOPIC_NOT_EXIST

    play(tmp_path, scenario)


def test_replies_that_wait_for_their_clients_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: BrokerClient) -> None:
        asker, asked, go_on = Asker(client), asyncio.Event(), asyncio.Event()

        async def slow(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            asked.set()
            await go_on.wait()
            return RemotingCommand.response(request)

        slow_client = RemotingClient()
        slow_client.add_routes([Route(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, slow)])
        asker.remoting, unused = slow_client, asker.remoting
        await asker.heartbeat()
        first = asyncio.create_task(reply(client, bytes(800)))
        await asked.wait()
        assert (await reply(client, bytes(800))).code == ResponseCode.SYSTEM_BUSY
        async with RemotingClient() as second:
            refused = await reply(BrokerClient(client.broker, second), bytes(800))
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "800 bytes of others wait for an answer" in (refused.remark or "")
            monkeypatch.setattr(processor, "_CONNECTIONS", 1)
            assert (await reply(BrokerClient(client.broker, second), bytes(800))).code == ResponseCode.SYSTEM_BUSY
        go_on.set()
        assert (await first).code == 0
        assert (await reply(client, bytes(800))).code == 0
        await slow_client.close()
        await unused.close()

    play(tmp_path, scenario, max_pending_connection_bytes=1000)
