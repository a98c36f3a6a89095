"""Routes as clients use them."""

from __future__ import annotations

import pytest

from rocketcore.client.route_table import MAX_QUEUES, RouteTable, inherit_route, topic_route
from rocketcore.errors import DecodeError, RouteNotFound
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.route import BrokerData, QueueData, TopicRouteData


def queue_data(broker: str, read: int, write: int, perm: int = 6) -> QueueData:
    return QueueData(broker_name=broker, read_queue_nums=read, write_queue_nums=write, perm=perm)


def broker_data(name: str, addresses: dict[int, str]) -> BrokerData:
    return BrokerData(cluster="c", broker_name=name, broker_addrs=addresses)


def queues(topic: str, broker: str, count: int) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, broker, queue_id) for queue_id in range(count))


ROUTE = TopicRouteData(
    queue_datas=[queue_data("b", 3, 2), queue_data("a", 1, 4), queue_data("c", 2, 2), queue_data("d", 2, 2, perm=4)],
    broker_datas=[
        broker_data("a", {0: "a0:1", 1: "a1:1"}),
        broker_data("b", {0: "b0:1"}),
        broker_data("c", {1: "c1:1"}),
        broker_data("d", {0: "d0:1"}),
    ],
)


def test_publish_needs_a_master_and_the_write_bit_subscribe_the_read_bit() -> None:
    route = topic_route("T", ROUTE)
    assert route.publish == queues("T", "a", 4) + queues("T", "b", 2)
    assert route.subscribe == queues("T", "a", 1) + queues("T", "b", 3) + queues("T", "c", 2) + queues("T", "d", 2)
    assert not route.ordered


@pytest.mark.parametrize(
    "data",
    [
        TopicRouteData([queue_data("a", 2**31 - 1, 1)], [broker_data("a", {0: "a0:1"})]),
        TopicRouteData([queue_data("a", 1, 2**31 - 1)], [broker_data("a", {0: "a0:1"})]),
        TopicRouteData(order_topic_conf="a:999999999"),
        TopicRouteData(order_topic_conf="a:1;" * (MAX_QUEUES + 1)),
        TopicRouteData([queue_data(f"a{i}", 65_536, 0) for i in range(5)]),
    ],
    ids=["read", "write", "order", "orders", "brokers"],
)
def test_more_queues_than_a_client_can_hold_are_refused_before_they_are_made(data: TopicRouteData) -> None:
    with pytest.raises(DecodeError, match=r"route of topic 'T': \d+ queues, more than 262144"):
        topic_route("T", data)


def test_a_negative_number_of_queues_is_none() -> None:
    data = TopicRouteData([queue_data("a", -5, -(2**31)), queue_data("b", 2, 2)], [broker_data("b", {0: "b0:1"})])
    route = topic_route("T", data)
    assert route.publish == route.subscribe == queues("T", "b", 2)


def test_order_topic_conf_fixes_the_queues() -> None:
    data = TopicRouteData(order_topic_conf="b:2;a:1", queue_datas=ROUTE.queue_datas, broker_datas=ROUTE.broker_datas)
    route = topic_route("T", data)
    assert route.publish == (*queues("T", "b", 2), *queues("T", "a", 1))
    assert route.ordered


@pytest.mark.parametrize("conf", ["a", "a:", ":4", "a:four", "a:-1", "b:2;a", "a:1_0", "a:1.5", "a:9999999999"])
def test_an_order_that_does_not_parse_changes_nothing(conf: str) -> None:
    table = RouteTable()
    table.update("T", ROUTE)
    known = table.find("T")
    moved = [broker_data("a", {0: "elsewhere:1"})]
    with pytest.raises(DecodeError, match=r"orderTopicConf of topic 'T': '.*' is not broker:number"):
        table.update("T", TopicRouteData(order_topic_conf=conf, queue_datas=ROUTE.queue_datas, broker_datas=moved))
    assert table.find("T") is known
    assert table.publish_address("a") == "a0:1"
    assert not table.update("T", ROUTE)


def test_a_topic_to_be_created_gets_at_most_the_queues_wanted() -> None:
    inherited = inherit_route(TopicRouteData(queue_datas=[queue_data("a", 8, 8, 7), queue_data("b", 2, 8, 7)]), 4)
    assert [(each.read_queue_nums, each.write_queue_nums) for each in inherited.queue_datas] == [(4, 4), (2, 2)]


def test_only_a_changed_route_replaces_the_known_one() -> None:
    table = RouteTable()
    assert table.update("T", ROUTE)
    known = table.find("T")
    shuffled = TopicRouteData(queue_datas=ROUTE.queue_datas[::-1], broker_datas=ROUTE.broker_datas[::-1])
    assert not table.update("T", shuffled)
    assert table.find("T") is known
    moved = TopicRouteData(queue_datas=ROUTE.queue_datas, broker_datas=[broker_data("a", {0: "elsewhere:1"})])
    assert table.update("T", moved)
    assert table.publish_address("a") == "elsewhere:1"


def test_addresses_by_role() -> None:
    table = RouteTable()
    table.update("T", ROUTE)
    assert table.publish_address("a") == "a0:1"
    with pytest.raises(RouteNotFound, match="'c'"):
        table.publish_address("c")
    assert table.subscribe_address("a", 1) == ("a1:1", 1)
    assert table.subscribe_address("b", 1) == ("b0:1", 0)
    assert table.subscribe_address("c") == ("c1:1", 1)
    with pytest.raises(RouteNotFound):
        table.subscribe_address("nobody")
    assert sorted(table.addresses(masters_only=True)) == ["a0:1", "b0:1", "d0:1"]
    assert len(table.addresses(masters_only=False)) == 5


def test_a_broker_that_no_route_names_is_forgotten() -> None:
    table = RouteTable()
    table.update("T", ROUTE)
    table.update("T", TopicRouteData(queue_datas=[queue_data("a", 1, 1)], broker_datas=[broker_data("a", {0: "a0:1"})]))
    assert sorted(table.drop_unnamed_brokers()) == ["b", "c", "d"]
    assert table.addresses(masters_only=False) == ["a0:1"]


def test_any_address_serves_the_topic() -> None:
    table = RouteTable()
    table.update("T", ROUTE)
    assert set(table.addresses_of("T")) == {"a0:1", "b0:1", "c1:1", "d0:1"}
    with pytest.raises(RouteNotFound, match="'U'"):
        table.addresses_of("U")
