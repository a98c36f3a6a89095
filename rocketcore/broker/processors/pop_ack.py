"""Acknowledgements of popped messages: 200051 (Java: ``AckMessageProcessor``, 5.5.0)."""

from __future__ import annotations

from collections.abc import Iterable

from rocketcore.broker.context import FAQ, BrokerContext
from rocketcore.broker.services.pop import PopService
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import BrokerError
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.pop import AckMessageRequestHeader
from rocketcore.protocol.pop_info import Handle
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route


class PopAckProcessor:
    """Takes back what was popped. An answer leaves when what it says is stored.

    What is not handed out any more, as it is acknowledged already or came again, is answered with 0 and changes
    nothing.
    """

    def __init__(self, context: BrokerContext, pop: PopService) -> None:
        self._context = context
        self._pop = pop

    def routes(self) -> Iterable[Route]:
        return (Route(RequestCode.ACK_MESSAGE, self.acknowledge, AckMessageRequestHeader, Right.SUB),)

    async def acknowledge(
        self, channel: Channel, request: RemotingCommand, header: AckMessageRequestHeader
    ) -> RemotingCommand:
        self._check_place(channel, header.topic, header.queue_id, header.offset)
        handle = Handle.decode(header.extra_info)
        await self._pop.acknowledge(
            header.topic, header.consumer_group, header.queue_id, [header.offset], handle.pop_time
        )
        return RemotingCommand.response(request)

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
