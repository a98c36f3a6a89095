"""Every JSON body against what the Java classes write and read."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import zlib
from enum import Enum
from typing import Any

import pytest

from rocketcore.codes import Version
from rocketcore.errors import ConfigError, DecodeError
from rocketcore.message import MessageQueue
from rocketcore.protocol import fastjson
from rocketcore.protocol.bodies.base import Body
from rocketcore.protocol.bodies.client import LockBatchRequestBody, ResetOffsetBody
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
from rocketcore.protocol.bodies.heartbeat import HeartbeatData, SubscriptionData
from rocketcore.protocol.bodies.pop import BatchAck
from rocketcore.protocol.bodies.route import BrokerData, ClusterInfo, TopicRouteData
from rocketcore.protocol.bodies.stats import ConsumeStats, TopicOffset, TopicStatsTable, read_bounds
from rocketcore.protocol.bodies.topic import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigSerializeWrapper,
)
from tests.fixtures.vectors import family, name_of
from tests.reference.declarations import BODIES, declared_vectors
from tests.reference.registration import compressed, decompressed

NOT_BODIES = {"text", "empty-list", "MessageQueue"}
ENCODED = [
    record
    for record in declared_vectors("bodies.jsonl", "encode/")
    if record["name"].split("/")[1].split("@")[0] not in NOT_BODIES and "expected" in record
]
DECODED = [record for record in declared_vectors("bodies.jsonl", "decode/") if record["java"] == "5.5.0"]

NULL_IN_JAVA = {"encode/ClusterInfo/empty"}
"""Java leaves null maps out; we have none, and write them empty."""

JAVA_ONLY = {"consumeTimeStampStr", "maxTimeStampStr", "minTimeStampStr"}
"""Derived texts that Java adds and nobody reads."""


def body_class(record: dict[str, Any]) -> type[Body]:
    name = record["name"].split("@")[0].split("/")[1].removesuffix("-standard").removesuffix("-compressed")
    return BODIES[name]


def comparable(value: Any) -> Any:
    """Parsed JSON with sets and derived members out of the way."""
    if isinstance(value, dict):
        # Number keys are bare or quoted; both are the same after reading.
        return {
            key if isinstance(key, MessageQueue) else str(key): comparable(item)
            for key, item in value.items()
            if key not in JAVA_ONLY
        }
    if isinstance(value, list):
        items = [comparable(item) for item in value]
        return sorted(items, key=repr)
    return value


@pytest.mark.parametrize("record", ENCODED, ids=name_of)
def test_what_java_writes(record: dict[str, Any]) -> None:
    """Reading and writing again gives the same members; fields that 4.9 lacks are added with their defaults."""
    cls = body_class(record)
    text = record["expected"].encode(errors="replace")
    body = cls.decode(text)
    written = comparable(fastjson.loads(body.encode()))
    java = comparable(fastjson.loads(text))
    if record["name"].split("@")[0] in NULL_IN_JAVA:
        written = {key: value for key, value in written.items() if value != {}}
    if record["java"] == "5.5.0":
        assert written == java
    else:
        assert_contains(written, java)
    assert cls.decode(body.encode()) == body


def assert_contains(ours: Any, java: Any) -> None:
    if isinstance(java, dict):
        assert isinstance(ours, dict)
        for key, value in java.items():
            if value is not None and key not in ("transactionId",):
                assert_contains(ours[key], value)
    elif isinstance(java, list):
        assert len(ours) == len(java)
        for one, other in zip(ours, java, strict=True):
            assert_contains(one, other)
    else:
        assert ours == java


EXACT = [
    record
    for record in ENCODED
    if record["java"] == "5.5.0"
    and not any(part in record["name"] for part in ("/odd-names", "QueryConsumeTimeSpan", "ClusterInfo/empty"))
]


@pytest.mark.parametrize("record", EXACT, ids=name_of)
def test_same_text_as_java(record: dict[str, Any]) -> None:
    """Byte for byte, but for the order of map keys, which is sorted here and Java's hash order there."""
    body = body_class(record).decode(record["expected"].encode())
    if "-standard" in record["name"]:
        assert isinstance(body, TopicRouteData)
        ours = body.encode_standard().decode()
    else:
        ours = body.encode().decode()
    assert sorted(ours) == sorted(record["expected"])


