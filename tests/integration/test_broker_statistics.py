"""What tools ask about progress and traffic: 303, 308, 315, 317, 321, 328, 345; and lists of topics and groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcore._fast.properties import java_hash
from rocketcore.broker.processors import statistics
from rocketcore.broker.record import RecordReader
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.client import ProducerTableInfo
from rocketcore.protocol.bodies.group import GroupForbidden, SubscriptionGroupConfig, SubscriptionGroupList
from rocketcore.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from rocketcore.protocol.bodies.stats import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QuerySubscriptionResponseBody,
)
from rocketcore.protocol.bodies.topic import CreateTopicListRequestBody, TopicConfig
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import (
    DeleteTopicRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetHeader,
    QuerySubscriptionByConsumerRequestHeader,
    UpdateGroupForbiddenRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from rocketcore.protocol.headers.consumer import ResetOffsetRequestHeader, UpdateConsumerOffsetRequestHeader
from rocketcore.protocol.headers.message import ConsumerSendMsgBackRequestHeader
from tests.integration.broker_client import BrokerClient, running_broker
from tests.integration.pop_client import GROUP, ack, hide, pop

STATS = RequestCode.VIEW_BROKER_STATS_DATA


def play(folder: Path, scenario: Callable[[BrokerClient], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), running_broker(folder, **settings) as client:
            await scenario(client)

    asyncio.run(run())


async def commit(client: BrokerClient, offset: int, *, group: str = "readers", queue_id: int = 0) -> None:
    await client.pull("T", group=group)  # which makes the group
    header = UpdateConsumerOffsetRequestHeader(consumer_group=group, topic="T", queue_id=queue_id, commit_offset=offset)
    assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0


async def stats(client: BrokerClient, name: str, key: str) -> BrokerStatsItem:
    answer = await client.ask(STATS, ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key))
    assert answer.code == 0, answer.remark
    found = BrokerStatsData.decode(answer.body)
    assert found.stats_minute == found.stats_hour == found.stats_day
    assert found.stats_minute is not None
    return found.stats_minute


def test_long_lists_of_queues_are_made_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        await commit(client, 1)
        context, asked = client.broker._context, 0
        context.topics.ensure("Wide", 300)
        max_offset = context.store.max_offset

        def counted(topic: str, queue_id: int) -> int:
            nonlocal asked
            asked += topic == "Wide"  # others are looked at by what runs every second
            return max_offset(topic, queue_id)

        monkeypatch.setattr(context.store, "max_offset", counted)
        header = GetConsumeStatsRequestHeader(consumer_group="readers", topic_list="Wide;" * 10_000)
        answer = await client.ask(RequestCode.GET_CONSUME_STATS, header)
        assert len(ConsumeStats.decode(answer.body).offset_table) == asked == 300
        steps = 0

        async def step() -> None:
            nonlocal steps
            steps += 1

        monkeypatch.setattr(context.cooperative, "step", step)
        to_end = ResetOffsetRequestHeader(topic="Wide", group="readers", timestamp=-1, force=True)
        for code, question in (
            (RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group="readers", topic="Wide")),
            (RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="Wide")),
            (RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanRequestHeader(topic="Wide", group="readers")),
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, to_end),
            (RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader(order=False)),
        ):
            steps = 0
            answer = await client.ask(code, question)
            assert answer.code == 0, answer.remark
            assert steps >= 300, code
        monkeypatch.setattr(statistics, "_MOST_ROWS", 299)
        answer = await client.ask(RequestCode.GET_CONSUME_STATS, header)
        assert (answer.code, answer.remark) == (
            1,
            "the answer would have more than 299 queues: ask for some of its topics",
        )

    play(tmp_path, scenario)


def test_counters_of_a_broker(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for _ in range(3):
            await client.send("T", b"x" * 100)
        await client.send_batch("T", [b"y"] * 5)
        assert await stats(client, "TOPIC_PUT_NUMS", "T") == BrokerStatsItem(8, 0.8, 2.0)
        assert (await stats(client, "TOPIC_PUT_SIZE", "T")).sum > 8 * 91
        assert (await stats(client, "BROKER_PUT_NUMS", "DefaultCluster")).sum == 8
        await client.heartbeat("T")
        [*records] = await client.records("T")
        assert await stats(client, "GROUP_GET_NUMS", "T@readers") == BrokerStatsItem(8, 0.8, 8.0)
        assert (await stats(client, "GROUP_GET_SIZE", "T@readers")).sum > 8 * 91
        assert (await stats(client, "GROUP_GET_LATENCY", "0@T@readers")).sum == 0
        assert (await stats(client, "BROKER_GET_NUMS", "DefaultCluster")).sum == 8
        back = ConsumerSendMsgBackRequestHeader(
            offset=records[0].physical_offset, group="readers", delay_level=1, origin_topic="T"
        )
        assert (await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        assert (await stats(client, "SNDBCK_PUT_NUMS", "T@readers")).sum == 1
        nothing = await client.ask(STATS, ViewBrokerStatsDataRequestHeader(stats_name="TOPIC_PUT_NUMS", stats_key="U"))
        assert (nothing.code, nothing.remark) == (1, "The stats <TOPIC_PUT_NUMS> <U> not exist")

    play(tmp_path, scenario)


def test_counters_of_queues(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for _ in range(3):
            await client.send("T", b"x" * 100, queue_id=1)
        await client.send_batch("T", [b"y"] * 5, queue_id=2)
        await client.send("T", queue_id=3, properties={"DELAY": "1"})
        assert await stats(client, "QUEUE_PUT_NUMS", "T@1") == BrokerStatsItem(3, 0.3, 1.0)
        assert await stats(client, "QUEUE_PUT_NUMS", "T@2") == BrokerStatsItem(5, 0.5, 5.0)
        assert (await stats(client, "QUEUE_PUT_SIZE", "T@1")).sum > 3 * 191
        assert (await stats(client, "QUEUE_PUT_NUMS", "T@3")).sum == 1
        assert (await stats(client, "TOPIC_PUT_NUMS", "T")).sum == 9
        assert (await stats(client, "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "DefaultCluster")).sum == 9
        await client.heartbeat("T")
        await client.records("T", 1)
        await client.records("T", 3, hold_millis=9_000)
        assert await stats(client, "QUEUE_GET_NUMS", "T@1@readers") == BrokerStatsItem(3, 0.3, 3.0)
        assert (await stats(client, "QUEUE_GET_SIZE", "T@1@readers")).sum > 3 * 191
        assert (await stats(client, "QUEUE_PUT_NUMS", "T@3")).sum == 2  # asked for, and delivered
        assert (await stats(client, "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", "DefaultCluster")).sum == 4
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T"))
        header = ViewBrokerStatsDataRequestHeader(stats_name="QUEUE_GET_NUMS", stats_key="T@1@readers")
        assert (await client.ask(STATS, header)).code == 1

    play(tmp_path, scenario)


def test_counters_of_pops(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for _ in range(4):
            await client.send("T")
        messages = await pop(client, "T")
        for message in messages[:3]:
            assert (await ack(client, message)).code == 0
        assert (await ack(client, messages[0])).code == 0  # once more
        await hide(client, messages[3], 30_000)
        assert (await stats(client, "GROUP_ACK_NUMS", f"T@{GROUP}")).sum == 3
        assert (await stats(client, "GROUP_CK_NUMS", f"T@{GROUP}")).sum == 2
        assert (await stats(client, "BROKER_ACK_NUMS", "DefaultCluster")).sum == 3
        assert (await stats(client, "BROKER_CK_NUMS", "DefaultCluster")).sum == 2
        assert (await stats(client, "QUEUE_GET_NUMS", f"T@0@{GROUP}")).sum == 4

    play(tmp_path, scenario)


def test_where_all_groups_are(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for _ in range(5):
            await client.send("T")
        await commit(client, 2)
        await commit(client, 4, group="others")

        async def ask(*, order: bool) -> ConsumeStatsList:
            header = GetConsumeStatsInBrokerHeader(order=order)
            return ConsumeStatsList.decode((await client.ask(RequestCode.GET_BROKER_CONSUME_STATS, header)).body)

        told = await ask(order=False)
        assert (told.broker_addr, told.total_diff) == (client.broker.address, 4)
        assert told.total_inflight_diff == 5 - 2 + 5 - 4
        groups = {group: each for entry in told.consume_stats_list for group, each in entry.items()}
        [readers] = groups["readers"]
        progress = readers.offset_table[MessageQueue("T", "broker-a", 0)]
        assert (progress.broker_offset, progress.consumer_offset, progress.pull_offset) == (5, 2, 5)
        assert len(readers.offset_table) == 4
        assert groups["TOOLS_CONSUMER"] == []
        assert (await ask(order=True)).total_diff == 0  # the topic is not ordered

    play(tmp_path, scenario)


def test_the_time_span_of_a_group(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for _ in range(3):
            await client.send("T")
            await asyncio.sleep(0.002)
        await commit(client, 1)
        times = [record.store_timestamp for record in await client.records("T")]
        header = QueryConsumeTimeSpanRequestHeader(topic="T", group="readers")
        answer = await client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, header)
        first, *others = QueryConsumeTimeSpanBody.decode(answer.body).consume_time_span_set
        assert first.message_queue == MessageQueue("T", "broker-a", 0)
        assert (first.min_time_stamp, first.max_time_stamp, first.consume_time_stamp) == (times[0], times[2], times[0])
        assert abs(first.delay_time - (time.time() * 1000 - times[1])) < 5000
        assert [(span.min_time_stamp, span.max_time_stamp, span.delay_time) for span in others] == [(-1, -1, 0)] * 3
        unknown = QueryConsumeTimeSpanRequestHeader(topic="U", group="readers")
        assert (await client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, unknown)).code == ResponseCode.TOPIC_NOT_EXIST

    play(tmp_path, scenario)


def test_the_slowest_of_all_groups(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for queue_id in (0, 1):
            for _ in range(6):
                await client.send("T", queue_id=queue_id)
        for group, offsets in {"a": (3, 4), "b": (5, 2), "c": (1, 1)}.items():
            for queue_id, offset in enumerate(offsets):
                await commit(client, offset, group=group, queue_id=queue_id)

        async def ask(compared: str, left_out: str | None = None) -> dict[int, int]:
            header = QueryCorrectionOffsetHeader(topic="T", compare_group=compared, filter_groups=left_out)
            answer = await client.ask(RequestCode.QUERY_CORRECTION_OFFSET, header)
            return QueryCorrectionOffsetBody.decode(answer.body).correction_offsets

        assert await ask("nobody") == {0: 1, 1: 1}
        assert await ask("nobody", "c,d") == {0: 3, 1: 2}
        assert await ask("c", "c") == {0: (1 << 63) - 1, 1: (1 << 63) - 1}
        assert await ask("nobody") == {0: 1, 1: 1}  # leaving groups out changes nothing

    play(tmp_path, scenario)


def test_the_units_of_a_queue(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for tag in ("a", "b", "c"):
            await client.send("T", properties={"TAGS": tag})

        async def ask(index: int, count: int, group: str | None = None, topic: str = "T") -> RemotingCommand:
            header = QueryConsumeQueueRequestHeader(
                topic=topic, queue_id=0, index=index, count=count, consumer_group=group
            )
            return await client.ask(RequestCode.QUERY_CONSUME_QUEUE, header)

        body = QueryConsumeQueueResponseBody.decode((await ask(1, 10)).body)
        assert (body.min_queue_index, body.max_queue_index) == (0, 3)
        records = list(RecordReader(10).read((await client.pull("T")).body))
        assert [(unit.physic_offset, unit.tags_code) for unit in body.queue_data] == [
            (record.physical_offset, java_hash(tag)) for record, tag in zip(records[1:], "bc", strict=True)
        ]
        assert all(unit.physic_size > 91 for unit in body.queue_data)
        assert len(QueryConsumeQueueResponseBody.decode((await ask(0, 2)).body).queue_data) == 2
        for index in (3, -1):
            answer = await ask(index, 1)
            assert (answer.code, answer.body, answer.remark) == (0, b"", f"Index {index} of 0@T is not exist!")
        answer = await ask(0, 1, topic="U")
        assert (answer.code, answer.remark) == (1, "0@U is not exist!")
        offline = QueryConsumeQueueResponseBody.decode((await ask(0, 1, "readers")).body)
        assert (offline.subscription_data, offline.filter_data) == (None, "readers@T is not online!")
        await client.heartbeat("T", expression="a || b")
        online = QueryConsumeQueueResponseBody.decode((await ask(0, 1, "readers")).body)
        assert online.subscription_data is not None
        assert (online.subscription_data.sub_string, online.filter_data) == ("a || b", "null")

    play(tmp_path, scenario)


def test_all_producers(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        beat = HeartbeatData("asker", [ProducerData("p1"), ProducerData("p2")], []).encode()
        await client.ask(RequestCode.HEART_BEAT, body=beat)
        table = ProducerTableInfo.decode((await client.ask(RequestCode.GET_ALL_PRODUCER_INFO)).body).data
        assert sorted(table) == ["p1", "p2"]
        [info] = table["p1"]
        assert info.client_id == "asker"
        assert info.remote_ip.startswith("/127.0.0.1:")
        assert abs(info.last_update_timestamp - time.time() * 1000) < 10_000

    play(tmp_path, scenario)


def test_what_a_group_wants_of_a_topic(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        async def ask() -> QuerySubscriptionResponseBody:
            header = QuerySubscriptionByConsumerRequestHeader(group="readers", topic="T")
            answer = await client.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, header)
            return QuerySubscriptionResponseBody.decode(answer.body)

        assert await ask() == QuerySubscriptionResponseBody(None, "readers", "T")
        await client.heartbeat("T", expression="x")
        found = (await ask()).subscription_data
        assert found is not None
        assert found.sub_string == "x"

    play(tmp_path, scenario)


def test_lists_of_topics_and_groups(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        topics = [TopicConfig(topic_name=name, read_queue_nums=2, write_queue_nums=2) for name in ("A", "B")]
        body = CreateTopicListRequestBody(topics).encode()
        assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)).code == 0
        assert (await client.send("B", queue_id=1, default_topic="?")).code == 0
        bad = CreateTopicListRequestBody([TopicConfig(topic_name="C"), TopicConfig(topic_name="a b")]).encode()
        answer = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=bad)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert (await client.send("C", default_topic="?")).code == ResponseCode.TOPIC_NOT_EXIST
        groups = SubscriptionGroupList([SubscriptionGroupConfig(group_name=name) for name in ("g", "h")]).encode()
        assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=groups)).code == 0
        assert {"g", "h"} <= set(client.broker._groups.table)

    play(tmp_path, scenario)


def test_a_group_that_may_not_read_a_topic(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        async def ask(readable: bool | None, group: str = "readers") -> RemotingCommand:
            header = UpdateGroupForbiddenRequestHeader(group=group, topic="T", readable=readable)
            return await client.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)

        await client.send("T")
        await client.heartbeat("T")
        assert GroupForbidden.decode((await ask(None)).body) == GroupForbidden("T", "readers", True)
        assert GroupForbidden.decode((await ask(False)).body).readable is False
        assert (await client.pull("T", tags=None)).code == ResponseCode.NO_PERMISSION
        assert GroupForbidden.decode((await ask(None)).body).readable is False
        assert GroupForbidden.decode((await ask(True)).body).readable is True
        assert (await client.pull("T", tags=None)).code == 0
        assert (await ask(False, "strangers")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    play(tmp_path, scenario)
