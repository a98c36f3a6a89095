"""Messages as users see them: what is sent, what is received, where it lies.

Property names are those of RocketMQ's ``MessageConst``. Nothing here touches bytes of the wire or of the log: layouts
are in ``rocketcore._fast.record`` and ``rocketcore.protocol.message``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from rocketcore.codes import (
    MAX_MESSAGE_BYTES,
    REPLY_TOPIC_SUFFIX,
    RESERVED_PROPERTIES,
    MessageSysFlag,
)
from rocketcore.errors import ConfigError, MessageIllegal
from rocketcore.message_queue import MessageQueue as MessageQueue
from rocketcore.message_values import Body as Body
from rocketcore.message_values import Scalar as Scalar
from rocketcore.message_values import body_bytes, is_scalar, json_body, text_of
from rocketcore.naming import check_send_topic, without_namespace
from rocketcore.send_result import BatchResult as BatchResult
from rocketcore.send_result import ReplyFuture as ReplyFuture
from rocketcore.send_result import SendResult as SendResult
from rocketcore.send_result import SendStatus as SendStatus

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
DELAY: Final = "DELAY"
WAIT: Final = "WAIT"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_IMMUNITY_TIME: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
UNIQ_KEY: Final = "UNIQ_KEY"
CLUSTER: Final = "CLUSTER"
INSTANCE_ID: Final = "INSTANCE_ID"
SHARDING_KEY: Final = "__SHARDINGKEY"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
REQUEST_TTL: Final = "TTL"
MESSAGE_TYPE: Final = "MSG_TYPE"
REPLY_TYPE: Final = "reply"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
ARRIVE_TIME: Final = "ARRIVE_TIME"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"

NAME_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
INT32_MIN: Final = -(1 << 31)
INT32_MAX: Final = (1 << 31) - 1
KEY_SEPARATOR: Final = " "

DELAY_LEVELS: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds of the delay levels 1 to 18 as a broker with default settings has them."""


class KeyKind(Enum):
    """What a key is by which messages are found, as ``indexType`` says it (Java: ``MessageConst.INDEX_…_TYPE``).

    KEY is one of a message's keys or its unique id, which RocketMQ does not tell apart in the index.
    """

    KEY = "K"
    UNIQUE = "U"
    TAG = "T"

    def fits(self, properties: Mapping[str, str], key: str) -> bool:
        """Whether a message with these properties has the key."""
        if self is KeyKind.TAG:
            return properties.get(TAGS) == key
        if properties.get(UNIQ_KEY) == key:
            return True
        return self is KeyKind.KEY and key in properties.get(KEYS, "").split(KEY_SEPARATOR)


class ConsumeResult(Enum):
    """The result that a handler returns for a message (Java: ``ConsumeConcurrentlyStatus``)."""

    SUCCESS = "CONSUME_SUCCESS"
    RETRY = "RECONSUME_LATER"


