"""Routes as a client uses them: the queues of a topic to publish to and to subscribe, and where brokers listen.

A ``TopicRoute`` is what one route answer means; it never changes. ``RouteTable`` holds the newest route per topic and
the addresses of all brokers that any route named. Neither asks anyone: ``ClientInstance`` feeds them.

RocketMQ 5.5.0: ``MQClientInstance.topicRouteData2TopicPublishInfo``, ``TopicPublishInfo``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketcore.codes import MASTER_ID, Permission
from rocketcore.errors import DecodeError, RouteNotFound
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.route import QueueData, TopicRouteData

if TYPE_CHECKING:
    import random

__all__ = ["RouteTable", "TopicRoute", "inherit_route", "readable_queues", "topic_route", "with_brokers"]

MAX_QUEUES: Final = 1 << 18
"""Of a topic, on all its brokers. A route may claim two billion on each, and each of them becomes an object."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The queues of one topic; ``ordered`` where the name server fixes their order (``orderTopicConf``)."""

    topic: str
    publish: tuple[MessageQueue, ...]
    subscribe: tuple[MessageQueue, ...]
    ordered: bool = False


def topic_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """Return the queues that a route answer means.

    Publish: writable queues of brokers whose master is in the route. Subscribe: readable queues of all brokers.

    raises  DecodeError for an order that does not parse: an administrator typed it; as ``readable_queues``
    """
    subscribe = tuple(readable_queues(topic, data))
    if data.order_topic_conf:
        return TopicRoute(topic, tuple(_queues(topic, _order(topic, data.order_topic_conf))), subscribe, ordered=True)
    masters = {broker.broker_name for broker in data.broker_datas if MASTER_ID in broker.broker_addrs}
    writable = (each for each in data.queue_datas if each.perm & Permission.WRITE and each.broker_name in masters)
    publish = _queues(topic, sorted((each.broker_name, each.write_queue_nums) for each in writable))
    return TopicRoute(topic, tuple(publish), subscribe)


def readable_queues(topic: str, data: TopicRouteData) -> list[MessageQueue]:
    """Return the queues that a route answer means for readers, sorted.

    raises  DecodeError where there are more than ``MAX_QUEUES``
    """
    readable = (each for each in data.queue_datas if each.perm & Permission.READ)
    return _queues(topic, sorted((each.broker_name, each.read_queue_nums) for each in readable))


def _queues(topic: str, counts: Collection[tuple[str, int]]) -> list[MessageQueue]:
    total = sum(max(0, count) for _, count in counts)
    if total > MAX_QUEUES:
        raise DecodeError(f"route of topic {topic!r}: {total} queues, more than {MAX_QUEUES}")
    return [MessageQueue(topic, broker, queue_id) for broker, count in counts for queue_id in range(count)]


def _order(topic: str, order_topic_conf: str) -> list[tuple[str, int]]:
    counts = []
    for item in filter(None, order_topic_conf.split(";")):
        broker, _, count = item.rpartition(":")
        if not broker or not count.isdecimal() or len(count) > 9:
            raise DecodeError(f"orderTopicConf of topic {topic!r}: {item[:80]!r} is not broker:number")
        counts.append((broker, int(count)))
    return counts


def inherit_route(data: TopicRouteData, queue_nums: int) -> TopicRouteData:
    """Return the route of a topic that does not exist yet, from the route of the topic it will be created after.

    queue_nums  queues wanted per broker; a broker that has fewer for the default topic gives fewer
    """
    queue_datas = [
        QueueData(
            broker_name=queue_data.broker_name,
            read_queue_nums=min(queue_nums, queue_data.read_queue_nums),
            write_queue_nums=min(queue_nums, queue_data.read_queue_nums),
            perm=queue_data.perm,
            topic_sys_flag=queue_data.topic_sys_flag,
        )
        for queue_data in data.queue_datas
    ]
    return TopicRouteData(queue_datas=queue_datas, broker_datas=data.broker_datas)


def with_brokers(data: TopicRouteData, brokers: Collection[str], source: TopicRouteData) -> TopicRouteData:
    """Return a route answer in which some brokers are as another answer has them."""
    return TopicRouteData(
        queue_datas=[
            *(queue_data for queue_data in data.queue_datas if queue_data.broker_name not in brokers),
            *(queue_data for queue_data in source.queue_datas if queue_data.broker_name in brokers),
        ],
        broker_datas=[
            *(broker for broker in data.broker_datas if broker.broker_name not in brokers),
            *(broker for broker in source.broker_datas if broker.broker_name in brokers),
        ],
        order_topic_conf=data.order_topic_conf,
    )


def _serving(data: TopicRouteData) -> set[tuple[str, bool]]:
    """Return the brokers of a route that have queues, each with whether its master is there."""
    with_queues = {queue_data.broker_name for queue_data in data.queue_datas}
    found = {(broker.broker_name, False) for broker in data.broker_datas if broker.broker_addrs}
    found |= {(broker.broker_name, True) for broker in data.broker_datas if MASTER_ID in broker.broker_addrs}
    return {(broker, master) for broker, master in found if broker in with_queues}


class _Identity(NamedTuple):
    """What two routes have in common when they are the same."""

    queues: list[tuple[str, int, int, int]]
    brokers: list[tuple[str, tuple[tuple[int, str], ...]]]
    order: str | None


