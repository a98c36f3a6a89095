"""Groups: consumer groups, their members, and how far they are.

What a group is and has lies on every master by itself: all are asked side by side, and the answers are laid together.
RocketMQ 5.5.0: ``ConsumerProgressSubCommand``, ``ConsumerConnectionSubCommand``, ``UpdateSubGroupSubCommand``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from rocketcore.admin.group_troubles import shared_client_ids, told_by_brokers
from rocketcore.admin.requests import BROKER_RUNTIME_INFO, Request, done
from rocketcore.admin.servers import Part, Question, merged
from rocketcore.codes import RequestCode, release_of
from rocketcore.errors import BrokerError, ConfigError, ConsumerNotOnline, GroupNotExist, RocketError
from rocketcore.message import MessageQueue
from rocketcore.naming import check_group
from rocketcore.protocol.headers.admin import (
    GetAllSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupResponseHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)
from rocketcore.service import Deadline

if TYPE_CHECKING:
    from rocketcore.protocol.bodies.client import Connection, ConsumerConnection
    from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
    from rocketcore.protocol.bodies.heartbeat import SubscriptionData
    from rocketcore.protocol.bodies.stats import OffsetWrapper
    from rocketcore.protocol.command import RemotingCommand
    from rocketcore.transport.remoting import Remoting

__all__ = [
    "STORED_OFFSETS",
    "GroupDescription",
    "GroupMember",
    "Groups",
    "QueueProgress",
    "members_of",
    "waiting_count",
]

_GROUPS_PER_PAGE: Final = 2000
"""Groups that are asked of a broker at once; no 5.x broker sends more."""
_FIFTY_YEARS: Final = 50 * 365 * 86_400_000
"""Milliseconds; of a message that is not there any more brokers say that it has waited since 1970."""


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Where a group is in one queue.

    broker_offset  the offset that the next message of the queue will get
    group_offset   the offset that the group goes on at, None where it has none
    consumed_at    when the last message that it has consumed was stored, epoch milliseconds; None where unknown
    waiting        seconds since the first message that waits for the group was stored: 0 where none waits, None where
                   unknown, or not asked for
    """

    queue: MessageQueue
    broker_offset: int
    group_offset: int | None
    consumed_at: int | None = None
    waiting: float | None = None

    @property
    def lag(self) -> int | None:
        """How many messages wait for the group; None where it has no offset."""
        return None if self.group_offset is None else waiting_count(self.broker_offset, self.group_offset)


def waiting_count(broker_offset: int, group_offset: int) -> int:
    """Return how many messages wait: all, where the queue has begun anew and ends before the group's offset."""
    return broker_offset - group_offset if group_offset <= broker_offset else broker_offset


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A connected member of a group.

    language  of the client, by RocketMQ's name; None where it is none of those
    version   ordinal of the release whose behaviour the client claims; ``release`` is its name
    brokers   those that it is connected to
    """

    client_id: str
    address: str
    language: str | None
    version: int
    brokers: tuple[str, ...]

    @property
    def release(self) -> str | None:
        """The release that ``version`` stands for, such as ``5.3.3``; None where that is not known."""
        return release_of(self.version)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as the masters together know it.

    configs        settings by broker, of those that have the group
    subscriptions  what its connected members want, by topic
    consume_type, message_model, consume_from_where   as its members say: PULL, PUSH or POP, …; None without any
    progress       every queue that it has an offset in
    unlike         how members differ in what they subscribe to, as their broker says; "" where they do not
    shared         a client id that two connections have, and their addresses; "" where none has
    unanswered     by name, the brokers that did not answer in time: what they know is missing
    """

    group: str
    configs: Mapping[str, SubscriptionGroupConfig]
    members: tuple[GroupMember, ...]
    subscriptions: Mapping[str, SubscriptionData]
    consume_type: str | None
    message_model: str | None
    consume_from_where: str | None
    progress: tuple[QueueProgress, ...]
    unlike: str = ""
    shared: str = ""
    unanswered: Mapping[str, RocketError] = field(default_factory=dict)


class GroupLag(list[QueueProgress]):
    """How far a group is in each queue, sorted.

    unanswered  by name, the brokers that did not answer in time: their queues are missing, and a sum is too small
    """

    def __init__(self, rows: Iterable[QueueProgress], unanswered: Mapping[str, RocketError]) -> None:
        super().__init__(rows)
        self.unanswered = unanswered


