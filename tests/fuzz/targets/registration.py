"""Registrations of brokers: the reader that takes topics straight from the body against the general one.

input  u8: bit 0 plain JSON, otherwise what is inside of the compressed form; bit 1 as it is on the wire; bit 2 a sender
       of 5.x · body
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from rocketcore.codes import Version
from rocketcore.errors import BrokerError
from rocketcore.nameserver.registration import (
    ALL_WANTED,
    KnownTopics,
    RegisteredTopics,
    _checked,
    _of_document,
    _reduce,
    read_registration,
)
from rocketcore.protocol import fastjson
from rocketcore.protocol.bodies.topic import RegisterBrokerBody, TopicConfig, TopicConfigAndMappingSerializeWrapper
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, refused
from tests.reference.registration import compressed, decompressed


def run(data: bytes) -> None:
    if len(data) < 2:
        return
    plain, as_sent, version = data[0] & 1, data[0] & 2, int(Version.V5_0_0 if data[0] & 4 else Version.V4_9_7)
    body = data[1:] if plain or as_sent else zlib.compress(data[1:], 1)
    found = registered(body, not plain, version)
    general = refused(
        lambda: (
            _checked(_of_document(fastjson.loads(body))) if plain else _checked(_reduce(decompressed(body, version)))
        )
    )
    if plain and body[0] == 0x78:
        return  # taken for a zlib stream
    assert found == general
    if found is None:
        return
    # For a table that has every other topic or all, in this order, as it comes or with other queues.
    for step, other in ((2, 3), (1, 4), (1, 1 << 30)):
        topics = enumerate(list(found.topics.items())[step - 1 :: step], 1)
        table = {topic: numbers if i % other else numbers._replace(perm=-9) for i, (topic, numbers) in topics}
        changed = registered(body, not plain, version, KnownTopics(table, lambda old, new: old == new))
        assert changed is not None
        assert {**table, **changed.topics} == found.topics
        assert changed._replace(topics=found.topics) == found


def registered(body: bytes, compressed: bool, version: int, known: KnownTopics = ALL_WANTED) -> RegisteredTopics | None:
    try:
        return read_registration(body, compressed, version, known)
    except BrokerError:
        return None


def seeds() -> Iterable[bytes]:
    for record in vectors("bodies.jsonl"):
        for text in (record.get("expected"), record.get("input")):
            if record["class"] == "RegisterBrokerBody" and isinstance(text, str) and len(text) < 1500:
                if text.startswith("{"):
                    yield b"\x01" + text.encode()
                else:
                    yield b"\x02" + bytes.fromhex(text)
    topics = {
        "T": TopicConfig("T", 8, 8, 6), "é": TopicConfig("é", 4, 2, 2, None, 1, True, {"+message.type": "FIFO"}),
    }  # fmt: skip
    body = RegisterBrokerBody(TopicConfigAndMappingSerializeWrapper(topic_config_table=topics), ["f:1"])
    yield b"\x01" + body.encode()
    for version, bits in ((Version.V4_9_7, 0), (Version.V5_0_0, 4)):
        packed = compressed(body, version)
        yield bytes([bits]) + zlib.decompress(packed)
        yield bytes([bits | 2]) + packed


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b'"topicConfigSerializeWrapper":{', b'"topicConfigTable":{', b'"topicName":"', b'"readQueueNums":',
        b'"writeQueueNums":', b'"perm":', b'"topicSysFlag":', b'"topicFilterType":"SINGLE_TAG"', b'"order":',
        b'"attributes":{', b'"dataVersion":{', b'"filterServerList":[', b'"topicQueueMappingInfoMap":{', b"null",
        b"\\u0041", b" 8 8 6 SINGLE_TAG", b" {}", b"\x00\x00\x00\x01", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff",
        b'{"$ref":"$"}', b"-0", b"+8", b"\xd9\xa1", b"2147483648",
    ),
)  # fmt: skip
