"""Messages for a time, over the wire: when they come, how one is taken back, what a start makes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import rocketcore as rmq
from rocketcore import aio
from rocketcore._fast.properties import decode_properties
from rocketcore.codes import TIMER_TOPIC, RequestCode
from rocketcore.local import LocalCluster
from rocketcore.protocol.bodies.topic import KVTable
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import DeleteTopicRequestHeader
from rocketcore.protocol.headers.message import RecallMessageRequestHeader, RecallMessageResponseHeader
from rocketcore.protocol.recall import RecallHandle
from tests.integration.broker_client import BrokerClient, running_broker, unique


def play(folder: Path, scenario: Callable[[BrokerClient], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), running_broker(folder, **settings) as client:
            await scenario(client)

    asyncio.run(run())


def now() -> int:
    return time.time_ns() // 1_000_000


async def come(client: BrokerClient, count: int, topic: str = "T") -> list[bytes]:
    """Wait until a queue has so many messages."""
    read: list[bytes] = []
    while len(read) < count:
        read += await client.bodies(topic, 0, len(read), hold_millis=5_000)
    return read


async def recall(client: BrokerClient, topic: str, handle: str) -> RemotingCommand:
    header = RecallMessageRequestHeader(producer_group="producers", topic=topic, recall_handle=handle)
    return await client.ask(RequestCode.RECALL_MESSAGE, header)


def handle_of(answer: RemotingCommand) -> str:
    assert answer.code == 0, answer
    assert answer.ext_fields is not None
    return answer.ext_fields["recallHandle"]


def test_a_message_comes_at_its_time_and_the_answer_has_its_handle(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        at = now() + 1_200
        answer = await client.send("T", b"late", properties={"TIMER_DELIVER_MS": str(at)})
        out = (at - 1) // 1000 * 1000
        assert RecallHandle.decode(handle_of(answer)) == ("T", "broker-a", str(out + 1), unique(1))
        answer = await client.send("T", b"now", properties={"TIMER_DELIVER_MS": "1"})
        assert answer.ext_fields is not None
        assert "recallHandle" not in answer.ext_fields
        assert await come(client, 2) == [b"now", b"late"]
        assert at <= now() < at + 1_000
        _, record = await client.records("T")
        assert record.store_timestamp >= at
        properties = decode_properties(record.message.properties)
        assert (properties["REAL_TOPIC"], properties["TIMER_OUT_MS"]) == ("T", str(out))

    play(tmp_path, scenario)


def test_a_message_that_is_taken_back_does_not_come(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        at = str(now() + 2_500)
        gone = await client.send("T", b"gone", properties={"TIMER_DELIVER_MS": at})
        await client.send("T", b"stays", properties={"TIMER_DELIVER_MS": at})
        answer = await recall(client, "T", handle_of(gone))
        assert (answer.code, answer.header(RecallMessageResponseHeader).msg_id) == (0, unique(1))
        assert answer.ext_fields is not None
        assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
        [record] = await client.records(TIMER_TOPIC, 0, 2)
        told = decode_properties(record.message.properties)
        assert (record.message.body, told["TIMER_DEL_UNIQKEY"]) == (b"0", f"T+{unique(1)}")
        assert await come(client, 1) == [b"stays"]
        table = KVTable.decode((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
        assert (table["timerRecalled"], table["timerSkipped"], table["timerCongestNum"]) == ("1", "0", "0")
        answer = await recall(client, "T", handle_of(gone))
        assert (answer.code, answer.remark) == (604, "recall failed, timestamp invalid")

    play(tmp_path, scenario, recall_message_enable=True)


LATER = str(4_000_000_000_000)


@pytest.mark.parametrize(
    ("topic", "handle", "code", "remark"),
    [
        ("Unknown", "", 17, "recall failed, the topic[Unknown] not exist"),
        ("T", "nonsense", 604, "recall handle is invalid"),
        ("T", RecallHandle("U", "broker-a", LATER, "id").encode(), 604, "recall failed, topic not match"),
        ("T", RecallHandle("T", "broker-b", LATER, "id").encode(), 604, "recall failed, broker service not available"),
        ("T", RecallHandle("T", "broker-a", LATER, "id").encode(), 604, "recall failed, timestamp invalid"),
        ("T", RecallHandle("T", "broker-a", "-1", "id").encode(), 604, "recall failed, timestamp invalid"),
        ("T", RecallHandle("T", "broker-a", "soon", "id").encode(), 604, "recall failed, timestamp invalid"),
    ],
)
def test_handles_that_take_nothing_back(tmp_path: Path, topic: str, handle: str, code: int, remark: str) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        answer = await recall(client, topic, handle)
        assert (answer.code, answer.remark) == (code, remark)

    play(tmp_path, scenario, recall_message_enable=True)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({}, 16),
        ({"recall_message_enable": True, "start_accept_send_request_time_stamp": int(LATER)}, 14),
        (
            {
                "recall_message_enable": True,
                "broker_permission": 4,
                "allow_recall_when_broker_not_writeable": False,
            },
            14,
        ),
        ({"recall_message_enable": True, "broker_permission": 4}, 17),
    ],
)
def test_brokers_that_take_nothing_back(tmp_path: Path, settings: dict[str, object], code: int) -> None:
    async def scenario(client: BrokerClient) -> None:
        assert (await recall(client, "T", "x")).code == code

    play(tmp_path, scenario, **settings)


def test_a_send_into_the_timers_topic_harms_nothing(tmp_path: Path) -> None:
    """It stops the timer of Apache's broker."""

    async def scenario(client: BrokerClient) -> None:
        answer = await client.send(TIMER_TOPIC, b"x")
        assert answer.code == 16
        await client.send("T", b"late", properties={"TIMER_DELAY_MS": "500"})
        assert await come(client, 1) == [b"late"]

    play(tmp_path, scenario)


