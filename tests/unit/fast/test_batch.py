"""Client batches against the bytes that Apache RocketMQ's Java classes make."""

from __future__ import annotations

import ipaddress
from typing import Any

import numpy as np
import pytest

from rocketcore._fast import batch as kernel
from rocketcore._fast import message_id
from rocketcore.errors import DecodeError
from tests.fixtures.vectors import family, name_of
from tests.reference import message as reference

HOST = bytes([10, 0, 0, 1]) + (10911).to_bytes(4)


def host_bytes(text: str) -> bytes:
    address, _, port = text.rpartition(":")
    return ipaddress.ip_address(address).packed + int(port).to_bytes(4)


def batch_rows(data: bytes) -> np.ndarray[Any, Any]:
    rows = np.zeros((len(data) // 22 + 1, kernel.BATCH_COLUMNS), np.int64)
    return rows[: kernel.scan_batch(data, 0, len(data), rows)]


@pytest.mark.parametrize("record", family("batches.jsonl", "client"), ids=name_of)
def test_batch_encodes_and_scans(record: dict[str, Any]) -> None:
    messages = record["input"]["messages"]
    wanted = bytes.fromhex(record["hex"])
    rows = batch_rows(wanted)
    texts = [wanted[start : start + length] for start, length in rows[:, 3:5]]
    bodies = [bytes.fromhex(item["body"]) for item in messages]
    assert kernel.encode_batch(bodies, texts, [item["flag"] for item in messages]) == wanted
    assert [wanted[start : start + length] for start, length in rows[:, 1:3]] == bodies
    assert list(rows[:, kernel.BATCH_FLAG]) == [item["flag"] for item in messages]
    decoded = [{name.decode(): value.decode() for name, value in reference.properties_of(text)} for text in texts]
    assert decoded == [item["properties"] for item in record["decoded"]]


def test_batch_rule_vector() -> None:
    (record,) = family("batches.jsonl", "rule/ok")
    assert kernel.encode_batch([b"a", b"b"], [b"WAIT\x01true\x02"] * 2).hex() == record["expected"]["encoded"]


@pytest.mark.parametrize("record", family("batches.jsonl", "decode"), ids=name_of)
def test_scan_of_odd_batches(record: dict[str, Any]) -> None:
    data = bytes.fromhex(record["hex"])
    if "error" in record["decoded"]:
        with pytest.raises(DecodeError):
            batch_rows(data)
        return
    rows = batch_rows(data)
    assert [data[start : start + length].hex() for start, length in rows[:, 1:3]] == [
        item["body"] for item in record["decoded"]
    ]


@pytest.mark.parametrize("record", family("batches.jsonl", "inner"), ids=name_of)
def test_inner_batch_is_a_client_batch(record: dict[str, Any]) -> None:
    data = bytes.fromhex(record["input"]["outer"]["body"])
    assert [data[start : start + length].hex() for start, length in batch_rows(data)[:, 1:3]] == [
        item["body"] for item in record["decoded"]
    ]


@pytest.mark.parametrize("record", family("batches.jsonl", "stored"), ids=name_of)
def test_put_batch_makes_the_records_of_the_java_store(record: dict[str, Any]) -> None:
    given = record["input"]
    data = bytes.fromhex(given["body"])
    wanted = bytes.fromhex(record["hex"])
    rows = batch_rows(data)
    results = np.zeros((len(rows), kernel.PUT_COLUMNS), np.int64)
    out = bytearray(b"\xee" * (len(wanted) + 10))

    def put(limit: int) -> int:
        return kernel.put_batch(
            out, 5, limit, given["physicalOffset"] - 5, data, rows, len(rows), topic=given["topic"].encode(),
            queue_id=given["queueId"], queue_offset=given["queueOffset"], sys_flag=given["sysFlag"],
            born_timestamp=given["bornTimestamp"], born_host=host_bytes(given["bornHost"]),
            store_timestamp=given["storeTimestamp"], store_host=host_bytes(given["storeHost"]), reconsume_times=0,
            results=results,
        )  # fmt: skip

    assert put(4 + len(wanted)) == -1
    assert out == b"\xee" * len(out)
    assert put(5 + len(wanted)) == len(wanted)
    assert out == b"\xee" * 5 + wanted + b"\xee" * 5
    ids = message_id.offset_msg_ids(host_bytes(given["storeHost"]), results[:, kernel.PUT_PHYSICAL_OFFSET])
    assert ids.decode() == record["result"]["msgId"]


def test_put_batch_puts_the_missing_separator_before_the_checksum() -> None:
    texts = [b"TAGS\x01TagA\x02", b"k\x01v", b""]
    data = kernel.encode_batch([b"a", b"b", b"c"], texts)
    rows = batch_rows(data)
    results = np.zeros((3, kernel.PUT_COLUMNS), np.int64)
    out = bytearray(1000)
    common: dict[str, Any] = {
        "topic": b"T", "queue_id": 1, "queue_offset": 5, "sys_flag": 0, "born_timestamp": 1700000000000,
        "born_host": HOST, "store_timestamp": 1700000000001, "store_host": HOST, "reconsume_times": 0,
        "results": results, "checksum": True,
    }  # fmt: skip
    size = kernel.put_batch(out, 0, 1000, 0, data, rows, 3, **common)
    records, bad = reference.decode_all(bytes(out), 0, size, check_crc=True)
    assert bad is None
    assert [record.properties[:-20] for record in records] == [b"TAGS\x01TagA\x02", b"k\x01v\x02", b""]
    assert [record.queue_offset for record in records] == [5, 6, 7]
    assert [record.position for record in records] == list(results[:, kernel.PUT_PHYSICAL_OFFSET])
    long = kernel.encode_batch([b"a"], [b"k\x01" + b"x" * 32760])
    with pytest.raises(ValueError, match="element 0: properties"):
        kernel.put_batch(out, 0, 1000, 0, long, batch_rows(long), 1, **common)


def test_scan_batch_counts_past_a_small_table() -> None:
    data = kernel.encode_batch([b"a"] * 9, [b""] * 9)
    rows = np.zeros((4, kernel.BATCH_COLUMNS), np.int64)
    assert kernel.scan_batch(data, 0, len(data), rows) == 9
    assert list(rows[:, kernel.BATCH_SIZE]) == [23] * 4


def test_encode_batch_takes_any_buffer_and_refuses_bad_lengths() -> None:
    bodies: list[Any] = [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], np.frombuffer(b"gh", np.uint8)]
    data = kernel.encode_batch(bodies, [b""] * 4, (1, -2, 3, 4))
    assert [data[start : start + length] for start, length in batch_rows(data)[:, 1:3]] == [b"ab", b"cd", b"ef", b"gh"]
    with pytest.raises(ValueError, match="same length"):
        kernel.encode_batch([b"a"], [])
    with pytest.raises(ValueError, match="element 1: properties"):
        kernel.encode_batch([b"a", b"a"], [b"", b"p" * 32768])
    with pytest.raises(TypeError):
        kernel.encode_batch(["text"], [b""])  # type: ignore[list-item]


def test_the_longest_properties() -> None:
    data = kernel.encode_batch([b"a"] * 3, [b"x" * 7, b"y" * 300, b""])
    rows = batch_rows(data)
    assert [kernel.longest_properties(rows, count) for count in (0, 1, 2, 3)] == [0, 7, 300, 300]
    for count in (-1, 4):
        with pytest.raises(ValueError, match=f"{count} rows of 3"):
            kernel.longest_properties(rows, count)