class Groups(Part):
    """The part of ``AsyncAdmin`` about consumer groups."""

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the consumer groups that any master knows, by name."""
        deadline = self._servers.deadline()
        return merged((await self.tables(await self._servers.masters(deadline), deadline)).values())

    async def group_configs(
        self, group: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of a group by broker, as the masters that have it say.

        raises  GroupNotExist where none has it, RouteNotFound without such a broker, the error of a broker that does
                not answer
        """
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline, cluster, broker)
        return await self.configs_at(group, masters, deadline)

    async def configs_at(
        self, group: str, masters: Mapping[str, str], deadline: Deadline
    ) -> dict[str, SubscriptionGroupConfig]:
        tables = await self.tables(masters, deadline)
        found = {name: table[group] for name, table in tables.items() if group in table}
        if not found:
            raise _no_group(group, tables)
        return found

    async def tables(
        self, masters: Mapping[str, str], deadline: Deadline
    ) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        """Return the groups of each master by broker."""
        answers = await self._servers.at_once([partial(self.groups_at, each, deadline) for each in masters.values()])
        return self._servers.known(dict(zip(masters, answers, strict=True)))

    async def groups_at(self, address: str, deadline: Deadline) -> dict[str, SubscriptionGroupConfig]:
        """Return the groups that a broker has, by name."""
        return await self._servers.paged(_groups_behind, address, deadline)

    async def request_modes(self, group: str, topic: str) -> dict[str, str]:
        """Return by broker how a group reads a topic: ``pull`` or ``pop``; only 5.x brokers know."""
        deadline = self._servers.deadline()
        masters = await self._servers.masters_of(topic, deadline)
        modes = await self._servers.all(masters.values(), _ALL_REQUEST_MODES, deadline)
        return {name: table.get((topic, group), "pull") for name, table in zip(masters, modes, strict=True)}

    async def set_request_mode(
        self, group: str, topic: str, mode: Literal["pull", "pop"], *, share_queues: int = 0
    ) -> list[str]:
        """Say whether a group's members pull or pop a topic, at every broker that has it; return their names.

        Members that ask their brokers go over with their next rebalance: ``PushConsumer(pop=True)``, Java's with
        ``setClientRebalance(false)``.

        share_queues  POP: how many members after it a member shares its queues with; 0: all pop all queues
        raises        PartlyDone where some brokers fail
        """
        from rocketcore.protocol.bodies.pop import MessageRequestMode, SetMessageRequestModeRequestBody

        check_group(group)
        if mode not in ("pull", "pop"):
            raise ConfigError(f"mode is 'pull' or 'pop', got {mode!r}")
        body = SetMessageRequestModeRequestBody(topic, group, MessageRequestMode(mode.upper()), share_queues)
        deadline = self._servers.deadline()
        masters = await self._servers.masters_of(topic, deadline)
        what = f"request mode of group {group!r} for topic {topic!r}"
        request = Request(RequestCode.SET_MESSAGE_REQUEST_MODE, what, done, body=body.encode())
        await self._servers.everywhere(request, addresses=masters.values(), deadline=deadline)
        return list(masters)

    # Members

    async def consumer_connections(self, group: str) -> list[Connection]:
        """Return the connected members of a group, each once; an empty list if there are no members."""
        members: dict[str, Connection] = {}
        for seen in await self._servers.ask_masters(members_of(group)):
            if seen is not None:
                members.update((connection.client_id, connection) for connection in seen.connection_set)
        return list(members.values())

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group's settings, members, subscriptions and progress, within one deadline.

        raises  GroupNotExist where no master knows it, it has no connected member and no stored offset; a broker's
                refusal; if no broker answers, the error
        """
        return await Groups(self._servers.leaving_out())._describe(group)

    async def _describe(self, group: str) -> GroupDescription:
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline)
        tables = await self.tables(masters, self._servers.share(deadline, 3))
        seen = await self._servers.by_name(masters, members_of(group), self._servers.share(deadline, 2))
        progress = await self._progress(group, None, masters, deadline, times=True)
        configs = {name: table[group] for name, table in tables.items() if group in table}
        online = {name: each for name, each in seen.items() if each is not None}
        if not configs and not online and not progress:
            raise _no_group(group, tables)
        first = next(iter(online.values()), None)
        return GroupDescription(
            group,
            configs,
            _members_in(online),
            merged(each.subscription_table for each in online.values()),
            None if first is None or first.consume_type is None else first.consume_type.value,
            None if first is None or first.message_model is None else first.message_model.name,
            None if first is None or first.consume_from_where is None else first.consume_from_where.name,
            tuple(progress),
            await self._unlike(group, masters, deadline) if online else "",
            shared_client_ids(online.values()),
            self._servers.unanswered(masters),
        )

    async def _unlike(self, group: str, masters: Mapping[str, str], deadline: Deadline) -> str:
        """Return how members differ, as brokers of ours say."""
        runtimes = await self._servers.each(masters.values(), BROKER_RUNTIME_INFO, deadline)
        told = [each for each in runtimes.values() if not isinstance(each, RocketError)]
        return told_by_brokers(told, "unlikeGroups").get(group, "")

    async def group_members(self, group: str) -> list[GroupMember]:
        """Return the connected members of a group with the brokers that each is connected to, sorted by id."""
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline)
        seen = await self._servers.by_name(masters, members_of(group), deadline)
        return list(_members_in({name: each for name, each in seen.items() if each is not None}))

    # Progress

    async def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        """Return where a group is in every queue that it has an offset for, in one topic or in all.

        A queue of these topics in which the group has no offset has the offset 0 here, see ``offsets``.
        """
        return merged(await self._servers.ask_masters(_stats_of(group, topic)))

    async def group_lag(self, group: str, topic: str | None = None) -> GroupLag:
        """Return how far a group is in each queue, and since when messages wait for it; sorted by queue.

        topic   only this one; without it all topics in which the group has offsets and to which its members subscribe
        raises  GroupNotExist where no master knows the group and no offset of it is stored; a broker's refusal; if no
                broker answers, the error
        """
        part = Groups(self._servers.leaving_out())
        return await part._known_progress(group, topic, times=True)

    async def offsets(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """Return the same without ``waiting``, which takes brokers longer than all else; raises where one is silent."""
        return await self._known_progress(group, topic, times=False)

    async def _known_progress(self, group: str, topic: str | None, *, times: bool) -> GroupLag:
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline)
        rows = await self._progress(group, topic, masters, self._servers.share(deadline, 2), times=times)
        if all(row.group_offset is None for row in rows):
            tables = await self.tables(masters, deadline)
            if not any(group in table for table in tables.values()):
                raise _no_group(group, tables)
        return GroupLag(rows, self._servers.unanswered(masters))

    async def _progress(
        self, group: str, topic: str | None, masters: Mapping[str, str], deadline: Deadline, *, times: bool
    ) -> list[QueueProgress]:
        async def ask(remoting: Remoting, address: str, timeout: float) -> list[QueueProgress]:
            within = Deadline(timeout, self._servers.clock)
            stats = await _stats_of(group, topic)(remoting, address, timeout)
            stored: Mapping[str, Mapping[int, int]] = {}
            if any(not each.consumer_offset for each in stats.values()):
                with contextlib.suppress(BrokerError):  # it has none, or does not say
                    stored = await STORED_OFFSETS(remoting, address, within.remaining())
            waiting: dict[MessageQueue, float] = {}
            behind = {queue.topic for queue, each in stats.items() if each.broker_offset > each.consumer_offset}
            for name in sorted(behind) if times else ():
                waiting |= await _waiting_of(group, name, remoting, address, within.remaining())
            return [_progress_in(group, *each, stored, waiting, times=times) for each in stats.items()]

        rows = [row for answer in await self._servers.all(masters.values(), ask, deadline) for row in answer]
        return sorted(rows, key=lambda row: row.queue)


def _no_group(group: str, brokers: Iterable[str]) -> GroupNotExist:
    return GroupNotExist(GroupNotExist.response_code, f"group {group!r} is not on {', '.join(brokers)}")


def _read_request_modes(answer: RemotingCommand) -> dict[tuple[str, str], str]:
    """Return the modes by topic and group."""
    from rocketcore.protocol.bodies.pop import MessageRequestModeSerializeWrapper

    table = MessageRequestModeSerializeWrapper.decode(answer.body).message_request_mode_map
    return {
        (topic, group): "pull" if said.mode is None else said.mode.value.lower()
        for topic, groups in table.items()
        for group, said in groups.items()
    }


_ALL_REQUEST_MODES: Final = Request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, "request modes", _read_request_modes)


def _groups_behind(known: int) -> Request[tuple[dict[str, SubscriptionGroupConfig], int | None]]:
    """Ask for a page of groups, and how many the broker has in all; None: these are all, as one of 4.9 answers."""

    def read(answer: RemotingCommand) -> tuple[dict[str, SubscriptionGroupConfig], int | None]:
        from rocketcore.protocol.bodies.group import SubscriptionGroupWrapper

        total = answer.header(GetAllSubscriptionGroupResponseHeader).total_group_num
        return SubscriptionGroupWrapper.decode(answer.body).subscription_group_table, total

    header = GetAllSubscriptionGroupRequestHeader(group_seq=known, max_group_num=_GROUPS_PER_PAGE)
    return Request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "list of groups", read, header)


def members_of(group: str) -> Question[ConsumerConnection | None]:
    """Ask for the members that a broker sees; None where there is none."""

    def read(answer: RemotingCommand) -> ConsumerConnection:
        from rocketcore.protocol.bodies.client import ConsumerConnection

        return ConsumerConnection.decode(answer.body)

    header = GetConsumerConnectionListRequestHeader(consumer_group=group)
    request = Request(RequestCode.GET_CONSUMER_CONNECTION_LIST, f"members of group {group!r}", read, header)

    async def seen(remoting: Remoting, address: str, timeout: float) -> ConsumerConnection | None:
        try:
            return await request(remoting, address, timeout)
        except ConsumerNotOnline:
            return None

    return seen


def _members_in(online: Mapping[str, ConsumerConnection]) -> tuple[GroupMember, ...]:
    """Lay together what brokers say of members, by client id."""
    brokers: dict[str, list[str]] = {}
    connections: dict[str, Connection] = {}
    for name, seen in online.items():
        for connection in seen.connection_set:
            brokers.setdefault(connection.client_id, []).append(name)
            connections.setdefault(connection.client_id, connection)
    return tuple(
        GroupMember(
            client_id,
            each.client_addr,
            None if each.language is None else each.language.name,
            each.version,
            tuple(brokers[client_id]),
        )
        for client_id, each in sorted(connections.items())
    )


def _stats_of(group: str, topic: str | None) -> Request[dict[MessageQueue, OffsetWrapper]]:
    def read(answer: RemotingCommand) -> dict[MessageQueue, OffsetWrapper]:
        from rocketcore.protocol.bodies.stats import ConsumeStats

        return ConsumeStats.decode(answer.body).offset_table

    header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
    return Request(RequestCode.GET_CONSUME_STATS, f"offsets of group {group!r}", read, header)


def _offset_table(answer: RemotingCommand) -> dict[str, dict[int, int]]:
    from rocketcore.protocol.bodies.stats import ConsumerOffsetSerializeWrapper

    return ConsumerOffsetSerializeWrapper.decode(answer.body).offset_table


STORED_OFFSETS: Final = Request(RequestCode.GET_ALL_CONSUMER_OFFSET, "stored offsets", _offset_table)
"""Every offset that a broker has stored, by ``topic@group`` and queue id: where 208 says 0 for a group without one."""


async def _waiting_of(
    group: str, topic: str, remoting: Remoting, address: str, timeout: float
) -> dict[MessageQueue, float]:
    """Ask for how many seconds the first message that a group has not consumed has waited, in each queue of a topic."""

    def read(answer: RemotingCommand) -> dict[MessageQueue, float]:
        from rocketcore.protocol.bodies.stats import QueryConsumeTimeSpanBody

        return {
            span.message_queue: span.delay_time / 1000
            for span in QueryConsumeTimeSpanBody.decode(answer.body).consume_time_span_set
            if span.message_queue is not None and 0 <= span.delay_time < _FIFTY_YEARS
        }

    header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
    request = Request(RequestCode.QUERY_CONSUME_TIME_SPAN, f"time span of group {group!r} in {topic!r}", read, header)
    try:
        return await request(remoting, address, timeout)
    except BrokerError:  # one that cannot look at its messages has said how many they are all the same
        return {}


def _progress_in(
    group: str,
    queue: MessageQueue,
    each: OffsetWrapper,
    stored: Mapping[str, Mapping[int, int]],
    waiting: Mapping[MessageQueue, float],
    *,
    times: bool,
) -> QueueProgress:
    group_offset: int | None = each.consumer_offset
    if not group_offset:
        group_offset = stored.get(f"{queue.topic}@{group}", {}).get(queue.queue_id)
    since: float | None = None
    if times and group_offset is not None:
        since = waiting.get(queue) if each.broker_offset > group_offset else 0.0
    return QueueProgress(queue, each.broker_offset, group_offset, each.last_timestamp or None, since)
