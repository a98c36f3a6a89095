"""The handle of a message that waits for its time, as a producer is given it."""

from __future__ import annotations

from rocketcore.errors import ConfigError, DecodeError
from rocketcore.protocol.recall import RecallHandle

__all__ = ["broker_of"]


def broker_of(topic: str, handle: object) -> str:
    """Return the broker that gave a handle; raises ConfigError for what is none."""
    if not isinstance(handle, str):
        hint = ": the broker gave none, because the message has no delivery time" if handle is None else ""
        raise ConfigError(f"{handle!r} is not a handle of a message to {topic!r}{hint}")
    try:
        return RecallHandle.decode(handle).broker
    except DecodeError as error:
        raise ConfigError(f"{handle!r} is not a handle of a message to {topic!r}: {error}") from None
