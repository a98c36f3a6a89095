"""Topic configurations, and how a broker registers them with a name server."""

from __future__ import annotations

import re
import zlib
from dataclasses import field
from enum import Enum
from typing import Any, Final, Self

from rocketcore.codes import FRAME_MAX_BYTES, Version
from rocketcore.errors import DecodeError
from rocketcore.protocol import fastjson
from rocketcore.protocol.bodies.base import Body, Int, body
from rocketcore.protocol.bodies.route import TopicQueueMappingInfo

MAX_INFLATED_BYTES = 4 * FRAME_MAX_BYTES
"""What a compressed registration may inflate to."""
MAX_MAPPINGS = 100_000
"""Of one compressed registration: each is a JSON text of its own, and millions would fit into what it inflates to."""
_NUMBER: Final = re.compile(r"[-+]?\d+")


class TopicFilterType(Enum):
    """Whether messages of a topic carry one tag or several."""

    SINGLE_TAG = 0
    MULTI_TAG = 1


@body
class DataVersion(Body):
    """Version of a table; two are equal where all three numbers are. Times are epoch milliseconds."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def next_version(self, now_millis: int, state_version: int | None = None) -> None:
        """Count up, as every change of the table does."""
        self.timestamp = now_millis
        if state_version is not None:
            self.state_version = state_version
        self.counter += 1

    def copy(self) -> DataVersion:
        return DataVersion(self.state_version, self.timestamp, self.counter)


@body
class TopicConfig(Body):
    """A topic on a broker."""

    topic_name: str = ""
    read_queue_nums: Int = 16
    write_queue_nums: Int = 16
    perm: Int = 6
    topic_filter_type: TopicFilterType | None = TopicFilterType.SINGLE_TAG
    topic_sys_flag: Int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


@body
class TopicConfigSerializeWrapper(Body):
    """All topics of a broker (4.9 form), also the broker's topics.json."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@body
class TopicConfigAndMappingSerializeWrapper(TopicConfigSerializeWrapper):
    """The 5.x form: with the mappings of static topics."""

    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, object] = field(default_factory=dict)
    mapping_data_version: DataVersion = field(default_factory=DataVersion)


@body
class CreateTopicListRequestBody(Body):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST (18) [5.3]."""

    topic_config_list: list[TopicConfig] | None = None


@body
class RegisterBrokerBody(Body):
    """Body of REGISTER_BROKER (103), plain as JSON or compressed in a form of its own.

    ``filter_server_list`` is None where the compressed form has ``null`` or no text for it.

    compressed  zlib of: length i32, data version JSON · count i32, per topic length i32 and text · length i32, filter
                servers JSON (none if it does not parse) · from 5.0.0 on: count i32, per mapping length i32 and JSON
    topic text  name, read queues, write queues, perm, filter type, separated by one space; from 5.0.0 on the attributes
                as JSON after one more (none if it does not parse). System flag and order are not carried.
    """

    topic_config_serialize_wrapper: TopicConfigAndMappingSerializeWrapper = field(
        default_factory=TopicConfigAndMappingSerializeWrapper
    )
    filter_server_list: list[str] | None = field(default_factory=list)

    @staticmethod
    def inflate(data: bytes) -> bytes:
        """Return the bytes inside of the compressed form; raises DecodeError."""
        inflater = zlib.decompressobj()
        try:
            inflated = inflater.decompress(data, MAX_INFLATED_BYTES)
        except zlib.error as error:
            raise DecodeError(f"RegisterBrokerBody: {error}") from None
        if inflater.unconsumed_tail or not inflater.eof:
            raise DecodeError("RegisterBrokerBody: the compressed data is cut, or inflates too far")
        return inflated

    @classmethod
    def decode_inflated(cls, inflated: bytes, version: int) -> Self:
        """Read what was inside of the compressed form; raises DecodeError."""
        source = _Source(inflated)
        wrapper = TopicConfigAndMappingSerializeWrapper(data_version=DataVersion.decode(source.sized()))
        for _ in range(source.count()):
            config = _parse_topic(source.sized())
            wrapper.topic_config_table[config.topic_name] = config
        servers = source.sized()
        filter_servers = _parse_or(servers, []) if servers else None
        if version >= Version.V5_0_0:
            count = source.count()
            if count > MAX_MAPPINGS:
                raise DecodeError(f"RegisterBrokerBody: {count} mappings, more than {MAX_MAPPINGS}")
            for _ in range(count):
                mapping = TopicQueueMappingInfo.decode(source.sized())
                wrapper.topic_queue_mapping_info_map[mapping.topic] = mapping
        body = cls.from_json({"topicConfigSerializeWrapper": wrapper, "filterServerList": filter_servers})
        if filter_servers is None:
            body.filter_server_list = None
        return body


class _Source:
    """Reads the lengths and parts of the compressed form."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def count(self) -> int:
        end = self._position + 4
        if end > len(self._data):
            raise DecodeError("RegisterBrokerBody: it ends within a length", self._position)
        value = int.from_bytes(self._data[self._position : end], "big", signed=True)
        if value < 0 or value > len(self._data) - end:
            raise DecodeError(f"RegisterBrokerBody: a length of {value}", self._position)
        self._position = end
        return value

    def sized(self) -> bytes:
        length = self.count()
        start = self._position
        self._position += length
        return self._data[start : self._position]


def _parse_or(data: bytes, default: Any) -> Any:
    try:
        return fastjson.loads(data)
    except DecodeError:
        return default


def _parse_topic(data: bytes) -> TopicConfig:
    tokens = data.decode(errors="replace").split(" ")
    if len(tokens) < 5:
        raise DecodeError(f"RegisterBrokerBody: a topic of {len(tokens)} words")
    try:
        read, write, perm = (int(token) for token in tokens[1:4] if _NUMBER.fullmatch(token))
    except ValueError:
        raise DecodeError(f"RegisterBrokerBody: topic {tokens[0][:80]!r} with a number that is none") from None
    config = TopicConfig(tokens[0], read, write, perm, TopicFilterType.__members__.get(tokens[4]))
    if len(tokens) > 5:
        attributes = _parse_or(" ".join(tokens[5:]).encode(), {})
        if isinstance(attributes, dict):
            config.attributes = {str(key): str(value) for key, value in attributes.items()}
    return config


@body
class TopicList(Body):
    """Answer to the topic list requests of name servers (206, 224, 304, 311 to 313) and brokers (305, 343)."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


@body
class KVTable(Body):
    """Texts by text: order configuration (103), a namespace (219), run-time information of a broker (28)."""

    table: dict[str, str] = field(default_factory=dict)


@body
class GroupList(Body):
    """Answer to QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    group_list: list[str] = field(default_factory=list)
