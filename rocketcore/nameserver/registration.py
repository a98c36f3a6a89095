"""The body of a registration, in any of its three forms, reduced to what the route tables keep.

A broker sends all its topics every 30 seconds, and whenever one changes. Bytes that are those of the last time are told
by their hash and come no further than ``RouteInfoManager.register_unchanged``. Of the others a kernel reads the topics,
which are nearly all of the body: 10,000 in a millisecond, where an object for each value would take more than a
hundred; those that are as the table has them are left out. What is around them, a few hundred bytes, goes to the
general reader, which follows Java in every oddity, and so does the whole of a body with a topic that the kernel finds
unusual. Nothing is applied before all of it is read.

RocketMQ: ``RegisterBrokerBody``, ``DefaultRequestProcessor.extractRegisterBrokerBodyFromRequest``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final, NamedTuple

from rocketcore._fast.registration import read_topic_table, read_topic_texts
from rocketcore.codes import Version
from rocketcore.errors import BrokerSystemError, DecodeError
from rocketcore.nameserver.names import check_name, check_topics
from rocketcore.naming import is_system_topic
from rocketcore.protocol import fastjson
from rocketcore.protocol.bodies.route import QueueData, TopicQueueMappingInfo
from rocketcore.protocol.bodies.topic import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)

__all__ = [
    "ALL_WANTED",
    "KnownTopics",
    "QueueNumbers",
    "RegisteredTopics",
    "check_version",
    "deleted_topics",
    "queue_numbers",
    "read_registration",
]


class QueueNumbers(NamedTuple):
    """What a route says of a topic's queues on one broker."""

    read: int
    write: int
    perm: int
    sys_flag: int


class KnownTopics(NamedTuple):
    """The table that a registration is for, and whether what it has for a topic is what came; None: all are wanted."""

    table: dict[str, Any] | None = None
    same: Callable[[Any, QueueNumbers], bool] | None = None


ALL_WANTED: Final = KnownTopics()


class RegisteredTopics(NamedTuple):
    """What a broker registered.

    topics          all of them, or those that are not as ``KnownTopics`` has them
    filter_servers  None where it says nothing of them
    """

    data_version: DataVersion
    topics: dict[str, QueueNumbers]
    mappings: dict[str, TopicQueueMappingInfo]
    filter_servers: list[str] | None


_DIALECT: Final = (b"'", b"/", b'"$ref"')
"""What stands in bodies whose parts cannot be told apart by the rules of standard JSON, or refer to each other."""
_ZLIB: Final = 0x78
"""First byte of a zlib stream; 5.x brokers send one under ``compressed=false``. JSON does not begin with ``x``."""

MAX_TOPICS: Final = 250_000
"""Topics of one registration: twice what a frame of plain JSON holds, a twentieth of what a compressed one could."""


def read_registration(body: bytes, compressed: bool, version: int, known: KnownTopics = ALL_WANTED) -> RegisteredTopics:
    """Read a body as a sender of ``version`` writes it; no body is an empty table.

    raises  BrokerSystemError with the original's text when it does not decode
    """
    if not body:
        return RegisteredTopics(DataVersion(), {}, {}, None if version < Version.V3_0_11 else [])
    try:
        return _read(body, compressed, version, known)
    except DecodeError as error:
        raise BrokerSystemError(1, f"RemotingCommandException: Failed to decode RegisterBrokerBody, {error}") from error


def _read(body: bytes, compressed: bool, version: int, known: KnownTopics) -> RegisteredTopics:
    if version < Version.V3_0_11:
        table = RegisterBrokerBody(TopicConfigAndMappingSerializeWrapper.decode(body))
        return _checked(_reduce(table)._replace(filter_servers=None))
    if compressed or body[0] == _ZLIB:
        return _read_compressed(body, version, known)
    return _read_plain(body, known) or _checked(_of_document(fastjson.loads(body)))


def _checked(registered: RegisteredTopics, topics: Iterable[str] | None = None) -> RegisteredTopics:
    """Refuse names that nobody should be handed; ``topics`` are the ones to look at, None: all."""
    check_topics(registered.topics if topics is None else topics)
    check_topics(registered.mappings)
    for mapping in registered.mappings.values():
        check_topics((mapping.topic,))
        check_name("bname", mapping.bname)
        check_name("scope", mapping.scope)
    for server in registered.filter_servers or ():
        check_name("filter server", server)
    return registered


