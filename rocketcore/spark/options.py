"""The options of the Spark source and sink, declared once: name, aliases, how the text is read, what it means.

Spark hands option keys over in lower case, so names are compared without regard to case. An option that this direction
does not know is refused: a misspelt ``startingOffsets`` would otherwise read the wrong range without a word. So is one
that belongs to the other of batch and stream.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from rocketcore._fast.arrow_in import BatchEncoder
from rocketcore._fast.properties import encode_properties
from rocketcore.client.config import MOST_RECORD_BATCH_BYTES, RECORD_BATCH_BYTES, name_server_list
from rocketcore.codes import MAX_MESSAGE_BYTES
from rocketcore.errors import ConfigError
from rocketcore.filter import check_filter
from rocketcore.message import MessageQueue
from rocketcore.spark import option_texts as texts

__all__ = [
    "SPARK_OPTIONS",
    "ConnectionOptions",
    "ReadOptions",
    "SinkOptions",
    "SourceOptions",
    "StreamSourceOptions",
    "option_names",
    "parse_options",
    "read_options_class",
]

OptionsT = TypeVar("OptionsT", bound="ConnectionOptions")

_MOST_PULL_BYTES: Final = (1 << 31) - 1
"""What the field of a pull request holds."""


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
        "nameServer",
        texts.read_name_servers,
        "addresses of name servers, separated by ;",
        aliases=("namesrv", "endpoints"),
    )
    access_key: str | None = option("accessKey", texts.read_text, "name of the ACL account")
    secret_key: str | None = option("secretKey", texts.read_text, "secret of the ACL account", secret=True)
    tls: bool = option("tls", texts.read_boolean, "encrypt connections", default=False)
    tls_ca_file: str | None = option(
        "tlsCaFile", texts.read_text, "certificate authorities to trust, PEM; default: the system's"
    )
    tls_cert_file: str | None = option("tlsCertFile", texts.read_text, "certificate chain of the client, PEM")
    tls_key_file: str | None = option("tlsKeyFile", texts.read_text, "private key of the client, PEM")
    tls_key_password: str | None = option("tlsKeyPassword", texts.read_text, "password of the private key", secret=True)
    tls_verify: bool = option(
        "tlsVerify", texts.read_boolean, "verify the certificates and host names of servers", default=True
    )
    tls_server_hostname: str | None = option(
        "tlsServerHostname", texts.read_text, "host name to expect in every certificate"
    )
    request_timeout: float = option(
        "requestTimeoutMs", texts.read_millis, "time limit of one request, in milliseconds", default=10.0
    )
    broker_address_map: Mapping[str, str] | None = option(
        "brokerAddressMap", texts.read_address_map, "JSON: address that a broker registers → address to connect to"
    )

    def __post_init__(self) -> None:
        if (self.access_key is None) != (self.secret_key is None):
            raise ConfigError("options accessKey and secretKey belong together")
        for item in fields(self):
            if item.name.startswith("tls_") and getattr(self, item.name) != item.default and not self.tls:
                raise ConfigError(f"option {item.metadata['option']} needs tls=true")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(ConnectionOptions):
    """What is read, from where on, and in parts of which size: what batch queries and streams share."""

    topics: tuple[str, ...] = option(
        "topic", texts.read_topics, "topics to read, separated by commas", default=(), aliases=("subscribe",)
    )
    topic_pattern: str | None = option(
        "subscribePattern", texts.read_pattern, "regular expression for whole topic names"
    )
    assignment: tuple[MessageQueue, ...] = option(
        "assign", texts.read_assignment, "queues to read, as JSON: topic → broker → queue ids", default=()
    )
    starting_offsets: str | Mapping[MessageQueue, int] = option(
        "startingOffsets", texts.read_offsets, "offsets to start at", default="earliest"
    )
    starting_timestamp: int | None = option("startingTimestamp", texts.read_timestamp, "store time to start at")
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        texts.read_boolean,
        "fail if messages are gone or damaged; false: leave them out",
        default=True,
    )
    min_partitions: int | None = option("minPartitions", texts.read_count, "split queues into at least this many tasks")
    max_partitions: int | None = option(
        "maxPartitions", texts.read_count, "use at most this many tasks; a task may read several ranges"
    )
    max_records_per_partition: int | None = option(
        "maxRecordsPerPartition", texts.read_count, "split ranges with more messages"
    )
    tag_expression: str = option("subExpression", texts.read_text, "tags to read, for example a || b", default="*")
    sql_expression: str | None = option(
        "sqlExpression", texts.read_text, "SQL92 filter; brokers need enablePropertyFilter=true"
    )
    include_properties: bool = option(
        "includeProperties", texts.read_boolean, "add the column properties", default=False
    )
    include_hosts: bool = option(
        "includeHosts", texts.read_boolean, "add columns with hosts, flags and log positions", default=False
    )
    group_id: str | None = option(
        "groupId", texts.read_group, "consumer group named to brokers; a stream also reports its offsets under it"
    )
    pull_batch_bytes: int = option("pullBatchBytes", texts.read_size, "bytes to ask for in one pull", default=1 << 20)
    arrow_batch_bytes: int = option(
        "arrowBatchBytes", texts.read_size, "bytes in one record batch", default=RECORD_BATCH_BYTES
    )
    fetch_timeout: float = option(
        "fetchTimeoutMs", texts.read_millis, "how long to retry a failed pull, in milliseconds", default=120.0
    )

    def __post_init__(self) -> None:
        # super() without arguments does not work in a dataclass with slots, which is a copy of the class in its body.
        ConnectionOptions.__post_init__(self)
        if sum(map(bool, (self.topics, self.topic_pattern, self.assignment))) != 1:
            raise ConfigError("give exactly one of the options topic, subscribePattern and assign")
        if self.starting_timestamp is not None and self.starting_offsets != "earliest":
            raise ConfigError("give startingOffsets or startingTimestamp, not both")
        if self.pull_batch_bytes > _MOST_PULL_BYTES:
            raise ConfigError(f"pullBatchBytes must be at most {_MOST_PULL_BYTES}, got {self.pull_batch_bytes}")
        if self.arrow_batch_bytes > MOST_RECORD_BATCH_BYTES:
            raise ConfigError(
                f"arrowBatchBytes must be at most {MOST_RECORD_BATCH_BYTES}, got {self.arrow_batch_bytes}"
            )
        if (self.min_partitions or 1) > (self.max_partitions or self.min_partitions or 1):
            raise ConfigError("minPartitions is more than maxPartitions")
        if self.sql_expression is not None and self.tag_expression != "*":
            raise ConfigError("give subExpression or sqlExpression, not both")
        check_filter(self.tag_expression, self.sql_expression, ("subExpression", "sqlExpression"))

    @property
    def group(self) -> str:
        """The consumer group that pulls name."""
        return self.group_id or "SPARK_SOURCE"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ReadOptions):
    """What a batch query reads: from where to where."""

    ending_offsets: str | Mapping[MessageQueue, int] = option(
        "endingOffsets", texts.read_offsets, "offsets to stop before", default="latest"
    )
    ending_timestamp: int | None = option("endingTimestamp", texts.read_timestamp, "store time to stop before")

    def __post_init__(self) -> None:
        ReadOptions.__post_init__(self)
        if self.ending_timestamp is not None and self.ending_offsets != "latest":
            raise ConfigError("give endingOffsets or endingTimestamp, not both")
        if self.ending_timestamp is not None and (self.starting_timestamp or 0) > self.ending_timestamp:
            raise ConfigError("startingTimestamp lies behind endingTimestamp")
        if not isinstance(self.starting_offsets, str) and not isinstance(self.ending_offsets, str):
            for queue, start in self.starting_offsets.items():
                if start > (end := self.ending_offsets.get(queue, texts.LATEST)) >= 0:
                    raise ConfigError(f"startingOffsets lies behind endingOffsets for {queue}: {start} and {end}")
        if self.starting_offsets == "latest":
            raise ConfigError("startingOffsets=latest reads nothing in a batch query")
        if self.ending_offsets == "earliest":
            raise ConfigError("endingOffsets=earliest reads nothing in a batch query")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSourceOptions(ReadOptions):
    """What a stream reads, and how much of it at a time."""

    max_offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger", texts.read_count, "most messages in one batch, all queues together"
    )
    min_offsets_per_trigger: int | None = option(
        "minOffsetsPerTrigger", texts.read_count, "messages to wait for before a batch starts"
    )
    max_trigger_delay: float | None = option(
        "maxTriggerDelay", texts.read_duration, "longest wait for minOffsetsPerTrigger; default: 15m"
    )

    def __post_init__(self) -> None:
        ReadOptions.__post_init__(self)
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            raise ConfigError(f"minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, {most}")
        if least is None and self.max_trigger_delay is not None:
            raise ConfigError("maxTriggerDelay needs minOffsetsPerTrigger")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(ConnectionOptions):
    """Where rows go, and how they are packed and sent."""

    topic: str | None = option("topic", texts.read_topic, "topic for every row; without it, rows need a column topic")
    tags: str | None = option("tags", texts.read_tags, "tag for every row; faster than a column")
    producer_group: str = option(
        "producerGroup", texts.read_group, "producer group named to brokers", default="SPARK_SINK"
    )
    queue_selector: str = option(
        "queueSelector",
        texts.read_selector,
        "roundrobin, or hash of shardingKey; for hash the topic must exist",
        default="roundrobin",
    )
    batch_bytes: int = option("batchBytes", texts.read_size, "bytes in one request", default=1 << 20)
    max_in_flight: int = option("maxInFlight", texts.read_count, "most unanswered requests of one task", default=4)
    send_timeout: float = option(
        "sendTimeoutMs", texts.read_millis, "time limit of one attempt, in milliseconds", default=10.0
    )
    delivery_timeout: float = option(
        "deliveryTimeoutMs", texts.read_millis, "how long to retry a failed send, in milliseconds", default=120.0
    )
    create_topic: bool = option("createTopic", texts.read_boolean, "create a topic that does not exist", default=False)
    ignore_system_columns: bool = option(
        "ignoreSystemColumns",
        texts.read_boolean,
        "leave out columns of a read that cannot be written",
        default=False,
    )
    write_id: int | None = option(
        "writeId", texts.read_write_id, "hexadecimal; a second run with the same id gives rows the same message ids"
    )
    properties: Mapping[str, str] | None = option("properties", texts.read_properties, "JSON: properties for every row")

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


SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark itself hands to the sink of a streaming query, among the options, in lower case."""


