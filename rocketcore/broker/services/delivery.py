"""The delivery of a message that waited, whether for its delay level or for a time: what both services say in one way.

A delivery holds where its message waited: its prepared transaction offset, which in a committed message says where the
half one is, is the physical offset of that message and 1. So the log tells, after any crash, which messages came
(``store/deliveries.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rocketcore.broker.record import StoredRecord
from rocketcore.broker.store import MessageStore, PutResult, PutStatus
from rocketcore.broker.store.timed import TIMED_TOPICS
from rocketcore.codes import TRANSACTION_MASK
from rocketcore.message import REAL_QUEUE_ID, REAL_TOPIC

__all__ = ["Undeliverable", "mark_of", "put_delivery"]


class Undeliverable(Exception):
    """Why a message can never be delivered."""


def mark_of(record: StoredRecord) -> int:
    """What tells a message's delivery from others in the log; never 0, which all other messages have."""
    return record.physical_offset + 1


def put_delivery(
    store: MessageStore,
    record: StoredRecord,
    properties: Mapping[str, str],
    is_gone: Callable[[str, int], bool],
) -> PutResult:
    """Put a message that waited where it is for; its text stays as it is.

    properties  what that text says
    is_gone     (topic, physical offset): whether the topic was deleted after a message for it was stored there
    returns     what the store says, PUT_OK or that it takes nothing at the moment
    raises      Undeliverable
    """
    message = record.message
    message.topic, message.queue_id = _real_place(properties)
    if is_gone(message.topic, record.physical_offset):
        raise Undeliverable(f"topic {message.topic} was deleted")
    message.sys_flag &= ~TRANSACTION_MASK
    message.prepared_transaction_offset = mark_of(record)
    result = store.put(message)
    if result.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
        raise Undeliverable(f"topic {message.topic} does not take it: {result.reason}")
    return result


def _real_place(properties: Mapping[str, str]) -> tuple[str, int]:
    """Return topic and queue id that a message is for; raises Undeliverable."""
    topic, queue_id = properties.get(REAL_TOPIC), properties.get(REAL_QUEUE_ID, "")
    if not topic or topic in TIMED_TOPICS or not (queue_id.isascii() and queue_id.isdigit()):
        raise Undeliverable(f"it has no real topic and queue: {topic!r}, {queue_id!r}")
    return topic, int(queue_id)
