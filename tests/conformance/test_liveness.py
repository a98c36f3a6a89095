"""How brokers leave: 104, a lost connection, silence. What others see then, and who is told (905)."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conformance.peer import (
    FakeBroker,
    Peer,
    RawConnection,
    data_version,
    json_frame,
    plain_body,
    topic_config,
    unique,
)

NewBroker = Callable[..., FakeBroker]


class NoticeListener:
    """The port of a broker on which a name server says what happened to its name."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(10)
        self._connection: socket.socket | None = None
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def next(self) -> dict[str, Any]:
        """Return the header of the next notice."""
        if self._connection is None:
            self._connection, _ = self._socket.accept()
            self._connection.settimeout(10)
        length, mark = struct.unpack(">II", self._exactly(8))
        assert mark >> 24 == 0
        header = json.loads(self._exactly(length - 4)[: mark & 0xFFFFFF])
        assert isinstance(header, dict)
        return header

    def _exactly(self, count: int) -> bytes:
        assert self._connection is not None
        data = self._connection.recv(count, socket.MSG_WAITALL)
        assert len(data) == count
        return data

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._socket.close()


@pytest.fixture
def new_listener() -> Iterator[Callable[[], NoticeListener]]:
    listeners: list[NoticeListener] = []

    def make() -> NoticeListener:
        listeners.append(NoticeListener())
        return listeners[-1]

    yield make
    for listener in listeners:
        listener.close()


def test_unregister_takes_a_broker_and_the_topics_that_only_it_had(name_server: Peer, new_broker: NewBroker) -> None:
    shared, own = unique("shared"), unique("own")
    first = new_broker().registered(shared, own)
    second = new_broker(cluster=first.cluster).registered(shared, unique("other"))
    first.unregister()
    name_server.eventually(lambda: not name_server.has_route(own))
    assert name_server.perms(shared).keys() == {second.name}
    info = name_server.json(106)
    assert first.name not in info["brokerAddrTable"]
    assert info["clusterAddrTable"][first.cluster] == [second.name]
    second.unregister()
    name_server.eventually(lambda: first.cluster not in name_server.json(106)["clusterAddrTable"])
    assert not name_server.has_route(shared)


def test_unregister_goes_by_address(name_server: Peer, new_broker: NewBroker) -> None:
    """The id in the request only says whether the smallest is going."""
    broker = new_broker().registered(unique("topic"), unique("other"))
    assert broker.ask(104, {**broker.key(), "brokerAddr": "10.200.0.1:1"}).code == 0
    assert name_server.addresses(broker.name) == {"0": broker.at}
    assert broker.ask(104, {**broker.key(), "brokerId": "7"}).code == 0
    name_server.eventually(lambda: name_server.addresses(broker.name) == {})


def test_a_name_without_addresses_is_in_no_cluster(name_server: Peer, new_broker: NewBroker) -> None:
    """Apache leaves it in the other clusters that named it, and tools that look it up there find nothing."""
    broker = new_broker().registered(unique("topic"), unique("other"))
    moved = new_broker(name=broker.name, at=broker.at).registered(unique("topic"), unique("other"))
    moved.unregister()
    name_server.eventually(lambda: name_server.addresses(broker.name) == {})
    clusters = name_server.json(106)["clusterAddrTable"]
    assert moved.cluster not in clusters
    assert clusters.get(broker.cluster) == ([broker.name] if name_server.apache else None)


def test_a_slave_keeps_serving_what_its_master_had(name_server: Peer, new_broker: NewBroker) -> None:
    topic = unique("topic")
    master = new_broker().registered(topic, unique("other"))
    slave = new_broker(cluster=master.cluster, name=master.name, broker_id=1).registered(topic, unique("other"))
    master.unregister()
    name_server.eventually(lambda: name_server.addresses(slave.name) == {"1": slave.at})
    assert name_server.perms(topic) == {slave.name: 6}


