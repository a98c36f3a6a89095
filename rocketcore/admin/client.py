"""Admin: the administration of a cluster for blocking programs; ``AsyncAdmin`` is the same for asyncio.

RocketMQ: ``DefaultMQAdminExt``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from threading import Thread
from typing import Any, Final, Self, TypeVar

from rocketcore.admin.cluster import BrokerStatus
from rocketcore.admin.logic import AsyncAdmin, CreatedTopic
from rocketcore.client.config import NameServers
from rocketcore.codes import MASTER_ID, Permission
from rocketcore.errors import RocketError
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.client import Connection
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.route import BrokerMemberGroup, ClusterInfo, QueueData, TopicRouteData
from rocketcore.protocol.bodies.stats import OffsetWrapper, TopicOffset
from rocketcore.protocol.bodies.topic import DataVersion, TopicConfig
from rocketcore.protocol.signing import Signer
from rocketcore.transport.blocking.client import BlockingChannelAdapter, BlockingRemotingClient, run_sync
from rocketcore.transport.hooks import RpcHook
from rocketcore.transport.tls.settings import TlsOption

__all__ = ["Admin", "AsyncAdmin", "BrokerStatus", "CreatedTopic"]

T = TypeVar("T")

_THREADS: Final = 32
"""Servers that one call asks at the same time; they live as long as the call."""


class _ThreadLogic(AsyncAdmin):
    """The logic over connections whose coroutines are done when they return."""

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - the caller is a thread and no loop runs in it

    async def _at_once(self, calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T | RocketError]:
        def outcome(call: Callable[[], Awaitable[T]]) -> T | RocketError:
            async def run() -> T:
                return await call()

            try:
                return run_sync(run())
            except RocketError as error:
                return error

        if len(calls) < 2:
            return [outcome(call) for call in calls]
        waiting = deque(enumerate(calls))
        outcomes: dict[int, T | RocketError] = {}
        failures: list[BaseException] = []

        def work() -> None:
            while waiting:
                try:
                    number, call = waiting.popleft()
                except IndexError:  # another thread was faster
                    return
                try:
                    outcomes[number] = outcome(call)
                except BaseException as error:
                    failures.append(error)

        # No pool of concurrent.futures: it and the interpreter's end wait for its threads, so that Ctrl-C would have to
        # wait for the server that does not answer.
        threads = [Thread(target=work, name="admin", daemon=True) for _ in range(min(len(calls), _THREADS))]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            waiting.clear()
        if failures:
            raise failures[0]
        return [outcomes[number] for number in range(len(calls))]


class Admin:
    """Administration for blocking programs; thread-safe (Java: ``DefaultMQAdminExt``).

    It has threads only while a call asks several servers at the same time.

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
    ) -> None:
        self._client = BlockingRemotingClient(
            tls=tls,
            hooks=hooks,
            signer=Signer(access_key, secret_key) if access_key else None,
            address_map=broker_address_map,
            name="admin",
        )
        self._logic = _ThreadLogic(
            namesrv,
            timeout=timeout,
            access_key=access_key,
            secret_key=secret_key,
            remoting=BlockingChannelAdapter(self._client),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a second call does nothing."""
        self._client.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return run_sync(call)

    @property
    def timeout(self) -> float:
        """Seconds for a whole call, however many servers it asks; may be changed between calls."""
        return self._logic.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._logic.timeout = seconds

    def topic_route(self, topic: str) -> TopicRouteData:
        """Return which brokers serve a topic; raises TopicNotExist where no broker does."""
        return self._run(self._logic.topic_route(topic))

    def topic_routes(self, topic: str) -> dict[str, TopicRouteData | RocketError]:
        """Return the same as each name server sees it, by its address; the error of one that does not say."""
        return self._run(self._logic.topic_routes(topic))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted."""
        return self._run(self._logic.queues(topic))

    def create_topic(
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
        return self._run(
            self._logic.create_topic(
                topic,
                queues,
                read_queues=read_queues,
                write_queues=write_queues,
                perm=perm,
                order=order,
                cluster=cluster,
                broker=broker,
                attributes=attributes,
            )
        )

    def topic_configs(
        self, topic: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, TopicConfig]:
        """Return the settings of a topic by broker, as the masters that have it say.

        raises  TopicNotExist where none has it, RouteNotFound without such a broker, the error of one that does not say
        """
        return self._run(self._logic.topic_configs(topic, cluster=cluster, broker=broker))

    def update_topic(self, changes: Mapping[str, TopicConfig]) -> None:
        """Give a topic these settings at these masters, by broker; return when the name servers show them.

        ``attributes`` hold those to change, the others stay. The order configuration of an ordered topic follows the
        write queues.

        raises  RouteNotFound for a broker without a master, BrokerError where all refuse, PartlyDone where some do
        """
        self._run(self._logic.update_topic(changes))

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> list[str]:
        """Delete a topic and its messages on every broker, then at the name servers; return the names of the brokers.

        raises  TopicNotExist where no broker serves it, PartlyDone where some servers fail; name servers keep it until
                every broker has deleted it
        """
        return self._run(self._logic.delete_topic(topic, cluster=cluster))

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the bounds of every queue of a topic; one request a broker, all at the same time."""
        return self._run(self._logic.topic_stats(topic))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        return self._run(self._logic.max_offset(queue))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that a queue still has."""
        return self._run(self._logic.min_offset(queue))

    def search_offset(self, queue: MessageQueue, timestamp: int | datetime) -> int:
        """Return the offset of the first message stored at a time or later; an int is epoch milliseconds."""
        return self._run(self._logic.search_offset(queue, timestamp))

    def earliest_store_time(self, queue: MessageQueue) -> int:
        """Return when the first message of a queue was stored, epoch milliseconds; -1 without one."""
        return self._run(self._logic.earliest_store_time(queue))

    def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the consumer groups that any master knows, by name."""
        return self._run(self._logic.groups())

    def create_group(
        self, group: str, *, retry_max_times: int = 16, retry_queues: int = 1, broadcast: bool = True
    ) -> list[str]:
        """Create a consumer group on every master, or change it; return the names of the brokers.

        raises  PartlyDone where some brokers fail
        """
        return self._run(
            self._logic.create_group(
                group,
                retry_max_times=retry_max_times,
                retry_queues=retry_queues,
                broadcast=broadcast,
            )
        )

    def delete_group(self, group: str, *, offsets: bool = True) -> list[str]:
        """Delete a consumer group on every master, its offsets as well unless told otherwise.

        raises  PartlyDone where some brokers fail
        """
        return self._run(self._logic.delete_group(group, offsets=offsets))

    def consumer_connections(self, group: str) -> list[Connection]:
        """Return the connected members of a group, each once; empty when there is none."""
        return self._run(self._logic.consumer_connections(group))

    def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        """Return where a group is in every queue that it has an offset for, in one topic or in all."""
        return self._run(self._logic.consume_stats(group, topic))

    def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset that a group stored for a queue, None without one."""
        return self._run(self._logic.consumer_offset(group, queue))

    def update_consumer_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store a group's offset of a queue; members that run overwrite it at their next commit."""
        self._run(self._logic.update_consumer_offset(group, queue, offset))

    def topics(self, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, or of those of one cluster, sorted; system topics are included.

        A cluster that does not exist has none.
        """
        return self._run(self._logic.topics(cluster))

    def system_topics(self) -> list[str]:
        """Return the topics that no user made, sorted: names of clusters and brokers, and what a broker has for itself.

        The name server names a broker that it knows, which is asked as well (Java: ``getSystemTopicList``).
        """
        return self._run(self._logic.system_topics())

    def unit_topics(self) -> list[str]:
        """Return the topics that belong to a unit, sorted (Java: ``getUnitTopicList``)."""
        return self._run(self._logic.unit_topics())

    def unit_sub_topics(self) -> list[str]:
        """Return the topics that a unit subscribes to, sorted (Java: ``getHasUnitSubTopicList``)."""
        return self._run(self._logic.unit_sub_topics())

    def unit_sub_ununit_topics(self) -> list[str]:
        """Return those of them that belong to no unit, sorted (Java: ``getHasUnitSubUnUnitTopicList``)."""
        return self._run(self._logic.unit_sub_ununit_topics())

    def delete_topic_in_namesrv(self, topic: str, *, cluster: str | None = None) -> None:
        """Make every name server forget a topic, or its queues on one cluster; no error where there is none.

        Brokers keep it, and bring it back when they register the next change of a topic: ``delete_topic`` deletes it
        there first (Java: ``deleteTopicInNameServer``).

        raises  PartlyDone where some name servers fail
        """
        self._run(self._logic.delete_topic_in_namesrv(topic, cluster=cluster))

    def register_topic(self, topic: str, queues: Sequence[QueueData]) -> None:
        """Tell every name server of queues that a topic has on registered brokers; the brokers are not asked [5.x].

        raises  RouteNotFound for a broker that a name server does not know, RequestNotSupported by one of 4.9,
                PartlyDone where some of them fail
        """
        self._run(self._logic.register_topic(topic, queues))

    def cluster_info(self) -> ClusterInfo:
        """Return clusters, their broker names, and the addresses of each (Java: ``examineBrokerClusterInfo``)."""
        return self._run(self._logic.cluster_info())

    def cluster_infos(self) -> dict[str, ClusterInfo | RocketError]:
        """Return the same as each name server sees it, by its address; the error of one that does not answer."""
        return self._run(self._logic.cluster_infos())

    def broker_member_group(self, cluster: str, broker: str) -> BrokerMemberGroup:
        """Return the addresses under a broker name by id, 0 is the master; none for a name that is not known."""
        return self._run(self._logic.broker_member_group(cluster, broker))

    def broker_status(self, *, cluster: str | None = None, broker: str | None = None) -> list[BrokerStatus]:
        """Return every registered broker with what it says of itself; all are asked at the same time.

        One that does not answer is in the list with its error. Sorted by cluster, name and id.

        cluster, broker  only the brokers of this cluster, of this name
        raises           RouteNotFound where no such broker is registered
        """
        return self._run(self._logic.broker_status(cluster=cluster, broker=broker))

    def broker_topics(self, address: str) -> dict[str, TopicConfig]:
        """Return the topics that a broker has, by name, system topics included (Java: ``getAllTopicConfig``)."""
        return self._run(self._logic.broker_topics(address))

    def broker_runtime_info(self, address: str) -> dict[str, str]:
        """Return counters and state of a broker, by RocketMQ's names (Java: ``fetchBrokerRuntimeStats``)."""
        return self._run(self._logic.broker_runtime_info(address))

    def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of a broker."""
        return self._run(self._logic.broker_config(address))

    def update_broker_config(self, address: str, properties: Mapping[str, str]) -> None:
        """Change settings of a running broker; raises NoPermission for a protected one."""
        self._run(self._logic.update_broker_config(address, properties))

    def wipe_write_permission(self, broker: str) -> int:
        """Take the write permission from a broker's topics at every name server; return how many topics there are.

        Producers go elsewhere when they next refresh their routes, every 30 s by default; consumers read on. It lasts
        until the broker registers a change of a topic, or restarts. 0 says that no name server knows the broker
        (Java: ``wipeWritePermOfBroker``).

        raises  PartlyDone where some name servers fail
        """
        return self._run(self._logic.wipe_write_permission(broker))

    def add_write_permission(self, broker: str) -> int:
        """Give it back; return how many topics there are, 0 for a broker that no name server knows.

        Name servers keep no record of what was taken: every topic of the broker is readable and writable then, also one
        that the broker itself does not allow to be written (Java: ``addWritePermOfBroker``).

        raises  PartlyDone where some name servers fail
        """
        return self._run(self._logic.add_write_permission(broker))

    def data_versions(self, broker: str, *, broker_id: int = MASTER_ID) -> dict[str, DataVersion | RocketError | None]:
        """Return which version of a broker's topics each name server holds, by the name server's address.

        None where it does not know the broker, its error where it does not answer. A name server of 5.x takes the
        question for a sign of life of the broker (Java: ``QUERY_DATA_VERSION``).

        raises  RouteNotFound for a broker that is not registered
        """
        return self._run(self._logic.data_versions(broker, broker_id=broker_id))

    def namesrv_config(self, address: str | None = None) -> dict[str, str]:
        """Return the settings of a name server, of the first that answers where none is named."""
        return self._run(self._logic.namesrv_config(address))

    def namesrv_configs(self) -> dict[str, dict[str, str] | RocketError]:
        """Return the settings of each name server by its address; the error of one that does not answer."""
        return self._run(self._logic.namesrv_configs())

    def update_namesrv_config(self, properties: Mapping[str, str]) -> None:
        """Change settings of every name server (Java: ``updateNameServerConfig``).

        A name that a server does not have changes nothing there and is no error.

        raises  NoPermission for a protected setting, PartlyDone where some name servers fail
        """
        self._run(self._logic.update_namesrv_config(properties))

    def get_kv(self, namespace: str, key: str) -> str | None:
        """Return a value of the name servers' key-value table; None where there is none."""
        return self._run(self._logic.get_kv(namespace, key))

    def list_kv(self, namespace: str) -> dict[str, str]:
        """Return a namespace of that table; raises QueryNotFound where it was never used."""
        return self._run(self._logic.list_kv(namespace))

    def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a value at every name server; raises PartlyDone where some fail."""
        self._run(self._logic.put_kv(namespace, key, value))

    def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a value at every name server; one that is not there is no error. Raises PartlyDone where some fail."""
        self._run(self._logic.delete_kv(namespace, key))
