"""Failed messages that come back from consumers: 36.

Java: ``AbstractSendMessageProcessor.consumerSendMsgBack`` (5.5.0).
"""

from __future__ import annotations

from collections.abc import Iterable

from rocketcore._fast.properties import decode_properties, encode_properties
from rocketcore.broker.context import FAQ, BrokerContext
from rocketcore.broker.record import RecordReader
from rocketcore.broker.services.delay import schedule
from rocketcore.broker.store import PutStatus, StoredMessage
from rocketcore.codes import DLQ_TOPIC_PREFIX, Permission, RequestCode, ResponseCode, Version
from rocketcore.errors import BrokerError
from rocketcore.message import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

_FIRST_RETRY_LEVEL = 3


def retry_limit(
    group: SubscriptionGroupConfig,
    header: ConsumerSendMsgBackRequestHeader | SendMessageRequestHeader | SendMessageRequestHeaderV2,
    request: RemotingCommand,
) -> int:
    """How often a message comes again before it is a dead letter: what its consumer says, if it is not too old to."""
    if header.max_reconsume_times is not None and request.version >= Version.V3_4_9:
        return header.max_reconsume_times
    return group.retry_max_times


def make_dead_letter(context: BrokerContext, message: StoredMessage, group_name: str) -> None:
    """Address a message to the dead letters of a group."""
    message.topic = DLQ_TOPIC_PREFIX + group_name
    message.queue_id = 0
    context.topics.ensure(message.topic, 1)


class SendBackProcessor:
    """Stores a failed message for its group's retry topic after a delay, or for the dead letters."""

    def __init__(self, context: BrokerContext, delay_levels: int) -> None:
        self._context = context
        self._delay_levels = delay_levels
        self._reader = RecordReader(1)

    def routes(self) -> Iterable[Route]:
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        return (Route(code, self.send_back, ConsumerSendMsgBackRequestHeader, Right.SUB),)

    async def send_back(
        self, channel: Channel, request: RemotingCommand, header: ConsumerSendMsgBackRequestHeader
    ) -> RemotingCommand | None:
        context = self._context
        group = context.groups.find(header.group)
        if group is None:
            raise BrokerError.of(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group} {FAQ}"
            )
        if not context.is_writable:
            raise BrokerError.of(
                ResponseCode.NO_PERMISSION, f"the broker[{context.address}] sending message is forbidden"
            )
        if group.retry_queue_nums <= 0:
            return RemotingCommand.response(request)
        record = await context.store.reads.read(channel, context.store.lookup, header.offset)
        if record is None:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        failed = next(self._reader.read(record))
        message = failed.message
        message.reconsume_times += 1
        properties = decode_properties(message.properties)
        properties.setdefault(ORIGIN_MESSAGE_ID, failed.msg_id)
        self._store(channel, request, header, group, message, properties)
        return None

    def _store(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: ConsumerSendMsgBackRequestHeader,
        group: SubscriptionGroupConfig,
        message: StoredMessage,
        properties: dict[str, str],
    ) -> None:
        context = self._context
        properties.setdefault(RETRY_TOPIC, message.topic)
        if message.reconsume_times > retry_limit(group, header, request) or header.delay_level < 0:
            make_dead_letter(context, message, group.group_name)
            properties[DELAY] = "0"
            message.properties = encode_properties(properties)
        else:
            topic = context.ensure_retry_topic(group)
            # The topic may be older than the group's number. RocketMQ goes by that, to queues that nobody reads.
            queues = min(group.retry_queue_nums, topic.read_queue_nums, topic.write_queue_nums)
            if not topic.perm & Permission.WRITE or queues <= 0:
                raise BrokerError.of(
                    ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden"
                )
            message.topic = topic.topic_name
            message.queue_id = context.rng.randrange(queues)
            level = header.delay_level or _FIRST_RETRY_LEVEL + message.reconsume_times - 1
            message = schedule(message, properties, level, self._delay_levels)
        result = context.store.put(message)
        if result.status is not PutStatus.PUT_OK:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"{result.status.value} {result.reason}".rstrip())
        context.stats.count_put(message.topic, 1, result.size)
        if request.is_oneway:
            return

        def answer(status: PutStatus) -> None:
            if channel.closed:
                return
            if status is PutStatus.PUT_OK:
                channel.send(RemotingCommand.response(request))
            else:
                # After a time-out of the flush, too: the consumer keeps the message and tries again.
                channel.send(RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, status.value))

        context.store.wait(result.end_offset, answer)
