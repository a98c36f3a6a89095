"""Numbers that admins send and the broker keeps: one that does not fit its field in Java keeps no broker out of the
name servers, for none takes a registration with it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rocketcore.codes import RequestCode
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.protocol.bodies.group import SubscriptionGroupWrapper
from rocketcore.protocol.bodies.route import TopicRouteData
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.nameserver import GetRouteInfoRequestHeader
from rocketcore.transport.client import RemotingClient
from tests.integration.broker_client import BrokerClient, running_broker

INT_MISFITS = (-(2**31) - 1, 2**31, 2**40, 2**63)
FIELDS = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: ("readQueueNums", "writeQueueNums", "perm"),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag"),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (
        *("retryQueueNums", "retryMaxTimes", "groupSysFlag", "consumeTimeoutMinute"),
        *("brokerId", "whichBrokerWhenConsumeSlowly"),
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ("retryQueueNums", "retryMaxTimes", "brokerId"),
    RequestCode.SET_MESSAGE_REQUEST_MODE: ("popShareQueueNum",),
}
LONGS = {"brokerId", "whichBrokerWhenConsumeSlowly"}


def request(code: int, name: str, field: str, value: int) -> RemotingCommand:
    topic: dict[str, Any] = {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    bodies: dict[int, Any] = {
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [topic | {field: value}]},
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": name, field: value},
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [{"groupName": name, field: value}]},
        RequestCode.SET_MESSAGE_REQUEST_MODE: {"topic": "Known", "consumerGroup": name, "mode": "POP", field: value},
    }
    command = RemotingCommand.request(code, body=json.dumps(bodies[code]).encode() if code in bodies else b"")
    if code == RequestCode.UPDATE_AND_CREATE_TOPIC:
        fields = {"topic": name, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": False}
        fields |= {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, field: value}
        command.ext_fields = {key: str(each).lower() if each is False else str(each) for key, each in fields.items()}
    return command


async def route(client: RemotingClient, name_server: NameServer, topic: str) -> TopicRouteData:
    header = GetRouteInfoRequestHeader(topic=topic)
    while True:
        asked = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        answer = await client.invoke(name_server.address, asked, 10)
        if answer.code == 0:
            return TopicRouteData.decode(answer.body)
        await asyncio.sleep(0.01)


def test_numbers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    async def ask(client: BrokerClient, code: int, name: str, field: str, value: int) -> RemotingCommand:
        command = request(code, name, field, value)
        return await client.client.invoke(client.broker.address, command, 10)

    async def run() -> None:
        server = NameServer(NameServerConfig(listen_port=0, rocketmq_home=tmp_path / "namesrv"))
        await server.start()
        try:
            async with asyncio.timeout(60), running_broker(tmp_path / "store", namesrv=server.address) as client:
                await client.send("Known")
                for code, fields in FIELDS.items():
                    for field in fields:
                        for value in INT_MISFITS:
                            if field in LONGS and value != 2**63:
                                continue
                            answer = await ask(client, code, f"refused-{field}", field, value)
                            assert answer.code != 0, (code, field, value)
                            assert {field, str(value)} <= set(re.findall(r"[\w-]+", answer.remark or "")), answer.remark
                        # Apache's brokers look at no number further, and name servers take it.
                        assert (await ask(client, code, f"taken-{field}", field, -1)).code == 0
                for code in (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
                    table = (await client.ask(code)).body
                    assert b"taken" in table
                    assert b"refused" not in table
                await client.send("Later")
                await route(client.client, server, "Later")
        finally:
            await server.stop()

    asyncio.run(run())


@pytest.mark.parametrize("value", INT_MISFITS)
def test_a_store_that_holds_such_numbers_starts_and_registers(
    tmp_path: Path, value: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    topic = {"topicName": "bad", "readQueueNums": value, "writeQueueNums": 3, "perm": 6}
    tables = {
        "topics": {"topicConfigTable": {"bad": topic, "good": topic | {"topicName": "good", "readQueueNums": 2}}},
        "subscriptionGroup": {"subscriptionGroupTable": {"g": {"groupName": "g", "retryQueueNums": value}}},
        "messageRequestMode": {
            "messageRequestModeMap": {"good": {"g": {"topic": "good", "consumerGroup": "g", "popShareQueueNum": value}}}
        },
    }
    for name, table in tables.items():
        (config / f"{name}.json").write_text(json.dumps(table))

    async def run() -> None:
        server = NameServer(NameServerConfig(listen_port=0, rocketmq_home=tmp_path / "namesrv"))
        await server.start()
        try:
            async with asyncio.timeout(60), running_broker(tmp_path / "store", namesrv=server.address) as client:
                for name, reads in (("bad", 16), ("good", 2)):
                    [queues] = (await route(client.client, server, name)).queue_datas
                    assert (queues.read_queue_nums, queues.write_queue_nums) == (reads, 3)
                groups = (await client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body
                assert SubscriptionGroupWrapper.decode(groups).subscription_group_table["g"].retry_queue_nums == 1
        finally:
            await server.stop()

    asyncio.run(run())
    warned = [record.getMessage() for record in caplog.records if "do not fit" in record.getMessage()]
    assert len(warned) == 3
    assert f"topic=bad numbers=readQueueNums={value}" in warned[0]
