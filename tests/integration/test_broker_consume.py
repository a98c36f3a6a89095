"""Pulls, long polling, groups, offsets, locks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.client import (
    GetConsumerListByGroupResponseBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ResetOffsetBody,
    UnlockBatchRequestBody,
)
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.heartbeat import MessageModel
from rocketcore.protocol.bodies.topic import TopicConfig
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import (
    GetConsumerListByGroupRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    ResetOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketcore.transport.channel import Channel
from rocketcore.transport.client import RemotingClient
from tests.integration.broker_client import BrokerClient, ext, play, turn_until
from tests.integration.remoting_server import add_handler


def position(answer: RemotingCommand) -> tuple[int, int, int, int]:
    """Code, next, minimum and maximum offset of a pull's answer."""
    fields = ext(answer)
    return answer.code, int(fields["nextBeginOffset"]), int(fields["minOffset"]), int(fields["maxOffset"])


# Pulls


def test_where_a_pull_lands(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for body in (b"a", b"b", b"c"):
            await client.send("T", body)
        answers = {
            "found": await client.pull("T", 0, 1),
            "end": await client.pull("T", 0, 3),
            "beyond": await client.pull("T", 0, 9),
            "empty": await client.pull("T", 1, 0),
            "empty beyond": await client.pull("T", 1, 5),
            "lite": await client.pull("T", 0, 0, code=RequestCode.LITE_PULL_MESSAGE),
        }
        assert {name: position(answer) for name, answer in answers.items()} == {
            "found": (0, 3, 0, 3),
            "end": (ResponseCode.PULL_NOT_FOUND, 3, 0, 3),
            "beyond": (ResponseCode.PULL_OFFSET_MOVED, 3, 0, 3),
            "empty": (ResponseCode.PULL_NOT_FOUND, 0, 0, 0),
            "empty beyond": (ResponseCode.PULL_OFFSET_MOVED, 0, 0, 0),
            "lite": (0, 3, 0, 3),
        }
        assert answers["found"].remark == "FOUND"
        assert ext(answers["found"])["suggestWhichBrokerId"] == "0"
        assert await client.bodies("T", max_count=0) == [b"a"]
        assert await client.bodies("T", max_count=-1) == [b"a"]

    play(tmp_path, scenario)


def test_tags_choose_on_the_broker(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for tag in ("a", "b", "c", "a"):
            await client.send("T", tag.encode(), properties={"TAGS": tag})
        await client.send("T", b"none")
        assert await client.bodies("T", tags="a || c") == [b"a", b"c", b"a"]
        unmatched = await client.pull("T", tags="z")
        assert position(unmatched) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 5, 0, 5)
        assert (await client.pull("T", tags="||")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert len(await client.bodies("T", tags="")) == 5

    play(tmp_path, scenario)


def test_pulls_that_are_refused(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        context = client.broker._context
        context.topics.update(TopicConfig("WriteOnly", 1, 1, 2))
        context.groups.update(SubscriptionGroupConfig(group_name="off", consume_enable=False))
        context.groups.update(SubscriptionGroupConfig(group_name="no-broadcast", consume_broadcast_enable=False))
        await client.heartbeat("T", group="no-broadcast", model=MessageModel.BROADCASTING)
        await client.heartbeat("T", group="old", sub_version=5)
        refusals = [
            (await client.pull("T", group="a b"), 26, None),
            (await client.pull("T", group="off"), 16, "2"),
            (await client.pull("unknown"), 17, None),
            (await client.pull("WriteOnly"), 16, "3"),
            (await client.pull("T", 99), 29, None),
            (await client.pull("T", -1), 29, None),
            (await client.pull("T", tags="price > 1", kind="SQL92"), 1, None),
            (await client.pull("T", tags=None, group="nobody"), 24, None),
            (await client.pull("T", tags=None, group="no-broadcast"), 16, "4"),
            (await client.pull("U", tags=None, group="old"), 17, None),
            (await client.pull("SELF_TEST_TOPIC", tags=None, group="old"), 24, None),
            (await client.pull("T", tags=None, group="old", sub_version=6), 25, None),
            (await client.pull("T", tags=None, group="old", sub_version=5), 0, None),
        ]
        for number, (answer, code, kind) in enumerate(refusals):
            assert answer.code == code, (number, answer)
            assert (answer.ext_fields or {}).get("forbiddenType") == kind

    play(tmp_path, scenario)


def test_a_broker_that_may_not_be_read(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        answer = await client.pull("SELF_TEST_TOPIC")
        assert (answer.code, ext(answer)["forbiddenType"]) == (16, "1")

    play(tmp_path, scenario, broker_permission=2)


def test_lite_pulls_can_be_switched_off(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        answer = await client.pull("SELF_TEST_TOPIC", code=RequestCode.LITE_PULL_MESSAGE)
        assert (answer.code, ext(answer)["forbiddenType"]) == (16, "1")
        assert (await client.pull("SELF_TEST_TOPIC")).code == 19

    play(tmp_path, scenario, lite_pull_message_enable=False)


def test_a_held_pull_is_answered_by_a_message(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        held = [
            asyncio.create_task(client.pull("T", 0, 1, hold_millis=20_000)),
            asyncio.create_task(client.pull("T", 0, 1, hold_millis=20_000, tags="b")),
        ]
        await turn_until(lambda: len(client.broker._pull.long_poll) == 2)
        await client.send("T", b"two", properties={"TAGS": "a"})
        assert position(await held[0]) == (0, 2, 0, 2)
        assert len(client.broker._pull.long_poll) == 1
        await client.send("T", b"three", properties={"TAGS": "b"})
        answer = await held[1]
        assert (answer.code, int(ext(answer)["nextBeginOffset"])) == (0, 3)

    play(tmp_path, scenario)


def test_a_held_pull_ends_with_its_time(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        answer = await client.pull("T", 0, 1, hold_millis=1)
        assert position(answer) == (ResponseCode.PULL_NOT_FOUND, 1, 0, 1)

    play(tmp_path, scenario)


def test_held_pulls_are_answered_when_the_broker_stops(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        held = asyncio.create_task(client.pull("T", 0, 1, hold_millis=60_000))
        await turn_until(lambda: len(client.broker._pull.long_poll) == 1)
        await client.broker.stop()
        assert (await held).code == ResponseCode.PULL_NOT_FOUND

    play(tmp_path, scenario)


def test_the_pulls_of_a_lost_connection_are_dropped(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        held = asyncio.create_task(client.pull("T", 0, 1, hold_millis=60_000))
        await turn_until(lambda: len(client.broker._pull.long_poll) == 1)
        client.client.close_channel(client.broker.address)
        await asyncio.gather(held, return_exceptions=True)
        await turn_until(lambda: len(client.broker._pull.long_poll) == 0)

    play(tmp_path, scenario)


# Groups and offsets


@pytest.mark.parametrize(
    "less",
    ['"clientID":"c"', '"groupName":"billing"', '"groupName":"readers"', '"topic":"T"'],
)
def test_a_heartbeat_without_a_name_registers_nothing(tmp_path: Path, less: str) -> None:
    body = (
        '{"clientID":"c","producerDataSet":[{"groupName":"billing"}],"consumerDataSet":['
        '{"groupName":"others"},{"groupName":"readers","subscriptionDataSet":[{"topic":"T"}]}]}'
    )

    async def scenario(client: BrokerClient) -> None:
        await client.ask(RequestCode.GET_BROKER_CONFIG)
        for sent, code in ((body.replace(less, '"aFieldOfTomorrow":1'), 1), (body, 0)):
            answer = await client.ask(RequestCode.HEART_BEAT, body=sent.encode())
            assert answer.code == code
            assert (" is missing" in (answer.remark or "")) == (code == 1)
            header = GetConsumerListByGroupRequestHeader(consumer_group="others")
            assert (await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)).code == code

    play(tmp_path, scenario)


def test_members_of_a_group_are_told_of_one_another(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        told: list[str] = []

        def notified(channel: Channel, request: RemotingCommand) -> None:
            told.append((request.ext_fields or {})["consumerGroup"])

        add_handler(client.client, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, notified)
        answer = await client.heartbeat("T", client_id="one")
        assert answer.version >= 232
        await client.heartbeat("T", client_id="one")
        assert told == ["readers"]
        async with RemotingClient() as other:
            second = BrokerClient(client.broker, other)
            await second.heartbeat("T", client_id="two")
            await turn_until(lambda: len(told) == 2)
            header = GetConsumerListByGroupRequestHeader(consumer_group="readers")
            listed = await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
            assert GetConsumerListByGroupResponseBody.decode(listed.body).consumer_id_list == ["one", "two"]
        await turn_until(lambda: len(told) == 3)
        leave = UnregisterClientRequestHeader(client_id="one", consumer_group="readers")
        assert (await client.ask(RequestCode.UNREGISTER_CLIENT, leave)).code == 0
        gone = await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        assert (gone.code, gone.remark) == (1, "no consumer for this group, readers")
        assert client.broker._context.topics.find("%RETRY%readers") is not None

    play(tmp_path, scenario)


def test_offsets_are_committed_and_found(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        await client.send("T", queue_id=1)
        assert (await _query(client, "T", 0)).code == 0  # the first message is still there: begin at 0
        assert (await _query(client, "T", 0, zero=False)).code == ResponseCode.QUERY_NOT_FOUND
        assert (await _query(client, "T", 3)).code == ResponseCode.QUERY_NOT_FOUND
        assert (await _commit(client, "T", 0, 5)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        await client.heartbeat("T")
        assert (await _commit(client, "unknown", 0, 5)).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await _commit(client, "T", 0, 5)).code == 0
        await client.pull("T", 1, 0, commit=7)
        assert [ext(await _query(client, "T", queue_id))["offset"] for queue_id in (0, 1)] == ["5", "7"]

    async def later(client: BrokerClient) -> None:
        assert [ext(await _query(client, "T", queue_id))["offset"] for queue_id in (0, 1)] == ["5", "7"]

    play(tmp_path, scenario)
    play(tmp_path, later)


def test_a_reset_moves_the_next_pull(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for _ in range(6):
            await client.send("T")
        await client.heartbeat("T")
        await _commit(client, "T", 0, 6)
        header = ResetOffsetRequestHeader(group="readers", topic="T", timestamp=0, force=True, queue_id=0, offset=2)
        answer = await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        assert ResetOffsetBody.decode(answer.body).offset_table == {MessageQueue("T", "broker-a", 0): 2}
        ignored = await _commit(client, "T", 0, 6)
        assert (ignored.code, ignored.remark) == (0, "Offset has been previously reset")
        moved = await client.pull("T", 0, 6)
        assert (moved.code, moved.remark, ext(moved)["nextBeginOffset"]) == (21, "OFFSET_RESET", "2")
        assert (await client.pull("T", 0, 2)).code == 0
        beyond = ResetOffsetRequestHeader(group="readers", topic="T", timestamp=0, force=True, queue_id=0, offset=99)
        refused = await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, beyond)
        assert (refused.code, refused.remark) == (1, "Target offset 99 not in consume queue range [0-6]")
        everything = ResetOffsetRequestHeader(group="readers", topic="T", timestamp=-1, force=True)
        answer = await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, everything)
        table = ResetOffsetBody.decode(answer.body).offset_table
        assert {queue.queue_id: target for queue, target in table.items()} == {0: 6, 1: 0, 2: 0, 3: 0}

    play(tmp_path, scenario)


def test_a_reset_ends_the_pulls_that_wait(tmp_path: Path) -> None:
    """Those of the group in that queue, and no others."""

    async def scenario(client: BrokerClient) -> None:
        long_poll = client.broker._pull.long_poll
        for _ in range(3):
            await client.send("T")
            await client.send("T", queue_id=1)
        await client.heartbeat("T")
        await client.heartbeat("T", group="others", client_id="other")
        waits = [
            asyncio.create_task(client.pull("T", queue_id, 3, group=group, hold_millis=9_000))
            for group in ("readers", "others")
            for queue_id in (0, 1)
        ]
        await turn_until(lambda: len(long_poll) == 4)
        header = ResetOffsetRequestHeader(group="readers", topic="T", timestamp=0, force=True, queue_id=0, offset=1)
        assert (await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).code == 0
        moved = await waits[0]
        assert (moved.code, moved.remark, ext(moved)["nextBeginOffset"]) == (21, "OFFSET_RESET", "1")
        assert len(long_poll) == 3
        for wait in waits:
            wait.cancel()

    play(tmp_path, scenario)


def test_bounds_and_times_of_a_queue(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for _ in range(3):
            await client.send("T")
        [first, *_, last] = await client.records("T")

        async def offset(code: int, header: object) -> str:
            return next(iter(ext(await client.ask(code, header)).values()))  # type: ignore[arg-type]

        assert await offset(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic="T", queue_id=0)) == "3"
        assert await offset(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic="?", queue_id=0)) == "0"
        assert await offset(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic="T", queue_id=0)) == "0"
        earliest = GetEarliestMsgStoretimeRequestHeader(topic="T", queue_id=0)
        assert await offset(RequestCode.GET_EARLIEST_MSG_STORETIME, earliest) == str(first.store_timestamp)
        nothing = GetEarliestMsgStoretimeRequestHeader(topic="T", queue_id=1)
        assert await offset(RequestCode.GET_EARLIEST_MSG_STORETIME, nothing) == "-1"
        for timestamp, expected in ((0, "0"), (last.store_timestamp + 1, "3")):
            search = SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=timestamp)
            assert await offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search) == expected

    play(tmp_path, scenario)


@pytest.mark.parametrize("count", [2, 1500])
def test_a_queue_is_locked_by_one_client(tmp_path: Path, count: int) -> None:
    """A long list is read beside the loop, and locked some at a time."""

    async def scenario(client: BrokerClient) -> None:
        queues = {MessageQueue("T", "broker-a", queue_id) for queue_id in range(count)}

        async def lock(client_id: str) -> set[MessageQueue]:
            body = LockBatchRequestBody("g", client_id, mq_set=queues)
            answer = await client.ask(RequestCode.LOCK_BATCH_MQ, body=body.encode())
            return LockBatchResponseBody.decode(answer.body).lock_ok_mq_set

        assert await lock("one") == queues
        assert await lock("two") == set()
        body = UnlockBatchRequestBody("g", "one", mq_set=queues)
        assert (await client.ask(RequestCode.UNLOCK_BATCH_MQ, body=body.encode())).code == 0
        assert await lock("two") == queues

    play(tmp_path, scenario)


def test_a_long_heartbeat_is_read_beside_the_loop(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        await client.pull("T")  # which makes the group
        asked, beside = 0, client.broker._context.cooperative.beside

        async def counted(work: Callable[[], Any]) -> Any:
            nonlocal asked
            asked += 1
            return await beside(work)

        client.broker._context.cooperative.beside = counted  # type: ignore[method-assign]
        await client.heartbeat("T")
        assert asked == 0
        assert (await client.heartbeat(*(f"T{number}" for number in range(600)))).code == 0
        assert asked == 1
        group = client.broker._context.consumers.find("readers")
        assert group is not None
        assert len(group.subscriptions) == 600

    play(tmp_path, scenario)


async def _query(client: BrokerClient, topic: str, queue_id: int, *, zero: bool | None = None) -> RemotingCommand:
    header = QueryConsumerOffsetRequestHeader(
        consumer_group="readers", topic=topic, queue_id=queue_id, set_zero_if_not_found=zero
    )
    return await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)


async def _commit(client: BrokerClient, topic: str, queue_id: int, queue_offset: int) -> RemotingCommand:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group="readers", topic=topic, queue_id=queue_id, commit_offset=queue_offset
    )
    return await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
