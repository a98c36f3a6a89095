"""Clients: who is connected as a producer, and what one consumer does.

Which consumers are connected is asked for by group, see ``Groups.group_members``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from rocketcore.admin.groups import GroupMember, members_of
from rocketcore.admin.requests import Request
from rocketcore.admin.servers import Part
from rocketcore.codes import RequestCode, Version, release_of
from rocketcore.errors import ConsumerNotOnline, RequestNotSupported, RequestTimeout, RocketError
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import GetConsumerRunningInfoRequestHeader
from rocketcore.service import Clock, Deadline

if TYPE_CHECKING:
    from rocketcore.message_queue import MessageQueue
    from rocketcore.protocol.bodies.client import ConsumerRunningInfo, ProducerInfo
    from rocketcore.transport.remoting import Remoting

__all__ = ["Clients", "ConnectedProducer", "QueueOwners"]


@dataclass(frozen=True, slots=True)
class ConnectedProducer:
    """A connected producer; ``seen_at`` is when a broker last heard of it, epoch milliseconds."""

    group: str
    client: GroupMember
    seen_at: int


@dataclass(frozen=True, slots=True)
class QueueOwners:
    """Which members of a group hold each queue, by their ids; ``silent`` are those that do not say."""

    owners: Mapping[MessageQueue, tuple[str, ...]]
    silent: tuple[str, ...]


def _producers_in(answer: RemotingCommand) -> Mapping[str, list[ProducerInfo]]:
    from rocketcore.protocol.bodies.client import ProducerTableInfo

    return ProducerTableInfo.decode(answer.body).data


def _running_info_in(answer: RemotingCommand) -> ConsumerRunningInfo:
    from rocketcore.protocol.bodies.client import ConsumerRunningInfo

    return ConsumerRunningInfo.decode(answer.body)


_PATIENCE: Final = 1.0
"""Seconds after which a broker that has not told its producers is asked whether it can."""
_PRODUCERS: Final = Request(RequestCode.GET_ALL_PRODUCER_INFO, "list of producers", _producers_in)


async def _ask_producers(
    clock: Clock, remoting: Remoting, address: str, timeout: float
) -> Mapping[str, list[ProducerInfo]]:
    """Ask for producers; a broker of before 4.9 answers what it does not know with silence, and is told by its version.

    raises  RequestNotSupported of such a broker, after a second
    """
    deadline = Deadline(timeout, clock)
    try:
        return await _PRODUCERS(remoting, address, min(_PATIENCE, timeout / 2))
    except RequestTimeout:
        question = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        version = (await remoting.invoke(address, question, deadline.remaining())).version
    if version < Version.V5_0_0:
        raise RequestNotSupported(
            RequestNotSupported.response_code,
            f"the broker answers other requests, not this one: it is RocketMQ {release_of(version) or version}, and "
            "brokers before 4.9 pass over what they do not know",
            address,
            _PRODUCERS.what,
        )
    return await _PRODUCERS(remoting, address, deadline.remaining())


def _running_info(group: str, client_id: str, *, stack: bool = False) -> Request[ConsumerRunningInfo]:
    header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client_id, jstack_enable=stack)
    return Request(RequestCode.GET_CONSUMER_RUNNING_INFO, f"what {client_id!r} does", _running_info_in, header)


class Clients(Part):
    """The part of ``AsyncAdmin`` about single clients."""

    async def consumer_running_info(self, group: str, client_id: str, *, stack: bool = False) -> ConsumerRunningInfo:
        """Return what a connected consumer says of itself: its queues, rates and settings.

        A broker passes the question on (Java: ``getConsumerRunningInfo``).

        stack   also what its threads are doing
        raises  ConsumerNotOnline where the answering brokers do not have this member; RequestTimeout for a client that
                does not answer
        """
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline)
        seen = await self._servers.each(masters.values(), members_of(group), deadline)
        address = next(
            (
                address
                for address, members in seen.items()
                if members is not None and not isinstance(members, RocketError)
                if any(each.client_id == client_id for each in members.connection_set)
            ),
            None,
        )
        if address is None:
            what = f"{client_id!r} of group {group!r} is not connected"
            raise ConsumerNotOnline(ConsumerNotOnline.response_code, what)
        return await self._servers.ask_one(_running_info(group, client_id, stack=stack), address, deadline.remaining())

    async def queue_owners(self, group: str, members: Sequence[GroupMember], *, within: float = 1.0) -> QueueOwners:
        """Return which of these members hold each queue, as they say themselves; one request a member.

        within  seconds after which a member without an answer counts as silent
        """
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline)
        share = Deadline(min(within, deadline.remaining()), self._servers.clock)

        async def ask(member: GroupMember, address: str) -> ConsumerRunningInfo:
            return await self._servers.ask_one(_running_info(group, member.client_id), address, share.remaining())

        known = {
            member.client_id: partial(ask, member, masters[name])
            for member in members
            for name in member.brokers[:1]
            if name in masters
        }
        answers = dict(zip(known, await self._servers.at_once(list(known.values())), strict=True))
        owners: dict[MessageQueue, tuple[str, ...]] = {}
        for client_id, info in answers.items():
            if not isinstance(info, RocketError):
                held = [queue for queue, each in info.mq_table.items() if not each.dropped]
                for queue in {*held, *info.mq_pop_table}:
                    owners[queue] = (*owners.get(queue, ()), client_id)
        silent = tuple(
            each.client_id for each in members if isinstance(answers.get(each.client_id), (RocketError, type(None)))
        )
        return QueueOwners(owners, silent)

    async def producers(self, group: str | None = None) -> list[ConnectedProducer]:
        """Return the connected producers of all groups, or of one, each once, sorted by group and id.

        One request to each master, and a second to a master that does not answer within a second (Java:
        ``getAllProducerInfo``).

        raises  BrokerError of a broker that does not say, RequestNotSupported of an old one
        """
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline)
        found: dict[tuple[str, str], list[tuple[str, ProducerInfo]]] = {}
        tables = await self._servers.by_name(masters, partial(_ask_producers, self._servers.clock), deadline)
        for name, table in tables.items():
            for of, clients in table.items():
                for each in clients if group in (None, of) else ():
                    found.setdefault((of, each.client_id), []).append((name, each))
        result = []
        for (of, client_id), seen in sorted(found.items()):
            first = seen[0][1]
            language = None if first.language is None else first.language.name
            brokers = tuple(name for name, _ in seen)
            member = GroupMember(client_id, first.remote_ip.lstrip("/"), language, first.version, brokers)
            result.append(ConnectedProducer(of, member, max(each.last_update_timestamp for _, each in seen)))
        return result
