"""History: what became of one message: what clients traced, and how far each group is with it.

RocketMQ 5.5.0: ``QueryMsgTraceByIdSubCommand``, ``MQAdminImpl.messageTrackDetail``, ``consumeMessageDirectly``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from rocketcore.admin.groups import STORED_OFFSETS, members_of
from rocketcore.admin.messages import Messages, copies_at
from rocketcore.admin.requests import Request, topic_list
from rocketcore.admin.servers import Part
from rocketcore.codes import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, SCHEDULE_TOPIC, TRACE_TOPIC, RequestCode
from rocketcore.errors import ConsumerNotOnline, DecodeError, RouteNotFound, TopicNotExist
from rocketcore.message import REAL_TOPIC
from rocketcore.protocol.headers.admin import QueryTopicConsumeByWhoRequestHeader
from rocketcore.protocol.headers.consumer import ConsumeMessageDirectlyResultRequestHeader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketcore.message import ReceivedMessage
    from rocketcore.protocol.bodies.client import ConsumeMessageDirectlyResult
    from rocketcore.protocol.command import RemotingCommand
    from rocketcore.protocol.trace import Trace
    from rocketcore.service import Deadline

__all__ = ["GroupState", "History", "MessageState"]


class MessageState(Enum):
    """How far a group is with a message."""

    NOT_YET = "not_yet"
    """It is behind the group's offset still; some of it may be handed out and not acknowledged."""
    CONSUMED = "consumed"
    """The group's offset has passed it, and no copy of it waits for a retry."""
    RETRY = "retry"
    """The group failed for it, and it waits to be handed out again."""
    DEAD_LETTER = "dead_letter"
    """The group failed for it too often."""
    UNKNOWN = "unknown"
    """The group is connected, and has no offset in the queue."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """How far one group is with a message.

    group_offset  where the group goes on in the message's queue, None without one
    failed        how often it failed for the message, as far as copies of it tell
    members       how many members are connected to the message's broker
    """

    group: str
    state: MessageState
    group_offset: int | None
    failed: int
    members: int


class History(Part):
    """The part of ``AsyncAdmin`` about what became of a message."""

    async def message_traces(self, message_id: str, *, trace_topic: str = TRACE_TOPIC) -> list[Trace]:
        """Return what clients with ``trace=True`` told of a message, by its unique id or a key, in the order of time.

        A record without a time, as clients of 4.9 end a consumption, comes behind what belongs to it.

        raises  TopicNotExist where no broker has a trace topic; the error of a broker that does not answer
        """
        from rocketcore.protocol.trace import decode_traces

        found: dict[Trace, int] = {}
        for message in await Messages(self._servers).query_messages(trace_topic, message_id):
            try:
                traces = decode_traces(message.body)
            except DecodeError:  # somebody else's message
                continue
            for trace in traces:
                keys = (getattr(trace, "keys", None) or "").split()
                if message_id in trace.msg_id.split(",") or message_id in keys:
                    found[trace] = getattr(trace, "timestamp", None) or message.born_timestamp
        return sorted(found, key=lambda trace: found[trace])

    async def message_states(self, message: ReceivedMessage) -> list[GroupState]:
        """Return how far each group of a message's topic is with it, sorted by name.

        This asks the message's broker for the topic's groups and all offsets, and for copies that wait for their time.
        It also asks for copies in retry and dead-letter topics. Broadcasting groups keep their offsets themselves and
        are left out. For POP, a message before the offset is delivered, but perhaps not acknowledged.

        raises  RouteNotFound without the message's broker; its error where it does not answer
        """
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline)
        address = masters.get(message.queue.broker)
        if address is None:
            raise RouteNotFound(f"broker {message.queue.broker!r} has no master")
        topic = message.queue.topic
        offsets = await self._servers.ask_one(STORED_OFFSETS, address, deadline.remaining())
        stored = {
            key.removeprefix(f"{topic}@"): table.get(message.queue.queue_id)
            for key, table in offsets.items()
            if key.startswith(f"{topic}@")
        }
        groups = sorted({*stored, *await self._servers.ask_one(_groups_of(topic), address, deadline.remaining())})
        listed = await self._servers.ask(topic_list(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), deadline)
        topics = set(listed.topic_list)
        waiting = await self._copies(SCHEDULE_TOPIC, message, address, deadline)
        return await self._servers.results(
            [
                partial(self._state_in, each, stored.get(each), message, waiting, offsets, topics, address, deadline)
                for each in groups
            ]
        )

    async def _state_in(
        self,
        group: str,
        stored: int | None,
        message: ReceivedMessage,
        waiting: list[ReceivedMessage],
        offsets: Mapping[str, Mapping[int, int]],
        topics: set[str],
        address: str,
        deadline: Deadline,
    ) -> GroupState:
        retry, dead = RETRY_TOPIC_PREFIX + group, DLQ_TOPIC_PREFIX + group
        retries = await self._copies(retry, message, address, deadline) if retry in topics else []
        dead_letters = await self._copies(dead, message, address, deadline) if dead in topics else []
        seen = await self._servers.ask_one(members_of(group), address, deadline.remaining())
        delayed = [each.reconsume_times for each in waiting if each.properties.get(REAL_TOPIC) == retry]
        last = max((each.reconsume_times for each in retries), default=0)
        failed = max([last, *delayed, *(each.reconsume_times for each in dead_letters)], default=0)
        progress = offsets.get(f"{retry}@{group}", {})
        open_retry = any(
            each.reconsume_times == last and each.offset >= progress.get(each.queue.queue_id, 0) for each in retries
        )
        if stored is None and not failed:
            state = MessageState.UNKNOWN
        elif dead_letters and max(each.reconsume_times for each in dead_letters) >= failed:
            state = MessageState.DEAD_LETTER
        elif open_retry or max(delayed, default=0) > last:
            state = MessageState.RETRY
        elif stored is not None and stored <= message.offset and not failed:
            state = MessageState.NOT_YET
        else:
            state = MessageState.CONSUMED
        return GroupState(group, state, stored, failed, 0 if seen is None else len(seen.connection_set))

    async def _copies(
        self, topic: str, message: ReceivedMessage, address: str, deadline: Deadline
    ) -> list[ReceivedMessage]:
        """Return messages of a topic that have a message's unique id, as its broker has them."""
        ask = copies_at(topic, message.msg_id, {message.queue.broker: address})
        try:
            return await self._servers.ask_one(ask, address, deadline.remaining())
        except TopicNotExist:
            return []

    async def consume_directly(
        self, group: str, client_id: str, message: ReceivedMessage
    ) -> ConsumeMessageDirectlyResult:
        """Have one connected consumer consume a message now, and return what came of it; no offset moves.

        raises  ConsumerNotOnline where the message's broker has no such member; RequestTimeout where it takes longer
                than ``timeout``, BrokerError what the broker or the client refuse
        """
        from rocketcore.protocol.bodies.client import ConsumeMessageDirectlyResult

        deadline = self._servers.deadline()
        address = await self._servers.master_of(message.queue, deadline)
        seen = await self._servers.ask_one(members_of(group), address, deadline.remaining())
        if seen is None or all(each.client_id != client_id for each in seen.connection_set):
            what = f"{client_id!r} of group {group!r} is not connected to {message.queue.broker}"
            raise ConsumerNotOnline(ConsumerNotOnline.response_code, what, address)
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=group, client_id=client_id, msg_id=message.offset_msg_id, broker_name=message.queue.broker,
            topic=message.queue.topic,
        )  # fmt: skip
        request = Request(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            f"consumption of {message.msg_id} by {client_id!r}",
            lambda answer: ConsumeMessageDirectlyResult.decode(answer.body),
            header,
        )
        return await self._servers.ask_one(request, address, deadline.remaining())


def _groups_of(topic: str) -> Request[list[str]]:
    def read(answer: RemotingCommand) -> list[str]:
        from rocketcore.protocol.bodies.topic import GroupList

        return list(GroupList.decode(answer.body).group_list) if answer.body else []

    header = QueryTopicConsumeByWhoRequestHeader(topic=topic)
    return Request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, f"groups of topic {topic!r}", read, header)
