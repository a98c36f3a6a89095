"""The route tables: clusters, brokers, topics, who is alive (Java: ``RouteInfoManager`` 5.3, with the rules of 5.5).

Synchronous and without I/O; the event loop's thread is its only user, so nothing is locked. Time is a clock's monotonic
time: a jump of the wall clock expires nobody.

State
  clusters    cluster → names of its brokers
  brokers     broker name → addresses by id; keyed by the name alone, as upstream: two clusters with one name share it
  topics      topic → its queues on all brokers (``topic_table``)
  live        (cluster, address) → last sign of life, data version, connection (``live_brokers``)
  answers     topic → encoded route answer, made when it is asked for and dropped when anything in it changes; topics
              with shared queues share the bytes too, where the answer depends on nothing else
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from rocketcore.codes import MASTER_ID, Permission, TopicSysFlag
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.live_brokers import Connection, LiveBroker, LiveBrokers, LiveKey, timeout_seconds
from rocketcore.nameserver.registration import ALL_WANTED, KnownTopics, QueueNumbers, RegisteredTopics, deleted_topics
from rocketcore.nameserver.topic_table import TopicTable
from rocketcore.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicQueueMappingInfo, TopicRouteData
from rocketcore.protocol.bodies.topic import DataVersion
from rocketcore.service import Clock

__all__ = [
    "BrokerAddress",
    "BrokerRegistration",
    "MinBrokerIdChange",
    "RegisterResult",
    "RouteInfoManager",
    "filter_by_zone",
]

logger = logging.getLogger(__name__)

SYNC_MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"


class BrokerAddress(NamedTuple):
    """One broker process as a request names it."""

    cluster: str
    broker_name: str
    address: str
    broker_id: int


class BrokerRegistration(NamedTuple):
    """The header of a registration; ``enable_acting_master`` is None from brokers older than 5.0."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str | None
    zone: str | None = None
    timeout_millis: int | None = None
    enable_acting_master: bool | None = None


class MinBrokerIdChange(NamedTuple):
    """News for the brokers of one name: their smallest id is another (905); ``targets`` are addresses."""

    broker_name: str
    broker_id: int
    address: str
    offline_address: str | None
    ha_address: str | None
    targets: tuple[str, ...]


class RegisterResult(NamedTuple):
    """What a registered broker is told: a slave its master, and what others are to hear of it; or why it is not."""

    ha_address: str | None = None
    master_address: str | None = None
    change: MinBrokerIdChange | None = None
    refusal: str = ""
    rival: str = ""
    """The address of another broker of this name and id, which is connected too."""


