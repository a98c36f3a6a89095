"""Queues shared out by the broker, and whether a group pulls or pops a topic."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rocketcore.broker.processors.assignment import AssignmentProcessor
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.state.request_mode import RequestModes
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import BrokerError
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.protocol.bodies.heartbeat import MessageModel
from rocketcore.protocol.bodies.pop import (
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from rocketcore.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.client import RemotingClient
from tests.integration.broker_client import TIMEOUT, BrokerClient, running_broker

GROUP = "readers"


async def assigned(client: BrokerClient, member: str, topic: str = "T", **fields: object) -> bytes:
    values = {"strategy_name": "AVG", "message_model": MessageModel.CLUSTERING, **fields}
    body = QueryAssignmentRequestBody(topic, GROUP, member, **values)  # type: ignore[arg-type]
    answer = await client.ask(RequestCode.QUERY_ASSIGNMENT, body=body.encode())
    assert answer.code == 0, answer.remark
    return answer.body


def queues(body: bytes) -> list[tuple[str, int, str]]:
    """Broker, queue id and mode of each queue."""
    found = QueryAssignmentResponseBody.decode(body).message_queue_assignments
    assert found is not None
    return [
        (each.message_queue.broker, each.message_queue.queue_id, each.mode.value)
        for each in found
        if each.message_queue is not None and each.mode is not None
    ]


async def set_mode(client: BrokerClient, topic: str, mode: MessageRequestMode, share: int = 0) -> RemotingCommand:
    body = SetMessageRequestModeRequestBody(topic, GROUP, mode, share)
    return await client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body.encode())


def test_members_share_the_queues_out_by_pull_or_pop(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client, RemotingClient() as second, RemotingClient() as third:
            await client.send("T")  # four queues
            assert await assigned(client, "c1") == b"{}"
            await client.heartbeat("T", client_id="c1")
            assert queues(await assigned(client, "c1")) == [("broker-a", number, "PULL") for number in range(4)]
            await BrokerClient(client.broker, second).heartbeat("T", client_id="c2")
            assert queues(await assigned(client, "c2")) == [("broker-a", 2, "PULL"), ("broker-a", 3, "PULL")]
            assert len(queues(await assigned(client, "c2", message_model=MessageModel.BROADCASTING))) == 4
            assert await assigned(client, "c1", strategy_name="MINE") == b"{}"
            assert await assigned(client, "c1", topic="None") == b"{}"

            assert (await set_mode(client, "T", MessageRequestMode.POP)).code == 0
            assert queues(await assigned(client, "c2")) == [("broker-a", -1, "POP")]
            await BrokerClient(client.broker, third).heartbeat("T", client_id="c3")
            assert (await set_mode(client, "T", MessageRequestMode.POP, 1)).code == 0
            mine = {
                name: {queue for _, queue, _ in queues(await assigned(client, name))} for name in ("c1", "c2", "c3")
            }
            assert mine == {"c1": {0, 1, 2}, "c2": {2, 3}, "c3": {3, 0, 1}}

    asyncio.run(main())


def test_more_queues_than_are_shared_out_are_refused_before_they_are_made(tmp_path: Path) -> None:
    """Whoever registers as a broker may say that a topic has 2,147,483,647 queues."""

    async def main() -> None:
        said = TopicRouteData(
            [QueueData("b", 2**31 - 1, 0, 4), QueueData("gone", 9, 0, 4), QueueData("c", -5, 0, 4)],
            [BrokerData("x", "b", {0: "b:1"}), BrokerData("x", "c", {0: "c:1"})],
        )

        async def route(_: str) -> TopicRouteData:
            return said

        async with running_broker(tmp_path) as client:
            context = client.broker._context
            processor = AssignmentProcessor(context, RequestModes(JsonFile(tmp_path / "modes.json")), route)
            body = QueryAssignmentRequestBody("T", GROUP, "c1", "AVG", MessageModel.BROADCASTING).encode()
            request = RemotingCommand.request(RequestCode.QUERY_ASSIGNMENT, body=body)
            with pytest.raises(BrokerError, match=r"has 2147483647 queues on 2 brokers, at most 16384"):
                await processor.assignment(None, request)  # type: ignore[arg-type]
            said.queue_datas[0].read_queue_nums = 100
            answer = await processor.assignment(None, request)  # type: ignore[arg-type]
            assert len(queues(answer.body)) == 100

    asyncio.run(main())


def test_queues_of_all_brokers_are_shared_out_as_the_name_server_knows_them(tmp_path: Path) -> None:
    async def main() -> None:
        config = NameServerConfig(rocketmq_home=tmp_path, listen_port=0, bind_address="127.0.0.1")
        async with NameServer(config) as names:
            address = f"127.0.0.1:{names.port}"
            async with (
                running_broker(tmp_path / "a", namesrv=address) as client,
                running_broker(tmp_path / "b", namesrv=address, broker_name="broker-b") as other,
            ):
                await client.send("T")
                await other.send("T")
                await client.heartbeat("T", client_id="c1")
                async with asyncio.timeout(TIMEOUT):
                    # The other broker's registration is on its way; the route is asked for anew after a while.
                    while len(found := queues(await assigned(client, "c1"))) < 8:
                        client.broker._outer._routes.clear()  # type: ignore[union-attr]
                expected = [(name, number, "PULL") for name in ("broker-a", "broker-b") for number in range(4)]
                assert found == expected
                assert (await set_mode(client, "T", MessageRequestMode.POP)).code == 0
                popped = queues(await assigned(client, "c1"))
                assert popped == [("broker-a", -1, "POP"), ("broker-b", -1, "POP")]

    asyncio.run(main())


def test_a_mode_outlives_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as client:
            await client.send("T")
            assert (await set_mode(client, "None", MessageRequestMode.POP)).code == ResponseCode.TOPIC_NOT_EXIST
            assert (await set_mode(client, "%RETRY%g", MessageRequestMode.POP)).code == ResponseCode.NO_PERMISSION
            assert (await set_mode(client, "T", MessageRequestMode.POP, 2)).code == 0
        async with running_broker(tmp_path) as client:
            answer = await client.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
            said = {"topic": "T", "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 2}
            assert json.loads(answer.body) == {"messageRequestModeMap": {"T": {GROUP: said}}}

    asyncio.run(main())
