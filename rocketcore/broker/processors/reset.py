"""Resets of a group's offsets: 222 (Java: ``AdminBrokerProcessor.resetOffset``, ``Broker2Client``, 5.5.0).

With ``useServerSideResetOffset``, as 5.x, the broker sets the offsets itself and the next pull of each queue learns of
it; one that is held, at once. Without, as 4.9, the group's clients are told to go on elsewhere (220): there have to be
some, and each queue needs an offset of the group.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from rocketcore.broker.context import BrokerContext
from rocketcore.broker.processors.relay import require_version
from rocketcore.codes import LanguageCode, RequestCode, ResponseCode, Version
from rocketcore.errors import BrokerError, TransportError
from rocketcore.message_queue import MessageQueue
from rocketcore.protocol.bodies.client import MessageQueueForC, ResetOffsetBody, ResetOffsetBodyForC
from rocketcore.protocol.bodies.topic import TopicConfig
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import ResetOffsetRequestHeader
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

logger = logging.getLogger(__name__)

_TO_THE_END = -1


class ResetProcessor:
    """Moves groups to other offsets.

    on_reset  (topic, group, queue ids): hears of a reset that is done
    stored    returns when what was reset is stored; raises BrokerError where it is not
    """

    def __init__(
        self,
        context: BrokerContext,
        on_reset: Callable[[str, str, Iterable[int]], None],
        stored: Callable[[], Awaitable[None]],
    ) -> None:
        self._context = context
        self._on_reset = on_reset
        self._stored = stored

    def routes(self) -> Iterable[Route]:
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        return (Route(code, self.reset_offset, ResetOffsetRequestHeader, Right.UPDATE),)

    async def reset_offset(
        self, channel: Channel, request: RemotingCommand, header: ResetOffsetRequestHeader
    ) -> RemotingCommand:
        """Move a group to a time, or in one queue to an offset."""
        context = self._context
        if not context.config.use_server_side_reset_offset:
            return await self._reset_by_clients(channel, request, header)
        topic = self._check(header)
        queue_ids = [header.queue_id] if header.queue_id >= 0 else range(topic.read_queue_nums)
        targets = {}
        for queue_id in queue_ids:
            targets[queue_id] = await self._reset_target(channel, header, queue_id)
            await context.cooperative.step()
        try:
            for queue_id, target in targets.items():
                self._check(header)  # deleted meanwhile, it is not to have offsets again
                context.offsets.reset(header.group, header.topic, queue_id, target)
                await context.cooperative.step()
        finally:
            self._on_reset(header.topic, header.group, targets)
        try:
            await self._stored()
        except (OSError, BrokerError) as error:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR, f"the group was reset, but that is not stored yet: {error}"
            ) from error
        body = ResetOffsetBody(
            offset_table={
                MessageQueue(header.topic, context.config.broker_name, queue_id): target
                for queue_id, target in targets.items()
            }
        )
        return RemotingCommand.response(request, body=body.encode())

    def _check(self, header: ResetOffsetRequestHeader) -> TopicConfig:
        """Return the topic; raises BrokerError where it or the group is not there."""
        topic = self._context.topics.find(header.topic)
        if topic is None:
            raise BrokerError.of(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
        if not self._context.groups.exists(header.group):
            raise BrokerError.of(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist")
        return topic

    async def _reset_target(self, channel: Channel, header: ResetOffsetRequestHeader, queue_id: int) -> int:
        store = self._context.store
        minimum, maximum = store.min_offset(header.topic, queue_id), store.max_offset(header.topic, queue_id)
        if header.queue_id >= 0 and header.offset is not None and header.offset != -1:
            if not minimum <= header.offset <= maximum + 1:
                raise BrokerError.of(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {header.offset} not in consume queue range [{minimum}-{maximum}]",
                )
            return header.offset
        if header.timestamp < 0:
            return maximum
        return await store.reads.read(channel, store.offset_by_time, header.topic, queue_id, header.timestamp)

    async def _reset_by_clients(
        self, channel: Channel, request: RemotingCommand, header: ResetOffsetRequestHeader
    ) -> RemotingCommand:
        """Tell the clients of a group to go on elsewhere; none goes forward unless ``isForce`` says so."""
        context = self._context
        topic = context.topics.find(header.topic)
        if topic is None:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
            )
        table = {}
        for queue_id in range(topic.write_queue_nums):
            consumed = context.offsets.find(header.group, header.topic, queue_id)
            if consumed is None or consumed == -1:
                raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
            target = max(0, await self._by_time(channel, header, queue_id))
            queue = MessageQueue(header.topic, context.config.broker_name, queue_id)
            table[queue] = target if header.force else min(target, consumed)
            await context.cooperative.step()
        group = context.consumers.find(header.group)
        if group is None:
            raise BrokerError.of(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}",
            )
        told = ResetOffsetRequestHeader(topic=header.topic, group=header.group, timestamp=header.timestamp, force=False)
        body = _body(table, for_c=request.language == LanguageCode.CPP)
        for client in require_version(group, Version.V3_0_7_SNAPSHOT):
            question = RemotingCommand.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, told, body, oneway=True)
            try:
                client.channel.invoke_oneway(question)
            except TransportError as error:
                logger.info("reset not told group=%s client_id=%s error=%s", group.name, client.client_id, error)
        return RemotingCommand.response(request, body=ResetOffsetBody(offset_table=table).encode())

    async def _by_time(self, channel: Channel, header: ResetOffsetRequestHeader, queue_id: int) -> int:
        store = self._context.store
        if header.timestamp == _TO_THE_END:
            return store.max_offset(header.topic, queue_id)
        return await store.reads.read(channel, store.offset_by_time, header.topic, queue_id, header.timestamp)


def _body(table: dict[MessageQueue, int], *, for_c: bool) -> bytes:
    """Return the new offsets as clients read them; an admin in C++ has clients in C++, which read a list."""
    if not for_c:
        return ResetOffsetBody(offset_table=table).encode()
    entries = [MessageQueueForC(queue.topic, queue.broker, queue.queue_id, offset) for queue, offset in table.items()]
    return ResetOffsetBodyForC(offset_table=entries).encode()