def plain(value: Any) -> Any:
    """A body as the vectors describe a Java object."""
    if isinstance(value, BatchAck):
        described = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name != "bits"}
        return {camel(name): item for name, item in described.items()} | {"bitSet": sorted(value.bit_set) or None}
    if isinstance(value, Body):
        return {camel(f.name): plain(getattr(value, f.name)) for f in dataclasses.fields(value)}  # type: ignore[arg-type]
    if isinstance(value, MessageQueue):
        return {"topic": value.topic, "brokerName": value.broker, "queueId": value.queue_id}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: plain(item) for key, item in value.items()}
        return {"pairs": [[plain(key), plain(item)] for key, item in value.items()]}
    if isinstance(value, (list, set)):
        return (
            [plain(item) for item in sorted(value) if item is not None]
            if isinstance(value, set)
            else list(map(plain, value))
        )
    return value


def camel(name: str) -> str:
    first, *rest = name.split("_")
    odd = {"clientId": "clientID", "withoutSub": "isWithoutSub", "lockOkMqSet": "lockOKMQSet"}
    joined = first + "".join(part.capitalize() for part in rest)
    return odd.get(joined, joined)


def normal(java: Any, ours: Any) -> Any:
    """What we hold where Java holds null: the default of the field."""
    if isinstance(java, dict) and "pairs" in java and len(java) == 1:
        pairs = [pair for pair in java["pairs"] if pair[1] is not None]
        return (
            normal({"pairs": pairs}, ours) if len(pairs) < len(java["pairs"]) else ({"pairs": pairs} if pairs else {})
        )
    if isinstance(java, dict):
        members = {key: item for key, item in java.items() if key in ours} if isinstance(ours, dict) else java
        return {key: normal(item, ours.get(key) if isinstance(ours, dict) else None) for key, item in members.items()}
    if isinstance(java, list):
        kept = [item for item in java if item is not None]
        return [
            normal(item, ours[index] if isinstance(ours, list) and index < len(ours) else None)
            for index, item in enumerate(kept)
        ]
    if java is None or java == "now":
        return ours
    return java


ACCEPTED_BEYOND_JAVA = {
    "decode/TopicRouteData/unquoted-names": "4.9.7 reads it",
    "decode/ConsumeStats/text-key": "4.9.7 reads a queue as a text key",
    "decode/TopicStatsTable/text-key": "4.9.7 reads a queue as a text key",
    "decode/ResetOffsetBody/text-key": "4.9.7 reads a queue as a text key",
    "decode/RegisterBrokerBody/ref-parent": "a reference that leads nowhere is null",
    "decode/HeartbeatData/enum-number-out-of-range": "an unknown enumeration value is null",
}


@pytest.mark.parametrize("record", DECODED, ids=name_of)
def test_what_java_reads(record: dict[str, Any]) -> None:
    name = record["name"].split("@")[0]
    text = record["input"]["text"].encode()
    cls = body_class(record)
    java = record["expected"]
    if java is None or (isinstance(java, dict) and "error" in java):
        if name in ACCEPTED_BEYOND_JAVA:
            cls.decode(text)
            return
        with pytest.raises(DecodeError):
            cls.decode(text)
        return
    body = cls.decode(text)
    if name == "decode/ConsumeStats/ref-value":
        # 5.5.0 finds nothing behind a path with a queue in it; 5.3.3 and we do.
        assert isinstance(body, ConsumeStats)
        assert len(set(map(repr, body.offset_table.values()))) == 1
        assert len(body.offset_table) == 2
        return
    if name == "decode/ConsumeStats/tps-nan":
        assert isinstance(body, ConsumeStats)
        assert math.isnan(body.consume_tps)
        return
    ours = plain(body)
    assert comparable_members(ours, java) == comparable(normal(java, ours))


