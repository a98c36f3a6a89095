"""Record batches of pull answers."""

from __future__ import annotations

import gc
import sys
import zlib
from dataclasses import replace
from functools import partial

import pytest

from rocketcore._fast.arrow_out import StoredColumns
from rocketcore.client import arrow_batches
from rocketcore.client.arrow_batches import COLUMNS, BatchBuilder
from rocketcore.errors import DecodeError, RemoteProtocolError
from rocketcore.message import MessageQueue
from tests.reference.message import Stored, encode
from tests.unit.client.opcodes import counted_opcodes

QUEUE = MessageQueue("T", "b", 3)


def test_compressed_bodies_are_unpacked_where_there_is_a_body() -> None:
    plain = Stored(topic=b"T", body=b"plain")
    packed = replace(plain, body=zlib.compress(b"packed"), sys_flag=0x301)
    empty = replace(plain, body=b"", sys_flag=0x301)
    answer = b"".join(
        encode(replace(each, queue_offset=at)) for at, each in enumerate([empty, packed, plain, empty, packed])
    )
    builder = BatchBuilder(("body", "queueOffset"), frozenset(), 1 << 20)
    assert list(builder.append(QUEUE, 0, 5, answer)) == []
    assert builder.appended == 5
    assert builder.finish().to_pydict() == {
        "body": [b"", b"packed", b"plain", b"", b"packed"],
        "queueOffset": [0, 1, 2, 3, 4],
    }


def test_a_record_batch_has_messages_of_several_brokers() -> None:
    records = [encode(Stored(topic=b"T", body=b"x" * 100, queue_offset=at)) for at in range(3)]
    builder = BatchBuilder(("brokerName", "queueOffset", "body"), frozenset(), 5 * len(records[0]))
    other = replace(QUEUE, broker="a")
    batches = list(builder.append(other, 0, 2, b"".join(records)))
    batches += builder.append(QUEUE, 0, 3, b"")
    batches += builder.append(QUEUE, 0, 3, b"".join(records))
    batches += builder.append(other, 0, 3, records[0])
    batches.append(builder.finish())
    assert [batch.drop_columns("body").to_pydict() for batch in batches] == [
        {"brokerName": ["a", "a", "b", "b", "b"], "queueOffset": [0, 1, 0, 1, 2]},
        {"brokerName": ["a"], "queueOffset": [0]},
    ]


@pytest.mark.parametrize("batch_bytes", [1, 150, 1 << 20])
@pytest.mark.parametrize(
    ("offsets", "taken", "wrong"),
    [
        ([4, 5], [], "offset 4 where 5 or more"),
        ([5, 5, 6], [5], "offset 5 where 6 or more"),
        ([5, 7, 6, 8], [5, 7], "offset 6 where 8 or more"),
        ([6, -(1 << 63)], [6], f"offset {-(1 << 63)} where 7 or more"),
    ],
)
def test_offsets_rise(batch_bytes: int, offsets: list[int], taken: list[int], wrong: str) -> None:
    """What repeats offsets, runs backwards or lies before the range is refused, whatever batches it falls into."""
    answer = b"".join(encode(Stored(topic=b"T", body=b"x", queue_offset=offset)) for offset in offsets)
    builder = BatchBuilder(("queueOffset",), frozenset(), batch_bytes)
    found: list[int] = []
    batches = builder.append(QUEUE, 5, 100, answer)
    with pytest.raises(RemoteProtocolError) as caught:
        found.extend(offset for batch in batches for offset in batch["queueOffset"].to_pylist())
    assert f"{QUEUE}: the answer to the pull at 5 has {wrong} has to come" == str(caught.value)
    assert found + builder.finish()["queueOffset"].to_pylist() == taken


@pytest.mark.parametrize("tags", [frozenset(), frozenset({"\ufffd" * 100})])
def test_a_column_that_is_full_ends_its_batch(tags: frozenset[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before the batch has the bytes that it may have: each byte of this text is three in its column."""
    monkeypatch.setattr(arrow_batches, "StoredColumns", partial(StoredColumns, column_bytes=1000))
    properties = b"TAGS\x01" + b"\xff" * 100 + b"\x02"
    records = [encode(Stored(topic=b"T", body=b"", queue_offset=at, properties=properties)) for at in range(10)]
    builder = BatchBuilder(("queueOffset", "tags"), tags, 1 << 20)
    batches = list(builder.append(QUEUE, 0, 10, b"".join(records)))
    batches.append(builder.finish())
    assert [batch["queueOffset"].to_pylist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert builder.appended == 10
    answer = encode(Stored(topic=b"T", body=b"", properties=b"TAGS\x01" + b"\xff" * 400 + b"\x02"))
    with pytest.raises(DecodeError, match=r"queue_id=3.*: a message is longer than a column"):
        list(builder.append(QUEUE, 0, 10, answer))


@pytest.mark.parametrize("compressed", [False, True])
def test_rows_are_no_objects(compressed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record batch of 20,000 rows is as many objects, and as many steps of Python, as one of 20."""
    # What the kernel calls for a body whose library is not there.
    monkeypatch.setattr(arrow_batches, "decompress", lambda *_: pytest.fail("a body became an object"))
    body, sys_flag = (zlib.compress(b"x" * 100), 0x301) if compressed else (b"x" * 100, 0)
    properties = b"KEYS\x01key\x02TAGS\x01tag\x02UNIQ_KEY\x01id\x02name\x01value\x02"
    message = Stored(topic=b"T", body=body, sys_flag=sys_flag, properties=properties)
    records = [encode(replace(message, queue_offset=at)) for at in range(20_000)]

    def cost(rows: int) -> tuple[int, int]:
        answer = memoryview(b"".join(records[:rows]))
        builder = BatchBuilder(tuple(COLUMNS), frozenset(), 1 << 30)
        before = sys.getallocatedblocks()
        with counted_opcodes() as opcodes:
            assert list(builder.append(QUEUE, 0, rows, answer)) == []
            batch = builder.finish()
        blocks = sys.getallocatedblocks() - before
        assert batch.num_rows == rows
        return blocks, opcodes.count

    cost(1)
    gc.collect()  # what earlier tests left is not to go meanwhile
    (few, few_steps), (many, many_steps) = cost(20), cost(20_000)
    assert abs(many - few) < 200  # of the interpreter's own, which come and go
    assert many_steps == few_steps > 0
