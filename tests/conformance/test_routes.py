"""GET_ROUTEINFO_BY_TOPIC (105): the one question that everybody asks."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from rocketcore.codes import SerializeType, Version
from tests.conformance.peer import NO_TOPIC, FakeBroker, Peer, read_json, topic_config, unique

NewBroker = Callable[..., FakeBroker]


@pytest.mark.parametrize("kind", list(SerializeType))
def test_an_unknown_topic(name_server: Peer, kind: SerializeType) -> None:
    topic = unique("nothing")
    answer = name_server.ask(105, {"topic": topic}, kind=kind)
    assert (answer.code, answer.remark, answer.body) == (17, NO_TOPIC.format(topic), b"")
    assert not answer.ext_fields


@pytest.mark.parametrize("topic", ["", " ", "with blank", "ünïcödé", "日本", "🚀", 'quote"', "back\\slash", "%RETRY%g"])
def test_any_text_that_can_be_shown_is_a_name(name_server: Peer, new_broker: NewBroker, topic: str) -> None:
    """A name server does not judge names: brokers do."""
    name = topic + unique("")
    answer = name_server.ask(105, {"topic": name})
    assert (answer.code, answer.remark) == (17, NO_TOPIC.format(name))
    broker = new_broker().registered(name, unique("other"))
    for kind in SerializeType:
        answer = name_server.ask(105, {"topic": name}, kind=kind)
        assert json.loads(answer.body)["queueDatas"][0]["brokerName"] == broker.name
    assert name in name_server.json(206)["topicList"]


CONTROLS = ["a\nb", "a\x1b[2J", "a\x9b", "a\u202eb"]


@pytest.mark.parametrize("topic", CONTROLS)
def test_a_topic_with_control_characters(name_server: Peer, new_broker: NewBroker, topic: str) -> None:
    """Apache hands it to everybody."""
    answer = new_broker().register(topic + unique(""), unique("other"))
    if name_server.apache:
        assert answer.code == 0
    else:
        assert answer.code == 1
        assert answer.remark is not None
        assert answer.remark.endswith("holds a control character")
        assert answer.remark.isprintable()


@pytest.mark.parametrize("name", CONTROLS)
@pytest.mark.parametrize("field", ["clusterName", "brokerName", "haServerAddr", "brokerAddr"])
def test_a_broker_with_control_characters(name_server: Peer, new_broker: NewBroker, field: str, name: str) -> None:
    """To Apache it is a name like any other, which also makes lines in its log."""
    topics = (unique("topic"), unique("other"))
    answer = new_broker().register(*topics, **{field: name + unique(":")})  # type: ignore[arg-type]
    assert answer.code == (0 if name_server.apache else 1)
    assert name_server.has_route(topics[0]) == name_server.apache


@pytest.mark.parametrize("address", ["nobody", ":1", "a:70000", "a:b", "a b:1", "../etc:1", "[::1:1"])
def test_a_broker_at_no_address(name_server: Peer, new_broker: NewBroker, address: str) -> None:
    """Clients would be sent there."""
    answer = new_broker().register(unique("topic"), unique("other"), brokerAddr=address)
    assert answer.code == (0 if name_server.apache else 1)
    assert name_server.apache or (answer.remark or "").endswith(f"brokerAddr '{address}' is not host:port")


@pytest.mark.parametrize("host", ["10.1.1.1", "broker-a.example_net", "[2001:db8::1]", "[fe80::1%eth0]", "fe80::1"])
def test_a_broker_at_an_address(name_server: Peer, new_broker: NewBroker, host: str) -> None:
    topics = (unique("topic"), unique("other"))
    broker = new_broker(at=f"{host}:1")
    broker.registered(*topics)
    assert name_server.addresses(broker.name) == {"0": broker.at}


def test_a_topic_on_several_brokers(name_server: Peer, new_broker: NewBroker) -> None:
    topic = unique("topic")
    cluster = unique("cluster")
    brokers = [
        new_broker(cluster=cluster).registered(topic_config(topic, queues=count), unique("other"))
        for count in (1, 2, 3)
    ]
    new_broker(cluster=cluster, name=brokers[0].name, broker_id=1).registered(topic, unique("other"))
    route = name_server.json(105, {"topic": topic})
    assert {data["brokerName"]: data["writeQueueNums"] for data in route["queueDatas"]} == {
        broker.name: count for count, broker in enumerate(brokers, 1)
    }
    addresses = {data["brokerName"]: data["brokerAddrs"] for data in route["brokerDatas"]}
    assert addresses.keys() == {broker.name for broker in brokers}
    assert addresses[brokers[0].name].keys() == {"0", "1"}


@pytest.mark.parametrize(
    ("version", "fields"),
    [(Version.V4_9_4, {}), (Version.V5_5_0, {}), (Version.V3_4_9, {"acceptStandardJsonOnly": "true"})],
    ids=str,
)
def test_standard_json_for_those_who_need_it(
    name_server: Peer, new_broker: NewBroker, version: int, fields: dict[str, str]
) -> None:
    topic = unique("topic")
    broker = new_broker().registered(topic, unique("other"), __ZONE_NAME="zöne")
    answer = name_server.ask(105, {"topic": topic, **fields}, version=version)
    route = json.loads(answer.body)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": broker.at}
    assert route["brokerDatas"][0]["zoneName"] == "zöne"
    assert list(route) == sorted(route)


def test_callers_before_4_9_4_read_the_answer_too(name_server: Peer, new_broker: NewBroker) -> None:
    """Apache leaves integer keys without quotes for them; ours need not, since they read both."""
    topic = unique("topic")
    new_broker().registered(topic, unique("other"))
    answer = name_server.ask(105, {"topic": topic}, version=Version.V3_4_9)
    assert answer.code == 0
    assert (b'{0:"' in answer.body) == name_server.apache
    assert read_json(answer.body) == name_server.json(105, {"topic": topic})


def test_an_answer_follows_every_change(name_server: Peer, new_broker: NewBroker) -> None:
    topic = unique("topic")
    broker = new_broker().registered(topic, unique("other"))
    assert name_server.perms(topic) == {broker.name: 6}
    broker.registered(topic_config(topic, perm=4), unique("other"), counter=2)
    assert name_server.perms(topic) == {broker.name: 4}
    slave = new_broker(cluster=broker.cluster, name=broker.name, broker_id=1).registered(topic, unique("other"))
    [data] = name_server.json(105, {"topic": topic})["brokerDatas"]
    assert data["brokerAddrs"] == {"0": broker.at, "1": slave.at}
    slave.unregister()
    name_server.eventually(lambda: list(name_server.addresses(broker.name)) == ["0"])
    [data] = name_server.json(105, {"topic": topic})["brokerDatas"]
    assert data["brokerAddrs"] == {"0": broker.at}
    assert name_server.ask(216, {"topic": topic}).code == 0
    assert name_server.ask(105, {"topic": topic}).code == 17


def test_order_configuration(name_server: Peer, new_broker: NewBroker) -> None:
    """orderMessageEnable."""
    topic = unique("topic")
    new_broker().registered(topic, unique("other"))
    entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": topic}
    assert name_server.ask(100, {**entry, "value": "broker:4"}).code == 0
    assert "orderTopicConf" not in name_server.json(105, {"topic": topic})
    with name_server.setting(orderMessageEnable="true"):
        assert name_server.json(105, {"topic": topic})["orderTopicConf"] == "broker:4"
        assert name_server.ask(100, {**entry, "value": "broker:5"}).code == 0
        assert name_server.json(105, {"topic": topic})["orderTopicConf"] == "broker:5"
        assert name_server.ask(102, entry).code == 0
        assert "orderTopicConf" not in name_server.json(105, {"topic": topic})


def test_zones(name_server: Peer, new_broker: NewBroker) -> None:
    topic = unique("topic")
    east = new_broker().registered(topic, unique("other"), __ZONE_NAME="East", filter_servers=["10.0.0.1:1"])
    west = new_broker().registered(topic, unique("other"), __ZONE_NAME="West", filter_servers=["10.0.0.1:2"])
    spaced = new_broker().registered(topic, unique("other"), __ZONE_NAME=" east ")
    nowhere = new_broker().registered(topic, unique("other"))
    lone_slave = new_broker(broker_id=1)
    lone_slave.registered(topic, unique("other"), __ZONE_NAME="West", enableActingMaster="true")
    everywhere = {east.name, west.name, spaced.name, nowhere.name, lone_slave.name}

    def seen(**fields: str) -> set[str]:
        route = name_server.json(105, {"topic": topic, **fields})
        names = {data["brokerName"] for data in route["brokerDatas"]}
        assert {data["brokerName"] for data in route["queueDatas"]} == names
        at = {address for data in route["brokerDatas"] for address in data["brokerAddrs"].values()}
        assert route["filterServerTable"].keys() <= at
        return names

    for _ in range(2):
        assert seen(__ZONE_MODE="true", __ZONE_NAME="eAST") == {east.name, lone_slave.name}
        assert seen(__ZONE_MODE="true", __ZONE_NAME="south") == {lone_slave.name}
        assert seen(__ZONE_MODE="true", __ZONE_NAME=" east ") == {spaced.name, lone_slave.name}
    for fields in (
        {}, {"__ZONE_NAME": "east"}, {"__ZONE_MODE": "false", "__ZONE_NAME": "east"}, {"__ZONE_MODE": "true"},
        {"__ZONE_MODE": "true", "__ZONE_NAME": " "},
    ):  # fmt: skip
        assert seen(**fields) == everywhere
    answer = name_server.ask(105, {"topic": unique("none"), "__ZONE_MODE": "true", "__ZONE_NAME": "east"})
    assert answer.code == 17
