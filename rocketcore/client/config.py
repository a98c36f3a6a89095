"""Settings of producers and consumers.

One frozen object per client, passed down whole. Names are RocketMQ's in snake_case; durations are seconds. The keyword
arguments of ``Producer(…)`` and of the consumers are the fields of these classes.

RocketMQ 5.5.0: ``ClientConfig``, ``DefaultMQProducer``, ``DefaultMQPushConsumer``, ``DefaultLitePullConsumer``.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar

from rocketcore.client.addresses import DEFAULT_NAMESRV, NameServers, name_server_list
from rocketcore.client.hooks import Hook, check_hooks, rpc_hooks
from rocketcore.client.selectors import Selector, find_selector
from rocketcore.codes import DEFAULT_CONSUMER_GROUP, DEFAULT_PRODUCER_GROUP, MAX_MESSAGE_BYTES, TRACE_TOPIC
from rocketcore.config_file import setting
from rocketcore.errors import ConfigError
from rocketcore.message import MessageQueue, ReceivedMessage, TransactionState
from rocketcore.naming import check_group, with_namespace, without_namespace
from rocketcore.protocol.allocate import AllocateStrategy, find_strategy
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.signing import Signer
from rocketcore.transport.hooks import RpcHook
from rocketcore.transport.tls.settings import TlsConfig, TlsOption

__all__ = [
    "MOST_RECORD_BATCH_BYTES",
    "RECORD_BATCH_BYTES",
    "Checker",
    "ClientConfig",
    "ClientOptions",
    "ConsumerConfig",
    "ConsumerOptions",
    "NameServers",
    "ProducerConfig",
    "ProducerOptions",
    "QueueListener",
    "StartFrom",
    "client_config",
    "name_server_list",
]

QueueListener: TypeAlias = Callable[[list[MessageQueue]], Awaitable[object] | object]
"""A function or a coroutine function that gets queues, sorted; what it returns does not count."""
Checker: TypeAlias = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState]]
StartFrom: TypeAlias = Literal["first", "last"] | datetime

RECORD_BATCH_BYTES: Final = 1 << 20
"""About what a record batch of messages holds, read, on its way and in a file: it costs little for each row then, and
is soon full."""

MOST_RECORD_BATCH_BYTES: Final = 1 << 30
"""Arrow's offsets of a column end at 2 GiB."""

MAX_INVISIBLE_SECONDS: Final = 12 * 60 * 60
"""Longest time for which a message may be invisible; Apache's proxy takes no more."""

_COMPRESSIONS: Final = {"zlib": (0, 9), "lz4": (0, 16), "zstd": (1, 22)}
"""By what compresses, the levels that mean the same everywhere: below them libraries choose, above they differ."""


GROUP_NEEDED: Final = (
    "give the consumer a group of its own, for example group='billing': all that leave it out would be members of one"
    " group, and share its messages"
)

_KINDS: Final[Mapping[object, tuple[tuple[type, ...], str]]] = {
    "float": ((int, float), "a number"),
    "int": ((int,), "a whole number"),
    "str": ((str,), "text"),
}
"""By the annotation of a setting what it may be, and what that is called."""


def _check_kinds(config: ClientConfig) -> None:
    """Refuse values of a wrong kind here: where they are used, on a thread or a loop, nobody could be told."""
    for each in fields(config):
        kinds, name = _KINDS.get(each.type, ((object,), ""))
        value = getattr(config, each.name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and name):
            raise ConfigError(f"{each.name} must be {name}, got {type(value).__name__}")
    if not isinstance(config.broker_address_map, Mapping):
        raise ConfigError(f"broker_address_map must be a mapping, got {type(config.broker_address_map).__name__}")
    if not isinstance(config.tls, (bool, TlsConfig, ssl.SSLContext)):
        raise ConfigError(f"tls must be True, False, a TlsConfig or an SSLContext, got {type(config.tls).__name__}")


def _check_above_zero(config: ClientConfig, *names: str) -> None:
    """Refuse intervals without a length and bounds that let nothing through."""
    for name in names:
        value = getattr(config, name)
        if not value > 0:
            raise ConfigError(f"{name} must be above 0, got {value}")


