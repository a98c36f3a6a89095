"""AsyncAdmin: the administration of a cluster as coroutines (Java: ``DefaultMQAdminExt``).

It runs on asyncio over a ``RemotingClient``, and on threads inside ``Admin``, over connections whose coroutines never
wait. Bodies that one operation reads are imported there: to make their classes takes longer than most questions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rocketcore.admin.accounts import AccountAdmin
from rocketcore.admin.base import first_address, masters_in, merged
from rocketcore.admin.history import HistoryAdmin
from rocketcore.admin.requests import (
    Request,
    create_topic,
    delete_kv,
    delete_topic_in_namesrv,
    done,
    signed_attributes,
    topic_stats,
)
from rocketcore.admin.statistics import StatisticsAdmin
from rocketcore.admin.survey import SurveyAdmin
from rocketcore.admin.transfer import MetadataAdmin
from rocketcore.client import api
from rocketcore.client.route_table import readable_queues
from rocketcore.codes import ORDER_TOPIC_NAMESPACE, Permission, RequestCode
from rocketcore.errors import (
    ConfigError,
    RequestTimeout,
    RocketError,
    RouteNotFound,
    TopicNotExist,
    TransportError,
)
from rocketcore.message import MessageQueue
from rocketcore.naming import check_topic
from rocketcore.protocol.bodies.route import TopicRouteData
from rocketcore.protocol.headers.admin import DeleteTopicRequestHeader
from rocketcore.service import Deadline

if TYPE_CHECKING:
    from rocketcore.protocol.bodies.stats import TopicOffset
    from rocketcore.protocol.bodies.topic import TopicConfig

__all__ = ["AsyncAdmin", "CreatedTopic"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What a creation did: the topic, its queues on each broker, and the names of the brokers."""

    topic: str
    read_queues: int
    write_queues: int
    brokers: tuple[str, ...]