class TransactionState(Enum):
    """How a transaction ended (Java: ``LocalTransactionState``)."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"

    @property
    def sys_flag(self) -> int:
        """The number of this state in END_TRANSACTION."""
        if self is TransactionState.UNKNOWN:
            return 0
        return int(MessageSysFlag.TRANSACTION_COMMIT if self is self.COMMIT else MessageSysFlag.TRANSACTION_ROLLBACK)


class RetryLater(Exception):
    """Raised by a handler: deliver this message again, after about ``delay`` seconds if given.

    Redelivery is by RocketMQ's delay levels: the smallest level that is at least ``delay`` is used.

    of  in a handler of batches: only these messages come again, the others are done; default: all of the batch
    """

    def __init__(self, delay: float | timedelta | None = None, *, of: Iterable[ReceivedMessage] | None = None) -> None:
        super().__init__(delay)
        self.delay = _retry_seconds(delay)
        self.of = None if of is None else tuple(of)
        for message in self.of or ():
            if not isinstance(message, ReceivedMessage):
                raise TypeError(f"RetryLater(of=…) names messages, got {type(message).__name__} among them")

    @property
    def reason(self) -> BaseException | None:
        """The exception that this was raised from, or while handling; None where there was none."""
        return self.__cause__ or (None if self.__suppress_context__ else self.__context__)

    @property
    def delay_level(self) -> int:
        """The delay level to ask the broker for; 0 leaves the choice to it."""
        if self.delay is None:
            return 0
        return delay_level_of(self.delay)


def _retry_seconds(delay: object) -> float | None:
    """Return a delay in seconds; refused where it is given, because where it is used nobody could be told."""
    if isinstance(delay, timedelta):
        return delay.total_seconds()
    if delay is None or (isinstance(delay, (int, float)) and not isinstance(delay, bool) and not math.isnan(delay)):
        return delay
    raise ConfigError(f"a delay must be seconds or a timedelta, got {delay!r:.80}")


def delay_level_of(seconds: float) -> int:
    """Return the smallest default delay level of at least ``seconds``; the highest where none is long enough."""
    return next((level for level, length in enumerate(DELAY_LEVELS, 1) if length >= seconds), len(DELAY_LEVELS))


def _check_flag(topic: str, flag: int) -> None:
    if not isinstance(flag, int) or isinstance(flag, bool):
        raise TypeError(f"message to {topic!r}: flag must be a whole number, got {type(flag).__name__}")
    if not INT32_MIN <= flag <= INT32_MAX:
        raise MessageIllegal(f"message to {topic!r}: flag must be a number of 32 bits, got {flag}")


def _topic_text(topic: object) -> str:
    if not isinstance(topic, str):
        raise TypeError(f"topic must be text, got {type(topic).__name__}")
    return text_of("topic", topic)


def _either(topic: str, body: Body | None, json: object) -> Body:
    """Return the body, or what JSON makes of a value; raises ConfigError for both and for none."""
    if json is ...:
        if body is None:
            raise ConfigError(f"message to {topic!r}: the body is missing")
        return body
    if body is not None:
        raise ConfigError(f"message to {topic!r}: give a body or json, not both")
    return json_body(topic, json)


class Message:
    """A message to send (Java: ``Message``).

    topic          1 to 127 characters of ``[%|a-zA-Z0-9_-]``
    body           bytes, or text that is encoded as UTF-8; not empty, at most 4 MiB
    json           in place of a body: a value that is encoded as JSON; nothing else is set
    tag, keys      the tag, and one index key or several: a text with spaces between them, or several values
    properties     user properties; RocketMQ's own names are refused
    message_group  messages of one group go to one queue, in order
    delay          seconds or timedelta; deliver_at a datetime (5.x timers); delay_level 1 to 18 (4.9 and 5.x)
    flag           a number of 32 bits that the application may use

    A tag, a key, a property and a message_group is text, a number or a UUID, as ``str()`` writes it; for anything else
    say what text is meant.

    raises         TypeError for an argument of a wrong type, ConfigError for contradictory arguments, MessageIllegal
                   for what no broker takes
    """

    __slots__ = ("body", "flag", "message_group", "properties", "topic")

    def __init__(
        self,
        topic: str,
        body: Body | None = None,
        *,
        json: Any = ...,
        tag: Scalar | None = None,
        keys: Scalar | Iterable[Scalar] | None = None,
        properties: Mapping[str, Scalar] | None = None,
        message_group: Scalar | None = None,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        delay_level: int | None = None,
        flag: int = 0,
    ) -> None:
        self.topic = topic if type(topic) is str else _topic_text(topic)
        if json is not ... or body is None:
            body = _either(topic, body, json)
        self.body = body if type(body) is bytes else body_bytes(topic, body)
        self.flag = flag
        if flag:
            _check_flag(topic, flag)
        self.properties: dict[str, str] = {}
        if properties is not None:
            self._set_user_properties(properties)
        if tag is not None:
            self._set_tag(text_of("tag", tag))
        if keys is not None:
            self._set_keys(keys)
        self.message_group = None if message_group is None else text_of("message_group", message_group)
        if self.message_group is not None:
            self.properties[SHARDING_KEY] = self.message_group
        if delay is not None or deliver_at is not None or delay_level is not None:
            self._set_delay(delay, deliver_at, delay_level)
        for name, value in self.properties.items():
            if NAME_SEPARATOR in value or PROPERTY_SEPARATOR in value:
                raise MessageIllegal(f"property {name!r} holds a separator character (U+0001 or U+0002)")

    def _set_tag(self, tag: str) -> None:
        if "||" in tag or tag != tag.strip():
            raise MessageIllegal(
                f"tag {tag!r}: no subscription finds a tag with '||' in it or white space around it, give one tag"
            )
        if tag:
            self.properties[TAGS] = tag

    def _set_keys(self, keys: Scalar | Iterable[Scalar]) -> None:
        if isinstance(keys, str):
            text = text_of("keys", keys)
        else:
            several: list[str]
            if is_scalar(keys):
                several = [text_of("keys", keys)]
            elif isinstance(keys, (bytes, bytearray, memoryview)) or not isinstance(keys, Iterable):
                several = [text_of("keys", keys)]  # which says what they are
            else:
                several = [text_of("each of keys", key) for key in keys]
            for key in several:
                if key.split() != [key]:
                    raise MessageIllegal(f"key {key!r}: a key is not empty and holds no white space")
            text = KEY_SEPARATOR.join(several)
        if text:
            self.properties[KEYS] = text

    def _set_user_properties(self, properties: Mapping[str, Scalar]) -> None:
        if type(properties) is not dict and not isinstance(properties, Mapping):  # the first costs a tenth
            raise TypeError(f"properties must be a mapping of names to values, got {type(properties).__name__}")
        for name, value in properties.items():
            if not isinstance(name, str):
                raise TypeError(f"a property's name must be text, got {type(name).__name__}")
            if name in RESERVED_PROPERTIES:
                raise MessageIllegal(f"property {name!r} is reserved by RocketMQ")
            text = value if type(value) is str else text_of(f"property {name!r}", value)
            if not name or not text:
                raise MessageIllegal(f"property {name!r} needs a name and a value that are not empty, got {text!r}")
            if NAME_SEPARATOR in name or PROPERTY_SEPARATOR in name:
                raise MessageIllegal(f"property name {name!r} holds a separator character (U+0001 or U+0002)")
            self.properties[name] = text

    def _set_delay(self, delay: float | timedelta | None, deliver_at: datetime | None, delay_level: int | None) -> None:
        if sum(value is not None for value in (delay, deliver_at, delay_level)) > 1:
            raise ConfigError("give one of delay, deliver_at and delay_level")
        if delay_level is not None:
            if not isinstance(delay_level, int) or isinstance(delay_level, bool):
                raise TypeError(f"delay_level must be a whole number, got {type(delay_level).__name__}")
            if not 1 <= delay_level <= len(DELAY_LEVELS):
                raise ConfigError(f"delay_level must be 1 to {len(DELAY_LEVELS)}, got {delay_level}")
            self.properties[DELAY] = str(delay_level)
        elif deliver_at is not None:
            if not isinstance(deliver_at, datetime):
                raise TypeError(f"deliver_at must be a datetime, got {type(deliver_at).__name__}")
            if deliver_at.tzinfo is None:
                raise ConfigError("deliver_at needs a time zone, for example datetime(…, tzinfo=UTC)")
            self.properties[TIMER_DELIVER_MS] = str(round(deliver_at.timestamp() * 1000))
        else:
            seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
            if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
                raise TypeError(f"delay must be seconds or a timedelta, got {type(seconds).__name__}")
            if not 0 <= seconds < math.inf:
                raise ConfigError(f"delay must be a number of seconds of at least 0, got {seconds}")
            self.properties[TIMER_DELAY_MS] = str(round(seconds * 1000))

    def check(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        """Refuse what no broker takes; called before anything is sent."""
        check_send_topic(_topic_text(self.topic))
        if type(self.body) is not bytes:
            raise TypeError(
                f"message to {self.topic!r}: the body of a message must be bytes, got {type(self.body).__name__}"
            )
        _check_flag(self.topic, self.flag)
        if not self.body:
            raise MessageIllegal(f"message to {self.topic!r}: the body is empty")
        if len(self.body) > max_bytes:
            raise MessageIllegal(
                f"message to {self.topic!r}: the body has {len(self.body)} bytes, {max_bytes} are allowed"
            )

    @property
    def tag(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.properties.get(KEYS, "").split())

    def __repr__(self) -> str:
        return f"Message(topic={self.topic!r}, tag={self.tag!r}, keys={self.keys!r}, body={_short(self.body)})"


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedMessage:
    """A message that a consumer got (Java: ``MessageExt``).

    ``topic`` is the real topic, also of a retried message; ``queue`` is the queue it was read from, which for a retry
    belongs to ``%RETRY%group``. ``body`` is decompressed. ``ack()`` works where a consumer handed the message out.
    """

    topic: str
    body: bytes
    queue: MessageQueue
    offset: int
    msg_id: str
    offset_msg_id: str
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    flag: int = 0
    sys_flag: int = 0
    body_crc: int = 0
    born_timestamp: int = 0
    store_timestamp: int = 0
    born_host: str = ""
    store_host: str = ""
    physical_offset: int = 0
    store_size: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    _take_result: Callable[[ReceivedMessage, ConsumeResult, float | None], Any] | None = field(default=None, repr=False)
    _take_reply: Callable[[Message], ReplyFuture] | None = field(default=None, repr=False)

    @property
    def tag(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.properties.get(KEYS, "").split())

    @property
    def message_group(self) -> str | None:
        return self.properties.get(SHARDING_KEY)

    @property
    def born_at(self) -> datetime:
        return datetime.fromtimestamp(self.born_timestamp / 1000, UTC)

    @property
    def stored_at(self) -> datetime:
        return datetime.fromtimestamp(self.store_timestamp / 1000, UTC)

    def text(self, encoding: str = "utf-8") -> str:
        """Return the body as text."""
        return self.body.decode(encoding)

    def json(self) -> Any:
        """Return the body parsed as JSON."""
        return json.loads(self.body)

    def ack(self) -> None:
        """Say that the message is done; a second call does nothing.

        raises  InvisibleTimeOver for a message of a ``SimpleConsumer`` that is too late
        """
        self._result_taker()(self, ConsumeResult.SUCCESS, None)

    def retry(self, delay: float | timedelta | None = None) -> None:
        """Ask for the message again, after about ``delay`` (seconds) if given."""
        self._result_taker()(self, ConsumeResult.RETRY, _retry_seconds(delay))

    def change_invisible(self, seconds: float | timedelta) -> None:
        """Make a message of a ``SimpleConsumer`` invisible to others for this long from now.

        It is asked of the broker at once, and not waited for. Until the time is over the message may be acknowledged.

        raises  ConfigError for a message of another consumer; as ``ack``
        """
        change = getattr(self._result_taker(), "change_invisible", None)
        if change is None:
            raise ConfigError("only messages of a SimpleConsumer have an invisible time")
        change(self, _retry_seconds(seconds))

    def process(self) -> _Processing:
        """Return a context (``with`` or ``async with``): ack on a normal exit, retry on an exception.

        The exception goes no further, unless it is a cancellation or an exit: it is told in the log, and printed where
        no logging is configured.
        """
        return _Processing(self)

    def reply(
        self,
        body: Body | None = None,
        *,
        json: Any = ...,
        tag: Scalar | None = None,
        keys: Scalar | Iterable[Scalar] | None = None,
        properties: Mapping[str, Scalar] | None = None,
    ) -> ReplyFuture:
        """Answer this message, whose sender waits for a reply (``Producer.request``); returns at once.

        returns  a future of the reply's SendResult: ``await`` it, or wait by ``result()``; a failure is a warning too
        raises   MessageIllegal for a message that is not a request; Overloaded, ClientClosed
        """
        if self._take_reply is None:
            raise ConfigError("this message was not handed out by a consumer: send its reply_message() with a producer")
        return self._take_reply(self.reply_message(body, json=json, tag=tag, keys=keys, properties=properties))

    def reply_message(
        self,
        body: Body | None = None,
        *,
        json: Any = ...,
        tag: Scalar | None = None,
        keys: Scalar | Iterable[Scalar] | None = None,
        properties: Mapping[str, Scalar] | None = None,
    ) -> Message:
        """Return the message that answers this one, to be sent with any producer (Java: ``createReplyMessage``).

        raises  MessageIllegal where the message is not a request, or no broker has stored it
        """
        asked = self.properties
        for name in (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT):
            if not asked.get(name):
                raise MessageIllegal(f"message {self.msg_id} is not a request: it has no property {name}")
        reply = Message(asked[CLUSTER] + REPLY_TOPIC_SUFFIX, body, json=json, tag=tag, keys=keys, properties=properties)
        for name in (CORRELATION_ID, REPLY_TO_CLIENT, REQUEST_TTL):
            if name in asked:
                reply.properties[name] = asked[name]
        reply.properties[MESSAGE_TYPE] = REPLY_TYPE
        return reply

    def _result_taker(self) -> Callable[[ReceivedMessage, ConsumeResult, float | None], Any]:
        if self._take_result is None:
            raise ConfigError(
                "this message was not handed out by a consumer that tracks it: there is nothing to acknowledge"
            )
        return self._take_result

    def __reduce__(self) -> tuple[Callable[..., ReceivedMessage], tuple[object, ...]]:
        """Pickle, or copy, all but the consumer: the copy is no one's to acknowledge."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["properties"] = dict(self.properties)
        del values["_take_result"], values["_take_reply"]
        return _unpickled, (values,)

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage(topic={self.topic!r}, tag={self.tag!r}, keys={self.keys!r}, queue={self.queue.broker}/"
            f"{self.queue.queue_id}, offset={self.offset}, msg_id={self.msg_id!r}, body={_short(self.body)})"
        )


