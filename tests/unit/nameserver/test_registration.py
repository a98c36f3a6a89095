from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import pytest

from rocketcore.errors import BrokerError
from rocketcore.nameserver.names import TOPIC_CHARACTERS
from rocketcore.nameserver.registration import (
    MAX_TOPICS,
    QueueNumbers,
    _read_plain,
    _reduce,
    read_registration,
)
from rocketcore.protocol.bodies.topic import DataVersion, RegisterBrokerBody
from tests.fixtures.vectors import family, name_of


def expected_topics(vector: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    wrapper = vector["decoded"]["topicConfigSerializeWrapper"]
    return {
        name: (config["readQueueNums"], config["writeQueueNums"], config["perm"])
        for name, config in wrapper["topicConfigTable"].items()
    }


def three(topics: dict[str, QueueNumbers]) -> dict[str, tuple[int, int, int]]:
    return {name: numbers[:3] for name, numbers in topics.items()}


@pytest.mark.parametrize("vector", family("bodies.jsonl", "encode/RegisterBrokerBody/"), ids=name_of)
def test_plain_bodies_of_java(vector: dict[str, Any]) -> None:
    body = vector["expected"].encode()
    registered = read_registration(body, False, 407)
    assert three(registered.topics) == expected_topics(vector)
    version = vector["decoded"]["topicConfigSerializeWrapper"]["dataVersion"]
    assert (registered.data_version.timestamp, registered.data_version.counter) == (
        version["timestamp"], version["counter"]
    )  # fmt: skip
    assert _read_plain(body) == _reduce(RegisterBrokerBody.decode(body)), "both ways give the same"


@pytest.mark.parametrize("vector", family("bodies.jsonl", "encode/RegisterBrokerBody-compressed/"), ids=name_of)
def test_compressed_bodies_of_java(vector: dict[str, Any]) -> None:
    version = 407 if vector["java"].startswith("4") else 479
    if vector["decoded"] is None or "error" in vector["decoded"]:
        pytest.skip("Java does not read its own text here")
    body = bytes.fromhex(vector["hex"])
    registered = read_registration(body, True, version)
    assert three(registered.topics) == expected_topics(vector)
    assert read_registration(body, False, version) == registered, "5.x brokers forget to say that it is compressed"


def test_no_body_is_an_empty_table_of_version_zero() -> None:
    registered = read_registration(b"", False, 479)
    assert (registered.data_version, registered.topics) == (DataVersion(0, 0, 0), {})


def test_an_old_sender_sends_the_bare_table() -> None:
    bare = {"topicConfigTable": {"T": {"topicName": "T", "readQueueNums": 1, "writeQueueNums": 2, "perm": 4}}}
    body = json.dumps(bare).encode()
    assert read_registration(body, False, 36).topics == {"T": QueueNumbers(1, 2, 4, 0)}
    assert read_registration(body, False, 37).topics == {}


def test_filter_servers_null_is_no_statement_and_absent_is_none() -> None:
    wrapper = {"dataVersion": {}, "topicConfigTable": {}}
    null = json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": None}).encode()
    absent = json.dumps({"topicConfigSerializeWrapper": wrapper}).encode()
    assert read_registration(null, False, 479).filter_servers is None
    assert read_registration(absent, False, 479).filter_servers == []


@pytest.mark.parametrize("odd", ["", '"U":{"topicName":"U","perm":"6"}'])
def test_filter_servers_mean_the_same_whoever_reads_the_topics(odd: str) -> None:
    for servers, expected in (("null", None), ("[]", []), ('["a:1",null,5]', ["a:1", "5"])):
        text = '{"topicConfigSerializeWrapper":{"topicConfigTable":{' + odd + '}},"filterServerList":' + servers + "}"
        assert (_read_plain(text.encode()) is None) == bool(odd)
        assert read_registration(text.encode(), False, 479).filter_servers == expected


@pytest.mark.parametrize(
    ("servers", "expected"),
    [(b"", None), (b"garbage", []), (b"null", None), (b'["a:1",null,5]', ["a:1", "5"]), (b"[[1]]", ["[1]"])],
)
def test_filter_servers_of_the_compressed_form(servers: bytes, expected: list[str] | None) -> None:
    """What does not parse is none; Java logs it."""
    assert read_registration(compressed([b"T 1 1 6 SINGLE_TAG"], servers), True, 407).filter_servers == expected


def test_attributes_that_do_not_parse_are_none_whoever_reads_the_topic() -> None:
    texts = [b"T 1 1 6 SINGLE_TAG {+a b", b"U +1 1 6 SINGLE_TAG {+a b"]
    assert read_registration(compressed(texts), True, 407).topics.keys() == {"T", "U"}


@pytest.mark.parametrize("number", ["2147483648", "-2147483649", "9" * 30, "9" * 5000, "1_0", "", " 1", "1.0"])
def test_numbers_that_are_no_int32_are_refused(number: str) -> None:
    """No Java client reads a route that holds one."""
    with pytest.raises(BrokerError, match="Failed to decode RegisterBrokerBody"):
        read_registration(compressed([f"T {number} 1 6 SINGLE_TAG".encode()]), True, 407)
    if number.strip("-").isdigit():
        for field in ("perm", "topicSysFlag"):
            topic = f'"topicName":"T","{field}":{number}'
            text = '{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{' + topic + "}}}}"
            with pytest.raises(BrokerError, match="Failed to decode RegisterBrokerBody"):
                read_registration(text.encode(), False, 479)


@pytest.mark.parametrize(
    "part",
    [
        '"dataVersion":{"counter":9223372036854775808}', '"dataVersion":{"stateVersion":-9223372036854775809}',
        '"topicQueueMappingInfoMap":{"T":{"totalQueues":2147483648}}',
        '"topicQueueMappingInfoMap":{"T":{"currIdMap":{"0":2147483648}}}',
        '"topicQueueMappingInfoMap":{"T":{"epoch":9223372036854775808}}',
    ],
)  # fmt: skip
def test_other_numbers_beyond_javas_are_refused_too(part: str) -> None:
    text = '{"topicConfigSerializeWrapper":{"topicConfigTable":{},' + part + "}}"
    with pytest.raises(BrokerError, match="Failed to decode RegisterBrokerBody"):
        read_registration(text.encode(), False, 479)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"topic": "T\n"}, "topic 'T.*' holds a control character"),
        ({"bname": "b\x1b[2J"}, "bname 'b.*' holds a control character"),
        ({"scope": "\u202e"}, "scope '.*' holds a control character"),
        ({"bname": "b" * 256}, "bname has 256 characters, 255 are allowed"),
    ],
)
def test_no_text_of_a_queue_mapping_is_handed_on_that_cannot_be_shown(field: dict[str, str], reason: str) -> None:
    mapping = {"topic": "T", "bname": "b", "totalQueues": 1, **field}
    wrapper = {"topicConfigTable": {}, "topicQueueMappingInfoMap": {"T": mapping}}
    with pytest.raises(BrokerError, match=reason):
        read_registration(json.dumps({"topicConfigSerializeWrapper": wrapper}).encode(), False, 479)


