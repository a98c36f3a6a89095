from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import pytest

from rocketcore.errors import BrokerError
from rocketcore.nameserver.registration import (
    MAX_TOPIC_LENGTH,
    MAX_TOPICS,
    QueueNumbers,
    _read_plain,
    _reduce,
    read_registration,
)
from rocketcore.protocol.bodies import DataVersion, RegisterBrokerBody
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

    for names in (["x" * MAX_TOPIC_LENGTH], [str(number) for number in range(1000)]):
        for encoded in body(names):
            assert read_registration(encoded, False, 407).topics.keys() == set(names)
    for names in (["x" * (MAX_TOPIC_LENGTH + 1)], [str(number) for number in range(MAX_TOPICS + 1)]):
        for encoded in body(names):
            with pytest.raises(BrokerError, match=r"a topic name of|topics, more than"):
                read_registration(encoded, False, 407)


def test_odd_topics_of_the_compressed_form_take_the_general_way() -> None:
    texts = [b"T 1 1 6 SINGLE_TAG", b"\xff +2 1 6 SINGLE_TAG", b"U 3 1 6 SINGLE_TAG"]
    parts = [struct.pack(">i", len(part)) + part for part in (b"{}", *texts, b"[]")]
    parts.insert(1, struct.pack(">i", len(texts)))
    assert read_registration(zlib.compress(b"".join(parts)), True, 407).topics == {
        "T": (1, 1, 6, 0), "\ufffd": (2, 1, 6, 0), "U": (3, 1, 6, 0)
    }  # fmt: skip
