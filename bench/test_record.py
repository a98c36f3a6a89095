"""Stored messages and batches, 32 at a time, beside the reference, a tight ``struct`` loop and memcpy."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pytest

from bench import data
from rocketcore._fast import batch as batch_kernel
from rocketcore._fast import message_id
from rocketcore._fast import record as kernel
from tests.reference import batch as reference_batch
from tests.reference import message as reference

COUNT = 32
SIZES = {"128": 128, "1k": 1024}
HOST = bytes([10, 0, 0, 1]) + (10911).to_bytes(4)

_HEAD = struct.Struct(">iIiiiqqiq8sq8siqi").unpack_from


def struct_decode(body: bytes) -> list[tuple[Any, ...]]:
    """What one would write in Python: one unpack a record, slices for the three texts; IPv4 hosts and V1 only."""
    found = []
    at, end = 0, len(body)
    while at < end:
        fields = _HEAD(body, at)
        start = at + 88
        stop = start + fields[14]
        topic = stop + 1 + body[stop]
        properties = int.from_bytes(body[topic : topic + 2], "big")
        found.append((*fields, body[start:stop], body[stop + 1 : topic], body[topic + 2 : topic + 2 + properties]))
        at += fields[0]
    return found


@pytest.mark.parametrize("row", ["kernel", "kernel-crc", "kernel-tags", "struct", "reference", "memcpy"])
@pytest.mark.parametrize("size", SIZES)
def test_decode(benchmark: Any, row: str, size: str) -> None:
    body = data.stored_messages(COUNT, SIZES[size])
    rows = np.zeros((COUNT, kernel.STORED_COLUMNS), np.int64)
    copy = memoryview(bytearray(len(body)))
    benchmark.group = f"message-decode-{size}"
    benchmark.extra_info |= {"bytes": len(body), "messages": COUNT}
    if row == "struct":
        assert len(benchmark(struct_decode, body)) == COUNT
    elif row == "reference":
        assert len(benchmark(reference.decode_all, body, 0, len(body))[0]) == COUNT
    elif row == "memcpy":
        benchmark(copy.__setitem__, slice(None), body)
        assert copy == body
    else:
        options = (row == "kernel-crc", row == "kernel-tags")
        assert benchmark(kernel.scan_stored, body, 0, len(body), rows, *options) == (COUNT, len(body))


@pytest.mark.parametrize("row", ["kernel", "struct", "reference", "memcpy"])
@pytest.mark.parametrize("size", SIZES)
def test_encode_batch(benchmark: Any, row: str, size: str) -> None:
    bodies = data.bodies(COUNT, SIZES[size])
    texts = [data.stored_properties(index) for index in range(COUNT)]
    elements = [reference_batch.Element(0, body, text) for body, text in zip(bodies, texts, strict=True)]
    wanted = reference_batch.encode(elements)
    benchmark.group = f"batch-encode-{size}"
    benchmark.extra_info |= {"bytes": len(wanted), "messages": COUNT}
    pack, pack_short = struct.Struct(">iiiii").pack, struct.Struct(">h").pack

    def with_struct() -> bytes:
        parts: list[bytes] = []
        for body, text in zip(bodies, texts, strict=True):
            parts += (pack(22 + len(body) + len(text), 0, 0, 0, len(body)), body, pack_short(len(text)), text)
        return b"".join(parts)

    if row == "memcpy":
        copy = memoryview(bytearray(len(wanted)))
        benchmark(copy.__setitem__, slice(None), wanted)
        assert copy == wanted
    elif row == "kernel":
        assert benchmark(batch_kernel.encode_batch, bodies, texts) == wanted
    elif row == "struct":
        assert benchmark(with_struct) == wanted
    else:
        assert benchmark(reference_batch.encode, elements) == wanted


@pytest.mark.parametrize("row", ["kernel", "memcpy", "crc-and-memcpy"])
@pytest.mark.parametrize("size", SIZES)
def test_put_batch(benchmark: Any, row: str, size: str) -> None:
    """A client batch laid out in the log: copy and CRC of every body are the floor."""
    bodies = data.bodies(COUNT, SIZES[size])
    batch = batch_kernel.encode_batch(bodies, [data.stored_properties(index) for index in range(COUNT)])
    rows = np.zeros((COUNT, batch_kernel.BATCH_COLUMNS), np.int64)
    results = np.zeros((COUNT, batch_kernel.PUT_COLUMNS), np.int64)
    out = bytearray(2 * len(batch) + 200 * COUNT)
    view = memoryview(out)[: len(batch)]
    benchmark.group = f"batch-put-{size}"
    benchmark.extra_info |= {"bytes": len(batch), "messages": COUNT}

    def put() -> int:
        count = batch_kernel.scan_batch(batch, 0, len(batch), rows)
        return batch_kernel.put_batch(
            out, 0, len(out), 0, batch, rows, count, topic=b"TopicTest", queue_id=1, queue_offset=0, sys_flag=0,
            born_timestamp=0, born_host=HOST, store_timestamp=0, store_host=HOST, reconsume_times=0,
            results=results,
        )  # fmt: skip

    def copy_and_check() -> None:
        view[:] = batch
        zlib.crc32(batch)

    if row == "kernel":
        assert benchmark(put) == results[:, batch_kernel.PUT_SIZE].sum()
    elif row == "memcpy":
        benchmark(view.__setitem__, slice(None), batch)
    else:
        benchmark(copy_and_check)


@pytest.mark.parametrize("row", ["kernel", "reference"])
def test_offset_ids(benchmark: Any, row: str) -> None:
    offsets = np.arange(COUNT, dtype=np.int64) * 1200
    benchmark.group = "offset-ids-32"

    def plain() -> bytes:
        return ",".join((HOST + offset.to_bytes(8)).hex().upper() for offset in offsets.tolist()).encode()

    wanted = plain()
    if row == "kernel":
        assert benchmark(message_id.offset_msg_ids, HOST, offsets) == wanted
    else:
        assert benchmark(plain) == wanted
