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
from typing import Protocol, TypeVar

from rocketcore.client import api
from rocketcore.client.config import ClientConfig
from rocketcore.client.name_servers import FAIR_SECONDS, NameServerList
from rocketcore.client.route_table import RouteTable, TopicRoute, inherit_route, with_brokers
from rocketcore.client.runtime import Lock, Runtime
from rocketcore.codes import AUTO_CREATE_TOPIC
from rocketcore.errors import (
    BrokerError,
    BrokerSystemError,
    NoBrokerRegistered,
    RequestTimeout,
    RocketError,
    RouteNotFound,
    SystemBusy,
    TopicNotExist,
    TransportError,
)
from rocketcore.ids import client_id
from rocketcore.printable import printable
from rocketcore.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from rocketcore.protocol.bodies.route import TopicRouteData
from rocketcore.service import SYSTEM_CLOCK, Backoff, Clock, Deadline
from rocketcore.transport.remoting import Remoting

__all__ = ["ClientInstance", "GroupMember"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

HEARTBEAT_TIMEOUT = 3.0
LEAVE_TIMEOUT = 0.5
"""For all brokers together: what was sent they do without our waiting, and a closed connection says the same."""
SILENT_BROKER_SECONDS = 10.0
"""How long a broker that did not answer a heartbeat is not sent one; the next heartbeat to all asks it all the same."""
PROBE_TIMEOUT = 0.5
HOLD_SECONDS = 40.0
"""How long a broker that answers stays in a route whose name servers do not name it any more. A name server that has
started again does not know a broker until its next heartbeat, 30 s, unless the broker notices the restart."""
SOONER_SECONDS = 1.0
"""Until routes are asked for again when name servers failed, or left out a broker that answers; longer each time."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 0.5

_NOT_FINAL = (TopicNotExist, BrokerSystemError, SystemBusy)
"""Refusals of a route that another name server may not share: an empty one knows no topic, one may be not ready yet."""


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
        self.broker_versions: dict[str, int] = {}
        """Version of each broker, by address, that took the last heartbeat."""
        self._silent_until: dict[str, float] = {}
        self._hung: set[str] = set()
        """Addresses of the brokers that did not answer the last heartbeat."""
        rng = rng or random.Random()
        self.routes = RouteTable(rng)
        self._name_servers = NameServerList(config.namesrv, remoting, clock, rng)
        self._sooner = Backoff(SOONER_SECONDS, max(SOONER_SECONDS, config.route_interval), rng=rng)
        self._left_out_since: dict[str, dict[str, float]] = {}
        """Topic → broker → since when answers leave it out although it answers us."""
        self._route_locks: dict[str, Lock] = {}
        self._producer_group: str | None = None
        self._everywhere = False
        self._masters: tuple[str, ...] = ()
        """Addresses of all brokers, where all of them are told of the producer."""
        self._default_queue_nums: dict[str, int] = {}
        self._consumer: GroupMember | None = None

    def register_producer(self, group: str, *, everywhere: bool = False) -> None:
        """Make heartbeats name a producer group.

        everywhere  at all brokers that name servers know: each of them may have something to ask the group. Java's
                    producers are known where they have sent since they started.
        """
        self._producer_group = group
        self._everywhere = everywhere

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
        return await self._name_servers.ask(question, self.config.timeout if timeout is None else timeout)

    async def route(self, topic: str, *, default_queue_nums: int = 0, timeout: float | None = None) -> TopicRoute:
        """Return the route of a topic; ask for it if it is not known.

        default_queue_nums  above 0: a topic that does not exist gets the route of the default topic, because the broker
                            will create it on the first send, with at most so many queues a broker
        raises              RouteNotFound when no name server knows the topic, NoBrokerRegistered when none knows any
                            broker; TransportError when none answers
        """
        known = self.routes.find(topic)
        if known is not None:
            return known
        deadline = Deadline(self.config.timeout if timeout is None else timeout, self.clock)
        lock = self._route_locks.setdefault(topic, self.runtime.lock())
        if await lock.acquire(deadline.remaining()):
            try:
                known = self.routes.find(topic)  # the one before us in the queue may have asked
                if known is None and not deadline.expired:
                    await self.refresh_topic(topic, default_queue_nums=default_queue_nums, timeout=deadline.remaining())
                    known = self.routes.find(topic)
            finally:
                lock.release()
        if known is None:
            raise RequestTimeout(f"route of topic {topic!r}: no answer within {deadline.timeout:g} s")
        return known

    async def await_route(self, topic: str, *, default_queue_nums: int, timeout: float | None = None) -> TopicRoute:
        """As ``route``, but while no name server answers, or none knows a broker yet, go on until the time is up."""
        deadline = Deadline(self.config.timeout if timeout is None else timeout, self.clock)
        pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        failure: RocketError | None = None
        while True:
            left = deadline.remaining()
            try:
                return await self.route(topic, default_queue_nums=default_queue_nums, timeout=left)
            except RocketError as error:
                if failure is not None and left < FAIR_SECONDS and isinstance(error, RequestTimeout):
                    raise failure from None  # the last attempt had no time to find out more
                failure = error
                pause = pauses.next()
                if not error.retriable or pause >= deadline.remaining():
                    raise
                logger.info("no route yet topic=%s error=%s", topic, error)
            await self.runtime.pause(pause)

    async def refresh_topic(self, topic: str, *, default_queue_nums: int = 0, timeout: float | None = None) -> bool:
        """Ask for the route of a topic and take it; return whether it changed.

        A known route survives name servers that do not know the topic, and brokers that answer stay in it for
        ``HOLD_SECONDS`` when an answer leaves them out: the name server may have just started.
        """
        deadline = Deadline(self.config.timeout if timeout is None else timeout, self.clock)
        wanted = max(default_queue_nums, self._default_queue_nums.get(topic, 0))
        self._default_queue_nums[topic] = wanted
        inherited = False
        try:
            data = await self._ask_route(topic, deadline.remaining())
        except TopicNotExist as error:
            if self.routes.find(topic) is not None:
                logger.info("route kept, no name server knows the topic topic=%s", topic)
                self._left_out_since.pop(topic, None)
                return False
            data, inherited = await self._unknown_route(topic, wanted, deadline, error)
        else:
            data = await self._with_those_left_out(topic, data, deadline)
        changed = self.routes.update(topic, data, inherited=inherited)
        if changed:
            logger.info("route changed topic=%s brokers=%d", topic, len(data.broker_datas))
            if self._consumer is not None:
                self._consumer.route_changed(topic)
        return changed

    async def try_refresh(self, topic: str, *, default_queue_nums: int = 0, timeout: float | None = None) -> None:
        """Ask for the newest route of a topic; a failure leaves the known one."""
        try:
            await self.refresh_topic(topic, default_queue_nums=default_queue_nums, timeout=timeout)
        except RocketError as error:
            logger.debug("route not refreshed topic=%s error=%s", topic, error)

    async def _ask_route(self, topic: str, timeout: float) -> TopicRouteData:
        try:
            return await self._name_servers.ask(
                lambda remoting, address, share: api.topic_route(remoting, address, topic, share),
                timeout,
                not_final=_NOT_FINAL,
            )
        except TransportError as error:
            raise type(error)(f"route of topic {topic!r}: {error}") from error

    async def _unknown_route(
        self, topic: str, queue_nums: int, deadline: Deadline, unknown: TopicNotExist
    ) -> tuple[TopicRouteData, bool]:
        """Return where a topic that no name server knows may be created, with so many queues a broker; 0: nowhere.

        returns  a route, and whether it is that of the default topic
        """
        reason = f"no name server knows topic {topic!r}"
        if queue_nums:
            try:
                return inherit_route(await self._ask_route(AUTO_CREATE_TOPIC, deadline.remaining()), queue_nums), True
            except TopicNotExist:
                reason += ", and no broker creates topics"
        if not await self._any_broker_registered(deadline):
            raise NoBrokerRegistered(f"{reason}: no broker is registered") from unknown
        try:
            # A broker may have registered with the topic after it was asked for.
            return await self._ask_route(topic, deadline.remaining()), False
        except TopicNotExist:
            raise RouteNotFound(reason) from unknown

    async def _any_broker_registered(self, deadline: Deadline) -> bool:
        for address in self._name_servers.addresses:
            if await self._name_servers.second_opinion(api.knows_brokers, address, deadline):
                return True
        return False

    async def _with_those_left_out(self, topic: str, data: TopicRouteData, deadline: Deadline) -> TopicRouteData:
        """Return a route answer with the brokers of the known route that it leaves out although they answer us."""
        missing = [broker for broker in self.routes.left_out(topic, data) if await self._answers(broker, deadline)]
        if missing:
            data, missing = await self._ask_others(topic, data, missing, deadline)
        kept = self._hold(topic, missing)
        if not kept:
            return data
        named = printable(",".join(kept))
        logger.info("brokers kept, the name server leaves them out topic=%s brokers=%s", topic, named)
        return self.routes.keep(topic, data, kept)

    def _hold(self, topic: str, missing: list[str]) -> list[str]:
        """Return those of the brokers that no name server names whose time is not up."""
        now = self.clock.monotonic()
        before = self._left_out_since.pop(topic, {})
        since = {broker: before.get(broker, now) for broker in missing}
        kept = {broker: begun for broker, begun in since.items() if now - begun < HOLD_SECONDS}
        if kept:
            self._left_out_since[topic] = kept
        return list(kept)

    async def _answers(self, broker: str, deadline: Deadline) -> bool:
        """Say whether a broker answers; where there is no time left to find out, it is taken to."""
        began = self.clock.monotonic()
        timeout = min(PROBE_TIMEOUT, deadline.remaining())
        try:
            address, _ = self.routes.subscribe_address(broker)
            await api.heartbeat(self.remoting, address, self.heartbeat_data(), timeout)
        except BrokerError:
            return True
        except RocketError:
            return timeout < PROBE_TIMEOUT and self.clock.monotonic() - began >= timeout
        return True

    async def _ask_others(
        self, topic: str, data: TopicRouteData, missing: list[str], deadline: Deadline
    ) -> tuple[TopicRouteData, list[str]]:
        """Complete a route answer by those of the other name servers; return it with the brokers that no one names."""
        for address in self._name_servers.addresses[1:]:
            other = await self._name_servers.second_opinion(
                lambda remoting, address, share: api.topic_route(remoting, address, topic, share), address, deadline
            )
            if other is None:
                continue
            found = set(missing).difference(self.routes.left_out(topic, other))
            data = with_brokers(data, found, other)
            missing = [broker for broker in missing if broker not in found]
            if not missing:
                self._name_servers.ask_first(address)
                break
        return data, missing

    async def refresh(self) -> float | None:
        """Ask for the routes of all topics in use; a failure leaves the known route.

        returns  in how many seconds to ask again, where that should not wait for the interval
        """
        for broker in self.routes.drop_unnamed_brokers():
            logger.info("broker left all routes broker=%s", printable(broker))
        topics = set(self.routes.topics())
        if self._consumer is not None:
            topics |= self._consumer.topics()
        failed = self._everywhere and not await self._find_masters()
        for topic in sorted(topics):
            try:
                await self.refresh_topic(topic)
            except RocketError as error:
                logger.debug("route not refreshed topic=%s error=%s", topic, error)
                failed = failed or error.retriable
                if isinstance(error, TransportError):
                    break  # all name servers failed: the other topics would only wait for the same
        if not failed and not self._left_out_since:
            self._sooner.reset()
            return None
        return self._sooner.next()

    async def _find_masters(self) -> bool:
        """Find out which brokers there are; those that were known stay where no name server answers."""
        try:
            self._masters = await self._name_servers.ask(api.broker_masters, self.config.timeout)
        except RocketError as error:
            logger.debug("brokers not listed error=%s", error)
            return not error.retriable
        return True

    def _collect_addresses(self) -> list[str]:
        """Return the addresses of the brokers that this client is known at."""
        known = self.routes.addresses(masters_only=self._consumer is None)
        return list(dict.fromkeys((*known, *self._masters)))

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
        self._silent_until.clear()
        await self.send_missing_heartbeats()

    async def introduce(self, address: str, timeout: float) -> None:
        """Tell a broker who this client is, if it was not told yet; a failure is left to the next heartbeat."""
        if address not in self.broker_versions:
            await self._tell(address, min(timeout, HEARTBEAT_TIMEOUT))

    async def ask_any_broker(
        self, topic: str, question: Callable[[str, float], Awaitable[T]], timeout: float
    ) -> tuple[str, T]:
        """Ask one of the brokers that serve a topic, and another in turn where it does not answer.

        question  ``(address, timeout) -> answer``; its refusal is an answer, and raised at once
        timeout   seconds for all of them together; who did not answer the last heartbeat is asked last
        returns   who answered, and what
        raises    RouteNotFound; what the last one failed with where none answers
        """
        deadline = Deadline(timeout, self.clock)
        addresses = sorted(self.routes.addresses_of(topic), key=self._hung.__contains__)
        for others, address in zip(reversed(range(len(addresses))), addresses, strict=True):
            try:
                return address, await question(address, deadline.remaining() / (others + 1))
            except TransportError as error:
                if not others:
                    raise
                logger.info("broker failed, another is asked address=%s error=%s", printable(address), error)
        raise AssertionError("the last one answers or raises")

    async def send_missing_heartbeats(self, timeout: float = HEARTBEAT_TIMEOUT) -> None:
        """Send a heartbeat to the brokers that have not had one yet, or whose last one failed.

        Each topic's rebalance begins with this, and one that hangs would hold up every one of them. No broker waits for
        another that hangs: on a loop all are told at once. Threads tell one after the other, those that hung the last
        time behind the others; each has a moment, and who is slow the rest of the time when all have been told.
        """
        now = self.clock.monotonic()
        left = [
            address
            for address in self._collect_addresses()
            if address not in self.broker_versions and now >= self._silent_until.get(address, 0.0)
        ]
        if self.runtime.concurrent:
            await self.runtime.at_once([self._tell(address, timeout) for address in left])
            return
        deadline = Deadline(timeout, self.clock)
        slow = []
        for number, address in enumerate(sorted(left, key=self._hung.__contains__)):
            moment = min(PROBE_TIMEOUT, deadline.remaining() / (len(left) - number))
            if not await self._tell(address, moment):
                slow.append(address)
        for number, address in enumerate(slow):
            if (share := deadline.remaining() / (len(slow) - number)) > 0:
                await self._tell(address, share)

    def is_silent(self, broker: str) -> bool:
        """Say whether a broker did not answer its last heartbeat, a moment ago."""
        now = self.clock.monotonic()
        silent = {address for address, until in list(self._silent_until.items()) if now < until}
        return bool(silent) and self.routes.subscribe_address(broker)[0] in silent

    async def _tell(self, address: str, timeout: float) -> bool:
        """Send a heartbeat to one broker; False where the time was too short for its answer."""
        began = self.clock.monotonic()
        try:
            self.broker_versions[address] = await api.heartbeat(self.remoting, address, self.heartbeat_data(), timeout)
        except RocketError as error:
            logger.info("heartbeat failed address=%s error=%s", printable(address), error)
            # Time is what tells: a machine that is down is a connection that could not be made in time.
            if isinstance(error, RequestTimeout) or self.clock.monotonic() - began >= timeout / 2:
                self._silent_until[address] = self.clock.monotonic() + SILENT_BROKER_SECONDS
                self._hung.add(address)
                return False
        self._hung.discard(address)
        self._silent_until.pop(address, None)
        return True

    async def unregister(self) -> None:
        """Leave the groups at all brokers; failures are left to the brokers' own clean-up."""
        consumer_group = self._consumer.group if self._consumer is not None else None
        if self._producer_group is None and consumer_group is None:
            return
        deadline = Deadline(LEAVE_TIMEOUT, self.clock)
        addresses = self._collect_addresses()
        for number, address in enumerate(addresses):
            try:
                await api.unregister_client(
                    self.remoting,
                    address,
                    self.client_id,
                    deadline.remaining() / (len(addresses) - number),
                    producer_group=self._producer_group,
                    consumer_group=consumer_group,
                )
            except (TransportError, BrokerError) as error:
                logger.debug("unregister failed address=%s error=%s", address, error)
