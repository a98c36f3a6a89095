"""Group members, consumer offsets, queue locks: 38, 14, 15, 41, 42, 43, 29 to 32, 314.

Java: ``ConsumerManageProcessor`` and the offset part of ``AdminBrokerProcessor`` (5.5.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rocketcore.broker.context import BrokerContext
from rocketcore.codes import BoundaryType, RequestCode, ResponseCode
from rocketcore.errors import BrokerError
from rocketcore.message_queue import MessageQueue
from rocketcore.naming import is_legal_group
from rocketcore.protocol.bodies.client import (
    GetConsumerListByGroupResponseBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import (
    CloneGroupOffsetRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

_QUEUES_AT_ONCE: Final = 256


class ConsumerProcessor:
    """Answers what consumers ask about their group and their queues."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def routes(self) -> Iterable[Route]:
        code = RequestCode
        return (
            Route(code.GET_CONSUMER_LIST_BY_GROUP, self.consumer_list, GetConsumerListByGroupRequestHeader, Right.SUB),
            Route(code.QUERY_CONSUMER_OFFSET, self.query_offset, QueryConsumerOffsetRequestHeader, Right.SUB),
            Route(code.UPDATE_CONSUMER_OFFSET, self.update_offset, UpdateConsumerOffsetRequestHeader, Right.SUB),
            Route(code.GET_ALL_CONSUMER_OFFSET, self.all_offsets, None, Right.GET),
            Route(code.LOCK_BATCH_MQ, self.lock_queues, None, Right.SUB, body_limit=1 << 20),
            Route(code.UNLOCK_BATCH_MQ, self.unlock_queues, None, Right.SUB, body_limit=1 << 20),
            Route(code.SEARCH_OFFSET_BY_TIMESTAMP, self.search_offset, SearchOffsetRequestHeader, Right.GET),
            Route(code.GET_MAX_OFFSET, self.max_offset, GetMaxOffsetRequestHeader, Right.GET),
            Route(code.GET_MIN_OFFSET, self.min_offset, GetMinOffsetRequestHeader, Right.GET),
            Route(
                code.GET_EARLIEST_MSG_STORETIME,
                self.earliest_store_time,
                GetEarliestMsgStoretimeRequestHeader,
                Right.GET,
            ),
            Route(code.CLONE_GROUP_OFFSET, self.clone_offsets, CloneGroupOffsetRequestHeader, Right.UPDATE),
        )

    def consumer_list(
        self, channel: Channel, request: RemotingCommand, header: GetConsumerListByGroupRequestHeader
    ) -> RemotingCommand:
        name = header.consumer_group
        group = self._context.consumers.find(name)
        if group is None:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        body = GetConsumerListByGroupResponseBody(consumer_id_list=group.client_ids)
        return RemotingCommand.response(request, body=body.encode())

    def query_offset(
        self, channel: Channel, request: RemotingCommand, header: QueryConsumerOffsetRequestHeader
    ) -> RemotingCommand:
        """The committed offset; 0 for a new group where the queue's first message is still there, else 22."""
        store = self._context.store
        queue_offset = self._context.offsets.find(header.consumer_group, header.topic, header.queue_id)
        if queue_offset is None or queue_offset < 0:
            if header.set_zero_if_not_found is False:
                raise BrokerError.of(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first"
                )
            starts_at_zero = store.min_offset(header.topic, header.queue_id) <= 0
            if not starts_at_zero or store.max_offset(header.topic, header.queue_id) <= 0:
                raise BrokerError.of(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
                )
            queue_offset = 0
        return RemotingCommand.response(request, header=QueryConsumerOffsetResponseHeader(offset=queue_offset))

    def update_offset(
        self, channel: Channel, request: RemotingCommand, header: UpdateConsumerOffsetRequestHeader
    ) -> RemotingCommand:
        context = self._context
        if not context.groups.exists(header.consumer_group):
            raise BrokerError.of(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!")
        if context.topics.find(header.topic) is None:
            raise BrokerError.of(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
        context.offsets.check_room(header.consumer_group, header.topic, header.queue_id)
        stored = context.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return RemotingCommand.response(request, remark=None if stored else "Offset has been previously reset")

    def all_offsets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, body=self._context.offsets.encode())

    async def lock_queues(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        cooperative = self._context.cooperative
        body = await cooperative.decoded(LockBatchRequestBody, request.body)
        body.require("consumer_group")
        held: set[MessageQueue] = set()
        for some in _parts(body.mq_set):
            held.update(self._context.locks.lock(body.consumer_group, some, body.client_id))
            await cooperative.step()
        answer = LockBatchResponseBody(held)
        encoded = answer.encode() if len(held) <= _QUEUES_AT_ONCE else await cooperative.beside(answer.encode)
        return RemotingCommand.response(request, body=encoded)

    async def unlock_queues(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        cooperative = self._context.cooperative
        body = await cooperative.decoded(UnlockBatchRequestBody, request.body)
        body.require("consumer_group")
        for some in _parts(body.mq_set):
            self._context.locks.unlock(body.consumer_group, some, body.client_id)
            await cooperative.step()
        return RemotingCommand.response(request)

    async def search_offset(
        self, channel: Channel, request: RemotingCommand, header: SearchOffsetRequestHeader
    ) -> RemotingCommand:
        store, boundary = self._context.store, header.boundary_type or BoundaryType.LOWER
        found = await store.reads.read(
            channel, store.offset_by_time, header.topic, header.queue_id, header.timestamp, boundary
        )
        return RemotingCommand.response(request, header=SearchOffsetResponseHeader(offset=found))

    def max_offset(
        self, channel: Channel, request: RemotingCommand, header: GetMaxOffsetRequestHeader
    ) -> RemotingCommand:
        found = self._context.store.max_offset(header.topic, header.queue_id)
        return RemotingCommand.response(request, header=GetMaxOffsetResponseHeader(offset=found))

    def min_offset(
        self, channel: Channel, request: RemotingCommand, header: GetMinOffsetRequestHeader
    ) -> RemotingCommand:
        found = self._context.store.min_offset(header.topic, header.queue_id)
        return RemotingCommand.response(request, header=GetMinOffsetResponseHeader(offset=found))

    async def earliest_store_time(
        self, channel: Channel, request: RemotingCommand, header: GetEarliestMsgStoretimeRequestHeader
    ) -> RemotingCommand:
        store = self._context.store
        found = await store.reads.read(channel, store.earliest_time, header.topic, header.queue_id)
        return RemotingCommand.response(request, header=GetEarliestMsgStoretimeResponseHeader(timestamp=found))

    async def clone_offsets(
        self, channel: Channel, request: RemotingCommand, header: CloneGroupOffsetRequestHeader
    ) -> RemotingCommand:
        offsets = self._context.offsets
        if not is_legal_group(header.dest_group):
            raise BrokerError.of(ResponseCode.INVALID_PARAMETER, f"no group can be called {header.dest_group!r}")
        connected = None if header.offline else self._context.consumers.find(header.src_group)
        topics = (
            [header.topic]
            if header.topic
            else [topic async for topic, group in self._context.places() if group == header.src_group]
        )
        for topic in sorted(topics):
            # What a group that is connected does not subscribe to any more is none of its offsets.
            if connected is None or not connected.subscriptions or topic in connected.subscriptions:
                offsets.clone(header.src_group, header.dest_group, topic)
        return RemotingCommand.response(request)


def _parts(queues: Iterable[MessageQueue]) -> Iterator[Sequence[MessageQueue]]:
    """Return queues as many at a time as are locked in one step."""
    left = list(queues)
    return (left[first : first + _QUEUES_AT_ONCE] for first in range(0, len(left), _QUEUES_AT_ONCE))
