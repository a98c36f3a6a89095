"""Which queue of a topic a message goes to when its sender cares.

Messages of one ``message_group`` go to one queue, as long as the number of queues stays. ``xxhash`` (the default) mixes
short and similar group names well; ``java_hash`` chooses the queue that Java's ``SelectMessageQueueByHash`` chooses, so
that producers of both languages agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import xxhash

from rocketcore._fast.properties import java_hash
from rocketcore.errors import ConfigError

__all__ = ["SELECTORS", "Selector", "find_selector", "select_by_java_hash", "select_by_xxhash"]

Selector: TypeAlias = Callable[[str, int], int]
"""``(message_group, number of queues) -> index of the queue``."""


def select_by_xxhash(message_group: str, count: int) -> int:
    """Return the index by XXH64 of the group's UTF-8 text, seed 0."""
    return xxhash.xxh64_intdigest(message_group.encode()) % count


def select_by_java_hash(message_group: str, count: int) -> int:
    """Return the index that Java's ``SelectMessageQueueByHash`` returns for a text."""
    code = java_hash(message_group)
    # Java: Math.abs(hash % size); % keeps the sign there, so the magnitude of the remainder is what counts.
    return abs(code) % count


SELECTORS: Final[dict[str, Selector]] = {"xxhash": select_by_xxhash, "java_hash": select_by_java_hash}


def find_selector(selector: str | Selector) -> Selector:
    """Return a selector by its name, or the function that was given."""
    if not isinstance(selector, str):
        if not callable(selector):
            raise ConfigError(f"selector must be a name or a function, got {type(selector).__name__}")
        return selector
    try:
        return SELECTORS[selector]
    except KeyError:
        raise ConfigError(f"no selector {selector!r}; there are {', '.join(SELECTORS)}, or give a function") from None
