"""Where a producer's messages may go: the queues of each topic, prepared for sending, and which brokers to avoid.

RocketMQ 5.5.0: ``TopicPublishInfo``, ``MQFaultStrategy.selectOneMessageQueue``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from rocketcore._fast.rotation import QueueRotation
from rocketcore.client.config import ProducerConfig
from rocketcore.client.fault import ASSUMED_LATENCY, BrokerNumbers, LatencyFaultTolerance
from rocketcore.client.instance import ClientInstance
from rocketcore.client.route_table import TopicRoute
from rocketcore.client.selectors import find_selector
from rocketcore.client.send_command import SendTarget
from rocketcore.errors import NotWritable, RocketError, RouteNotFound, TransportError
from rocketcore.message import MessageQueue
from rocketcore.naming import with_namespace, without_namespace
from rocketcore.service import Clock, Deadline

__all__ = ["Publishers", "TopicPublisher"]


class TopicPublisher:
    """The queues of one topic to send to, prepared from one route; a new route makes a new publisher."""

    __slots__ = ("addresses", "brokers", "by_queue", "rotation", "route", "targets", "topic")

    def __init__(self, route: TopicRoute, targets: Sequence[SendTarget], start: int) -> None:
        self.topic = route.topic
        self.route = route
        self.targets = targets
        self.rotation = QueueRotation([target.broker_number for target in targets], start)
        self.by_queue = {target.queue: target for target in targets}
        self.addresses = tuple(dict.fromkeys(target.address for target in targets))
        self.brokers = len({target.broker_number for target in targets})


class Publishers:
    """The topics of one producer; for any thread, whichever world its ``instance`` lives in.

    timing  whether it matters how long brokers take to answer
    """

    def __init__(self, config: ProducerConfig, instance: ClientInstance, clock: Clock) -> None:
        self.instance = instance
        self._config = config
        self.clock = clock
        self._fault = LatencyFaultTolerance(config.latency_fault_tolerance, clock)
        self.timing = self._fault.enabled
        self._brokers = BrokerNumbers()
        self._select = find_selector(config.selector)
        self._publishers: dict[str, TopicPublisher] = {}

    def find(self, topic: str) -> TopicPublisher | None:
        """Return the publisher of a topic if its route is known and has a queue to write to; asks no one."""
        route = self.instance.routes.find(self.wire_topic(topic) if self._config.namespace else topic)
        if route is None:
            return None
        publisher = self._publishers.get(topic)
        if publisher is not None and publisher.route is route:
            return publisher
        targets = self._targets(route)
        if not targets:
            return None
        # Producers that start together must not all begin with the first queue.
        publisher = self._publishers[topic] = TopicPublisher(route, targets, time.perf_counter_ns() % len(targets))
        return publisher

    def wire_topic(self, topic: str) -> str:
        """Return the name that brokers know a topic by."""
        return with_namespace(topic, self._config.namespace)

    async def get(self, topic: str, timeout: float) -> TopicPublisher:
        """Return the publisher of a topic's newest route; raises NotWritable without a writable queue."""
        deadline = Deadline(timeout, self.clock)
        wire_topic = self.wire_topic(topic)
        known = self.instance.routes.find(wire_topic)
        route = await self.instance.await_route(
            wire_topic, default_queue_nums=self._config.default_topic_queue_nums, timeout=deadline.remaining()
        )
        publisher = self.find(topic)
        if publisher is None and route is known:
            # Known for up to ``route_interval``, and perhaps of the past: permission may have been given back.
            await self.refresh(topic, deadline.remaining())
            publisher = self.find(topic)
        if publisher is None:
            raise NotWritable(f"topic {topic!r} has no writable queue")
        return publisher

    async def refresh(self, topic: str, timeout: float) -> None:
        """Ask for a topic's route again; where no one answers, the known one stays."""
        await self.instance.try_refresh(
            self.wire_topic(topic), default_queue_nums=self._config.default_topic_queue_nums, timeout=timeout / 2
        )

    def _own(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue as the application names it; raises TypeError for what is none."""
        if not isinstance(queue, MessageQueue):
            raise TypeError(f"queue must be a MessageQueue, got {type(queue).__name__}")
        topic = without_namespace(queue.topic, self._config.namespace)
        return queue if topic == queue.topic else MessageQueue(topic, queue.broker, queue.queue_id)

    def _targets(self, route: TopicRoute) -> list[SendTarget]:
        addresses = self.instance.routes
        return [
            SendTarget(
                self._own(queue),
                address,
                self._brokers.number(queue.broker),
                self._config.group,
                self._config.default_topic_queue_nums,
                wire_topic=queue.topic,
                namespace=self._config.namespace,
                plain=bool(self._config.access_key or self._config.remoting["hooks"]),
            )
            for queue in route.publish
            if (address := addresses.find_publish_address(queue.broker)) is not None
        ]

    def target(
        self,
        publisher: TopicPublisher,
        message_group: str | None,
        queue: MessageQueue | None,
        avoid: Collection[int] = (),
        full: Collection[str] = (),
    ) -> SendTarget | None:
        """Return where a message goes: the given queue, its group's, or the next one; None where it has to wait.

        avoid   numbers of brokers that failed; full  addresses of brokers that have enough to do
        raises  RouteNotFound for a queue that cannot be written to
        """
        targets, rotation = publisher.targets, publisher.rotation
        if queue is not None:
            try:
                target = publisher.by_queue[self._own(queue)]
            except KeyError:
                raise RouteNotFound(f"{queue} is not a writable queue of {publisher.topic!r}") from None
        elif message_group is not None:
            target = targets[self._select(message_group, len(targets)) % len(targets)]
        else:
            target = targets[self._fault.select(rotation) if self.timing else rotation.next()]
            if not avoid and not full:
                return target
            for _ in range(publisher.brokers):
                if target.broker_number not in avoid and target.address not in full:
                    return target
                target = targets[rotation.next_skipping(target.broker_number)]
            return None
        return None if target.broker_number in avoid or target.address in full else target

    def answered(self, target: SendTarget, latency: float) -> None:
        """Note how long a broker took."""
        self._fault.update(target.broker_number, latency)

    def failed(self, target: SendTarget, error: RocketError) -> None:
        """Note that an attempt failed at a broker."""
        reachable = not isinstance(error, TransportError)
        self._fault.update(target.broker_number, ASSUMED_LATENCY, reachable=reachable)
