"""Frames of a stream: the kernel against the reference, and any split of the stream against the whole.

input  u8: rows of the table in bits 0 and 1, limit in bit 2 · u8: where the stream is split · stream
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from rocketcore._fast import frame
from rocketcore.errors import DecodeError
from rocketcore.protocol import command
from rocketcore.protocol.frame import FrameDecoder
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, exact
from tests.reference import frame as reference

LIMITS = (16_777_216, 64)


def run(data: bytes) -> None:
    if len(data) < 2:
        return
    capacity, limit, split = data[0] & 3, LIMITS[data[0] >> 2 & 1], data[1]
    stream = data[2:]
    scan(stream, capacity + 1, limit)
    whole = decode([stream], limit)
    cut = split % (len(stream) + 1)
    step = split % 7 + 1
    for parts in ([stream[:cut], stream[cut:]], [stream[at : at + step] for at in range(0, len(stream), step)]):
        commands, error = decode(parts, limit)
        if whole[1] is not None and error is None and limit == min(LIMITS):
            # What begins a frame is looked at again when all of it has come.
            error = decode([*parts, bytes(limit)], limit)[1]
        assert commands == whole[0]
        assert error == whole[1] or (error is None and limit > min(LIMITS))


def scan(stream: bytes, capacity: int, limit: int) -> None:
    block = exact(stream)
    rows = np.zeros((capacity, frame.FRAME_COLUMNS), np.int64)
    heads = np.zeros((capacity, frame.HEAD_COLUMNS), np.int64)
    try:
        want = reference.scan(stream, 0, len(stream), capacity, limit)
    except DecodeError as error:
        with pytest.raises(DecodeError) as caught:
            frame.read_frames(block, 0, rows, heads, limit)
        assert (caught.type, caught.value.position) == (type(error), error.position)  # noqa: PT017
        return
    count, position, _ = frame.read_frames(block, 0, rows, heads, limit)
    assert ([tuple(row) for row in rows[:count].tolist()], position) == want


def decode(parts: Iterable[bytes], limit: int) -> tuple[list[Any], tuple[Any, ...] | None]:
    """Return the commands of a stream that comes in parts, and the error that ends it."""
    command._opaque = itertools.count()  # type: ignore[misc]  # headers that name no opaque get the next one
    decoder = FrameDecoder(limit)
    found: list[Any] = []
    try:
        for part in parts:
            found += decoder.feed(part)
        if decoder.failed:
            decoder.feed(b"")
    except DecodeError as error:
        return list(map(fields, found)), (type(error), error.reason)
    return list(map(fields, found)), None


def fields(of: command.RemotingCommand) -> tuple[Any, ...]:
    return tuple(getattr(of, name) for name in type(of).__slots__)


def seeds() -> Iterable[bytes]:
    frames = [bytes.fromhex(record["hex"]) for record in vectors("frames.jsonl") if len(record["hex"]) < 1200]
    for index, data in enumerate(frames):
        yield bytes([index & 7, index & 255]) + data
    yield b"\x03\x10" + b"".join(frames[:5])
    yield b"\x02\x10" + frames[0] + frames[1] + b"\x00\x00\x00\x02"


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b"\x00\x00\x00\x04", b"\x00\x00\x00\x19\x01\x00\x00\x15", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff",
    ),
)  # fmt: skip
