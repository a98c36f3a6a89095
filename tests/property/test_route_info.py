"""The route tables with their short cuts (unchanged registrations and topics, cached answers) against those without."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rocketcore.codes import Version
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.registration import QueueNumbers, RegisteredTopics, read_registration
from rocketcore.nameserver.route_info import BrokerAddress, BrokerRegistration, RouteInfoManager
from rocketcore.protocol.bodies import (
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from rocketcore.service import ManualClock

TOPICS = ("T", "U", "V")
names = st.sampled_from(["a", "b"])
ids = st.sampled_from([0, 1, 2])
addresses = st.sampled_from(["h:1", "h:2", "h:3"])
clusters = st.sampled_from(["c", "d"])


class Connection:
    def close(self) -> None:
        pass


class Tables(RuleBasedStateMachine):
    """Every rule is applied to both; nothing that can be asked may differ."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        config = NameServerConfig(support_acting_master=True, notify_min_broker_id_changed=True)
        self.quick = RouteInfoManager(config, self.clock)
        self.plain = RouteInfoManager(config, self.clock)
        self.sent: list[tuple[BrokerRegistration, RegisteredTopics]] = []

    @rule(
        cluster=clusters, name=names, broker_id=ids, address=addresses, zone=st.sampled_from([None, "z"]),
        acting=st.sampled_from([None, False, True]), timeout=st.sampled_from([None, 5000]),
        topics=st.sets(st.sampled_from(TOPICS)), version=st.integers(0, 2), state=st.integers(0, 1),
        perm=st.sampled_from([4, 6]),
    )  # fmt: skip
    def register(
        self, cluster: str, name: str, broker_id: int, address: str, zone: str | None, acting: bool | None,
        timeout: int | None, topics: set[str], version: int, state: int, perm: int,
    ) -> None:  # fmt: skip
        broker = BrokerRegistration(
            cluster=cluster, broker_name=name, broker_id=broker_id, address=address, ha_address=f"{address}0",
            zone=zone, timeout_millis=timeout, enable_acting_master=acting,
        )  # fmt: skip
        registered = RegisteredTopics(
            DataVersion(state, 0, version), {topic: QueueNumbers(4, 4, perm, 0) for topic in sorted(topics)}
        )
        self.sent.append((broker, registered))
        self._send(broker, registered)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def register_again(self, data: st.DataObject) -> None:
        self._send(*data.draw(st.sampled_from(self.sent[-3:])))

    def _send(self, broker: BrokerRegistration, registered: RegisteredTopics) -> None:
        digest = hash((broker, repr(registered)))
        connection = Connection()
        result = self.quick.register_unchanged(broker, connection, digest)
        if result is None:
            read = read_registration(_body(registered), False, int(Version.V5_0_0), self.quick.known_topics(broker))
            result = self.quick.register_broker(broker, read, connection, digest)
        assert result == self.plain.register_broker(broker, registered, connection)

    @rule(cluster=clusters, name=names, broker_id=ids, address=addresses)
    def unregister(self, cluster: str, name: str, broker_id: int, address: str) -> None:
        gone = BrokerAddress(cluster, name, address, broker_id)
        assert self.quick.unregister_brokers([gone]) == self.plain.unregister_brokers([gone])

    @rule(seconds=st.sampled_from([1, 6, 130]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)
        silent = [broker for broker, _ in self.quick.silent()]
        assert silent == [broker for broker, _ in self.plain.silent()]
        assert self.quick.unregister_brokers(silent) == self.plain.unregister_brokers(silent)

    @rule(name=names, wipe=st.booleans())
    def change_permission(self, name: str, wipe: bool) -> None:
        for tables in (self.quick, self.plain):
            (tables.wipe_write_permission if wipe else tables.add_write_permission)(name)

    @rule(topic=st.sampled_from(TOPICS), cluster=st.sampled_from([None, "c", "d"]))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.quick.delete_topic(topic, cluster)
        self.plain.delete_topic(topic, cluster)

    @rule(topic=st.sampled_from(TOPICS), brokers=st.lists(names, max_size=2))
    def register_topic(self, topic: str, brokers: list[str]) -> None:
        for tables in (self.quick, self.plain):
            tables.register_topic(topic, [QueueData(name, 1, 1, 6, 0) for name in brokers])

    @invariant()
    def both_say_the_same(self) -> None:
        assert _everything(self.quick) == _everything(self.plain)
        for topic in TOPICS:
            route = self.plain.route(topic)
            assert self.quick.answer(topic.encode()) == (None if route is None else route.encode_standard())


def _body(registered: RegisteredTopics) -> bytes:
    table = {
        topic: TopicConfig(topic, numbers.read, numbers.write, numbers.perm, None, numbers.sys_flag)
        for topic, numbers in registered.topics.items()
    }
    return RegisterBrokerBody(TopicConfigAndMappingSerializeWrapper(table, registered.data_version)).encode()


def _everything(tables: RouteInfoManager) -> Any:
    return (
        tables.cluster_info(),
        {topic: tables.route(topic) for topic in TOPICS},
        sorted(tables.topics()),
        {key: live.data_version for key, live in tables._live.items()},
    )


Tables.TestCase.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
TestTables = Tables.TestCase
