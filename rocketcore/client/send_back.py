"""Messages that failed, on their way back: to the broker that has them, or to their group's retry topic.

RocketMQ 5.5.0: ``DefaultMQPushConsumerImpl.sendMessageBack``.
"""

from __future__ import annotations

from typing import Final

from rocketcore.client import api
from rocketcore.client.subscriber import Subscriber
from rocketcore.codes import AUTO_CREATE_TOPIC, CLIENT_INNER_PRODUCER_GROUP
from rocketcore.message import (
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    RECONSUME_TIME,
    RETRY_TOPIC,
    UNIQ_KEY,
    MessageQueue,
    ReceivedMessage,
)
from rocketcore.protocol.headers.message import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeaderV2

__all__ = ["SEND_BACK_TIMEOUT", "TO_THE_DLQ", "send_message_back", "send_to_retry_topic"]

SEND_BACK_TIMEOUT: Final = 5.0
TO_THE_DLQ: Final = -1
"""Delay level that asks a broker for the dead letter queue."""
_PROPERTIES_NOT_RESENT: Final = ("MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "WAIT", "CLUSTER")


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
    properties = {name: value for name, value in message.properties.items() if name not in _PROPERTIES_NOT_RESENT}
    properties[RETRY_TOPIC] = consumer.wire_topic(message.topic)
    properties[RECONSUME_TIME] = str(message.reconsume_times + 1)
    properties[MAX_RECONSUME_TIMES] = str(max_reconsume_times)
    properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_msg_id)
    properties.setdefault(UNIQ_KEY, message.msg_id)
    properties.pop(DELAY, None)
    if delay_level:
        properties[DELAY] = str(delay_level)
    route = await consumer.instance.route(consumer.retry_topic, default_queue_nums=1)
    queue = route.publish[0] if route.publish else MessageQueue(consumer.retry_topic, message.queue.broker, 0)
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