class RouteInfoManager:
    """Registers brokers, expires them and answers where a topic is.

    ``order_conf`` gives the value of a topic in the key-value namespace ORDER_TOPIC_CONFIG. ``forget_answers`` must
    follow a change of its values.
    """

    def __init__(
        self, config: NameServerConfig, clock: Clock, order_conf: Callable[[str], str | None] = lambda topic: None
    ) -> None:
        self.config = config
        self._clock = clock
        self._order_conf = order_conf
        self._clusters: dict[str, dict[str, None]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._topics = TopicTable(self._forget_answers_of)
        self._live = LiveBrokers()
        self._filter_servers: dict[LiveKey, list[str]] = {}
        self._mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}
        self.answers: dict[bytes, bytes] = {}
        """What ``answer`` made and nothing has changed since, for whoever looks a topic up by itself."""
        self._answers_age = 0

    # Registration

    def register_unchanged(
        self, broker: BrokerRegistration, connection: Connection, digest: int
    ) -> RegisterResult | None:
        """Renew a registration whose bytes are those of the last one; None: it must be read and registered in full.

        The digest covers header and body. Rule b of the specification (a topic that is gone comes back) holds because
        whoever removes a broker's topics, or takes its place, forgets its digest.
        """
        key = (broker.cluster, broker.address)
        live = self._live.get(key)
        data = self._brokers.get(broker.broker_name)
        if live is None or live.digest is None or data is None:
            return None
        if (
            data.broker_addrs.get(broker.broker_id) != broker.address
            or data.enable_acting_master != bool(broker.enable_acting_master)
            or data.zone_name != broker.zone
            or live.digest != (digest, self._applies_topics(broker, data))
        ):
            return None
        live.last_update = self._clock.monotonic()
        self._live.connect(key, live, connection)
        return self._result_for(broker, data, None)

    def known_topics(self, broker: BrokerRegistration) -> KnownTopics:
        """Return what the topics of a registration may be compared with while they are read.

        All are wanted of a broker that is new, and refused if it has only one; of a slave, whose topics may become
        read-only; and where those that are missing are to go.
        """
        data = self._brokers.get(broker.broker_name)
        new = data is None or broker.broker_id not in data.broker_addrs
        if new or broker.broker_id != MASTER_ID or self.config.delete_topic_with_broker_registration:
            return ALL_WANTED
        return self._topics.known(broker.broker_name)

    def register_broker(
        self,
        broker: BrokerRegistration,
        registered: RegisteredTopics,
        connection: Connection,
        digest: int | None = None,
    ) -> RegisterResult | None:
        """Apply a registration that was read, by the rules of 5.x, in their order (the processor's handler of the same
        name reads it from a request). It was read for ``known_topics``, and nothing has changed since, or holds all.

        Return None where 5.x refuses: an unknown broker id that brings exactly one topic, which is an increment that
        overtook the full table.
        """
        data = self._brokers.get(broker.broker_name)
        known = None if data is None else (dict(data.broker_addrs), data.enable_acting_master, data.zone_name)
        try:
            return self._register(broker, registered, connection, digest)
        finally:
            data = self._brokers[broker.broker_name]
            if known != (data.broker_addrs, data.enable_acting_master, data.zone_name):
                self.forget_answers()
                logger.info(
                    "broker registered cluster=%s broker=%s id=%d address=%s",
                    broker.cluster, broker.broker_name, broker.broker_id, broker.address,
                )  # fmt: skip

    def _register(
        self, broker: BrokerRegistration, registered: RegisteredTopics, connection: Connection, digest: int | None
    ) -> RegisterResult | None:
        version = registered.data_version
        self._clusters.setdefault(broker.cluster, {})[broker.broker_name] = None
        data = self._brokers.get(broker.broker_name)
        first = data is None
        if data is None:
            data = BrokerData(cluster=broker.cluster, broker_name=broker.broker_name, broker_addrs={})
            self._brokers[broker.broker_name] = data
        data.enable_acting_master = bool(broker.enable_acting_master)
        data.zone_name = broker.zone
        addresses = data.broker_addrs
        min_changed = broker.broker_id < min(addresses, default=MASTER_ID)

        # One address has one id: a slave that became master keeps its address, or the other way round.
        for broker_id in [i for i, address in addresses.items() if address == broker.address and i != broker.broker_id]:
            del addresses[broker_id]
            self._forget_digests([broker.address])

        previous = addresses.get(broker.broker_id)
        if previous is not None and previous != broker.address:
            holder = self._live.get((broker.cluster, previous))
            if holder is not None and holder.data_version.state_version > version.state_version:
                self._live.drop((broker.cluster, broker.address))
                logger.warning(
                    "broker ignored, an address of a later state holds its id broker=%s id=%d address=%s holder=%s",
                    broker.broker_name, broker.broker_id, broker.address, previous,
                )  # fmt: skip
                held = f"{previous} holds id {broker.broker_id} of {broker.broker_name}, with a later state version"
                return RegisterResult(refusal=f"register broker failed, {held}")
        if previous is None and len(registered.topics) == 1:
            logger.warning("broker refused, new with one topic broker=%s id=%d", broker.broker_name, broker.broker_id)
            return None
        rival = ""
        if previous is not None and previous != broker.address:
            self._forget_digests([previous])
            other = self._live.get((broker.cluster, previous))
            if (
                other is not None and other.connection is not None and not other.connection.closed
            ):  # no broker that moved, it would not be connected
                rival = previous
                logger.warning(
                    "two brokers have one name and id, this address replaced another that is also connected "
                    "broker=%s id=%d address=%s other=%s",
                    broker.broker_name, broker.broker_id, broker.address, previous,
                )  # fmt: skip
        addresses[broker.broker_id] = broker.address
        first = first or previous is None

        key = (broker.cluster, broker.address)
        live = self._live.get(key)
        applies = self._applies_topics(broker, data)
        if applies:
            changed = live is None or live.data_version != version
            self._apply_topics(broker, data, registered, first, changed)
        timeout = timeout_seconds(broker.address, broker.timeout_millis)
        seen = None if digest is None else (digest, applies)
        live = LiveBroker(self._clock.monotonic(), timeout, version, broker.ha_address, seen)
        self._live.put(key, live, connection)
        self._set_filter_servers(key, registered.filter_servers)
        change = None
        if min_changed and self.config.notify_min_broker_id_changed:
            change = self._min_id_change(data, None, broker.ha_address)
        return self._result_for(broker, data, change)._replace(rival=rival)

    def _applies_topics(self, broker: BrokerRegistration, data: BrokerData) -> bool:
        """Topics are taken from the master, and from the smallest slave of a 5.x broker without one."""
        if broker.broker_id == MASTER_ID:
            return True
        return broker.enable_acting_master is not None and broker.broker_id == min(data.broker_addrs)

    def _apply_topics(
        self, broker: BrokerRegistration, data: BrokerData, registered: RegisteredTopics, first: bool, changed: bool
    ) -> None:
        name = broker.broker_name
        topics = registered.topics
        if self.config.delete_topic_with_broker_registration and not registered.mappings:
            known_here = (topic for topic, known in self._topics.items() if name in known.queues)
            for topic in deleted_topics(known_here, topics, (name, broker.cluster)):
                self._remove_queues(topic, name)
        if broker.broker_id != MASTER_ID and data.enable_acting_master:
            topics = {topic: _read_only(numbers) for topic, numbers in topics.items()}
        self._topics.put(name, topics, only_missing=not (first or changed))
        if first or changed:
            for topic, mapping in registered.mappings.items():
                self._mappings.setdefault(topic, {})[mapping.bname] = mapping
            self._forget_answers_of(registered.mappings)

    def _remove_queues(self, topic: str, broker_name: str) -> None:
        if self._topics.remove(topic, broker_name):
            self._forget_digests(self.addresses(broker_name).values())

    def _set_filter_servers(self, key: LiveKey, servers: list[str] | None) -> None:
        if servers is None or self._filter_servers.get(key, []) == servers:
            return
        if servers:
            self._filter_servers[key] = servers
        else:
            del self._filter_servers[key]
        self.forget_answers()

    def _result_for(
        self, broker: BrokerRegistration, data: BrokerData, change: MinBrokerIdChange | None
    ) -> RegisterResult:
        if broker.broker_id != MASTER_ID:
            master = data.broker_addrs.get(MASTER_ID)
            live = None if master is None else self._live.get((broker.cluster, master))
            if live is not None:
                return RegisterResult(live.ha_address, master, change)
        return RegisterResult(change=change)

    # Signs of life

    def heartbeat(self, cluster: str, address: str) -> None:
        """Note a sign of life; an unknown broker is none."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.last_update = self._clock.monotonic()

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Return what the broker last registered, and count the question as a sign of life."""
        self.heartbeat(cluster, address)
        live = self._live.get((cluster, address))
        return None if live is None else live.data_version

    def of_connection(self, connection: Connection) -> list[BrokerAddress]:
        """Return the brokers whose last registration came over this connection."""
        return [broker for key in self._live.of_connection(connection) for broker in self._at(key)]

    def silent(self) -> list[tuple[BrokerAddress, Connection | None]]:
        """Return the brokers that were silent for longer than they promised, with their connections."""
        silent = self._live.silent(self._clock.monotonic())
        return [(broker, live.connection) for key, live in silent for broker in self._at(key)]

    def _at(self, key: LiveKey) -> list[BrokerAddress]:
        """Return all that is registered at an address: after a broker was renamed, its old name may be there as well.

        An address that others took the place of is in no table of names; it is named alone.
        """
        cluster, address = key
        found = [
            BrokerAddress(cluster, name, address, broker_id)
            for name in self._clusters.get(cluster, ())
            for broker_id, known in self._brokers[name].broker_addrs.items()
            if known == address
        ]
        return found or [BrokerAddress(cluster, "", address, -1)]

    def unregister_brokers(self, gone: Iterable[BrokerAddress]) -> list[MinBrokerIdChange]:
        """Remove brokers, and the topics that no broker is left to serve; return the news for the brokers that stay."""
        removed: set[str] = set()
        reduced: set[str] = set()
        offline: dict[str, str] = {}
        for broker in gone:
            key = (broker.cluster, broker.address)
            self._live.drop(key)
            self._filter_servers.pop(key, None)
            data = self._brokers.get(broker.broker_name)
            if data is None:
                continue
            addresses = data.broker_addrs
            was_min = broker.broker_id == min(addresses, default=None)
            for broker_id in [i for i, address in addresses.items() if address == broker.address]:
                del addresses[broker_id]
                self._forget_digests([broker.address])
            logger.info(
                "broker removed cluster=%s broker=%s id=%d address=%s",
                broker.cluster, broker.broker_name, broker.broker_id, broker.address,
            )  # fmt: skip
            if not addresses:
                self._remove_broker(broker)
                removed.add(broker.broker_name)
                continue
            reduced.add(broker.broker_name)
            if was_min:
                offline[broker.broker_name] = broker.address
        reduced -= removed
        read_only = {
            name
            for name in reduced
            if self._brokers[name].enable_acting_master and MASTER_ID not in self._brokers[name].broker_addrs
        }
        if removed or read_only:
            self._drop_topics(removed, read_only)
        if removed and self._mappings:
            self._drop_mappings()
        self.forget_answers()
        return list(self._changes_after_loss({name: offline[name] for name in offline if name in reduced}))

    def _remove_broker(self, broker: BrokerAddress) -> None:
        del self._brokers[broker.broker_name]
        for cluster in [cluster for cluster, names in self._clusters.items() if broker.broker_name in names]:
            del self._clusters[cluster][broker.broker_name]
            if not self._clusters[cluster]:
                del self._clusters[cluster]

    def _drop_topics(self, removed: set[str], read_only: set[str]) -> None:
        def change(queues: Mapping[str, QueueNumbers]) -> Mapping[str, QueueNumbers]:
            if read_only.isdisjoint(queues) and removed.isdisjoint(queues):
                return queues
            return {
                name: _read_only(numbers) if name in read_only else numbers
                for name, numbers in queues.items()
                if name not in removed
            }

        self._topics.replace(change)

    def _drop_mappings(self) -> None:
        """Forget the queue mappings of unknown brokers; one that returns is new, and its mappings are taken again."""
        known = {
            topic: {name: mapping for name, mapping in by_broker.items() if name in self._brokers}
            for topic, by_broker in self._mappings.items()
        }
        self._mappings = {topic: by_broker for topic, by_broker in known.items() if by_broker}

    def _changes_after_loss(self, offline: dict[str, str]) -> Iterator[MinBrokerIdChange]:
        if not self.config.notify_min_broker_id_changed:
            return
        for name, address in offline.items():
            data = self._brokers[name]
            if data.enable_acting_master:
                live = self._live.get((data.cluster, data.broker_addrs[min(data.broker_addrs)]))
                yield self._min_id_change(data, address, None if live is None else live.ha_address)

    def _min_id_change(self, data: BrokerData, offline: str | None, ha_address: str | None) -> MinBrokerIdChange:
        smallest = min(data.broker_addrs)
        everyone = offline is not None or len(data.broker_addrs) == 1
        targets = tuple(address for i, address in data.broker_addrs.items() if everyone or i != smallest)
        return MinBrokerIdChange(data.broker_name, smallest, data.broker_addrs[smallest], offline, ha_address, targets)

    # Topics and permissions

    def wipe_write_permission(self, broker_name: str) -> int:
        """Take the write permission from every topic of a broker; return how many there are."""
        return self._set_permission(broker_name, lambda perm: perm & ~Permission.WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Make every topic of a broker readable and writable; return how many there are."""
        return self._set_permission(broker_name, lambda perm: Permission.READ | Permission.WRITE)

    def _set_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        def changed(queues: Mapping[str, QueueNumbers]) -> Mapping[str, QueueNumbers]:
            numbers = queues.get(broker_name)
            if numbers is None:
                return queues
            return {**queues, broker_name: numbers._replace(perm=int(change(numbers.perm)))}

        count = sum(broker_name in known.queues for _, known in self._topics.items())
        self._topics.replace(changed)
        self.forget_answers()
        return count

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, or its queues on the brokers of one cluster; a broker that names it again brings it back."""
        known = self._topics.get(topic)
        for name in () if known is None else known.queues:
            if not cluster or name in self._clusters.get(cluster, ()):
                self._remove_queues(topic, name)

    def register_topic(self, topic: str, queues: Iterable[tuple[str, QueueNumbers]]) -> None:
        """Add queues of a topic, in order, up to the first broker that is unknown (which drops a new topic whole)."""
        known = topic in self._topics
        accepted: list[tuple[str, QueueNumbers]] = []
        for name, numbers in queues:
            if name not in self._brokers:
                if not known:
                    return
                break
            accepted.append((name, numbers))
        for name, numbers in accepted:
            self._topics.put(name, {topic: numbers})
            self._forget_digests(self.addresses(name).values())

    def topics(self) -> list[str]:
        return list(self._topics)

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = self._clusters.get(cluster, {}).keys()
        return [topic for topic, known in self._topics.items() if not names.isdisjoint(known.queues)]

    def topics_with_flags(self, mask: TopicSysFlag, flags: TopicSysFlag) -> list[str]:
        """Return the topics whose system flag under ``mask`` is ``flags``; a topic's first broker speaks for it."""
        return [
            topic for topic, known in self._topics.items() if next(iter(known.queues.values())).sys_flag & mask == flags
        ]

    def system_names(self) -> tuple[list[str], str | None]:
        """Return the names of the clusters, then of their brokers, each once, and the address of some broker."""
        names = dict.fromkeys(self._clusters)
        for brokers in self._clusters.values():
            names.update(brokers)
        address = next((a for data in self._brokers.values() for a in data.broker_addrs.values()), None)
        return list(names), address

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table=dict(self._brokers),
            cluster_addr_table={cluster: list(names) for cluster, names in self._clusters.items()},
        )

    def addresses(self, broker_name: str) -> dict[int, str]:
        """Return the addresses of a broker by id; empty when it is unknown."""
        data = self._brokers.get(broker_name)
        return {} if data is None else dict(data.broker_addrs)

    # Routes

    def route(self, topic: str) -> TopicRouteData | None:
        """Return where a topic is, as a copy; None when no registered broker has it."""
        known = self._topics.get(topic)
        if known is None:
            return None
        queues = known.queues
        brokers = [
            replace(data, broker_addrs=dict(data.broker_addrs))
            for data in map(self._brokers.get, queues)
            if data is not None
        ]
        if not brokers:
            return None
        filters: dict[str, list[str]] = {}
        if self._filter_servers:
            for data in brokers:
                for address in data.broker_addrs.values():
                    servers = self._filter_servers.get((data.cluster, address))
                    if servers is not None:
                        filters[address] = servers
        if self.config.support_acting_master and not topic.startswith(SYNC_MEMBER_TOPIC_PREFIX):
            for data in brokers:
                _show_acting_master(data, queues[data.broker_name])
        return TopicRouteData(
            order_topic_conf=self._order_conf(topic) if self.config.order_message_enable else None,
            queue_datas=[QueueData(name, *numbers) for name, numbers in queues.items()],
            broker_datas=brokers,
            filter_server_table=filters,
            topic_queue_mapping_by_broker=self._mappings.get(topic),
        )

    def answer(self, topic: bytes) -> bytes | None:
        """Return the encoded route of a topic, made now or before; None when there is none."""
        known = self.answers.get(topic)
        if known is not None:
            return known
        text = topic.decode("utf-8", "replace")
        queues = self._topics.get(text)
        if queues is None:
            return None
        shared = self._shares_answer(text)
        if shared and queues.age == self._answers_age:
            encoded = queues.answer
        else:
            route = self.route(text)
            if route is None:
                return None
            encoded = route.encode_standard()
            if shared:
                queues.answer, queues.age = encoded, self._answers_age
        # Under the name as it is, not as it was asked: what forgets answers knows no other spelling of its bytes.
        self.answers[text.encode()] = encoded
        return encoded

    def _shares_answer(self, topic: str) -> bool:
        """Tell whether nothing but its queues, and the brokers they are on, goes into the route of a topic."""
        return not (
            self.config.order_message_enable
            or topic in self._mappings
            or (self.config.support_acting_master and topic.startswith(SYNC_MEMBER_TOPIC_PREFIX))
        )

    def _forget_answers_of(self, topics: Iterable[str]) -> None:
        if self.answers:
            for topic in topics:
                self.answers.pop(topic.encode("utf-8", "replace"), None)

    def reconfigure(self, config: NameServerConfig) -> None:
        """Obey other settings from now on, also where an answer or a registration was seen before."""
        self.config = config
        self.forget_answers()
        self._live.forget_digests()

    def forget_answers(self) -> None:
        """Drop every encoded answer."""
        self.answers.clear()
        self._answers_age += 1

    def _forget_digests(self, addresses: Iterable[str]) -> None:
        self._live.forget_digests((cluster, address) for address in addresses for cluster in self._clusters)


