"""Stored messages as a consumer gets them, and the property text of what a producer sends.

The layouts are in ``rocketcore._fast.record``; this module makes ``ReceivedMessage`` objects of its rows.

RocketMQ: ``MessageDecoder``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from rocketcore._fast import message_id
from rocketcore._fast import record as kernel
from rocketcore._fast.batch import (
    BATCH_BODY_LENGTH,
    BATCH_BODY_START,
    BATCH_COLUMNS,
    BATCH_FLAG,
    BATCH_PROPERTIES_LENGTH,
    BATCH_PROPERTIES_START,
    ELEMENT_FIXED_SIZE,
    scan_batch,
)
from rocketcore._fast.properties import decode_properties, decode_text
from rocketcore.addresses import host_text
from rocketcore.codes import MAX_MESSAGE_BYTES, RETRY_TOPIC_PREFIX, MessageSysFlag
from rocketcore.errors import BadChecksum, DecodeError
from rocketcore.message import RETRY_TOPIC, UNIQ_KEY, MessageQueue, ReceivedMessage
from rocketcore.protocol.compression import decompress as decompress_body
from rocketcore.table import Table

__all__ = ["decode_message", "decode_messages", "first_place", "size_at"]

_ROWS: Final = 64
_SMALLEST_RECORD: Final = kernel.stored_size(0, 0, 0, 0)
_COLUMNS: Final = kernel.STORED_COLUMNS
_COMPRESSED: Final = int(MessageSysFlag.COMPRESSED)
_BORN_HOST_V6: Final = int(MessageSysFlag.BORN_HOST_V6)
_STORE_HOST_V6: Final = int(MessageSysFlag.STORE_HOST_V6)
_INNER_BATCH: Final = int(MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP)
_OPENED: Final = _COMPRESSED | _INNER_BATCH
"""Bits of a message whose body is not simply there."""


def decode_messages(
    data: bytes,
    broker_name: str,
    *,
    check_crc: bool = True,
    max_body_bytes: int = MAX_MESSAGE_BYTES,
    max_inflated_bytes: float = math.inf,
    end_offset: float = math.inf,
    stopped: Callable[[ReceivedMessage], object] | None = None,
    unreadable: Callable[[ReceivedMessage, DecodeError], None] | None = None,
    skipped: Callable[[DecodeError], None] | None = None,
) -> list[ReceivedMessage]:
    """Decode records that lie back to back, as in the answer to a pull.

    A message of a retry topic gets the topic it was sent to; its ``queue`` stays the one it was read from. Inner
    batches are unwrapped.

    max_inflated_bytes  stop after the message with which the bodies that were compressed have so many bytes together,
                        unless it is the last
    end_offset          queue offset of the first message that is not in ``data``
    stopped             told of the message at which this stopped
    unreadable          told of a message whose body is damaged, or does not decompress, or unwrap, and of a batch with
                        more elements than the queue has offsets for; it is returned as it was stored. None: it raises
    skipped             told of a record that is no message, but says where the next one begins: it is passed over.
                        Where it does not, this stops behind the message before it; without one it raises. None: it
                        raises
    raises      DecodeError for a record that is cut, does not decode or whose body is unreadable, BadMagic, BadChecksum
    """
    table = Table(_ROWS, _COLUMNS)
    flat, rows = table.flat, table.view
    messages: list[ReceivedMessage] = []
    batch: tuple[ReceivedMessage, int] | None = None  # the last message, where it was unwrapped, and its elements
    inflated = 0
    position = 0
    while position < len(data):
        damage: DecodeError | None = None
        try:
            count, position = kernel.scan_stored(data, position, len(data), rows, check_crc)
            if count == 0:
                raise DecodeError("a message record is cut", position)
        except BadChecksum as error:
            if unreadable is None:
                raise
            damage = error
            count, position = kernel.scan_stored(data, position, position + size_at(data, position), rows, False)
        except DecodeError as error:
            size = size_at(data, position)
            if skipped is None or (not size and not messages):
                raise
            skipped(error)
            if size:
                position += size
                continue
            if stopped is not None:
                stopped(messages[-1])
            break
        for start in range(0, count * _COLUMNS, _COLUMNS):
            if batch is not None:
                _check_unwrapped(messages, batch, flat[start + kernel.QUEUE_OFFSET], unreadable)
                batch = None
            if inflated and inflated >= max_inflated_bytes:
                if stopped is not None:
                    stopped(messages[-1])
                return messages
            stored = _received(data, flat[start : start + _COLUMNS].tolist(), broker_name)
            if damage is not None and unreadable is not None:
                unreadable(stored, damage)
            if damage is not None or not stored.sys_flag & _OPENED:
                messages.append(stored)
                continue
            try:
                opened = _opened(stored, max_body_bytes)
            except DecodeError as error:
                if unreadable is None:
                    raise
                unreadable(stored, error)
                opened = [stored]
            messages += opened
            if len(opened) > 1:
                batch = stored, len(opened)
            inflated += sum(len(message.body) for message in opened)
    if batch is not None:
        _check_unwrapped(messages, batch, end_offset, unreadable)
    return messages


def size_at(data: bytes | memoryview, position: int) -> int:
    """Return the bytes that the record at ``position`` says it has; 0 where there cannot be so many."""
    size = int.from_bytes(data[position : position + 4], signed=True)
    return size if _SMALLEST_RECORD <= size <= len(data) - position else 0


def _check_unwrapped(
    messages: list[ReceivedMessage],
    batch: tuple[ReceivedMessage, int],
    next_offset: float,
    unreadable: Callable[[ReceivedMessage, DecodeError], None] | None,
) -> None:
    """Take the elements of a batch back where they would stand for the messages behind it, which anyone can forge."""
    stored, count = batch
    if stored.offset + count <= next_offset:
        return
    error = DecodeError(f"{count} messages in one at offset {stored.offset}, and the next is at {next_offset:g}")
    if unreadable is None:
        raise error
    unreadable(stored, error)
    messages[-count:] = [stored]


def _opened(stored: ReceivedMessage, max_body_bytes: int) -> list[ReceivedMessage]:
    """Decompress and unwrap. As Java: no body is none to decompress, whatever the flag says."""
    message = stored
    if message.sys_flag & _COMPRESSED and message.body:
        message = _decompressed(message, max_body_bytes)
    return _unwrapped(message) if message.sys_flag & _INNER_BATCH == _INNER_BATCH else [message]


def decode_message(data: bytes, broker_name: str = "", *, check_crc: bool = True) -> ReceivedMessage:
    """Decode one record, as in the answer to VIEW_MESSAGE_BY_ID; raises as ``decode_messages``."""
    messages = decode_messages(data, broker_name, check_crc=check_crc)
    if len(messages) != 1:
        raise DecodeError(f"{len(messages)} messages in place of one")
    return messages[0]


def first_place(data: bytes) -> tuple[int, int] | None:
    """Return physical offset and store time of the first record in the answer to a pull; None where it is damaged."""
    row = Table(1, _COLUMNS).view
    try:
        if not kernel.scan_stored(data, 0, len(data), row)[0]:
            return None
    except DecodeError:
        return None
    return row[0, kernel.PHYSICAL_OFFSET], row[0, kernel.STORE_TIMESTAMP]


def _received(data: bytes, row: list[int], broker_name: str) -> ReceivedMessage:
    (
        _,
        size,
        _,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_offset,
        body_start,
        body_length,
        topic_start,
        topic_length,
        properties_start,
        properties_length,
        *_,
    ) = row
    stored_topic = _text(data[topic_start : topic_start + topic_length])
    properties = decode_properties(data[properties_start : properties_start + properties_length])
    topic = stored_topic
    if stored_topic.startswith(RETRY_TOPIC_PREFIX):
        topic = properties.get(RETRY_TOPIC, stored_topic)
    host = data[store_host : store_host + (20 if sys_flag & _STORE_HOST_V6 else 8)]
    offset_msg_id = message_id.offset_msg_id(host, physical_offset).decode()
    return ReceivedMessage(
        topic,
        data[body_start : body_start + body_length],
        _queue(stored_topic, broker_name, queue_id),
        queue_offset,
        properties.get(UNIQ_KEY, offset_msg_id),
        offset_msg_id,
        properties,
        flag,
        sys_flag,
        body_crc,
        born_timestamp,
        store_timestamp,
        host_text(data[born_host : born_host + (20 if sys_flag & _BORN_HOST_V6 else 8)]),
        host_text(host),
        physical_offset,
        size,
        reconsume_times,
        prepared_offset,
    )


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return decode_text(data)


@lru_cache(maxsize=1024)
def _queue(topic: str, broker_name: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, broker_name, queue_id)


def _decompressed(message: ReceivedMessage, max_body_bytes: int) -> ReceivedMessage:
    try:
        body = decompress_body(message.body, message.sys_flag, max_body_bytes)
    except DecodeError as error:
        raise DecodeError(f"message {message.msg_id} of {message.queue}: {error.reason}", error.position) from None
    # As Java: the type bits stay.
    return replace(message, body=body, sys_flag=message.sys_flag & ~_COMPRESSED)


def _unwrapped(outer: ReceivedMessage) -> list[ReceivedMessage]:
    """Take an inner batch apart [5.x]: elements at consecutive queue offsets, all else is the outer message's."""
    body = outer.body
    capacity = max(1, len(body) // ELEMENT_FIXED_SIZE)
    rows = Table(capacity, BATCH_COLUMNS).view
    messages = []
    for index in range(scan_batch(body, 0, len(body), rows)):
        start = rows[index, BATCH_BODY_START]
        text_start = rows[index, BATCH_PROPERTIES_START]
        properties = decode_properties(body[text_start : text_start + rows[index, BATCH_PROPERTIES_LENGTH]])
        messages.append(
            replace(
                outer,
                body=body[start : start + rows[index, BATCH_BODY_LENGTH]],
                offset=outer.offset + index,
                msg_id=properties.get(UNIQ_KEY, outer.offset_msg_id),
                properties=properties,
                flag=rows[index, BATCH_FLAG],
            )
        )
    return messages
