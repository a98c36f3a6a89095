"""What brokers and administrators ask of a group's member, without sockets."""

from __future__ import annotations

import logging
import zlib

import pytest

from rocketcore.client.push import PushConsumer
from rocketcore.codes import LanguageCode, RequestCode, ResponseCode
from rocketcore.message import ConsumeResult, MessageQueue, ReceivedMessage
from rocketcore.printable import is_printable
from rocketcore.protocol.bodies.client import (
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from rocketcore.protocol.headers.consumer import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    ResetOffsetRequestHeader,
)
from tests.reference.message import Stored, encode
from tests.unit.client.groups import Channel, LockingBrokers, answering, ask, run, start, start_with


def test_what_an_administrator_is_shown() -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G", threads=3)
        consumer.subscribe("T", handler=lambda message: None)
        await start(consumer)
        try:
            reader = consumer.own(MessageQueue("T", "a", 0), 17)
            served = answering(consumer)
            answer = served(
                Channel(),
                ask(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, GetConsumerStatusRequestHeader(topic="T", group="G")),
            )
            assert GetConsumerStatusBody.decode(answer.body).message_queue_table == {MessageQueue("T", "a", 0): 17}
            header = GetConsumerRunningInfoRequestHeader(consumer_group="G", client_id=consumer.client_id)
            answer = served(Channel(), ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
            info = ConsumerRunningInfo.decode(answer.body)
            assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "3"
            assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) == consumer.started_at
            assert info.mq_table[MessageQueue("T", "a", 0)].commit_offset == 17
            header = GetConsumerRunningInfoRequestHeader(consumer_group="other", client_id="x")
            answer = served(Channel(), ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
            assert (answer.code, "other" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
            assert reader.process_queue.next_offset == 17
        finally:
            await consumer.close()

    run(body)


def test_an_offset_reset_moves_the_owned_queues() -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G")
        await start_with(consumer, LockingBrokers("a", "b"))
        try:
            queue, other = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
            before, kept = consumer.own(queue, 17), consumer.own(other, 20)
            header = ResetOffsetRequestHeader(topic="T", group="G", timestamp=0, force=True)
            table = ResetOffsetBody(offset_table={queue: 5, MessageQueue("T", "a", 1): 9, other: 2}).encode()
            served = answering(consumer)
            for stranger in ("", "c:1"):
                request = ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, table)
                await served(Channel(stranger), request)
            assert not before.process_queue.dropped, "a broker says nothing about the queues of another"
            await served(Channel(), ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, table))
            assert {each.queue: each.next_offset for each in consumer.process_queues()} == {queue: 5, other: 20}
            assert before.process_queue.dropped
            assert not kept.process_queue.dropped
            cpp = b'{"offsetTable":[{"brokerName":"a","offset":7,"queueId":0,"topic":"T"}]}'
            request = ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, cpp)
            request.language = LanguageCode.CPP
            await served(Channel(), request)
            assert {each.queue: each.next_offset for each in consumer.process_queues()} == {queue: 7, other: 20}
        finally:
            await consumer.close()

    run(body)


def test_a_message_is_consumed_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G")
        seen: list[str] = []

        def handle(message: ReceivedMessage) -> ConsumeResult:
            seen.append(message.text())
            return ConsumeResult.RETRY

        consumer.subscribe("T", handler=handle)
        await start_with(consumer, LockingBrokers("a"))
        try:
            message = ReceivedMessage("T", b"now", MessageQueue("T", "a", 0), 3, "id", "offset-id")
            monkeypatch.setattr("rocketcore.client.serving.decode_message", lambda data, broker: message)
            header = ConsumeMessageDirectlyResultRequestHeader(consumer_group="G", broker_name="a")
            served = answering(consumer)
            for stranger in ("", "c:1", "namesrv:9876"):
                request = ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, b"x")
                answer = await served(Channel(stranger), request)
                assert (answer.code, seen) == (ResponseCode.SYSTEM_ERROR, []), "it is not broker a"
            answer = await served(Channel(), ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, b"x"))
            result = ConsumeMessageDirectlyResult.decode(answer.body)
            assert (result.consume_result, seen) == (CMResult.CR_LATER, ["now"])
            await consumer.unsubscribe("T")
            answer = await served(Channel(), ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, b"x"))
            assert (answer.code, seen) == (ResponseCode.SYSTEM_ERROR, ["now"])
            assert "is not subscribed to topic T" in (answer.remark or "")
        finally:
            await consumer.close()

    run(body)


def test_no_name_that_a_broker_gives_makes_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    forged = "x\n2026-01-01 CRITICAL disk full\x1b[2J"

    async def body() -> None:
        consumer = PushConsumer(group="G")
        await start_with(consumer, LockingBrokers("a"))
        try:
            served = answering(consumer)
            news = NotifyConsumerIdsChangedRequestHeader(consumer_group=forged)
            served(Channel(), ask(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, news))
            reset = ResetOffsetRequestHeader(topic=forged, group="G", timestamp=0, force=True)
            table = ResetOffsetBody(offset_table={}).encode()
            await served(Channel(), ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, reset, table))
            record = encode(Stored(forged.encode(), b"now", body_crc=zlib.crc32(b"now")))
            header = ConsumeMessageDirectlyResultRequestHeader(consumer_group="G", broker_name="a")
            request = ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, record)
            assert (await served(Channel(), request)).code == ResponseCode.SYSTEM_ERROR
        finally:
            await consumer.close()

    run(body)
    assert "offset reset" in caplog.text
    assert "message to consume refused topic" in caplog.text
    assert [record.message for record in caplog.records if not is_printable(record.message)] == []
