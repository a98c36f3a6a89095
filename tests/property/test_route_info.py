"""The route tables, with shared states, kept answers and the short cut, against tables that have none of these."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rocketcore.codes import Version
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.registration import QueueNumbers, RegisteredTopics, read_registration
from rocketcore.nameserver.route_info import (
    BrokerAddress,
    BrokerRegistration,
    MinBrokerIdChange,
    RegisterResult,
    RouteInfoManager,
    filter_by_zone,
)
from rocketcore.protocol.bodies.route import TopicQueueMappingInfo, TopicRouteData
from rocketcore.protocol.bodies.topic import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from rocketcore.service import ManualClock
from tests.reference.route_tables import RouteTables

TOPICS = ("T", "U", "rmq_sys_SYNC_BROKER_MEMBER_a")
names = st.sampled_from(["a", "b"])
ids = st.sampled_from([0, 1, 2])
addresses = st.sampled_from(["h:1", "h:2", "h:3"])
clusters = st.sampled_from(["c", "d"])
connections = st.integers(0, 2)
topics = st.sampled_from(TOPICS)
gone = st.lists(st.builds(BrokerAddress, clusters, names, addresses, ids), min_size=1, max_size=3)


class Connection:
    closed = False

    def close(self) -> None:
        pass


class Tables(RuleBasedStateMachine):
    """Every request goes to both; nothing that can be asked may differ."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.plain = RouteTables()
        self.config = NameServerConfig()
        self.quick = RouteInfoManager(self.config, self.clock, self.plain.order.get)
        self.connections = [Connection() for _ in range(3)]
        self.sent: list[tuple[BrokerRegistration, RegisteredTopics]] = []

    @rule(
        cluster=clusters, name=names, broker_id=ids, address=addresses, connection=connections,
        zone=st.sampled_from([None, "z"]), acting=st.sampled_from([None, False, True]),
        timeout=st.sampled_from([None, 5000]), named=st.sets(topics), version=st.integers(0, 2),
        state=st.integers(0, 1), perm=st.sampled_from([4, 6]),
        filters=st.sampled_from([None, None, [], ["f:1"], ["f:2"]]), mapped=st.sampled_from([None, None, *TOPICS]),
    )  # fmt: skip
    def register(
        self, cluster: str, name: str, broker_id: int, address: str, connection: int, zone: str | None,
        acting: bool | None, timeout: int | None, named: set[str], version: int, state: int, perm: int,
        filters: list[str] | None, mapped: str | None,
    ) -> None:  # fmt: skip
        broker = BrokerRegistration(
            cluster=cluster, broker_name=name, broker_id=broker_id, address=address, ha_address=f"{address}0",
            zone=zone, timeout_millis=timeout, enable_acting_master=acting,
        )  # fmt: skip
        registered = RegisteredTopics(
            DataVersion(state, 0, version),
            {topic: QueueNumbers(4, 4, perm, 0) for topic in sorted(named)},
            {} if mapped is None else {mapped: TopicQueueMappingInfo(mapped, bname=name, epoch=version)},
            filters,
        )
        self.sent.append((broker, registered))
        self._send(broker, registered, connection)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), connection=connections)
    def register_again(self, data: st.DataObject, connection: int) -> None:
        self._send(*data.draw(st.sampled_from(self.sent[-4:])), connection)

    def _send(self, broker: BrokerRegistration, registered: RegisteredTopics, number: int) -> None:
        connection = self.connections[number]
        digest = hash((broker, repr(registered)))
        result = self.quick.register_unchanged(broker, connection, digest)
        if result is None:
            read = read_registration(_body(registered), False, int(Version.V5_0_0))
            result = self.quick.register_broker(broker, read, connection, digest)
        version = registered.data_version
        assert _plain_result(result) == self.plain.register(
            broker.cluster, broker.broker_name, broker.broker_id, broker.address, broker.ha_address, broker.zone,
            120 if broker.timeout_millis is None else broker.timeout_millis / 1000, broker.enable_acting_master,
            (version.state_version, version.timestamp, version.counter),
            {topic: tuple(numbers) for topic, numbers in registered.topics.items()}, registered.mappings,  # type: ignore[misc]
            registered.filter_servers, connection,
        )  # fmt: skip

    @rule(gone=gone)
    def unregister(self, gone: list[BrokerAddress]) -> None:
        news = self.quick.unregister_brokers(gone)
        assert list(map(_plain_news, news)) == self.plain.unregister(
            (broker.cluster, broker.broker_name, broker.address, broker.broker_id) for broker in gone
        )

    @rule(number=connections)
    def connection_closes(self, number: int) -> None:
        brokers = self.quick.of_connection(self.connections[number])
        expected = self.plain.of_connection(self.connections[number])
        assert sorted(map(_plain_address, brokers)) == sorted(expected)
        self.unregister(brokers)
        self.connections[number] = Connection()

    @rule(seconds=st.sampled_from([1, 6, 130]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.plain.now += seconds
        silent = [broker for broker, _ in self.quick.silent()]
        assert sorted(map(_plain_address, silent)) == sorted(self.plain.silent())
        self.unregister(silent)

    @rule(cluster=clusters, address=addresses, question=st.booleans())
    def sign_of_life(self, cluster: str, address: str, question: bool) -> None:
        if question:
            self.quick.data_version(cluster, address)
        else:
            self.quick.heartbeat(cluster, address)
        self.plain.heartbeat((cluster, address))

    @rule(name=names, wipe=st.booleans())
    def change_permission(self, name: str, wipe: bool) -> None:
        count = (self.quick.wipe_write_permission if wipe else self.quick.add_write_permission)(name)
        assert count == self.plain.set_permission(name, (lambda perm: perm & ~2) if wipe else (lambda perm: 6))

    @rule(topic=topics, cluster=st.sampled_from([None, "", "c", "d", "none"]))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.quick.delete_topic(topic, cluster)
        self.plain.delete_topic(topic, cluster)

    @rule(topic=topics, brokers=st.lists(st.sampled_from(["a", "b", "nobody"]), max_size=3), queues=st.integers(1, 2))
    def register_topic(self, topic: str, brokers: list[str], queues: int) -> None:
        self.quick.register_topic(topic, [(name, QueueNumbers(queues, 1, 6, 0)) for name in brokers])
        self.plain.register_topic(topic, [(name, (queues, 1, 6, 0)) for name in brokers])

    @rule(
        setting=st.sampled_from(
            [
                "support_acting_master", "order_message_enable", "delete_topic_with_broker_registration",
                "notify_min_broker_id_changed",
            ]
        ),
        value=st.booleans(),
    )  # fmt: skip
    def change_setting(self, setting: str, value: bool) -> None:
        setattr(self.plain, setting, value)
        self.quick.reconfigure(
            NameServerConfig(
                support_acting_master=self.plain.support_acting_master,
                order_message_enable=self.plain.order_message_enable,
                delete_topic_with_broker_registration=self.plain.delete_topic_with_broker_registration,
                notify_min_broker_id_changed=self.plain.notify_min_broker_id_changed,
            )
        )

    @rule(topic=topics, order=st.sampled_from([None, "a:1", "a:2"]))
    def change_order(self, topic: str, order: str | None) -> None:
        self.plain.order.pop(topic, None)
        if order is not None:
            self.plain.order[topic] = order
        self.quick.forget_answers()

    @invariant()
    def both_say_the_same(self) -> None:
        assert sorted(self.quick.topics()) == sorted(self.plain.topics)
        for topic in TOPICS:
            expected = self.plain.route(topic)
            for _ in range(2):
                answer = self.quick.answer(topic.encode())
                assert (None if answer is None else _sorted(json.loads(answer))) == expected
            assert self.quick.answers.get(topic.encode()) == answer
            route = self.quick.route(topic)
            assert (None if route is None else _sorted(json.loads(route.encode_standard()))) == expected
            if route is not None:
                self._zone(route)
        info = self.quick.cluster_info()
        assert {cluster: set(known) for cluster, known in info.cluster_addr_table.items()} == self.plain.clusters
        assert {
            name: (data.cluster, data.enable_acting_master, data.zone_name, data.broker_addrs)
            for name, data in info.broker_addr_table.items()
        } == {
            name: (broker.cluster, broker.acting, broker.zone, broker.addresses)
            for name, broker in self.plain.brokers.items()
        }
        for cluster in ("c", "d", "none"):
            served = self.plain.clusters.get(cluster, set())
            assert set(self.quick.topics_of_cluster(cluster)) == {
                topic for topic, queues in self.plain.topics.items() if served & queues.keys()
            }

    @staticmethod
    def _zone(route: TopicRouteData) -> None:
        kept = filter_by_zone(route, "Z")
        names = {data.broker_name for data in route.broker_datas if data.zone_name == "z" or 0 not in data.broker_addrs}
        assert {data.broker_name for data in kept.broker_datas} == names
        assert {queues.broker_name for queues in kept.queue_datas} == names

    @invariant()
    def nothing_is_kept_of_those_who_left(self) -> None:
        assert self.quick._live.by_key.keys() == self.plain.live.keys()
        for key, live in self.quick._live.by_key.items():
            other = self.plain.live[key]
            version = live.data_version
            assert (version.state_version, version.timestamp, version.counter) == other.version
            assert (live.last_update, live.timeout, live.connection) == (other.seen, other.timeout, other.connection)
        by_connection = [key for keys in self.quick._live.by_connection.values() for key in keys]
        assert sorted(by_connection) == sorted(self.plain.live)
        assert self.quick._filter_servers == self.plain.filters
        assert self.quick._mappings == self.plain.mappings
        assert self.quick.answers.keys() == {topic.encode() for topic in self.plain.topics}


def _sorted(route: dict[str, Any]) -> dict[str, Any]:
    for each in ("queueDatas", "brokerDatas"):
        route[each].sort(key=lambda data: data["brokerName"])
    return route


def _plain_address(broker: BrokerAddress) -> tuple[str, str, str, int]:
    return broker.cluster, broker.broker_name, broker.address, broker.broker_id


def _plain_news(news: MinBrokerIdChange) -> tuple[Any, ...]:
    return (
        news.broker_name, news.broker_id, news.address, news.offline_address, news.ha_address, sorted(news.targets),
    )  # fmt: skip


def _body(registered: RegisteredTopics) -> bytes:
    table = {
        topic: TopicConfig(topic, numbers.read, numbers.write, numbers.perm, None, numbers.sys_flag)
        for topic, numbers in registered.topics.items()
    }
    wrapper = TopicConfigAndMappingSerializeWrapper(table, registered.data_version)
    wrapper.topic_queue_mapping_info_map = dict(registered.mappings)
    document = json.loads(RegisterBrokerBody(wrapper, registered.filter_servers or []).encode())
    return json.dumps({**document, "filterServerList": registered.filter_servers}).encode()


def _plain_result(result: RegisterResult | None) -> tuple[Any, ...] | None:
    if result is None:
        return None
    news = None if result.change is None else _plain_news(result.change)
    return result.ha_address, result.master_address, news


Tables.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestTables = Tables.TestCase
