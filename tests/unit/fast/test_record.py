"""Stored messages against the bytes that Apache RocketMQ's Java classes make."""

from __future__ import annotations

import ipaddress
import zlib
from typing import Any

import numpy as np
import pytest

from rocketcore._fast import record as kernel
from rocketcore.errors import BadChecksum, BadMagic, DecodeError
from tests.fixtures.vectors import family, name_of
from tests.reference import message as reference

HOST = bytes([10, 0, 0, 1]) + (10911).to_bytes(4)
BORN = bytes([10, 0, 0, 9]) + (50000).to_bytes(4)
V6 = ipaddress.ip_address("2001:db8::1").packed + (10911).to_bytes(4)


def host_bytes(text: str) -> bytes:
    address, _, port = text.rpartition(":")
    return ipaddress.ip_address(address).packed + int(port).to_bytes(4)


def host_text(host: bytes) -> str:
    """The form of Java's ``InetSocketAddress``: IPv6 without ``::``."""
    if len(host) == 8:
        return f"{ipaddress.ip_address(host[:4])}:{int.from_bytes(host[4:])}"
    groups = (f"{int.from_bytes(host[i : i + 2]):x}" for i in range(0, 16, 2))
    return f"{':'.join(groups)}:{int.from_bytes(host[16:])}"


def property_bytes(properties: dict[str, str]) -> bytes:
    return b"".join(f"{name}\x01{value}\x02".encode() for name, value in properties.items())


def scan(data: bytes, capacity: int = 64, **options: bool) -> tuple[np.ndarray[Any, Any], int]:
    rows = np.zeros((capacity, kernel.STORED_COLUMNS), np.int64)
    count, position = kernel.scan_stored(data, 0, len(data), rows, **options)
    return rows[:count], position


def view_of(data: bytes, row: Any) -> dict[str, Any]:
    """One row in the form of the vectors' ``decoded``."""
    sys_flag = int(row[kernel.SYS_FLAG])

    def cut(start: int, length: int) -> bytes:
        return data[start : start + length]

    properties = cut(row[kernel.PROPERTIES_START], row[kernel.PROPERTIES_LENGTH])
    return {
        "topic": cut(row[kernel.TOPIC_START], row[kernel.TOPIC_LENGTH]).decode(),
        "queueId": row[kernel.QUEUE_ID],
        "queueOffset": row[kernel.QUEUE_OFFSET],
        "commitLogOffset": row[kernel.PHYSICAL_OFFSET],
        "storeSize": row[kernel.TOTAL_SIZE],
        "flag": row[kernel.FLAG],
        "sysFlag": sys_flag,
        "bodyCRC": row[kernel.BODY_CRC],
        "bornTimestamp": row[kernel.BORN_TIMESTAMP],
        "bornHost": host_text(cut(row[kernel.BORN_HOST], 20 if sys_flag & 0x10 else 8)),
        "storeTimestamp": row[kernel.STORE_TIMESTAMP],
        "storeHost": host_text(cut(row[kernel.STORE_HOST], 20 if sys_flag & 0x20 else 8)),
        "reconsumeTimes": row[kernel.RECONSUME_TIMES],
        "preparedTransactionOffset": row[kernel.PREPARED_OFFSET],
        "body": cut(row[kernel.BODY_START], row[kernel.BODY_LENGTH]).hex(),
        "properties": {name.decode(): value.decode() for name, value in reference.properties_of(properties)},
    }


def expected_view(record: dict[str, Any], decoded: dict[str, Any]) -> dict[str, Any]:
    """Java's own reading, less what it does after the layout: message ids and decompression."""
    wanted = {key: value for key, value in decoded.items() if key not in ("msgId", "offsetMsgId")}
    wanted["properties"] = wanted["properties"] or {}
    wanted["body"] = wanted["body"] or ""
    if "input" in record and record["input"]["sysFlag"] & 1:
        wanted["sysFlag"] = record["input"]["sysFlag"]
        wanted["body"] = record["input"]["body"]
        wanted["bodyCRC"] = zlib.crc32(bytes.fromhex(record["input"]["body"])) & 0x7FFFFFFF
    return wanted


def arguments(given: dict[str, Any], queue_offset: int) -> dict[str, Any]:
    return {
        "topic": given["topic"].encode(),
        "queue_id": given["queueId"],
        "flag": given["flag"],
        "queue_offset": queue_offset,
        "physical_offset": given["physicalOffset"],
        "sys_flag": given["sysFlag"],
        "born_timestamp": given["bornTimestamp"],
        "born_host": host_bytes(given["bornHost"]),
        "store_timestamp": given["storeTimestamp"],
        "store_host": host_bytes(given["storeHost"]),
        "reconsume_times": given["reconsumeTimes"],
        "prepared_offset": given["preparedTransactionOffset"],
        "body": bytes.fromhex(given["body"]),
    }