def comparable_members(ours: Any, java: Any) -> Any:
    """Only what Java describes: some of our classes know fields of both releases."""
    if isinstance(ours, dict) and isinstance(java, dict) and "pairs" not in ours:
        return comparable({key: comparable_members(item, java.get(key)) for key, item in ours.items() if key in java})
    if isinstance(ours, list) and isinstance(java, list):
        kept = [item for item in java if item is not None]
        return comparable([comparable_members(one, other) for one, other in zip(ours, kept, strict=False)])
    return comparable(ours)


@pytest.mark.parametrize("record", family("bodies.jsonl", "encode/RegisterBrokerBody-compressed"), ids=name_of)
def test_compressed_registration(record: dict[str, Any]) -> None:
    version = {"4": Version.V4_9_7, "5": Version.V5_5_0}[record["java"][0]]
    body = decompressed(bytes.fromhex(record["hex"]), version)
    plain_name = record["name"].replace("-compressed", "")
    (sent,) = [each for each in ENCODED if each["name"] == plain_name]
    original = RegisterBrokerBody.decode(sent["expected"].encode())
    table, expected = (each.topic_config_serialize_wrapper.topic_config_table for each in (body, original))
    assert table.keys() == expected.keys()
    for name, config in table.items():
        # Order and system flag are not carried.
        assert config == dataclasses.replace(
            expected[name], order=False, topic_sys_flag=0, attributes=config.attributes
        )
    assert body.filter_server_list == original.filter_server_list
    again = decompressed(compressed(body, version), version)
    assert again == body
    assert len(zlib.decompress(compressed(body, version))) == len(bytes.fromhex(record["inflated"]))


def test_damaged_compressed_registration() -> None:
    body = RegisterBrokerBody()
    body.topic_config_serialize_wrapper.topic_config_table["T"] = TopicConfig("T")
    raw = zlib.decompress(compressed(body))
    for end in range(len(raw)):
        with pytest.raises(DecodeError):
            decompressed(zlib.compress(raw[:end]), Version.V4_9_7)
    for damaged in (b"", b"x", compressed(body)[:-5]):
        with pytest.raises(DecodeError):
            decompressed(damaged, Version.V4_9_7)
    negative = b"\xff\xff\xff\xff" + raw[4:]
    with pytest.raises(DecodeError, match="a length of -1"):
        decompressed(zlib.compress(negative), Version.V4_9_7)


def test_bomb_is_refused() -> None:
    with pytest.raises(DecodeError, match="inflates too far"):
        decompressed(zlib.compress(bytes(80 << 20)), Version.V4_9_7)


def test_mappings_without_end_are_refused() -> None:
    """Each is a text of its own to read, and sixty kilobytes have room for ten million."""
    raw = zlib.decompress(compressed(RegisterBrokerBody(), Version.V5_0_0))
    body = zlib.compress(raw[:-4] + (200_000).to_bytes(4, "big") + b"\x00\x00\x00\x02{}" * 200_000)
    assert len(body) < 3000
    with pytest.raises(DecodeError, match="200000 mappings, more than 100000"):
        decompressed(body, Version.V5_0_0)


@pytest.mark.parametrize("record", family("bodies.jsonl", "fingerprint/"), ids=name_of)
def test_heartbeat_fingerprint(record: dict[str, Any]) -> None:
    def without_class(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_class(item) for key, item in value.items() if key != "class"}
        return [without_class(item) for item in value] if isinstance(value, list) else value

    heartbeat = HeartbeatData.from_json(without_class(record["input"]))
    assert heartbeat.fingerprint() == record["expected"]
    heartbeat.client_id = "another"
    heartbeat.consumer_data_set[0].subscription_data_set[0].sub_version = 5
    heartbeat.without_sub = True
    assert heartbeat.fingerprint() == record["expected"]


def test_subscription_data() -> None:
    data = SubscriptionData.build("T", "TagA || TagB", sub_version=7)
    assert (data.tags_set, data.code_set, data.sub_string) == ({"TagA", "TagB"}, {2598919, 2598920}, "TagA || TagB")
    assert (data.sub_version, data.expression_type) == (7, "TAG")
    for everything in (None, "", "*"):
        assert SubscriptionData.build("T", everything).sub_string == "*"
    sql = SubscriptionData.build("T", "a > 1", "SQL92")
    assert (sql.expression_type, sql.sub_string, sql.tags_set) == ("SQL92", "a > 1", set())
    with pytest.raises(ConfigError):
        SubscriptionData.build("T", "||")


