"""Sharing queues out for clients that do not do it themselves, and whether they pull or pop: 400, 401, 402.

Java: ``QueryAssignmentProcessor`` (5.5.0).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from rocketcore.broker.context import BrokerContext
from rocketcore.broker.state.request_mode import RequestModes
from rocketcore.codes import RETRY_TOPIC_PREFIX, Permission, RequestCode, ResponseCode
from rocketcore.errors import BrokerError
from rocketcore.message_queue import MessageQueue
from rocketcore.protocol.allocate import STRATEGIES, AllocateStrategy, sorted_ids, sorted_queues
from rocketcore.protocol.bodies.heartbeat import MessageModel
from rocketcore.protocol.bodies.pop import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from rocketcore.protocol.bodies.route import TopicRouteData
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

_EVERY_QUEUE = -1


class AssignmentProcessor:
    """Says which queues a client reads, and how.

    route  a topic's route as the name servers know it, None where they do not
    """

    def __init__(
        self, context: BrokerContext, modes: RequestModes, route: Callable[[str], Awaitable[TopicRouteData | None]]
    ) -> None:
        self._context = context
        self._modes = modes
        self._route = route

    def routes(self) -> Iterable[Route]:
        code = RequestCode
        return (
            Route(code.QUERY_ASSIGNMENT, self.assignment, None, Right.SUB),
            Route(code.SET_MESSAGE_REQUEST_MODE, self.set_mode, None, Right.UPDATE),
            Route(code.GET_ALL_MESSAGE_REQUEST_MODE, self.all_modes, None, Right.GET),
        )

    async def set_mode(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        body = SetMessageRequestModeRequestBody.decode(request.body)
        if not body.topic:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, "topic is missing")
        if body.topic.startswith(RETRY_TOPIC_PREFIX):
            raise BrokerError.of(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._context.topics.find(body.topic) is None:
            raise BrokerError.of(ResponseCode.TOPIC_NOT_EXIST, f"topic[{body.topic}] not exist")
        self._modes.set(body)
        self._context.writer.save(self._modes.file, self._modes.encode)
        await self._context.writer.flushed()
        return RemotingCommand.response(request)

    def all_modes(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, body=self._modes.encode())

    async def assignment(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer a client's queues; nothing at all means that it is to leave things as they are."""
        asked = QueryAssignmentRequestBody.decode(request.body)
        if not asked.topic or asked.message_model is None:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, "topic or messageModel is missing")
        mode, share = self._mode(asked.topic, asked.consumer_group)
        queues = sorted_queues(await self._queues(asked.topic))
        answer = QueryAssignmentResponseBody()
        if (mine := self._share_out(asked, queues, mode, share)) is not None:
            answer.message_queue_assignments = [MessageQueueAssignment(queue, mode) for queue in mine]
        return RemotingCommand.response(request, body=answer.encode())

    def _mode(self, topic: str, group: str) -> tuple[MessageRequestMode, int]:
        """Return how a group reads a topic, and with how many further members one shares its queues."""
        said = self._modes.find(topic, group)
        if said is None or said.mode is None:
            return MessageRequestMode.PULL, _EVERY_QUEUE
        return said.mode, said.pop_share_queue_num

    async def _queues(self, topic: str) -> set[MessageQueue]:
        """The queues of a topic that may be read, on all brokers; empty where nobody knows it."""
        route = await self._route(topic)
        queues: set[MessageQueue] = set()
        if route is not None:
            masters = {broker.broker_name for broker in route.broker_datas}
            queues |= {
                MessageQueue(topic, data.broker_name, queue_id)
                for data in route.queue_datas
                if data.perm & Permission.READ and data.broker_name in masters
                for queue_id in range(data.read_queue_nums)
            }
        # A name server may not have heard of a topic that is new here.
        own, name = self._context.topics.find(topic), self._context.config.broker_name
        if own is not None and own.perm & Permission.READ:
            queues |= {MessageQueue(topic, name, queue_id) for queue_id in range(own.read_queue_nums)}
        return queues

    def _share_out(
        self, asked: QueryAssignmentRequestBody, queues: Sequence[MessageQueue], mode: MessageRequestMode, share: int
    ) -> Sequence[MessageQueue] | None:
        if not queues:
            return None
        if asked.message_model is MessageModel.BROADCASTING:
            return queues
        group = self._context.consumers.find(asked.consumer_group)
        strategy = STRATEGIES.get(asked.strategy_name)
        if group is None or strategy is None:
            return None
        members = sorted_ids(group.client_ids)
        if mode is MessageRequestMode.POP:
            return shared_for_pop(strategy, asked.client_id, queues, members, share)
        return strategy(asked.client_id, queues, members)


def shared_for_pop(
    strategy: AllocateStrategy,
    client_id: str,
    queues: Sequence[MessageQueue],
    members: Sequence[str],
    share: int,
) -> list[MessageQueue]:
    """Return the queues that a member pops: all of each broker, or its own and those of the ``share`` members after it.

    queues, members  sorted, not empty
    Java: ``allocate4Pop``
    """
    if share <= 0 or share >= len(members) - 1:
        brokers = dict.fromkeys((queue.topic, queue.broker) for queue in queues)
        return [MessageQueue(topic, broker, _EVERY_QUEUE) for topic, broker in brokers]
    if client_id not in members:
        return []
    index = members.index(client_id)
    if len(members) > len(queues):
        return [queues[index % len(queues)]]
    sharing = [members[(index + step) % len(members)] for step in range(share + 1)]
    return list(dict.fromkeys(queue for member in sharing for queue in strategy(member, queues, members)))
