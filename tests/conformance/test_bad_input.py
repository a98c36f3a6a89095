"""Every request with something wrong: it is answered, the server goes on, and no registration is applied by half.

On a server of its own, since Apache's keeps some of it: a registration without a broker name leaves a null among the
brokers of the cluster, and whoever asks for the system's names gets none from then on.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from rocketcore.codes import SerializeType
from rocketcore.protocol.command import RemotingCommand
from tests.conformance.peer import (
    FakeBroker,
    Peer,
    RawConnection,
    compressed_body,
    data_version,
    json_frame,
    plain_body,
    topic_config,
)
from tests.fixtures.name_servers import NameServerProcess, NameServers

TOPIC = "sentinel-topic"
ENTRY = {"namespace": "bad-input", "key": "k", "value": "v"}

FIELDS: dict[int, dict[str, str]] = {
    100: ENTRY, 101: {"namespace": "bad-input", "key": "unknown"}, 102: ENTRY,
    105: {"topic": "unknown", "acceptStandardJsonOnly": "true"}, 106: {},
    205: {"brokerName": "unknown"}, 206: {}, 216: {"topic": "unknown", "clusterName": "unknown"},
    217: {"topic": "unknown"}, 219: {"namespace": "unknown"}, 224: {"cluster": "unknown"}, 304: {}, 311: {}, 312: {},
    313: {}, 318: {}, 319: {}, 327: {"brokerName": "unknown"},
    901: {"clusterName": "unknown", "brokerName": "unknown"},
}  # fmt: skip
"""Complete requests; those that name a broker process are made of one, see ``fields_of``."""
BROKER_CODES = (103, 104, 322, 904)
ALL_CODES = sorted([*FIELDS, *BROKER_CODES])

MISSING: dict[int, dict[str, int]] = {
    100: {"namespace": 1, "key": 1, "value": 0}, 101: {"namespace": 22, "key": 22},
    103: {"brokerName": 1, "brokerAddr": 1, "brokerId": 1}, 105: {"topic": 17, "acceptStandardJsonOnly": 17},
    219: {"namespace": 22}, 322: {"brokerAddr": 1, "clusterName": 1}, 904: {"brokerAddr": 1, "clusterName": 1},
}  # fmt: skip
"""The answer's code where a field is missing; 0 for those not named."""

UNKNOWN = {101: 22, 105: 17, 219: 22}
"""The answer's code to a complete request of ``FIELDS``; 0 for those not named."""

NUMBERS = {
    103: ("brokerId", "heartbeatTimeoutMillis", "bodyCrc32"), 104: ("brokerId",), 322: ("brokerId",),
    904: ("brokerId", "epoch", "maxOffset", "confirmOffset", "heartbeatTimeoutMills", "electionPriority"),
}  # fmt: skip
NO_NUMBERS = ("", "x", "1.5", " 1", "0x10", "99999999999999999999", "-9223372036854775809")


@pytest.fixture(scope="module")
def victim(name_servers: NameServers) -> Iterator[NameServerProcess]:
    server = name_servers.start()
    yield server
    server.kill()


@pytest.fixture
def server(victim: NameServerProcess) -> Iterator[Peer]:
    """A connection to the victim, which must be sane before and after each test."""
    with victim.peer() as peer, FakeBroker(peer, name="sentinel") as sentinel:
        sentinel.registered(TOPIC, "sentinel-other")
        yield peer
        assert peer.perms(TOPIC) == {"sentinel": 6}
        assert peer.addresses("sentinel") == {"0": sentinel.at}


def fields_of(code: int, broker: FakeBroker) -> dict[str, str]:
    return {**FIELDS[code]} if code in FIELDS else broker.header() if code == 103 else broker.key()


def body_of(code: int) -> bytes:
    if code == 103:
        return plain_body({name: topic_config(name) for name in ("new-topic", "new-other")}, data_version())
    if code == 322:
        return json.dumps(data_version()).encode()
    return json.dumps({"queueDatas": []}).encode() if code == 217 else b""


def ask(
    peer: Peer, broker: FakeBroker, code: int, fields: dict[str, str], body: bytes, **options: Any
) -> RemotingCommand:
    """Ask by the stranger's connection, which must outlive it; then look whether what it registered is whole."""
    answer = broker.ask(code, fields, body, **options)
    assert broker.ask(106).code == 0
    if code == 103 and not peer.apache:
        known = peer.addresses(broker.name)
        assert known in ({}, {str(broker.broker_id): broker.at})
        assert (broker.name in peer.json(106)["brokerAddrTable"]) == bool(known)
        assert (broker.cluster in peer.json(106)["clusterAddrTable"]) == bool(known)
        if answer.code:
            assert not known
    broker.unregister()
    return answer


