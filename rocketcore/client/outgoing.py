"""What a producer makes of its arguments before a queue is chosen: the message, its property string, its batch rules.

RocketMQ 5.5.0: ``MessageBatch.generateFromList``, ``MessageDecoder.messageProperties2String``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Final, NamedTuple, Required, TypedDict

from rocketcore._fast.batch import (
    BATCH_COLUMNS,
    BATCH_PROPERTIES_LENGTH,
    BATCH_PROPERTIES_START,
    ELEMENT_FIXED_SIZE,
    scan_batch,
)
from rocketcore._fast.properties import decode_properties
from rocketcore.codes import MAX_PROPERTIES_BYTES, RETRY_TOPIC_PREFIX, MessageSysFlag
from rocketcore.errors import ConfigError, MessageIllegal
from rocketcore.ids import new_uniq_key
from rocketcore.message import (
    DELAY,
    MESSAGE_TYPE,
    NAME_SEPARATOR,
    PRODUCER_GROUP,
    PROPERTY_SEPARATOR,
    REPLY_TYPE,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
    Body,
    Message,
    Scalar,
)
from rocketcore.table import Table

__all__ = [
    "ArrowColumns",
    "Body",
    "MessageOptions",
    "Outgoing",
    "batch_list",
    "can_be_batched",
    "is_reply",
    "make_message",
    "outgoing_batch",
    "outgoing_half",
    "outgoing_message",
    "properties_in_batch",
    "property_text",
    "property_text_of_copy",
    "with_added",
]

_UNBATCHABLE: Final = frozenset((DELAY, MESSAGE_TYPE, TIMER_DELAY_MS, TIMER_DELIVER_MS))
_REPLY: Final = f"{PROPERTY_SEPARATOR}{MESSAGE_TYPE}{NAME_SEPARATOR}{REPLY_TYPE}{PROPERTY_SEPARATOR}"


class MessageOptions(TypedDict, total=False):
    """What ``send`` takes to make a message of a topic and a body; see ``Message``."""

    tag: Scalar | None
    keys: Scalar | Iterable[Scalar] | None
    properties: Mapping[str, Scalar] | None
    message_group: Scalar | None
    delay: float | timedelta | None
    deliver_at: datetime | None
    delay_level: int | None
    flag: int


_OPTIONS: Final = frozenset(MessageOptions.__annotations__)


class ArrowColumns(TypedDict, total=False):
    """Names of the columns that ``send_arrow`` makes messages of."""

    body: Required[str]
    keys: str | None
    tag: str | None
    properties: str | None
    message_group: str | None


def make_message(
    call: str, topic: str | Message, body: Body | None, options: MessageOptions, json: object = ...
) -> Message:
    """Return the message that the arguments of ``send`` and its kin mean; ``call`` is the name for the error."""
    if isinstance(topic, Message):
        if body is not None or options or json is not ...:
            raise ConfigError("give a Message alone, or a topic, a body and its options")
        return topic
    if options and not _OPTIONS.issuperset(options):
        [name, *_] = options.keys() - _OPTIONS
        near = get_close_matches(name, _OPTIONS, n=1)
        names = ", ".join(("json", *MessageOptions.__annotations__))
        hint = f": did you mean {near[0]}?" if near else f"; there are {names}"
        raise TypeError(f"{call}() has no option {name!r}{hint}")
    return Message(topic, body, json=json, **options)


class Outgoing(NamedTuple):
    """What a send request carries, whichever queue it goes to: one message, or the body of a batch."""

    body: bytes | memoryview
    properties: str
    msg_id: str
    sys_flag: int = 0
    flag: int = 0
    batch: bool = False


def outgoing_message(message: Message) -> Outgoing:
    """Give a message its id and its property string."""
    msg_id = new_uniq_key()
    return Outgoing(message.body, property_text(message, msg_id), msg_id, 0, message.flag)


def with_added(text: str, topic: str, added: Mapping[str, str]) -> str:
    """Return a property string with properties beside its own; raises MessageIllegal for what no broker takes."""
    for name, value in added.items():
        if not name or any(separator in name + value for separator in (NAME_SEPARATOR, PROPERTY_SEPARATOR)):
            raise MessageIllegal(f"message to {topic!r}: property {name!r} holds a separator character")
    text = "".join([f"{name}{NAME_SEPARATOR}{value}{PROPERTY_SEPARATOR}" for name, value in added.items()]) + text
    _check_length(topic, text)
    return text


def outgoing_half(message: Message, group: str) -> Outgoing:
    """Return a message that is part of a transaction, of a producer group.

    raises  MessageIllegal for a delayed one: most brokers would delay the half message
    """
    if not can_be_batched(message):
        raise MessageIllegal(f"message to {message.topic!r}: a message of a transaction cannot be delayed")
    msg_id = new_uniq_key()
    text = f"{property_text(message, msg_id)}{TRANSACTION_PREPARED}\x01true\x02{PRODUCER_GROUP}\x01{group}\x02"
    _check_length(message.topic, text)
    return Outgoing(message.body, text, msg_id, int(MessageSysFlag.TRANSACTION_PREPARED), message.flag)


def outgoing_batch(body: bytes | memoryview, ids: Iterable[str]) -> Outgoing:
    """Return the body of a batch (wire specification §5.1) to send; the messages in it have properties of their own.

    ids  of the messages; none where nobody asks for them, nor for those that the broker would give
    """
    return Outgoing(body, "WAIT\x01true\x02", ",".join(ids), batch=True)


def properties_in_batch(body: bytes | memoryview) -> Iterator[dict[str, str]]:
    """Yield the properties of each message in a batch body."""
    rows = Table(len(body) // ELEMENT_FIXED_SIZE, BATCH_COLUMNS)
    count = scan_batch(body, 0, len(body), rows.view)
    starts, lengths = rows.column(BATCH_PROPERTIES_START, count), rows.column(BATCH_PROPERTIES_LENGTH, count)
    for start, length in zip(starts, lengths, strict=True):
        yield decode_properties(bytes(body[start : start + length]))


def property_text(message: Message, msg_id: str) -> str:
    """Return the property string of a message to send: the message's own, its id, and WAIT."""
    tail = f"UNIQ_KEY\x01{msg_id}\x02WAIT\x01true\x02"
    if not message.properties:
        return tail
    text = "".join([f"{name}\x01{value}\x02" for name, value in message.properties.items()]) + tail
    _check_length(message.topic, text)
    return text


