"""Message properties, plainly: the text of pairs as Java's ``MessageDecoder`` reads and writes it."""

from __future__ import annotations

from collections.abc import Mapping


def decode(text: str) -> dict[str, str]:
    """Return the pairs; one without name, value or U+0001 does not count, the last one of a name wins."""
    properties = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def encode(properties: Mapping[str, str | None]) -> str:
    """Return the text, every pair ended by U+0002."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items() if value is not None)