PLAIN: dict[str, Any] = {
    "topic": b"T",
    "queue_id": 1,
    "flag": 0,
    "queue_offset": 5,
    "physical_offset": 100,
    "sys_flag": 0,
    "born_timestamp": 1700000000000,
    "born_host": BORN,
    "store_timestamp": 1700000000001,
    "store_host": HOST,
    "reconsume_times": 0,
    "prepared_offset": 0,
    "body": b"hi",
    "properties": b"k\x01v\x02",
}


WRITABLE = [
    record
    for record in family("stored_messages.jsonl", "append")
    if (record["input"]["version"] == 2) == (len(record["input"]["topic"].encode()) > 127)
]
"""Without the records whose version does not follow from the topic's length: those are read here, never written."""


@pytest.mark.parametrize("record", WRITABLE, ids=name_of)
def test_encode_makes_the_bytes_of_the_java_store(record: dict[str, Any]) -> None:
    given = record["input"]
    wanted = bytes.fromhex(record["hex"])
    # The order of Java's property map is the caller's; the text is taken from the vector. A checksum in it is left out
    # and made again.
    rows, _ = scan(wanted)
    start, length = rows[0, kernel.PROPERTIES_START], rows[0, kernel.PROPERTIES_LENGTH]
    prepared_or_rollback = given["sysFlag"] & 0xC in (4, 0xC)
    fields = arguments(given, 0 if prepared_or_rollback else given["queueOffset"])
    fields["properties"] = wanted[start : start + length]
    fields["checksum"] = record["name"].startswith("append-crc/")
    assert kernel.encode_stored(**fields) == wanted
    assert kernel.stored_size(len(fields["topic"]), len(fields["body"]), length, rows[0, kernel.SYS_FLAG]) == len(
        wanted
    )
    out = bytearray(b"\xee" * (len(wanted) + 8))
    assert kernel.put_stored(out, 4, **fields) == len(wanted)
    assert out == b"\xee" * 4 + wanted + b"\xee" * 4


ENCODED = [record for record in family("stored_messages.jsonl", "encode") if "error" not in record]
"""Without the empty body, on which Java's codec fails; the store's vectors have it."""


@pytest.mark.parametrize("record", ENCODED, ids=name_of)
def test_encode_makes_the_bytes_of_the_java_codec(record: dict[str, Any]) -> None:
    given = record["input"]
    fields = arguments(given, 0 if given["sysFlag"] & 0xC in (4, 0xC) else given["queueOffset"])
    wanted = bytes.fromhex(record["hex"])
    if len(fields["topic"]) > 127:
        # Java's codec writes a V1 record that it cannot read back; ours is V2, as the store writes it.
        fields["properties"] = property_bytes(given["properties"])
        rows, _ = scan(kernel.encode_stored(**fields))
        assert rows[0, kernel.MAGIC] & 0xFFFFFFFF == reference.MAGIC_V2
        assert rows[0, kernel.TOPIC_LENGTH] == len(fields["topic"])
        return
    rows, _ = scan(wanted)
    assert view_of(wanted, rows[0]) == expected_view(record, record["decoded"])
    start, length = rows[0, kernel.PROPERTIES_START], rows[0, kernel.PROPERTIES_LENGTH]
    fields["properties"] = wanted[start : start + length]
    if record["name"].startswith("encode/empty-value"):
        # Java counts the pair in the size and then leaves it out: three bytes of the record belong to no field.
        assert len(kernel.encode_stored(**fields)) == len(wanted) - 3
        return
    assert kernel.encode_stored(**fields) == wanted


@pytest.mark.parametrize("record", family("stored_messages.jsonl", "append"), ids=name_of)
def test_scan_reads_what_the_java_store_wrote(record: dict[str, Any]) -> None:
    data = bytes.fromhex(record["hex"])
    if record["name"].startswith("append/topic-128-v1"):
        with pytest.raises(DecodeError, match="topic length"):
            scan(data)
        return
    rows, position = scan(data, check_crc=True, tags=True)
    assert (len(rows), position) == (1, len(data))
    if record.get("decoded"):
        assert view_of(data, rows[0]) == expected_view(record, record["decoded"])
    start, length = rows[0, kernel.PROPERTIES_START], rows[0, kernel.PROPERTIES_LENGTH]
    assert rows[0, kernel.TAGS_CODE] == reference.tags_code(data[start : start + length])