def test_messages_wait_over_a_stop(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            at = now() + 1_500
            async with running_broker(tmp_path) as client:
                await client.send("T", b"first", properties={"TIMER_DELAY_MS": "100"})
                await come(client, 1)
                await client.send("T", b"second", properties={"TIMER_DELIVER_MS": str(at)})
            async with running_broker(tmp_path) as client:
                assert await come(client, 2) == [b"first", b"second"]
                assert at <= now()
            async with running_broker(tmp_path) as client:
                await client.send("T", b"third", properties={"TIMER_DELAY_MS": "100"})
                assert await come(client, 3) == [b"first", b"second", b"third"]

    asyncio.run(run())


def test_a_topic_that_was_deleted_meanwhile_does_not_come_back(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("Gone")
        await client.send("Gone", b"x", properties={"TIMER_DELAY_MS": "300"})
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="Gone"))
        await client.send("T", b"late", properties={"TIMER_DELAY_MS": "1000"})
        assert await come(client, 1) == [b"late"]
        assert await client.bodies("Gone") == []
        table = KVTable.decode((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
        assert table["timerSkipped"] == "1"

    play(tmp_path, scenario)


def test_clients_send_for_later_and_take_back() -> None:
    with LocalCluster(properties={"recallMessageEnable": "true"}) as cluster:
        with rmq.Producer(cluster.namesrv, group="g") as producer:
            gone = producer.send("T", "gone", delay=2.0)
            assert gone.recall_handle is not None
            producer.send("T", "later", deliver_at=datetime.now(UTC) + timedelta(seconds=2))
            assert producer.recall("T", gone.recall_handle) == gone.msg_id
            with pytest.raises(rmq.ConfigError, match="is not a handle of a message to 'T'"):
                producer.recall("T", "nonsense")
            producer.send("U", "x")
            with pytest.raises(rmq.BrokerError, match="topic not match"):
                producer.recall("U", gone.recall_handle)
            other = RecallHandle("T", "elsewhere", LATER, "id").encode()
            with pytest.raises(rmq.RouteNotFound, match="elsewhere"):
                producer.recall("T", other)
            result = producer.send_nowait("T", "nowait", delay=0.1).result()
            assert result.recall_handle is not None

        async def read_and_recall() -> None:
            async with aio.Producer(cluster.namesrv, group="g") as producer:
                result = await producer.send("T", "gone too", delay=3)
                assert result.recall_handle is not None
                assert await producer.recall("T", result.recall_handle) == result.msg_id

        asyncio.run(read_and_recall())
        with rmq.PushConsumer(cluster.namesrv, group="readers", start_from="first") as consumer:
            consumer.subscribe("T")
            found = []
            for message in consumer:
                found.append(message.text())
                message.ack()
                if "later" in found:
                    break
        assert sorted(found) == ["later", "nowait"]
