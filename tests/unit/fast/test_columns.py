"""Arrow columns to client batches and stored messages to Arrow columns, seen through pyarrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rocketcore._fast import columns, message
from rocketcore.errors import BadChecksum, DecodeError, MessageIllegal
from tests.fixtures.vectors import family, name_of
from tests.reference import batch as reference_batch
from tests.reference import columns as reference
from tests.reference import message as reference_message
from tests.reference.columns import Row
from tests.reference.message import Stored

TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(), "queueId": pa.int32(), "queueOffset": pa.int64(), "msgId": pa.string(), "tags": pa.string(),
    "keys": pa.string(), "body": pa.binary(), "bornTimestamp": pa.int64(), "storeTimestamp": pa.int64(),
    "properties": pa.map_(pa.string(), pa.string()), "bornHost": pa.string(), "storeHost": pa.string(),
    "flag": pa.int32(), "sysFlag": pa.int32(), "reconsumeTimes": pa.int32(), "commitLogOffset": pa.int64(),
    "storeSize": pa.int32(),
}  # fmt: skip


def arrays(found: dict[str, columns.ColumnBuffers], rows: int) -> dict[str, pa.Array]:
    """Wrap column buffers as arrays, without a copy, and validate them."""
    result = {}
    for name, buffers in found.items():
        wrapped: list[Any] = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
        if name == "properties":
            entries = len(wrapped[2]) // 4 - 1
            pairs = pa.StructArray.from_arrays(
                [
                    pa.Array.from_buffers(pa.string(), entries, [None, *wrapped[2:4]]),
                    pa.Array.from_buffers(pa.string(), entries, [None, *wrapped[4:6]]),
                ],
                fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())],
            )
            result[name] = pa.Array.from_buffers(TYPES[name], rows, wrapped[:2], children=[pairs])
        else:
            result[name] = pa.Array.from_buffers(TYPES[name], rows, wrapped)
        result[name].validate(full=True)
    return result


def gather(data: bytes, names: tuple[str, ...] = columns.COLUMNS, **options: Any) -> dict[str, list[Any]]:
    stored = columns.StoredColumns(names)
    _, position = stored.append(data, 0, len(data), **options)
    assert position == len(data)
    rows = stored.rows
    found = {name: array.to_pylist() for name, array in arrays(stored.finish(), rows).items()}
    if "properties" in found:
        found["properties"] = [sorted(pairs) for pairs in found["properties"]]
    return found


def stored_message(index: int, **changes: Any) -> Stored:
    fields: dict[str, Any] = {
        "topic": b"orders",
        "body": f"body {index}".encode(),
        "properties": f"UNIQ_KEY\x01{index:032X}\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01k{index}\x02".encode(),
        "queue_id": 3,
        "queue_offset": 100 + index,
        "physical_offset": 1000 * index,
        "born_timestamp": 1700000000000 + index,
        "born_host": bytes([10, 0, 0, 9, 0, 0, 195, 80]),
        "store_timestamp": 1700000000500 + index,
        "store_host": bytes([10, 0, 0, 1, 0, 0, 42, 159]),
    }
    return Stored(**fields | changes)


def encoded(messages: list[Stored]) -> tuple[bytes, list[Stored]]:
    """The records, and what the oracle reads back of them."""
    data = b"".join(reference_message.encode(item) for item in messages)
    read, bad = reference_message.decode_all(data, 0, len(data))
    assert bad is None
    return data, read


# ----------------------------------------------------------------------------------------------- messages to columns


def test_gathers_every_column() -> None:
    v6 = bytes(range(16)) + (10911).to_bytes(4)
    data, read = encoded(
        [
            stored_message(0),
            stored_message(1, properties=b"", body=b""),
            stored_message(2, born_host=v6, store_host=v6, properties=b"KEYS\x01a b"),
            stored_message(3, topic="主题".encode(), flag=-7, reconsume_times=16, physical_offset=(1 << 63) - 1),
            stored_message(4, properties="TAGS\x01é\x02x\x01y\x01z\x02TAGS\x01last\x02empty\x01\x02".encode()),
        ]
    )
    assert gather(data) == reference.columns_of(read, columns.COLUMNS)


@pytest.mark.parametrize("record", family("stored_messages.jsonl", "append"), ids=name_of)
def test_gathers_what_the_java_store_wrote(record: dict[str, Any]) -> None:
    data = bytes.fromhex(record["hex"])
    if record["name"].startswith("append/topic-128-v1"):
        with pytest.raises(DecodeError):
            gather(data)
        return
    read, _ = reference_message.decode_all(data, 0, len(data))
    found = gather(data, check_crc=True)
    assert found == reference.columns_of(read, columns.COLUMNS)
    if record.get("client"):
        assert found["msgId"] == [record["client"]["msgId"]]


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1023, 1024, 1025, 3000])
def test_any_number_of_rows(count: int) -> None:
    messages = [stored_message(i, properties=b"" if i % 3 else b"TAGS\x01t%d\x02a\x01b" % i) for i in range(count)]
    data, read = encoded(messages)
    assert gather(data) == reference.columns_of(read, columns.COLUMNS)


def test_only_the_wanted_columns() -> None:
    data, read = encoded([stored_message(i) for i in range(5)])
    for name in columns.COLUMNS:
        assert gather(data, (name,)) == reference.columns_of(read, (name,))
    with pytest.raises(ValueError, match="no column 'brokerName'"):
        columns.StoredColumns(("topic", "brokerName"))


def test_append_and_finish_again_and_again() -> None:
    stored = columns.StoredColumns(("queueOffset", "body", "properties"))
    kept = []
    for turn in range(3):
        data, read = encoded([stored_message(10 * turn + i) for i in range(4)])
        half = 2 * len(data) // 4
        assert stored.append(data, 0, half) == (2, half)
        assert stored.append(data, half, len(data)) == (2, len(data))
        assert (stored.rows, stored.last_queue_offset) == (4, 103 + 10 * turn)
        assert stored.gathered_bytes == len(data)
        kept.append((arrays(stored.finish(), 4), read))
        assert (stored.rows, stored.gathered_bytes, stored.last_queue_offset) == (0, 0, 103 + 10 * turn)
    for found, read in kept:  # earlier buffers are not touched by later appends
        assert found["body"].to_pylist() == [item.body for item in read]
        assert found["queueOffset"].to_pylist() == [item.queue_offset for item in read]


def test_stops_at_the_limit() -> None:
    data, read = encoded([stored_message(i) for i in range(6)])
    stored = columns.StoredColumns(("queueOffset",))
    assert stored.append(data, 0, len(data), 104) == (4, read[4].position)
    assert stored.append(data, read[4].position, len(data), 104) == (0, read[4].position)
    assert stored.last_queue_offset == 103


def test_compressed_bodies_are_unpacked_into_their_column() -> None:
    """By the caller's function, with the message's flag; what is gathered counts as it is unpacked."""
    bodies = [b"plain", b"abc", b"", b"de"]
    data, read = encoded(
        [stored_message(i, sys_flag=0 if i == 0 else 0x301, body=body) for i, body in enumerate(bodies)]
    )
    asked = []

    def unpack(body: memoryview, sys_flag: int) -> bytes:
        asked.append((bytes(body), sys_flag))
        return bytes(body) * 1000

    stored = columns.StoredColumns(("body", "queueOffset", "sysFlag"), unpack)
    assert stored.append(data, 0, len(data), None, True) == (4, len(data))
    assert asked == [(b"abc", 0x301), (b"de", 0x301)]
    assert stored.gathered_bytes == len(data) + 999 * 5
    found = arrays(stored.finish(), 4)
    assert found["body"].to_pylist() == [b"plain", b"abc" * 1000, b"", b"de" * 1000]
    assert found["queueOffset"].to_pylist() == [item.queue_offset for item in read]
    others = columns.StoredColumns(("sysFlag",), unpack)
    assert others.append(data, 0, len(data)) == (4, len(data))
    assert len(asked) == 2
    assert others.gathered_bytes == len(data) - sum(map(len, bodies))
    assert gather(data, ("body",))["body"] == bodies


def test_a_body_that_does_not_unpack_is_the_next_one() -> None:
    data, read = encoded([stored_message(i, sys_flag=0x301 if i == 2 else 0) for i in range(4)])

    def unpack(body: memoryview, sys_flag: int) -> bytes:
        raise DecodeError("no")

    stored = columns.StoredColumns(("body",), unpack)
    with pytest.raises(DecodeError, match="no"):
        stored.append(data, 0, len(data))
    assert stored.rows == 2
    assert arrays(stored.finish(), 2)["body"].to_pylist() == [item.body for item in read[:2]]


def test_stops_when_enough_is_gathered() -> None:
    data, read = encoded([stored_message(i) for i in range(6)])
    stored = columns.StoredColumns(("body",))
    most = read[2].position + 1
    assert stored.append(data, 0, len(data), None, False, most) == (3, read[3].position)
    assert stored.append(data, read[3].position, len(data), None, False, most) == (0, read[3].position)
    stored.finish()
    assert stored.append(data, read[3].position, len(data), None, False, most) == (3, len(data))


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
    columns.check_property_texts(pa.array(good), reserved, 0)
    columns.check_property_texts(pa.array([*good, text]).slice(0, 5), reserved, 0)
    for kind in (pa.string(), pa.large_string()):
        with pytest.raises(MessageIllegal) as refused:
            columns.check_property_texts(pa.array([*good, text], kind).slice(2), reserved, 100)
        assert str(refused.value).startswith("row 103: ")
        assert reason in str(refused.value)


def test_a_bad_record_comes_after_the_good_ones() -> None:
    data, read = encoded([stored_message(i) for i in range(3)])
    damaged = bytearray(data)
    damaged[read[2].position + 8] ^= 1
    stored = columns.StoredColumns(("body", "tags"))
    assert stored.append(damaged, 0, len(data), check_crc=True) == (2, read[2].position)
    with pytest.raises(BadChecksum) as caught:
        stored.append(damaged, read[2].position, len(data), check_crc=True)
    assert caught.value.position == read[2].position
    assert stored.append(damaged, read[2].position, len(data)) == (1, len(data))
    found = arrays(stored.finish(), 3)
    assert found["body"].to_pylist() == [item.body for item in read]


def test_text_that_is_not_utf8_is_replaced() -> None:
    data, _ = encoded([stored_message(0, topic=b"a\xffb", properties=b"TAGS\x01\xed\xa0\x80\x02KEYS\x01\xc3\x28\x02")])
    found = gather(data, ("topic", "tags", "keys"))
    assert found == {"topic": ["a\ufffdb"], "tags": ["\ufffd"], "keys": ["\ufffd("]}


def test_many_properties_and_repeated_names() -> None:
    text = b"".join(b"n%d\x01v%d\x02" % (i % 50, i) for i in range(3000))
    data, read = encoded([stored_message(i, properties=text) for i in range(3)])
    assert gather(data, ("properties",)) == reference.columns_of(read, ("properties",))


# ------------------------------------------------------------------------------------------------ columns to batches

CONSTANT = b"WAIT\x01true\x02"


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
    encoder = columns.BatchEncoder(write_id=0x1234, partition=7)
    out = bytearray(4096)
    done, written = encoder.encode(out, 4096, 0, len(ROWS), 40, **exported(ROWS, large=large))
    assert done == len(ROWS)
    assert elements(out, written) == [reference.element(row, CONSTANT, 0x1234, 7, 40 + i) for i, row in enumerate(ROWS)]
    assert out[written:] == bytes(4096 - written)


def test_constants_and_a_selection_of_rows() -> None:
    encoder = columns.BatchEncoder(
        write_id=(1 << 64) - 1, partition=(1 << 32) - 1, tags=b"T", keys=b"K", properties=b"p\x01q", wait=False
    )
    constant = b"WAIT\x01false\x02TAGS\x01T\x02KEYS\x01K\x02p\x01q\x02"
    out = bytearray(4096)
    body = pa.array([row.body for row in ROWS])
    selection = np.array([4, 0, 0, 2], np.int64)
    done, written = encoder.encode(out, 4096, 1, 4, 1000, body=body, rows=selection)
    assert done == 3
    assert elements(out, written) == [
        reference.element(Row(ROWS[i].body), constant, (1 << 64) - 1, (1 << 32) - 1, 1000 + i) for i in (0, 0, 2)
    ]


def test_a_batch_ends_before_it_gets_too_long() -> None:
    encoder = columns.BatchEncoder(write_id=1, partition=1)
    body = pa.array([b"x" * 100] * 10, pa.binary())
    out = bytearray(10000)
    _, size = encoder.encode(out, 1, 0, 1, 0, body=body)
    for max_bytes, count in ((1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (10000, 10)):
        assert encoder.encode(out, max_bytes, 0, 10, 0, body=body) == (count, count * size)
    assert encoder.encode(bytearray(3 * size - 1), 10000, 0, 10, 0, body=body) == (2, 2 * size)
    with pytest.raises(MessageIllegal, match=r"row 6: the message takes [0-9]+ bytes in a request, [0-9]+ are allowed"):
        encoder.encode(bytearray(size - 1), 10000, 6, 10, 0, body=body)
    assert encoder.encode(out, 10000, 4, 4, 0, body=body) == (0, 0)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Row(None), "the body is null"),
        (Row(b""), "the body is empty"),
        (Row(b"x" * 1001), "larger than the largest message"),
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
    encoder = columns.BatchEncoder(write_id=1, partition=1, max_body=1000)
    out = bytearray(100000)
    given = exported([Row(b"good"), row, Row(b"good")], large=True)
    assert encoder.encode(out, 100000, 0, 3, 5, **given)[0] == 1
    with pytest.raises(MessageIllegal, match=f"row 6: .*{reason}"):
        encoder.encode(out, 100000, 1, 3, 5, **given)
    assert encoder.encode(out, 100000, 2, 3, 5, **given)[0] == 1


def test_properties_may_fill_the_limit_exactly() -> None:
    encoder = columns.BatchEncoder(write_id=1, partition=1)
    fixed = len(reference.element(Row(b"x"), CONSTANT, 1, 1, 0).properties)
    out = bytearray(40000)
    fits = pa.array(["p\x01" + "v" * (32767 - fixed - 3)])
    assert encoder.encode(out, 40000, 0, 1, 0, body=pa.array([b"x"]), properties=fits)[0] == 1
    longer = pa.array(["p\x01" + "v" * (32767 - fixed - 2)])
    with pytest.raises(MessageIllegal):
        encoder.encode(out, 40000, 0, 1, 0, body=pa.array([b"x"]), properties=longer)


def test_row_numbers_end_at_32_bits() -> None:
    encoder = columns.BatchEncoder(write_id=1, partition=1)
    out = bytearray(4096)
    body = pa.array([b"a", b"b"])
    assert encoder.encode(out, 4096, 0, 2, (1 << 32) - 1, body=body)[0] == 1
    assert b"FFFFFFFF" in out
    with pytest.raises(MessageIllegal, match="row 4294967296"):
        encoder.encode(out, 4096, 1, 2, (1 << 32) - 1, body=body)


def test_wrong_columns_are_refused() -> None:
    encoder = columns.BatchEncoder(write_id=1, partition=1)
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
        columns.BatchEncoder(**{"write_id": 1, "partition": 1} | constants)


def test_what_was_encoded_can_be_stored_and_gathered() -> None:
    encoder = columns.BatchEncoder(write_id=9, partition=1, tags=b"T")
    body = pa.array([b"x%d" % i for i in range(100)])
    out = bytearray(20000)
    _, written = encoder.encode(out, 20000, 0, 100, 0, body=body)
    rows = np.zeros((100, message.BATCH_COLUMNS), np.int64)
    results = np.zeros((100, message.RESULT_COLUMNS), np.int64)
    assert message.scan_batch(out, 0, written, rows) == 100
    log = bytearray(40000)
    size = message.put_batch(
        log, 0, 40000, 0, out, rows, 100, topic=b"T", queue_id=0, queue_offset=0, sys_flag=0, born_timestamp=0,
        born_host=bytes(8), store_timestamp=0, store_host=bytes(8), reconsume_times=0, extra_properties=b"",
        results=results,
    )  # fmt: skip
    found = gather(bytes(log[:size]), ("msgId", "tags", "body"))
    assert found["body"] == body.to_pylist()
    assert found["msgId"] == [f"{9:016X}{1:08X}{i:08X}" for i in range(100)]
    assert set(found["tags"]) == {"T"}
