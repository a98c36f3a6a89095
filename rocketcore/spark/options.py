"""The options of the Spark source and sink, declared once: name, aliases, how the text is read, what it means.

Spark hands option keys over in lower case, so names are compared without regard to case. An option that this direction
does not know is refused: a misspelt ``startingOffsets`` would otherwise read the wrong range without a word.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from rocketcore._fast.arrow_in import BatchEncoder
from rocketcore._fast.properties import encode_properties
from rocketcore.client.config import name_server_list
from rocketcore.codes import MAX_MESSAGE_BYTES, RESERVED_PROPERTIES
from rocketcore.errors import ConfigError
from rocketcore.message import NAME_SEPARATOR, PROPERTY_SEPARATOR, MessageQueue
from rocketcore.naming import check_group, check_send_topic, check_topic

__all__ = ["EARLIEST", "LATEST", "ConnectionOptions", "SinkOptions", "SourceOptions", "option_names", "parse_options"]

EARLIEST: Final = -2
LATEST: Final = -1
"""How JSON offsets spell the ends of a queue, as Spark's Kafka source does."""

OptionsT = TypeVar("OptionsT", bound="ConnectionOptions")

_SIZE = re.compile(r"(\d+)\s*([kmg]?)b?", re.IGNORECASE)
_LAST_MILLIS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that Python's times have."""
_MOST_PULL_BYTES: Final = (1 << 31) - 1
"""What the field of a pull request holds."""
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _boolean(text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ValueError("true or false")
    return value


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError("a whole number of at least 1")
    return int(text)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise ValueError("a number of bytes, for example 1048576, 1m or 512k")
    return int(match[1]) * _UNITS[match[2].lower()]


def _millis(text: str) -> float:
    return _count(text) / 1000


def _timestamp(text: str) -> int:
    text = text.strip()
    wanted = "milliseconds since 1970, or a time such as 2024-05-01T12:00:00Z"
    if text.isdecimal():
        millis = int(text)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(wanted) from None
        millis = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if millis > _LAST_MILLIS:
        raise ValueError(wanted)
    return max(0, millis)


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("text that is not blank")
    return text.strip()


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        check_topic(name)
    return names


def _topic(text: str) -> str:
    check_send_topic(text.strip())
    return text.strip()


def _group(text: str) -> str:
    check_group(text.strip())
    return text.strip()


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return text


def _json_object(text: str, wanted: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(wanted)
    return value


def _assignment(text: str) -> tuple[MessageQueue, ...]:
    wanted = 'a JSON object such as {"T": {"broker-a": [0, 1]}}'
    queues = []
    for topic, brokers in _json_object(text, wanted).items():
        check_topic(topic)
        if not isinstance(brokers, dict):
            raise ValueError(wanted)
        for broker, ids in brokers.items():
            if not isinstance(ids, list) or not all(type(number) is int and number >= 0 for number in ids):
                raise ValueError(wanted)
            queues += [MessageQueue(topic, broker, number) for number in ids]
    return tuple(sorted(set(queues)))


def _offsets(text: str) -> str | Mapping[MessageQueue, int]:
    if text.strip().lower() in ("earliest", "latest"):
        return text.strip().lower()
    wanted = 'earliest, latest, or a JSON object such as {"T": {"broker-a": {"0": 23, "1": -2}}}'
    offsets = {}
    for topic, brokers in _json_object(text, wanted).items():
        if not isinstance(brokers, dict):
            raise ValueError(wanted)
        for broker, queues in brokers.items():
            if not isinstance(queues, dict):
                raise ValueError(wanted)
            for number, offset in queues.items():
                if not number.isdecimal() or type(offset) is not int or offset < EARLIEST:
                    raise ValueError(f"{wanted}; -2 is the earliest offset, -1 the latest")
                offsets[MessageQueue(topic, broker, int(number))] = offset
    return offsets


def _address_map(text: str) -> Mapping[str, str]:
    wanted = 'a JSON object such as {"172.17.0.3:10911": "localhost:10911"}'
    addresses = _json_object(text, wanted)
    if not all(isinstance(value, str) for value in addresses.values()):
        raise ValueError(wanted)
    return addresses


def _properties(text: str) -> Mapping[str, str]:
    properties = _json_object(text, 'a JSON object such as {"source": "spark"}')
    for name, value in properties.items():
        if name in RESERVED_PROPERTIES:
            raise ValueError(f"property names that are not RocketMQ's own; {name} is")
        if not name or not isinstance(value, str) or not value:
            raise ValueError('names and values that are non-empty text, such as {"source": "spark"}')
        if any(separator in name + value for separator in (NAME_SEPARATOR, PROPERTY_SEPARATOR)):
            raise ValueError("names and values without U+0001 and U+0002")
    return properties


def _selector(text: str) -> str:
    name = text.strip().lower()
    if name not in ("roundrobin", "hash"):
        raise ValueError("roundrobin or hash")
    return name


def _tags(text: str) -> str:
    if any(separator in text for separator in (NAME_SEPARATOR, PROPERTY_SEPARATOR)):
        raise ValueError("a tag without U+0001 and U+0002")
    return _text(text)


def _write_id(text: str) -> int:
    if not re.fullmatch(r"[0-9a-fA-F]{1,16}", text.strip()):
        raise ValueError("up to 16 hexadecimal digits")
    return int(text, 16)


def _no_compression(text: str) -> str:
    if text.strip().lower() != "none":
        raise ValueError("none: RocketMQ does not compress batches")
    return "none"


def _no_namespace(text: str) -> str:
    raise ValueError("nothing: namespaces are not there yet")


def _name_servers(text: str) -> str:
    return ";".join(name_server_list(text))


def option(
    name: str,
    parse: Callable[[str], Any],
    help: str,
    *,
    default: Any = None,
    aliases: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """Declare an option: its name in Spark, its other names, how its text is read, what it does.

    secret  the value is shown nowhere
    """
    metadata = {"option": name, "aliases": aliases, "parse": parse, "help": help, "secret": secret}
    return field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How the source and the sink reach the cluster."""

    name_server: str | None = option(
        "nameServer", _name_servers, "name servers, joined by ;", aliases=("namesrv", "endpoints")
    )
    access_key: str | None = option("accessKey", _text, "name of the ACL account")
    secret_key: str | None = option("secretKey", _text, "secret of the ACL account", secret=True)
    namespace: str | None = option("namespace", _no_namespace, "namespace of topics and groups")
    tls: bool = option("tls", _boolean, "encrypted connections", default=False)
    tls_ca_file: str | None = option("tlsCaFile", _text, "authorities to trust, PEM; without it the system's")
    tls_cert_file: str | None = option("tlsCertFile", _text, "the client's own certificate chain, PEM")
    tls_key_file: str | None = option("tlsKeyFile", _text, "its private key, PEM")
    tls_key_password: str | None = option("tlsKeyPassword", _text, "password of the key", secret=True)
    tls_verify: bool = option("tlsVerify", _boolean, "verify the servers' certificates and hosts", default=True)
    tls_server_hostname: str | None = option("tlsServerHostname", _text, "the name that all certificates carry")
    request_timeout: float = option("requestTimeoutMs", _millis, "limit of one request, milliseconds", default=10.0)
    broker_address_map: Mapping[str, str] | None = option(
        "brokerAddressMap", _address_map, "JSON: address a broker gives itself → address to use"
    )

    def __post_init__(self) -> None:
        if (self.access_key is None) != (self.secret_key is None):
            raise ConfigError("options accessKey and secretKey belong together")
        for item in fields(self):
            if item.name.startswith("tls_") and getattr(self, item.name) != item.default and not self.tls:
                raise ConfigError(f"option {item.metadata['option']} needs tls=true")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ConnectionOptions):
    """What is read, from where to where, and in parts of which size."""

    topics: tuple[str, ...] = option("topic", _topics, "topics, joined by commas", default=(), aliases=("subscribe",))
    topic_pattern: str | None = option("subscribePattern", _pattern, "regular expression of topic names")
    assignment: tuple[MessageQueue, ...] = option("assign", _assignment, "JSON: topic → broker → queue ids", default=())
    starting_offsets: str | Mapping[MessageQueue, int] = option(
        "startingOffsets", _offsets, "where to start", default="earliest"
    )
    ending_offsets: str | Mapping[MessageQueue, int] = option(
        "endingOffsets", _offsets, "where to stop", default="latest"
    )
    starting_timestamp: int | None = option("startingTimestamp", _timestamp, "first store time, ms or ISO 8601")
    ending_timestamp: int | None = option("endingTimestamp", _timestamp, "store time to stop before")
    fail_on_data_loss: bool = option("failOnDataLoss", _boolean, "refuse a range that is not all there", default=True)
    min_partitions: int | None = option("minPartitions", _count, "split queues until there are that many tasks")
    max_partitions: int | None = option("maxPartitions", _count, "tasks at most: each reads several ranges, if need be")
    max_records_per_partition: int | None = option("maxRecordsPerPartition", _count, "split longer ranges")
    tag_expression: str = option("subExpression", _text, "tags to read, for example a || b", default="*")
    sql_expression: str | None = option("sqlExpression", _text, "SQL92 filter that the broker evaluates")
    include_properties: bool = option("includeProperties", _boolean, "adds the column properties", default=False)
    include_hosts: bool = option("includeHosts", _boolean, "adds hosts, flags and log positions", default=False)
    group_id: str = option("groupId", _group, "consumer group named to the broker", default="SPARK_SOURCE")
    pull_batch_bytes: int = option("pullBatchBytes", _size, "bytes asked for in one pull", default=1 << 20)
    arrow_batch_bytes: int = option("arrowBatchBytes", _size, "bytes in one record batch", default=1 << 20)
    fetch_timeout: float = option(
        "fetchTimeoutMs", _millis, "until then a pull is tried again, milliseconds", default=120.0
    )

    def __post_init__(self) -> None:
        # super() without arguments does not work in a dataclass with slots, which is a copy of the class in its body.
        ConnectionOptions.__post_init__(self)
        if sum(map(bool, (self.topics, self.topic_pattern, self.assignment))) != 1:
            raise ConfigError("give exactly one of the options topic, subscribePattern and assign")
        if self.starting_timestamp is not None and self.starting_offsets != "earliest":
            raise ConfigError("give startingOffsets or startingTimestamp, not both")
        if self.ending_timestamp is not None and self.ending_offsets != "latest":
            raise ConfigError("give endingOffsets or endingTimestamp, not both")
        if (self.starting_timestamp or 0) > (self.ending_timestamp or _LAST_MILLIS):
            raise ConfigError("startingTimestamp lies behind endingTimestamp")
        if not isinstance(self.starting_offsets, str) and not isinstance(self.ending_offsets, str):
            for queue, start in self.starting_offsets.items():
                if start > (end := self.ending_offsets.get(queue, LATEST)) >= 0:
                    raise ConfigError(f"startingOffsets lies behind endingOffsets for {queue}: {start} and {end}")
        if self.pull_batch_bytes > _MOST_PULL_BYTES:
            raise ConfigError(f"pullBatchBytes is at most {_MOST_PULL_BYTES}, got {self.pull_batch_bytes}")
        if self.starting_offsets == "latest":
            raise ConfigError("startingOffsets=latest reads nothing in a batch query")
        if self.ending_offsets == "earliest":
            raise ConfigError("endingOffsets=earliest reads nothing in a batch query")
        if (self.min_partitions or 1) > (self.max_partitions or self.min_partitions or 1):
            raise ConfigError("minPartitions is more than maxPartitions")
        if self.sql_expression is not None and self.tag_expression != "*":
            raise ConfigError("give subExpression or sqlExpression, not both")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(ConnectionOptions):
    """Where rows go, and how they are packed and sent."""

    topic: str | None = option("topic", _topic, "topic of every row; without it the column topic is needed")
    tags: str | None = option("tags", _tags, "tag of every row; faster than a column")
    producer_group: str = option("producerGroup", _group, "producer group named to the broker", default="SPARK_SINK")
    queue_selector: str = option("queueSelector", _selector, "roundrobin, or hash of shardingKey", default="roundrobin")
    batch_bytes: int = option("batchBytes", _size, "bytes in one request", default=1 << 20)
    max_in_flight: int = option("maxInFlight", _count, "requests without an answer, per task", default=4)
    send_timeout: float = option("sendTimeoutMs", _millis, "limit of one attempt, milliseconds", default=10.0)
    delivery_timeout: float = option(
        "deliveryTimeoutMs", _millis, "until then a request is tried again, milliseconds", default=120.0
    )
    create_topic: bool = option("createTopic", _boolean, "a topic that does not exist is created", default=False)
    ignore_system_columns: bool = option(
        "ignoreSystemColumns", _boolean, "columns of a read that a write has no use for are left out", default=False
    )
    compression: str = option("compression", _no_compression, "none", default="none")
    write_id: int | None = option("writeId", _write_id, "hexadecimal; makes message ids the same in a second run")
    properties: Mapping[str, str] | None = option("properties", _properties, "JSON: properties of every row")

    def __post_init__(self) -> None:
        ConnectionOptions.__post_init__(self)
        if self.batch_bytes > MAX_MESSAGE_BYTES:
            raise ConfigError(f"batchBytes is at most {MAX_MESSAGE_BYTES}, which is what a broker takes in one request")
        try:
            BatchEncoder(
                write_id=0,
                partition=0,
                tags=(self.tags or "").encode(),
                properties=encode_properties(self.properties or {}),
            )
        except ValueError as error:
            raise ConfigError(f"options tags and properties: {error}") from None


_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger")


def option_names(cls: type[ConnectionOptions]) -> dict[str, str]:
    """Return every name and alias that a direction knows, in lower case → the field of the class."""
    return {
        name.lower(): item.name for item in fields(cls) for name in (item.metadata["option"], *item.metadata["aliases"])
    }


def parse_options(cls: type[OptionsT], options: Mapping[str, str]) -> OptionsT:
    """Read Spark's options into ``cls``.

    raises  ConfigError for an unknown or repeated option and for a value that does not parse; the text names the option
    """
    known = option_names(cls)
    declared = {item.name: item for item in fields(cls)}
    given: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, text in options.items():
        attribute = known.get(name.lower())
        if attribute is None:
            raise ConfigError(_unknown(cls, name))
        if attribute in given:
            raise ConfigError(f"options {given[attribute]} and {name} mean the same: give one")
        given[attribute] = name
        try:
            values[attribute] = declared[attribute].metadata["parse"](text)
        except ValueError as error:
            label = declared[attribute].metadata["option"]
            shown = "…" if declared[attribute].metadata["secret"] else repr(text)
            raise ConfigError(f"option {label} is {shown}, expected: {error}") from None
        except Exception as error:
            raise ConfigError(f"option {declared[attribute].metadata['option']}: {error}") from error
    # The environment of the driver counts: another machine's may name another cluster.
    values.setdefault("name_server", ";".join(name_server_list(None)))
    return cls(**values)


def _unknown(cls: type[ConnectionOptions], name: str) -> str:
    if name.lower() == "path":
        return "a topic is no path: use the option topic, not load(…) or save(…) with an argument"
    for stream_only in _STREAM_ONLY:
        if name.lower() == stream_only.lower():
            return f"option {stream_only} belongs to streaming reads, which rocketcore does not have yet"
    for other, direction in ((SourceOptions, "reading"), (SinkOptions, "writing")):
        if other is not cls and name.lower() in option_names(other):
            return f"option {name} belongs to {direction}"
    labels = {
        label.lower(): label for item in fields(cls) for label in (item.metadata["option"], *item.metadata["aliases"])
    }
    if close := difflib.get_close_matches(name.lower(), labels, n=1):
        return f"unknown option {name}; did you mean {labels[close[0]]}?"
    return f"unknown option {name}; there are {', '.join(sorted(labels.values(), key=str.lower))}"
