"""ClientInstance: what one client keeps up with the cluster, whatever it produces or consumes.

It owns the connections, the routes, the heartbeats and the answers to what brokers ask of a client. Each producer and
each consumer has an instance of its own with a client id of its own.

Who calls ``refresh()`` and ``heartbeat()`` at their intervals is decided outside: tasks on a loop, or a thread.

RocketMQ 5.5.0: ``MQClientInstance``, ``ClientRemotingProcessor``.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from rocketcore.client import api
from rocketcore.client.config import ClientConfig
from rocketcore.client.ids import client_id
from rocketcore.client.route_table import RouteTable, TopicRoute, inherit_route
from rocketcore.client.runtime import Runtime
from rocketcore.codes import AUTO_CREATE_TOPIC
from rocketcore.errors import BrokerError, RocketError, RouteNotFound, TopicNotExist, TransportError
from rocketcore.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, TopicRouteData
from rocketcore.service import SYSTEM_CLOCK, Clock, Deadline
from rocketcore.transport.client import Remoting

if TYPE_CHECKING:
    from rocketcore.protocol.command import RemotingCommand

__all__ = ["ClientInstance", "GroupMember"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
RequestHandler = Callable[["RemotingCommand"], Awaitable["RemotingCommand | None"]]

HEARTBEAT_TIMEOUT = 3.0


class GroupMember(Protocol):
    """What an instance needs to know of its consumer."""

    @property
    def group(self) -> str:
        """The consumer group."""

    def consumer_data(self) -> ConsumerData:
        """Return the consumer's part of the heartbeat."""

    def topics(self) -> set[str]:
        """Return the topics that the consumer needs routes of."""

    def route_changed(self, topic: str) -> None:
        """Take notice of a new route."""