def _read_plain(body: bytes, known: KnownTopics = ALL_WANTED) -> RegisteredTopics | None:
    """Read JSON whose topics are written as usual; None: the general reader must look at it."""
    found = read_topic_table(body, QueueNumbers, *known)
    if found is None:
        return None
    topics, to_check, start, end = found
    _check_count(topics)
    rest = body[:start] + b"{}" + body[end:]
    if any(sign in rest for sign in _DIALECT):
        return None
    return _checked(_of_document(fastjson.loads(rest))._replace(topics=topics), to_check)


def _of_document(document: Any) -> RegisteredTopics:
    registered = _reduce(RegisterBrokerBody.from_json(document))
    unsaid = document.get("filterServerList", ()) is None
    return registered._replace(filter_servers=None) if unsaid else registered


def _read_compressed(body: bytes, version: int, known: KnownTopics) -> RegisteredTopics:
    inflated = RegisterBrokerBody.inflate(body)
    # Data version and number of topics, each after its length word; a slice that is cut gives a smaller number, and the
    # general reader says what is wrong.
    start = 4 + int.from_bytes(inflated[:4], "big")
    count = int.from_bytes(inflated[start : start + 4], "big", signed=True)
    if count > MAX_TOPICS:
        raise DecodeError(f"RegisterBrokerBody: {count} topics, more than {MAX_TOPICS}")
    if start + 4 <= len(inflated):
        topics, to_check, read, end = read_topic_texts(inflated, start + 4, count, QueueNumbers, *known)
        if read == count:
            rest = RegisterBrokerBody.decode_inflated(inflated[:start] + bytes(4) + inflated[end:], version)
            return _checked(_reduce(rest)._replace(topics=topics), to_check)
    return _checked(_reduce(RegisterBrokerBody.decode_inflated(inflated, version)))


def _reduce(body: RegisterBrokerBody) -> RegisteredTopics:
    wrapper = body.topic_config_serialize_wrapper
    check_version(wrapper.data_version)
    for mapping in wrapper.topic_queue_mapping_info_map.values():
        what, queues = f"queue mapping of {mapping.topic[:80]!r}", mapping.curr_id_map
        _check_bits(what, 32, mapping.total_queues, *queues, *queues.values())
        _check_bits(what, 64, mapping.epoch)
    topics = {
        config.topic_name or key: queue_numbers(config, key) for key, config in wrapper.topic_config_table.items()
    }
    _check_count(topics)
    return RegisteredTopics(
        wrapper.data_version,
        topics,
        wrapper.topic_queue_mapping_info_map,
        body.filter_server_list,
    )


def _check_count(topics: Mapping[str, QueueNumbers]) -> None:
    if len(topics) > MAX_TOPICS:
        raise DecodeError(f"{len(topics)} topics, more than {MAX_TOPICS}")


def queue_numbers(config: TopicConfig | QueueData, name: str) -> QueueNumbers:
    """Return what a route says of queues; raises DecodeError where Java's clients could not read it."""
    numbers = QueueNumbers(config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag)
    _check_bits(f"queues of {name[:80]!r}", 32, *numbers)
    return numbers


def check_version(version: DataVersion) -> None:
    """Refuse a version whose numbers Java could not read: DecodeError."""
    _check_bits("data version", 64, version.state_version, version.timestamp, version.counter)


def _check_bits(what: str, bits: int, *numbers: int) -> None:
    bound = 1 << (bits - 1)
    for number in numbers:
        if not -bound <= number < bound:
            raise DecodeError(f"{what}: a number beyond {bits} bits")


def deleted_topics(known: Iterable[str], named: Container[str], own: Container[str]) -> list[str]:
    """Return the known topics of a broker that a registration leaves out, if that is a full one; else none.

    Brokers also register the one topic that has changed, and 5.x ones large tables in parts; nothing in the request
    says so. No broker deletes its system topics: what leaves one of them out is no full registration.

    own  the names of the broker and its cluster, which are topics too
    """
    left_out = [topic for topic in known if topic not in named]
    return [] if any(is_system_topic(topic) or topic in own for topic in left_out) else left_out
