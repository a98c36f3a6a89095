"""Sends: every way in, every refusal, and what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcore._fast.batch import encode_batch
from rocketcore._fast.properties import decode_properties
from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.codes import CURRENT_VERSION, MessageSysFlag, RequestCode, ResponseCode
from rocketcore.errors import ConfigError, ConnectionLost, TransportError
from rocketcore.protocol.bodies.topic import TopicConfig
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import SendMessageRequestHeader, SendMessageRequestHeaderV2
from tests.integration.broker_client import TIMEOUT, BrokerClient, running_broker, store_config, unique
from tests.reference.message import without_checksums


def play(folder: Path, scenario: Callable[[BrokerClient], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), running_broker(folder, **settings) as client:
            await scenario(client)

    asyncio.run(run())


def test_a_first_message_creates_its_topic(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        answer = await client.send("T", b"one", queue_id=3)
        assert answer.code == 0
        assert answer.version >= 232
        ext = answer.ext_fields
        assert ext is not None
        assert (ext["queueId"], ext["queueOffset"], ext["transactionId"]) == ("3", "0", unique(1))
        assert (ext["MSG_REGION"], ext["TRACE_ON"]) == ("DefaultRegion", "true")
        [record] = await client.records("T", 3)
        assert record.msg_id == ext["msgId"]
        assert (record.message.body, record.message.flag, record.message.born_timestamp) == (
            b"one",
            7,
            1_700_000_000_000,
        )
        assert decode_properties(without_checksums(record.message.properties)) == {
            "UNIQ_KEY": unique(1),
            "CLUSTER": "DefaultCluster",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }

    play(tmp_path, scenario)


def test_both_ways_in_store_the_same(tmp_path: Path) -> None:
    """The first send of a topic takes the slow path, the next the fast one; a V1 send the slow one again."""

    async def scenario(client: BrokerClient) -> None:
        properties = {"UNIQ_KEY": unique(9), "TAGS": "a", "KEYS": "k1 k2", "city": "Łódź"}
        general = await client.send("T", b"same", properties=properties)
        fast = await client.send("T", b"same", properties=properties)
        fields = client.send_request("T", b"same", properties=properties)
        header = fields.header(SendMessageRequestHeaderV2)
        v1 = SendMessageRequestHeader(
            producer_group=header.producer_group,
            topic="T",
            default_topic=header.default_topic,
            default_topic_queue_nums=4,
            queue_id=0,
            sys_flag=0,
            born_timestamp=header.born_timestamp,
            flag=7,
            properties=header.properties,
        )
        old = await client.ask(RequestCode.SEND_MESSAGE, v1, b"same")
        shared = [
            {name: value for name, value in (answer.ext_fields or {}).items() if name not in ("msgId", "queueOffset")}
            for answer in (general, fast, old)
        ]
        assert shared[0] == shared[1] == shared[2]
        records = await client.records("T")
        texts = [decode_properties(without_checksums(record.message.properties)) for record in records]
        assert texts[0] == texts[1] == texts[2]
        assert [record.message.flag for record in records] == [7, 7, 7]
        assert records[0].message.born_host == records[1].message.born_host

    play(tmp_path, scenario)


def test_many_sends_at_once_keep_their_order(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        requests = [client.send_request("T", b"%d" % number, queue_id=number % 2) for number in range(400)]
        channel = await client.client.connect(client.broker.address)
        futures = [channel.invoke_nowait(request, TIMEOUT) for request in requests]
        answers = await asyncio.gather(*futures)
        assert {answer.code for answer in answers} == {0}
        even = [answer for answer in answers if (answer.ext_fields or {})["queueId"] == "0"]
        assert [int((answer.ext_fields or {})["queueOffset"]) for answer in even] == list(range(1, 201))
        assert await client.all_bodies("T", 1) == [b"%d" % number for number in range(1, 400, 2)]

    play(tmp_path, scenario)


def test_unusual_messages_among_plain_ones(tmp_path: Path) -> None:
    """A run of requests in one read: two topics, a bad queue, a flag of transactions alone, no UNIQ_KEY, a one-way."""

    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        await client.send("U")
        without_key = client.send_request("T", b"no key")
        assert without_key.ext_fields is not None
        without_key.ext_fields["i"] = "city\x01Oslo\x02"
        oneway = client.send_request("T", b"one way")
        oneway.flag |= 2
        requests = [
            client.send_request("T", b"t1"),
            client.send_request("U", b"u1"),
            client.send_request("T", b"bad queue", queue_id=99),
            client.send_request("T", b"flag", sys_flag=4),
            without_key,
            client.send_request("T", b"t2"),
        ]
        channel = channel = await client.client.connect(client.broker.address)
        futures = [channel.invoke_nowait(request, TIMEOUT) for request in requests]
        channel.invoke_oneway(oneway)
        answers = await asyncio.gather(*futures)
        assert [answer.code for answer in answers] == [0, 0, ResponseCode.INVALID_PARAMETER, 13, 0, 0]
        assert "queueId[99] is illegal" in (answers[2].remark or "")
        assert (answers[3].remark or "").startswith("the message is illegal")
        assert (await client.send("T", b"last")).code == 0
        records = await client.records("T")
        assert [record.message.body for record in records] == [b"hello", b"t1", b"no key", b"t2", b"one way", b"last"]
        made = decode_properties(records[2].message.properties)
        assert made["city"] == "Oslo"
        assert len(made["UNIQ_KEY"]) == 32
        assert await client.bodies("U") == [b"hello", b"u1"]

    play(tmp_path, scenario)


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
def test_a_batch_without_messages_is_refused(tmp_path: Path, code: int) -> None:
    """It was answered with success, an empty message id and an offset that the next message got."""

    async def scenario(client: BrokerClient) -> None:
        answer = await client.send("T", b"", batch=True, code=code)
        assert (answer.code, answer.remark) == (1, "the batch for topic T holds no message")
        assert await client.records("T") == []
        first = await client.send_batch("T", [b"a"])
        assert (first.ext_fields or {})["queueOffset"] == "0"

    play(tmp_path, scenario)


def test_a_batch_gets_consecutive_offsets(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        answer = await client.send_batch("T", [b"a", b"b", b"c"])
        assert answer.code == 0
        assert answer.ext_fields is not None
        assert answer.ext_fields["queueOffset"] == "1"
        records = await client.records("T", 0, 1)
        assert [record.message.body for record in records] == [b"a", b"b", b"c"]
        assert answer.ext_fields["msgId"].split(",") == [record.msg_id for record in records]
        assert decode_properties(without_checksums(records[0].message.properties)) == {"UNIQ_KEY": unique(1000)}

    play(tmp_path, scenario)


@pytest.mark.parametrize("asked", [None, 0, 1, 2])
def test_the_ids_of_a_batch_that_nobody_looks_at(tmp_path: Path, asked: int | None) -> None:
    """All of them are answered unless the sender says that the first is enough."""

    async def scenario(client: BrokerClient) -> None:
        answer = await client.send_batch("T", [b"a", b"b", b"c"], rc_first_id=asked)
        ids = [record.msg_id for record in await client.records("T")]
        assert len(ids) == 3
        assert (answer.ext_fields or {})["msgId"] == ",".join(ids[:1] if asked == 1 else ids)

    play(tmp_path, scenario)


def test_batches_that_are_refused(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        await client.heartbeat("T", group="g")
        retry = await client.send_batch("%RETRY%g", [b"a"])
        assert (retry.code, "does not support retry group" in (retry.remark or "")) == (13, True)
        delayed = await client.send_batch("T", [b"a"], properties={"DELAY": "1"})
        assert delayed.code == 13
        torn = await client.send("T", b"\0\0\0\x20torn", batch=True, code=RequestCode.SEND_BATCH_MESSAGE)
        assert torn.code in (1, 13)
        assert await client.bodies("T") == []

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("topic", "code", "remark"),
    [
        ("", 29, "The specified topic is blank."),
        ("a b", 29, "contains illegal characters"),
        ("a" * 128, 29, "is longer than topic max length: 127"),
        ("SCHEDULE_TOPIC_XXXX", 16, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 16, "is forbidden."),
        ("rmq_sys_wheel_timer", 16, "is forbidden."),
    ],
)
def test_topics_that_take_no_messages(tmp_path: Path, topic: str, code: int, remark: str) -> None:
    async def scenario(client: BrokerClient) -> None:
        answer = await client.send(topic)
        assert answer.code == code
        assert remark in (answer.remark or "")
        assert answer.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("properties", "body", "code", "remark"),
    [
        ({}, b"", 13, "the message is illegal"),
        ({}, b"x" * (4 * 1024 * 1024 + 1), 13, "msg body length limit 4194304B"),
        ({"long": "x" * 32_700}, b"x", 13, "msg properties length limit 32KB"),
        ({"TIMER_DELAY_MS": "soon"}, b"x", 13, "the delay time should not be bigger than the max delay 259200000ms"),
        ({"INNER_NUM": "2"}, b"x", 13, "the message is illegal"),
    ],
)
def test_messages_that_are_refused(
    tmp_path: Path, properties: dict[str, str], body: bytes, code: int, remark: str
) -> None:
    async def scenario(client: BrokerClient) -> None:
        for _ in range(2):  # a new topic, then a known one
            answer = await client.send("T", body, properties=properties)
            assert (answer.code, remark in (answer.remark or "")) == (code, True), answer
        assert (await client.pull("T")).code != 0

    play(tmp_path, scenario)


@pytest.mark.parametrize("batch", [False, True])
def test_what_consumers_would_take_for_a_batch_inside_a_message_is_refused(tmp_path: Path, *, batch: bool) -> None:
    """They would count its elements as the messages behind it, and never hand those out."""
    flags = int(MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP)
    elements = encode_batch([b"forged"] * 9, [b""] * 9)

    async def scenario(client: BrokerClient) -> None:
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        for _ in range(2):  # a new topic, then a known one
            answer = await client.send("T", elements, sys_flag=flags, batch=batch, code=code)
            assert (answer.code, "the message is illegal" in (answer.remark or "")) == (13, True), answer
        assert (await client.send("T", b"sound")).code == 0
        assert await client.bodies("T") == [b"sound"]

    play(tmp_path, scenario)


def test_a_topic_without_queues_takes_no_messages(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        client.broker._context.topics.update(TopicConfig("T", read_queue_nums=0, write_queue_nums=0))
        for queue_id in (-1, 0):
            answer = await client.send("T", queue_id=queue_id)
            assert (answer.code, f"queueId[{queue_id}] is illegal" in (answer.remark or "")) == (29, True), answer

    play(tmp_path, scenario)


def test_without_auto_creation_an_unknown_topic_is_refused(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        answer = await client.send("T")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert (answer.remark or "").startswith("topic[T] not exist, apply first please!")

    play(tmp_path, scenario, auto_create_topic_enable=False)


def test_a_negative_queue_means_any(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        queues = set()
        for _ in range(60):
            answer = await client.send("T", queue_id=-1)
            assert answer.code == 0
            queues.add((answer.ext_fields or {})["queueId"])
        assert queues == {"0", "1", "2", "3"}

    play(tmp_path, scenario)


def test_a_sender_that_does_not_wait_is_answered_all_the_same(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        for _ in range(3):
            assert (await client.send("T", properties={"WAIT": "false"})).code == 0
        await client.send("T")
        assert len(await client.bodies("T")) == 4

    play(tmp_path, scenario)


def test_sends_before_the_appointed_time_are_refused(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        answer = await client.send("T")
        assert (answer.code, answer.remark) == (1, "broker unable to service, until 99999999999999")

    play(tmp_path, scenario, start_accept_send_request_time_stamp=99_999_999_999_999)


def test_only_order_topics_need_a_writable_broker(tmp_path: Path) -> None:
    async def scenario(client: BrokerClient) -> None:
        context = client.broker._context
        context.topics.update(TopicConfig("Ordered", 4, 4, 6, order=True))
        context.topics.update(TopicConfig("Plain", 4, 4, 6))
        assert (await client.send("Ordered")).code == ResponseCode.NO_PERMISSION
        assert (await client.send("Plain")).code == 0

    play(tmp_path, scenario, broker_permission=4)


def test_too_many_unacknowledged_bytes_are_refused_as_busy(tmp_path: Path) -> None:
    """The limit is per connection: what is refused is not stored, and the connection recovers."""

    async def scenario(client: BrokerClient) -> None:
        await client.send("T")
        stored = 1
        channel = await client.client.connect(client.broker.address)
        for _ in range(5):
            requests = [client.send_request("T", b"x" * 1000) for _ in range(50)]
            futures = [channel.invoke_nowait(request, TIMEOUT) for request in requests]
            answers = await asyncio.gather(*futures)
            assert {answer.code for answer in answers} <= {0, ResponseCode.SYSTEM_BUSY}
            stored += sum(answer.code == 0 for answer in answers)
        acknowledger = client.broker._acknowledger
        assert acknowledger._pending_bytes == {}
        assert (await client.send("T")).code == 0
        assert client.broker._store.max_offset("T", 0) == stored + 1

    play(tmp_path, scenario, max_pending_connection_bytes=1)


def test_an_acknowledged_message_survives_a_restart_with_its_topic(tmp_path: Path) -> None:
    async def first(client: BrokerClient) -> None:
        assert (await client.send("T", b"kept")).code == 0

    async def second(client: BrokerClient) -> None:
        assert await client.bodies("T") == [b"kept"]
        assert (await client.send("T", b"more")).code == 0
        assert await client.all_bodies("T") == [b"kept", b"more"]

    play(tmp_path, first)
    play(tmp_path, second)


def test_messages_outlive_the_loss_of_all_settings(tmp_path: Path) -> None:
    async def first(client: BrokerClient) -> None:
        assert (await client.send("T", b"kept", queue_id=2)).code == 0

    async def second(client: BrokerClient) -> None:
        assert await client.bodies("T", 2) == [b"kept"]
        topic = client.broker._context.topics.find("T")
        assert topic is not None
        assert (topic.read_queue_nums, topic.perm) == (8, 6)

    play(tmp_path, first)
    for file in (tmp_path / "config").iterdir():
        file.write_bytes(b"\0" * 100)
    play(tmp_path, second)


def test_stopping_answers_what_was_stored(tmp_path: Path) -> None:
    """Every send that was answered with success is there after the restart, however the stop cut through them."""

    async def run() -> None:
        acknowledged: list[bytes] = []
        async with asyncio.timeout(30), running_broker(tmp_path) as client:
            await client.send("T")
            channel = await client.client.connect(client.broker.address)
            requests = {b"%d" % number: client.send_request("T", b"%d" % number) for number in range(300)}
            futures = {body: channel.invoke_nowait(request, TIMEOUT) for body, request in requests.items()}
            await asyncio.sleep(0)
            await client.broker.stop()
            results = await asyncio.gather(*futures.values(), return_exceptions=True)
            for body, result in zip(futures, results, strict=True):
                if isinstance(result, RemotingCommand):
                    if result.code == 0:
                        acknowledged.append(body)
                else:
                    assert isinstance(result, ConnectionLost)
        async with asyncio.timeout(30), running_broker(tmp_path) as client:
            assert set(acknowledged) <= set(await client.all_bodies("T"))

    asyncio.run(run())


@pytest.mark.parametrize("version", [407, CURRENT_VERSION])
def test_stopping_answers_all_that_is_stored_while_it_stops(tmp_path: Path, version: int) -> None:
    """Producers that go on sending until they are told to go, or lose the connection, know of every stored message."""

    async def run() -> None:
        acknowledged: list[bytes] = []
        enough = asyncio.Event()

        async def produce(client: BrokerClient, producer: int) -> None:
            for number in range(100_000):
                body = b"%d-%d" % (producer, number)
                request = client.send_request("T", body)
                request.version = version
                try:
                    answer = await client.client.invoke(client.broker.address, request, TIMEOUT)
                except TransportError:
                    return
                if answer.code != 0:
                    assert answer.code == ResponseCode.GO_AWAY
                    return
                acknowledged.append(body)
                if len(acknowledged) == 300:
                    enough.set()

        async with asyncio.timeout(30), running_broker(tmp_path) as client:
            await client.send("T", b"first")
            producers = [asyncio.create_task(produce(client, number)) for number in range(100)]
            await enough.wait()
            await client.broker.stop()
            await asyncio.gather(*producers)
        async with asyncio.timeout(30), running_broker(tmp_path) as client:
            assert set(await client.all_bodies("T")) == {b"first", *acknowledged}

    asyncio.run(run())


def test_a_slave_cannot_be_started_yet() -> None:
    with pytest.raises(ConfigError, match="only masters"):
        Broker(BrokerConfig(broker_id=1), store_config(Path("unused")))