@pytest.mark.parametrize("code", ALL_CODES)
def test_a_missing_field(server: Peer, code: int) -> None:
    """By nameserver.md 2.1: mostly the answer for an unknown name."""
    with FakeBroker(server) as broker:
        fields = fields_of(code, broker)
        for name in fields:
            expected = MISSING.get(code, {}).get(name, 0)
            if server.apache and (code, name) in ((103, "brokerName"), (103, "brokerAddr")):
                expected = 0
            less = {key: value for key, value in fields.items() if key not in (name, "bodyCrc32")}
            answer = ask(server, broker, code, less, body_of(code))
            assert answer.code == (17 if code == 105 else expected), name
            if not server.apache and answer.code == 1 and code != 100:
                assert name in (answer.remark or ""), "it says what is missing"
            if code == 103 and name == "clusterName":
                assert server.addresses(broker.name) == {}
        for nothing in (None, {}):
            answer = broker.ask(code, nothing)
            required = MISSING.get(code, {}).values()
            assert answer.code == (next(iter(required)) if required else 0)


def with_one_more(value: Any) -> Iterator[Any]:
    """A JSON value with an unknown field more in each of its objects in turn; tables of topics have no fields."""
    if isinstance(value, dict):
        if "new-topic" not in value and "attributes" not in value:
            yield {**value, "aFieldOfTomorrow": {"a": [1]}}
        for name, each in value.items():
            yield from ({**value, name: changed} for changed in with_one_more(each))


@pytest.mark.parametrize("code", ALL_CODES)
def test_a_field_more(server: Peer, code: int) -> None:
    """It is passed over, in a header of either form and in each object of a body."""
    with FakeBroker(server) as broker:
        body = body_of(code)
        fields = fields_of(code, broker)
        fields.pop("bodyCrc32", None)
        for kind in SerializeType:
            answer = ask(server, broker, code, {**fields, "aFieldOfTomorrow": "x"}, body, kind=kind)
            assert answer.code == UNKNOWN.get(code, 0), kind
        bodies = [json.dumps(changed).encode() for changed in with_one_more(json.loads(body or b"null"))]
        assert len(bodies) == {103: 5, 217: 1, 322: 1}.get(code, 0)
        for changed in bodies:
            assert ask(server, broker, code, fields, changed).code == 0, changed


@pytest.mark.parametrize("code", NUMBERS)
def test_a_number_that_is_none(server: Peer, code: int) -> None:
    """As if it were missing, except that ours names it where it matters."""
    with FakeBroker(server) as broker:
        for name in NUMBERS[code]:
            for value in NO_NUMBERS:
                body = body_of(code)
                fields = {**fields_of(code, broker), "bodyCrc32": "0", name: value}
                answer = ask(server, broker, code, fields, body)
                if (code, name) == (103, "brokerId"):
                    assert answer.code == 1, (name, value)
                    assert "rokerId" in (answer.remark or "")
                else:
                    assert answer.code == 0, (name, value, answer)


@pytest.mark.parametrize("value", ["", "x", "TRUE", "1", "null"])
def test_a_truth_value_that_is_none(server: Peer, value: str) -> None:
    """Whatever is not "true" in some case of letters is false."""
    with FakeBroker(server) as broker:
        for name in ("compressed", "enableActingMaster"):
            body = body_of(103)
            if name == "compressed" and value == "TRUE":
                table = {topic: topic_config(topic) for topic in ("new-topic", "new-other")}
                body = compressed_body(table, data_version(), mappings=[])
            answer = broker.register(body=body, **{name: value})  # type: ignore[arg-type]
            assert answer.code == 0, (name, value, answer)
            data = server.json(106)["brokerAddrTable"][broker.name]
            assert data["enableActingMaster"] == (name == "enableActingMaster" and value == "TRUE")
            broker.unregister()
            server.eventually(lambda: server.addresses(broker.name) == {})
        assert server.ask(105, {"topic": TOPIC, "acceptStandardJsonOnly": value}).code == 0


