"""Messages that failed, on their way back: to the broker that has them, or to their group's retry topic.

RocketMQ 5.5.0: ``DefaultMQPushConsumerImpl.sendMessageBack``.
"""

from __future__ import annotations

from typing import Final

from rocketcore.client import api
from rocketcore.client.subscriber import Subscriber
from rocketcore.codes import AUTO_CREATE_TOPIC, CLIENT_INNER_PRODUCER_GROUP
from rocketcore.message import (
    CHECK_IMMUNITY_TIME,
    CLUSTER,
    DELAY,
    FIRST_POP_TIME,
    MAX_RECONSUME_TIMES,
    MSG_REGION,
    ORIGIN_MESSAGE_ID,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TRACE_ON,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_PREPARED,
    TRANSACTION_PREPARED_QUEUE_OFFSET,
    UNIQ_KEY,
    WAIT,
    MessageQueue,
    ReceivedMessage,
)
from rocketcore.protocol.headers.message import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeaderV2

__all__ = ["PROPERTIES_NOT_RESENT", "SEND_BACK_TIMEOUT", "TO_THE_DLQ", "send_message_back", "send_to_retry_topic"]

SEND_BACK_TIMEOUT: Final = 5.0
TO_THE_DLQ: Final = -1
"""Delay level that asks a broker for the dead letter queue."""
_SAID_BY_THE_READER: Final = frozenset({"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"})
_SAID_BY_THE_BROKER: Final = frozenset({CLUSTER, MSG_REGION, TRACE_ON, REAL_TOPIC, REAL_QUEUE_ID, "__CRC32#"})
"""It says these anew of what it stores."""
_ASKED_OF_THE_BROKER: Final = frozenset(
    {
        WAIT,
        DELAY,
        TRANSACTION_PREPARED,
        TRANSACTION_CHECK_TIMES,
        TRANSACTION_PREPARED_QUEUE_OFFSET,
        CHECK_IMMUNITY_TIME,
        TIMER_DELIVER_MS,
        TIMER_DELAY_MS,
        TIMER_DELAY_SEC,
        TIMER_OUT_MS,
        TIMER_ENQUEUE_MS,
        TIMER_DEQUEUE_MS,
        TIMER_DEL_UNIQKEY,
        "TIMER_ROLL_TIMES",
        "TIMER_DELAY_LEVEL",
        "POP_CK",
        "POP_CK_OFFSET",
        FIRST_POP_TIME,
        "INNER_NUM",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "_SYS_MSG_PRIORITY_",
    }
)
"""How a message was to be stored, when, where else and by whom it was taken: it has been. Asked once more the broker
would have it wait for its time, or for the end of its transaction, take another message back, or give it to others."""
PROPERTIES_NOT_RESENT: Final = _SAID_BY_THE_READER | _SAID_BY_THE_BROKER | _ASKED_OF_THE_BROKER


async def send_message_back(
    consumer: Subscriber, message: ReceivedMessage, delay_level: int, max_reconsume_times: int
) -> None:
    """Give a message back to its broker, which delivers it again after a while.

    delay_level  0: by how often it came; ``TO_THE_DLQ``
    """
    header = ConsumerSendMsgBackRequestHeader(
        offset=message.physical_offset,
        group=consumer.group,
        delay_level=delay_level,
        origin_msg_id=message.offset_msg_id,
        origin_topic=consumer.wire_topic(message.topic),
        max_reconsume_times=max_reconsume_times,
        bname=message.queue.broker,
    )
    address = consumer.instance.routes.find_publish_address(message.queue.broker) or message.store_host
    await api.send_message_back(consumer.instance.remoting, address, header, SEND_BACK_TIMEOUT)
    retries = consumer.instance.routes.find(consumer.retry_topic)
    if retries is None or message.queue.broker not in {queue.broker for queue in retries.subscribe}:
        # The broker will deliver the message from a queue that we do not read yet.
        await consumer.instance.try_refresh(consumer.retry_topic)


async def send_to_retry_topic(
    consumer: Subscriber, message: ReceivedMessage, delay_level: int, max_reconsume_times: int
) -> None:
    """Send a message to the group's retry topic, where its broker does not take it back; as ``send_message_back``."""
    properties = {name: value for name, value in message.properties.items() if name not in PROPERTIES_NOT_RESENT}
    properties[RETRY_TOPIC] = consumer.wire_topic(message.topic)
    properties[RECONSUME_TIME] = str(message.reconsume_times + 1)
    properties[MAX_RECONSUME_TIMES] = str(max_reconsume_times)
    properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_msg_id)
    properties.setdefault(UNIQ_KEY, message.msg_id)
    if delay_level:
        properties[DELAY] = str(delay_level)
    route = await consumer.instance.route(consumer.retry_topic, default_queue_nums=1)
    others = [queue for queue in route.publish if queue.broker != message.queue.broker]
    # Another broker's where there is one: the message's own may have just failed to take it back.
    queue = (others or route.publish or [MessageQueue(consumer.retry_topic, message.queue.broker, 0)])[0]
    header = SendMessageRequestHeaderV2(
        producer_group=CLIENT_INNER_PRODUCER_GROUP,
        topic=consumer.retry_topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=1,
        queue_id=queue.queue_id,
        sys_flag=0,
        born_timestamp=consumer.clock.time_millis(),
        flag=message.flag,
        properties="".join(f"{name}\x01{value}\x02" for name, value in properties.items()),
        reconsume_times=message.reconsume_times + 1,
        unit_mode=False,
        max_reconsume_times=max_reconsume_times,
        batch=False,
        broker_name=queue.broker,
    )
    address = consumer.instance.routes.publish_address(queue.broker)
    await api.send_message(consumer.instance.remoting, address, header, message.body, SEND_BACK_TIMEOUT)
