"""The body of a registration, in any of its three shapes, reduced to what the route tables keep.

A broker sends all its topics every 30 seconds, so the usual shape is read straight into small structures; anything that
does not fit them exactly goes to the general reader, which follows Java in every oddity.

RocketMQ: ``RegisterBrokerBody``, ``DefaultRequestProcessor.extractRegisterBrokerBodyFromRequest``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from rocketcore.codes import Version
from rocketcore.errors import BrokerSystemError, DecodeError
from rocketcore.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigAndMappingSerializeWrapper,
    TopicQueueMappingInfo,
)

__all__ = ["QueueNumbers", "RegisteredTopics", "read_registration"]


class QueueNumbers(NamedTuple):
    """What a route says of a topic's queues on one broker."""

    read: int
    write: int
    perm: int
    sys_flag: int


@dataclass(frozen=True, slots=True)
class RegisteredTopics:
    """What a broker registered; ``filter_servers`` is None where it says nothing of them."""

    data_version: DataVersion = field(default_factory=DataVersion)
    topics: dict[str, QueueNumbers] = field(default_factory=dict)
    mappings: dict[str, TopicQueueMappingInfo] = field(default_factory=dict)
    filter_servers: list[str] | None = field(default_factory=list)


class _Topic(msgspec.Struct, rename="camel", gc=False):
    topic_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class _Version(msgspec.Struct, rename="camel", gc=False):
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class _Wrapper(msgspec.Struct, rename="camel"):
    data_version: _Version
    topic_config_table: dict[str, _Topic]
    topic_queue_mapping_info_map: dict[str, object] = {}


class _Body(msgspec.Struct, rename="camel"):
    topic_config_serialize_wrapper: _Wrapper
    filter_server_list: list[str] | None = []


_decode: Final = msgspec.json.Decoder(_Body).decode
_ZLIB: Final = 0x78
"""First byte of a zlib stream; 5.x brokers send one under ``compressed=false``. JSON does not begin with ``x``."""


def read_registration(body: bytes, compressed: bool, version: int) -> RegisteredTopics:
    """Read a body as a sender of ``version`` writes it; no body is an empty table.

    raises  BrokerSystemError with the original's text when it does not decode
    """
    if not body:
        return RegisteredTopics()
    try:
        if compressed or body[0] == _ZLIB:
            return _reduce(RegisterBrokerBody.decode_compressed(body, version))
        if version < Version.V3_0_11:
            return _reduce(RegisterBrokerBody(TopicConfigAndMappingSerializeWrapper.decode(body)))
        return _read_plain(body) or _reduce(RegisterBrokerBody.decode(body))
    except DecodeError as error:
        raise BrokerSystemError(
            1, f"RemotingCommandException: Failed to decode RegisterBrokerBody, {error}"
        ) from error


def _read_plain(body: bytes) -> RegisteredTopics | None:
    try:
        document = _decode(body)
    except msgspec.DecodeError:
        return None
    wrapper = document.topic_config_serialize_wrapper
    if wrapper.topic_queue_mapping_info_map:
        return None
    version = wrapper.data_version
    return RegisteredTopics(
        DataVersion(version.state_version, version.timestamp, version.counter),
        {
            topic.topic_name: QueueNumbers(
                topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag
            )
            for topic in wrapper.topic_config_table.values()
        },
        {},
        document.filter_server_list,
    )


def _reduce(body: RegisterBrokerBody) -> RegisteredTopics:
    wrapper = body.topic_config_serialize_wrapper
    return RegisteredTopics(
        wrapper.data_version,
        {
            config.topic_name or key: QueueNumbers(
                config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag
            )
            for key, config in wrapper.topic_config_table.items()
        },
        wrapper.topic_queue_mapping_info_map,
        body.filter_server_list,
    )
