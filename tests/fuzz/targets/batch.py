"""Client batches and message ids: scan, encode and put against the reference.

input  u8: bit 0 message id, otherwise a batch; bits 1 and 2 rows of the table · batch or text of the id
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from rocketcore._fast import message
from rocketcore.errors import DecodeError
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, exact, refused
from tests.reference import batch as reference
from tests.reference import message as reference_message
from tests.reference.batch import Element
from tests.reference.message import Bad, join_properties

EXTRA = b"CLUSTER\x01c\x02"
HOST = b"\x0a\x00\x00\x09\x00\x00\x2a\x9f"


def run(data: bytes) -> None:
    if not data:
        return
    if data[0] & 1:
        message_id(data[1:])
    else:
        batch(data[1:], data[0] >> 1 & 3)


def message_id(text: bytes) -> None:
    decoded = refused(lambda: message.decode_offset_msg_id(text))
    assert decoded == refused(lambda: message.decode_offset_msg_id(text.decode("latin-1")))
    refused(lambda: message.decode_offset_msg_id(text.decode(errors="replace")))
    if decoded is not None:
        assert message.offset_msg_id(*decoded) == text.upper()


def batch(data: bytes, spare: int) -> None:
    block = exact(data)
    rows = np.zeros((len(data) // 22 + spare, message.BATCH_COLUMNS), np.int64)
    few = np.zeros((spare, message.BATCH_COLUMNS), np.int64)
    try:
        want = reference.decode(data, 0, len(data))
    except Bad as bad:
        with pytest.raises(DecodeError) as caught:
            message.scan_batch(block, 0, len(data), rows)
        assert caught.value.position == bad.position  # noqa: PT017
        return
    count = message.scan_batch(block, 0, len(data), rows)
    assert count == len(want) == message.scan_batch(block, 0, len(data), few)
    assert (few[: min(spare, count)] == rows[: min(spare, count)]).all()
    found = [
        Element(flag, data[body : body + body_length], data[text : text + text_length])
        for flag, body, body_length, text, text_length, _ in rows[:count].tolist()
    ]
    assert found == want
    bodies, texts = [element.body for element in want], [element.properties for element in want]
    written = message.encode_batch(bodies, texts, [element.flag for element in want])
    assert written == reference.encode(want)
    put(block, rows, want)


def put(block: memoryview, rows: np.ndarray[tuple[int, int], np.dtype[np.int64]], want: list[Element]) -> None:
    out, results = np.zeros(8192, np.uint8), np.zeros((len(rows), message.RESULT_COLUMNS), np.int64)
    stored = [join_properties(element.properties, EXTRA) for element in want]
    try:
        size = message.put_batch(
            out, 7, len(out), 1 << 30, block, rows, len(want), topic=b"T", queue_id=1, queue_offset=50, sys_flag=0,
            born_timestamp=1, born_host=HOST, store_timestamp=2, store_host=HOST, reconsume_times=0,
            extra_properties=EXTRA, results=results,
        )  # fmt: skip
    except ValueError:
        assert any(len(text) > 32767 for text in stored)
        return
    if size == -1:
        assert sum(92 + len(e.body) + len(text) for e, text in zip(want, stored, strict=True)) > len(out) - 7
        return
    records, bad = reference_message.decode_all(bytes(out), 7, 7 + size, check_crc=True)
    assert bad is None
    assert [(record.flag, record.body, record.properties) for record in records] == [
        (element.flag, element.body, text) for element, text in zip(want, stored, strict=True)
    ]
    assert [record.queue_offset for record in records] == list(range(50, 50 + len(want)))


def seeds() -> Iterable[bytes]:
    for index, record in enumerate(vectors("batches.jsonl")):
        if record["name"].startswith(("client/", "decode/")) and len(record["hex"]) < 4000:
            yield bytes([index % 4 << 1]) + bytes.fromhex(record["hex"])
    for record in vectors("ids.jsonl"):
        if record["name"].startswith("offset/"):
            yield b"\x01" + record["expected"].encode()
    yield b"\x01" + b"0a0000090000271100000000000000ff"
    yield b"\x04" + reference.encode(
        [Element(1, b"one", b"k\x01v"), Element(-1, b"", b""), Element(0, b"x", b"a\x01b\x02")]
    )


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x16", b"\x80\x00", b"0000FFFF",
        b"k\x01v\x02", bytes(22),
    ),
)  # fmt: skip
