"""The topics of a registration, plainly: from parsed JSON, and from the texts of the compressed form."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

from rocketcore.codes import Version
from rocketcore.protocol import fastjson
from rocketcore.protocol.bodies.topic import RegisterBrokerBody, TopicFilterType

Numbers = tuple[int, int, int, int]

_INT32 = range(-(1 << 31), 1 << 31)


def topics_of_json(body: bytes) -> dict[str, Numbers]:
    """Return the topics of a body in standard JSON; raises ValueError or LookupError where it is none, or odd."""
    document = json.loads(body, parse_constant=_no_constant)
    topics: dict[str, Numbers] = {}
    for config in document["topicConfigSerializeWrapper"]["topicConfigTable"].values():
        numbers = (config["readQueueNums"], config["writeQueueNums"], config["perm"], config.get("topicSysFlag", 0))
        if not all(type(number) is int and number in _INT32 for number in numbers):
            raise ValueError("a number that is none")
        topics[config["topicName"]] = numbers
    return topics


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def topics_of_texts(data: bytes, position: int, count: int) -> tuple[dict[str, Numbers], int, int]:
    """Return the topics up to the first text that is odd, how many texts that are, and where they end."""
    topics: dict[str, Numbers] = {}
    for taken in range(count):
        length = int.from_bytes(data[position : position + 4], "big", signed=True)
        start = position + 4
        if start > len(data) or not 0 <= length <= len(data) - start:
            return topics, taken, position
        try:
            words = data[start : start + length].decode().split(" ")
        except UnicodeDecodeError:
            return topics, taken, position
        if len(words) < 5 or not words[0] or not all(_is_int32(word) for word in words[1:4]):
            return topics, taken, position
        topics[words[0]] = (int(words[1]), int(words[2]), int(words[3]), 0)
        position = start + length
    return topics, count, position


def _is_int32(word: str) -> bool:
    return re.fullmatch("-?[0-9]{1,19}", word) is not None and int(word) in _INT32


def compressed(registration: RegisterBrokerBody, version: int = Version.V4_9_7) -> bytes:
    """Return the compressed form of a body, as a broker of ``version`` sends it."""
    wrapper = registration.topic_config_serialize_wrapper
    with_mappings = version >= Version.V5_0_0
    data_version = wrapper.data_version.to_json()
    if not with_mappings:
        del data_version["stateVersion"]
    parts = [_sized(fastjson.dumps(data_version)), len(wrapper.topic_config_table).to_bytes(4, "big")]
    for config in wrapper.topic_config_table.values():
        kind = config.topic_filter_type or TopicFilterType.SINGLE_TAG
        text = f"{config.topic_name} {config.read_queue_nums} {config.write_queue_nums} {config.perm} {kind.name}"
        if with_mappings:
            text += " " + fastjson.dumps(config.attributes).decode()
        parts.append(_sized(text.encode()))
    parts.append(_sized(fastjson.dumps(registration.filter_server_list)))
    if with_mappings:
        mappings = wrapper.topic_queue_mapping_info_map.values()
        parts.append(len(mappings).to_bytes(4, "big"))
        parts.extend(_sized(mapping.encode()) for mapping in mappings)
    return zlib.compress(b"".join(parts))


def decompressed(data: bytes, version: int) -> RegisterBrokerBody:
    """Read the compressed form that a broker of ``version`` sent; raises DecodeError."""
    return RegisterBrokerBody.decode_inflated(RegisterBrokerBody.inflate(data), version)


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