def test_a_closed_connection_unregisters(name_server: Peer, new_broker: NewBroker) -> None:
    topic = unique("topic")
    broker = new_broker().registered(topic, unique("other"))
    assert name_server.has_route(topic)
    broker.close()
    name_server.eventually(lambda: not name_server.has_route(topic))
    assert name_server.addresses(broker.name) == {}


def test_a_broker_in_another_cluster_than_the_first_of_its_name_leaves_too(
    name_server: Peer, new_broker: NewBroker
) -> None:
    """Apache looks for it in the first one's cluster, and keeps its address for good."""
    topics = (unique("topic"), unique("other"))
    first = new_broker().registered(*topics)
    second = new_broker(name=first.name, broker_id=1).registered(*topics)
    third = new_broker(cluster=first.cluster, name=first.name, broker_id=2).registered(*topics)
    second.close()
    third.close()
    name_server.eventually(lambda: "2" not in name_server.addresses(first.name))
    kept = {"1": second.at} if name_server.apache else {}
    assert name_server.addresses(first.name) == {"0": first.at, **kept}


def test_a_renamed_broker_leaves_under_both_names(name_server: Peer, new_broker: NewBroker) -> None:
    """Where its old connection was not seen to end in time. Apache takes one of the names, the other stays for good."""
    topics = (unique("topic"), unique("other"))
    before = new_broker().registered(*topics)
    after = new_broker(cluster=before.cluster, at=before.at).registered(*topics)
    after.close()

    def known() -> int:
        return len({before.name, after.name} & name_server.json(106)["brokerAddrTable"].keys())

    name_server.eventually(lambda: known() == (1 if name_server.apache else 0))
    assert name_server.has_route(topics[0]) == name_server.apache


def test_a_broker_that_lost_its_place_is_forgotten_with_its_connection(
    name_server: Peer, new_broker: NewBroker
) -> None:
    """Another address took its id. Apache looks for its address among the brokers', and keeps what it knows of it."""
    topics = (unique("topic"), unique("other"))
    before = new_broker().registered(*topics)
    after = new_broker(cluster=before.cluster, name=before.name).registered(*topics)
    other = new_broker().registered(*topics)
    before.close()
    other.close()
    name_server.eventually(lambda: name_server.addresses(other.name) == {})

    def is_known() -> bool:
        return bool(name_server.ask(322, before.key(), json.dumps(data_version()).encode()).body)

    if name_server.apache:
        assert is_known()
    else:
        name_server.eventually(lambda: not is_known())
    assert name_server.addresses(after.name) == {"0": after.at}


def test_all_brokers_of_a_connection_leave_with_it(name_server: Peer, new_broker: NewBroker) -> None:
    """Those of a container share one. Apache takes one of them; the others leave when they are silent for too long."""
    topics = (unique("topic"), unique("other"))
    brokers = [new_broker() for _ in range(3)]
    body = plain_body({topic: topic_config(topic) for topic in topics}, data_version())
    for broker in brokers:
        assert brokers[0].ask(103, broker.header(body), body).code == 0
    brokers[0].close()

    def known() -> int:
        return len({broker.name for broker in brokers} & name_server.json(106)["brokerAddrTable"].keys())

    name_server.eventually(lambda: known() == (2 if name_server.apache else 0))


def test_an_unregistration_that_is_not_whole_changes_nothing(name_server: Peer, new_broker: NewBroker) -> None:
    """Apache forgets the broker's data version and filter servers before it fails, and those queued behind it wait
    for their next one."""
    topics = (unique("topic"), unique("other"))
    for name, value in (
        ("brokerName", None), ("brokerId", None), ("brokerId", "x"), ("brokerId", " 1"), ("brokerId", "1_0"),
        ("brokerId", "9" * 20),
    ):  # fmt: skip
        broker = new_broker().registered(*topics)
        fields = {**broker.key(), name: value}
        answer = broker.ask(104, {key: text for key, text in fields.items() if text is not None})
        assert (answer.code, answer.remark) == (0, None)

        def is_known(broker: FakeBroker = broker) -> bool:
            return bool(name_server.ask(322, broker.key(), json.dumps(data_version()).encode()).body)

        if name_server.apache:
            name_server.eventually(lambda: not is_known())
        else:
            assert is_known(), (name, value)
        assert name_server.addresses(broker.name) == {"0": broker.at}
        broker.unregister()


