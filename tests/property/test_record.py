"""Stored messages and batches: kernel and reference agree on valid and on damaged bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rocketcore._fast import batch as batch_kernel
from rocketcore._fast import record as kernel
from rocketcore.errors import BadChecksum, BadMagic, DecodeError
from tests.reference import batch as reference_batch
from tests.reference import message as reference
from tests.reference.message import Bad, Stored

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
HOST = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
NAMES = ["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "DELAY", "n", "é", "", "__CRC32#", "x__CRC32#", "__CRC32#x"]
PAIR = st.tuples(st.sampled_from(NAMES), st.text(max_size=40))
SEPARATED = st.lists(PAIR, max_size=12).map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs))
PROPERTIES = SEPARATED.map(lambda text: text.encode("utf-8", "replace")) | st.binary(max_size=300)
"""Property text, or anything."""

MESSAGES = st.builds(
    Stored,
    topic=st.binary(max_size=30) | st.binary(min_size=126, max_size=300),
    body=st.binary(max_size=200),
    properties=PROPERTIES,
    queue_id=INT32,
    flag=INT32,
    queue_offset=INT64,
    physical_offset=INT64,
    sys_flag=INT32,
    born_timestamp=INT64,
    born_host=HOST,
    store_timestamp=INT64,
    store_host=HOST,
    reconsume_times=INT32,
    prepared_offset=INT64,
)
NAMED_LIKE_A_CHECKSUM = Stored(
    topic=b"",
    body=b"",
    properties="x__CRC32#\x01\x02DELAY\x010\x80\x02".encode(),
    queue_id=0,
    flag=0,
    queue_offset=0,
    physical_offset=0,
    sys_flag=0,
    born_timestamp=0,
    born_host=bytes(8),
    store_timestamp=0,
    store_host=bytes(8),
    reconsume_times=0,
    prepared_offset=0,
)
"""Its last 20 bytes are those of a checksum property, but for what stands before them."""
DAMAGE = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=4)


def damaged(data: bytes, damage: list[tuple[int, int]], cut: int) -> bytes:
    """Overwrite some bytes and cut some off the end."""
    changed = bytearray(data)
    for position, value in damage:
        if changed:
            changed[position % len(changed)] = value
    return bytes(changed[: len(changed) - cut % (len(changed) + 1)])


def fields_of(item: Stored) -> dict[str, Any]:
    names = (
        "topic", "body", "properties", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag",
        "born_timestamp", "born_host", "store_timestamp", "store_host", "reconsume_times", "prepared_offset",
    )  # fmt: skip
    return {name: getattr(item, name) for name in names}


def stored_of(data: bytes, row: Any) -> Stored:
    def cut(start: int, length: int) -> bytes:
        return data[start : start + length]

    sys_flag = int(row[kernel.SYS_FLAG])
    return Stored(
        topic=cut(row[kernel.TOPIC_START], row[kernel.TOPIC_LENGTH]),
        body=cut(row[kernel.BODY_START], row[kernel.BODY_LENGTH]),
        properties=cut(row[kernel.PROPERTIES_START], row[kernel.PROPERTIES_LENGTH]),
        queue_id=int(row[kernel.QUEUE_ID]),
        flag=int(row[kernel.FLAG]),
        queue_offset=int(row[kernel.QUEUE_OFFSET]),
        physical_offset=int(row[kernel.PHYSICAL_OFFSET]),
        sys_flag=sys_flag,
        born_timestamp=int(row[kernel.BORN_TIMESTAMP]),
        born_host=cut(row[kernel.BORN_HOST], 20 if sys_flag & 0x10 else 8),
        store_timestamp=int(row[kernel.STORE_TIMESTAMP]),
        store_host=cut(row[kernel.STORE_HOST], 20 if sys_flag & 0x20 else 8),
        reconsume_times=int(row[kernel.RECONSUME_TIMES]),
        prepared_offset=int(row[kernel.PREPARED_OFFSET]),
        magic=int(row[kernel.MAGIC]) & 0xFFFFFFFF,
        body_crc=int(row[kernel.BODY_CRC]),
        position=int(row[kernel.POSITION]),
        size=int(row[kernel.TOTAL_SIZE]),
    )


def scan_all(data: bytes, capacity: int, *, check_crc: bool = False) -> tuple[list[Stored], DecodeError | None]:
    """Scan with a small table again and again until the end or an error."""
    found: list[Stored] = []
    rows = np.zeros((capacity, kernel.STORED_COLUMNS), np.int64)
    position = 0
    while position < len(data):
        try:
            count, position = kernel.scan_stored(data, position, len(data), rows, check_crc)
        except DecodeError as error:
            return found, error
        found += [stored_of(data, row) for row in rows[:count]]
    return found, None


def same_fault(error: DecodeError | None, bad: Bad | None) -> bool:
    if error is None or bad is None:
        return error is None and bad is None
    kind = {"magic": BadMagic, "checksum": BadChecksum}.get(bad.reason, DecodeError)
    return type(error) is kind and error.position == bad.position


@example(NAMED_LIKE_A_CHECKSUM, False)
@given(MESSAGES, st.booleans())
def test_encode_is_the_references(item: Stored, checksum: bool) -> None:
    wanted = reference.put(item, checksum=checksum)
    fields = fields_of(item) | {"checksum": checksum}
    assert kernel.encode_stored(**fields) == wanted
    out = bytearray(len(wanted) + 3)
    assert kernel.put_stored(out, 2, **fields) == len(wanted)
    assert out == b"\x00\x00" + wanted + b"\x00"
    rows = np.zeros((1, kernel.STORED_COLUMNS), np.int64)
    if reference.verdict(wanted, reference.decode(wanted, 0, len(wanted)), sealed=checksum) == "damaged":
        # Without a checksum of its own, and with a property at the end that looks like one.
        assert not checksum
        assert b"__CRC32#" in item.properties
        with pytest.raises(BadChecksum):
            kernel.scan_stored(wanted, 0, len(wanted), rows, whole=True, sealed=checksum)
        return
    assert kernel.scan_stored(wanted, 0, len(wanted), rows, whole=True, sealed=checksum) == (1, len(wanted))
    length = rows[0, kernel.PROPERTIES_LENGTH]
    assert kernel.stored_properties_size(item.properties, checksum) == length


@given(st.lists(MESSAGES, max_size=5), st.integers(1, 3))
def test_scan_undoes_encode(items: list[Stored], capacity: int) -> None:
    data = b"".join(map(reference.encode, items))
    found, error = scan_all(data, capacity, check_crc=True)
    assert error is None
    assert found == reference.decode_all(data, 0, len(data))[0]
    assert [item.body for item in found] == [item.body for item in items]


@settings(max_examples=300)
@given(st.lists(MESSAGES, min_size=1, max_size=4), DAMAGE, st.integers(0, 300), st.integers(1, 3), st.booleans())
def test_scan_of_damaged_records_is_the_references(
    items: list[Stored], damage: list[tuple[int, int]], cut: int, capacity: int, check_crc: bool
) -> None:
    data = damaged(b"".join(map(reference.encode, items)), damage, cut if cut % 3 else 0)
    found, error = scan_all(data, capacity, check_crc=check_crc)
    wanted, bad = reference.decode_all(data, 0, len(data), check_crc=check_crc)
    assert found == wanted
    assert same_fault(error, bad)


HEADER_DAMAGE = st.tuples(st.integers(0, 120), st.sampled_from([0, 1, 0x10, 0x20, 0x30, 0x7F, 0x80, 0xFF]))


@settings(max_examples=300)
@given(MESSAGES, st.lists(HEADER_DAMAGE, min_size=1, max_size=3), st.binary(max_size=40))
def test_scan_of_damaged_lengths_is_the_references(item: Stored, damage: list[tuple[int, int]], behind: bytes) -> None:
    """Lengths, flags and the magic lie in the first bytes; what stands behind is not part of the record."""
    data = damaged(reference.encode(item), damage, 0) + behind
    found, error = scan_all(data, 2)
    wanted, bad = reference.decode_all(data, 0, len(data))
    assert found == wanted
    assert same_fault(error, bad)


@given(st.binary(max_size=400))
def test_scan_of_anything_raises_only_decode_errors(data: bytes) -> None:
    found, error = scan_all(data, 2, check_crc=True)
    wanted, bad = reference.decode_all(data, 0, len(data), check_crc=True)
    assert found == wanted
    assert same_fault(error, bad)


PIECES = st.lists(st.sampled_from([b"TAGS", b"\x01", b"\x02", b"ab", b"x" * 70])).map(b"".join)


@given(SEPARATED.map(lambda text: text.encode("utf-8", "replace")) | PIECES)
def test_tags_code_is_the_references(properties: bytes) -> None:
    assert kernel.tags_code(properties) == reference.tags_code(properties)
    # A text that does not begin at the start of memory, for the loads that reach back.
    assert kernel.tags_code(memoryview(b"\x01\x02" * 8 + properties)[16:]) == reference.tags_code(properties)


ELEMENTS = st.lists(st.builds(reference_batch.Element, INT32, st.binary(max_size=60), PROPERTIES), max_size=6)


def scan_batch(data: bytes) -> list[reference_batch.Element]:
    rows = np.zeros((len(data) // 22 + 1, batch_kernel.BATCH_COLUMNS), np.int64)
    count = batch_kernel.scan_batch(data, 0, len(data), rows)
    return [
        reference_batch.Element(int(flag), data[body : body + length], data[text : text + text_length])
        for flag, body, length, text, text_length, _ in rows[:count]
    ]


@given(ELEMENTS)
def test_batch_encodes_as_the_reference_and_back(elements: list[reference_batch.Element]) -> None:
    wanted = reference_batch.encode(elements)
    bodies, texts = [item.body for item in elements], [item.properties for item in elements]
    assert batch_kernel.encode_batch(bodies, texts, [item.flag for item in elements]) == wanted
    assert scan_batch(wanted) == elements


@settings(max_examples=300)
@given(ELEMENTS, DAMAGE, st.integers(0, 100))
def test_scan_of_a_damaged_batch_is_the_references(
    elements: list[reference_batch.Element], damage: list[tuple[int, int]], cut: int
) -> None:
    data = damaged(reference_batch.encode(elements), damage, cut if cut % 3 else 0)
    try:
        wanted = reference_batch.decode(data, 0, len(data))
    except Bad as bad:
        position = bad.position
    else:
        assert scan_batch(data) == wanted
        return
    with pytest.raises(DecodeError) as caught:
        scan_batch(data)
    assert caught.value.position == position


@given(ELEMENTS, HOST, HOST, st.integers(0, 1 << 40), st.booleans())
def test_put_batch_is_the_references(
    elements: list[reference_batch.Element],
    born_host: bytes,
    store_host: bytes,
    base: int,
    checksum: bool,
) -> None:
    data = reference_batch.encode(elements)
    wanted = b""
    for i, item in enumerate(elements):
        wanted += reference.put(
            Stored(
                topic=b"T", body=item.body, properties=item.properties, queue_id=2,
                flag=item.flag, queue_offset=70 + i, physical_offset=base + len(wanted), sys_flag=0x2,
                born_timestamp=5, born_host=born_host, store_timestamp=6, store_host=store_host, reconsume_times=1,
            ),
            checksum=checksum,
        )  # fmt: skip
    rows = np.zeros((max(len(elements), 1), batch_kernel.BATCH_COLUMNS), np.int64)
    results = np.zeros((max(len(elements), 1), batch_kernel.PUT_COLUMNS), np.int64)
    count = batch_kernel.scan_batch(data, 0, len(data), rows)
    out = bytearray(len(wanted))
    written = batch_kernel.put_batch(
        out, 0, len(wanted), base, data, rows, count, topic=b"T", queue_id=2, queue_offset=70, sys_flag=0x2,
        born_timestamp=5, born_host=born_host, store_timestamp=6, store_host=store_host, reconsume_times=1,
        results=results, checksum=checksum,
    )  # fmt: skip
    assert (written, bytes(out)) == (len(wanted), wanted)
