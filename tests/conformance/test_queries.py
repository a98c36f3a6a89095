"""Cluster information, topic lists, permissions, deleted and registered topics, member groups."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.peer import FakeBroker, Peer, topic_config, unique

NewBroker = Callable[..., FakeBroker]

UNIT, UNIT_SUB = 1, 2


def topics(server: Peer, code: int, **fields: str) -> set[str]:
    listed = server.json(code, fields)["topicList"]
    assert len(listed) == len(set(listed))
    return set(listed)


def test_cluster_information(name_server: Peer, new_broker: NewBroker) -> None:
    master = new_broker().registered(unique("topic"), unique("other"), __ZONE_NAME="east")
    slave = new_broker(cluster=master.cluster, name=master.name, broker_id=1)
    slave.registered(unique("topic"), unique("other"), enableActingMaster="true")
    lone = new_broker(cluster=master.cluster).registered(unique("topic"), unique("other"))
    info = name_server.json(106)
    assert info["brokerAddrTable"][master.name] == {
        "brokerAddrs": {"0": master.at, "1": slave.at}, "brokerName": master.name, "cluster": master.cluster,
        "enableActingMaster": True,
    }, "the last registration says what holds for the name"  # fmt: skip
    assert info["brokerAddrTable"][lone.name]["enableActingMaster"] is False
    assert set(info["clusterAddrTable"][master.cluster]) == {master.name, lone.name}


def test_topic_lists(name_server: Peer, new_broker: NewBroker) -> None:
    plain, other = unique("plain"), unique("other")
    broker = new_broker().registered(plain, other)
    elsewhere = new_broker().registered(plain, unique("elsewhere"))
    assert topics(name_server, 206) >= {plain, other}
    assert topics(name_server, 224, cluster=broker.cluster) == {plain, other}
    assert plain in topics(name_server, 224, cluster=elsewhere.cluster)
    assert topics(name_server, 224, cluster=unique("nowhere")) == set()


def test_names_of_the_system(name_server: Peer, new_broker: NewBroker) -> None:
    """304: clusters and brokers, in no order that counts, and the address of some broker."""
    broker = new_broker().registered(unique("topic"), unique("other"))
    answer = name_server.json(304)
    assert {broker.cluster, broker.name} <= set(answer["topicList"])
    known = name_server.json(106)["brokerAddrTable"]
    assert answer["brokerAddr"] in {address for data in known.values() for address in data["brokerAddrs"].values()}


def test_a_broker_of_two_clusters_is_named_once(name_server: Peer, new_broker: NewBroker) -> None:
    topics = (unique("topic"), unique("other"))
    first = new_broker().registered(*topics)
    second = new_broker(name=first.name, at=first.at).registered(*topics)
    names = name_server.json(304)["topicList"]
    assert sorted(name for name in names if name in (first.cluster, second.cluster, first.name)) == sorted(
        [first.cluster, second.cluster, first.name]
    )


def test_unit_topics(name_server: Peer, new_broker: NewBroker) -> None:
    neither, unit, sub, both = (unique(name) for name in ("neither", "unit", "sub", "both"))
    flags = {neither: 0, unit: UNIT, sub: UNIT_SUB, both: UNIT | UNIT_SUB}
    new_broker().registered(*(topic_config(name, sys_flag=flag) for name, flag in flags.items()))
    mine = set(flags)
    assert topics(name_server, 311) & mine == {unit, both}
    assert topics(name_server, 312) & mine == {sub, both}
    assert topics(name_server, 313) & mine == {sub}


def test_a_topic_that_is_a_unit_on_one_broker_only(name_server: Peer, new_broker: NewBroker) -> None:
    """One broker speaks for a topic: ours takes the first by name, Apache the first of a hash table."""
    topic = unique("topic")
    unit = new_broker(name=unique("a")).registered(topic_config(topic, sys_flag=UNIT), unique("other"))
    assert topic in topics(name_server, 311)
    new_broker(cluster=unit.cluster, name=unique("b")).registered(topic_config(topic), unique("other"))
    if not name_server.apache:
        assert topic in topics(name_server, 311)


def test_a_missing_name_is_no_empty_one(name_server: Peer, new_broker: NewBroker) -> None:
    """What has an empty name is asked for by an empty field, and left alone where the field is missing."""
    topic, other = unique("topic"), unique("other")
    broker = new_broker()
    broker.cluster = broker.name = ""
    broker.registered(topic, topic_config(other, perm=4), topic_config("", perm=4))
    assert name_server.ask(327, {}).ext_fields == {"addTopicCount": "0"}
    assert name_server.ask(205, {}).ext_fields == {"wipeTopicCount": "0"}
    assert name_server.perms(topic) == {"": 6}
    assert topics(name_server, 224) == set()
    assert topics(name_server, 224, cluster="") == {topic, other, ""}
    assert name_server.ask(216, {}).code == 0
    assert name_server.ask(217, {}, json.dumps({"queueDatas": [queue_data("")]}).encode()).code == 0
    assert name_server.perms("") == {"": 4}
    assert name_server.ask(327, {"brokerName": ""}).ext_fields == {"addTopicCount": "3"}
    assert name_server.ask(216, {"topic": ""}).code == 0
    assert not name_server.has_route("")
    assert name_server.ask(217, {"topic": ""}, json.dumps({"queueDatas": [queue_data("")]}).encode()).code == 0
    assert name_server.has_route("")
    assert name_server.ask(217, {}, b"no json").code == 1
    broker.unregister()
    name_server.eventually(lambda: name_server.addresses("") == {})


@pytest.mark.parametrize(
    ("setting", "codes"), [("enableAllTopicList", (206,)), ("enableTopicList", (224, 311, 312, 313))], ids=str
)
def test_topic_lists_can_be_switched_off(name_server: Peer, setting: str, codes: tuple[int, ...]) -> None:
    with name_server.setting(**{setting: "false"}):
        for code in codes:
            answer = name_server.ask(code, {"cluster": "any"})
            assert (answer.code, answer.remark, answer.body) == (1, "disable", b"")
    for code in codes:
        assert name_server.ask(code, {"cluster": "any"}).code == 0


def test_write_permission_is_wiped_and_added(name_server: Peer, new_broker: NewBroker) -> None:
    writable, read_only = unique("writable"), unique("read-only")
    broker = new_broker()
    broker.registered(writable, topic_config(read_only, perm=4))
    other = new_broker(cluster=broker.cluster).registered(writable, unique("other"))
    answer = name_server.ask(205, {"brokerName": broker.name})
    assert (answer.code, answer.ext_fields) == (0, {"wipeTopicCount": "2"})
    assert name_server.perms(writable) == {broker.name: 4, other.name: 6}
    broker.registered(writable, topic_config(read_only, perm=4))
    assert name_server.perms(writable)[broker.name] == 4, "a registration that says nothing new changes nothing"
    answer = name_server.ask(327, {"brokerName": broker.name})
    assert (answer.code, answer.ext_fields) == (0, {"addTopicCount": "2"})
    assert name_server.perms(writable)[broker.name] == 6
    assert name_server.perms(read_only) == {broker.name: 6}, "whatever it was before"
    name_server.ask(205, {"brokerName": broker.name})
    broker.registered(writable, topic_config(read_only, perm=4), counter=2)
    assert name_server.perms(writable)[broker.name] == 6, "news of the broker's topics overrule it"
    nobody = {"brokerName": unique("nobody")}
    assert name_server.ask(205, nobody).ext_fields == {"wipeTopicCount": "0"}
    assert name_server.ask(327, nobody).ext_fields == {"addTopicCount": "0"}


def test_a_deleted_topic_returns_with_the_next_registration(name_server: Peer, new_broker: NewBroker) -> None:
    topic, other = unique("topic"), unique("other")
    broker = new_broker().registered(topic, other)
    assert name_server.ask(216, {"topic": topic}).code == 0
    assert not name_server.has_route(topic)
    assert name_server.has_route(other)
    assert topic not in topics(name_server, 206)
    broker.registered(topic, other)
    assert name_server.has_route(topic), "also where the data version is the same"
    assert name_server.ask(216, {"topic": unique("nothing")}).code == 0


def test_a_topic_is_deleted_on_one_cluster(name_server: Peer, new_broker: NewBroker) -> None:
    topic = unique("topic")
    here = new_broker().registered(topic, unique("other"))
    there = new_broker().registered(topic, unique("other"))
    assert name_server.ask(216, {"topic": topic, "clusterName": unique("nowhere")}).code == 0
    assert name_server.perms(topic).keys() == {here.name, there.name}
    assert name_server.ask(216, {"topic": topic, "clusterName": here.cluster}).code == 0
    assert name_server.perms(topic).keys() == {there.name}
    assert name_server.ask(216, {"topic": topic, "clusterName": there.cluster}).code == 0
    assert not name_server.has_route(topic)
    new_broker().registered(topic, unique("other"))
    assert name_server.ask(216, {"topic": topic, "clusterName": ""}).code == 0
    assert not name_server.has_route(topic), "an empty name is none"


def queue_data(broker: str, queues: int = 2) -> dict[str, Any]:
    return {"brokerName": broker, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6, "topicSysFlag": 0}


def test_a_registered_topic(name_server: Peer, new_broker: NewBroker) -> None:
    """217: entries up to the first one whose broker is unknown, which keeps a new topic out altogether."""
    first = new_broker().registered(unique("topic"), unique("other"))
    second = new_broker().registered(unique("topic"), unique("other"))
    nobody = unique("nobody")

    def register(topic: str, *queues: dict[str, Any]) -> None:
        body = json.dumps({"queueDatas": queues, "brokerDatas": []}).encode()
        assert name_server.ask(217, {"topic": topic}, body).code == 0

    topic = unique("made")
    register(topic, queue_data(first.name), queue_data(nobody), queue_data(second.name))
    assert not name_server.has_route(topic)
    register(topic, queue_data(first.name))
    assert name_server.perms(topic).keys() == {first.name}
    register(topic, queue_data(first.name, 5), queue_data(nobody), queue_data(second.name))
    [queues] = name_server.json(105, {"topic": topic})["queueDatas"]
    assert queues == queue_data(first.name, 5), "for a topic that is known the entries before it stay"
    register(topic, queue_data(second.name))
    assert name_server.perms(topic).keys() == {first.name, second.name}
    empty = unique("empty")
    for body in (b"", b"{}", b'{"queueDatas":[]}', b'{"queueDatas":null}'):
        assert name_server.ask(217, {"topic": empty}, body).code == 0
    assert not name_server.has_route(empty)
    assert name_server.ask(217, {"topic": empty}, b"no json").code == 1


def test_a_member_group(name_server: Peer, new_broker: NewBroker) -> None:
    broker = new_broker().registered(unique("topic"), unique("other"))
    slave = new_broker(cluster=broker.cluster, name=broker.name, broker_id=2).registered(unique("topic"), "other")
    answer = name_server.ask(901, {"clusterName": broker.cluster, "brokerName": broker.name})
    assert (answer.code, answer.remark) == (0, "not set any response code")
    assert name_server.json(901, {"clusterName": broker.cluster, "brokerName": broker.name}) == {
        "brokerMemberGroup": {
            "brokerAddrs": {"0": broker.at, "2": slave.at}, "brokerName": broker.name, "cluster": broker.cluster,
        }
    }  # fmt: skip
    nobody = {"clusterName": "c", "brokerName": unique("nobody")}
    assert name_server.json(901, nobody) == {
        "brokerMemberGroup": {"brokerAddrs": {}, "brokerName": nobody["brokerName"], "cluster": "c"}
    }
