"""Topics: listed, looked at, created, changed and deleted."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rocketcore.admin.cluster import Clusters
from rocketcore.admin.name_servers import NameServerSettings
from rocketcore.admin.requests import (
    CLUSTER_INFO_AND_VERSION,
    Request,
    create_topic,
    delete_kv,
    delete_topic_in_namesrv,
    done,
    signed_attributes,
    topic_config,
    topic_list,
    topic_stats,
)
from rocketcore.admin.servers import Part, first_address, masters_in, merged, refusal_first
from rocketcore.client import api
from rocketcore.client.route_table import readable_queues
from rocketcore.codes import ORDER_TOPIC_NAMESPACE, Permission, RequestCode, Version
from rocketcore.errors import (
    ConfigError,
    PartlyDone,
    RequestNotSupported,
    RocketError,
    RouteNotFound,
    TopicExists,
    TopicNotExist,
)
from rocketcore.message import MessageQueue
from rocketcore.naming import check_topic
from rocketcore.protocol.bodies.route import QueueData, TopicRouteData
from rocketcore.protocol.headers.admin import DeleteTopicRequestHeader
from rocketcore.protocol.headers.nameserver import GetTopicsByClusterRequestHeader, RegisterTopicRequestHeader
from rocketcore.service import Deadline

if TYPE_CHECKING:
    from rocketcore.protocol.bodies.stats import TopicOffset
    from rocketcore.protocol.bodies.topic import TopicConfig
    from rocketcore.transport.remoting import Remoting

__all__ = ["CreatedTopic", "TopicChange", "Topics"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was created: its queues on each broker, and the names of the brokers.

    created  False: it was there (``exist_ok``), nothing was changed, and the rest says what it is
    """

    topic: str
    read_queues: int
    write_queues: int
    brokers: tuple[str, ...]
    perm: int = Permission.READ | Permission.WRITE
    created: bool = True


class TopicChange(NamedTuple):
    """What a change of a topic did: its settings by broker, as they were and as they are."""

    before: dict[str, TopicConfig]
    after: dict[str, TopicConfig]