def _read_only(numbers: QueueNumbers) -> QueueNumbers:
    return numbers._replace(perm=int(numbers.perm & ~Permission.WRITE))


def _show_acting_master(data: BrokerData, queues: QueueNumbers) -> None:
    """Show the smallest slave under id 0 where the master is gone and the queues are read-only."""
    addresses = data.broker_addrs
    if addresses and MASTER_ID not in addresses and data.enable_acting_master and not queues.perm & Permission.WRITE:
        addresses[MASTER_ID] = addresses.pop(min(addresses))


def filter_by_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Keep the brokers of a zone, and those without a master (Java: ``ZoneRouteRPCHook``)."""
    kept: list[BrokerData] = []
    dropped: list[BrokerData] = []
    for data in route.broker_datas:
        same = data.zone_name is not None and data.zone_name.lower() == zone.lower()
        (kept if same or MASTER_ID not in data.broker_addrs else dropped).append(data)
    dropped_names = {data.broker_name for data in dropped}
    dropped_addresses = {address for data in dropped for address in data.broker_addrs.values()}
    return replace(
        route,
        broker_datas=kept,
        queue_datas=[queues for queues in route.queue_datas if queues.broker_name not in dropped_names],
        filter_server_table={a: s for a, s in route.filter_server_table.items() if a not in dropped_addresses},
    )