def test_the_connection_of_the_last_registration_counts(name_server: Peer, new_broker: NewBroker) -> None:
    topic, other = unique("topic"), unique("other")
    before = new_broker().registered(topic, other)
    after = new_broker(cluster=before.cluster, name=before.name, at=before.at).registered(topic, other)
    before.close()
    with pytest.raises(AssertionError):
        name_server.eventually(lambda: not name_server.has_route(topic), timeout=0.5)
    after.close()
    name_server.eventually(lambda: not name_server.has_route(topic))


def test_a_silent_broker_expires_after_the_time_it_promised(name_server: Peer, new_broker: NewBroker) -> None:
    topic, patient = unique("topic"), unique("patient")
    broker = new_broker().registered(topic, unique("other"), heartbeatTimeoutMillis="600")
    new_broker().registered(patient, unique("other"))
    began = time.monotonic()
    name_server.eventually(lambda: not name_server.has_route(topic))
    assert 0.4 <= time.monotonic() - began < 5
    assert name_server.has_route(patient), "120 seconds is what a broker has that promises nothing"
    answer = name_server.ask(322, broker.key(), json.dumps(data_version()).encode())
    assert (answer.ext_fields, answer.body) == ({"changed": "true"}, b"")


def test_the_connection_of_an_expired_broker_is_closed(name_server: Peer, new_broker: NewBroker) -> None:
    broker = new_broker()
    header = {"code": 103, "language": "JAVA", "version": 513, "opaque": 1, "flag": 0}
    with RawConnection(name_server.address) as connection:
        connection.send(json_frame({**header, "extFields": broker.header(heartbeatTimeoutMillis="300")}))
        assert connection.read_frame()[0]["code"] == 0
        assert connection.is_closed_by_peer()


@pytest.mark.parametrize("sign", ["heartbeat", "registration", "data version"])
def test_signs_of_life(name_server: Peer, new_broker: NewBroker, sign: str) -> None:
    topics = (unique("topic"), unique("other"))
    broker = new_broker().registered(*topics, heartbeatTimeoutMillis="1000")
    until = time.monotonic() + 1.6
    while time.monotonic() < until:
        if sign == "heartbeat":
            assert broker.ask(904, broker.key()).code == 0
        elif sign == "registration":
            broker.registered(*topics, heartbeatTimeoutMillis="1000")
        else:
            assert broker.ask(322, broker.key(), json.dumps(data_version()).encode()).code == 0
        time.sleep(0.1)
    assert name_server.has_route(topics[0])
    name_server.eventually(lambda: not name_server.has_route(topics[0]))


def test_a_heartbeat_of_a_stranger_changes_nothing(name_server: Peer, new_broker: NewBroker) -> None:
    stranger = new_broker()
    answer = stranger.ask(904, {**stranger.key(), "heartbeatTimeoutMills": "1000", "epoch": "1", "maxOffset": "5"})
    assert (answer.code, answer.remark) == (0, None)
    assert name_server.addresses(stranger.name) == {}


