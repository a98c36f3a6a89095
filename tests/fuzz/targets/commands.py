"""Commands end to end: a frame to its command to declared headers, and back.

A header that is read straight from the bytes is the one that the map of ext fields gives.

input  u8: form of the frame, bit 0 · u8: bits of the header class · header of the frame
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final

from rocketcore.errors import DecodeError
from rocketcore.protocol import command
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.protocol.schema import Header, HeaderType
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, refused
from tests.reference import frame as reference_frame
from tests.reference import header as reference
from tests.reference.declarations import HEADERS

CLASSES: Final[list[HeaderType]] = [
    value for value in HEADERS.values() if isinstance(value, HeaderType) and value is not Header
]


def run(data: bytes) -> None:
    if len(data) < 2:
        return
    command._opaque = itertools.count()  # type: ignore[misc]  # a header that names no opaque gets the next one
    frame = reference_frame.frame(data[2:], b"body", data[0] & 1)
    try:
        (decoded,) = FrameDecoder().feed(frame)
    except DecodeError:
        return
    kind: Any = CLASSES[data[1] % len(CLASSES)]
    straight = outcome(lambda: decoded.header(kind))
    repr(decoded)
    assert straight == outcome(lambda: decoded.header(kind)), "bytes and map differ"
    read_and_write(kind, decoded)


def outcome(read: Callable[[], Header]) -> Any:
    try:
        return vars(read())
    except DecodeError as error:
        return str(error)


def read_and_write(kind: type[Header], decoded: command.RemotingCommand) -> None:
    header = refused(lambda: decoded.header(kind))
    if header is None:
        return
    fields = header.to_ext_fields()
    again = kind.from_ext_fields(fields)
    assert again == header
    assert again.to_ext_fields() == fields
    request = command.RemotingCommand.request(decoded.code, header, serialize_type=decoded.serialize_type)
    (sent,) = FrameDecoder().feed(request.encode())
    # A binary header carries no empty text.
    if all(fields.values()):
        assert refused(lambda: sent.header(kind)) == header


def seeds() -> Iterable[bytes]:
    for index, kind in enumerate(CLASSES):
        ext = {
            field.wire_name: {"int": "1", "Long": "-5", "bool": "true"}.get(field.kind, "LOWER")
            for field in kind.FIELDS
        }
        value = reference.Header(11, 0, 493, 7, 0, None, ext)
        yield bytes([0, index]) + reference.write_json(value)
        yield bytes([1, index]) + reference.write_binary(value)
    for record in vectors("headers.jsonl"):
        frame = bytes.fromhex(record.get("binaryFrame") or "")
        if 8 < len(frame) < 500:
            yield bytes([1, len(frame) & 255]) + frame[8 : 8 + int.from_bytes(frame[5:8])]


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        *sorted({f'"{field.wire_name[:28]}":"'.encode() for kind in CLASSES for field in kind.FIELDS}),
        b"9223372036854775807", b"-9223372036854775808", b"2147483648", b"true", b"false", b"UPPER", b'"code":105',
        b"+1", b"\xd9\xa1",
    ),
    max_length=1024,
)  # fmt: skip
