"""Rows to batches and messages to columns, 1 MiB at a time, beside memcpy of the same bytes and the plain way."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from bench import data
from rocketcore._fast import arrow_in, arrow_out
from tests.reference import columns as reference
from tests.reference import message as reference_message

SIZES = {"100": 100, "1k": 1024}
DEFAULT = ("topic", "queueId", "queueOffset", "msgId", "tags", "keys", "body", "bornTimestamp", "storeTimestamp")
CHOICES = {"kernel": DEFAULT, "kernel-body": ("queueOffset", "body"), "kernel-all": arrow_out.COLUMNS}


@pytest.mark.parametrize("row", [*CHOICES, "reference", "memcpy"])
@pytest.mark.parametrize("size", SIZES)
def test_messages_to_columns(benchmark: Any, row: str, size: str) -> None:
    count = (1 << 20) // (SIZES[size] + 220)
    body = data.stored_messages(count, SIZES[size])
    benchmark.group = f"columns-decode-{size}"
    benchmark.extra_info |= {"bytes": len(body), "messages": count}

    def plain() -> pa.Table:
        messages, _ = reference_message.decode_all(body, 0, len(body))
        return pa.table(reference.columns_of(messages, DEFAULT))

    def gather(stored: arrow_out.StoredColumns) -> int:
        appended, _ = stored.append(body, 0, len(body))
        stored.finish()
        return appended

    if row == "memcpy":
        copy = memoryview(bytearray(len(body)))
        benchmark(copy.__setitem__, slice(None), body)
        assert copy == body
    elif row == "reference":
        assert benchmark.pedantic(plain, rounds=3).num_rows == count
    else:
        assert benchmark(gather, arrow_out.StoredColumns(CHOICES[row])) == count


@pytest.mark.parametrize("row", ["kernel", "kernel-tags-column", "memcpy"])
@pytest.mark.parametrize("size", SIZES)
def test_rows_to_batch(benchmark: Any, row: str, size: str) -> None:
    count = (1 << 20) // (SIZES[size] + 90)
    body = pa.array(data.bodies(count, SIZES[size]), pa.binary())
    given = {"body": body}
    if row == "kernel-tags-column":
        given["tags"] = pa.array(["TagA"] * count)
    encoder = arrow_in.BatchEncoder(write_id=1, partition=2, tags=b"" if "tags" in given else b"TagA")
    out = bytearray(2 << 20)
    done, written = encoder.encode(out, len(out), 0, count, 0, **given)
    assert done == count
    benchmark.group = f"columns-encode-{size}"
    benchmark.extra_info |= {"bytes": written, "rows": count}
    if row == "memcpy":
        source = bytes(out[:written])
        benchmark(memoryview(out)[:written].__setitem__, slice(None), source)
    else:
        assert benchmark(encoder.encode, out, len(out), 0, count, 0, **given) == (count, written)