def test_the_questions_of_a_data_version(name_server: Peer, new_broker: NewBroker) -> None:
    broker = new_broker()
    version = data_version(4, state=2, timestamp=9)
    answer = broker.ask(322, broker.key(), json.dumps(version).encode())
    assert (answer.code, answer.ext_fields, answer.body) == (0, {"changed": "true"}, b"")
    broker.registered(unique("topic"), unique("other"), counter=4)
    for changed, asked in (
        ("false", data_version(4)), ("true", data_version(5)), ("true", data_version(4, state=1)),
        ("true", data_version(4, timestamp=2)),
    ):  # fmt: skip
        answer = broker.ask(322, broker.key(), json.dumps(asked).encode())
        assert answer.ext_fields == {"changed": changed}
        assert json.loads(answer.body) == data_version(4), "the name server's own"
    assert broker.ask(322, broker.key()).ext_fields == {"changed": "true"}


def test_a_master_that_returns_gets_its_permissions_back(name_server: Peer, new_broker: NewBroker) -> None:
    """With acting masters the loss of id 0 makes the queues read-only."""
    topics = (unique("topic"), unique("other"))
    master = new_broker().registered(*topics, enableActingMaster="true")
    slave = new_broker(cluster=master.cluster, name=master.name, broker_id=1)
    slave.registered(*topics, enableActingMaster="true")
    master.unregister()
    name_server.eventually(lambda: name_server.perms(topics[0]) == {master.name: 4})
    master.registered(*topics, enableActingMaster="true")
    assert name_server.perms(topics[0]) == {master.name: 6}


def test_an_acting_master_is_shown_in_routes_alone(name_server: Peer, new_broker: NewBroker) -> None:
    topics = (unique("topic"), unique("other"))
    master = new_broker().registered(*topics, enableActingMaster="true")
    slave = new_broker(cluster=master.cluster, name=master.name, broker_id=3)
    slave.registered(*topics, enableActingMaster="true")
    member_topic = f"rmq_sys_SYNC_BROKER_MEMBER_{master.name}"
    master.registered(*topics, member_topic, counter=2, enableActingMaster="true")
    master.unregister()

    def shown(topic: str) -> dict[str, str]:
        [data] = name_server.json(105, {"topic": topic})["brokerDatas"]
        return dict(data["brokerAddrs"])

    name_server.eventually(lambda: shown(topics[0]) == {"3": slave.at})
    with name_server.setting(supportActingMaster="true"):
        assert shown(topics[0]) == {"0": slave.at}
        assert shown(member_topic) == {"3": slave.at}
        assert name_server.addresses(slave.name) == {"3": slave.at}
        assert name_server.ask(327, {"brokerName": slave.name}).code == 0
        assert shown(topics[0]) == {"3": slave.at}, "it does not stand in where the queues are writable"
    assert shown(topics[0]) == {"3": slave.at}


def test_brokers_hear_of_a_new_smallest_id(
    name_server: Peer, new_broker: NewBroker, new_listener: Callable[[], NoticeListener]
) -> None:
    """notifyMinBrokerIdChanged: 905, one way, to the others when it comes and to all when it goes.

    Apache leaves out the fields brokerName and, when one goes, haBrokerAddr, although its header has them.
    """
    topics = (unique("topic"), unique("other"))
    listener = new_listener()
    with name_server.setting(notifyMinBrokerIdChanged="true"):
        slave = new_broker(broker_id=2, at=listener.address).registered(*topics, enableActingMaster="true")
        first = new_broker(cluster=slave.cluster, name=slave.name, broker_id=0)
        first.registered(*topics, counter=2, enableActingMaster="true")
        notice = listener.next()
        assert (notice["code"], notice["flag"] & 3) == (905, 2)
        name = {} if name_server.apache else {"brokerName": slave.name}
        assert notice["extFields"] == {
            "minBrokerId": "0", "minBrokerAddr": first.at, "haBrokerAddr": first.ha, **name,
        }  # fmt: skip
        first.unregister()
        ha = {} if name_server.apache else {"haBrokerAddr": slave.ha}
        assert listener.next()["extFields"] == {
            "minBrokerId": "2", "minBrokerAddr": slave.at, "offlineBrokerAddr": first.at, **name, **ha,
        }  # fmt: skip
