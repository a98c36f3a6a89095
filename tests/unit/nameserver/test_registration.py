from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from rocketcore.errors import BrokerError
from rocketcore.nameserver.registration import QueueNumbers, _read_plain, read_registration
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
    general = RegisterBrokerBody.decode(body)
    quick = _read_plain(body)
    if quick is not None:
        assert quick.data_version == general.topic_config_serialize_wrapper.data_version
        assert quick.filter_servers == general.filter_server_list


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
