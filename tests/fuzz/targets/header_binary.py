"""Binary headers: kernel and reference agree on values and refusals; what is taken is written and read again."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from rocketcore._fast import command, frame
from rocketcore.errors import DecodeError
from rocketcore.protocol.frame import FrameDecoder
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, exact, refused
from tests.reference import frame as reference_frame
from tests.reference import header as reference


def run(data: bytes) -> None:
    want = refused(lambda: reference.read_binary(data))
    if want is None:
        with pytest.raises(DecodeError) as caught:
            command.read(exact(data), 0, len(data), 1)
        assert 0 <= caught.value.position <= len(data)
        return
    values = command.read(exact(data), 0, len(data), 1)
    assert values == want
    check_head(data, values)
    once = rewritten(data)
    assert rewritten(once) == once


def check_head(data: bytes, values: reference.Header) -> None:
    """Read the fixed fields in a buffer that ends with the header."""
    whole = exact(reference_frame.frame(data, b"", 1))
    rows, heads = np.zeros((1, frame.FRAME_COLUMNS), np.int64), np.zeros((1, frame.HEAD_COLUMNS), np.int64)
    assert frame.read_frames(whole, 0, rows, heads)[0] == 1
    columns = [frame.CODE, frame.LANGUAGE, frame.VERSION, frame.OPAQUE, frame.FLAG, frame.STATUS]
    assert heads[0][columns].tolist() == [*values[:5], 0]


def rewritten(data: bytes) -> bytes:
    """Return the header of the command that a header makes, as we write it."""
    (made,) = FrameDecoder().feed(reference_frame.frame(data, b"", 1))
    return made.encode()[8:]


def seeds() -> Iterable[bytes]:
    for record in vectors("frames.jsonl"):
        data = bytes.fromhex(record["hex"])
        if 8 < len(data) < 700 and data[4] == 1:
            yield data[8 : 8 + int.from_bytes(data[5:8])]
    full = reference.write_binary(reference.Header(310, 0, 401, 5, 0, "why", {"a": "g", "bé": "\U0001f600", "c": ""}))
    yield full
    yield full.replace(b"why", b"\xed\xa0\x80")
    yield full[:-1]


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b"\x00\x00\x00\x00", b"\x00\x01a\x00\x00\x00\x01b", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00",
        b"\xc3\xa9", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xe0\x80", b"\xff",
    ),
    max_length=1024,
)  # fmt: skip
