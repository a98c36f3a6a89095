"""What a tool asks a consumer through a broker: 223, 307, 309, and resets that clients are told of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcore import aio
from rocketcore.client.config import ConsumerConfig
from rocketcore.codes import LanguageCode, RequestCode, ResponseCode
from rocketcore.message import MessageQueue, ReceivedMessage
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.protocol.bodies.client import (
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from rocketcore.protocol.bodies.heartbeat import ConsumerData, ConsumeType, HeartbeatData, MessageModel
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketcore.transport.client import RemotingClient
from rocketcore.transport.routes import Route
from tests.integration.broker_client import TIMEOUT, BrokerClient, running_broker

INFO, DIRECTLY = RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY
STATUS, ASK_STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
RESET, TELL_RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.RESET_CONSUMER_CLIENT_OFFSET


class Member:
    """A client of the group ``readers`` that answers what a test says."""

    def __init__(self, client: BrokerClient) -> None:
        self.asked: list[RemotingCommand] = []
        self.heard = asyncio.Event()
        self._broker = client.broker
        self.remoting = RemotingClient()

    def answers(self, code: int, answer: Callable[[RemotingCommand], Any]) -> None:
        def serve(channel: object, request: RemotingCommand) -> Any:
            request.detach()
            self.asked.append(request)
            self.heard.set()
            return answer(request)

        self.remoting.add_routes([Route(code, serve)])

    async def join(self, client_id: str = "client-1", *, version: int | None = None) -> None:
        consumer = ConsumerData("readers", ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING)
        request = RemotingCommand.request(
            RequestCode.HEART_BEAT, body=HeartbeatData(client_id, [], [consumer]).encode()
        )
        if version is not None:
            request.version = version
        assert (await self.remoting.invoke(self._broker.address, request, TIMEOUT)).code == 0


def play(folder: Path, scenario: Callable[[BrokerClient, Member], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), running_broker(folder, **settings) as client:
            member = Member(client)
            try:
                await scenario(client, member)
            finally:
                await member.remoting.close()

    asyncio.run(run())


def running_info(client_id: str = "client-1") -> GetConsumerRunningInfoRequestHeader:
    return GetConsumerRunningInfoRequestHeader(consumer_group="readers", client_id=client_id, jstack_enable=True)


def test_an_answer_is_handed_on_as_it_came(tmp_path: Path) -> None:
    def answer(request: RemotingCommand) -> RemotingCommand:
        response = RemotingCommand.response(request, 0, "a remark", body=b"{odd json")
        response.language, response.version = LanguageCode.RUST, 77
        response.add_ext_field("x", "y")
        return response

    async def scenario(client: BrokerClient, member: Member) -> None:
        member.answers(INFO, answer)
        await member.join()
        relayed = await client.ask(INFO, running_info())
        assert (relayed.code, relayed.remark, relayed.body) == (0, "a remark", b"{odd json")
        assert (relayed.language, relayed.version, relayed.ext_fields) == (LanguageCode.RUST, 77, {"x": "y"})
        [asked] = member.asked
        assert (asked.ext_fields or {})["jstackEnable"] == "true"

    play(tmp_path, scenario)


def test_who_is_not_there(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient, member: Member) -> None:
        answer = await client.ask(INFO, running_info())
        assert (answer.code, answer.remark) == (1, "The Consumer <readers> <client-1> not online")
        await member.join(version=61)
        answer = await client.ask(INFO, running_info())
        assert answer.code == 1
        assert "Version <61> too low" in (answer.remark or "")
        answer = await client.ask(INFO, running_info("client-2"))
        assert (answer.code, answer.remark) == (1, "The Consumer <readers> <client-2> not online")

    play(tmp_path, scenario)


def test_a_client_that_leaves_while_it_is_asked(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient, member: Member) -> None:
        async def never(request: RemotingCommand) -> None:
            await asyncio.Event().wait()

        member.answers(INFO, never)
        await member.join()
        asking = asyncio.create_task(client.ask(INFO, running_info()))
        await member.heard.wait()
        await member.remoting.close()
        answer = await asking
        assert answer.code == 1
        assert (answer.remark or "").startswith("invoke consumer <readers> <client-1> Exception: ")

    play(tmp_path, scenario)


def test_a_client_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketcore.broker.processors.relay._RELAY_SECONDS", 0.05)

    async def scenario(client: BrokerClient, member: Member) -> None:
        async def never(request: RemotingCommand) -> None:
            await asyncio.Event().wait()

        member.answers(INFO, never)
        await member.join()
        answer = await client.ask(INFO, running_info())
        assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
        assert (answer.remark or "").startswith("consumer <readers> <client-1> Timeout: ")

    play(tmp_path, scenario)


def test_a_message_to_consume_now(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient, member: Member) -> None:
        member.answers(DIRECTLY, lambda request: RemotingCommand.response(request, body=b"done"))
        await member.join()
        sent = (await client.send("T", b"by hand")).ext_fields or {}

        async def ask(msg_id: str) -> RemotingCommand:
            header = ConsumeMessageDirectlyResultRequestHeader(
                consumer_group="readers", client_id="client-1", msg_id=msg_id
            )
            return await client.ask(DIRECTLY, header)

        answer = await ask(sent["msgId"])
        assert (answer.code, answer.body) == (0, b"done")
        [asked] = member.asked
        fields = asked.ext_fields or {}
        assert (fields["brokerName"], fields["groupSysFlag"], fields["msgId"]) == ("broker-a", "0", sent["msgId"])
        assert b"by hand" in asked.body
        assert (await ask("?")).remark == "'?' is no offset message id: 1 characters"
        assert "can not find message" in ((await ask("F" * 32)).remark or "")
        assert len(member.asked) == 1

    play(tmp_path, scenario)


def test_where_the_clients_of_a_group_are(tmp_path: Path) -> None:
    queue = MessageQueue("T", "broker-a", 0)

    padding: list[bytes] = []

    def answer(request: RemotingCommand) -> RemotingCommand:
        body = GetConsumerStatusBody(message_queue_table={queue: 7}).encode()
        return RemotingCommand.response(request, body=b"".join([*padding, body]))

    async def scenario(client: BrokerClient, member: Member) -> None:
        header = GetConsumerStatusRequestHeader(topic="T", group="readers")
        nobody = await client.ask(STATUS, header)
        assert (nobody.code, nobody.remark) == (1, "No Any Consumer online in the consumer group: [readers]")
        member.answers(ASK_STATUS, answer)
        await member.join()
        await client.heartbeat("T", client_id="client-2")  # which has no answer
        told = GetConsumerStatusBody.decode((await client.ask(STATUS, header)).body)
        assert told.consumer_table == {"client-1": {queue: 7}}
        one = GetConsumerStatusRequestHeader(topic="T", group="readers", client_addr="client-2")
        assert GetConsumerStatusBody.decode((await client.ask(STATUS, one)).body).consumer_table == {}
        padding.append(b" " * (1 << 20))
        told = GetConsumerStatusBody.decode((await client.ask(STATUS, header)).body)
        assert told.consumer_table == {}, "an answer of more than a MiB is none"

    play(tmp_path, scenario)


async def commit(client: BrokerClient, offset: int, queues: range = range(4)) -> None:
    for queue_id in queues:
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group="readers", topic="T", queue_id=queue_id, commit_offset=offset
        )
        assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0


def reset(timestamp: int = 0, *, force: bool = True) -> ResetOffsetRequestHeader:
    return ResetOffsetRequestHeader(group="readers", topic="T", timestamp=timestamp, force=force)


@pytest.mark.parametrize("language", [LanguageCode.JAVA, LanguageCode.CPP])
def test_clients_are_told_of_a_reset(tmp_path: Path, language: LanguageCode) -> None:
    async def scenario(client: BrokerClient, member: Member) -> None:
        member.answers(TELL_RESET, lambda request: None)
        await member.join()
        for _ in range(3):
            await client.send("T")
        await commit(client, 2)
        request = RemotingCommand.request(RESET, reset(-1))
        request.language = language
        answer = await client.client.invoke(client.broker.address, request, TIMEOUT)
        assert answer.code == 0
        wanted = {MessageQueue("T", "broker-a", queue_id): (3 if queue_id == 0 else 0) for queue_id in range(4)}
        assert ResetOffsetBody.decode(answer.body).offset_table == wanted
        await member.heard.wait()
        [told] = member.asked
        if language is LanguageCode.CPP:
            entries = ResetOffsetBodyForC.decode(told.body).offset_table
            assert {MessageQueue(e.topic, e.broker_name, e.queue_id): e.offset for e in entries} == wanted
        else:
            assert ResetOffsetBody.decode(told.body).offset_table == wanted
        back = ResetOffsetBody.decode((await client.ask(RESET, reset(-1, force=False))).body).offset_table
        assert back[MessageQueue("T", "broker-a", 0)] == 2  # not forward, unless it is forced

    play(tmp_path, scenario, use_server_side_reset_offset=False)


def test_resets_that_clients_cannot_be_told_of(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient, member: Member) -> None:
        answer = await client.ask(RESET, reset(5))
        assert answer.remark == "[reset-offset] reset offset failed, no topic in this broker. topic=T"
        await client.send("T")
        await client.heartbeat("T")
        await commit(client, 0, range(3))
        answer = await client.ask(RESET, reset(5))
        assert (answer.code, answer.remark) == (1, "THe consumer group <readers> not exist")
        await commit(client, 0)
        await member.join(version=27)
        answer = await client.ask(RESET, reset(5))
        assert (answer.code, answer.remark) == (1, "the client does not support this feature. version=27")

    play(tmp_path, scenario, use_server_side_reset_offset=False)


def test_a_reset_of_a_group_that_is_not_online(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient, member: Member) -> None:
        await client.send("T")
        await client.pull("T")  # which makes the group
        await commit(client, 0)
        answer = await client.ask(RESET, reset(5))
        assert (answer.code, answer.remark) == (
            ResponseCode.CONSUMER_NOT_ONLINE,
            "Consumer not online, so can not reset offset, Group: readers Topic: T Timestamp: 5",
        )

    play(tmp_path, scenario, use_server_side_reset_offset=False)


def test_our_consumer_answers_everything(tmp_path: Path) -> None:
    handled: list[bytes] = []
    twice = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        handled.append(message.body)
        if len(handled) == 2:
            twice.set()

    async def run() -> None:
        config = NameServerConfig(rocketmq_home=tmp_path / "names", listen_port=0)
        async with NameServer(config) as names, asyncio.timeout(60):
            namesrv = f"127.0.0.1:{names.port}"
            async with running_broker(tmp_path / "store", namesrv=namesrv) as client:
                sent = (await client.send("T", b"one")).ext_fields or {}
                consumer = aio.PushConsumer(
                    config=ConsumerConfig(namesrv=(namesrv,), group="readers", start_from="first")
                )
                await consumer.subscribe("T", handler=handler)
                async with consumer:
                    await consumer.wait_ready()
                    info = await client.ask(INFO, running_info(consumer.client_id))
                    told = ConsumerRunningInfo.decode(info.body)
                    assert MessageQueue("T", "broker-a", 0) in told.mq_table
                    assert "test_our_consumer_answers_everything" in (told.jstack or "")
                    header = ConsumeMessageDirectlyResultRequestHeader(
                        consumer_group="readers", client_id=consumer.client_id, msg_id=sent["msgId"]
                    )
                    result = ConsumeMessageDirectlyResult.decode((await client.ask(DIRECTLY, header)).body)
                    assert result.consume_result is CMResult.CR_SUCCESS
                    await twice.wait()
                    status = await client.ask(STATUS, GetConsumerStatusRequestHeader(topic="T", group="readers"))
                    table = GetConsumerStatusBody.decode(status.body).consumer_table[consumer.client_id]
                    assert table[MessageQueue("T", "broker-a", 0)] == 1
        assert handled == [b"one", b"one"]

    asyncio.run(run())
