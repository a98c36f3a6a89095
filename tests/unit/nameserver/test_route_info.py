"""The registration rules of the name server, one test a rule (Java: RouteInfoManager)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rocketcore.codes import TopicSysFlag
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.registration import QueueNumbers, RegisteredTopics
from rocketcore.nameserver.route_info import (
    BrokerAddress,
    BrokerRegistration,
    MinBrokerIdChange,
    RegisterResult,
    RouteInfoManager,
    filter_by_zone,
)
from rocketcore.nameserver.topic_table import SHARED_MIN
from rocketcore.protocol.bodies.route import QueueData, TopicQueueMappingInfo
from rocketcore.protocol.bodies.topic import DataVersion
from rocketcore.service import ManualClock

NUMBERS = QueueNumbers(8, 8, 6, 0)


class Connection:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Table:
    """A route table and the requests that fill it."""

    def __init__(self, **settings: object) -> None:
        self.clock = ManualClock()
        self.routes = RouteInfoManager(NameServerConfig(**settings), self.clock)  # type: ignore[arg-type]

    def register(
        self,
        *topics: str,
        name: str = "a",
        broker_id: int = 0,
        address: str = "10.0.0.1:1",
        cluster: str = "c",
        version: DataVersion | None = None,
        numbers: QueueNumbers = NUMBERS,
        connection: Connection | None = None,
        digest: int | None = None,
        mappings: dict[str, TopicQueueMappingInfo] | None = None,
        filter_servers: list[str] | None = None,
        **header: Any,
    ) -> RegisterResult | None:
        broker = BrokerRegistration(
            cluster=cluster,
            broker_name=name,
            broker_id=broker_id,
            address=address,
            ha_address=f"{address}0",
            **header,
        )
        registered = RegisteredTopics(
            version or DataVersion(0, 1, 1), dict.fromkeys(topics, numbers), mappings or {}, filter_servers
        )
        self.last = broker
        return self.routes.register_broker(broker, registered, connection or Connection(), digest)

    def perm(self, topic: str, name: str = "a") -> int:
        route = self.routes.route(topic)
        assert route is not None
        return next(queues.perm for queues in route.queue_datas if queues.broker_name == name)

    def brokers(self, topic: str) -> dict[str, dict[int, str]]:
        route = self.routes.route(topic)
        return {} if route is None else {data.broker_name: data.broker_addrs for data in route.broker_datas}


def test_a_master_registers_its_topics() -> None:
    table = Table()
    assert table.register("T", "U") == RegisterResult()
    route = table.routes.route("T")
    assert route is not None
    assert route.queue_datas == [QueueData("a", 8, 8, 6, 0)]
    assert table.brokers("T") == {"a": {0: "10.0.0.1:1"}}
    assert table.routes.route("V") is None
    info = table.routes.cluster_info()
    assert info.cluster_addr_table == {"c": ["a"]}
    assert info.broker_addr_table["a"].broker_addrs == {0: "10.0.0.1:1"}


def test_one_topic_from_an_unknown_id_is_refused_but_from_a_known_one_taken() -> None:
    table = Table()
    assert table.register("T") is None
    assert table.brokers("T") == {}
    assert table.register("T", "U") is not None
    assert table.register("V", version=DataVersion(0, 1, 2)) is not None
    assert table.brokers("V") == {"a": {0: "10.0.0.1:1"}}
    assert table.brokers("T"), "a topic that a registration leaves out stays"


def test_a_slave_hears_of_its_master_and_adds_no_topic() -> None:
    table = Table()
    slave: dict[str, Any] = {"broker_id": 1, "address": "10.0.0.2:1"}
    assert table.register("T", "U", **slave) == RegisterResult()
    table.register("T", "U")
    assert table.register("T", "W", "X", **slave) == RegisterResult("10.0.0.1:10", "10.0.0.1:1")
    assert table.brokers("W") == {}
    assert table.brokers("T") == {"a": {0: "10.0.0.1:1", 1: "10.0.0.2:1"}}


def test_an_unchanged_version_keeps_what_is_there_and_restores_what_is_gone() -> None:
    table = Table()
    table.register("T", "U")
    table.routes.wipe_write_permission("a")
    table.routes.delete_topic("U")
    table.register("T", "U")
    assert table.perm("T") == 4, "same data version: the wiped permission stays"
    assert table.perm("U") == 6, "a topic without queues of this broker comes back"
    table.register("T", "U", version=DataVersion(0, 1, 2))
    assert table.perm("T") == 6


@pytest.mark.parametrize("newer", [DataVersion(1, 1, 1), DataVersion(0, 2, 1), DataVersion(0, 1, 2)])
def test_all_three_numbers_make_a_data_version(newer: DataVersion) -> None:
    table = Table()
    table.register("T", "U")
    assert table.routes.data_version("c", "10.0.0.1:1") == DataVersion(0, 1, 1) != newer
    table.register("T", "U", version=newer, numbers=QueueNumbers(4, 2, 6, 0))
    assert table.routes.route("T").queue_datas == [QueueData("a", 4, 2, 6, 0)]  # type: ignore[union-attr]


def test_an_address_has_one_id() -> None:
    table = Table()
    table.register("T", "U", broker_id=1)
    table.register("T", "U", broker_id=0)
    assert table.brokers("T") == {"a": {0: "10.0.0.1:1"}}


def test_an_older_state_does_not_take_an_id_from_a_newer_one() -> None:
    table = Table()
    table.register("T", "U", version=DataVersion(2, 1, 1))
    refused = table.register("T", "U", address="10.0.0.9:1", version=DataVersion(1, 9, 9))
    assert refused == RegisterResult(
        refusal="register broker failed, 10.0.0.1:1 holds id 0 of a, with a later state version"
    )
    assert table.brokers("T") == {"a": {0: "10.0.0.1:1"}}
    assert table.routes.data_version("c", "10.0.0.9:1") is None
    table.register("T", "U", address="10.0.0.9:1", version=DataVersion(2, 1, 1))
    assert table.brokers("T") == {"a": {0: "10.0.0.9:1"}}


def test_nobody_may_be_silent_for_more_than_ten_minutes() -> None:
    table = Table()
    table.register("T", "U", timeout_millis=2**63 - 1)
    assert not _silent_after(table, 599)
    assert [broker.address for broker, _ in _silent_after(table, 2)] == ["10.0.0.1:1"]


def test_two_clusters_share_a_broker_name() -> None:
    table = Table()
    table.register("T", "U", cluster="one")
    table.register("V", "W", cluster="two", address="10.0.0.2:1")
    assert table.brokers("T") == {"a": {0: "10.0.0.2:1"}}
    assert table.routes.cluster_info().cluster_addr_table == {"one": ["a"], "two": ["a"]}
    table.routes.unregister_brokers([BrokerAddress("two", "a", "10.0.0.2:1", 0)])
    assert table.brokers("T") == {}
    assert [broker.address for broker, _ in _silent_after(table, 121)] == ["10.0.0.1:1"]


def _silent_after(table: Table, seconds: float) -> list[tuple[BrokerAddress, object]]:
    table.clock.advance(seconds)
    return list(table.routes.silent())


def test_silence_of_two_minutes_or_of_the_promised_time_expires() -> None:
    table = Table()
    table.register("T", "U")
    table.register("T", "U", name="b", address="10.0.0.2:1", timeout_millis=10_000)
    assert _silent_after(table, 10) == []
    assert [broker.broker_name for broker, _ in _silent_after(table, 1)] == ["b"]
    table.routes.heartbeat("c", "10.0.0.2:1")
    table.clock.set_wall(0)
    assert _silent_after(table, 9.5) == [], "the wall clock expires nobody"
    table.routes.heartbeat("c", "10.0.0.2:1")
    assert [broker.broker_name for broker, _ in _silent_after(table, 100)] == ["a", "b"]


def test_a_question_for_the_data_version_is_a_sign_of_life() -> None:
    table = Table()
    table.register("T", "U")
    assert _silent_after(table, 100) == []
    assert table.routes.data_version("c", "10.0.0.1:1") is not None
    assert _silent_after(table, 100) == []
    assert len(_silent_after(table, 21)) == 1


def test_the_last_connection_of_a_broker_counts() -> None:
    table = Table()
    first, second = Connection(), Connection()
    table.register("T", "U", connection=first)
    table.register("T", "U", connection=second)
    table.register("T", "U", name="b", address="10.0.0.2:1", connection=second)
    assert table.routes.of_connection(first) == []
    assert [broker.broker_name for broker in table.routes.of_connection(second)] == ["a", "b"]
    table.routes.unregister_brokers(table.routes.of_connection(second))
    assert table.routes.of_connection(second) == []
    assert table.routes.topics() == []


def test_a_lost_master_leaves_its_slave_and_the_topic() -> None:
    table = Table()
    table.register("T", "U")
    table.register("T", "U", broker_id=1, address="10.0.0.2:1")
    table.routes.unregister_brokers([BrokerAddress("c", "a", "10.0.0.1:1", 0)])
    assert table.brokers("T") == {"a": {1: "10.0.0.2:1"}}
    assert table.perm("T") == 6
    table.routes.unregister_brokers([BrokerAddress("c", "a", "10.0.0.2:1", 1)])
    assert table.routes.route("T") is None
    assert table.routes.cluster_info().cluster_addr_table == {}


def test_an_acting_master_is_shown_read_only_in_a_copy() -> None:
    table = Table(support_acting_master=True)
    table.register("T", "U", enable_acting_master=True)
    slave: dict[str, Any] = {"broker_id": 2, "address": "10.0.0.2:1", "enable_acting_master": True}
    table.register("T", "U", **slave)
    table.routes.unregister_brokers([BrokerAddress("c", "a", "10.0.0.1:1", 0)])
    assert table.perm("T") == 4
    assert table.brokers("T") == {"a": {0: "10.0.0.2:1"}}
    assert table.routes.addresses("a") == {2: "10.0.0.2:1"}
    table.register("T", "V", version=DataVersion(0, 1, 2), **slave)
    assert table.perm("V") == 4, "topics of the smallest slave are taken, without the write permission"
    table.register("T", "U", enable_acting_master=True)
    assert table.perm("T") == 6


def test_news_of_the_smallest_id() -> None:
    table = Table(notify_min_broker_id_changed=True)
    table.register("T", "U", broker_id=1, address="b:1", enable_acting_master=True)
    table.register("T", "U", broker_id=2, address="c:1", enable_acting_master=True)
    result = table.register("T", "U", broker_id=0, address="a:1", enable_acting_master=True)
    assert result is not None
    assert result.change == MinBrokerIdChange("a", 0, "a:1", None, "a:10", ("b:1", "c:1"))
    changes = table.routes.unregister_brokers([BrokerAddress("c", "a", "a:1", 0)])
    assert changes == [MinBrokerIdChange("a", 1, "b:1", "a:1", "b:10", ("b:1", "c:1"))]
    assert table.routes.unregister_brokers([BrokerAddress("c", "a", "c:1", 2)]) == []


def test_permissions_are_wiped_and_added() -> None:
    table = Table()
    table.register("T", "U", numbers=QueueNumbers(8, 8, 7, 0))
    assert table.routes.wipe_write_permission("a") == 2
    assert table.perm("T") == 5
    assert table.routes.add_write_permission("a") == 2
    assert table.perm("U") == 6
    assert table.routes.wipe_write_permission("nobody") == 0


def test_a_topic_is_deleted_in_one_cluster_or_in_all() -> None:
    table = Table()
    table.register("T", "U", cluster="one")
    table.register("T", "U", cluster="two", name="b", address="10.0.0.2:1")
    table.routes.delete_topic("T", "two")
    assert list(table.brokers("T")) == ["a"]
    table.routes.delete_topic("T", "none")
    table.routes.delete_topic("U")
    assert table.routes.topics() == ["T"]
    assert table.routes.topics_of_cluster("one") == ["T"]
    assert table.routes.topics_of_cluster("two") == []


def test_a_full_registration_may_remove_what_it_does_not_name() -> None:
    table = Table(delete_topic_with_broker_registration=True)
    table.register("T", "U")
    table.register("T", "V", version=DataVersion(0, 1, 2))
    assert sorted(table.routes.topics()) == ["T", "V"]


@pytest.mark.parametrize("own", ["TBW102", "SELF_TEST_TOPIC", "rmq_sys_wheel_timer", "a", "c"])
@pytest.mark.parametrize("changed", [("V",), ("V", "W"), ("T",), ()])
def test_a_registration_without_a_topic_that_no_broker_deletes_is_no_full_one(
    own: str, changed: tuple[str, ...]
) -> None:
    table = Table(delete_topic_with_broker_registration=True)
    table.register("T", "U", own)
    table.register(*changed, version=DataVersion(0, 1, 2))
    assert set(table.routes.topics()) == {"T", "U", own, *changed}
    table.register("T", own, version=DataVersion(0, 1, 3))
    assert set(table.routes.topics()) == {"T", own}


def test_register_topic_stops_at_the_first_unknown_broker() -> None:
    table = Table()
    table.register("T", "U")
    queues = [("a", QueueNumbers(2, 2, 6, 0)), ("nobody", QueueNumbers(1, 1, 6, 0))]
    table.routes.register_topic("new", queues)
    assert table.routes.route("new") is None
    table.routes.register_topic("T", queues)
    assert table.routes.route("T").queue_datas == [QueueData("a", 2, 2, 6, 0)]  # type: ignore[union-attr]
    table.routes.register_topic("new", queues[:1])
    assert table.brokers("new") == {"a": {0: "10.0.0.1:1"}}


def test_lists_by_unit_flags_and_system_names() -> None:
    table = Table()
    assert table.routes.system_names() == ([], None)
    table.register("T", "U", numbers=QueueNumbers(1, 1, 6, TopicSysFlag.UNIT_SUB))
    table.register("V", "W", name="b", address="10.0.0.2:1", numbers=QueueNumbers(1, 1, 6, 3))
    unit, sub = TopicSysFlag.UNIT, TopicSysFlag.UNIT_SUB
    assert table.routes.topics_with_flags(unit, unit) == ["V", "W"]
    assert table.routes.topics_with_flags(unit | sub, sub) == ["T", "U"]
    assert table.routes.system_names() == (["c", "a", "b"], "10.0.0.1:1")


def test_filter_servers_follow_their_broker() -> None:
    table = Table()
    table.register("T", "U", filter_servers=["10.0.0.1:99"])
    assert table.routes.route("T").filter_server_table == {"10.0.0.1:1": ["10.0.0.1:99"]}  # type: ignore[union-attr]
    table.register("T", "U")
    assert table.routes.route("T").filter_server_table != {}, "nothing said: nothing changes"  # type: ignore[union-attr]
    table.register("T", "U", filter_servers=[])
    assert table.routes.route("T").filter_server_table == {}  # type: ignore[union-attr]


def test_static_topic_mappings_are_shown() -> None:
    table = Table()
    mapping = TopicQueueMappingInfo(topic="T", bname="a", total_queues=2)
    table.register("T", "U", mappings={"T": mapping})
    assert table.routes.route("T").topic_queue_mapping_by_broker == {"a": mapping}  # type: ignore[union-attr]


def test_answers_are_made_once_and_dropped_by_every_change() -> None:
    table = Table()
    table.register("T", "U")
    answer = table.routes.answer(b"T")
    assert answer is not None
    assert table.routes.answers.get(b"T") is answer is table.routes.answer(b"T")
    assert json.loads(answer)["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:1"}
    assert table.routes.answer(b"nothing") is None
    changes = [
        lambda: table.routes.wipe_write_permission("a"),
        lambda: table.register("T", "U", name="b", address="10.0.0.2:1"),
        lambda: table.register("T", "U", version=DataVersion(0, 1, 2), numbers=QueueNumbers(3, 3, 6, 0)),
        lambda: table.register("T", "U", zone="z"),
        lambda: table.register("T", "U", filter_servers=["f:1"]),
        lambda: table.routes.register_topic("T", [("a", QueueNumbers(1, 1, 6, 0))]),
        lambda: table.routes.unregister_brokers([BrokerAddress("c", "b", "10.0.0.2:1", 0)]),
        lambda: table.routes.delete_topic("T"),
    ]
    for number, change in enumerate(changes):
        before = table.routes.answer(b"T")
        change()
        assert table.routes.answer(b"T") != before, f"change {number}"


def test_the_same_bytes_again_only_renew() -> None:
    table = Table()
    connection = Connection()
    table.register("T", "U", digest=7)
    answer = table.routes.answer(b"T")
    table.clock.advance(100)
    assert table.routes.register_unchanged(table.last, connection, 7) == RegisterResult()
    assert table.routes.answer(b"T") is answer
    assert table.routes.of_connection(connection) == [BrokerAddress("c", "a", "10.0.0.1:1", 0)]
    assert _silent_after(table, 100) == []
    assert table.routes.register_unchanged(table.last, connection, 8) is None, "other bytes"
    assert table.routes.register_unchanged(table.last._replace(zone="z"), connection, 7) is None


@pytest.mark.parametrize(
    "touch",
    [
        lambda routes: routes.delete_topic("T"),
        lambda routes: routes.register_topic("T", [("a", QueueNumbers(1, 1, 6, 0))]),
        lambda routes: routes.unregister_brokers([BrokerAddress("c", "a", "10.0.0.1:1", 0)]),
    ],
)
def test_a_registration_is_read_again_once_others_touched_its_topics(touch: object) -> None:
    table = Table()
    table.register("T", "U", digest=7)
    touch(table.routes)  # type: ignore[operator]
    assert table.routes.register_unchanged(table.last, Connection(), 7) is None


@pytest.mark.parametrize("leaves", ["it is unregistered", "another takes its place"])
def test_a_registration_is_read_again_once_its_address_had_left(leaves: str) -> None:
    """Also where the address returned by a registration in another cluster, which says nothing of these topics."""
    table = Table()
    table.register("T", "U", cluster="one", digest=7)
    before = table.last
    if leaves == "it is unregistered":
        table.register("V", "W", cluster="two")
        table.routes.unregister_brokers([BrokerAddress("two", "a", "10.0.0.1:1", 0)])
    else:
        table.register("T", "U", cluster="one", address="10.0.0.2:1")
        table.routes.delete_topic("T")
    table.register("V", "W", cluster="two")
    assert table.brokers("T") == {}
    assert table.routes.register_unchanged(before, Connection(), 7) is None
    table.register("T", "U", cluster="one")
    assert table.brokers("T") == {"a": {0: "10.0.0.1:1"}}


def test_a_renamed_broker_leaves_under_both_names() -> None:
    """Its old connection was never seen to end; the new one is the only one that can tell that the address is gone."""
    table = Table()
    table.register("T", "U", name="old")
    connection = Connection()
    table.register("T", "U", name="new", connection=connection)
    assert _silent_after(table, 121) == table.routes.silent()
    assert [broker.broker_name for broker, _ in table.routes.silent()] == ["old", "new"]
    table.routes.unregister_brokers(table.routes.of_connection(connection))
    assert table.routes.topics() == []
    assert table.routes.cluster_info().broker_addr_table == {}


def test_queue_mappings_go_with_their_broker() -> None:
    table = Table()
    for name in ("a", "b"):
        mappings = {"T": TopicQueueMappingInfo("T", bname=name), name: TopicQueueMappingInfo(name, bname=name)}
        table.register("T", name, name=name, address=f"{name}:1", mappings=mappings)
    table.routes.unregister_brokers([BrokerAddress("c", "b", "b:1", 0)])
    assert table.routes._mappings.keys() == {"T", "a"}
    shown = json.loads(table.routes.answer(b"T") or b"{}")["topicQueueMappingByBroker"]
    assert list(shown) == ["a"]
    table.register("T", "b", name="b", address="b:1", mappings={"T": TopicQueueMappingInfo("T", bname="b")})
    assert json.loads(table.routes.answer(b"T") or b"{}")["topicQueueMappingByBroker"].keys() == {"a", "b"}


def test_an_answer_is_kept_under_one_spelling_of_a_name() -> None:
    table = Table()
    table.register("T\ufffd", "U")
    asked = b"T\xff"  # not UTF-8: read as the same name
    before = table.routes.answer(asked)
    assert before is not None
    assert list(table.routes.answers) == ["T\ufffd".encode()]
    table.register("T\ufffd", "U", numbers=QueueNumbers(9, 8, 6, 0), version=DataVersion(0, 1, 99))
    assert table.routes.answer(asked) != before


def test_topics_with_equal_queues_share_their_answer() -> None:
    table = Table()
    table.register(*(f"T{i}" for i in range(100)))
    table.register(*(f"T{i}" for i in range(50)), name="b", address="b:1")
    answers = [table.routes.answer(f"T{i}".encode()) for i in range(100)]
    assert len({id(answer) for answer in answers}) == 2
    assert answers[0] != answers[99]


def test_an_answer_that_says_more_of_a_topic_is_its_own() -> None:
    table = Table()
    table.register("T", "U", mappings={"T": TopicQueueMappingInfo("T", bname="a")})
    answers = [json.loads(table.routes.answer(topic) or b"{}") for topic in (b"U", b"T", b"U")]
    assert ["topicQueueMappingByBroker" in answer for answer in answers] == [False, True, False]

    routes = RouteInfoManager(NameServerConfig(order_message_enable=True), ManualClock(), {"T": "a:8", "U": "a:4"}.get)
    ordered = Table()
    ordered.routes = routes
    ordered.register("T", "U")
    for topic, order in ((b"T", "a:8"), (b"U", "a:4")):
        assert json.loads(routes.answer(topic) or b"{}")["orderTopicConf"] == order


def test_an_acting_master_is_shown_but_not_in_the_topics_of_brokers() -> None:
    table = Table(support_acting_master=True)
    member = "rmq_sys_SYNC_BROKER_MEMBER_a"
    table.register("T", member, broker_id=1, enable_acting_master=True)
    shown = [json.loads(table.routes.answer(topic) or b"{}") for topic in (b"T", member.encode(), b"T")]
    assert [list(route["brokerDatas"][0]["brokerAddrs"]) for route in shown] == [["0"], ["1"], ["0"]]


def test_states_that_no_topic_is_in_any_more_are_forgotten() -> None:
    table = Table()
    for number in range(3 * SHARED_MIN):
        table.register("T", "U", numbers=QueueNumbers(number, 4, 6, 0), version=DataVersion(0, 1, number))
    assert len(table.routes._topics._shared) <= SHARED_MIN + 1
    route = table.routes.route("T")
    assert route is not None
    assert route.queue_datas[0].read_queue_nums == 3 * SHARED_MIN - 1


@pytest.mark.parametrize("leave", ["broker", "topics"])
def test_states_of_topics_that_left_are_forgotten(leave: str) -> None:
    table = Table()
    topics = [f"T{number}" for number in range(4 * SHARED_MIN)]
    table.register("T", "U")
    for number, topic in enumerate(topics):
        table.routes.register_topic(topic, [("a", QueueNumbers(number, 4, 6, 0))])
    if leave == "broker":
        table.routes.unregister_brokers([BrokerAddress("c", "a", "10.0.0.1:1", 0)])
    else:
        for topic in topics:
            table.routes.delete_topic(topic)
    assert len(table.routes._topics._shared) <= SHARED_MIN + 4


def test_zone_filter_keeps_the_zone_and_the_masterless() -> None:
    table = Table()
    table.register("T", "U", zone="East", filter_servers=["f:1"])
    table.register("T", "U", name="b", address="b:1", zone="west", filter_servers=["f:2"])
    table.register("T", "U", name="m", address="m:1", broker_id=1, enable_acting_master=True)
    route = table.routes.route("T")
    assert route is not None
    filtered = filter_by_zone(route, "EAST")
    assert [data.broker_name for data in filtered.broker_datas] == ["a", "m"]
    assert [queues.broker_name for queues in filtered.queue_datas] == ["a", "m"]
    assert list(filtered.filter_server_table) == ["10.0.0.1:1"]


def test_two_brokers_of_one_name_are_told_apart_from_one_that_moved(caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    first, second = Connection(), Connection()
    table.register("T", "U", connection=first)
    result = table.register("T", "U", address="10.0.0.2:1", connection=second)
    assert result is not None
    assert result.rival == "10.0.0.1:1"
    result = table.register("T", "U", connection=first)
    assert result is not None
    assert result.rival == "10.0.0.2:1"
    told = [record.getMessage() for record in caplog.records if "two brokers have one name" in record.getMessage()]
    assert [text.partition("broker=")[2] for text in told] == [
        "a id=0 address=10.0.0.2:1 other=10.0.0.1:1",
        "a id=0 address=10.0.0.1:1 other=10.0.0.2:1",
    ]
    caplog.clear()
    moved = Table()
    moved.register("T", "U", connection=first)
    first.close()
    result = moved.register("T", "U", address="10.0.0.2:1", connection=second)
    assert result is not None
    assert not result.rival
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