@pytest.mark.parametrize("code", ALL_CODES)
def test_fields_and_bodies_of_a_megabyte(server: Peer, code: int) -> None:
    big = "x" * (1 << 20)
    with FakeBroker(server) as broker:
        fields = fields_of(code, broker)
        for name in fields:
            damaged = {**fields, name: big}
            answer = broker.ask(code, damaged, body_of(code))
            assert answer.code in (0, 1, 17, 22), (name, answer.code)
            if code == 103:
                broker.ask(104, {key: damaged[key] for key in broker.key()})
        answer = broker.ask(code, {**fields, "unknownField": big}, body_of(code))
        too_long = "bytes, 65536 at most" in (answer.remark or "")  # a limit that ours has and Apache's has not
        assert answer.code in (0, 17, 22) or too_long or (code == 103 and answer.remark == "crc32 not match")
        answer = broker.ask(code, fields, big.encode())
        assert answer.code in (0, 1, 17, 22)
        server.ask(102, {**ENTRY, "key": big})


BAD_BODIES = {
    "no text": b"\x00\xff\xfe garbage",
    "cut": b'{"topicConfigSerializeWrapper":{"topicConfigTable":{',
    "a list": b"[1,2]",
    "a text": b'"text"',
    "a number": b"7",
    "null": b"null",
    "deep": b"[" * 60_000,
    "deep objects": b'{"a":' * 12_000,
}


@pytest.mark.parametrize("code", ALL_CODES)
def test_a_body_that_is_none(server: Peer, code: int) -> None:
    """Those that read a body answer 1, the others do not look. To Apache null is no body in 217 and 322."""
    with FakeBroker(server) as broker:
        for name, body in BAD_BODIES.items():
            answer = ask(server, broker, code, {**fields_of(code, broker), "bodyCrc32": "0"}, body)
            if code in (103, 217, 322):
                lenient = server.apache and name == "null" and code != 103
                assert answer.code == (0 if lenient else 1), name
            elif code == 318:
                assert answer.code in (0, 1), "nearly everything is a properties file"
            else:
                assert answer.code == UNKNOWN.get(code, 0), name


BAD_REGISTRATIONS: dict[str, bytes] = {
    "wrapper": b'{"topicConfigSerializeWrapper":7}',
    "table": b'{"topicConfigSerializeWrapper":{"topicConfigTable":[]}}',
    "topics": b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"bad-topic":7,"b":8}}}',
    "numbers": b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"a":{"topicName":"bad-topic"},'
    b'"b":{"topicName":"b","perm":"x"}}}}',
    "version": b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"a":{"topicName":"bad-topic"},'
    b'"b":{"topicName":"b"}},"dataVersion":"x"}}',
}


def test_a_registration_of_the_wrong_shape_changes_nothing(server: Peer) -> None:
    with FakeBroker(server) as broker:
        for name, body in BAD_REGISTRATIONS.items():
            answer = ask(server, broker, 103, broker.header(body), body)
            assert answer.code == 1, name
            assert "RemotingCommandException: Failed to decode RegisterBrokerBody" in (answer.remark or "")
            assert not server.has_route("bad-topic")


LENIENT = {
    "no wrapper": (b'{"topicConfigSerializeWrapper":null}', [0, 0]),
    "topic null": (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"a":null,"b":null}}}', [0, 1]),
    "filter servers": (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{}},"filterServerList":7}', [1, 0]),
    "no UTF-8": (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"\xff":{},"b":{"topicName":"b"}}}}', [0, 1]),
    "a mark": (b'\xef\xbb\xbf{"topicConfigSerializeWrapper":{"topicConfigTable":{}}}', [0, 1]),
    "order": (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"a":{"order":"x"},"b":{"order":"x"}}}}', [0, 1]),
}


def test_registrations_that_are_judged_otherwise(server: Peer) -> None:
    """Ours and Apache's codes. After the first Apache knows the broker's name and cluster, and no address."""
    for name, (body, codes) in LENIENT.items():
        with FakeBroker(server) as broker:
            answer = broker.register(body=body)
            assert answer.code == codes[server.apache], name
            if name == "no wrapper":
                assert server.addresses(broker.name) == ({} if server.apache else {"0": broker.at})
                assert broker.name in server.json(106)["brokerAddrTable"]


