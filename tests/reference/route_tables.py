"""The route tables of a name server, plainly: Java's rules by number, no shared states, kept answers or short cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

WRITE = 2
Numbers = tuple[int, int, int, int]
Version = tuple[int, int, int]
Key = tuple[str, str]
"""Cluster and address."""


@dataclass
class Broker:
    cluster: str
    acting: bool = False
    zone: str | None = None
    addresses: dict[int, str] = field(default_factory=dict)


@dataclass
class Live:
    seen: float
    timeout: float
    version: Version
    connection: object
    ha: str | None


class RouteTables:
    """``now`` is turned by hand; the settings are attributes under the names of ``NameServerConfig``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.support_acting_master = False
        self.order_message_enable = False
        self.delete_topic_with_broker_registration = False
        self.notify_min_broker_id_changed = False
        self.order: dict[str, str] = {}
        self.topics: dict[str, dict[str, Numbers]] = {}
        self.brokers: dict[str, Broker] = {}
        self.clusters: dict[str, set[str]] = {}
        self.live: dict[Key, Live] = {}
        self.filters: dict[Key, list[str]] = {}
        self.mappings: dict[str, dict[str, Any]] = {}

    def register(
        self, cluster: str, name: str, broker_id: int, address: str, ha: str | None, zone: str | None,
        timeout: float, acting: bool | None, version: Version, topics: dict[str, Numbers], mappings: dict[str, Any],
        filters: list[str] | None, connection: object,
    ) -> tuple[Any, ...] | None:  # fmt: skip
        """Return (HA address of the master, its address, news) or None where the registration is refused."""
        key = cluster, address
        self.clusters.setdefault(cluster, set()).add(name)  # 1
        first = name not in self.brokers  # 2
        broker = self.brokers.setdefault(name, Broker(cluster))
        broker.acting, broker.zone = bool(acting), zone  # 3
        min_changed = broker_id < min(broker.addresses, default=0)  # 4
        broker.addresses = {i: a for i, a in broker.addresses.items() if a != address or i == broker_id}  # 5
        old = broker.addresses.get(broker_id)
        if old not in (None, address):  # 6
            holder = self.live.get((cluster, old or ""))
            if holder is not None and holder.version[0] > version[0]:
                self.live.pop(key, None)
                return None, None, None
        if old is None and len(topics) == 1:  # 7
            return None
        broker.addresses[broker_id] = address  # 8
        first = first or old is None
        prime_slave = acting is not None and broker_id != 0 and broker_id == min(broker.addresses)  # 9
        known = self.live.get(key)
        changed = known is None or known.version != version
        if broker_id == 0 or prime_slave:  # 10
            if self.delete_topic_with_broker_registration and not mappings:  # a
                left_out = {topic for topic, by in self.topics.items() if name in by and topic not in topics}
                if not any(topic.startswith("rmq_sys_") for topic in left_out):  # ours: it is no full registration
                    for topic in left_out:
                        self._remove_queues(topic, name)
            for topic, numbers in topics.items():
                if first or changed or name not in self.topics.get(topic, {}):  # b
                    if prime_slave and broker.acting:  # c
                        numbers = (*numbers[:2], numbers[2] & ~WRITE, numbers[3])
                    self.topics.setdefault(topic, {})[name] = numbers
            if first or changed:  # d
                for topic, mapping in mappings.items():
                    self.mappings.setdefault(topic, {})[mapping.bname] = mapping
        self.live[key] = Live(self.now, timeout, version, connection, ha)  # 11
        if filters is not None:  # 12
            self.filters[key] = filters
            if not filters:
                del self.filters[key]
        news = None
        if min_changed and self.notify_min_broker_id_changed:  # 14
            news = self._news(name, None, ha)
        master = self.live.get((cluster, broker.addresses.get(0, "")))
        if broker_id != 0 and master is not None:  # 13
            return master.ha, broker.addresses[0], news
        return None, None, news

    def _remove_queues(self, topic: str, name: str) -> None:
        queues = self.topics[topic]
        queues.pop(name, None)
        if not queues:
            del self.topics[topic]

    def _news(self, name: str, offline: str | None, ha: str | None) -> tuple[Any, ...]:
        addresses = self.brokers[name].addresses
        smallest = min(addresses)
        told = [a for i, a in addresses.items() if offline is not None or len(addresses) == 1 or i != smallest]
        return name, smallest, addresses[smallest], offline, ha, sorted(told)

    def unregister(self, gone: Iterable[tuple[str, str, str, int]]) -> list[tuple[Any, ...]]:
        """Remove (cluster, name, address, id)s in one go; return the news."""
        removed, reduced, offline = set(), set(), {}
        for cluster, name, address, broker_id in gone:
            self.live.pop((cluster, address), None)
            self.filters.pop((cluster, address), None)
            broker = self.brokers.get(name)
            if broker is None:
                continue
            was_min = broker_id == min(broker.addresses, default=None)
            broker.addresses = {i: a for i, a in broker.addresses.items() if a != address}
            if broker.addresses:
                reduced.add(name)
                if was_min:
                    offline[name] = address
            else:
                del self.brokers[name]
                removed.add(name)
                for names in self.clusters.values():
                    names.discard(name)
        self.clusters = {cluster: names for cluster, names in self.clusters.items() if names}
        for topic in list(self.topics):
            for name in removed & self.topics[topic].keys():
                del self.topics[topic][name]
            if not self.topics[topic]:
                del self.topics[topic]
                continue
            for name in (reduced - removed) & self.topics[topic].keys():
                if self.brokers[name].acting and 0 not in self.brokers[name].addresses:
                    numbers = self.topics[topic][name]
                    self.topics[topic][name] = (*numbers[:2], numbers[2] & ~WRITE, numbers[3])
        for topic, mappings in list(self.mappings.items()) if removed else ():
            self.mappings[topic] = {name: mapping for name, mapping in mappings.items() if name in self.brokers}
            if not self.mappings[topic]:
                del self.mappings[topic]
        news = []
        for name, address in offline.items():
            if name not in removed and self.notify_min_broker_id_changed and self.brokers[name].acting:
                broker = self.brokers[name]
                live = self.live.get((broker.cluster, broker.addresses[min(broker.addresses)]))
                news.append(self._news(name, address, None if live is None else live.ha))
        return news

    def at(self, keys: Iterable[Key]) -> list[tuple[str, str, str, int]]:
        """Return what is to be removed when the brokers at these addresses are gone."""
        gone = []
        for cluster, address in keys:
            found = [
                (cluster, name, address, broker_id)
                for name in self.clusters.get(cluster, ())
                for broker_id, known in self.brokers[name].addresses.items()
                if known == address
            ]
            gone += found or [(cluster, "", address, -1)]
        return gone

    def silent(self) -> list[tuple[str, str, str, int]]:
        return self.at(key for key, live in self.live.items() if live.seen + live.timeout < self.now)

    def of_connection(self, connection: object) -> list[tuple[str, str, str, int]]:
        return self.at(key for key, live in self.live.items() if live.connection is connection)

    def heartbeat(self, key: Key) -> None:
        if key in self.live:
            self.live[key].seen = self.now

    def set_permission(self, name: str, change: Any) -> int:
        count = 0
        for queues in self.topics.values():
            if name in queues:
                read, write, perm, flag = queues[name]
                queues[name] = read, write, change(perm), flag
                count += 1
        return count

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        for name in list(self.topics.get(topic, ())):
            if not cluster or name in self.clusters.get(cluster, ()):
                self._remove_queues(topic, name)

    def register_topic(self, topic: str, queues: list[tuple[str, Numbers]]) -> None:
        taken = dict(self.topics.get(topic, {}))
        for name, numbers in queues:
            if name not in self.brokers:
                if topic not in self.topics:
                    return
                break
            taken[name] = numbers
        if taken:
            self.topics[topic] = taken

    def route(self, topic: str) -> dict[str, Any] | None:
        """Return the answer's JSON, its lists sorted."""
        queues = self.topics.get(topic, {})
        brokers = {name: self.brokers[name] for name in sorted(queues) if name in self.brokers}
        if not brokers:
            return None
        route: dict[str, Any] = {"queueDatas": [], "brokerDatas": [], "filterServerTable": {}}
        for name, (read, write, perm, flag) in sorted(queues.items()):
            route["queueDatas"].append(
                {"brokerName": name, "readQueueNums": read, "writeQueueNums": write, "perm": perm, "topicSysFlag": flag}
            )
        for name, broker in brokers.items():
            shown = dict(broker.addresses)
            for address in shown.values():
                if (broker.cluster, address) in self.filters:
                    route["filterServerTable"][address] = self.filters[broker.cluster, address]
            stands_in = self.support_acting_master and not topic.startswith("rmq_sys_SYNC_BROKER_MEMBER_")
            if stands_in and shown and 0 not in shown and broker.acting and not queues[name][2] & WRITE:
                shown[0] = shown.pop(min(shown))
            data = {
                "cluster": broker.cluster, "brokerName": name, "enableActingMaster": broker.acting,
                "brokerAddrs": {str(i): address for i, address in shown.items()},
            }  # fmt: skip
            route["brokerDatas"].append(data if broker.zone is None else {**data, "zoneName": broker.zone})
        if self.order_message_enable and topic in self.order:
            route["orderTopicConf"] = self.order[topic]
        if topic in self.mappings:
            route["topicQueueMappingByBroker"] = {
                name: mapping.to_json() for name, mapping in self.mappings[topic].items()
            }
        return route
