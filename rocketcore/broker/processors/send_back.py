"""Failed messages that come back from consumers: 36.

Java: ``AbstractSendMessageProcessor.consumerSendMsgBack`` (5.5.0).
"""

from __future__ import annotations

from collections.abc import Iterable

from rocketcore._fast.properties import decode_properties
from rocketcore.broker.admission import Admission
from rocketcore.broker.context import FAQ, BrokerContext
from rocketcore.broker.record import RecordReader
from rocketcore.broker.store import PutStatus
from rocketcore.codes import Permission, RequestCode, ResponseCode, Version
from rocketcore.errors import BrokerError
from rocketcore.message import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, WAIT
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.topic import TopicConfig
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


class SendBackProcessor:
    """Stores a failed message for its group's retry topic after a delay, or for the dead letters."""

    def __init__(self, context: BrokerContext, admission: Admission) -> None:
        self._context = context
        self._admission = admission
        self._reader = RecordReader(1)

    def routes(self) -> Iterable[Route]:
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        return (Route(code, self.send_back, ConsumerSendMsgBackRequestHeader, Right.SUB),)

    async def send_back(
        self, channel: Channel, request: RemotingCommand, header: ConsumerSendMsgBackRequestHeader
    ) -> RemotingCommand:
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
        retry_topic = self._retry_topic(group)
        record = await context.store.reads.read(channel, context.store.lookup, header.offset)
        if record is None:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        failed = next(self._reader.read(record))
        message = failed.message
        message.reconsume_times += 1
        properties = decode_properties(message.properties)
        properties.setdefault(ORIGIN_MESSAGE_ID, failed.msg_id)
        properties.setdefault(RETRY_TOPIC, message.topic)
        properties[WAIT] = "false"
        if message.reconsume_times > retry_limit(group, header, request) or header.delay_level < 0:
            self._admission.make_dead_letter(message, group.group_name)
            properties[DELAY] = "0"
        else:
            # The topic may be older than the group's number. RocketMQ goes by that, to queues that nobody reads.
            queues = min(group.retry_queue_nums, retry_topic.read_queue_nums, retry_topic.write_queue_nums)
            if queues <= 0:
                raise _forbidden(retry_topic)
            message.topic = retry_topic.topic_name
            message.queue_id = context.rng.randrange(queues)
            properties[DELAY] = str(header.delay_level or _FIRST_RETRY_LEVEL + message.reconsume_times - 1)
        result = self._admission.put(message, properties)
        if result.status is not PutStatus.PUT_OK:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"{result.status.value} {result.reason}".rstrip())
        status = await self._admission.stored(result)
        if status is not PutStatus.PUT_OK:
            # After a time-out of the flush, too: the consumer keeps the message and tries again.
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, status.value)
        context.stats.count_send_back(group.group_name, properties[RETRY_TOPIC])
        return RemotingCommand.response(request)

    def _retry_topic(self, group: SubscriptionGroupConfig) -> TopicConfig:
        """Return where failed messages of a group go, made if it is not there; raises BrokerError where none may."""
        topic = self._context.ensure_retry_topic(group)
        if not topic.perm & Permission.WRITE:
            raise _forbidden(topic)
        return topic


def _forbidden(topic: TopicConfig) -> BrokerError:
    return BrokerError.of(ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden")