@pytest.mark.parametrize("name", ["T\x7f", "\u202eT", "é\x9b", "T\x1f"])
def test_no_topic_is_handed_on_that_cannot_be_shown(name: str) -> None:
    table = json.dumps(
        {name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}}, ensure_ascii=False
    )
    plain = '{"topicConfigSerializeWrapper":{"topicConfigTable":' + table + "}}"
    for body in (plain.encode(), compressed([b"U 1 1 6 SINGLE_TAG", f"{name} 1 1 6 SINGLE_TAG".encode()])):
        with pytest.raises(BrokerError, match=r"topic '.*' holds a control character"):
            read_registration(body, False, 407)


def test_numbers_as_text_take_the_general_way() -> None:
    config = {"topicName": "T", "readQueueNums": "3", "writeQueueNums": 2, "perm": 6}
    body = json.dumps({"topicConfigSerializeWrapper": {"dataVersion": {}, "topicConfigTable": {"T": config}}}).encode()
    assert _read_plain(body) is None
    assert read_registration(body, False, 479).topics == {"T": QueueNumbers(3, 2, 6, 0)}


@pytest.mark.parametrize(
    ("body", "compressed"),
    [(b"{", False), (b"nonsense", True), (zlib.compress(b"\0\0\0\x09{}"), True), (b"x\x01", False)],
)
def test_what_does_not_decode_is_a_system_error(body: bytes, compressed: bool) -> None:
    with pytest.raises(BrokerError, match="Failed to decode RegisterBrokerBody") as caught:
        read_registration(body, compressed, 479)
    assert caught.value.code == 1


@pytest.mark.parametrize("sign", ["'", "/", '"$ref"'])
def test_what_may_hide_the_parts_of_a_body_takes_the_general_way(sign: str) -> None:
    config = {"topicName": "T", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6}
    text = json.dumps({"topicConfigSerializeWrapper": {"dataVersion": {}, "topicConfigTable": {"T": config}}})
    assert _read_plain(text.encode()) is not None
    odd = text[:-1] + ', "more": {' + (sign if sign.startswith('"') else json.dumps(sign)) + ": 1}}"
    assert _read_plain(odd.encode()) is None
    assert read_registration(odd.encode(), False, 479).topics == {"T": QueueNumbers(3, 2, 6, 0)}


def test_topics_have_limits_whatever_the_form() -> None:
    def body(names: list[str]) -> tuple[bytes, bytes]:
        table = {name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in names}
        plain = json.dumps({"topicConfigSerializeWrapper": {"dataVersion": {}, "topicConfigTable": table}})
        texts = [f"{name} 1 1 6 SINGLE_TAG".encode() for name in names]
        sized = [struct.pack(">i", len(part)) + part for part in (b"{}", *texts, b"[]")]
        return plain.encode(), zlib.compress(b"".join([sized[0], struct.pack(">i", len(names)), *sized[1:]]))

    for names in (["x" * TOPIC_CHARACTERS], [str(number) for number in range(1000)]):
        for encoded in body(names):
            assert read_registration(encoded, False, 407).topics.keys() == set(names)
    for names in (["x" * (TOPIC_CHARACTERS + 1)], [str(number) for number in range(MAX_TOPICS + 1)]):
        for encoded in body(names):
            with pytest.raises(BrokerError, match=r"a topic name of|topics, more than"):
                read_registration(encoded, False, 407)


def compressed(texts: list[bytes], filter_servers: bytes = b"[]") -> bytes:
    parts = [struct.pack(">i", len(part)) + part for part in (b"{}", *texts, filter_servers)]
    parts.insert(1, struct.pack(">i", len(texts)))
    return zlib.compress(b"".join(parts))


def test_odd_topics_of_the_compressed_form_take_the_general_way() -> None:
    texts = [b"T 1 1 6 SINGLE_TAG", b"\xff +2 1 6 SINGLE_TAG", b"U 3 1 6 SINGLE_TAG"]
    assert read_registration(compressed(texts), True, 407).topics == {
        "T": (1, 1, 6, 0), "\ufffd": (2, 1, 6, 0), "U": (3, 1, 6, 0)
    }  # fmt: skip
