"""GroupSettings: consumer groups are created, changed and deleted, on every master.

RocketMQ 5.5.0: ``UpdateSubGroupSubCommand``, ``DeleteSubscriptionGroupCommand``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketcore.admin.groups import Groups
from rocketcore.admin.requests import Request, done, was_created
from rocketcore.admin.servers import Part
from rocketcore.codes import RequestCode
from rocketcore.errors import ConfigError, GroupExists, PartlyDone, RocketError
from rocketcore.naming import check_group
from rocketcore.protocol.headers.admin import CreateGroupRequestHeader, DeleteSubscriptionGroupRequestHeader
from rocketcore.service import Deadline

if TYPE_CHECKING:
    from rocketcore.protocol.bodies.group import SubscriptionGroupConfig

__all__ = ["CreatedGroup", "GroupChange", "GroupSettings", "changed", "put_group"]


@dataclass(frozen=True, slots=True)
class CreatedGroup:
    """A group that was created, and the names of the brokers.

    created  False: it was there (``exist_ok``), and nothing was changed
    """

    group: str
    brokers: tuple[str, ...]
    created: bool = True


class GroupChange(NamedTuple):
    """What a change of a group did: its settings by broker, as they were and as they are."""

    before: dict[str, SubscriptionGroupConfig]
    after: dict[str, SubscriptionGroupConfig]


class GroupSettings(Part):
    """The part of ``AsyncAdmin`` about what consumer groups may do."""

    async def create_group(
        self,
        group: str,
        *,
        retry_max_times: int = 16,
        retry_queues: int = 1,
        broadcast: bool = True,
        orderly: bool = False,
        exist_ok: bool = False,
    ) -> CreatedGroup:
        """Create a consumer group on every master. An existing group stays as it is.

        Two who create one at the same time: as ``create_topic``.

        retry_max_times  how often a failed message comes again before it is a dead letter
        retry_queues     queues of its retry topic
        broadcast        whether members may ask for every message
        orderly          whether POP hands out each queue in order
        exist_ok         where the group is there, say so: ``created=False``
        raises           GroupExists where a master has it: ``update_group`` changes it; PartlyDone where some brokers
                         fail
        """
        from rocketcore.protocol.bodies.group import SubscriptionGroupConfig

        check_group(group)
        config = SubscriptionGroupConfig(
            group_name=group,
            retry_max_times=retry_max_times,
            retry_queue_nums=retry_queues,
            consume_broadcast_enable=broadcast,
            consume_message_orderly=orderly,
        )
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline)
        if found := await self._having(group, masters, deadline):
            return _existing(group, found, exist_ok=exist_ok)
        # One broker decides who of two is the first: it is asked alone.
        request = put_group(config, only=True)
        first, *others = masters.values()
        if not await self._servers.ask_one(request, first, deadline.remaining()):
            return _existing(group, await self._having(group, masters, deadline), exist_ok=exist_ok)
        # Those where its members have made the group by now have the settings of all.
        failed = {
            address: answer
            for address, answer in (await self._servers.each(others, put_group(config), deadline)).items()
            if isinstance(answer, RocketError)
        }
        if failed:
            raise PartlyDone(request.what, [each for each in masters.values() if each not in failed], failed)
        return CreatedGroup(group, tuple(masters))

    async def _having(self, group: str, masters: Mapping[str, str], deadline: Deadline) -> list[str]:
        """Return the names of the brokers that have a group."""
        return [
            name for name, table in (await Groups(self._servers).tables(masters, deadline)).items() if group in table
        ]

    async def update_group(
        self,
        group: str,
        *,
        retry_max_times: int | None = None,
        retry_queues: int | None = None,
        broadcast: bool | None = None,
        orderly: bool | None = None,
        consume: bool | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> GroupChange:
        """Change what is named of a group, on every master that has it.

        consume  whether members may receive at all; the others as in ``create_group``
        cluster  only the brokers of this cluster; ``broker`` only the one of this name
        raises   ConfigError where nothing to change is named, GroupNotExist, RouteNotFound without such a broker,
                 BrokerError where all refuse, PartlyDone where some do
        """
        named = {
            "retry_max_times": retry_max_times,
            "retry_queues": retry_queues,
            "broadcast": broadcast,
            "orderly": orderly,
            "consume": consume,
        }
        if all(value is None for value in named.values()):
            raise ConfigError(f"update_group({group!r}) names nothing to change")
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline, cluster, broker)
        before = await Groups(self._servers).configs_at(group, masters, deadline)
        after = {name: changed(config, **named) for name, config in before.items()}
        # A broker tells attributes by name, and takes changes by signed name: none changes here.
        sent = {masters[name]: replace(config, attributes={}) for name, config in after.items()}
        await self._servers.everywhere(
            lambda r, a, t: put_group(sent[a])(r, a, t), f"change of group {group!r}", sent, deadline
        )
        return GroupChange(before, after)

    async def delete_group(self, group: str, *, offsets: bool = True) -> list[str]:
        """Delete a consumer group on every master, its offsets as well unless told otherwise.

        raises  PartlyDone where some brokers fail
        """
        header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=offsets, remove_offset=offsets)
        request = Request(RequestCode.DELETE_SUBSCRIPTIONGROUP, f"deletion of group {group!r}", done, header)
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline)
        await self._servers.everywhere(request, addresses=masters.values(), deadline=deadline)
        return list(masters)


_FIELDS: Final = {
    "retry_max_times": "retry_max_times",
    "retry_queues": "retry_queue_nums",
    "broadcast": "consume_broadcast_enable",
    "orderly": "consume_message_orderly",
    "consume": "consume_enable",
}


def changed(config: SubscriptionGroupConfig, **named: Any) -> SubscriptionGroupConfig:
    """Return settings of a group with what is named, by the names of ``update_group``, and not None in place."""
    return replace(config, **{_FIELDS[name]: value for name, value in named.items() if value is not None})


def put_group(config: SubscriptionGroupConfig, *, only: bool = False) -> Request[bool]:
    """Create a group at a broker, or change it; its attributes are signed.

    only  create it: a broker of ours changes none that is there, and the answer is False
    """
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    header = CreateGroupRequestHeader(rc_create_only=1) if only else None
    return Request(code, f"creation of group {config.group_name!r}", was_created, header, config.encode())


def _existing(group: str, brokers: Iterable[str], *, exist_ok: bool) -> CreatedGroup:
    """Return a group that is there, where that is all right; raises GroupExists."""
    if not exist_ok:
        raise GroupExists(group, brokers)
    return CreatedGroup(group, tuple(brokers), created=False)