def test_route_in_both_forms() -> None:
    route = TopicRouteData(broker_datas=[BrokerData("c", "b", {1: "h:2", 0: "h:1"})])
    assert b'"brokerAddrs":{0:"h:1",1:"h:2"}' in route.encode()
    assert b'"brokerAddrs":{"0":"h:1","1":"h:2"}' in route.encode_standard()
    assert TopicRouteData.decode(route.encode()) == TopicRouteData.decode(route.encode_standard()) == route
    assert route.broker_datas[0].master_address == "h:1"
    assert BrokerData(broker_addrs={1: "h:2"}).master_address is None


def test_fields_in_another_spelling() -> None:
    """fastjson 1.2 looks for a name without case and dashes where none is the same; fastjson2, of 5.4 on, does not."""
    text = b'{"ClientId":"c","consumer_group":"g","MqSet":[{"Topic":"T","BrokerName":"b","QueueID":1}]}'
    body = LockBatchRequestBody.decode(text)
    assert (body.client_id, body.consumer_group, body.mq_set) == ("c", "g", {MessageQueue("T", "b", 1)})
    right = LockBatchRequestBody.decode(b'{"clientId":"c","ClientID":"d","only-this-broker":true}')
    assert (right.client_id, right.only_this_broker) == ("c", True)


def test_queue_keys_are_objects() -> None:
    body = ResetOffsetBody({MessageQueue("T", "b", 1): 5, MessageQueue("T", "b", 0): 7})
    text = (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:7,{"brokerName":"b","queueId":1,"topic":"T"}:5}}'
    )
    assert body.encode() == text
    assert ResetOffsetBody.decode(text) == body


def test_sets_of_queues() -> None:
    body = LockBatchRequestBody("g", "c", False, {MessageQueue("T", "b", 1), MessageQueue("T", "b", 0)})
    assert LockBatchRequestBody.decode(body.encode()) == body


@pytest.mark.parametrize("number", ["9223372036854775808", "-9223372036854775809", '"9223372036854775808"', "1e300"])
def test_numbers_beyond_64_bits_are_refused(number: str) -> None:
    with pytest.raises(DecodeError, match=r"SubscriptionGroupConfig\.brokerId: a number of more than 64 bits"):
        SubscriptionGroupConfig.decode(f'{{"brokerId":{number}}}'.encode())
    assert SubscriptionGroupConfig.decode(b'{"brokerId":9223372036854775807}').broker_id == 2**63 - 1


def test_total_diff() -> None:
    stats = ConsumeStats.decode(
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"brokerOffset":10,"consumerOffset":8},'
        b'{"brokerName":"b","queueId":1,"topic":"T"}:{"brokerOffset":5}}}'
    )
    assert stats.total_diff == 7


def test_data_version_counts_up() -> None:
    version = DataVersion()
    before = version.copy()
    version.next_version(1700000000000, 3)
    assert (version.counter, version.timestamp, version.state_version) == (1, 1700000000000, 3)
    version.next_version(1700000000001)
    assert (version.counter, version.state_version) == (2, 3)
    assert before == DataVersion() != version


