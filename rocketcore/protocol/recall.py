"""Recall handles: what a broker gives to who sends a message for a time, and takes to take it back (wire.md §5.9).

layout    URL-safe base64, with padding, of ``v1 topic broker time id``: the time is TIMER_OUT_MS + 1 of the message,
          the id its UNIQ_KEY
RocketMQ  common/producer/RecallMessageHandle.java, 5.5.0
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from rocketcore.errors import DecodeError

__all__ = ["RecallHandle"]

_VERSION: Final = "v1"
_INVALID: Final = "recall handle is invalid"


class RecallHandle(NamedTuple):
    """What a handle says (Java: ``RecallMessageHandle.HandleV1``); ``time`` is text, milliseconds since the epoch."""

    topic: str
    broker: str
    time: str
    msg_id: str

    def encode(self) -> str:
        return base64.urlsafe_b64encode(" ".join((_VERSION, *self)).encode()).decode()

    @classmethod
    def decode(cls, handle: str) -> RecallHandle:
        """Read a handle, with its padding or, as Java does, without; raises DecodeError."""
        padded = handle if "=" in handle else handle + "=" * (-len(handle) % 4)
        try:
            version, *items = base64.b64decode(padded.encode(), b"-_", validate=True).decode().split(" ")
        except (binascii.Error, UnicodeError) as error:
            raise DecodeError(_INVALID) from error
        if version != _VERSION or len(items) < len(cls._fields):
            raise DecodeError(_INVALID)
        return cls(*items[: len(cls._fields)])