OTHER_TYPES: dict[int, list[tuple[str, str, int]]] = {
    103: [
        ('"perm": 6', '"perm": {}', 1), ('"perm": 6', '"perm": "null"', 1), ('"perm": 6', '"perm": " 6"', 0),
        ('"attributes": {}', '"attributes": ""', 1), ('"dataVersion": {', '"dataVersion": "", "x": {', 1),
        ('"SINGLE_TAG"', "8", 0),
    ],
    217: [('"perm": 6', '"perm": [1]', 1), ('"queueDatas": [', '"queueDatas": "", "x": [', 1)],
    322: [('"counter": 1', '"counter": [1]', 1), ('"counter": 1', '"counter": " 1"', 0)],
}  # fmt: skip
"""By code: a part of a body, what takes its place, and our answer's code."""


@pytest.mark.parametrize("code", OTHER_TYPES)
def test_values_of_another_type(server: Peer, code: int) -> None:
    """Ours refuses what Apache's parser makes something of, and takes what it does not look at."""
    queues = {"brokerName": "sentinel", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}
    body = json.dumps({"queueDatas": [queues]}).encode() if code == 217 else body_of(code)
    with FakeBroker(server) as broker:
        fields = {**fields_of(code, broker), "topic": "odd-types"}
        for part, other, ours in OTHER_TYPES[code]:
            assert part.encode() in body
            changed = body.replace(part.encode(), other.encode(), 1)
            answer = ask(server, broker, code, {**fields, "bodyCrc32": "0"}, changed)
            assert answer.code == (1 - ours if server.apache else ours), other
        server.ask(216, {"topic": "odd-types"})


def test_a_queue_mapping_that_names_no_broker(server: Peer) -> None:
    """To Apache its topic has no route from then on, whoever else has it."""
    with FakeBroker(server) as broker:
        document = json.loads(body_of(103))
        document["topicConfigSerializeWrapper"]["topicQueueMappingInfoMap"] = {"new-topic": {"totalQueues": 8}}
        broker.registered(body=json.dumps(document).encode())
        assert server.ask(105, {"topic": "new-topic"}).code == (1 if server.apache else 0)
        assert server.has_route("new-other")
        broker.unregister()
        server.eventually(lambda: server.addresses(broker.name) == {})


def test_topics_that_are_judged_otherwise(server: Peer) -> None:
    """A number that is null: the default, or 0. A topic without name: by its key, or an error that is logged."""
    with FakeBroker(server) as broker:
        odd, nameless = topic_config("odd"), topic_config("nameless")
        odd["perm"], nameless["topicName"] = None, None
        broker.registered(body=plain_body({"odd": odd, "other": topic_config("other")}, data_version()))
        assert server.perms("odd") == {broker.name: 0 if server.apache else 6}
        broker.registered(body=plain_body({"nameless": nameless, "other": topic_config("other")}, data_version(2)))
        assert server.has_route("nameless") != server.apache
        broker.unregister()
        server.eventually(lambda: server.addresses(broker.name) == {})


@pytest.mark.parametrize("version", ["{}", '{"counter":3}', "null"])
def test_a_registration_without_a_time_is_always_news_to_apache(server: Peer, version: str) -> None:
    """It takes the time of arrival for it; to ours that time is 0."""
    with FakeBroker(server) as broker:
        for perm in (6, 4):
            topics = {name: topic_config(name, perm=perm) for name in ("timeless", "other")}
            body = plain_body(topics, {}).replace(b'"dataVersion": {}', b'"dataVersion":' + version.encode())
            broker.registered(body=body)
            time.sleep(0.01)  # another millisecond, which to Apache is another version
        assert server.perms("timeless") == {broker.name: 4 if server.apache else 6}
        broker.unregister()
        server.eventually(lambda: server.addresses(broker.name) == {})


def packed(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "big", signed=True) for number in numbers)


BAD_COMPRESSED = {
    "no zlib": b"garbage",
    "no sections": zlib.compress(b"garbage"),
    "negative length": zlib.compress(packed(-5)),
    "length beyond the end": zlib.compress(packed(2) + b"{}" + packed(1 << 20)),
    "huge length": zlib.compress(packed(2) + b"{}" + packed(1, 2**31 - 1)),
    "one word": zlib.compress(packed(2) + b"{}" + packed(1, 9) + b"bad-topic" + packed(2) + b"[]" + packed(0)),
    "no number": zlib.compress(
        packed(2) + b"{}" + packed(1, 20) + b"bad-topic x 4 6 TAGS" + packed(2) + b"[]" + packed(0)
    ),
}