def test_ack_bits() -> None:
    assert BatchAck.encode_bits({0, 3, 62}) == "CQAAAAAAAEA="
    assert BatchAck(bits="CQAAAAAAAEA=").bit_set == {0, 3, 62}
    assert BatchAck.encode_bits(set()) == ""
    for odd in ("%%", "A", "²"):
        with pytest.raises(DecodeError):
            _ = BatchAck(bits=odd).bit_set


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "ClusterInfo: no body"),
        (b"[]", "ClusterInfo: list in place of an object"),
        (b'{"clusterAddrTable":[]}', r"ClusterInfo.clusterAddrTable: list in place of an object"),
        (b'{"brokerAddrTable":{"b":{"brokerAddrs":{"x":"y"}}}}', r"brokerAddrs: 'x' is not a number"),
        (b'{"brokerAddrTable":{"b":5}}', "BrokerData: int in place of an object"),
        (b'{"brokerAddrTable":{"b":{"brokerAddrs":{9223372036854775808:"y"}}}}', "brokerAddrs: a number of more than"),
        (b'{"brokerAddrTable":{"b":{"brokerAddrs":{"1e30":"y"}}}}', "brokerAddrs: '1e30' is not a number"),
    ],
)
def test_errors_name_class_and_field(text: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        ClusterInfo.decode(text)


def test_every_body_has_defaults_for_all_fields() -> None:
    for cls in BODIES.values():
        if isinstance(cls, type) and issubclass(cls, Body) and cls is not Body:
            assert cls.decode(b"{}") == cls(), cls
            assert cls.decode(cls().encode()) == cls(), cls


@pytest.mark.parametrize("name", [name for name, cls in BODIES.items() if issubclass(cls, Body) and cls is not Body])
def test_bodies_are_compared_and_shown_as_dataclasses_are(name: str) -> None:
    cls = BODIES[name]
    generated = dataclasses.make_dataclass(name, [(f.name, object, as_declared(f)) for f in dataclasses.fields(cls)])
    assert cls() == cls()
    assert repr(cls()) == repr(generated())
    assert cls() != generated()
    assert not hasattr(cls(), "__dict__")
    with pytest.raises(TypeError, match="unhashable"):
        hash(cls())
    for field in dataclasses.fields(cls):
        other = cls()
        setattr(other, field.name, "something else")
        assert other != cls(), field.name
        assert cls() != other, field.name
        assert f"{field.name}='something else'" in repr(other)


def as_declared(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is dataclasses.MISSING:
        return dataclasses.field(default=field.default)
    return dataclasses.field(default_factory=field.default_factory)


def test_a_body_is_not_equal_to_one_of_a_class_that_has_more() -> None:
    assert TopicConfigSerializeWrapper() != TopicConfigAndMappingSerializeWrapper()


def test_text_fields_that_nest_as_deep_as_the_stack_are_read_or_refused() -> None:
    """A text field holds the JSON of what it is given; some of what can be parsed is too deep to be written."""
    for depth in range(850, 1000):
        with contextlib.suppress(DecodeError):
            KVTable.decode(b'{"table":{"k":' + b"[" * depth + b"]" * depth + b"}}")


@pytest.mark.parametrize("record", [each for each in DECODED if "TopicStatsTable" in each["name"]], ids=name_of)
def test_bounds_are_read_as_the_table_is(record: dict[str, Any]) -> None:
    data = record["input"]["text"].encode()
    try:
        table = TopicStatsTable.decode(data).offset_table
        bounds = {queue.queue_id: (at.min_offset, at.max_offset) for queue, at in table.items()}
        sound = all(0 <= low <= high for low, high in bounds.values())
    except DecodeError:
        sound = False
    if sound:
        assert read_bounds(data) == bounds
    else:
        with pytest.raises(DecodeError):
            read_bounds(data)


@pytest.mark.parametrize(
    ("low", "high"), [(-5, 10), (-1, 0), (0, -1), (50, 10), (-5, (1 << 63) - 1), (0, 1 << 63), (0, 1 << 70)]
)
@pytest.mark.parametrize("broker", ["broker-a", "unusual\\"])
def test_bounds_that_are_no_offsets_are_refused(low: int, high: int, broker: str) -> None:
    table = {MessageQueue("T", broker, number): TopicOffset(0, 9, 5) for number in range(3)}
    table[MessageQueue("T", broker, 1)] = TopicOffset(low, high, 5)
    with pytest.raises(DecodeError, match=r"are not offsets|more than 64 bits"):
        read_bounds(TopicStatsTable(table, 0.5).encode())


def test_bounds_of_many_queues() -> None:
    table = {MessageQueue("T", "broker-a", number): TopicOffset(number, 2 * number, 5) for number in range(300)}
    data = TopicStatsTable(table, 0.5).encode()
    assert read_bounds(data) == {number: (number, 2 * number) for number in range(300)}
    for queue in (MessageQueue("T", 'a "b"', 7), MessageQueue("T", "a\\", 7)):
        assert read_bounds(TopicStatsTable({queue: TopicOffset(1, 2, 5)}, 0.5).encode()) == {7: (1, 2)}
