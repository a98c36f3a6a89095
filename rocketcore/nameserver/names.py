"""What a name server takes for a name or an address: it hands them to everybody, and writes them into its log.

RocketMQ's name server takes any text. Its brokers check topics themselves, and call themselves and their clusters what
their operator says, so nothing more is asked of a name than that it can be shown and has a bounded length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from rocketcore.errors import DecodeError
from rocketcore.printable import is_printable, printable

__all__ = ["check_address", "check_name", "check_topics"]

NAME_CHARACTERS: Final = 255
TOPIC_CHARACTERS: Final = 0x7FFF
"""The longest that a message or a binary header can carry."""
_SHOWN_CHARACTERS: Final = 80
_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]++(?:%[\w.-]++)?\]|[0-9A-Fa-f:]+|[\w.-]++):(\d{1,5})")
"""``host:port``; an IPv6 address may be without brackets, as Java writes it."""


def check_name(what: str, name: str) -> None:
    """Refuse a name that cannot be shown; raises DecodeError."""
    if len(name) > NAME_CHARACTERS:
        raise DecodeError(f"{what} has {len(name)} characters, {NAME_CHARACTERS} are allowed")
    if not is_printable(name):
        raise DecodeError(f"{what} {_shown(name)} holds a control character")


def check_address(what: str, address: str) -> None:
    """Refuse what is no ``host:port``; raises DecodeError."""
    match = _ADDRESS.fullmatch(address) if len(address) <= NAME_CHARACTERS else None
    if match is None or int(match[1]) > 65535:
        raise DecodeError(f"{what} {_shown(address)} is not host:port")


def check_topics(topics: Iterable[str]) -> None:
    """Refuse topics of which one cannot be shown; raises DecodeError. All are looked at in one go."""
    topics = list(topics)
    if is_printable("".join(topics)) and max(map(len, topics), default=0) <= TOPIC_CHARACTERS:
        return
    for topic in topics:
        if len(topic) > TOPIC_CHARACTERS:
            raise DecodeError(f"a topic name of {len(topic)} characters")
        if not is_printable(topic):
            raise DecodeError(f"topic {_shown(topic)} holds a control character")


def _shown(text: str) -> str:
    return f"'{printable(text[:_SHOWN_CHARACTERS])}'"
