"""Frames of the remoting protocol, plainly: split a stream of bytes into header and body ranges."""

from __future__ import annotations

from rocketcore.errors import DecodeError, FrameTooLarge

Row = tuple[int, int, int, int, int, int]


def scan(data: bytes, start: int, end: int, capacity: int, limit: int = 16_777_216) -> tuple[list[Row], int]:
    """Return the rows (frame, header start and length, body start and length, type) and the first byte not consumed."""
    rows: list[Row] = []
    position = start
    while len(rows) < capacity:
        try:
            row = split(data[:end], position, limit)
        except DecodeError:
            if rows:
                break
            raise
        if row is None:
            break
        rows.append(row)
        position = row[3] + row[4]
    return rows, position


def split(data: bytes, at: int, limit: int) -> Row | None:
    """Return the frame at a position, None if it is incomplete."""
    length_word = data[at : at + 4]
    if len(length_word) < 4:
        return None
    length = int.from_bytes(length_word, signed=True)
    if length < 4:
        raise DecodeError("frame length", at)
    if length + 4 > limit:
        raise FrameTooLarge("frame length", at)
    header_word = data[at + 4 : at + 8]
    if len(header_word) < 4:
        return None
    serialize_type, header_length = header_word[0], int.from_bytes(header_word[1:])
    if serialize_type > 1:
        raise DecodeError("serialize type", at)
    if header_length > length - 4:
        raise DecodeError("header length", at)
    if len(data) - at < 4 + length:
        return None
    body = at + 8 + header_length
    return at, at + 8, header_length, body, length - 4 - header_length, serialize_type


def frame(header: bytes, body: bytes, serialize_type: int) -> bytes:
    """Return one frame."""
    words = (4 + len(header) + len(body)).to_bytes(4) + bytes([serialize_type]) + len(header).to_bytes(3)
    return words + header + body