def _enter_namespace(config: ProducerConfig | ConsumerConfig) -> None:
    """Have the group be that of the namespace."""
    if config.namespace and config.namespace_v2:
        raise ConfigError("give namespace or namespace_v2, not both")
    object.__setattr__(config, "group", with_namespace(config.group, config.namespace))


def check_invisible(seconds: object) -> None:
    """Refuse what no broker takes as the time in which a message is acknowledged."""
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 1 <= seconds <= MAX_INVISIBLE_SECONDS:
        raise ConfigError(f"invisible must be 1 to {MAX_INVISIBLE_SECONDS} seconds, got {seconds!r}")


def check_close_timeout(timeout: object) -> None:
    """Refuse what is no number of seconds, before anything is closed."""
    if timeout is not None:
        check_seconds("close: timeout", timeout)


def check_seconds(what: str, seconds: object) -> None:
    """Refuse what is no number of seconds."""
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or seconds != seconds:
        raise ConfigError(f"{what} must be a number of seconds, got {seconds!r}")


def check_max_wait(seconds: float) -> None:
    """Refuse what is no number of seconds from 0 on."""
    check_seconds("max_wait", seconds)
    if seconds < 0:
        raise ConfigError(f"max_wait must be a number of seconds, at least 0, got {seconds!r}")


def check_max_messages(limit: object) -> None:
    """Refuse what is no number of messages."""
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ConfigError(f"max_messages must be a whole number of at least 1, got {limit!r}")


