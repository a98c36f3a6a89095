"""What the columns of a table mean to the messages that are made of its rows, by their names.

Names are compared without case, as Spark compares them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rocketcore.client.arrow_batches import COLUMNS

__all__ = ["WRITTEN_COLUMNS", "is_of_read", "is_system_column", "spelled"]

WRITTEN_COLUMNS: Final = (
    "body",
    "topic",
    "tags",
    "keys",
    "properties",
    "shardingKey",
    "queueId",
    "brokerName",
    "flag",
    "msgId",
)
"""Columns that a message can be made of."""

_PLACES: Final = ("brokerName", "queueId")


def spelled(name: str, known: Iterable[str]) -> str | None:
    """Return a name as we spell it; None for one that is not known."""
    return next((own for own in known if own.lower() == name.lower()), None)


def is_of_read(name: str) -> bool:
    """Whether a column is one that only a read has."""
    return spelled(name, COLUMNS) is not None and spelled(name, WRITTEN_COLUMNS) is None


def is_system_column(name: str, *, topic_named: bool) -> bool:
    """Whether a column of a read means nothing to a copy of its messages: positions, times, hosts, the old place.

    topic_named  whether the copies' topic is known otherwise
    """
    role = spelled(name, WRITTEN_COLUMNS)
    return is_of_read(name) or role in _PLACES or (role == "topic" and topic_named)
