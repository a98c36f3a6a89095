"""Stored messages to Arrow columns, seen through pyarrow."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from rocketcore._fast import arrow_out
from rocketcore.errors import BadChecksum, DecodeError
from tests.fixtures.vectors import family, name_of
from tests.reference import columns as reference
from tests.reference import message as reference_message
from tests.reference.message import Stored

TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(), "queueId": pa.int32(), "queueOffset": pa.int64(), "msgId": pa.string(), "tags": pa.string(),
    "keys": pa.string(), "body": pa.binary(), "bornTimestamp": pa.int64(), "storeTimestamp": pa.int64(),
    "properties": pa.map_(pa.string(), pa.string()), "bornHost": pa.string(), "storeHost": pa.string(),
    "flag": pa.int32(), "sysFlag": pa.int32(), "reconsumeTimes": pa.int32(), "commitLogOffset": pa.int64(),
    "storeSize": pa.int32(),
}  # fmt: skip


def arrays(found: dict[str, arrow_out.ColumnBuffers], rows: int) -> dict[str, pa.Array]:
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


def gather(data: bytes, names: tuple[str, ...] = arrow_out.COLUMNS, **options: Any) -> dict[str, list[Any]]:
    stored = arrow_out.StoredColumns(names)
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
    assert gather(data) == reference.columns_of(read, arrow_out.COLUMNS)


@pytest.mark.parametrize("record", family("stored_messages.jsonl", "append"), ids=name_of)
def test_gathers_what_the_java_store_wrote(record: dict[str, Any]) -> None:
    data = bytes.fromhex(record["hex"])
    if record["name"].startswith("append/topic-128-v1"):
        with pytest.raises(DecodeError):
            gather(data)
        return
    read, _ = reference_message.decode_all(data, 0, len(data))
    found = gather(data, check_crc=True)
    assert found == reference.columns_of(read, arrow_out.COLUMNS)
    if record.get("client"):
        assert found["msgId"] == [record["client"]["msgId"]]


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1023, 1024, 1025, 3000])
def test_any_number_of_rows(count: int) -> None:
    messages = [stored_message(i, properties=b"" if i % 3 else b"TAGS\x01t%d\x02a\x01b" % i) for i in range(count)]
    data, read = encoded(messages)
    assert gather(data) == reference.columns_of(read, arrow_out.COLUMNS)


def test_only_the_wanted_columns() -> None:
    data, read = encoded([stored_message(i) for i in range(5)])
    for name in arrow_out.COLUMNS:
        assert gather(data, (name,)) == reference.columns_of(read, (name,))
    with pytest.raises(ValueError, match="no column 'brokerName'"):
        arrow_out.StoredColumns(("topic", "brokerName"))


def test_append_and_finish_again_and_again() -> None:
    stored = arrow_out.StoredColumns(("queueOffset", "body", "properties"))
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
    stored = arrow_out.StoredColumns(("queueOffset",))
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

    stored = arrow_out.StoredColumns(("body", "queueOffset", "sysFlag"), unpack)
    assert stored.append(data, 0, len(data), None, True) == (4, len(data))
    assert asked == [(b"abc", 0x301), (b"de", 0x301)]
    assert stored.gathered_bytes == len(data) + 999 * 5
    found = arrays(stored.finish(), 4)
    assert found["body"].to_pylist() == [b"plain", b"abc" * 1000, b"", b"de" * 1000]
    assert found["queueOffset"].to_pylist() == [item.queue_offset for item in read]
    others = arrow_out.StoredColumns(("sysFlag",), unpack)
    assert others.append(data, 0, len(data)) == (4, len(data))
    assert len(asked) == 2
    assert others.gathered_bytes == len(data) - sum(map(len, bodies))
    assert gather(data, ("body",))["body"] == bodies


def test_a_body_that_does_not_unpack_is_the_next_one() -> None:
    data, read = encoded([stored_message(i, sys_flag=0x301 if i == 2 else 0) for i in range(4)])

    def unpack(body: memoryview, sys_flag: int) -> bytes:
        raise DecodeError("no")

    stored = arrow_out.StoredColumns(("body",), unpack)
    with pytest.raises(DecodeError, match="no"):
        stored.append(data, 0, len(data))
    assert stored.rows == 2
    assert arrays(stored.finish(), 2)["body"].to_pylist() == [item.body for item in read[:2]]


def test_stops_when_enough_is_gathered() -> None:
    data, read = encoded([stored_message(i) for i in range(6)])
    stored = arrow_out.StoredColumns(("body",))
    most = read[2].position + 1
    assert stored.append(data, 0, len(data), None, False, most) == (3, read[3].position)
    assert stored.append(data, read[3].position, len(data), None, False, most) == (0, read[3].position)
    stored.finish()
    assert stored.append(data, read[3].position, len(data), None, False, most) == (3, len(data))


def test_a_bad_record_comes_after_the_good_ones() -> None:
    data, read = encoded([stored_message(i) for i in range(3)])
    damaged = bytearray(data)
    damaged[read[2].position + 8] ^= 1
    stored = arrow_out.StoredColumns(("body", "tags"))
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


@pytest.mark.parametrize("names", [3, 31, 32, 33, 400])
@pytest.mark.parametrize("pairs", [31, 33, 1000])
def test_a_name_that_comes_again_keeps_its_place_and_takes_the_new_value(pairs: int, names: int) -> None:
    expected = {f"n{i * i % names}": f"v{i}" for i in range(pairs)}
    text = "".join(f"n{i * i % names}\x01v{i}\x02" for i in range(pairs)).encode()
    data, _ = encoded([stored_message(0), stored_message(1, properties=text), stored_message(2)])
    stored = arrow_out.StoredColumns(("properties",))
    assert stored.append(data, 0, len(data)) == (3, len(data))
    assert arrays(stored.finish(), 3)["properties"].to_pylist()[1] == [*expected.items()]


def test_many_names_cost_little_more_each_than_few() -> None:
    """Comparing each name with all before it would make it twenty times as much."""

    def cost(names: int) -> float:
        text = b"".join(b"%04d\x01v\x02" % i for i in range(names))
        data, _ = encoded([stored_message(i, properties=text) for i in range(8)])
        stored = arrow_out.StoredColumns(("properties",))
        times = []
        for _ in range(7):
            began = time.process_time()
            stored.append(data, 0, len(data))
            times.append(time.process_time() - began)
            stored.finish()
        return min(times) / names

    assert cost(4500) < 5 * cost(250)
