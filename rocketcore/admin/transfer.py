"""MetadataTransfer: topics and groups of a cluster taken out, and brought into one.

A cluster is asked for all of its settings at once, and changed by lists: a request to a broker for many topics, or many
groups, from 5.3 on. A broker that refuses a list, as one of 4.9 that does not know them, is asked for each by itself.
RocketMQ 5.5.0: ``ExportMetadataCommand``, ``UpdateTopicListSubCommand``, ``UpdateSubGroupListSubCommand``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rocketcore.admin.cluster import Clusters
from rocketcore.admin.group_settings import put_group
from rocketcore.admin.groups import Groups
from rocketcore.admin.name_servers import NameServerSettings
from rocketcore.admin.requests import Request, create_topic, done, signed_attributes, topic_list
from rocketcore.admin.servers import Part, masters_in, masters_named, refusal_first
from rocketcore.codes import RequestCode
from rocketcore.errors import BrokerError, ConfigError, NoBrokerRegistered, PartlyDone, PlanOutdated, RocketError
from rocketcore.naming import is_system_group
from rocketcore.protocol.headers.nameserver import GetTopicsByClusterRequestHeader
from rocketcore.service import Deadline

if TYPE_CHECKING:
    from rocketcore.admin.metadata import ClusterMetadata, MetadataChange, MetadataPlan, Settings
    from rocketcore.protocol.bodies.route import ClusterInfo
    from rocketcore.transport.remoting import Remoting

__all__ = ["MetadataTransfer"]

T = TypeVar("T")

_LIST_BYTES: Final = 1 << 18
"""About what the settings of one request take; a broker of ours takes lists of 1 MiB."""
_AT_ONCE: Final = 32
"""Requests that are under way at the same time."""


class MetadataTransfer(Part):
    """The part of ``AsyncAdmin`` that takes topics and groups from one cluster to another."""

    async def export_metadata(self, cluster: str | None = None) -> ClusterMetadata:
        """Return the settings of all topics and groups that users made, as every master of a cluster says.

        cluster  may be left out where there is one
        raises   RouteNotFound for a cluster that is not there, ConfigError where there are several and none is named,
                 the error of a master that does not answer
        """
        deadline = self._servers.deadline()
        views = list((await self._servers.views(deadline)).values())
        name = _cluster_of(views, cluster)
        return await self._metadata(name, views, masters_in(views, name), deadline)

    async def plan_import(self, metadata: ClusterMetadata, cluster: str | None = None) -> MetadataPlan:
        """Return what ``import_metadata`` would do; changes nothing.

        A topic or group goes to the brokers of the same names. If one of them is missing, and the file has the same
        settings for all brokers, it goes to every master of the cluster.

        cluster  may be left out where there is one, or one of the file's name
        raises   as ``export_metadata``; ConfigError for a topic or group with settings for a broker that is not there
        """
        from rocketcore.admin.metadata import plan_of

        deadline = self._servers.deadline()
        views = list((await self._servers.views(deadline)).values())
        name = _cluster_of(views, cluster, metadata.cluster)
        masters = masters_in(views, name)
        if taken := _own(views) & metadata.topics.keys():
            raise ConfigError(
                f"topic {min(taken)!r} is of the system in cluster {name!r}: a broker or cluster has the name"
            )
        return plan_of(metadata, await self._metadata(name, views, masters, deadline), list(masters))

    async def import_metadata(self, plan: MetadataPlan) -> MetadataPlan:
        """Create and change what was planned, and return what is other all the same, as a plan once more.

        That is empty, unless brokers do not have a setting: one of 4.9 keeps no attributes, and says nothing of it. It
        returns when the name servers list the topics that are new. Nothing is deleted. The order configuration of an
        ordered topic follows its write queues.

        raises  PlanOutdated where a topic or group of the plan has changed since; the import then changes
                nothing. RouteNotFound for a broker without a master; PartlyDone if only a part was done
        """
        from rocketcore.admin.metadata import MetadataPlan

        deadline = self._servers.deadline()
        views = await self._servers.views(deadline)
        every = masters_in(views.values(), plan.cluster)
        masters = masters_named({row.broker for row in plan.rows}, every, plan.cluster)
        there = await self._metadata(plan.cluster, views.values(), every, deadline)
        _check_still(plan, there)
        changes = plan.changes
        # Before the topics: where one of them fails the next import still has to do with it, and sets this again.
        await self._put_orders(changes, there, views, deadline)
        _raise_for(plan, changes, await self._failures_of(changes, every, deadline))
        created = {row.name for row in changes if row.kind == "topic" and row.action == "create"}
        await self._await_listed(plan.cluster, created, views, deadline)
        now = await self._metadata(plan.cluster, views.values(), masters, deadline)
        left = [replace(row, before=_there(now, row)) for row in plan.rows]
        return MetadataPlan(plan.cluster, tuple(row for row in left if row.action != "keep"))

    async def _failures_of(
        self, changes: Sequence[MetadataChange], masters: Mapping[str, str], deadline: Deadline
    ) -> list[tuple[MetadataChange, RocketError]]:
        """Make changes, by lists, and singly those of a list that was refused; return what failed."""
        parts = [
            part
            for name in masters
            for kind in ("topic", "group")
            for part in _parts([row for row in changes if row.broker == name and row.kind == kind])
        ]
        failures: list[tuple[MetadataChange, RocketError]] = []
        singly: list[MetadataChange] = []
        requests = [partial(self._servers.ask_one, _list_of(part), masters[part[0].broker]) for part in parts]
        for part, error in zip(parts, await self._in_turn(requests, deadline), strict=True):
            if isinstance(error, BrokerError):
                singly += part
            elif isinstance(error, RocketError):
                failures += [(row, error) for row in part]
        singles = [partial(self._servers.ask_one, _one(row), masters[row.broker]) for row in singly]
        for row, outcome in zip(singly, await self._in_turn(singles, deadline), strict=True):
            if isinstance(outcome, RocketError):
                failures.append((row, outcome))
        return failures

    async def _metadata(
        self, cluster: str, views: Iterable[ClusterInfo], masters: Mapping[str, str], deadline: Deadline
    ) -> ClusterMetadata:
        """Ask masters for their topics and groups, all at the same time."""
        from rocketcore.admin.metadata import ClusterMetadata
        from rocketcore.admin.shapes import topic_kind

        own = _own(views)
        calls: list[Callable[[], Awaitable[dict[str, Any]]]] = [
            partial(ask, address, deadline)
            for ask in (Clusters(self._servers).topics_at, Groups(self._servers).groups_at)
            for address in masters.values()
        ]
        answers = await self._servers.results(calls)
        topics = dict(zip(masters, answers[: len(masters)], strict=True))
        groups = dict(zip(masters, answers[len(masters) :], strict=True))
        return ClusterMetadata(
            cluster,
            _by_name(topics, lambda name: topic_kind(name, own) == "normal"),
            _by_name(groups, lambda name: not is_system_group(name)),
        )

    async def _in_turn(
        self, requests: Sequence[Callable[[float], Awaitable[T]]], deadline: Deadline
    ) -> list[T | RocketError]:
        """Make requests, some at the same time; return each one's error, or what it was answered."""
        outcomes: list[T | RocketError] = []
        for first in range(0, len(requests), _AT_ONCE):

            def call(request: Callable[[float], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
                return lambda: request(deadline.remaining())

            outcomes += await self._servers.at_once([call(each) for each in requests[first : first + _AT_ONCE]])
        return outcomes

    async def _put_orders(
        self,
        changes: Sequence[MetadataChange],
        there: ClusterMetadata,
        name_servers: Collection[str],
        deadline: Deadline,
    ) -> None:
        """Keep how many queues each broker has for the ordered topics among those that change."""
        from rocketcore.protocol.bodies.topic import TopicConfig

        topics: dict[str, dict[str, TopicConfig]] = {}
        for row in changes:
            if isinstance(row.after, TopicConfig):
                topics.setdefault(row.name, {**there.topics.get(row.name, {})})[row.broker] = row.after
        queues = {
            topic: {broker: config.write_queue_nums if config.order else None for broker, config in configs.items()}
            for topic, configs in topics.items()
            if any(config.order for config in configs.values())
        }
        calls = [
            partial(NameServerSettings(self._servers).put_order, topic, counts, name_servers, deadline)
            for topic, counts in queues.items()
        ]
        for first in range(0, len(calls), _AT_ONCE):
            await self._servers.results(calls[first : first + _AT_ONCE])

    async def _await_listed(
        self, cluster: str, topics: set[str], name_servers: Iterable[str], deadline: Deadline
    ) -> None:
        """Wait until name servers list topics."""
        if not topics:
            return
        header = GetTopicsByClusterRequestHeader(cluster=cluster)
        request = topic_list(RequestCode.GET_TOPICS_BY_CLUSTER, f"list of topics of cluster {cluster!r}", header)

        async def missing(remoting: Remoting, address: str, timeout: float) -> str:
            lacking = topics.difference((await request(remoting, address, timeout)).topic_list)
            return f"topic {min(lacking)!r}" if lacking else ""

        await self._servers.until_shown(name_servers, missing, "all was done", deadline)


def _cluster_of(views: Sequence[ClusterInfo], cluster: str | None, of_file: str | None = None) -> str:
    """Return which cluster is meant."""
    if cluster is not None:
        return cluster
    names = sorted({name for info in views for name in info.cluster_addr_table})
    if not names:
        raise NoBrokerRegistered("no broker is registered")
    if len(names) == 1:
        return names[0]
    if of_file in names:
        return str(of_file)
    raise ConfigError(f"there are the clusters {', '.join(names)}: name one")


def _own(views: Iterable[ClusterInfo]) -> set[str]:
    """Return the names of clusters and brokers, which have topics of these names for themselves."""
    return {name for info in views for name in (*info.cluster_addr_table, *info.broker_addr_table)}


def _by_name(tables: Mapping[str, Mapping[str, Any]], meant: Callable[[str], bool]) -> dict[str, dict[str, Any]]:
    """Turn settings by broker, then by name, into settings by name, then by broker."""
    found: dict[str, dict[str, Any]] = {}
    for broker, table in tables.items():
        for name, config in table.items():
            if meant(name):
                found.setdefault(name, {})[broker] = config
    return dict(sorted(found.items()))


def _there(metadata: ClusterMetadata, row: MetadataChange) -> Settings | None:
    table: Mapping[str, Mapping[str, Settings]] = metadata.topics if row.kind == "topic" else metadata.groups
    return table.get(row.name, {}).get(row.broker)


def _check_still(plan: MetadataPlan, now: ClusterMetadata) -> None:
    for row in plan.rows:
        if _there(now, row) != row.before:
            raise PlanOutdated(f"{row.kind} {row.name!r} on {row.broker} has changed since the plan was made")


def _parts(rows: Sequence[MetadataChange]) -> list[list[MetadataChange]]:
    """Cut the rows of one broker and kind into those of a request each."""
    parts: list[list[MetadataChange]] = []
    room = 0
    for row in rows:
        size = len(row.after.encode())
        if not parts or size > room:
            parts.append([])
            room = _LIST_BYTES
        parts[-1].append(row)
        room -= size
    return parts


def _signed(row: MetadataChange) -> Any:
    """Return the settings as they are sent: of the attributes only what changes."""
    before = {} if row.before is None else row.before.attributes
    return replace(row.after, attributes=signed_attributes(before or {}, row.after.attributes or {}))


def _list_of(part: Sequence[MetadataChange]) -> Request[None]:
    """Create or change topics, or groups, of one broker."""
    from rocketcore.protocol.bodies.group import SubscriptionGroupList
    from rocketcore.protocol.bodies.topic import CreateTopicListRequestBody

    configs = [_signed(row) for row in part]
    what = f"creation of {len(part)} {part[0].kind}s"
    if part[0].kind == "topic":
        body = CreateTopicListRequestBody(configs).encode()
        return Request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, what, done, body=body)
    body = SubscriptionGroupList(configs).encode()
    return Request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, what, done, body=body)


def _one(row: MetadataChange) -> Request[bool]:
    return create_topic(_signed(row)) if row.kind == "topic" else put_group(_signed(row))


def _raise_for(
    plan: MetadataPlan, changes: Sequence[MetadataChange], failures: Sequence[tuple[MetadataChange, RocketError]]
) -> None:
    """Raise PartlyDone that counts what was done and what failed at each broker; the refusal where nothing was done."""
    if not failures:
        return
    reason = refusal_first(error for _, error in failures)
    if len(failures) == len(changes):
        raise reason
    failed: dict[tuple[str, str], list[RocketError]] = {}
    for row, error in failures:
        failed.setdefault((row.broker, row.kind), []).append(error)
    made: Counter[tuple[str, str]] = Counter((row.broker, row.kind) for row in changes)
    made.subtract({key: len(errors) for key, errors in failed.items()})
    raise PartlyDone(
        f"import into cluster {plan.cluster!r}",
        [_counted(broker, kind, count) for (broker, kind), count in made.items() if count],
        {_counted(broker, kind, len(errors)): errors[0] for (broker, kind), errors in failed.items()},
    ) from reason


def _counted(broker: str, kind: str, count: int) -> str:
    return f"{broker} ({count} {kind}{'' if count == 1 else 's'})"
