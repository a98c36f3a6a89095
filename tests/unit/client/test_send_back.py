"""What a failed message carries on its way to the retry topic, property by property."""

from __future__ import annotations

import asyncio

import pytest

from rocketcore._fast.properties import decode_properties
from rocketcore.client.push import PushConsumer
from rocketcore.client.send_back import send_to_retry_topic
from rocketcore.codes import RequestCode
from rocketcore.message import MessageQueue, ReceivedMessage
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import SendMessageRequestHeaderV2
from tests.unit.client.fakes import FakeRemoting, route

KEPT = (
    "KEYS", "TAGS", "UNIQ_KEY", "__SHARDINGKEY", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "MSG_TYPE", "PGROUP",
    "__transactionId__", "INSTANCE_ID", "TRACE_CONTEXT", "ORIGIN_GROUP", "DLQ_ORIGIN_TOPIC", "a",
)  # fmt: skip
LEFT_OUT = (
    "TRAN_MSG", "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "CHECK_IMMUNITY_TIME_IN_SECONDS", "DELAY",
    "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS",
    "TIMER_DEL_UNIQKEY", "TIMER_ROLL_TIMES", "TIMER_DELAY_LEVEL", "REAL_TOPIC", "REAL_QID", "POP_CK", "POP_CK_OFFSET",
    "1ST_POP_TIME", "WAIT", "CLUSTER", "MSG_REGION", "TRACE_ON", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME",
    "INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "__CRC32#", "_SYS_MSG_PRIORITY_",
)  # fmt: skip


@pytest.mark.parametrize("level", [0, 3])
def test_a_message_says_what_it_is_and_asks_for_its_delay_alone(level: int) -> None:
    async def main() -> None:
        consumer = PushConsumer(group="G")
        await consumer.start()
        remoting = FakeRemoting(
            {"%RETRY%G": route("a", queues=1)}, lambda _, request: RemotingCommand.response(request)
        )
        consumer.instance.remoting = remoting
        consumer.instance.routes.update("%RETRY%G", remoting.routes["%RETRY%G"], inherited=False)
        properties = dict.fromkeys((*KEPT, *LEFT_OUT), "7")
        message = ReceivedMessage("T", b"x", MessageQueue("T", "a", 0), 5, "id", "OFFSETID", properties)
        await send_to_retry_topic(consumer, message, level, 4)
        [sent] = [request for _, request in remoting.asked if request.code == RequestCode.SEND_MESSAGE_V2]
        header = sent.header(SendMessageRequestHeaderV2)
        said = decode_properties((header.properties or "").encode())
        expected = dict.fromkeys(KEPT, "7") | {
            "RETRY_TOPIC": "T", "RECONSUME_TIME": "1", "MAX_RECONSUME_TIMES": "4", "ORIGIN_MESSAGE_ID": "OFFSETID",
        }  # fmt: skip
        assert said == expected | ({"DELAY": "3"} if level else {})
        assert (header.sys_flag, header.reconsume_times, header.max_reconsume_times) == (0, 1, 4)
        await consumer.close()

    asyncio.run(main())


@pytest.mark.parametrize(("brokers", "taken_by"), [("ab", "b"), ("ba", "b"), ("a", "a"), ("b", "b")])
def test_another_broker_than_the_messages_own_takes_it_where_there_is_one(brokers: str, taken_by: str) -> None:
    async def main() -> None:
        consumer = PushConsumer(group="G")
        await consumer.start()
        remoting = FakeRemoting({"%RETRY%G": route(*brokers)}, lambda _, request: RemotingCommand.response(request))
        consumer.instance.remoting = remoting
        consumer.instance.routes.update("%RETRY%G", remoting.routes["%RETRY%G"], inherited=False)
        message = ReceivedMessage("T", b"x", MessageQueue("T", "a", 0), 5, "id", "OFFSETID", {})
        await send_to_retry_topic(consumer, message, 0, 4)
        assert [to for to, request in remoting.asked if request.code == RequestCode.SEND_MESSAGE_V2] == [
            f"{taken_by}:1"
        ]
        await consumer.close()

    asyncio.run(main())
