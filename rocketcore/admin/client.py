"""Admin: the administration of a cluster for blocking programs; ``AsyncAdmin`` is the same for asyncio.

RocketMQ: ``DefaultMQAdminExt``.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Mapping
from datetime import datetime
from typing import Any, Self, TypeVar

from rocketcore.admin.logic import AsyncAdmin, CreatedTopic
from rocketcore.client.config import NameServers
from rocketcore.codes import Permission
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies import (
    ClusterInfo,
    Connection,
    OffsetWrapper,
    SubscriptionGroupConfig,
    TopicOffset,
    TopicRouteData,
)
from rocketcore.protocol.signing import Signer
from rocketcore.transport.blocking import BlockingChannelAdapter, BlockingRemotingClient, run_sync

__all__ = ["Admin", "AsyncAdmin", "CreatedTopic"]

T = TypeVar("T")


class _ThreadLogic(AsyncAdmin):
    """The logic over connections whose coroutines are done when they return."""

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - the caller is a thread and no loop runs in it


class Admin:
    """Administration for blocking programs; thread-safe, without a thread of its own.

    namesrv             addresses as in ``Producer``
    timeout             seconds for a whole call, however many servers it asks
    broker_address_map  advertised address → address to connect to
    access_key          account of ACL, with its ``secret_key``
    """

    def __init__(
        self,
        namesrv: NameServers = None,
        *,
        timeout: float = 5.0,
        broker_address_map: Mapping[str, str] | None = None,
        access_key: str = "",
        secret_key: str = "",
    ) -> None:
        self._client = BlockingRemotingClient(
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

    def topics(self, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, or of those of one cluster, sorted; system topics are included."""
        return self._run(self._logic.topics(cluster))

    def topic_route(self, topic: str) -> TopicRouteData:
        """Return which brokers serve a topic; raises TopicNotExist where no broker does."""
        return self._run(self._logic.topic_route(topic))

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
        raises      RouteNotFound without such a broker, BrokerError where a broker refuses
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

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> list[str]:
        """Delete a topic and its messages on every broker, then at the name servers; return the names of the brokers.

        raises  TopicNotExist where no broker serves it
        """
        return self._run(self._logic.delete_topic(topic, cluster=cluster))

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the bounds of every queue of a topic; one request a broker."""
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
        """Create a consumer group on every master, or change it; return the names of the brokers."""
        return self._run(
            self._logic.create_group(
                group,
                retry_max_times=retry_max_times,
                retry_queues=retry_queues,
                broadcast=broadcast,
            )
        )

    def delete_group(self, group: str, *, offsets: bool = True) -> list[str]:
        """Delete a consumer group on every master, its offsets as well unless told otherwise."""
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

    def cluster_info(self) -> ClusterInfo:
        """Return clusters, their broker names, and the addresses of each."""
        return self._run(self._logic.cluster_info())

    def broker_runtime_info(self, address: str) -> dict[str, str]:
        """Return counters and state of a broker, by RocketMQ's names."""
        return self._run(self._logic.broker_runtime_info(address))

    def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of a broker."""
        return self._run(self._logic.broker_config(address))

    def update_broker_config(self, address: str, properties: Mapping[str, str]) -> None:
        """Change settings of a running broker; raises NoPermission for a protected one."""
        self._run(self._logic.update_broker_config(address, properties))

    def wipe_write_permission(self, broker: str) -> int:
        """Take the write permission from a broker's topics at every name server; return how many topics there are."""
        return self._run(self._logic.wipe_write_permission(broker))

    def add_write_permission(self, broker: str) -> int:
        """Give it back; return how many topics there are."""
        return self._run(self._logic.add_write_permission(broker))

    def namesrv_config(self, address: str | None = None) -> dict[str, str]:
        """Return the settings of a name server, of the first that answers where none is named."""
        return self._run(self._logic.namesrv_config(address))

    def update_namesrv_config(self, properties: Mapping[str, str]) -> None:
        """Change settings of every name server; raises NoPermission for a protected one."""
        self._run(self._logic.update_namesrv_config(properties))

    def get_kv(self, namespace: str, key: str) -> str | None:
        """Return a value of the name servers' key-value table; None where there is none."""
        return self._run(self._logic.get_kv(namespace, key))

    def list_kv(self, namespace: str) -> dict[str, str]:
        """Return a namespace of that table; raises QueryNotFound where it was never used."""
        return self._run(self._logic.list_kv(namespace))

    def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a value at every name server."""
        self._run(self._logic.put_kv(namespace, key, value))

    def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a value at every name server; one that is not there is no error."""
        self._run(self._logic.delete_kv(namespace, key))