class AsyncAdmin(SurveyAdmin, HistoryAdmin, MetadataAdmin, StatisticsAdmin, AccountAdmin):
    """Administration over asyncio (Java: ``DefaultMQAdminExt``).

    namesrv             addresses as in ``Producer``
    timeout             seconds for a whole call, however many servers it asks
    broker_address_map  advertised address → address to connect to
    tls                 True trusts the system's authorities, ``TlsConfig`` says more
    hooks               see each request and its answer
    access_key          account of ACL, with its ``secret_key``
    """

    # Topics

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return which brokers serve a topic; raises TopicNotExist where no broker does."""
        return await self._route(topic)

    async def topic_routes(self, topic: str) -> dict[str, TopicRouteData | RocketError]:
        """Return the same as each name server sees it, by its address; the error of one that does not say."""
        return await self._routes(topic)

    async def _routes(self, topic: str, deadline: Deadline | None = None) -> dict[str, TopicRouteData | RocketError]:
        return await self._each(self._name_servers, lambda r, a, t: api.topic_route(r, a, topic, t), deadline)

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
    ) -> CreatedTopic:
        """Create a topic on every master, or change it; return when the name server shows it.

        queues      per broker; ``read_queues`` and ``write_queues`` where they differ
        order       also keep the order configuration, so that the queues stay in place when a broker is away
        cluster     only the brokers of this cluster; ``broker`` only the one of this name
        attributes  5.x topic attributes, for example ``{"message.type": "FIFO"}``
        raises      RouteNotFound without such a broker, BrokerError where all brokers refuse, PartlyDone where some do
        """
        from rocketcore.protocol.bodies.topic import TopicConfig

        check_topic(topic)
        read, write = read_queues or queues, write_queues or queues
        if read < 1 or write < 1:
            raise ConfigError(f"a topic has at least 1 queue, got {min(read, write)}")
        deadline = self._deadline()
        views = await self._views(deadline)
        masters = masters_in(views.values(), cluster, broker)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=read,
            write_queue_nums=write,
            perm=int(perm),
            order=order,
            attributes=signed_attributes({}, attributes or {}),
        )
        await self._everywhere(create_topic(config), addresses=masters.values(), deadline=deadline)
        if order:
            whole = cluster is None and broker is None
            await self._put_order(topic, dict.fromkeys(masters, write), views, deadline, whole=whole)
        await self._await_route(topic, dict.fromkeys(masters, read), views, deadline)
        return CreatedTopic(topic, read, write, tuple(masters))

    async def topic_configs(
        self, topic: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, TopicConfig]:
        """Return the settings of a topic by broker, as the masters that have it say.

        raises  TopicNotExist where none has it, RouteNotFound without such a broker, the error of one that does not say
        """
        deadline = self._deadline()
        masters = masters_in((await self._views(deadline)).values(), cluster, broker)
        names = list(masters)
        answers = await self._at_once([partial(self._topics_of, masters[name], deadline) for name in names])
        found = {}
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, RocketError):
                raise answer
            if topic in answer:
                found[name] = answer[topic]
        if not found:
            raise TopicNotExist(TopicNotExist.response_code, f"topic {topic!r} is not on {', '.join(names)}")
        return found

    async def update_topic(self, changes: Mapping[str, TopicConfig]) -> None:
        """Give a topic these settings at these masters, by broker; return when the name servers show them.

        ``attributes`` hold those to change, the others stay. The order configuration of an ordered topic follows the
        write queues, and goes with the order.

        raises  RouteNotFound for a broker without a master, BrokerError where all refuse, PartlyDone where some do
        """
        (topic,) = {config.topic_name for config in changes.values()}
        deadline = self._deadline()
        views = await self._views(deadline)
        masters = masters_in(views.values())
        missing = sorted(set(changes) - set(masters))
        if missing:
            raise RouteNotFound(f"no master of {', '.join(missing)} is registered")
        config_of = {
            masters[name]: replace(config, attributes=signed_attributes({}, config.attributes))
            for name, config in changes.items()
        }
        await self._everywhere(
            lambda r, a, t: create_topic(config_of[a])(r, a, t),
            f"change of topic {topic!r}",
            config_of,
            deadline,
        )
        queues = {name: config.write_queue_nums if config.order else None for name, config in changes.items()}
        await self._put_order(topic, queues, views, deadline, whole=changes.keys() == masters.keys())
        shown = {name: config.read_queue_nums for name, config in changes.items()}
        await self._await_route(topic, shown, views, deadline)

    async def _await_route(
        self, topic: str, queues: Mapping[str, int], name_servers: Iterable[str], deadline: Deadline
    ) -> None:
        """Wait until name servers show the topic with these read queues: brokers register a change before or soon after
        they answer."""
        brokers = set(queues)
        for address in name_servers:
            while True:
                try:
                    route = await api.topic_route(self._connections(), address, topic, deadline.remaining())
                except TopicNotExist:
                    shown = set()
                except TransportError as error:
                    logger.info("name server not asked address=%s error=%s", address, error)
                    break
                else:
                    counts = {data.broker_name: data.read_queue_nums for data in route.queue_datas}
                    shown = {name for name, count in queues.items() if counts.get(name) == count}
                if brokers <= shown:
                    break
                if deadline.expired:
                    missing = ", ".join(sorted(brokers - shown))
                    raise RequestTimeout(f"topic {topic!r} was created; {address} does not show it on {missing} yet")
                await self._pause(0.02)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> list[str]:
        """Delete a topic and its messages on every broker, then at the name servers; return the names of the brokers.

        raises  TopicNotExist where no broker serves it, PartlyDone where some servers fail; name servers keep it until
                every broker has deleted it
        """
        deadline = self._deadline()
        routes = (await self._routes(topic, Deadline(deadline.remaining() / 2, self._clock))).values()
        known = [route for route in routes if not isinstance(route, RocketError)]
        if not known:
            errors = [route for route in routes if isinstance(route, RocketError)]
            raise next((error for error in errors if not isinstance(error, TransportError)), errors[0])
        every = {data.broker_name: data for route in known for data in route.broker_datas}
        owners = [data for _, data in sorted(every.items()) if cluster in (None, data.cluster)]
        if not owners:
            raise TopicNotExist(TopicNotExist.response_code, f"topic {topic!r} is not in cluster {cluster!r}")
        header = DeleteTopicRequestHeader(topic=topic)
        await self._everywhere(
            Request(RequestCode.DELETE_TOPIC_IN_BROKER, f"deletion of topic {topic!r}", done, header),
            addresses=[address for data in owners for address in data.broker_addrs.values()],
            deadline=deadline,
        )
        await self._everywhere(delete_topic_in_namesrv(topic, cluster), deadline=deadline)
        if cluster is None:
            await self._everywhere(
                delete_kv(ORDER_TOPIC_NAMESPACE, topic),
                f"deletion of the order configuration of topic {topic!r}",
                deadline=deadline,
            )
        return [data.broker_name for data in owners]

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the bounds of every queue of a topic; one request a broker, all at the same time."""
        deadline = self._deadline()
        route = await self._route(topic, deadline)
        addresses = [first_address(data) for data in route.broker_datas if data.broker_addrs]
        return merged(await self._all(addresses, topic_stats(topic), deadline))

    # Offsets of queues

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        return await self._at_broker_of(queue, lambda r, a, t: api.max_offset(r, a, queue, t))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that a queue still has."""
        return await self._at_broker_of(queue, lambda r, a, t: api.min_offset(r, a, queue, t))

    async def search_offset(self, queue: MessageQueue, timestamp: int | datetime) -> int:
        """Return the offset of the first message stored at a time or later; an int is epoch milliseconds."""
        millis = round(timestamp.timestamp() * 1000) if isinstance(timestamp, datetime) else timestamp
        return await self._at_broker_of(queue, lambda r, a, t: api.search_offset(r, a, queue, millis, t))

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """Return when the first message of a queue was stored, epoch milliseconds; -1 without one."""
        return await self._at_broker_of(queue, lambda r, a, t: api.earliest_store_time(r, a, queue, t))

    # Offsets of groups

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset that a group stored for a queue, None without one."""
        return await self._at_broker_of(
            queue, lambda r, a, t: api.query_consumer_offset(r, a, group, queue, t, set_zero_if_not_found=False)
        )

    async def update_consumer_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store a group's offset of a queue; members that run overwrite it at their next commit."""
        await self._at_broker_of(queue, lambda r, a, t: api.update_consumer_offset(r, a, group, queue, offset, t))