@pytest.mark.parametrize("record", family("stored_messages.jsonl", "decode"), ids=name_of)
def test_scan_of_odd_records(record: dict[str, Any]) -> None:
    """Where Java gives up, so do we; what it reads before that, or leniently, reads the same."""
    data = bytes.fromhex(record["hex"])
    check_crc = "wrong-crc-checked" in record["name"]
    decoded = record["decoded"]
    if "compression-type" in record["name"]:
        rows, _ = scan(data)
        assert rows[0, kernel.SYS_FLAG] == 0x701  # the layout is sound; decompression refuses the type
        return
    if not data:
        assert scan(data)[1] == 0
        return
    if decoded is None:
        with pytest.raises(DecodeError):
            scan(data, check_crc=check_crc)
        return
    messages = decoded if isinstance(decoded, list) else [decoded]
    rows, position = scan(data, check_crc=check_crc)
    assert [view_of(data, row) for row in rows] == [expected_view(record, item) for item in messages]
    if position < len(data):
        with pytest.raises(DecodeError) as caught:
            kernel.scan_stored(data, position, len(data), np.zeros((1, kernel.STORED_COLUMNS), np.int64))
        assert caught.value.position == position


def test_scan_names_the_fault() -> None:
    good = kernel.encode_stored(**PLAIN)
    with pytest.raises(BadMagic):
        scan(good[:4] + b"\xda\xa3\x20\xa8" + good[8:])
    with pytest.raises(BadChecksum):
        scan(good[:8] + bytes(4) + good[12:], check_crc=True)
    with pytest.raises(DecodeError, match="longer than the bytes left"):
        scan(good[:-1])
    rows, position = scan(good + good[:-1])
    assert (len(rows), position) == (1, len(good))


def test_scan_stops_when_the_table_is_full_and_goes_on() -> None:
    data = b"".join(kernel.encode_stored(**PLAIN | {"queue_offset": i}) for i in range(5))
    first, position = scan(data, capacity=3)
    assert list(first[:, kernel.QUEUE_OFFSET]) == [0, 1, 2]
    rows = np.zeros((3, kernel.STORED_COLUMNS), np.int64)
    assert kernel.scan_stored(data, position, len(data), rows) == (2, len(data))
    assert list(rows[:2, kernel.QUEUE_OFFSET]) == [3, 4]
    assert kernel.scan_stored(data, 0, len(data), np.zeros((0, kernel.STORED_COLUMNS), np.int64)) == (0, 0)


def test_scan_refuses_wrong_arguments() -> None:
    data = kernel.encode_stored(**PLAIN)
    rows = np.zeros((1, kernel.STORED_COLUMNS), np.int64)
    for start, end in ((-1, 5), (5, 4), (0, len(data) + 1)):
        with pytest.raises(ValueError, match="range"):
            kernel.scan_stored(data, start, end, rows)
    with pytest.raises(ValueError, match="int64 table"):
        kernel.scan_stored(data, 0, len(data), np.zeros((1, 3), np.int64))
    with pytest.raises((ValueError, BufferError)):
        kernel.scan_stored(data, 0, len(data), np.zeros((1, kernel.STORED_COLUMNS), np.int32))


def test_put_stored_writes_nothing_that_does_not_fit() -> None:
    size = len(kernel.encode_stored(**PLAIN))
    out = bytearray(size - 1)
    assert kernel.put_stored(out, 0, **PLAIN) == -1
    assert out == bytes(size - 1)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"topic": b"t" * 32768}, "topic"),
        ({"properties": b"p" * 32768}, "properties"),
        ({"born_host": b"1234"}, "host"),
        ({"store_host": b"1" * 21}, "host"),
    ],
)
def test_encode_refuses_what_the_format_cannot_state(change: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        kernel.encode_stored(**PLAIN | change)


def test_hosts_decide_the_address_bits() -> None:
    data = kernel.encode_stored(**PLAIN | {"sys_flag": 0x10, "store_host": V6})
    rows, _ = scan(data)
    assert rows[0, kernel.SYS_FLAG] == 0x20
    assert data[rows[0, kernel.STORE_HOST] :][:20] == V6


@pytest.mark.parametrize("record", family("stored_messages.jsonl", "crc-property"), ids=name_of)
def test_crc_property_is_an_ordinary_property(record: dict[str, Any]) -> None:
    """Nothing here writes it; what Java wrote must read as one pair and change neither tag nor key."""
    text = bytes.fromhex(record["hex"])
    data = kernel.encode_stored(**PLAIN | {"properties": b"TAGS\x01TagA\x02" + text})
    rows, _ = scan(data, check_crc=True, tags=True)
    assert rows[0, kernel.TAGS_CODE] == 2598919
    assert dict(reference.properties_of(text))[b"__CRC32#"].decode() == f"{record['input']['crc']:010d}"[::-1]


def test_tags_code() -> None:
    assert kernel.tags_code(b"") == 0
    assert kernel.tags_code(b"TAGS\x01tag-test\x02") == -810002715
    assert kernel.tags_code(b"XTAGS\x01a\x02TAGS\x01\x02k\x01TAGS\x02") == 0
    assert kernel.tags_code(b"TAGS\x01TagA\x02TAGS\x01TagB") == 2598920
