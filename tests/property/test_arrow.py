"""Arrow kernels: they agree with the reference on valid and damaged messages, on any cut of the input, on any rows."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcore._fast import arrow_in, arrow_out
from rocketcore.errors import DecodeError, MessageIllegal
from rocketcore.protocol.compression import CompressionType, compress, decompress
from tests.property.test_record import DAMAGE, MESSAGES, PAIR, damaged, same_fault
from tests.reference import batch as reference_batch
from tests.reference import columns as reference
from tests.reference import message as reference_message
from tests.reference.columns import Row
from tests.reference.message import Stored
from tests.unit.fast.test_arrow_in import exported
from tests.unit.fast.test_arrow_out import arrays

TEXT_ONLY = st.lists(PAIR, max_size=12).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode("utf-8", "replace")
)
READABLE = st.builds(
    lambda item, topic, text: Stored(
        **{name: getattr(item, name) for name in Stored.__slots__} | {"topic": topic.encode(), "properties": text}
    ),
    MESSAGES,
    st.text("abc%é主", max_size=20),
    TEXT_ONLY,
)
NAMES = st.lists(st.sampled_from(arrow_out.COLUMNS), unique=True, min_size=1)


def gathered(stored: arrow_out.StoredColumns) -> dict[str, list[Any]]:
    rows = stored.rows
    found = {name: array.to_pylist() for name, array in arrays(stored.finish(), rows).items()}
    if "properties" in found:
        found["properties"] = [sorted(pairs) for pairs in found["properties"]]
    return found


@settings(max_examples=200)
@given(st.lists(READABLE, max_size=12), NAMES, st.integers(0, 12))
def test_columns_are_the_references(messages: list[Stored], names: list[str], split: int) -> None:
    records = [reference_message.encode(item) for item in messages]
    data = b"".join(records)
    read, _ = reference_message.decode_all(data, 0, len(data))
    middle = sum(map(len, records[:split]))
    stored = arrow_out.StoredColumns(names)
    assert stored.append(data, 0, middle)[1] == middle
    assert stored.append(data, middle, len(data), None, True)[1] == len(data)
    assert gathered(stored) == reference.columns_of(read, names)


@settings(max_examples=200)
@given(st.lists(MESSAGES, min_size=1, max_size=4), DAMAGE, st.integers(0, 300))
def test_columns_of_damaged_messages(messages: list[Stored], damage: list[tuple[int, int]], cut: int) -> None:
    """Whatever the bytes are: arrays that Arrow accepts, as many rows as the reference reads, the same fault."""
    data = damaged(b"".join(map(reference_message.encode, messages)), damage, cut if cut % 3 else 0)
    read, bad = reference_message.decode_all(data, 0, len(data), check_crc=True)
    stored = arrow_out.StoredColumns(arrow_out.COLUMNS)
    position, error = 0, None
    while position < len(data) and error is None:
        try:
            _, position = stored.append(data, position, len(data), None, True)
        except DecodeError as caught:
            error = caught
    assert same_fault(error, bad)
    found = gathered(stored)
    assert found["body"] == [item.body for item in read]
    assert found["queueOffset"] == [item.queue_offset for item in read]
    assert found["bornHost"] == [reference.host_text(item.born_host) for item in read]


OFFSETS = st.lists(st.integers(-2, 12) | st.sampled_from([-(1 << 63), (1 << 63) - 1]), max_size=8)
EDGE = st.none() | st.integers(-1, 12) | st.sampled_from([-(1 << 63), (1 << 63) - 1])


@given(st.one_of(OFFSETS, OFFSETS.map(sorted)), EDGE, EDGE, st.lists(st.booleans(), min_size=8, max_size=8))
def test_offsets_that_rise(offsets: list[int], after: int | None, limit: int | None, packed: list[bool]) -> None:
    """Whichever bodies the kernel hands back to be unpacked."""
    messages = [
        Stored(topic=b"T", body=b"x", queue_offset=offset, sys_flag=1 if way else 0)
        for offset, way in zip(offsets, packed, strict=False)
    ]
    data = b"".join(map(reference_message.encode, messages))
    stored = arrow_out.StoredColumns(["queueOffset", "body"], lambda *_: b"y")
    count, position = stored.append(data, 0, len(data), limit, after_offset=after)
    assert (count, stored.stopped_by) == reference.rising(offsets, after, limit)
    assert position == sum(len(reference_message.encode(each)) for each in messages[:count])
    assert gathered(stored)["queueOffset"] == offsets[:count]


KINDS = {0: CompressionType.ZLIB} | {int(kind): kind for kind in CompressionType}
"""The type bits of a system flag."""

PACKED = st.tuples(
    st.binary(max_size=200).map(lambda piece: piece * 50) | st.integers(0, (4 << 20) + 2).map(bytes),
    st.integers(1, 9),
    st.sampled_from([b"", b"", b"\0", b"\x28\xb5"]),
    st.sampled_from([None, None, *range(0, 60, 7)]),
    st.sampled_from(sorted(KINDS)),
)  # body, level, what follows the stream, the byte that is wrong, how it is compressed


def there(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


@settings(max_examples=100, deadline=None)
@given(st.lists(PACKED, min_size=1, max_size=5), st.booleans())
def test_compressed_bodies_are_unpacked_as_by_the_slow_way(
    bodies: list[tuple[bytes, int, bytes, int | None, int]], cut: bool
) -> None:
    """What the kernel unpacks is what the Python libraries say; what it cannot unpack is their error."""
    given_up: list[int] = []

    def unpack(body: bytes | memoryview, sys_flag: int) -> bytes:
        given_up.append(sys_flag)
        return decompress(body, sys_flag)

    records, expected, fault = [], [], None
    unusual = 0
    for body, level, rest, wrong, kind in bodies:
        packed = bytearray(compress(body, KINDS[kind], level))
        packed += rest
        if wrong is not None and wrong < len(packed):
            packed[wrong] ^= 0x55
        if cut:
            packed = packed[: len(packed) * 3 // 4]
        record = Stored(topic=b"T", body=bytes(packed), sys_flag=1 | kind)
        records.append(reference_message.encode(record))
        if fault is None:
            try:
                expected.append(decompress(bytes(packed), 1 | kind) if packed else b"")
                unusual += len(expected[-1]) >= 4 << 20 or bool(rest)
            except DecodeError as error:
                fault = str(error)
    data = b"".join(records)
    stored = arrow_out.StoredColumns(["body"], unpack)
    position, found = 0, None
    try:
        while position < len(data):
            _, position = stored.append(data, position, len(data), None, True)
    except DecodeError as caught:
        found = str(caught)
    assert found == fault
    assert gathered(stored)["body"] == expected
    if all(map(there, ("libz.so.1", "liblz4.so.1", "libzstd.so.1"))):
        assert len(given_up) <= unusual + (fault is not None)


VALUE = st.none() | st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=20)
ROWS = st.lists(
    st.builds(
        Row,
        body=st.binary(min_size=1, max_size=80),
        tags=VALUE,
        keys=VALUE,
        properties=st.none() | st.sampled_from(["", "a\x01b\x02", "a\x01b", "n\x01v\x02m\x01w\x02"]),
        msg_id=VALUE,
        flag=st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
    ),
    max_size=12,
)


@settings(max_examples=200)
@given(ROWS, st.booleans(), st.integers(0, 400), st.integers(0, 1 << 20), st.data())
def test_rows_become_the_references_elements(
    rows: list[Row], large: bool, max_bytes: int, row_base: int, data: st.DataObject
) -> None:
    """Any rows, any selection of them, any size of a batch."""
    selection: list[int] | None = None
    if rows:
        selection = data.draw(st.none() | st.lists(st.integers(0, len(rows) - 1), max_size=15))
    order = range(len(rows)) if selection is None else selection
    wanted = [reference.element(rows[i], b"k\x01v\x02", 5, 6, row_base + i) for i in order]
    encoder = arrow_in.BatchEncoder(write_id=5, partition=6, properties=b"k\x01v")
    given_columns = exported(rows, large=large)
    positions = None if selection is None else np.array(selection, np.int64)
    out = bytearray(1000)
    found: list[reference_batch.Element] = []
    while len(found) < len(wanted):
        done, written = encoder.encode(
            out, max_bytes, len(found), len(wanted), row_base, rows=positions, **given_columns
        )
        part = reference_batch.decode(bytes(out), 0, written)
        assert done == len(part) > 0
        assert written <= max_bytes or done == 1
        found += part
    assert found == wanted


@given(st.lists(st.none() | st.binary(max_size=5), min_size=1, max_size=8), st.integers(0, 100))
def test_bodies_that_cannot_be_sent_are_named(bodies: list[bytes | None], row_base: int) -> None:
    encoder = arrow_in.BatchEncoder(write_id=1, partition=1)
    out = bytearray(2000)
    bad = next((i for i, body in enumerate(bodies) if not body), len(bodies))
    body = pa.array(bodies, pa.binary())
    if bad:
        assert encoder.encode(out, 2000, 0, len(bodies), row_base, body=body)[0] == bad
    if bad < len(bodies):
        with pytest.raises(MessageIllegal, match=f"^row {row_base + bad}: the body is"):
            encoder.encode(out, 2000, bad, len(bodies), row_base, body=body)