class NamespaceHook:
    """Names a namespace in each request (Java: ``NamespaceRpcHook``)."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def before_request(self, address: str, command: RemotingCommand) -> None:
        command.add_ext_field("nsd", "true")
        command.add_ext_field("ns", self._namespace)

    def after_response(self, address: str, command: RemotingCommand, response: RemotingCommand) -> None:
        """Nothing: answers name none."""


class RemotingSettings(TypedDict):
    """Keyword arguments that both remoting clients take from a client's settings."""

    tls: TlsOption
    hooks: Sequence[RpcHook]
    signer: Signer | None
    address_map: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What producers, consumers and the admin client share (Java: ``ClientConfig``)."""

    namesrv: tuple[str, ...] = setting((DEFAULT_NAMESRV,), "name server addresses", property="namesrvAddr")
    timeout: float = setting(3.0, "longest time of a call, with retries", unit="s", property="mqClientApiTimeout")
    instance_name: str = setting("", "fixed part of the client id; if empty, each client makes its own")
    unit_name: str = setting("", "unit that the client belongs to")
    broker_address_map: Mapping[str, str] = setting(
        help="advertised address → address to connect to", default_factory=lambda: MappingProxyType({})
    )
    tls: TlsOption = setting(
        False, "use TLS: True trusts the system's authorities, a TlsConfig sets more", property="tls.enable"
    )
    hooks: Sequence[Hook] = setting(
        (), "objects that see requests, sends or consumptions (Java: RPCHook, SendMessageHook, …)"
    )
    access_key: str = setting("", "account name for access control")
    secret_key: str = setting("", "secret of the account", secret=True)
    namespace_v2: str = setting("", "namespace that each request carries; topic names stay without it [5.x]")
    heartbeat_interval: float = setting(30.0, "time between heartbeats", unit="s", property="heartbeatBrokerInterval")
    route_interval: float = setting(30.0, "time between route refreshes", unit="s", property="pollNameServerInterval")

    def __post_init__(self) -> None:
        object.__setattr__(self, "namesrv", name_server_list(self.namesrv))
        _check_kinds(self)
        _check_above_zero(self, "timeout", "heartbeat_interval", "route_interval")
        check_hooks(self.hooks)
        if bool(self.access_key) != bool(self.secret_key):
            raise ConfigError("access_key and secret_key belong together")

    @property
    def remoting(self) -> RemotingSettings:
        """Keyword arguments of ``RemotingClient``, which makes the connections."""
        return {
            "tls": self.tls,
            "hooks": rpc_hooks(self.hooks) + ((NamespaceHook(self.namespace_v2),) if self.namespace_v2 else ()),
            "signer": Signer(self.access_key, self.secret_key) if self.access_key else None,
            "address_map": self.broker_address_map,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of a producer (Java: ``DefaultMQProducer``)."""

    namespace: str = setting("", "prefix of topic and group names: ``namespace%name``", property="namespace")
    group: str = setting(DEFAULT_PRODUCER_GROUP, "producer group", property="producerGroup")
    retries: int = setting(2, "further attempts after a failed one", unit="count", property="retryTimesWhenSendFailed")
    attempt_timeout: float = setting(
        0.0,
        "longest attempt before another one; 0 shares the remaining time",
        unit="s",
        property="sendMsgMaxTimeoutPerRequest",
    )
    retry_another_broker_when_not_store_ok: bool = setting(
        False, "try again if the status is not SEND_OK", property="retryAnotherBrokerWhenNotStoreOK"
    )
    default_topic_queue_nums: int = setting(4, "queues of a topic that the first send creates", unit="count")
    compress_over_bytes: int = setting(
        4096, "compress bodies of at least this size", unit="bytes", property="compressMsgBodyOverHowmuch"
    )
    compression: str = setting("zlib", "zlib, lz4 or zstd", property="compressType")
    compression_level: int = setting(5, "compression level", property="compressLevel")
    max_message_bytes: int = setting(MAX_MESSAGE_BYTES, "longest body", unit="bytes", property="maxMessageSize")
    latency_fault_tolerance: bool = setting(
        False, "avoid brokers that answered late", property="sendLatencyFaultEnable"
    )
    trace: bool = setting(False, "send a trace of each message to the trace topic", property="enableTrace")
    trace_topic: str = setting(TRACE_TOPIC, "topic of message traces", property="traceTopic")
    selector: str | Selector = setting(
        "xxhash", "how a message_group selects its queue: xxhash, java_hash or a function"
    )
    checker: Checker | None = setting(
        None,
        "function or coroutine function that a broker asks for the outcome of a transaction",
        property="transactionListener",
    )
    linger: float = setting(0.005, "send_nowait: longest wait for more messages", unit="s", property="batchMaxDelayMs")
    batch_bytes: int = setting(128 * 1024, "send_nowait: bytes of a batch", unit="bytes", property="batchMaxBytes")
    batch_count: int = setting(1024, "send_nowait: messages of a batch", unit="count")
    buffer_bytes: int = setting(
        32 * 1024 * 1024,
        "send_nowait: most bytes without an answer; one topic takes at most three quarters",
        unit="bytes",
        property="totalBatchMaxBytes",
    )
    delivery_timeout: float = setting(30.0, "send_nowait: longest time to the outcome, with retries", unit="s")

    def __post_init__(self) -> None:
        # dataclass(slots=True) makes a new class, so the zero-argument super() would look at the wrong one
        ClientConfig.__post_init__(self)
        _enter_namespace(self)
        check_group(self.group)
        find_selector(self.selector)
        if self.checker is not None and not callable(self.checker):
            raise ConfigError(f"checker must be a function or a coroutine function, got {type(self.checker).__name__}")
        if self.checker is not None and without_namespace(self.group, self.namespace) == DEFAULT_PRODUCER_GROUP:
            raise ConfigError(
                "give a producer with a checker a group of its own, for example group='shop': brokers ask any producer"
                " of the group how a transaction ended"
            )
        _check_above_zero(self, "default_topic_queue_nums", "batch_count", "delivery_timeout")
        if self.retries < 0:
            raise ConfigError(f"retries must be at least 0, got {self.retries}")
        if not self.attempt_timeout >= 0:
            raise ConfigError(
                f"attempt_timeout must be seconds, or 0 for a share of the time, got {self.attempt_timeout}"
            )
        if self.compression not in _COMPRESSIONS:
            raise ConfigError(f"compression must be one of {', '.join(_COMPRESSIONS)}, got {self.compression!r}")
        least, most = _COMPRESSIONS[self.compression]
        if not least <= self.compression_level <= most:
            raise ConfigError(
                f"compression_level of {self.compression} must be {least} to {most}, got {self.compression_level}"
            )
        if not 0 < self.batch_bytes <= min(self.max_message_bytes, self.buffer_bytes):
            raise ConfigError("batch_bytes is above 0, at most max_message_bytes and at most buffer_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings of push and pull consumers (Java: ``DefaultMQPushConsumer``, ``DefaultLitePullConsumer``)."""

    namespace: str = setting("", "prefix of topic and group names: ``namespace%name``", property="namespace")
    group: str = setting(DEFAULT_CONSUMER_GROUP, "consumer group", property="consumerGroup")
    start_from: StartFrom = setting(
        "last",
        "where a group begins that has no offset yet: first, last or a time; last means first for a queue that never "
        "lost a message to age",
        property="consumeFromWhere",
    )
    broadcast: bool = setting(False, "deliver every message to every member", property="messageModel")
    ordered: bool = setting(False, "deliver one message of a queue at a time, in order")
    threads: int = setting(20, "handlers that run at once", unit="count", property="consumeThreadMax")
    max_reconsume_times: int = setting(
        -1, "redeliveries before a message becomes a dead letter; -1 means 16, or no end if ordered", unit="count"
    )
    suspend_time: float = setting(
        1.0, "ordered: pause before a failed message is tried again", unit="s", property="suspendCurrentQueueTimeMillis"
    )
    consume_timeout: float = setting(
        900.0, "time after which a message without a result goes back to the broker", unit="s"
    )
    pull_batch_size: int = setting(32, "messages of one pull", unit="count")
    pull_timeout: float = setting(15.0, "how long a broker holds a pull that finds no message", unit="s")
    pull_threshold_for_queue: int = setting(1000, "most messages of a queue in memory", unit="count")
    pull_threshold_bytes_for_queue: int = setting(
        100 * 1024 * 1024, "most bytes of a queue in memory", unit="bytes", property="pullThresholdSizeForQueue"
    )
    consume_concurrently_max_span: int = setting(
        2000, "largest distance between the first and the last offset in memory", unit="count"
    )
    max_messages: int = setting(32, "PullConsumer: messages of one poll", unit="count", property="pullBatchSize")
    trace: bool = setting(
        False, "PushConsumer: send a trace of each consumption to the trace topic", property="enableTrace"
    )
    trace_topic: str = setting(TRACE_TOPIC, "topic of message traces", property="traceTopic")
    pop: bool = setting(False, "PushConsumer: ask brokers whether to use POP", property="clientRebalance")
    invisible: float = setting(
        30.0, "SimpleConsumer, POP mode: time to acknowledge a message", unit="s", property="popInvisibleTime"
    )
    auto_commit: bool = setting(False, "PullConsumer: commit the messages of earlier polls")
    on_assign: QueueListener | None = setting(
        None, "function or coroutine function, called with new queues", property="messageQueueListener"
    )
    on_revoke: QueueListener | None = setting(
        None,
        "function or coroutine function, called with queues before they go, also on close; its commits are stored",
        property="messageQueueListener",
    )
    allocate: str | AllocateStrategy = setting(
        "AVG", "allocation strategy: a name or a function", property="allocateMessageQueueStrategy"
    )
    rebalance_interval: float = setting(20.0, "time between checks of which member owns which queue", unit="s")
    persist_interval: float = setting(
        5.0,
        "time between commits of offsets; a PushConsumer also commits 0.1 s after a message is done",
        unit="s",
        property="persistConsumerOffsetInterval",
    )
    close_timeout: float = setting(
        10.0, "longest wait for handlers on close", unit="s", property="awaitTerminationMillisWhenShutdown"
    )
    offset_store_path: str = setting(
        "", "folder of broadcast offsets; empty: ~/.rocketmq_offsets", property="rocketmq.client.localOffsetStoreDir"
    )

    def __post_init__(self) -> None:
        if self.group is None:
            raise ConfigError(GROUP_NEEDED)
        ClientConfig.__post_init__(self)
        _enter_namespace(self)
        check_group(self.group)
        find_strategy(self.allocate)
        for name in ("on_assign", "on_revoke"):
            listener = getattr(self, name)
            if listener is not None and not callable(listener):
                raise ConfigError(f"{name} must be a function or a coroutine function, got {type(listener).__name__}")
        _check_above_zero(
            self,
            "threads",
            "max_messages",
            "consume_timeout",
            "pull_timeout",
            "pull_threshold_for_queue",
            "pull_threshold_bytes_for_queue",
            "consume_concurrently_max_span",
            "rebalance_interval",
            "persist_interval",
        )
        if isinstance(self.start_from, datetime):
            if self.start_from.tzinfo is None:
                raise ConfigError("start_from needs a time zone, for example datetime(…, tzinfo=UTC)")
        elif self.start_from not in ("first", "last"):
            raise ConfigError(f"start_from must be 'first', 'last' or a datetime, got {self.start_from!r}")
        check_invisible(self.invisible)
        if not 1 <= self.pull_batch_size <= 1024:
            raise ConfigError(f"pull_batch_size must be 1 to 1024, got {self.pull_batch_size}")
        if self.pop and self.broadcast:
            raise ConfigError("pop is not for broadcast: its queues are the members' own")
        if self.broadcast and self.ordered:
            raise ConfigError("broadcast and ordered exclude each other: order is kept by locks of a group's members")


class ClientOptions(TypedDict, total=False):
    """Keyword arguments that all clients take; the fields of ``ClientConfig`` but ``namesrv``."""

    timeout: float
    instance_name: str
    unit_name: str
    broker_address_map: Mapping[str, str]
    tls: TlsOption
    hooks: Sequence[Hook]
    access_key: str
    secret_key: str
    namespace_v2: str
    heartbeat_interval: float
    route_interval: float


class ProducerOptions(ClientOptions, total=False):
    """Keyword arguments of ``Producer``; the fields of ``ProducerConfig``."""

    namespace: str
    group: str
    retries: int
    attempt_timeout: float
    retry_another_broker_when_not_store_ok: bool
    default_topic_queue_nums: int
    compress_over_bytes: int
    compression: str
    compression_level: int
    max_message_bytes: int
    latency_fault_tolerance: bool
    trace: bool
    trace_topic: str
    selector: str | Selector
    checker: Checker | None
    linger: float
    batch_bytes: int
    batch_count: int
    buffer_bytes: int
    delivery_timeout: float


class ConsumerOptions(ClientOptions, total=False):
    """Keyword arguments of ``PushConsumer`` and ``PullConsumer``; the fields of ``ConsumerConfig``."""

    namespace: str
    group: str
    start_from: StartFrom
    broadcast: bool
    ordered: bool
    threads: int
    max_reconsume_times: int
    suspend_time: float
    consume_timeout: float
    pull_batch_size: int
    pull_timeout: float
    pull_threshold_for_queue: int
    pull_threshold_bytes_for_queue: int
    consume_concurrently_max_span: int
    max_messages: int
    trace: bool
    trace_topic: str
    pop: bool
    invisible: float
    auto_commit: bool
    on_assign: QueueListener | None
    on_revoke: QueueListener | None
    allocate: str | AllocateStrategy
    rebalance_interval: float
    persist_interval: float
    close_timeout: float
    offset_store_path: str


ConfigT = TypeVar("ConfigT", bound=ClientConfig)


def client_config(
    kind: type[ConfigT], namesrv: NameServers, options: Mapping[str, Any], config: ConfigT | None = None
) -> ConfigT:
    """Return the settings that the arguments of a client mean; raises ConfigError for ``config`` and others."""
    if config is None:
        return kind(namesrv=name_server_list(namesrv), **options)
    _check_alone(config, kind, namesrv, options)
    return config


def _check_alone(config: object, kind: type[ClientConfig], namesrv: NameServers, options: Mapping[str, object]) -> None:
    """Refuse ``config`` beside settings of their own: which of the two is meant?"""
    if not isinstance(config, kind):
        raise ConfigError(f"config must be a {kind.__name__}, got {type(config).__name__}")
    others = (["namesrv"] if namesrv is not None else []) + sorted(options)
    if others:
        raise ConfigError(f"config says it all: give {', '.join(others)} there, or use dataclasses.replace(config, …)")