class Topics(Part):
    """The part of ``AsyncAdmin`` about topics."""

    async def topics(self, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, or of those of one cluster, sorted; system topics are included.

        A cluster that does not exist has none.
        """
        if cluster is None:
            return await self._listed(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        header = GetTopicsByClusterRequestHeader(cluster=cluster)
        what = f"list of topics of cluster {cluster!r}"
        return sorted((await self._servers.ask(topic_list(RequestCode.GET_TOPICS_BY_CLUSTER, what, header))).topic_list)

    async def system_topics(self) -> list[str]:
        """Return the topics that no user made, sorted: names of clusters and brokers, and what a broker has for itself.

        The name server names a broker that it knows, which is asked as well (Java: ``getSystemTopicList``).
        """
        deadline = self._servers.deadline()
        found = await self._servers.ask(topic_list(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS), deadline)
        names = set(found.topic_list)
        if found.broker_addr:
            of_broker = topic_list(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, "system topics of the broker")
            answer = await of_broker(self._servers.connections(), found.broker_addr, deadline.remaining())
            names.update(answer.topic_list)
        return sorted(names)

    async def unit_topics(self) -> list[str]:
        """Return the topics that belong to a unit, sorted (Java: ``getUnitTopicList``)."""
        return await self._listed(RequestCode.GET_UNIT_TOPIC_LIST)

    async def unit_sub_topics(self) -> list[str]:
        """Return the topics that a unit subscribes to, sorted (Java: ``getHasUnitSubTopicList``)."""
        return await self._listed(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST)

    async def unit_sub_ununit_topics(self) -> list[str]:
        """Return those of them that belong to no unit, sorted (Java: ``getHasUnitSubUnUnitTopicList``)."""
        return await self._listed(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)

    async def delete_topic_in_namesrv(self, topic: str, *, cluster: str | None = None) -> None:
        """Make every name server forget a topic, or its queues on one cluster; an unknown topic is not an error.

        Brokers keep it, and bring it back when they register the next change of a topic: ``delete_topic`` deletes it
        there first (Java: ``deleteTopicInNameServer``).

        raises  PartlyDone where some name servers fail
        """
        await self._servers.everywhere(delete_topic_in_namesrv(topic, cluster))

    async def register_topic(self, topic: str, queues: Sequence[QueueData]) -> None:
        """Tell every name server of queues that a topic has on registered brokers; the brokers are not asked [5.x].

        raises  RouteNotFound for a broker that a name server does not know, RequestNotSupported by one of 4.9,
                PartlyDone where some of them fail
        """

        what = f"registration of topic {topic!r}"
        header = RegisterTopicRequestHeader(topic=topic)
        body = TopicRouteData(queue_datas=list(queues)).encode()
        request = Request(RequestCode.REGISTER_TOPIC_IN_NAMESRV, what, done, header, body)

        async def register(remoting: Remoting, address: str, timeout: float) -> None:
            deadline = Deadline(timeout, self._servers.clock)
            info, version = await CLUSTER_INFO_AND_VERSION(remoting, address, timeout)
            if version < Version.V5_0_0:  # it would not answer
                refusal = "a name server of 4.9 takes no topics of others than brokers"
                raise RequestNotSupported(RequestNotSupported.response_code, refusal, address, what)
            # The server says nothing of a broker that it does not know, and leaves out what follows it.
            unknown = sorted({queue.broker_name for queue in queues} - info.broker_addr_table.keys())
            if unknown:
                raise RouteNotFound(f"{address} does not know {', '.join(unknown)}")
            await request(remoting, address, deadline.remaining())

        await self._servers.everywhere(register, what)

    async def _listed(self, code: RequestCode) -> list[str]:
        return sorted((await self._servers.ask(topic_list(code))).topic_list)

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return which brokers serve a topic; raises TopicNotExist where no broker does."""
        return await self._servers.route(topic)

    async def topic_routes(self, topic: str) -> dict[str, TopicRouteData | RocketError]:
        """Return the same as each name server sees it, by its address; for a server without an answer, its error."""
        return await self._routes(topic)

    async def _routes(self, topic: str, deadline: Deadline | None = None) -> dict[str, TopicRouteData | RocketError]:
        return await self._servers.each(
            self._servers.name_servers, lambda r, a, t: api.topic_route(r, a, topic, t), deadline
        )

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted."""
        return readable_queues(topic, await self.topic_route(topic))

    async def create_topic(
        self,
        topic: str,
        queues: int = 8,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int = Permission.READ | Permission.WRITE,
        order: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
        attributes: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> CreatedTopic:
        """Create a topic on every master; return when the name server shows it. A topic that is there stays as it is.

        Our brokers refuse the second of two who create a topic at the same time. Apache's have no such request: there
        the later one may still change what the other has created a moment before.

        queues      per broker; ``read_queues`` and ``write_queues`` where they differ
        order       also keep the order configuration, so that the queues stay in place when a broker is away
        cluster     only the brokers of this cluster; ``broker`` only the one of this name
        attributes  5.x topic attributes, for example ``{"message.type": "FIFO"}``
        exist_ok    where the topic is there, return what it is, with ``created=False``
        raises      TopicExists where one of these brokers has it: ``update_topic`` changes it; RouteNotFound without
                    such a broker, BrokerError where all brokers refuse, PartlyDone where some do
        """
        from rocketcore.protocol.bodies.topic import TopicConfig

        check_topic(topic)
        read, write = _queue_counts(queues, read_queues, write_queues)
        assert read is not None, "queues has a default"
        assert write is not None, "queues has a default"
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=read,
            write_queue_nums=write,
            perm=int(perm),
            order=order,
            attributes=signed_attributes({}, attributes or {}),
        )
        deadline = self._servers.deadline()
        views = await self._servers.views(deadline)
        masters = masters_in(views.values(), cluster, broker)
        if found := await self._configs_at(topic, masters, deadline):
            return _existing(topic, found, exist_ok=exist_ok)
        # One broker decides who of two is the first: it is asked alone.
        first, *others = masters.values()
        if not await self._servers.ask_one(create_topic(config, only=True), first, deadline.remaining()):
            return _existing(topic, await self._configs_at(topic, masters, deadline), exist_ok=exist_ok)
        if order:
            whole = cluster is None and broker is None
            await NameServerSettings(self._servers).put_order(
                topic, dict.fromkeys(masters, write), views, deadline, whole=whole
            )
            # A broker takes the order from name servers, too: it may have taken it away again before they had it.
            await self._servers.ask_one(create_topic(replace(config, attributes={})), first, deadline.remaining())
        await self._create_at_others(config, first, others, deadline)
        await self._await_route(topic, dict.fromkeys(masters, read), views, deadline)
        return CreatedTopic(topic, read, write, tuple(masters), int(perm))

    async def _create_at_others(
        self, config: TopicConfig, first: str, others: Iterable[str], deadline: Deadline
    ) -> None:
        """Create a topic where the first broker has it already; raises PartlyDone."""
        request = create_topic(config, only=True)
        answers = await self._servers.each(others, request, deadline)
        failed = {
            address: answer if isinstance(answer, RocketError) else TopicExists(config.topic_name, (address,))
            for address, answer in answers.items()
            if answer is not True
        }
        if failed:
            raise PartlyDone(request.what, [first, *(address for address in answers if address not in failed)], failed)

    async def topic_configs(
        self, topic: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, TopicConfig]:
        """Return the settings of a topic by broker, as the masters that have it say.

        raises  TopicNotExist where none has it, RouteNotFound without such a broker, the error of a broker that does
                not answer
        """
        deadline = self._servers.deadline()
        masters = await self._servers.masters(deadline, cluster, broker)
        return await self._configs_of(topic, masters, deadline)

    async def _configs_of(self, topic: str, masters: Mapping[str, str], deadline: Deadline) -> dict[str, TopicConfig]:
        """As ``_configs_at``; raises TopicNotExist where no master has the topic."""
        found = await self._configs_at(topic, masters, deadline)
        if not found:
            raise TopicNotExist(TopicNotExist.response_code, f"topic {topic!r} is not on {', '.join(masters)}")
        return found

    async def _configs_at(self, topic: str, masters: Mapping[str, str], deadline: Deadline) -> dict[str, TopicConfig]:
        """Return the settings of a topic by broker, of the masters that have it; raises the error of one."""
        calls = [partial(self._config_at, topic, address, deadline) for address in masters.values()]
        answers = zip(masters, await self._servers.results(calls), strict=True)
        return {name: config for name, config in answers if config is not None}

    async def _config_at(self, topic: str, address: str, deadline: Deadline) -> TopicConfig | None:
        try:
            return await self._servers.ask_one(topic_config(topic), address, deadline.remaining())
        except TopicNotExist:
            return None
        except RequestNotSupported:  # 4.9
            return (await Clusters(self._servers).topics_at(address, deadline)).get(topic)

    async def update_topic(
        self,
        topic: str,
        queues: int | None = None,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        cluster: str | None = None,
        broker: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicChange:
        """Change what is named of a topic, on every master that has it; return when the name servers show it.

        Fewer read queues than hold messages: consumers cannot read the messages of the queues beyond. The order
        configuration of an ordered topic follows the write queues, and goes with the order.

        queues               read and write queues per broker; ``read_queues`` and ``write_queues`` change one of them
        cluster, broker      only the brokers of this cluster, only the one of this name
        attributes           those to set; the others stay
        raises               ConfigError where nothing to change is named, TopicNotExist, RouteNotFound without such a
                             broker, BrokerError where all refuse, PartlyDone where some do
        """
        read, write = _queue_counts(queues, read_queues, write_queues)
        wanted = {"read_queue_nums": read, "write_queue_nums": write, "perm": perm, "order": order}
        named: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        if not named and not attributes:
            raise ConfigError(f"update_topic({topic!r}) names nothing to change")
        deadline = self._servers.deadline()
        views = await self._servers.views(deadline)
        every = masters_in(views.values())
        masters = masters_in(views.values(), cluster, broker)
        before = await self._configs_of(topic, masters, deadline)
        after = {
            name: replace(config, **named, attributes=config.attributes | dict(attributes or {}))
            for name, config in before.items()
        }
        sent = {
            masters[name]: replace(config, attributes=signed_attributes({}, attributes or {}))
            for name, config in after.items()
        }
        whole = after.keys() == every.keys()
        # First: brokers take the order from name servers, too, and would undo theirs.
        await NameServerSettings(self._servers).put_order(topic, _order_counts(after), views, deadline, whole=whole)
        try:
            await self._servers.everywhere(
                lambda r, a, t: create_topic(sent[a])(r, a, t), f"change of topic {topic!r}", sent, deadline
            )
        except RocketError as error:
            if not isinstance(error, PartlyDone):
                with contextlib.suppress(RocketError):
                    await NameServerSettings(self._servers).put_order(
                        topic, _order_counts(before), views, self._servers.deadline(), whole=whole
                    )
            raise
        shown = {name: config.read_queue_nums for name, config in after.items()}
        await self._await_route(topic, shown, views, deadline)
        return TopicChange(before, after)

    async def _await_route(
        self, topic: str, queues: Mapping[str, int], name_servers: Iterable[str], deadline: Deadline
    ) -> None:
        """Wait until name servers show the topic with these read queues."""

        async def missing(remoting: Remoting, address: str, timeout: float) -> str:
            try:
                route = await api.topic_route(remoting, address, topic, timeout)
            except TopicNotExist:
                route = TopicRouteData()
            counts = {data.broker_name: data.read_queue_nums for data in route.queue_datas}
            lacking = sorted(name for name, count in queues.items() if counts.get(name) != count)
            return f"it on {', '.join(lacking)}" if lacking else ""

        what = f"topic {topic!r} was created or changed"
        await self._servers.until_shown(name_servers, missing, what, deadline)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> list[str]:
        """Delete a topic and its messages on every broker, then at the name servers; return the names of the brokers.

        raises  TopicNotExist where no broker serves it, PartlyDone where some servers fail; name servers keep it until
                every broker has deleted it
        """
        deadline = self._servers.deadline()
        routes = (await self._routes(topic, Deadline(deadline.remaining() / 2, self._servers.clock))).values()
        known = [route for route in routes if not isinstance(route, RocketError)]
        if not known:
            raise refusal_first(route for route in routes if isinstance(route, RocketError))
        every = {data.broker_name: data for route in known for data in route.broker_datas}
        owners = [data for _, data in sorted(every.items()) if cluster in (None, data.cluster)]
        if not owners:
            raise TopicNotExist(TopicNotExist.response_code, f"topic {topic!r} is not in cluster {cluster!r}")
        header = DeleteTopicRequestHeader(topic=topic)
        await self._servers.everywhere(
            Request(RequestCode.DELETE_TOPIC_IN_BROKER, f"deletion of topic {topic!r}", done, header),
            addresses=[address for data in owners for address in data.broker_addrs.values()],
            deadline=deadline,
        )
        await self._servers.everywhere(delete_topic_in_namesrv(topic, cluster), deadline=deadline)
        if cluster is None:
            await self._servers.everywhere(
                delete_kv(ORDER_TOPIC_NAMESPACE, topic),
                f"deletion of the order configuration of topic {topic!r}",
                deadline=deadline,
            )
        return [data.broker_name for data in owners]

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the bounds of every queue of a topic; one request a broker, all at the same time."""
        deadline = self._servers.deadline()
        route = await self._servers.route(topic, deadline)
        addresses = [first_address(data) for data in route.broker_datas if data.broker_addrs]
        return merged(await self._servers.all(addresses, topic_stats(topic), deadline))


def _queue_counts(queues: int | None, read: int | None, write: int | None) -> tuple[int | None, int | None]:
    """Return how many read and write queues are meant; raises ConfigError for a number that no topic has."""
    for name, count in (("queues", queues), ("read_queues", read), ("write_queues", write)):
        if count is not None and (not isinstance(count, int) or isinstance(count, bool)):
            raise TypeError(f"{name} is a whole number, got {type(count).__name__}")
        if count is not None and count < 1:
            raise ConfigError(f"a topic has at least 1 queue, got {name}={count}")
    return queues if read is None else read, queues if write is None else write


def _order_counts(configs: Mapping[str, TopicConfig]) -> dict[str, int | None]:
    """Return what the order configuration of a topic says of each broker."""
    return {name: config.write_queue_nums if config.order else None for name, config in configs.items()}


def _existing(topic: str, found: Mapping[str, TopicConfig], *, exist_ok: bool) -> CreatedTopic:
    """Return a topic that is there, where that is all right; raises TopicExists."""
    if not exist_ok or not found:
        raise TopicExists(topic, found)
    first = next(iter(found.values()))
    return CreatedTopic(topic, first.read_queue_nums, first.write_queue_nums, tuple(found), first.perm, created=False)
