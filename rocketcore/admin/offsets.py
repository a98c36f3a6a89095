"""Offsets: resets of a group's offsets, planned first and done as planned.

A broker of 5.x sets offsets itself and the next pull of each queue learns of it (``useServerSideResetOffset``, request
222 with an offset). One without tells the members that are connected to go to a time (222 by time), and takes the
offsets of a group that nobody is connected as (request 15). RocketMQ: ``ResetOffsetByTimeCommand``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from rocketcore.admin.groups import STORED_OFFSETS, Groups, members_of
from rocketcore.admin.requests import BROKER_CONFIG, Request, done, topic_stats
from rocketcore.admin.servers import Part, masters_named, masters_of_route
from rocketcore.admin.timestamps import millis_of
from rocketcore.client import api
from rocketcore.codes import Permission, RequestCode
from rocketcore.errors import ConfigError, GroupNotExist, OffsetsMoved, QueryNotFound
from rocketcore.message import MessageQueue
from rocketcore.protocol.headers.consumer import ResetOffsetRequestHeader
from rocketcore.service import Deadline

if TYPE_CHECKING:
    from rocketcore.protocol.bodies.stats import TopicOffset
    from rocketcore.transport.remoting import Remoting

__all__ = ["OffsetMove", "OffsetShift", "Offsets", "OffsetsOf", "ResetPlan", "ResetTarget"]

_SERVER_SIDE: Final = "useServerSideResetOffset"


@dataclass(frozen=True, slots=True)
class OffsetShift:
    """So many messages forward from where a group is, back if below 0."""

    by: int


@dataclass(frozen=True, slots=True)
class OffsetsOf:
    """Where another group is, in the queues that it has an offset in; the others stay."""

    group: str


ResetTarget: TypeAlias = 'Literal["earliest", "latest"] | int | datetime | OffsetShift | OffsetsOf'
"""Where a group shall go on: an offset, or what was stored at a time or later; at most at a bound of the queue."""


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """What a reset does in one queue; ``before`` is None where the group has no offset."""

    queue: MessageQueue
    before: int | None
    after: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """A reset that was looked at and not done yet.

    members  how many members are connected
    by_time  brokers that have the members themselves go to the time, by name; what these set may differ from ``moves``
             by what is stored meanwhile, and members take ten seconds for it
    millis   the time for those: -1 is the end, 0 the begin; None where the target is no time
    """

    group: str
    topic: str
    moves: tuple[OffsetMove, ...]
    members: int
    by_time: frozenset[str]
    millis: int | None


class Offsets(Part):
    """The part of ``AsyncAdmin`` that moves groups."""

    async def plan_reset(
        self, group: str, topic: str, to: ResetTarget, *, queues: Collection[MessageQueue] | None = None
    ) -> ResetPlan:
        """Return what ``reset_offsets`` would do; changes nothing.

        queues  only these; otherwise all readable ones
        raises  TopicNotExist; GroupNotExist where the group is not on every broker of the topic; QueryNotFound
                where the group of ``OffsetsOf`` has no offset in it. ConfigError for an unknown queue and for a
                shift of a group without an offset. ConfigError too if members are connected and a broker
                cannot reset then: a broker of 4.9, or without ``useServerSideResetOffset``
        """
        deadline = self._servers.deadline()
        bounds, masters = await self._bounds(topic, queues, deadline)
        tables = await Groups(self._servers).tables(masters, deadline)
        missing = [name for name, table in tables.items() if group not in table]
        if missing:
            raise GroupNotExist(GroupNotExist.response_code, f"group {group!r} is not on {', '.join(missing)}")
        members = await self._members(group, masters, deadline)
        settings = await self._servers.all(masters.values(), BROKER_CONFIG, deadline)
        by_time = {
            name
            for name, each in zip(masters, settings, strict=True)
            if each.get(_SERVER_SIDE) != "true" and members[name]
        }
        millis = _millis_of(to)
        if by_time and (millis is None or queues is not None):
            raise ConfigError(
                f"{', '.join(sorted(by_time))} can move connected members only to a time, in all queues: "
                f"stop the members of group {group!r} first"
            )
        before = await self.stored(group, topic, masters, deadline)
        if isinstance(to, OffsetsOf):
            source = await self.stored(to.group, topic, masters, deadline)
            bounds = {queue: each for queue, each in bounds.items() if queue in source}
            if not bounds:
                what = f"group {to.group!r} has no offset in topic {topic!r}"
                raise QueryNotFound(QueryNotFound.response_code, what)
            found = {queue: min(max(source[queue], each.min_offset), each.max_offset) for queue, each in bounds.items()}
        else:
            found = await self._targets(to, bounds, before, masters, deadline)
        moves = tuple(
            OffsetMove(queue, before.get(queue), target, bounds[queue].min_offset, bounds[queue].max_offset)
            for queue, target in found.items()
        )
        connected = {client for clients in members.values() for client in clients}
        return ResetPlan(group, topic, moves, len(connected), frozenset(by_time), millis)

    async def offsets_at(self, topic: str, time: int | datetime) -> dict[MessageQueue, tuple[int, int, int]]:
        """Return for each queue the offset of the first message stored at a time or later, and its bounds.

        Brokers are asked queue by queue, all at the same time. For a queue without a message of that time or later, the
        result is the offset of its next message; a broker of 4.9 returns that of its last message.

        time    an int is epoch milliseconds
        raises  TopicNotExist, RouteNotFound for a broker without a master; the error of a broker that does not answer
        """
        deadline = self._servers.deadline()
        bounds, masters = await self._bounds(topic, None, self._servers.share(deadline, 2))
        found = await self._at_time(millis_of(time), list(bounds), masters, deadline)
        return {
            queue: (min(max(offset, each.min_offset), each.max_offset), each.min_offset, each.max_offset)
            for (queue, each), offset in zip(bounds.items(), found, strict=True)
        }

    async def reset_offsets(self, plan: ResetPlan) -> None:
        """Do what was planned, at every broker at the same time.

        raises  OffsetsMoved where the group has moved since, and nothing is changed then; PartlyDone where some brokers
                fail
        """
        deadline = self._servers.deadline()
        masters = masters_named({move.queue.broker for move in plan.moves}, await self._servers.masters(deadline))
        _check_still(plan, await self.stored(plan.group, plan.topic, masters, deadline))
        name_of = {address: name for name, address in masters.items()}
        settings = dict(zip(masters, await self._servers.all(masters.values(), BROKER_CONFIG, deadline), strict=True))

        async def move(remoting: Remoting, address: str, timeout: float) -> None:
            within = Deadline(timeout, self._servers.clock)
            name = name_of[address]
            if name in plan.by_time:
                await _reset(plan, plan.millis or 0)(remoting, address, within.remaining())
                return
            for each in plan.moves:
                if each.queue.broker != name:
                    continue
                if settings[name].get(_SERVER_SIDE) == "true":
                    request = _reset(plan, 0, each.queue.queue_id, each.after)
                    await request(remoting, address, within.remaining())
                else:
                    await api.update_consumer_offset(
                        remoting, address, plan.group, each.queue, each.after, within.remaining()
                    )

        what = f"reset of group {plan.group!r} in topic {plan.topic!r}"
        await self._servers.everywhere(move, what, masters.values(), deadline)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        return await self._servers.at_broker_of(queue, lambda r, a, t: api.max_offset(r, a, queue, t))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that a queue still has."""
        return await self._servers.at_broker_of(queue, lambda r, a, t: api.min_offset(r, a, queue, t))

    async def search_offset(self, queue: MessageQueue, timestamp: int | datetime) -> int:
        """Return the offset of the first message stored at a time or later; an int is epoch milliseconds."""
        millis = millis_of(timestamp)
        return await self._servers.at_broker_of(queue, lambda r, a, t: api.search_offset(r, a, queue, millis, t))

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """Return when the first message of a queue was stored, epoch milliseconds; -1 without one."""
        return await self._servers.at_broker_of(queue, lambda r, a, t: api.earliest_store_time(r, a, queue, t))

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset that a group stored for a queue, None without one."""
        return await self._servers.at_broker_of(
            queue, lambda r, a, t: api.query_consumer_offset(r, a, group, queue, t, set_zero_if_not_found=False)
        )

    async def update_consumer_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store a group's offset of a queue; members that run overwrite it at their next commit."""
        await self._servers.at_broker_of(
            queue, lambda r, a, t: api.update_consumer_offset(r, a, group, queue, offset, t)
        )

    async def _bounds(
        self, topic: str, queues: Collection[MessageQueue] | None, deadline: Deadline
    ) -> tuple[dict[MessageQueue, TopicOffset], dict[str, str]]:
        """Return the bounds of the queues that are meant, and the masters that have them."""
        route = await self._servers.route(topic, deadline)
        counts = {each.broker_name: each.read_queue_nums for each in route.queue_datas if each.perm & Permission.READ}
        readable = {MessageQueue(topic, name, number) for name, count in counts.items() for number in range(count)}
        meant = readable if queues is None else set(queues)
        unknown = sorted(meant - readable)
        if unknown:
            named = ", ".join(f"{queue.broker}/{queue.queue_id}" for queue in unknown)
            raise ConfigError(f"topic {topic!r} has no queue {named} to read")
        masters = masters_named({queue.broker for queue in meant}, masters_of_route(route, topic))
        stats = await self._servers.all(masters.values(), topic_stats(topic), deadline)
        bounds = {queue: each for table in stats for queue, each in table.items() if queue in meant}
        return dict(sorted(bounds.items())), masters

    async def stored(
        self, group: str, topic: str, masters: Mapping[str, str], deadline: Deadline
    ) -> dict[MessageQueue, int]:
        """Return the offsets that a group has in a topic, whether or not its members subscribe to it now."""
        tables = await self._servers.by_name(masters, STORED_OFFSETS, deadline)
        return {
            MessageQueue(topic, name, queue_id): offset
            for name, table in tables.items()
            for queue_id, offset in table.get(f"{topic}@{group}", {}).items()
        }

    async def _members(self, group: str, masters: Mapping[str, str], deadline: Deadline) -> dict[str, set[str]]:
        """Return the ids of the members that each master sees."""
        seen = await self._servers.all(masters.values(), members_of(group), deadline)
        return {
            name: set() if each is None else {connection.client_id for connection in each.connection_set}
            for name, each in zip(masters, seen, strict=True)
        }

    async def _targets(
        self,
        to: Literal["earliest", "latest"] | int | datetime | OffsetShift,
        bounds: Mapping[MessageQueue, TopicOffset],
        before: Mapping[MessageQueue, int],
        masters: Mapping[str, str],
        deadline: Deadline,
    ) -> dict[MessageQueue, int]:
        wanted = [each.min_offset if to == "earliest" else each.max_offset for each in bounds.values()]
        if isinstance(to, OffsetShift):
            without = [queue for queue in bounds if queue not in before]
            if without:
                named = ", ".join(f"{queue.broker}/{queue.queue_id}" for queue in without)
                raise ConfigError(f"the group has no offset in {named}: a shift starts from one")
            wanted = [before[queue] + to.by for queue in bounds]
        elif isinstance(to, datetime):
            wanted = await self._at_time(millis_of(to), list(bounds), masters, deadline)
        elif isinstance(to, int):
            wanted = [to] * len(bounds)
        elif to not in ("earliest", "latest"):
            raise ConfigError(f"a group goes to earliest, latest, a time, an offset or a shift, not to {to!r}")
        pairs = zip(bounds.items(), wanted, strict=True)
        return {queue: min(max(each, limits.min_offset), limits.max_offset) for (queue, limits), each in pairs}

    async def _at_time(
        self, millis: int, queues: Sequence[MessageQueue], masters: Mapping[str, str], deadline: Deadline
    ) -> list[int]:
        async def find(queue: MessageQueue) -> int:
            address = masters[queue.broker]
            return await api.search_offset(self._servers.connections(), address, queue, millis, deadline.remaining())

        return await self._servers.results([partial(find, queue) for queue in queues])


def _millis_of(to: ResetTarget) -> int | None:
    """Return the time that says the same as a target, as 222 takes it; None where there is none."""
    if isinstance(to, datetime):
        return millis_of(to)
    return {"earliest": 0, "latest": -1}.get(to) if isinstance(to, str) else None


def _check_still(plan: ResetPlan, now: Mapping[MessageQueue, int]) -> None:
    moved = [move for move in plan.moves if now.get(move.queue) != move.before]
    if moved:
        first = moved[0]
        raise OffsetsMoved(
            f"group {plan.group!r} has moved in {len(moved)} of {len(plan.moves)} queues of topic {plan.topic!r} since "
            f"the plan: in {first.queue.broker}/{first.queue.queue_id} from {first.before} to {now.get(first.queue)}"
        )


def _reset(plan: ResetPlan, millis: int, queue_id: int = -1, offset: int | None = None) -> Request[None]:
    header = ResetOffsetRequestHeader(
        group=plan.group, topic=plan.topic, timestamp=millis, force=True, queue_id=queue_id, offset=offset
    )
    what = f"reset of group {plan.group!r} in topic {plan.topic!r}"
    return Request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, what, done, header)
