"""AsyncAdmin: the administration of a cluster as coroutines (Java: ``DefaultMQAdminExt``).

It runs on asyncio over a ``RemotingClient``, and on threads inside ``Admin``, over connections whose coroutines never
wait.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Self, TypeVar

from rocketcore.admin import requests
from rocketcore.admin.cluster import ClusterAdmin
from rocketcore.client import api
from rocketcore.client.config import NameServers, name_server_list
from rocketcore.client.route_table import readable_queues
from rocketcore.codes import MASTER_ID, ORDER_TOPIC_NAMESPACE, Permission
from rocketcore.errors import (
    ClientClosed,
    ConfigError,
    ConnectionLost,
    ConsumerNotOnline,
    NoBrokerRegistered,
    RequestTimeout,
    RocketError,
    RouteNotFound,
    TopicNotExist,
    TransportError,
)
from rocketcore.message import MessageQueue
from rocketcore.naming import check_group, check_topic
from rocketcore.protocol.bodies.client import Connection
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.route import ClusterInfo, TopicRouteData
from rocketcore.protocol.bodies.stats import OffsetWrapper, TopicOffset
from rocketcore.protocol.bodies.topic import TopicConfig
from rocketcore.protocol.signing import Signer
from rocketcore.service import SYSTEM_CLOCK, Clock, Deadline

if TYPE_CHECKING:
    from rocketcore.protocol.command import RemotingCommand
    from rocketcore.transport.client import Remoting, RemotingClient
    from rocketcore.transport.hooks import RpcHook
    from rocketcore.transport.tls.settings import TlsOption

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


class _AskTwice:
    """Repeats a request whose connection broke: a server that was restarted breaks the one that was kept open to it.

    No request of administration does more when it is done twice.
    """

    __slots__ = ("_remoting",)

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        deadline = Deadline(timeout)
        try:
            return await self._remoting.invoke(address, command, timeout)
        except ConnectionLost:
            return await self._remoting.invoke(address, command, deadline.remaining())

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None:
        await self._remoting.invoke_oneway(address, command, timeout)

    def close_channel(self, address: str) -> None:
        self._remoting.close_channel(address)


class AsyncAdmin(ClusterAdmin):
    """Administration over asyncio (Java: ``DefaultMQAdminExt``).

    namesrv             addresses as in ``Producer``
    timeout             seconds for a whole call, however many servers it asks
    broker_address_map  advertised address → address to connect to
    tls                 True trusts the system's authorities, ``TlsConfig`` says more
    hooks               see each request and its answer
    access_key          account of ACL, with its ``secret_key``
    """

    def __init__(
        self,
        namesrv: NameServers = None,
        *,
        timeout: float = 5.0,
        broker_address_map: Mapping[str, str] | None = None,
        tls: TlsOption = False,
        hooks: Sequence[RpcHook] = (),
        access_key: str = "",
        secret_key: str = "",
        remoting: Remoting | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not 0 < timeout <= TIMEOUT_MAX:
            raise ConfigError(f"timeout is a number of seconds above 0, got {timeout}")
        if bool(access_key) != bool(secret_key):
            raise ConfigError("access_key and secret_key belong together")
        self._name_servers = tuple(name_server_list(namesrv))
        self.timeout = timeout
        self._clock = clock
        self._address_map = dict(broker_address_map or {})
        self._tls = tls
        self._hooks = hooks
        self._signer = Signer(access_key, secret_key) if access_key else None
        self._remoting: Remoting | None = None if remoting is None else _AskTwice(remoting)
        self._own: RemotingClient | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; a second call does nothing."""
        self._closed = True
        own, self._own = self._own, None
        if own is not None:
            self._remoting = None
            await own.close()

    # Topics

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return which brokers serve a topic; raises TopicNotExist where no broker does."""
        return await self._route(topic, self._deadline())

    async def topic_routes(self, topic: str) -> dict[str, TopicRouteData | RocketError]:
        """Return the same as each name server sees it, by its address; the error of one that does not say."""
        return await self._routes(topic, self._deadline())

    async def _route(self, topic: str, deadline: Deadline) -> TopicRouteData:
        return await self._ask(lambda r, a, t: api.topic_route(r, a, topic, t), deadline)

    async def _routes(self, topic: str, deadline: Deadline) -> dict[str, TopicRouteData | RocketError]:
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
        check_topic(topic)
        read, write = read_queues or queues, write_queues or queues
        if read < 1 or write < 1:
            raise ConfigError(f"a topic has at least 1 queue, got {min(read, write)}")
        deadline = self._deadline()
        views = await self._views(deadline)
        masters = _masters_in(views.values(), cluster, broker)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=read,
            write_queue_nums=write,
            perm=int(perm),
            order=order,
            attributes=dict(attributes or {}),
        )
        await self._everywhere(
            f"creation of topic {topic!r}",
            lambda r, a, t: requests.create_topic(r, a, config, t),
            masters.values(),
            deadline,
        )
        if order:
            await self._put_order(topic, dict.fromkeys(masters, write), deadline)
        await self._await_route(topic, dict.fromkeys(masters, read), views, deadline)
        return CreatedTopic(topic, read, write, tuple(masters))

    async def topic_configs(
        self, topic: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, TopicConfig]:
        """Return the settings of a topic by broker, as the masters that have it say.

        raises  TopicNotExist where none has it, RouteNotFound without such a broker, the error of one that does not say
        """
        deadline = self._deadline()
        masters = _masters_in((await self._views(deadline)).values(), cluster, broker)
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
        write queues.

        raises  RouteNotFound for a broker without a master, BrokerError where all refuse, PartlyDone where some do
        """
        (topic,) = {config.topic_name for config in changes.values()}
        deadline = self._deadline()
        views = await self._views(deadline)
        masters = _masters_in(views.values())
        missing = sorted(set(changes) - set(masters))
        if missing:
            raise RouteNotFound(f"no master of {', '.join(missing)} is registered")
        config_of = {masters[name]: config for name, config in changes.items()}
        await self._everywhere(
            f"change of topic {topic!r}",
            lambda r, a, t: requests.create_topic(r, a, config_of[a], t),
            config_of,
            deadline,
        )
        if any(config.order for config in changes.values()):
            await self._put_order(topic, {name: each.write_queue_nums for name, each in changes.items()}, deadline)
        shown = {name: config.read_queue_nums for name, config in changes.items()}
        await self._await_route(topic, shown, views, deadline)

    async def _put_order(self, topic: str, write_queues: Mapping[str, int], deadline: Deadline) -> None:
        """Keep at every name server how many queues each broker has for an ordered topic."""
        value = ";".join(f"{name}:{count}" for name, count in sorted(write_queues.items()))
        await self._everywhere(
            f"order configuration of topic {topic!r}",
            lambda r, a, t: requests.put_kv(r, a, ORDER_TOPIC_NAMESPACE, topic, value, t),
            deadline=deadline,
        )

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
        await self._everywhere(
            f"deletion of topic {topic!r}",
            lambda r, a, t: requests.delete_topic_in_broker(r, a, topic, t),
            [address for data in owners for address in data.broker_addrs.values()],
            deadline,
        )
        await self._everywhere(
            f"deletion of topic {topic!r}",
            lambda r, a, t: requests.delete_topic_in_name_server(r, a, topic, cluster, t),
            deadline=deadline,
        )
        if cluster is None:
            await self._everywhere(
                f"deletion of the order configuration of topic {topic!r}",
                lambda r, a, t: requests.delete_kv(r, a, ORDER_TOPIC_NAMESPACE, topic, t),
                deadline=deadline,
            )
        return [data.broker_name for data in owners]

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the bounds of every queue of a topic; one request a broker, all at the same time."""
        deadline = self._deadline()
        route = await self._route(topic, deadline)
        addresses = [
            data.broker_addrs.get(MASTER_ID) or next(iter(data.broker_addrs.values()))
            for data in route.broker_datas
            if data.broker_addrs
        ]
        result: dict[MessageQueue, TopicOffset] = {}
        for stats in await self._all(addresses, lambda r, a, t: requests.topic_stats(r, a, topic, t), deadline):
            result.update(stats.offset_table)
        return dict(sorted(result.items()))

    # Offsets of queues

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        deadline = self._deadline()
        address = await self._address_of(queue, deadline)
        return await api.max_offset(self._connections(), address, queue, deadline.remaining())

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that a queue still has."""
        deadline = self._deadline()
        address = await self._address_of(queue, deadline)
        return await api.min_offset(self._connections(), address, queue, deadline.remaining())

    async def search_offset(self, queue: MessageQueue, timestamp: int | datetime) -> int:
        """Return the offset of the first message stored at a time or later; an int is epoch milliseconds."""
        deadline = self._deadline()
        millis = round(timestamp.timestamp() * 1000) if isinstance(timestamp, datetime) else timestamp
        address = await self._address_of(queue, deadline)
        return await api.search_offset(self._connections(), address, queue, millis, deadline.remaining())

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """Return when the first message of a queue was stored, epoch milliseconds; -1 without one."""
        deadline = self._deadline()
        address = await self._address_of(queue, deadline)
        return await api.earliest_store_time(self._connections(), address, queue, deadline.remaining())

    # Groups

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the consumer groups that any master knows, by name."""
        deadline = self._deadline()
        masters = await self._masters(deadline)
        result: dict[str, SubscriptionGroupConfig] = {}
        for known in await self._all(masters.values(), requests.groups, deadline):
            result.update(known)
        return dict(sorted(result.items()))

    async def create_group(
        self, group: str, *, retry_max_times: int = 16, retry_queues: int = 1, broadcast: bool = True
    ) -> list[str]:
        """Create a consumer group on every master, or change it; return the names of the brokers.

        raises  PartlyDone where some brokers fail
        """
        check_group(group)
        deadline = self._deadline()
        masters = await self._masters(deadline)
        config = SubscriptionGroupConfig(
            group_name=group,
            retry_max_times=retry_max_times,
            retry_queue_nums=retry_queues,
            consume_broadcast_enable=broadcast,
        )
        await self._everywhere(
            f"creation of group {group!r}",
            lambda r, a, t: requests.create_group(r, a, config, t),
            masters.values(),
            deadline,
        )
        return list(masters)

    async def delete_group(self, group: str, *, offsets: bool = True) -> list[str]:
        """Delete a consumer group on every master, its offsets as well unless told otherwise.

        raises  PartlyDone where some brokers fail
        """
        deadline = self._deadline()
        masters = await self._masters(deadline)
        await self._everywhere(
            f"deletion of group {group!r}",
            lambda r, a, t: requests.delete_group(r, a, group, t, offsets=offsets),
            masters.values(),
            deadline,
        )
        return list(masters)

    async def consumer_connections(self, group: str) -> list[Connection]:
        """Return the connected members of a group, each once; empty when there is none."""

        async def seen(remoting: Remoting, address: str, timeout: float) -> list[Connection]:
            try:
                return (await requests.consumer_connection(remoting, address, group, timeout)).connection_set
            except ConsumerNotOnline:
                return []

        deadline = self._deadline()
        masters = await self._masters(deadline)
        members: dict[str, Connection] = {}
        for connections in await self._all(masters.values(), seen, deadline):
            members.update((connection.client_id, connection) for connection in connections)
        return list(members.values())

    async def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        """Return where a group is in every queue that it has an offset for, in one topic or in all."""
        deadline = self._deadline()
        masters = await self._masters(deadline)
        result: dict[MessageQueue, OffsetWrapper] = {}
        for stats in await self._all(
            masters.values(), lambda r, a, t: requests.consume_stats(r, a, group, topic, t), deadline
        ):
            result.update(stats.offset_table)
        return dict(sorted(result.items()))

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset that a group stored for a queue, None without one."""
        deadline = self._deadline()
        address = await self._address_of(queue, deadline)
        return await api.query_consumer_offset(
            self._connections(), address, group, queue, deadline.remaining(), set_zero_if_not_found=False
        )

    async def update_consumer_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store a group's offset of a queue; members that run overwrite it at their next commit."""
        deadline = self._deadline()
        address = await self._address_of(queue, deadline)
        await api.update_consumer_offset(self._connections(), address, group, queue, offset, deadline.remaining())

    # How it asks

    def _connections(self) -> Remoting:
        if self._closed:
            raise ClientClosed("the admin client is closed")
        if self._remoting is None:
            from rocketcore.transport.client import RemotingClient

            self._own = RemotingClient(
                tls=self._tls, hooks=self._hooks, signer=self._signer, address_map=self._address_map
            )
            self._remoting = _AskTwice(self._own)
        return self._remoting

    async def _pause(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)

    async def _at_once(self, calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T | RocketError]:
        import asyncio

        async def outcome(call: Callable[[], Awaitable[T]]) -> T | RocketError:
            try:
                return await call()
            except RocketError as error:
                return error

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(outcome(call)) for call in calls]
        return [task.result() for task in running]

    async def _views(self, deadline: Deadline) -> dict[str, ClusterInfo]:
        """Return what each name server knows that answers within half of the time; raises where none does."""
        patience = Deadline(deadline.remaining() / 2, self._clock)
        views = await self._each(self._name_servers, requests.cluster_info, patience)
        known = {address: view for address, view in views.items() if not isinstance(view, RocketError)}
        if not known:
            raise next(view for view in views.values() if isinstance(view, RocketError))
        return known

    async def _masters(self, deadline: Deadline) -> dict[str, str]:
        """Return the masters by broker name, of all name servers: one that has just started does not know each yet."""
        return _masters_in((await self._views(deadline)).values())

    async def _address_of(self, queue: MessageQueue, deadline: Deadline) -> str:
        route = await self._route(queue.topic, deadline)
        for data in route.broker_datas:
            if data.broker_name == queue.broker and data.broker_addrs:
                return data.broker_addrs.get(MASTER_ID) or next(iter(data.broker_addrs.values()))
        raise RouteNotFound(f"broker {queue.broker!r} does not serve topic {queue.topic!r}")


def _masters_in(views: Iterable[ClusterInfo], cluster: str | None = None, broker: str | None = None) -> dict[str, str]:
    """Return the addresses of masters by broker name; raises RouteNotFound without any.

    It is a NoBrokerRegistered where it does not matter which one is asked for.
    """
    masters: dict[str, str] = {}
    views = list(views)
    for info in views:
        names: Iterable[str] = info.broker_addr_table
        if cluster is not None:
            names = info.cluster_addr_table.get(cluster, [])
        for name in names:
            data = info.broker_addr_table.get(name)
            if data is not None and MASTER_ID in data.broker_addrs and broker in (None, name):
                masters.setdefault(name, data.broker_addrs[MASTER_ID])
    if not any(info.broker_addr_table for info in views):
        raise NoBrokerRegistered("no broker is registered")
    if not masters:
        what = f"broker {broker!r}" if broker is not None else "broker"
        where = f" in cluster {cluster!r}" if cluster is not None else ""
        raise RouteNotFound(f"no {what} with a master is registered{where}")
    return dict(sorted(masters.items()))