def option_names(cls: type[ConnectionOptions]) -> dict[str, str]:
    """Return every name and alias that a direction knows, in lower case → the field of the class."""
    return {
        name.lower(): item.name for item in fields(cls) for name in (item.metadata["option"], *item.metadata["aliases"])
    }


def _labels(cls: type[ConnectionOptions]) -> dict[str, str]:
    """Return the same names in lower case → as they are written."""
    return {name.lower(): name for item in fields(cls) for name in (item.metadata["option"], *item.metadata["aliases"])}


def read_options_class(options: Mapping[str, str]) -> type[ReadOptions]:
    """Return what the options of a read are, by those that only a batch query has, or only a stream."""
    given = {name.lower() for name in options}
    shared = option_names(ReadOptions).keys()
    kinds = (StreamSourceOptions, SourceOptions)
    return next((kind for kind in kinds if given & (option_names(kind).keys() - shared)), ReadOptions)


def parse_options(
    cls: type[OptionsT], options: Mapping[str, str], *, ignored: Collection[str] = frozenset()
) -> OptionsT:
    """Read Spark's options into ``cls``.

    ignored  names in lower case that are passed over
    raises  ConfigError for an unknown or repeated option and for a value that does not parse; the text names the option
    """
    known = option_names(cls)
    declared = {item.name: item for item in fields(cls)}
    given: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, text in options.items():
        if name.lower() in ignored:
            continue
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


_DIRECTIONS: Final[tuple[tuple[type[ConnectionOptions], str], ...]] = (
    (ReadOptions, "reading"),
    (SourceOptions, "batch reads"),
    (StreamSourceOptions, "streaming reads"),
    (SinkOptions, "writing"),
)


def _unknown(cls: type[ConnectionOptions], name: str) -> str:
    if name.lower() == "path":
        return "a topic is no path: use the option topic, not load(…) or save(…) with an argument"
    for other, direction in _DIRECTIONS:
        if not issubclass(cls, other) and (label := _labels(other).get(name.lower())):
            return f"option {label} belongs to {direction}"
    labels = _labels(cls)
    if close := difflib.get_close_matches(name.lower(), labels, n=1):
        return f"unknown option {name}; did you mean {labels[close[0]]}?"
    return f"unknown option {name}; there are {', '.join(sorted(labels.values(), key=str.lower))}"