def _identity(data: TopicRouteData) -> _Identity:
    return _Identity(
        sorted(
            (queue.broker_name, queue.read_queue_nums, queue.write_queue_nums, queue.perm) for queue in data.queue_datas
        ),
        sorted((broker.broker_name, tuple(sorted(broker.broker_addrs.items()))) for broker in data.broker_datas),
        data.order_topic_conf,
    )


class RouteTable:
    """The newest route of each topic in use, and the addresses of brokers."""

    __slots__ = ("_addresses", "_answers", "_identities", "_inherited", "_random", "_routes")

    def __init__(self, rng: random.Random | None = None) -> None:
        import random

        self._routes: dict[str, TopicRoute] = {}
        self._answers: dict[str, TopicRouteData] = {}
        self._inherited: set[str] = set()
        self._identities: dict[str, _Identity] = {}
        self._addresses: dict[str, dict[int, str]] = {}
        self._random = rng or random.Random()

    def update(self, topic: str, data: TopicRouteData, *, inherited: bool = False) -> bool:
        """Take a route answer; return whether it changed anything.

        inherited  the topic does not exist yet, and this is where it may be created
        raises     as ``topic_route``; then nothing has changed
        """
        identity = _identity(data)
        changed = self._identities.get(topic) != identity
        route = topic_route(topic, data) if changed else self._routes[topic]
        for broker in data.broker_datas:
            self._addresses[broker.broker_name] = dict(broker.broker_addrs)
        if inherited:
            self._inherited.add(topic)
        else:
            self._inherited.discard(topic)
        self._answers[topic] = data
        self._routes[topic] = route
        self._identities[topic] = identity
        return changed

    def find(self, topic: str) -> TopicRoute | None:
        """Return the known route of a topic."""
        return self._routes.get(topic)

    def left_out(self, topic: str, data: TopicRouteData) -> list[str]:
        """Return the brokers of the known route that an answer does not have, or has without their master.

        Of a topic that did not exist before nothing is left out: the answer says where it has been created.
        """
        if topic not in self._answers or topic in self._inherited:
            return []
        return sorted({broker for broker, _ in _serving(self._answers[topic]) - _serving(data)})

    def keep(self, topic: str, data: TopicRouteData, brokers: Collection[str]) -> TopicRouteData:
        """Return a route answer in which some brokers have the queues of the known route, at their newest addresses."""
        known = self._answers[topic]
        newest = [
            replace(broker, broker_addrs=dict(self._addresses.get(broker.broker_name, broker.broker_addrs)))
            for broker in known.broker_datas
        ]
        return with_brokers(data, brokers, replace(known, broker_datas=newest))

    def clusters_of(self, topic: str) -> list[str]:
        """Return the clusters that the brokers of a known topic say they belong to."""
        known = self._answers.get(topic)
        return [] if known is None else sorted({broker.cluster for broker in known.broker_datas if broker.cluster})

    def topics(self) -> list[str]:
        """Return the topics that have a route."""
        return list(self._routes)

    def drop_unnamed_brokers(self) -> list[str]:
        """Forget the brokers that no route mentions any more; return their names."""
        named = {broker for identity in self._identities.values() for broker, _ in identity.brokers}
        gone = [broker for broker in self._addresses if broker not in named]
        for broker in gone:
            del self._addresses[broker]
        return gone

    def find_publish_address(self, broker: str) -> str | None:
        """Return the address of a broker's master."""
        return self._addresses.get(broker, {}).get(MASTER_ID)

    def publish_address(self, broker: str) -> str:
        """Return the address of a broker's master; RouteNotFound where none is known."""
        address = self.find_publish_address(broker)
        if address is None:
            raise RouteNotFound(f"broker {broker!r} has no known master")
        return address

    def subscribe_address(self, broker: str, broker_id: int = MASTER_ID) -> tuple[str, int]:
        """Return where to read a broker's queues: address and broker id.

        A slave that is gone is replaced by the next one, and that by any member of the broker.
        """
        addresses = self._addresses.get(broker, {})
        for candidate in (broker_id, broker_id + 1) if broker_id != MASTER_ID else (broker_id,):
            if candidate in addresses:
                return addresses[candidate], candidate
        for candidate, address in sorted(addresses.items()):
            return address, candidate
        raise RouteNotFound(f"no address of broker {broker!r} is known")

    def is_at(self, broker: str, address: str) -> bool:
        """Say whether a broker has an address."""
        return address in self._addresses.get(broker, {}).values()

    def addresses(self, *, masters_only: bool) -> list[str]:
        """Return the addresses of all known brokers."""
        return [
            address
            for members in self._addresses.values()
            for broker_id, address in members.items()
            if broker_id == MASTER_ID or not masters_only
        ]

    def addresses_of(self, topic: str) -> list[str]:
        """Return an address of each broker that serves a topic, in random order; RouteNotFound where there is none."""
        route = self._routes.get(topic)
        brokers = sorted({queue.broker for queue in route.subscribe} & self._addresses.keys()) if route else []
        if not brokers:
            raise RouteNotFound(f"no broker of topic {topic!r} is known")
        return [self.subscribe_address(broker)[0] for broker in self._random.sample(brokers, len(brokers))]