def hand_out(
    messages: Iterable[ReceivedMessage],
    take_result: Callable[[ReceivedMessage, ConsumeResult, float | None], Any],
    take_reply: Callable[[Message], ReplyFuture],
    offset_delta: int = 0,
) -> None:
    """Tie messages that nobody has seen yet to the consumer that pulled them.

    take_result   gets what ``ack()`` and ``retry()`` say; take_reply what ``reply()`` makes
    offset_delta  of the queue of a static topic: what its broker's offsets lack
    """
    for message in messages:
        object.__setattr__(message, "_take_result", take_result)
        object.__setattr__(message, "_take_reply", take_reply)
        if offset_delta:
            object.__setattr__(message, "offset", message.offset + offset_delta)


def leave_namespace(messages: Iterable[ReceivedMessage], namespace: str) -> None:
    """Have messages that nobody has seen yet name their topic as it is in their namespace."""
    if namespace:
        for message in messages:
            object.__setattr__(message, "topic", without_namespace(message.topic, namespace))


def count_redelivery(message: ReceivedMessage) -> None:
    """Count one more try of an ordered message, which stays where it is instead of going back to its broker."""
    object.__setattr__(message, "reconsume_times", message.reconsume_times + 1)


def _unpickled(values: dict[str, Any]) -> ReceivedMessage:
    return ReceivedMessage(**{**values, "properties": MappingProxyType(values["properties"])})


class _Processing:
    """The context that ``ReceivedMessage.process`` returns."""

    __slots__ = ("_message",)

    def __init__(self, message: ReceivedMessage) -> None:
        self._message = message

    def __enter__(self) -> ReceivedMessage:
        return self._message

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is None:
            self._message.ack()
            return False
        delay, told = (error.delay, error.reason) if isinstance(error, RetryLater) else (None, error)
        if told is not None and isinstance(error, Exception):  # any other goes on, and is seen
            _tell(self._message, told)
        self._message.retry(delay)
        return isinstance(error, Exception)

    async def __aenter__(self) -> ReceivedMessage:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        return self.__exit__(kind, error, trace)


def _tell(message: ReceivedMessage, error: BaseException) -> None:
    """Tell of an exception that ``process`` lets go no further."""
    from rocketcore.warning import processing  # few programs let messages fail, and all import this module

    text = "processing failed topic=%s queue=%s offset=%d msg_id=%s error=%r"
    kind = message.topic, type(error)
    processing.warn(kind, text, message.topic, message.queue, message.offset, message.msg_id, error, error=error)


def _short(body: bytes) -> str:
    return repr(body) if len(body) <= 32 else f"{body[:32]!r}… {len(body)} bytes"
