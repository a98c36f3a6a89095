"""Sharing queues out for clients that do not do it themselves, and whether they pull or pop: 400, 401, 402.

Java: ``QueryAssignmentProcessor`` (5.5.0).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

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
MOST_QUEUES = 16_384
"""Queues of a topic, of all brokers, that are shared out."""
_AT_ONCE = 1024
"""Queues and members that are shared out on the loop; more, beside it."""


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
        body.require("topic", "consumer_group")
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
        asked.require("topic", "consumer_group", "message_model")
        mode, share = self._mode(asked.topic, asked.consumer_group)
        counts = await self._queue_counts(asked.topic)
        group = self._context.consumers.find(asked.consumer_group)
        members = [] if group is None else group.client_ids
        answer = partial(_answer, asked, counts, members, mode, share)
        is_long = sum(counts.values()) + len(members) * max(share + 1, 1) > _AT_ONCE
        body = await self._context.cooperative.beside(answer) if is_long else answer()
        return RemotingCommand.response(request, body=body)

    def _mode(self, topic: str, group: str) -> tuple[MessageRequestMode, int]:
        """Return how a group reads a topic, and with how many further members one shares its queues."""
        said = self._modes.find(topic, group)
        if said is None or said.mode is None:
            return MessageRequestMode.PULL, _EVERY_QUEUE
        return said.mode, said.pop_share_queue_num

    async def _queue_counts(self, topic: str) -> dict[str, int]:
        """How many queues of a topic may be read on each broker; empty where nobody knows it."""
        route = await self._route(topic)
        counts: dict[str, int] = {}
        if route is not None:
            masters = {broker.broker_name for broker in route.broker_datas}
            for data in route.queue_datas:
                if data.perm & Permission.READ and data.broker_name in masters:
                    counts[data.broker_name] = max(data.read_queue_nums, counts.get(data.broker_name, 0))
        # A name server may not have heard of a topic that is new here.
        own, name = self._context.topics.find(topic), self._context.config.broker_name
        if own is not None and own.perm & Permission.READ:
            counts[name] = max(own.read_queue_nums, counts.get(name, 0))
        total = sum(counts.values())
        if total > MOST_QUEUES:  # also where a name server was told of brokers that there are not
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR,
                f"topic[{topic}] has {total} queues on {len(counts)} brokers, at most {MOST_QUEUES} are shared out",
            )
        return counts


def _answer(
    asked: QueryAssignmentRequestBody,
    counts: Mapping[str, int],
    client_ids: Sequence[str],
    mode: MessageRequestMode,
    share: int,
) -> bytes:
    answer = QueryAssignmentResponseBody()
    if (mine := _share_out(asked, counts, client_ids, mode, share)) is not None:
        answer.message_queue_assignments = [MessageQueueAssignment(queue, mode) for queue in mine]
    return answer.encode()


def _share_out(
    asked: QueryAssignmentRequestBody,
    counts: Mapping[str, int],
    client_ids: Sequence[str],
    mode: MessageRequestMode,
    share: int,
) -> Sequence[MessageQueue] | None:
    if not any(count > 0 for count in counts.values()):
        return None
    strategy = STRATEGIES.get(asked.strategy_name)
    is_broadcast = asked.message_model is MessageModel.BROADCASTING
    if not is_broadcast and (not client_ids or strategy is None):
        return None
    queues = sorted_queues(
        MessageQueue(asked.topic, broker, queue_id) for broker, count in counts.items() for queue_id in range(count)
    )
    if is_broadcast or strategy is None:
        return queues
    members = sorted_ids(client_ids)
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
