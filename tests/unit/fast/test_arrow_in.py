"""Arrow columns to client batches, seen through pyarrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rocketcore._fast import arrow_in
from rocketcore._fast import batch as batch_kernel
from rocketcore.errors import MessageIllegal
from tests.reference import batch as reference_batch
from tests.reference import columns as reference
from tests.reference.columns import Row
from tests.unit.fast.test_arrow_out import gather


def column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """An array with an offset and neighbours that must not be read."""
    filler: list[Any] = ["\x01\x02filler"] if not pa.types.is_integer(kind) else [77]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        filler = [b"\x01\x02filler"]
    return pa.array(filler * 3 + values + filler, kind).slice(3, len(values))


def exported(rows: list[Row], *, large: bool) -> dict[str, pa.Array]:
    text = pa.large_string() if large else pa.string()
    return {
        "body": column([row.body for row in rows], pa.large_binary() if large else pa.binary()),
        "tags": column([row.tags for row in rows], text),
        "keys": column([row.keys for row in rows], text),
        "properties": column([row.properties for row in rows], text),
        "msg_id": column([row.msg_id for row in rows], text),
        "flag": column([row.flag for row in rows], pa.int64() if large else pa.int32()),
    }


def elements(out: bytearray, written: int) -> list[reference_batch.Element]:
    return reference_batch.decode(bytes(out), 0, written)


ROWS = [
    Row(b"one", "TagA", "k1 k2", "a\x01b\x02c\x01d\x02", None, 5),
    Row(b"two"),
    Row(b"\x00" * 300, None, "k", "a\x01b", "MY-ID", -1),
    Row(b"four", "", "", "", "", 0),
    Row("fünf".encode(), "标签", None, None, "X" * 100, None),
]


@pytest.mark.parametrize("large", [False, True])
def test_encodes_rows(large: bool) -> None:
    encoder = arrow_in.BatchEncoder(write_id=0x1234, partition=7)
    out = bytearray(4096)
    done, written = encoder.encode(out, 4096, 0, len(ROWS), 40, **exported(ROWS, large=large))
    assert done == len(ROWS)
    assert elements(out, written) == [reference.element(row, b"", 0x1234, 7, 40 + i) for i, row in enumerate(ROWS)]
    assert out[written:] == bytes(4096 - written)


def test_constants_and_a_selection_of_rows() -> None:
    encoder = arrow_in.BatchEncoder(
        write_id=(1 << 64) - 1, partition=(1 << 32) - 1, tags=b"T", keys=b"K", properties=b"p\x01q"
    )
    constant = b"TAGS\x01T\x02KEYS\x01K\x02p\x01q\x02"
    out = bytearray(4096)
    body = pa.array([row.body for row in ROWS])
    selection = np.array([4, 0, 0, 2], np.int64)
    done, written = encoder.encode(out, 4096, 1, 4, 1000, body=body, rows=selection)
    assert done == 3
    assert elements(out, written) == [
        reference.element(Row(ROWS[i].body), constant, (1 << 64) - 1, (1 << 32) - 1, 1000 + i) for i in (0, 0, 2)
    ]


def test_a_batch_ends_before_it_gets_too_long() -> None:
    encoder = arrow_in.BatchEncoder(write_id=1, partition=1)
    body = pa.array([b"x" * 100] * 10, pa.binary())
    out = bytearray(10000)
    _, size = encoder.encode(out, 1, 0, 1, 0, body=body)
    for max_bytes, count in ((1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (10000, 10)):
        assert encoder.encode(out, max_bytes, 0, 10, 0, body=body) == (count, count * size)
    assert encoder.encode(bytearray(3 * size - 1), 10000, 0, 10, 0, body=body) == (2, 2 * size)
    with pytest.raises(MessageIllegal, match=r"row 6: the message takes [0-9]+ bytes in a request, [0-9]+ are allowed"):
        encoder.encode(bytearray(size - 1), 10000, 6, 10, 0, body=body)
    assert encoder.encode(out, 10000, 4, 4, 0, body=body) == (0, 0)


def test_a_batch_goes_on_with_further_columns() -> None:
    encoder = arrow_in.BatchEncoder(write_id=1, partition=1)
    body = pa.array([b"x" * 100] * 10, pa.binary())
    whole, parts = bytearray(10000), bytearray(10000)
    _, length = encoder.encode(whole, 10000, 0, 10, 0, body=body)
    size = length // 10
    used = 0
    for first, last in ((0, 3), (3, 3), (3, 10)):
        part = body.slice(first, last - first)
        done, used = encoder.encode(parts, 10000, 0, last - first, first, body=part, used=used)
        assert (done, used) == (last - first, last * size)
    assert parts == whole
    # One that is full takes no further row, however long that is; only an empty one names it as too long.
    assert encoder.encode(parts, 3 * size, 0, 10, 0, body=body, used=3 * size) == (0, 3 * size)
    assert encoder.encode(parts, 4 * size - 1, 0, 10, 0, body=body, used=3 * size) == (0, 3 * size)
    assert encoder.encode(parts, 4 * size, 0, 10, 0, body=body, used=3 * size) == (1, 4 * size)
    assert encoder.encode(bytearray(size), 10000, 0, 10, 0, body=body, used=1) == (0, 1)
    with pytest.raises(MessageIllegal, match="row 0: the body is empty"):
        encoder.encode(parts, 10000, 0, 1, 0, body=pa.array([b""], pa.binary()), used=size)
    for used in (-1, 10001):
        with pytest.raises(ValueError, match=f"{used} bytes are used of 10000"):
            encoder.encode(parts, 10000, 0, 10, 0, body=body, used=used)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Row(None), "the body is null"),
        (Row(b""), "the body is empty"),
        (Row(b"x" * 1001), "larger than 1000 bytes, the most"),
        (Row(b"x", tags="a\x01b"), "tags hold a separator"),
        (Row(b"x", tags="a\x02"), "tags hold a separator"),
        (Row(b"x", keys="\x02"), "keys hold a separator"),
        (Row(b"x", msg_id="i\x01d"), "message id holds a separator"),
        (Row(b"x", flag=1 << 31), "flag is no int32"),
        (Row(b"x", properties="p\x01" + "v" * 32766), "properties are longer"),
        (Row(b"x", tags="t" * 40000), "properties are longer"),
    ],
)
def test_a_row_that_no_broker_takes_is_named(row: Row, reason: str) -> None:
    encoder = arrow_in.BatchEncoder(write_id=1, partition=1, max_body=1000)
    out = bytearray(100000)
    given = exported([Row(b"good"), row, Row(b"good")], large=True)
    assert encoder.encode(out, 100000, 0, 3, 5, **given)[0] == 1
    with pytest.raises(MessageIllegal, match=f"row 6: .*{reason}"):
        encoder.encode(out, 100000, 1, 3, 5, **given)
    assert encoder.encode(out, 100000, 2, 3, 5, **given)[0] == 1


def test_properties_may_fill_the_limit_exactly() -> None:
    encoder = arrow_in.BatchEncoder(write_id=1, partition=1)
    fixed = len(reference.element(Row(b"x"), b"", 1, 1, 0).properties)
    out = bytearray(40000)
    fits = pa.array(["p\x01" + "v" * (32767 - fixed - 3)])
    assert encoder.encode(out, 40000, 0, 1, 0, body=pa.array([b"x"]), properties=fits)[0] == 1
    longer = pa.array(["p\x01" + "v" * (32767 - fixed - 2)])
    with pytest.raises(MessageIllegal):
        encoder.encode(out, 40000, 0, 1, 0, body=pa.array([b"x"]), properties=longer)


def test_row_numbers_end_at_32_bits() -> None:
    encoder = arrow_in.BatchEncoder(write_id=1, partition=1)
    out = bytearray(4096)
    body = pa.array([b"a", b"b"])
    assert encoder.encode(out, 4096, 0, 2, (1 << 32) - 1, body=body)[0] == 1
    assert b"FFFFFFFF" in out
    with pytest.raises(MessageIllegal, match="row 4294967296"):
        encoder.encode(out, 4096, 1, 2, (1 << 32) - 1, body=body)


def test_wrong_columns_are_refused() -> None:
    encoder = arrow_in.BatchEncoder(write_id=1, partition=1)
    out = bytearray(100)
    body = pa.array([b"a", b"b"])
    for changes, match in (
        ({"body": pa.array([1, 2])}, "column body"),
        ({"body": None}, "body is needed"),
        ({"tags": pa.array(["a"])}, "tags has 1 rows"),
        ({"flag": pa.array(["a", "b"])}, "column flag"),
        ({"tags": pa.array(["a", "b"]).dictionary_encode()}, "dictionary"),
        ({"rows": np.zeros(2, np.int32)}, "int64"),
    ):
        with pytest.raises(ValueError, match=match):
            encoder.encode(out, 100, 0, 2, 0, **{"body": body} | changes)
    for first, last in ((-1, 1), (2, 1), (0, 3)):
        with pytest.raises(ValueError, match="rows"):
            encoder.encode(out, 100, first, last, 0, body=body)
    with pytest.raises(MessageIllegal, match="no such row"):
        encoder.encode(out, 100, 0, 1, 0, body=body, rows=np.array([2]))


@pytest.mark.parametrize(
    "constants",
    [{"tags": b"a\x01"}, {"keys": b"\x02"}, {"write_id": 1 << 64}, {"partition": -1}, {"properties": b"p" * 32767}],
)
def test_wrong_constants_are_refused(constants: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        arrow_in.BatchEncoder(**{"write_id": 1, "partition": 1} | constants)


def test_what_was_encoded_can_be_stored_and_gathered() -> None:
    encoder = arrow_in.BatchEncoder(write_id=9, partition=1, tags=b"T")
    body = pa.array([b"x%d" % i for i in range(100)])
    out = bytearray(20000)
    _, written = encoder.encode(out, 20000, 0, 100, 0, body=body)
    rows = np.zeros((100, batch_kernel.BATCH_COLUMNS), np.int64)
    results = np.zeros((100, batch_kernel.PUT_COLUMNS), np.int64)
    assert batch_kernel.scan_batch(out, 0, written, rows) == 100
    log = bytearray(40000)
    size = batch_kernel.put_batch(
        log, 0, 40000, 0, out, rows, 100, topic=b"T", queue_id=0, queue_offset=0, sys_flag=0, born_timestamp=0,
        born_host=bytes(8), store_timestamp=0, store_host=bytes(8), reconsume_times=0, results=results,
    )  # fmt: skip
    found = gather(bytes(log[:size]), ("msgId", "tags", "body"))
    assert found["body"] == body.to_pylist()
    assert found["msgId"] == [f"{9:016X}{1:08X}{i:08X}" for i in range(100)]
    assert set(found["tags"]) == {"T"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a":"b"}', "no entries of name"),
        ("a\x01b\x01c\x02", "no entries of name"),
        ("a\x01b\x02c", "no entries of name"),
        ("\x02", "no entries of name"),
        ("\x01b\x02", "a property has no name"),
        ("a\x01\x02", "property 'a' has no value"),
        ("a\x01b\x02DELAY\x015\x02", "property 'DELAY' is reserved by RocketMQ"),
        ("TAGS\x01evil", "property 'TAGS' is reserved by RocketMQ"),
    ],
)
def test_property_texts_that_are_none(text: str, reason: str) -> None:
    reserved = (b"DELAY", b"TAGS")
    good = ["a\x01b\x02", None, "", "a\x01b", "DELAYS\x01{}\x02é\x01ü\x02"]
    arrow_in.check_property_texts(pa.array(good), reserved, 0)
    arrow_in.check_property_texts(pa.array([*good, text]).slice(0, 5), reserved, 0)
    for kind in (pa.string(), pa.large_string()):
        with pytest.raises(MessageIllegal) as refused:
            arrow_in.check_property_texts(pa.array([*good, text], kind).slice(2), reserved, 100)
        assert str(refused.value).startswith("row 103: ")
        assert reason in str(refused.value)