def _check_length(topic: str, text: str) -> None:
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise MessageIllegal(f"message to {topic!r}: its properties have no UTF-8: {error}") from None
    if size > MAX_PROPERTIES_BYTES:
        raise MessageIllegal(
            f"message to {topic!r}: the properties have {size} bytes, {MAX_PROPERTIES_BYTES} are allowed"
        )


def is_reply(properties: str) -> bool:
    """Say whether a message with this property string is a reply, for which there is a request code of its own.

    Other properties come before the one that says it, see ``ReceivedMessage.reply_message``.
    """
    return _REPLY in properties


def property_text_of_copy(message: Message, msg_id: str) -> str:
    """Return the property string of a message whose id somebody else gave; refuses the ids that ``arrow_in`` does."""
    if NAME_SEPARATOR in msg_id or PROPERTY_SEPARATOR in msg_id:
        raise MessageIllegal("the message id holds a separator character (U+0001 or U+0002)")
    text = property_text(message, msg_id)
    _check_length(message.topic, text)
    return text


def can_be_batched(message: Message) -> bool:
    """Say whether a message may be part of a batch: it is not delayed, and no reply."""
    return not message.properties or _UNBATCHABLE.isdisjoint(message.properties)


def batch_list(messages: Iterable[Message]) -> list[Message]:
    """Return messages that are to leave in batches, checked.

    raises  TypeError for what are no messages; MessageIllegal for delayed messages, replies and retries among them
    """
    if isinstance(messages, Message) or not isinstance(messages, Iterable):
        raise TypeError(f"send_batch(): a batch must be several messages, got one {type(messages).__name__}")
    batch = list(messages)
    for message in batch:
        if not isinstance(message, Message):
            raise TypeError(f"send_batch(): a batch must be several messages, got {type(message).__name__} among them")
        if message.topic.startswith(RETRY_TOPIC_PREFIX) or not can_be_batched(message):
            raise MessageIllegal(
                f"message to {message.topic!r}: a batch cannot contain delayed messages, replies or retries"
            )
    return batch