class ClientInstance:
    """Connections, routes and heartbeats of one client."""

    def __init__(
        self,
        config: ClientConfig,
        remoting: Remoting,
        runtime: Runtime,
        *,
        clock: Clock = SYSTEM_CLOCK,
        instance_name: str = "",
        rng: random.Random | None = None,
    ) -> None:
        self.config = config
        self.remoting = remoting
        self.runtime = runtime
        self.clock = clock
        self.client_id = client_id(config.instance_name or instance_name, config.unit_name)
        self.routes = RouteTable(rng)
        self.broker_versions: dict[str, int] = {}
        """Version of each broker, by address, that took the last heartbeat."""
        self._name_servers = list(config.namesrv)
        (rng or random.Random()).shuffle(self._name_servers)
        self._route_locks: dict[str, AbstractAsyncContextManager[object]] = {}
        self._producer_group: str | None = None
        self._default_queue_nums: dict[str, int] = {}
        self._consumer: GroupMember | None = None

    def register_producer(self, group: str) -> None:
        """Make heartbeats name a producer group."""
        self._producer_group = group

    def register_consumer(self, consumer: GroupMember) -> None:
        """Make heartbeats name a consumer."""
        self._consumer = consumer

    async def ask_name_server(
        self, question: Callable[[Remoting, str, float], Awaitable[T]], timeout: float | None = None
    ) -> T:
        """Ask the name server that answered last, and the others in turn when it does not.

        question  ``(remoting, address, timeout) -> answer``
        raises    what the last name server's failure was, when all fail; a refusal is an answer and is raised at once
        """
        deadline = Deadline(self.config.timeout if timeout is None else timeout, self.clock)
        failure: TransportError | None = None
        count = len(self._name_servers)
        for attempt in range(count):
            address = self._name_servers[0]
            try:
                return await question(self.remoting, address, deadline.remaining() / (count - attempt))
            except TransportError as error:
                failure = error
                logger.info("name server failed address=%s error=%s", address, error)
                # another thread or task may have moved on already
                if self._name_servers[0] == address:
                    self._name_servers.append(self._name_servers.pop(0))
            if deadline.expired:
                break
        assert failure is not None
        raise failure

    async def route(self, topic: str, *, default_queue_nums: int = 0, timeout: float | None = None) -> TopicRoute:
        """Return the route of a topic; ask for it if it is not known.

        default_queue_nums  above 0: a topic that does not exist gets the route of the default topic, because the broker
                            will create it on the first send, with at most so many queues a broker
        raises              RouteNotFound when no name server knows the topic
        """
        known = self.routes.find(topic)
        if known is not None:
            return known
        lock = self._route_locks.setdefault(topic, self.runtime.lock())
        async with lock:
            known = self.routes.find(topic)  # the one before us in the queue may have asked
            if known is None:
                await self.refresh_topic(topic, default_queue_nums=default_queue_nums, timeout=timeout)
                known = self.routes.find(topic)
        assert known is not None
        return known

    async def refresh_topic(self, topic: str, *, default_queue_nums: int = 0, timeout: float | None = None) -> bool:
        """Ask for the route of a topic and take it; return whether it changed."""
        wanted = self._default_queue_nums.setdefault(topic, default_queue_nums)
        try:
            data = await self._ask_route(topic, timeout)
        except TopicNotExist as error:
            if not wanted:
                raise RouteNotFound(f"no name server knows topic {topic!r}") from error
            try:
                data = inherit_route(await self._ask_route(AUTO_CREATE_TOPIC, timeout), wanted)
            except TopicNotExist:
                raise RouteNotFound(f"no name server knows topic {topic!r}, and no broker creates topics") from error
        changed = self.routes.update(topic, data)
        if changed:
            logger.info("route changed topic=%s brokers=%d", topic, len(data.broker_datas))
            if self._consumer is not None:
                self._consumer.route_changed(topic)
        return changed

    async def _ask_route(self, topic: str, timeout: float | None) -> TopicRouteData:
        return await self.ask_name_server(
            lambda remoting, address, share: api.topic_route(remoting, address, topic, share), timeout
        )

    async def refresh(self) -> None:
        """Ask for the routes of all topics in use; a failure leaves the known route."""
        topics = set(self.routes.topics())
        if self._consumer is not None:
            topics |= self._consumer.topics()
        for topic in sorted(topics):
            try:
                await self.refresh_topic(topic)
            except RocketError as error:
                logger.debug("route not refreshed topic=%s error=%s", topic, error)
        for broker in self.routes.drop_unnamed_brokers():
            logger.info("broker left all routes broker=%s", broker)

    def heartbeat_data(self) -> HeartbeatData:
        """Return what brokers are told about this client."""
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=self._producer_group)] if self._producer_group else [],
            consumer_data_set=[self._consumer.consumer_data()] if self._consumer is not None else [],
        )

    async def heartbeat(self) -> None:
        """Tell all brokers in use who this client is; failures are left to the next time."""
        if self._producer_group is None and self._consumer is None:
            return
        self.broker_versions.clear()
        await self.greet()

    async def greet(self) -> None:
        """Send a heartbeat to the brokers that have not had one yet, or whose last one failed."""
        data = self.heartbeat_data()
        for address in self.routes.addresses(masters_only=self._consumer is None):
            if address in self.broker_versions:
                continue
            try:
                self.broker_versions[address] = await api.heartbeat(self.remoting, address, data, HEARTBEAT_TIMEOUT)
            except (TransportError, BrokerError) as error:
                logger.info("heartbeat failed address=%s error=%s", address, error)

    async def unregister(self) -> None:
        """Leave the groups at all brokers; failures are left to the brokers' own clean-up."""
        consumer_group = self._consumer.group if self._consumer is not None else None
        if self._producer_group is None and consumer_group is None:
            return
        for address in self.routes.addresses(masters_only=consumer_group is None):
            try:
                await api.unregister_client(
                    self.remoting,
                    address,
                    self.client_id,
                    HEARTBEAT_TIMEOUT,
                    producer_group=self._producer_group,
                    consumer_group=consumer_group,
                )
            except (TransportError, BrokerError) as error:
                logger.debug("unregister failed address=%s error=%s", address, error)
