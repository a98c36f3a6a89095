"""Known pulls answered from the receive buffer, against frames that are read and answered one by one.

input  u8: bits 0 and 1 records that are found, bit 2 damage the second of them · a stream of frames
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rocketcore._fast import command as command_kernel
from rocketcore._fast.command import encode_pull_response_header
from rocketcore._fast.consume_queue import UNIT_SIZE, put_unit
from rocketcore._fast.decided import Decided
from rocketcore._fast.fields import set_apart
from rocketcore._fast.pulls import PullAnswers
from rocketcore._fast.window import Window
from rocketcore.errors import DecodeError
from rocketcore.protocol.frame import ChunkReader
from tests.fixtures.told import Told
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
UNITS = bytearray(UNIT_SIZE * 3)
for number in range(3):
    put_unit(UNITS, UNIT_SIZE * number, START + 95 * number, 95, 0)
KNOWN: dict[bytes, Decided] = {}


class Found:
    """What the pulls of one input find, from which queue, and what is told of them."""

    max_offset = 0
    queue_id, min_offset, begins_later, known_codes = 2, 0, False, None
    told: list[tuple[Any, ...]] = []  # noqa: RUF012 - one kernel for all inputs, as a server has one for all reads


def locate(decided: Decided, offset: int) -> Window | None:
    if not FIRST <= offset < Found.max_offset:
        return None
    units = UNITS[UNIT_SIZE * (offset - FIRST) : UNIT_SIZE * (Found.max_offset - FIRST)]
    return Window(
        Found,  # type: ignore[arg-type]
        units,
        offset,
        3,
        (3, 1 << 20, 3, 1 << 20),
        0,
        None,
        True,
        LOG,
        START,
        False,
        (START, START + len(LOG)),
    )


WINDOWS: dict[bytes, tuple[Decided, Window]] = {}
KERNEL = PullAnswers((PULL, LITE_PULL), KNOWN, {}, WINDOWS, locate, 3, VERSION, LIMIT)


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
    KNOWN[first[0]] = Told(Found.told.append)


def run(data: bytes) -> None:
    if not data:
        return
    Found.max_offset, damaged = FIRST + (data[0] & 3), bool(data[0] & 4)
    WINDOWS.clear()
    Found.told.clear()
    LOG[95 + 84] ^= damaged
    try:
        answer = KERNEL.answer(exact(data[1:]))
    finally:
        LOG[95 + 84] ^= damaged
    want, told = expected(data[1:], damaged)
    assert (answer, Found.told) == (want, told)


def expected(stream: bytes, damaged: bool) -> tuple[bytes | None, list[tuple[Any, ...]]]:
    pulls = apart(stream)
    if pulls is None:
        return None, []
    answers, told = [], []
    end = Found.max_offset
    first = FIRST + 2 if damaged and end >= FIRST + 2 else FIRST
    for pull in pulls:
        if pull is None or pull[0] not in KNOWN or not first <= pull[1] < end:
            return None, []
        _, offset, commit, opaque, kind = pull
        records = b"".join(RECORDS[offset - FIRST : end - FIRST])
        head = encode_pull_response_header(0, opaque, VERSION, "FOUND", 0, end, 0, end, len(records), kind)
        answers += [head, records]
        told.append((commit, end, end - offset, len(records)))
    return b"".join(answers), told


def seeds() -> Iterable[bytes]:
    for flags in range(8):
        yield bytes((flags,)) + frame()
    offsets = [frame(queueOffset=str(offset)) for offset in (11, 99)]
    for pull in (frame(LITE_PULL), frame(kind=1), frame(body=b"x"), frame(topic="U"), *offsets):
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
