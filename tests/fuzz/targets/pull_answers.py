"""Known pulls answered from the receive buffer, against frames that are read and answered one by one.

input  u8: bits 0 and 1 records that are found, bit 2 damage the second of them · a stream of frames
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rocketcore._fast import command as command_kernel
from rocketcore._fast.command import encode_pull_response_header
from rocketcore._fast.fields import set_apart
from rocketcore._fast.pulls import PullAnswers
from rocketcore.errors import DecodeError
from rocketcore.protocol.frame import ChunkReader
from tests.fuzz.target import Target, exact
from tests.reference.message import Stored, encode

PULL, LITE_PULL, VERSION, LIMIT, START, FIRST, RUN_MOST = 11, 361, 479, 1 << 16, 4096, 10, 4
ASKED = {"topic": "T", "queueId": "2", "queueOffset": "10", "commitOffset": "-1"}
RECORDS = [
    encode(
        Stored(topic=b"T", body=b"abc", queue_id=2, queue_offset=FIRST + number, physical_offset=START + 95 * number)
    )
    for number in range(3)
]
LOG = bytearray(b"".join(RECORDS))
UNITS = np.array([(START + 95 * number, 95, number) for number in range(3)], np.int64)
KNOWN: dict[bytes, str] = {}


class Found:
    """What the pulls of one input find, and what is told of them."""

    count = 0
    told: list[tuple[Any, ...]] = []  # noqa: RUF012 - one kernel for all inputs, as a server has one for all reads


def locate(peer: Any, decided: str, offset: int) -> tuple[Any, int, bool, int, int, int, int, int] | None:
    return (LOG, START, False, Found.count, 2, offset, 0, 99) if Found.count else None


KERNEL = PullAnswers(
    (PULL, LITE_PULL), KNOWN, locate, lambda *answer: Found.told.append(answer), memoryview(UNITS), VERSION, LIMIT
)


def frame(code: int = PULL, kind: int = 0, body: bytes = b"", **fields: str) -> bytes:
    return command_kernel.encode_frame(code, 0, VERSION, 7, 0, None, ASKED | fields, body, kind)


def apart(data: bytes) -> list[tuple[bytes, int, int, int, int] | None] | None:
    """Set the frames of a stream apart; None where it is not all frames of pulls, or too many."""
    reader = ChunkReader(LIMIT)
    try:
        end = reader.scan(data, 0)
    except DecodeError:
        return None
    chunk = reader.chunk
    if not 0 < chunk.count <= RUN_MOST or end != len(data) or chunk.code not in (PULL, LITE_PULL):
        return None
    return [
        set_apart(chunk.data, chunk.rows, chunk.heads, index, b"queueOffset", b"commitOffset")
        for index in range(chunk.count)
    ]


for each in (frame(), frame(LITE_PULL), frame(kind=1)):
    (first,) = apart(each) or [None]
    assert first is not None
    KNOWN[first[0]] = "decided"


def run(data: bytes) -> None:
    if not data:
        return
    Found.count, damaged = data[0] & 3, bool(data[0] & 4)
    Found.told.clear()
    LOG[95 + 84] ^= damaged
    try:
        answer = KERNEL.answer(exact(data[1:]))
    finally:
        LOG[95 + 84] ^= damaged
    want, told = expected(data[1:], damaged and Found.count > 1)
    assert (answer, Found.told) == (want, told)


def expected(stream: bytes, damaged: bool) -> tuple[bytes | None, list[tuple[Any, ...]]]:
    pulls = apart(stream)
    if pulls is None or damaged or not Found.count:
        return None, []
    records = b"".join(RECORDS[: Found.count])
    answers, told = [], []
    for pull in pulls:
        if pull is None or pull[0] not in KNOWN or pull[1] != FIRST:
            return None, []  # records of other offsets are not what lies there
        _, offset, commit, opaque, kind = pull
        head = encode_pull_response_header(0, opaque, VERSION, "FOUND", 0, offset, 0, 99, len(records), kind)
        answers += [head, records]
        told.append(("decided", commit, offset, Found.count, len(records)))
    return b"".join(answers), told


def seeds() -> Iterable[bytes]:
    for flags in range(8):
        yield bytes((flags,)) + frame()
    for pull in (frame(LITE_PULL), frame(kind=1), frame(body=b"x"), frame(topic="U"), frame(queueOffset="99")):
        yield b"\3" + pull
        yield b"\3" + frame() + pull
    yield b"\2" + frame() * 4
    yield b"\2" + frame() * 5
    yield b"\2" + frame()[:-1]


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(b'"queueOffset"', b'"commitOffset"', b'"topic"', b'"code":11', b'"code":361', b'"flag":0', b"\x00\x0b"),
)
