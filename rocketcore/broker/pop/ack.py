"""What becomes of popped messages: 200051, 200053, 200151.

Java: ``AckMessageProcessor``, ``ChangeInvisibleTimeProcessor`` (5.5.0).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rocketcore.broker.context import FAQ, BrokerContext
from rocketcore.broker.pop.processor import check_invisible_time
from rocketcore.broker.pop.service import PopService
from rocketcore.broker.pop.state import QueueKey
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import BrokerError
from rocketcore.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from rocketcore.protocol.pop_info import NORMAL, Handle, pop_retry_topic
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

BATCH_MOST: Final = 10_000
"""Messages, and POPs, that one batch acknowledges: as many as one queue hands a group."""


class PopAckProcessor:
    """Takes back what was popped. An answer leaves when what it says is stored.

    What is not handed out any more, as it is acknowledged already or came again, is answered with 0 and changes
    nothing.
    """

    def __init__(self, context: BrokerContext, pop: PopService) -> None:
        self._context = context
        self._pop = pop

    def routes(self) -> Iterable[Route]:
        code, right = RequestCode, Right.SUB
        return (
            Route(code.ACK_MESSAGE, self.acknowledge, AckMessageRequestHeader, right),
            Route(code.BATCH_ACK_MESSAGE, self.acknowledge_batch, None, right, body_limit=1 << 20),
            Route(code.CHANGE_MESSAGE_INVISIBLETIME, self.hide, ChangeInvisibleTimeRequestHeader, right),
        )

    async def acknowledge(
        self, channel: Channel, request: RemotingCommand, header: AckMessageRequestHeader
    ) -> RemotingCommand:
        self._check_place(channel, header.topic, header.queue_id, header.offset)
        handle = Handle.decode(header.extra_info)
        key = (header.topic, header.consumer_group, header.queue_id)
        await self._pop.acknowledge((key, [header.offset], handle.pop_time))
        return RemotingCommand.response(request)

    async def acknowledge_batch(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        decoded = self._context.cooperative.decoded
        acks = (await decoded(BatchAckMessageRequestBody, request.body)).acks if request.body else []
        if not acks:
            raise BrokerError.of(ResponseCode.NO_MESSAGE, "batch ack request has no acks")
        if len(acks) > BATCH_MOST or sum(ack.bit_count for ack in acks) > BATCH_MOST:
            raise BrokerError.of(ResponseCode.INVALID_PARAMETER, f"a batch acknowledges {BATCH_MOST} messages at most")
        for ack in acks:
            ack.require("topic", "bits")
        await self._pop.acknowledge(*map(_acknowledged, acks))
        return RemotingCommand.response(request)

    async def hide(
        self, channel: Channel, request: RemotingCommand, header: ChangeInvisibleTimeRequestHeader
    ) -> RemotingCommand:
        """Let a message stay invisible for another while, from now on: it gets another handle."""
        try:
            self._check_place(channel, header.topic, header.queue_id, header.offset)
            check_invisible_time(header.invisible_time)
            handle = Handle.decode(header.extra_info)
            key = (header.topic, header.consumer_group, header.queue_id)
            now = await self._pop.hide(
                key, header.offset, handle.pop_time, header.invisible_time, suspended=header.suspend
            )
        except BrokerError as refused:
            nothing = ChangeInvisibleTimeResponseHeader(pop_time=0, invisible_time=0, revive_qid=0)
            return RemotingCommand.response(request, refused.code, refused.remark, nothing)
        answer = ChangeInvisibleTimeResponseHeader(
            pop_time=now, invisible_time=header.invisible_time, revive_qid=handle.revive_queue_id
        )
        return RemotingCommand.response(request, header=answer)

    def _check_place(self, channel: Channel, name: str, queue_id: int, offset: int) -> None:
        """Raise BrokerError where a message cannot be there."""
        topic = self._context.topics.find(name)
        if topic is None:
            raise BrokerError.of(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! {FAQ}")
        if not 0 <= queue_id < topic.read_queue_nums:
            raise BrokerError.of(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[{channel.remote_address}]",
            )
        store = self._context.store
        low, high = store.min_offset(name, queue_id), store.max_offset(name, queue_id)
        if not low <= offset <= high:
            raise BrokerError.of(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{name}@{queue_id}, commit:{offset}, store:{low}~{high}",
            )


def _acknowledged(ack: BatchAck) -> tuple[QueueKey, Iterable[int], int]:
    """Return queue, offsets and POP time that a part of a batch tells."""
    topic, group = ack.topic, ack.consumer_group
    stored = topic if ack.retry == NORMAL else pop_retry_topic(topic, group, ack.retry)
    return (stored, group, ack.queue_id), sorted(ack.start_offset + bit for bit in ack.bit_set), ack.pop_time
