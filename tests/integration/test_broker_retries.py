"""Messages that a broker delivers again or later: send-backs, retries, dead letters, delays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rocketcore._fast.properties import decode_properties
from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.store import PutStatus
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.topic import TopicConfig
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import ConsumerSendMsgBackRequestHeader
from rocketcore.transport.client import RemotingClient
from tests.integration.broker_client import BrokerClient, ext, play, store_config, turn_until


async def _fast_levels(folder: Path, scenario: Callable[[BrokerClient], Awaitable[None]]) -> None:
    """A broker whose first delay level is a second and the others longer."""
    config = BrokerConfig(broker_name="broker-a", listen_port=0)
    store = store_config(folder, message_delay_level="1s 1s 1s 1h")
    async with asyncio.timeout(30), Broker(config, store) as broker, RemotingClient() as client:
        await scenario(BrokerClient(broker, client))


def test_a_failed_message_comes_back_in_the_retry_topic(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        sent = ext(await client.send("T", b"work", properties={"TAGS": "a"}))
        await client.heartbeat("T")
        [record] = await client.records("T")
        answer = await _send_back(client, record.physical_offset, level=1)
        assert (answer.code, answer.ext_fields or {}) == (0, {})
        held = await client.pull("%RETRY%readers", 0, 0, hold_millis=20_000)
        assert held.code == 0
        [retried] = await client.records("%RETRY%readers")
        assert (retried.message.body, retried.message.reconsume_times) == (b"work", 1)
        properties = decode_properties(retried.message.properties)
        assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("T", sent["msgId"])
        assert retried.store_timestamp - record.store_timestamp >= 1_000

    asyncio.run(_fast_levels(tmp_path, scenario))


def test_a_failed_message_goes_to_a_queue_that_its_retry_topic_has(tmp_path: Path) -> None:
    """The group may have been given more retry queues since the topic was made."""

    async def scenario(client: BrokerClient) -> None:
        await client.send("T", b"work")
        await client.heartbeat("T")
        client.broker._context.groups.update(SubscriptionGroupConfig(group_name="readers", retry_queue_nums=1_000))
        [record] = await client.records("T")
        for _ in range(5):
            assert (await _send_back(client, record.physical_offset, level=1)).code == 0
        await turn_until(lambda: client.broker._delay.positions()[1] == (5, 5))
        assert len(await client.records("%RETRY%readers")) == 5

    asyncio.run(_fast_levels(tmp_path, scenario))


def test_a_retry_topic_without_queues_takes_no_failed_message(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T", b"work")
        await client.heartbeat("T")
        client.broker._context.topics.update(TopicConfig("%RETRY%readers", read_queue_nums=0, write_queue_nums=0))
        [record] = await client.records("T")
        answer = await _send_back(client, record.physical_offset, level=1)
        assert (answer.code, "%RETRY%readers" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)

    play(tmp_path, scenario)


def test_a_message_that_failed_too_often_is_a_dead_letter(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T", b"poison")
        await client.heartbeat("T")
        [record] = await client.records("T")
        assert (await _send_back(client, record.physical_offset, level=0, limit=0)).code == 0
        assert (await _send_back(client, record.physical_offset, level=-1)).code == 0
        dead = await client.records("%DLQ%readers")
        assert [each.message.body for each in dead] == [b"poison", b"poison"]
        assert decode_properties(dead[0].message.properties)["DELAY"] == "0"
        topic = client.broker._context.topics.find("%DLQ%readers")
        assert topic is not None
        assert (topic.write_queue_nums, topic.perm) == (1, 6)

    play(tmp_path, scenario)


@pytest.mark.parametrize("answers", [True, False])
def test_delayed_messages_come_once_though_the_broker_stops_while_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    """Whether the stop waits until they are on disk, or gives up: then their positions are not saved."""
    count = 3_000
    monkeypatch.setattr("rocketcore.broker.broker._DRAIN_SECONDS", 5.0 if answers else 0.01)

    async def stop_in_between(client: BrokerClient) -> None:
        await client.send("T")
        sends = [client.send("T", b"%d" % number, properties={"DELAY": "1"}) for number in range(count)]
        assert {answer.code for answer in await asyncio.gather(*sends)} == {0}
        store = client.broker._store
        while store.max_offset("T", 0) < 2:  # noqa: ASYNC110  # a state of the store, which has no event
            await asyncio.sleep(0)
        if not answers:
            store.wait = lambda _end, _callback: None  # type: ignore[assignment]

    async def read_all(client: BrokerClient) -> None:
        while client.broker._delay.positions()[1] != (count, count):  # noqa: ASYNC110  # likewise
            await asyncio.sleep(0.01)
        bodies = await client.all_bodies("T")
        assert sorted(map(int, bodies[1:])) == list(range(count))

    asyncio.run(_fast_levels(tmp_path, stop_in_between))
    asyncio.run(_fast_levels(tmp_path, read_all))


@pytest.mark.parametrize(
    ("status", "code"),
    [(PutStatus.PUT_OK, 0), (PutStatus.FLUSH_DISK_TIMEOUT, 1), (PutStatus.SERVICE_NOT_AVAILABLE, 1)],
)
def test_a_send_back_is_a_success_only_when_it_is_stored(tmp_path: Path, status: PutStatus, code: int) -> None:
    """A flush that takes too long is none yet: the consumer keeps the message."""

    async def scenario(client: BrokerClient) -> None:
        await client.send("T", b"work")
        await client.heartbeat("T")
        [record] = await client.records("T")
        store = client.broker._store
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, "wait", lambda _end, callback: callback(status))
            answer = await _send_back(client, record.physical_offset, level=1)
        assert (answer.code, answer.remark) == (code, status.value if code else None)

    play(tmp_path, scenario)


def test_send_backs_that_are_refused(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.heartbeat("T")
        missing = await _send_back(client, 123_456, level=0)
        assert (missing.code, missing.remark) == (1, "look message by offset failed, 123456")
        assert (await _send_back(client, 0, level=0, group="a b")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        client.broker._context.groups.update(SubscriptionGroupConfig(group_name="no-retry", retry_queue_nums=0))
        assert (await _send_back(client, 123_456, level=0, group="no-retry")).code == 0

    play(tmp_path, scenario)


def test_retries_that_clients_send_themselves(tmp_path: Path) -> None:
    """When 36 fails a client sends to the retry topic; the broker counts there too."""

    async def scenario(client: BrokerClient) -> None:
        await client.heartbeat("T")
        again = await client.send("%RETRY%readers", b"again", reconsume_times=1, max_reconsume_times=2)
        assert again.code == 0
        over = await client.send("%RETRY%readers", b"over", reconsume_times=3, max_reconsume_times=2)
        assert over.code == 0
        assert await client.bodies("%RETRY%readers") == [b"again"]
        assert await client.bodies("%DLQ%readers") == [b"over"]

    play(tmp_path, scenario)


def test_a_delayed_message_is_not_seen_early(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        answer = await client.send("T", b"later", queue_id=2, properties={"DELAY": "2", "TAGS": "a"})
        assert (answer.code, ext(answer)["queueId"]) == (0, "2")
        await client.send("T", b"far", queue_id=2, properties={"DELAY": "9"})
        assert (await client.pull("T", 2)).code == ResponseCode.PULL_NOT_FOUND
        held = await client.pull("T", 2, 0, hold_millis=20_000, tags="a")
        assert held.code == 0
        [record] = await client.records("T", 2)
        properties = decode_properties(record.message.properties)
        assert (record.message.body, properties["REAL_TOPIC"], properties["REAL_QID"]) == (b"later", "T", "2")
        assert client.broker._delay.positions()[4] == (0, 1)

    asyncio.run(_fast_levels(tmp_path, scenario))


def test_delayed_messages_outlive_the_broker(tmp_path: Path) -> None:
    async def first(client: BrokerClient) -> None:
        await client.send("T", b"later", properties={"DELAY": "1"})

    async def second(client: BrokerClient) -> None:
        answer = await client.pull("T", 0, 0, hold_millis=20_000)
        assert answer.code == 0
        assert await client.bodies("T") == [b"later"]

    asyncio.run(_fast_levels(tmp_path, first))
    asyncio.run(_fast_levels(tmp_path, second))


async def _send_back(
    client: BrokerClient, physical_offset: int, *, level: int, limit: int | None = None, group: str = "readers"
) -> RemotingCommand:
    header = ConsumerSendMsgBackRequestHeader(
        offset=physical_offset, group=group, delay_level=level, origin_topic="T", max_reconsume_times=limit
    )
    return await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
