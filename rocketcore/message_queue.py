"""Which queue is meant. Beside ``rocketcore.message``, where users find it, for those who deal with no message."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MessageQueue"]


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker (Java: ``MessageQueue``); sorts as Java sorts it."""

    topic: str
    broker: str
    queue_id: int
