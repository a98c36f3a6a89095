"""REGISTER_BROKER (103): the shapes of its body, its checks, its answer, and the rules by which tables change."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable

import pytest

from rocketcore.codes import SerializeType, Version
from tests.conformance.peer import (
    FakeBroker,
    Peer,
    compressed_body,
    data_version,
    old_body,
    plain_body,
    topic_config,
    unique,
)

NewBroker = Callable[..., FakeBroker]


def table(*names: str) -> dict[str, dict[str, object]]:
    return {name: topic_config(name) for name in names}


@pytest.mark.parametrize("kind", list(SerializeType))
def test_what_a_broker_registers_is_the_route(name_server: Peer, new_broker: NewBroker, kind: SerializeType) -> None:
    topic, other = unique("topic"), unique("other")
    broker = new_broker()
    body = plain_body({topic: topic_config(topic, queues=3, perm=4), other: topic_config(other)}, data_version())
    answer = broker.ask(103, broker.header(body), body, kind=kind)
    assert (answer.code, answer.remark, answer.body) == (0, None, b"")
    assert not answer.ext_fields
    assert name_server.json(105, {"topic": topic}) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": broker.at}, "brokerName": broker.name, "cluster": broker.cluster,
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": broker.name, "perm": 4, "readQueueNums": 3, "topicSysFlag": 0, "writeQueueNums": 3}
        ],
    }  # fmt: skip


def test_brokers_before_3_0_11_send_the_table_alone(name_server: Peer, new_broker: NewBroker) -> None:
    topic = unique("topic")
    body = old_body(table(topic, unique("other")), data_version())
    assert new_broker().register(body=body, version=Version.V3_0_11 - 1).code == 0
    assert name_server.has_route(topic)


@pytest.mark.parametrize(
    ("version", "mappings"), [(Version.V4_9_4, None), (Version.V5_0_0, []), (Version.V5_5_0, [])], ids=str
)
def test_compressed_bodies(
    name_server: Peer, new_broker: NewBroker, version: int, mappings: list[dict[str, object]] | None
) -> None:
    topic = unique("topic")
    body = compressed_body(table(topic, unique("other")), data_version(7), mappings=mappings)
    broker = new_broker()
    assert broker.register(body=body, version=version, compressed="true").code == 0
    [queues] = name_server.json(105, {"topic": topic})["queueDatas"]
    assert (queues["readQueueNums"], queues["perm"]) == (8, 6)
    answer = broker.ask(322, broker.key(), json.dumps(data_version(7)).encode())
    assert answer.ext_fields == {"changed": "false"}


def test_a_compressed_body_of_5_0_without_its_mapping_section_is_refused(
    name_server: Peer, new_broker: NewBroker
) -> None:
    topic = unique("topic")
    body = compressed_body(table(topic, unique("other")), data_version())
    answer = new_broker().register(body=body, compressed="true")
    assert answer.code == 1
    assert "RemotingCommandException: Failed to decode RegisterBrokerBody" in (answer.remark or "")
    assert not name_server.has_route(topic)


@pytest.mark.parametrize("servers", [b"", b"garbage", b"null"])
def test_filter_servers_of_a_compressed_body_that_do_not_parse_are_none(
    name_server: Peer, new_broker: NewBroker, servers: bytes
) -> None:
    """No text, and null as in a plain body, say nothing of them."""
    topic = unique("topic")
    broker = new_broker().registered(topic, unique("other"), filter_servers=["10.0.0.1:1"])
    length = len(servers).to_bytes(4, "big")
    body = compressed_body(table(topic, unique("other")), data_version(2), mappings=[])
    odd = zlib.decompress(body)[:-10] + length + servers + bytes(4)
    assert broker.register(body=zlib.compress(odd), compressed="true").code == 0
    kept = name_server.json(105, {"topic": topic})["filterServerTable"]
    assert kept == ({broker.at: ["10.0.0.1:1"]} if servers in (b"", b"null") else {})


def test_attributes_of_a_compressed_body_that_do_not_parse_are_none(name_server: Peer, new_broker: NewBroker) -> None:
    topic, other = unique("topic"), unique("other")
    texts = [f"{topic} 1 1 6 SINGLE_TAG {{a b".encode(), f"{other} +1 1 6 SINGLE_TAG {{a b".encode()]
    body = b"".join(
        len(part).to_bytes(4, "big") + part if part else (2).to_bytes(4, "big") for part in (b"{}", b"", *texts, b"[]")
    )
    assert new_broker().register(body=zlib.compress(body + bytes(4)), compressed="true").code == 0
    assert name_server.has_route(topic)
    assert name_server.has_route(other)


@pytest.mark.parametrize("number", [1 << 31, 10**30])
def test_numbers_that_no_client_could_read_are_refused(name_server: Peer, new_broker: NewBroker, number: int) -> None:
    topic, other = unique("topic"), unique("other")
    broker = new_broker()
    answer = broker.register({**topic_config(topic), "perm": number}, other)
    assert answer.code == 1
    odd = {topic: {**topic_config(topic), "perm": number}, **table(other)}
    body = compressed_body(odd, data_version(), mappings=[])
    assert broker.register(body=body, compressed="true").code == 1
    assert name_server.addresses(broker.name) == {}
    broker.registered(topic, other)
    queues = {"brokerName": broker.name, "readQueueNums": 1, "writeQueueNums": 1, "perm": number}
    assert broker.ask(217, {"topic": topic}, json.dumps({"queueDatas": [queues]}).encode()).code == 1
    assert name_server.perms(topic) == {broker.name: 6}
    assert broker.ask(322, broker.key(), json.dumps(data_version(number << 33)).encode()).code == 1


def test_the_last_topic_under_a_key_counts(name_server: Peer, new_broker: NewBroker) -> None:
    first, last, other = (json.dumps(topic_config(unique(name))) for name in ("first", "last", "other"))
    names = [json.loads(config)["topicName"] for config in (first, last, other)]
    table = '{"key":' + first + ',"key":' + last + ',"other":' + other + "}"
    new_broker().registered(body=b'{"topicConfigSerializeWrapper":{"topicConfigTable":' + table.encode() + b"}}")
    assert [name_server.has_route(name) for name in names] == [False, True, True]


def test_queue_mappings_reach_the_route(name_server: Peer, new_broker: NewBroker) -> None:
    topic = unique("topic")
    broker = new_broker()
    mapping = {
        "topic": topic, "scope": "__global__", "totalQueues": 8, "bname": broker.name, "epoch": 1, "dirty": False,
        "currIdMap": {"0": 0},
    }  # fmt: skip
    body = compressed_body(table(topic, unique("other")), data_version(), mappings=[mapping])
    assert broker.register(body=body, compressed="true").code == 0
    found = name_server.json(105, {"topic": topic})["topicQueueMappingByBroker"]
    assert found[broker.name]["totalQueues"] == 8
    assert found[broker.name]["currIdMap"] == {"0": 0}


def test_queue_mappings_go_with_their_broker(name_server: Peer, new_broker: NewBroker) -> None:
    """Apache keeps them for good, and shows them with the topic of another broker."""
    topic, other = unique("topic"), unique("other")
    lost, stays = new_broker(), new_broker()
    for broker in (lost, stays):
        body = json.loads(plain_body(table(topic, other), data_version()))
        mapping = {"topic": topic, "bname": broker.name, "totalQueues": 8}
        body["topicConfigSerializeWrapper"]["topicQueueMappingInfoMap"] = {topic: mapping}
        broker.registered(body=json.dumps(body).encode())
    lost.unregister()
    name_server.eventually(lambda: name_server.addresses(lost.name) == {})
    shown = name_server.json(105, {"topic": topic})["topicQueueMappingByBroker"].keys()
    assert shown == ({stays.name, lost.name} if name_server.apache else {stays.name})


def test_the_checksum_is_of_the_body_as_received(name_server: Peer, new_broker: NewBroker) -> None:
    topic = unique("topic")
    body = plain_body(table(topic, unique("other")), data_version())
    broker = new_broker()
    answer = broker.register(body=body, bodyCrc32=str(zlib.crc32(body) & 0x7FFFFFFF ^ 1))
    assert (answer.code, answer.remark, answer.ext_fields) == (1, "crc32 not match", {})
    assert broker.name not in name_server.json(106)["brokerAddrTable"]
    assert broker.register(body=body, bodyCrc32="0").code == 0, "0 is not checked"
    compressed = compressed_body(table(topic, unique("other")), data_version(2), mappings=[])
    assert broker.register(body=compressed, compressed="true").code == 0
    assert broker.register(body=compressed, compressed="true", bodyCrc32="1").remark == "crc32 not match"


def test_no_body_is_an_empty_table(name_server: Peer, new_broker: NewBroker) -> None:
    broker = new_broker()
    assert broker.ask(103, broker.header()).code == 0
    assert name_server.addresses(broker.name) == {"0": broker.at}
    answer = broker.ask(322, broker.key(), json.dumps(data_version(0, timestamp=0)).encode())
    assert answer.ext_fields == {"changed": "false"}


def test_a_slave_hears_of_its_master(name_server: Peer, new_broker: NewBroker) -> None:
    topics = (unique("topic"), unique("other"))
    slave = new_broker(broker_id=1)
    assert not slave.register(*topics).ext_fields, "there is no master yet"
    master = new_broker(cluster=slave.cluster, name=slave.name)
    assert not master.register(*topics).ext_fields
    for _ in range(2):
        answer = slave.register(*topics)
        assert answer.ext_fields == {"masterAddr": master.at, "haServerAddr": master.ha}
    master.unregister()
    name_server.eventually(lambda: name_server.addresses(slave.name) == {"1": slave.at})
    assert not slave.register(*topics).ext_fields


def test_a_master_without_an_ha_address_gives_its_slaves_none(name_server: Peer, new_broker: NewBroker) -> None:
    topics = (unique("topic"), unique("other"))
    master = new_broker()
    body = plain_body(table(*topics), data_version())
    header = {name: value for name, value in master.header(body).items() if name != "haServerAddr"}
    assert master.ask(103, header, body).code == 0
    slave = new_broker(cluster=master.cluster, name=master.name, broker_id=1)
    assert slave.register(*topics).ext_fields == {"masterAddr": master.at}


def test_the_answer_carries_the_order_configuration(name_server: Peer, new_broker: NewBroker) -> None:
    topics = (unique("topic"), unique("other"))
    broker = new_broker()
    assert broker.register(*topics).body == b"" or name_server.ask(219, {"namespace": "ORDER_TOPIC_CONFIG"}).code == 0
    entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": topics[0]}
    assert name_server.ask(100, {**entry, "value": f"{broker.name}:8"}).code == 0
    assert json.loads(broker.register(*topics).body)["table"][topics[0]] == f"{broker.name}:8"
    with name_server.setting(returnOrderTopicConfigToBroker="false"):
        assert broker.register(*topics).body == b""
    assert name_server.ask(102, entry).code == 0
    assert topics[0] not in json.loads(broker.register(*topics).body)["table"]


def test_a_new_broker_with_one_topic_is_refused(name_server: Peer, new_broker: NewBroker) -> None:
    """5.x takes that for an increment that overtook the full table; the name itself stays known (rule 7)."""
    topic = unique("topic")
    broker = new_broker()
    answer = broker.register(topic)
    assert (answer.code, answer.remark, answer.ext_fields) == (1, "register broker failed", {})
    assert not name_server.has_route(topic)
    assert name_server.addresses(broker.name) == {}
    broker.registered(topic, unique("other"))
    increment = unique("increment")
    broker.registered(increment, counter=2)
    assert name_server.has_route(increment)
    assert name_server.has_route(topic), "what a registration does not name stays"


def test_a_slave_promoted_at_its_address_leaves_its_old_id(name_server: Peer, new_broker: NewBroker) -> None:
    """Rule 5: one address has one id, in either direction."""
    topics = (unique("topic"), unique("other"))
    slave = new_broker(broker_id=1).registered(*topics)
    promoted = new_broker(cluster=slave.cluster, name=slave.name, at=slave.at).registered(*topics, counter=2)
    assert name_server.addresses(slave.name) == {"0": slave.at}
    promoted.broker_id = 2
    promoted.registered(*topics, counter=3)
    assert name_server.addresses(slave.name) == {"2": slave.at}


def test_an_id_moves_to_a_new_address_unless_the_old_one_is_of_a_later_state(
    name_server: Peer, new_broker: NewBroker
) -> None:
    """Rule 6, from brokers under a controller: a deposed master does not take its place back. Ours says so to it."""
    topics = (unique("topic"), unique("other"))
    elected = new_broker().registered(*topics, state=5)
    deposed = new_broker(cluster=elected.cluster, name=elected.name)
    fresh = unique("fresh")
    answer = deposed.register(*topics, fresh, state=4, counter=9)
    if name_server.apache:
        assert (answer.code, answer.ext_fields or None) == (0, None)
    else:
        assert answer.code == 1
        assert answer.remark is not None
        assert answer.remark.endswith(f"{elected.at} holds id 0 of {elected.name}, with a later state version")
    assert name_server.addresses(elected.name) == {"0": elected.at}
    assert not name_server.has_route(fresh)
    version = json.dumps(data_version(9, state=4)).encode()
    assert deposed.ask(322, deposed.key(), version).ext_fields == {"changed": "true"}, "it is not among the living"
    deposed.registered(*topics, state=5)
    assert name_server.addresses(elected.name) == {"0": deposed.at}


def test_only_the_master_speaks_for_the_topics_of_a_4_x_broker(name_server: Peer, new_broker: NewBroker) -> None:
    topic, from_slave = unique("topic"), unique("slave")
    slave = new_broker(broker_id=1).registered(topic, from_slave)
    assert not name_server.has_route(from_slave)
    new_broker(cluster=slave.cluster, name=slave.name).registered(topic, unique("other"))
    slave.registered(topic, from_slave, counter=2)
    assert not name_server.has_route(from_slave)
    assert name_server.addresses(slave.name).keys() == {"0", "1"}


def test_the_smallest_slave_of_a_5_x_broker_speaks_where_there_is_no_master(
    name_server: Peer, new_broker: NewBroker
) -> None:
    """Rule 9; with acting masters its topics are read-only (rule c)."""
    topic, other = unique("topic"), unique("other")
    second = new_broker(broker_id=2).registered(topic, other, enableActingMaster="true")
    assert name_server.perms(topic) == {second.name: 4}
    late = unique("late")
    third = new_broker(cluster=second.cluster, name=second.name, broker_id=3)
    third.registered(late, other, counter=2, enableActingMaster="true")
    assert not name_server.has_route(late), "3 is not the smallest id"
    master = new_broker(cluster=second.cluster, name=second.name)
    master.registered(topic, other, counter=3, enableActingMaster="true")
    assert name_server.perms(topic) == {second.name: 6}


def test_without_acting_masters_a_slave_registers_writable_topics(name_server: Peer, new_broker: NewBroker) -> None:
    topic = unique("topic")
    slave = new_broker(broker_id=1).registered(topic, unique("other"), enableActingMaster="false")
    assert name_server.perms(topic) == {slave.name: 6}


def test_a_topic_changes_only_with_the_data_version(name_server: Peer, new_broker: NewBroker) -> None:
    """Rule b; all three numbers of the version count."""
    topic, other = unique("topic"), unique("other")
    broker = new_broker().registered(topic, other)

    def queues() -> int:
        [found] = name_server.json(105, {"topic": topic})["queueDatas"]
        return int(found["readQueueNums"])

    assert queues() == 8
    broker.registered(topic_config(topic, queues=4), other)
    assert queues() == 8, "the version is the same"
    for number, version in enumerate(
        (data_version(2), data_version(2, timestamp=9), data_version(2, timestamp=9, state=1)), start=1
    ):
        body = plain_body({topic: topic_config(topic, queues=number), **table(other)}, version)
        broker.registered(body=body)
        assert queues() == number
    fresh = unique("fresh")
    body = plain_body(table(topic, other, fresh), data_version(2, timestamp=9, state=1))
    broker.registered(body=body)
    assert name_server.has_route(fresh), "a topic this broker did not have is taken in any case"
    assert queues() == 3


def test_a_broker_name_in_two_clusters_is_one_broker(name_server: Peer, new_broker: NewBroker) -> None:
    """The table of addresses is by name alone; whoever relies on it gets the same here."""
    topics = (unique("topic"), unique("other"))
    first = new_broker().registered(*topics)
    second = new_broker(name=first.name, broker_id=1).registered(*topics)
    clusters = name_server.json(106)["clusterAddrTable"]
    assert clusters[first.cluster] == clusters[second.cluster] == [first.name]
    data = name_server.json(106)["brokerAddrTable"][first.name]
    assert data["brokerAddrs"] == {"0": first.at, "1": second.at}
    assert data["cluster"] == first.cluster


def test_filter_servers_come_change_and_go(name_server: Peer, new_broker: NewBroker) -> None:
    topics = (unique("topic"), unique("other"))
    broker = new_broker()

    def filters() -> dict[str, list[str]]:
        found = name_server.json(105, {"topic": topics[0]})["filterServerTable"]
        assert isinstance(found, dict)
        return found

    broker.registered(*topics, filter_servers=["10.0.0.1:1", "10.0.0.1:2"])
    assert filters() == {broker.at: ["10.0.0.1:1", "10.0.0.1:2"]}
    broker.registered(*topics, filter_servers=["10.0.0.1:3"])
    assert filters() == {broker.at: ["10.0.0.1:3"]}
    body = json.loads(plain_body(table(*topics), data_version()))
    del body["filterServerList"]
    broker.registered(body=json.dumps({**body, "filterServerList": None}).encode())
    absent = filters()
    broker.registered(*topics)
    assert filters() == {}
    assert absent in ({}, {broker.at: ["10.0.0.1:3"]})


def test_a_table_alone_says_nothing_of_filter_servers(name_server: Peer, new_broker: NewBroker) -> None:
    """The body of brokers before 3.0.11 has no place for them: those that are known stay."""
    topics = (unique("topic"), unique("other"))
    broker = new_broker().registered(*topics, filter_servers=["10.0.0.1:1"])
    compressed = compressed_body(table(*topics), data_version(2))
    for body, fields, code in (
        (old_body(table(*topics), data_version(2)), {}, 0), (b"", {}, 0), (compressed, {"compressed": "true"}, 1),
    ):  # fmt: skip
        assert broker.register(body=body, version=Version.V3_0_11 - 1, **fields).code == code  # type: ignore[arg-type]
        assert name_server.json(105, {"topic": topics[0]})["filterServerTable"] == {broker.at: ["10.0.0.1:1"]}


def test_filter_servers_of_an_address_in_two_clusters(name_server: Peer, new_broker: NewBroker) -> None:
    """To Apache the last broker of a hash table says what there is; ours shows what there is."""
    topics = (unique("topic"), unique("other"))
    broker = new_broker().registered(*topics, filter_servers=["10.0.0.1:1"])
    new_broker(at=broker.at).registered(*topics)
    filters = name_server.json(105, {"topic": topics[0]})["filterServerTable"]
    assert filters == {broker.at: ["10.0.0.1:1"]} or (name_server.apache and filters == {})


def test_topics_that_a_full_registration_leaves_out_can_be_removed(name_server: Peer, new_broker: NewBroker) -> None:
    """deleteTopicWithBrokerRegistration (rule a)."""
    kept, left_out, other = unique("kept"), unique("left-out"), unique("other")
    broker = new_broker().registered(kept, left_out, other)
    broker.registered(kept, other, counter=2)
    assert name_server.has_route(left_out)
    with name_server.setting(deleteTopicWithBrokerRegistration="true"):
        broker.registered(kept, other, counter=2)
        assert not name_server.has_route(left_out)
        assert name_server.has_route(kept)
