"""Text that POP speaks of messages in [5.x]: the handle of each, and the offsets of an answer.

handle       ``start_offset pop_time invisible_time revive_queue_id marker broker queue_id queue_offset``: what a broker
             wants back with an acknowledgement (Java: extraInfo, property ``POP_CK``)
startOffset  ``marker queue_id start_offset``, items joined by ``;``
msgOffset    ``marker queue_id offset,offset,…``
orderCount   ``marker queue_id count`` and ``marker qo<queue_id>%<offset> count``
marker       ``0`` the topic itself, ``1`` and ``2`` its retry topic of either form

RocketMQ 5.5.0: ``ExtraInfoUtil``, ``KeyBuilder``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from rocketcore.codes import RETRY_TOPIC_PREFIX
from rocketcore.errors import DecodeError

__all__ = [
    "ORDERED_REVIVE_QUEUE",
    "POP_CK",
    "Handle",
    "marker_of",
    "parse_message_offsets",
    "parse_order_counts",
    "parse_start_offsets",
    "pop_retry_topic",
]

POP_CK: Final = "POP_CK"
"""Property of the handle."""
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
ORDERED_REVIVE_QUEUE: Final = 999
"""Revive queue id in the handles of an ordered POP, which has none."""

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)

T = TypeVar("T")


def _number(text: str, what: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise DecodeError(f"{what}: not a number: {text[:80]!r}")
    return int(text)


def pop_retry_topic(topic: str, group: str, marker: str = RETRY_V1) -> str:
    """Return the topic by which what a group did not acknowledge of a topic comes back."""
    return f"{RETRY_TOPIC_PREFIX}{group}{'+' if marker == RETRY_V2 else '_'}{topic}"


def marker_of(topic: str) -> str:
    """Return the marker of a stored topic."""
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


class Handle(NamedTuple):
    """What a broker wants back with an acknowledgement; times are milliseconds."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    marker: str
    broker: str
    queue_id: int
    queue_offset: int

    @classmethod
    def decode(cls, text: str) -> Handle:
        """Read a handle; raises DecodeError for any other text."""
        parts = text.split(" ")
        if len(parts) < 8:
            raise DecodeError(f"handle of a popped message: {text[:80]!r} has {len(parts)} parts of 8")
        start, popped, invisible, revive, marker, broker, queue_id, offset = parts[:8]
        what = "handle of a popped message"
        return cls(
            _number(start, what),
            _number(popped, what),
            _number(invisible, what),
            _number(revive, what),
            marker,
            broker,
            _number(queue_id, what),
            _number(offset, what),
        )

    def encode(self) -> str:
        """Return the text of this handle."""
        return " ".join(map(str, self))

    def stored_topic(self, topic: str, group: str) -> str:
        """Return the topic whose queue the message lies in; ``topic`` is the one that it was sent to."""
        if self.marker in (RETRY_V1, RETRY_V2):
            return pop_retry_topic(topic, group, self.marker)
        return topic


def _parse(text: str | None, what: str, value: Callable[[str], T]) -> dict[tuple[str, str], T]:
    """Read items ``marker key value``; Java leaves out what is empty behind the last ``;``."""
    found: dict[tuple[str, str], T] = {}
    for item in (text or "").rstrip(";").split(";") if text else ():
        parts = item.split(" ")
        if len(parts) != 3 or not parts[2]:
            raise DecodeError(f"{what}: {item[:80]!r} is not of three parts")
        if (key := (parts[0], parts[1])) in found:
            raise DecodeError(f"{what}: {item[:80]!r} comes twice")
        found[key] = value(parts[2])
    return found


def parse_start_offsets(text: str | None) -> dict[tuple[str, str], int]:
    """Return marker and queue id → where the POP began in that queue; raises DecodeError."""
    return _parse(text, "startOffsetInfo", lambda value: _number(value, "startOffsetInfo"))


def parse_message_offsets(text: str | None) -> dict[tuple[str, str], list[int]]:
    """Return marker and queue id → queue offsets of the messages, in the answer's order; raises DecodeError."""
    return _parse(text, "msgOffsetInfo", lambda value: [_number(each, "msgOffsetInfo") for each in value.split(",")])


def parse_order_counts(text: str | None) -> dict[tuple[str, str], int]:
    """Return marker and queue id, or ``qo<queue id>%<offset>`` → how often handed out before; raises DecodeError."""
    return _parse(text, "orderCountInfo", lambda value: _number(value, "orderCountInfo"))
