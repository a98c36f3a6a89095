"""Client batches, plainly: elements of 22 bytes and their body and properties, back to back."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tests.reference.message import Bad


class Element(NamedTuple):
    flag: int
    body: bytes
    properties: bytes


def encode(elements: Sequence[Element]) -> bytes:
    return b"".join(
        struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, flag, len(body))
        + body
        + struct.pack(">h", len(properties))
        + properties
        for flag, body, properties in elements
    )


def decode(data: bytes, start: int, end: int) -> list[Element]:
    """Decode a batch that must end at ``end``; size, magic and CRC of an element are ignored. Raises Bad."""
    found = []
    while start < end:
        if end - start < 22:
            raise Bad("past end", start)
        flag, length = struct.unpack_from(">ii", data, start + 12)
        p = start + 20
        if not 0 <= length <= end - p:
            raise Bad("body", start)
        body = data[p : p + length]
        p += length
        if end - p < 2:
            raise Bad("properties", start)
        (length,) = struct.unpack_from(">h", data, p)
        p += 2
        if not 0 <= length <= end - p:
            raise Bad("properties", start)
        found.append(Element(flag, body, data[p : p + length]))
        start = p + length
    return found