def test_a_compressed_registration_of_the_wrong_shape_changes_nothing(server: Peer) -> None:
    with FakeBroker(server) as broker:
        for name, body in BAD_COMPRESSED.items():
            answer = ask(server, broker, 103, broker.header(body, compressed="true"), body)
            assert answer.code == 1, name
            assert not server.has_route("bad-topic")


def test_compressed_registrations_that_are_judged_otherwise(server: Peer) -> None:
    """Apache takes a stream without its end, one that inflates without limit, a number of mappings below 0, and a data
    version that is null.

    Ours takes one that is not declared: 5.x brokers with compressedRegister send it so. And any filter type.
    """
    table = {name: topic_config(name) for name in ("zipped", "other")}
    body = compressed_body(table, data_version(), mappings=[])
    negative = zlib.compress(zlib.decompress(body)[:-4] + packed(-1))
    timeless = zlib.compress(packed(4) + b"null" + packed(0, 2) + b"[]" + packed(0))
    odd = compressed_body({**table, "odd": {**topic_config("odd"), "topicFilterType": "ODD"}}, {}, mappings=[])
    for sent, declared, ours in (
        (body[:-4], "true", 1), (zlib.compress(bytes(65 << 20), 9), "true", 1), (negative, "true", 1),
        (timeless, "true", 1), (body, "false", 0), (odd, "true", 0),
    ):  # fmt: skip
        with FakeBroker(server) as broker:
            answer = ask(server, broker, 103, broker.header(sent, compressed=declared), sent, timeout=30)
            assert answer.code == (1 - ours if server.apache else ours)


@pytest.mark.parametrize("code", ALL_CODES)
def test_versions_that_nobody_has(server: Peer, code: int) -> None:
    """Apache looks a registration's version up in a list, which fails below 0; ours takes it for an old one."""
    with FakeBroker(server) as broker:
        for version in (0, 36, 37, 412, 5000, 2**31 - 1, -1):
            answer = ask(server, broker, code, fields_of(code, broker), b"", version=version)
            refused = server.apache and code == 103 and version < 0
            assert answer.code == (1 if refused else UNKNOWN.get(code, 0)), version


HEADER = {"code": 105, "language": "JAVA", "version": 513, "opaque": 3, "flag": 0, "extFields": {"topic": "unknown"}}


@pytest.mark.parametrize(
    "odd",
    [
        {"extFields": None}, {"extFields": {}}, {"extFields": {"topic": 7}}, {"extFields": {"topic": None}},
        {"extFields": {"topic": {"a": 1}}}, {"extFields": {"topic": ["a"]}}, {"extFields": {"topic": True}},
        {"language": "KLINGON"}, {"language": None}, {"language": 12}, {"language": ""},
        {"version": "1"}, {"version": None}, {"remark": 7}, {"flag": None}, {"unknown": {"a": [1]}},
    ],
    ids=str,
)  # fmt: skip
def test_odd_headers_are_answered(server: Peer, odd: dict[str, Any]) -> None:
    with RawConnection(server.address) as connection:
        connection.send(json_frame({**HEADER, **odd}))
        answer, _ = connection.read_frame()
        assert (answer["opaque"], answer["code"]) == (3, 17)


@pytest.mark.parametrize(
    "wrong",
    [
        {"extFields": 7}, {"extFields": "text"}, {"extFields": [1]}, {"language": 99}, {"language": -1},
        {"version": "x"}, {"opaque": "x"}, {"flag": []}, {"code": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_headers_end_their_connection_only(server: Peer, wrong: dict[str, Any]) -> None:
    with RawConnection(server.address) as connection:
        connection.send(json_frame({**HEADER, **wrong}))
        assert connection.is_closed_by_peer()
    assert server.ask(106).code == 0


@pytest.mark.parametrize(
    ("odd", "refused_by_apache"), [({"language": True}, True), ({"version": {}}, False), ({"flag": {}}, False)], ids=str
)
def test_headers_that_are_judged_otherwise(server: Peer, odd: dict[str, Any], refused_by_apache: bool) -> None:
    with RawConnection(server.address) as connection:
        connection.send(json_frame({**HEADER, **odd}))
        if refused_by_apache == server.apache:
            assert connection.is_closed_by_peer()
        else:
            assert connection.read_frame()[0]["code"] == 17
