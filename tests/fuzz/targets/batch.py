"""Client batches: scan, encode and put against the reference.

input  u8: bits 1 and 2 rows of the table · batch
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from rocketcore._fast import batch as kernel
from rocketcore.errors import DecodeError
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, exact
from tests.reference import batch as reference
from tests.reference import message as reference_message
from tests.reference.batch import Element
from tests.reference.message import Bad

HOST = b"\x0a\x00\x00\x09\x00\x00\x2a\x9f"


def run(data: bytes) -> None:
    if not data:
        return
    batch(data[1:], data[0] >> 1 & 3)


def batch(data: bytes, spare: int) -> None:
    block = exact(data)
    rows = np.zeros((len(data) // 22 + spare, kernel.BATCH_COLUMNS), np.int64)
    few = np.zeros((spare, kernel.BATCH_COLUMNS), np.int64)
    try:
        want = reference.decode(data, 0, len(data))
    except Bad as bad:
        with pytest.raises(DecodeError) as caught:
            kernel.scan_batch(block, 0, len(data), rows)
        assert caught.value.position == bad.position  # noqa: PT017
        return
    count = kernel.scan_batch(block, 0, len(data), rows)
    assert count == len(want) == kernel.scan_batch(block, 0, len(data), few)
    assert (few[: min(spare, count)] == rows[: min(spare, count)]).all()
    found = [
        Element(flag, data[body : body + body_length], data[text : text + text_length])
        for flag, body, body_length, text, text_length, _ in rows[:count].tolist()
    ]
    assert found == want
    bodies, texts = [element.body for element in want], [element.properties for element in want]
    written = kernel.encode_batch(bodies, texts, [element.flag for element in want])
    assert written == reference.encode(want)
    put(block, rows, want)


def put(block: memoryview, rows: np.ndarray[tuple[int, int], np.dtype[np.int64]], want: list[Element]) -> None:
    out, results = np.zeros(8192, np.uint8), np.zeros((len(rows), kernel.PUT_COLUMNS), np.int64)
    size = kernel.put_batch(
        out, 7, len(out), 1 << 30, block, rows, len(want), topic=b"T", queue_id=1, queue_offset=50, sys_flag=0,  # type: ignore[arg-type]
        born_timestamp=1, born_host=HOST, store_timestamp=2, store_host=HOST, reconsume_times=0, results=results,
    )  # fmt: skip
    if size == -1:
        assert sum(92 + len(element.body) + len(element.properties) for element in want) > len(out) - 7
        return
    records, bad = reference_message.decode_all(bytes(out), 7, 7 + size, check_crc=True)
    assert bad is None
    assert [(record.flag, record.body, record.properties) for record in records] == [
        (element.flag, element.body, reference_message.without_checksums(element.properties)) for element in want
    ]
    assert [record.queue_offset for record in records] == list(range(50, 50 + len(want)))


def seeds() -> Iterable[bytes]:
    for index, record in enumerate(vectors("batches.jsonl")):
        if record["name"].startswith(("client/", "decode/")) and len(record["hex"]) < 4000:
            yield bytes([index % 4 << 1]) + bytes.fromhex(record["hex"])
    yield b"\x04" + reference.encode(
        [Element(1, b"one", b"k\x01v"), Element(-1, b"", b""), Element(0, b"x", b"a\x01b\x02")]
    )


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x16", b"\x80\x00",
        b"k\x01v\x02", bytes(22),
    ),
)  # fmt: skip
