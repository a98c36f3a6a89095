"""Stored messages, batches and ids against the bytes that Apache RocketMQ's Java classes make."""

from __future__ import annotations

import ipaddress
import zlib
from typing import Any

import numpy as np
import pytest

from rocketcore._fast import command, header, message
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
    rows = np.zeros((capacity, message.COLUMNS), np.int64)
    count, position = message.scan_stored(data, 0, len(data), rows, **options)
    return rows[:count], position


def view_of(data: bytes, row: Any) -> dict[str, Any]:
    """One row in the form of the vectors' ``decoded``."""
    sys_flag = int(row[message.SYS_FLAG])

    def cut(start: int, length: int) -> bytes:
        return data[start : start + length]

    properties = cut(row[message.PROPERTIES_START], row[message.PROPERTIES_LENGTH])
    return {
        "topic": cut(row[message.TOPIC_START], row[message.TOPIC_LENGTH]).decode(),
        "queueId": row[message.QUEUE_ID],
        "queueOffset": row[message.QUEUE_OFFSET],
        "commitLogOffset": row[message.PHYSICAL_OFFSET],
        "storeSize": row[message.TOTAL_SIZE],
        "flag": row[message.FLAG],
        "sysFlag": sys_flag,
        "bodyCRC": row[message.BODY_CRC],
        "bornTimestamp": row[message.BORN_TIMESTAMP],
        "bornHost": host_text(cut(row[message.BORN_HOST], 20 if sys_flag & 0x10 else 8)),
        "storeTimestamp": row[message.STORE_TIMESTAMP],
        "storeHost": host_text(cut(row[message.STORE_HOST], 20 if sys_flag & 0x20 else 8)),
        "reconsumeTimes": row[message.RECONSUME_TIMES],
        "preparedTransactionOffset": row[message.PREPARED_OFFSET],
        "body": cut(row[message.BODY_START], row[message.BODY_LENGTH]).hex(),
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
    start, length = rows[0, message.PROPERTIES_START], rows[0, message.PROPERTIES_LENGTH]
    prepared_or_rollback = given["sysFlag"] & 0xC in (4, 0xC)
    fields = arguments(given, 0 if prepared_or_rollback else given["queueOffset"])
    fields["properties"] = wanted[start : start + length]
    fields["checksum"] = record["name"].startswith("append-crc/")
    assert message.encode_stored(**fields) == wanted
    assert message.stored_size(len(fields["topic"]), len(fields["body"]), length, rows[0, message.SYS_FLAG]) == len(
        wanted
    )
    out = bytearray(b"\xee" * (len(wanted) + 8))
    assert message.put_stored(out, 4, **fields) == len(wanted)
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
        rows, _ = scan(message.encode_stored(**fields))
        assert (rows[0, message.MAGIC], rows[0, message.TOPIC_LENGTH]) == (message.MAGIC_V2, len(fields["topic"]))
        return
    rows, _ = scan(wanted)
    assert view_of(wanted, rows[0]) == expected_view(record, record["decoded"])
    start, length = rows[0, message.PROPERTIES_START], rows[0, message.PROPERTIES_LENGTH]
    fields["properties"] = wanted[start : start + length]
    if record["name"].startswith("encode/empty-value"):
        # Java counts the pair in the size and then leaves it out: three bytes of the record belong to no field.
        assert len(message.encode_stored(**fields)) == len(wanted) - 3
        return
    assert message.encode_stored(**fields) == wanted


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
    start, length = rows[0, message.PROPERTIES_START], rows[0, message.PROPERTIES_LENGTH]
    assert rows[0, message.TAGS_CODE] == reference.tags_code(data[start : start + length])


@pytest.mark.parametrize("record", family("stored_messages.jsonl", "decode"), ids=name_of)
def test_scan_of_odd_records(record: dict[str, Any]) -> None:
    """Where Java gives up, so do we; what it reads before that, or leniently, reads the same."""
    data = bytes.fromhex(record["hex"])
    check_crc = "wrong-crc-checked" in record["name"]
    decoded = record["decoded"]
    if "compression-type" in record["name"]:
        rows, _ = scan(data)
        assert rows[0, message.SYS_FLAG] == 0x701  # the layout is sound; decompression refuses the type
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
            message.scan_stored(data, position, len(data), np.zeros((1, message.COLUMNS), np.int64))
        assert caught.value.position == position


def test_scan_names_the_fault() -> None:
    good = message.encode_stored(**PLAIN)
    with pytest.raises(BadMagic):
        scan(good[:4] + b"\xda\xa3\x20\xa8" + good[8:])
    with pytest.raises(BadChecksum):
        scan(good[:8] + bytes(4) + good[12:], check_crc=True)
    with pytest.raises(DecodeError, match="longer than the bytes left"):
        scan(good[:-1])
    rows, position = scan(good + good[:-1])
    assert (len(rows), position) == (1, len(good))


def test_scan_stops_when_the_table_is_full_and_goes_on() -> None:
    data = b"".join(message.encode_stored(**PLAIN | {"queue_offset": i}) for i in range(5))
    first, position = scan(data, capacity=3)
    assert list(first[:, message.QUEUE_OFFSET]) == [0, 1, 2]
    rows = np.zeros((3, message.COLUMNS), np.int64)
    assert message.scan_stored(data, position, len(data), rows) == (2, len(data))
    assert list(rows[:2, message.QUEUE_OFFSET]) == [3, 4]
    assert message.scan_stored(data, 0, len(data), np.zeros((0, message.COLUMNS), np.int64)) == (0, 0)


def test_scan_refuses_wrong_arguments() -> None:
    data = message.encode_stored(**PLAIN)
    rows = np.zeros((1, message.COLUMNS), np.int64)
    for start, end in ((-1, 5), (5, 4), (0, len(data) + 1)):
        with pytest.raises(ValueError, match="range"):
            message.scan_stored(data, start, end, rows)
    with pytest.raises(ValueError, match="int64 table"):
        message.scan_stored(data, 0, len(data), np.zeros((1, 3), np.int64))
    with pytest.raises((ValueError, BufferError)):
        message.scan_stored(data, 0, len(data), np.zeros((1, message.COLUMNS), np.int32))


def test_put_stored_writes_nothing_that_does_not_fit() -> None:
    size = len(message.encode_stored(**PLAIN))
    out = bytearray(size - 1)
    assert message.put_stored(out, 0, **PLAIN) == -1
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
        message.encode_stored(**PLAIN | change)


def test_hosts_decide_the_address_bits() -> None:
    data = message.encode_stored(**PLAIN | {"sys_flag": 0x10, "store_host": V6})
    rows, _ = scan(data)
    assert rows[0, message.SYS_FLAG] == 0x20
    assert data[rows[0, message.STORE_HOST] :][:20] == V6


# ----------------------------------------------------------------------------------------------------------- batches


def batch_rows(data: bytes) -> np.ndarray[Any, Any]:
    rows = np.zeros((len(data) // 22 + 1, message.BATCH_COLUMNS), np.int64)
    return rows[: message.scan_batch(data, 0, len(data), rows)]


@pytest.mark.parametrize("record", family("batches.jsonl", "client"), ids=name_of)
def test_batch_encodes_and_scans(record: dict[str, Any]) -> None:
    messages = record["input"]["messages"]
    wanted = bytes.fromhex(record["hex"])
    rows = batch_rows(wanted)
    texts = [wanted[start : start + length] for start, length in rows[:, 3:5]]
    bodies = [bytes.fromhex(item["body"]) for item in messages]
    assert message.encode_batch(bodies, texts, [item["flag"] for item in messages]) == wanted
    assert [wanted[start : start + length] for start, length in rows[:, 1:3]] == bodies
    assert list(rows[:, message.BATCH_FLAG]) == [item["flag"] for item in messages]
    decoded = [{name.decode(): value.decode() for name, value in reference.properties_of(text)} for text in texts]
    assert decoded == [item["properties"] for item in record["decoded"]]


def test_batch_rule_vector() -> None:
    (record,) = family("batches.jsonl", "rule/ok")
    assert message.encode_batch([b"a", b"b"], [b"WAIT\x01true\x02"] * 2).hex() == record["expected"]["encoded"]


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
    results = np.zeros((len(rows), message.RESULT_COLUMNS), np.int64)
    out = bytearray(b"\xee" * (len(wanted) + 10))

    def put(limit: int) -> int:
        return message.put_batch(
            out, 5, limit, given["physicalOffset"] - 5, data, rows, len(rows), topic=given["topic"].encode(),
            queue_id=given["queueId"], queue_offset=given["queueOffset"], sys_flag=given["sysFlag"],
            born_timestamp=given["bornTimestamp"], born_host=host_bytes(given["bornHost"]),
            store_timestamp=given["storeTimestamp"], store_host=host_bytes(given["storeHost"]), reconsume_times=0,
            extra_properties=b"", results=results,
        )  # fmt: skip

    assert put(4 + len(wanted)) == -1
    assert out == b"\xee" * len(out)
    assert put(5 + len(wanted)) == len(wanted)
    assert out == b"\xee" * 5 + wanted + b"\xee" * 5
    offsets = given["physicalOffset"] - 5 + results[:, message.RESULT_POSITION]
    ids = message.offset_msg_ids(host_bytes(given["storeHost"]), offsets)
    assert ids.decode() == record["result"]["msgId"]
    assert list(results[:, message.RESULT_QUEUE_OFFSET]) == list(
        range(given["queueOffset"], given["queueOffset"] + record["result"]["msgNum"])
    )


def test_put_batch_appends_properties_with_the_missing_separator() -> None:
    data = message.encode_batch([b"a", b"b", b"c"], [b"TAGS\x01TagA\x02", b"k\x01v", b""])
    rows = batch_rows(data)
    results = np.zeros((3, message.RESULT_COLUMNS), np.int64)
    out = bytearray(1000)
    common = {key: PLAIN[key] for key in ("topic", "queue_id", "sys_flag", "born_timestamp", "born_host")}
    common |= {key: PLAIN[key] for key in ("queue_offset", "store_timestamp", "store_host", "reconsume_times")}
    size = message.put_batch(
        out, 0, 1000, 0, data, rows, 3, **common, extra_properties=b"CLUSTER\x01c\x02", results=results
    )
    records, bad = reference.decode_all(bytes(out), 0, size, check_crc=True)
    assert bad is None
    assert [record.properties for record in records] == [
        b"TAGS\x01TagA\x02CLUSTER\x01c\x02",
        b"k\x01v\x02CLUSTER\x01c\x02",
        b"CLUSTER\x01c\x02",
    ]
    assert list(results[:, message.RESULT_TAGS_CODE]) == [2598919, 0, 0]
    with pytest.raises(ValueError, match="element 0: properties"):
        message.put_batch(out, 0, 1000, 0, data, rows, 3, **common, extra_properties=b"x" * 32760, results=results)


def test_scan_batch_counts_past_a_small_table() -> None:
    data = message.encode_batch([b"a"] * 9, [b""] * 9)
    rows = np.zeros((4, message.BATCH_COLUMNS), np.int64)
    assert message.scan_batch(data, 0, len(data), rows) == 9
    assert list(rows[:, message.BATCH_SIZE]) == [23] * 4


def test_encode_batch_takes_any_buffer_and_refuses_bad_lengths() -> None:
    bodies: list[Any] = [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], np.frombuffer(b"gh", np.uint8)]
    data = message.encode_batch(bodies, [b""] * 4, (1, -2, 3, 4))
    assert [data[start : start + length] for start, length in batch_rows(data)[:, 1:3]] == [b"ab", b"cd", b"ef", b"gh"]
    with pytest.raises(ValueError, match="same length"):
        message.encode_batch([b"a"], [])
    with pytest.raises(ValueError, match="element 1: properties"):
        message.encode_batch([b"a", b"a"], [b"", b"p" * 32768])
    with pytest.raises(TypeError):
        message.encode_batch(["text"], [b""])  # type: ignore[list-item]


# --------------------------------------------------------------------------------------------------- put_records


def send_frame(topic: str, queue_id: int, properties: bytes, body: bytes, **changes: str) -> bytes:
    fields = {
        "a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1700000000000",
        "h": "7", "i": properties.decode(), "j": "0", "k": "false", "m": "false",
    } | changes  # fmt: skip
    return command.encode_frame(310, 12, 401, 1, 0, None, fields, body, 0)


class Sends:
    """Some send requests in one chunk, scanned, and a buffer to put them into."""

    def __init__(self, *frames: bytes, queues: int = 4) -> None:
        from rocketcore._fast import frame

        self.data = b"".join(frames)
        rows = np.zeros((len(frames), frame.FRAME_COLUMNS), np.int64)
        heads = np.zeros((len(frames), frame.HEAD_COLUMNS), np.int64)
        self.rows = np.zeros((len(frames), header.SEND_COLUMNS), np.int64)
        self.scratch = bytearray(len(self.data))
        assert frame.read_frames(self.data, 0, rows, heads)[:2] == (len(frames), len(self.data))
        assert header.scan_send(self.data, rows, heads, 0, len(frames), self.rows, self.scratch) == len(frames)
        self.results = np.zeros((len(frames), message.RESULT_COLUMNS), np.int64)
        self.next_offsets = np.arange(queues, dtype=np.int64) * 100
        self.out = bytearray(4096)

    def put(self, first: int = 0, *, topic: bytes = b"T", limit: int = 4096, **changes: Any) -> int:
        options: dict[str, Any] = {
            "next_offsets": self.next_offsets, "born_host": BORN, "store_host": HOST, "store_timestamp": 1700000000001,
            "extra_properties": b"CLUSTER\x01c1\x02", "max_body": 1000, "results": self.results,
        }  # fmt: skip
        return message.put_records(
            self.out, 10, limit, 5000, self.data, self.scratch, self.rows, first, len(self.rows), topic=topic,
            **options | changes,
        )  # fmt: skip

    def status(self, index: int) -> int:
        return int(self.results[index, message.RESULT_STATUS])


KEY = b"UNIQ_KEY\x010A0000090001000000020000000A0003\x02"


def test_put_records_lays_out_plain_messages() -> None:
    sends = Sends(
        send_frame("T", 1, KEY + b"TAGS\x01TagA", b"one"),
        send_frame("T", 3, KEY + b"WAIT\x01false\x02", b"two", j="2"),
        send_frame("T", 1, KEY + b"WAIT\x01true\x02", b"three"),
    )
    assert sends.put() == 3
    end = int(sends.results[2, message.RESULT_POSITION] + sends.results[2, message.RESULT_SIZE])
    records, bad = reference.decode_all(bytes(sends.out), 10, end, check_crc=True)
    assert bad is None
    assert [record.body for record in records] == [b"one", b"two", b"three"]
    assert [record.queue_offset for record in records] == [100, 300, 101]
    assert [record.physical_offset for record in records] == [5000 + record.position for record in records]
    assert [record.properties for record in records] == [
        KEY + b"TAGS\x01TagA\x02CLUSTER\x01c1\x02",
        KEY + b"WAIT\x01false\x02CLUSTER\x01c1\x02",
        KEY + b"WAIT\x01true\x02CLUSTER\x01c1\x02",
    ]
    assert {(r.flag, r.born_timestamp, r.store_timestamp, r.born_host, r.store_host) for r in records} == {
        (7, 1700000000000, 1700000000001, BORN, HOST)
    }
    assert [record.reconsume_times for record in records] == [0, 2, 0]
    assert list(sends.next_offsets) == [0, 102, 200, 301]
    assert list(sends.results[:, message.RESULT_QUEUE_OFFSET]) == [100, 300, 101]
    assert list(sends.results[:, message.RESULT_TAGS_CODE]) == [2598919, 0, 0]
    assert list(sends.results[:, message.RESULT_WAIT]) == [1, 0, 1]
    start, length = sends.results[0, [message.RESULT_UNIQ_KEY_START, message.RESULT_UNIQ_KEY_LENGTH]]
    assert bytes(sends.scratch[start : start + length]) == b"0A0000090001000000020000000A0003"
    assert sends.out[:10] == bytes(10)
    assert sends.out[end:] == bytes(4096 - end)


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (send_frame("T", 0, b"TAGS\x01a", b"no unique key"), message.PUT_GENERAL),
        (send_frame("T", 0, KEY, b""), message.PUT_GENERAL),
        (send_frame("T", 0, KEY, b"x", f="4"), message.PUT_GENERAL),
        (send_frame("T", 0, b"none\x02" + KEY, b"a pair that is none"), message.PUT_GENERAL),
        (send_frame("T", 0, KEY + b"\x02", b"one that is empty"), message.PUT_GENERAL),
        (send_frame("T", 0, KEY + b"k\x01", b"no value"), message.PUT_GENERAL),
        (send_frame("T", 0, KEY + b"none", b"none at the end"), message.PUT_GENERAL),
        (send_frame("T", 0, KEY, b"x", m="true"), message.PUT_GENERAL),
        (send_frame("T", 0, KEY + b"TAGS\x01a\x02k\x01v\x02TAGS\x01b", b"one twice"), message.PUT_GENERAL),
        (send_frame("T", 0, KEY + b"CLUSTER\x01mine", b"one of the broker's"), message.PUT_GENERAL),
        (send_frame("Other", 0, KEY, b"x"), message.PUT_OTHER_TOPIC),
        (send_frame("T", 4, KEY, b"x"), message.PUT_BAD_QUEUE),
        (send_frame("T", -1, KEY, b"x"), message.PUT_BAD_QUEUE),
        (send_frame("T", 0, KEY, b"x" * 1001), message.PUT_BODY_TOO_LONG),
        (send_frame("T", 0, KEY + b"p\x01" + b"v" * 32720, b"x"), message.PUT_PROPERTIES_TOO_LONG),
        *(
            (send_frame("T", 0, KEY + name + b"\x011\x02", b"x"), message.PUT_GENERAL)
            for name in (
                b"DELAY", b"TRAN_MSG", b"POP_CK", b"INNER_NUM", b"INNER_MULTI_DISPATCH", b"TIMER_DELAY_MS",
                b"TIMER_DELAY_SEC", b"TIMER_DELIVER_MS", b"_SYS_MSG_PRIORITY_", b"__LITE_TOPIC",
            )
        ),
    ],
)  # fmt: skip
def test_put_records_leaves_the_unusual_to_the_caller(frame: bytes, status: int) -> None:
    sends = Sends(send_frame("T", 2, KEY, b"before"), frame, send_frame("T", 2, KEY, b"after"))
    assert sends.put() == 1
    assert sends.status(1) == status
    assert list(sends.next_offsets) == [0, 100, 201, 300]
    assert sends.put(2) == 1
    assert list(sends.next_offsets) == [0, 100, 202, 300]


def test_put_records_ends_each_record_in_its_checksum() -> None:
    sends = Sends(
        send_frame("T", 1, KEY + b"TAGS\x01TagA", b"one"),
        send_frame("T", 3, KEY, b"two"),
        send_frame("T", 3, KEY + b"__CRC32#\x010123456789\x02", b"a checksum of its own"),
    )
    assert sends.put(checksum=True) == 2
    assert sends.status(2) == message.PUT_GENERAL
    end = int(sends.results[1, message.RESULT_POSITION] + sends.results[1, message.RESULT_SIZE])
    out = bytes(sends.out)
    records, bad = reference.decode_all(out, 10, end)
    assert bad is None
    assert [record.properties[:-20] for record in records] == [
        KEY + b"TAGS\x01TagA\x02CLUSTER\x01c1\x02",
        KEY + b"CLUSTER\x01c1\x02",
    ]
    for record in records:
        assert reference.verdict(out[record.position : record.position + record.size], record, sealed=True) == "sealed"
    size = len(KEY) + len(b"CLUSTER\x01c1\x02") + 20
    for filled, status in ((32767 - size - 3, message.PUT_OK), (32767 - size - 2, message.PUT_PROPERTIES_TOO_LONG)):
        sends = Sends(send_frame("T", 1, KEY + b"k\x01" + b"x" * filled + b"\x02", b"one"))
        sends.out = bytearray(40000)
        sends.put(checksum=True, limit=40000)
        assert sends.status(0) == status


def test_put_records_stops_before_the_limit() -> None:
    sends = Sends(*(send_frame("T", 0, KEY, b"x") for _ in range(3)))
    assert sends.put() == 3
    size = int(sends.results[0, message.RESULT_SIZE])
    sends.out[:] = bytes(4096)
    assert sends.put(limit=10 + 3 * size - 1) == 2
    assert sends.status(2) == message.PUT_NO_ROOM
    assert sends.out[10 + 2 * size :] == bytes(4096 - 10 - 2 * size)


def test_put_records_with_v6_hosts_and_a_long_topic() -> None:
    topic = "t" * 200
    sends = Sends(send_frame(topic, 0, KEY, b"x", f="48"), send_frame(topic, 0, KEY, b"y", f="1"))
    assert sends.put(topic=topic.encode(), born_host=V6, extra_properties=b"") == 2
    end = int(sends.results[1, message.RESULT_POSITION] + sends.results[1, message.RESULT_SIZE])
    records, bad = reference.decode_all(bytes(sends.out), 10, end, check_crc=True)
    assert bad is None
    assert [(r.sys_flag, r.magic, r.born_host) for r in records] == [
        (0x10, reference.MAGIC_V2, V6),
        (0x11, reference.MAGIC_V2, V6),
    ]


def test_put_records_refuses_rows_outside_the_tables() -> None:
    sends = Sends(send_frame("T", 0, KEY, b"x"))
    with pytest.raises(ValueError, match="rows"):
        sends.put(2)
    with pytest.raises(ValueError, match="rows"):
        sends.put(results=np.zeros((0, message.RESULT_COLUMNS), np.int64))
    with pytest.raises(ValueError, match="range"):
        sends.put(limit=4097)


# --------------------------------------------------------------------------------------------------------------- ids


@pytest.mark.parametrize("record", family("ids.jsonl", "offset/"), ids=name_of)
def test_offset_ids(record: dict[str, Any]) -> None:
    host, offset = host_bytes(record["input"]["storeHost"]), record["input"]["offset"]
    assert message.offset_msg_id(host, offset).decode() == record["expected"]
    assert message.decode_offset_msg_id(record["expected"]) == (host, offset)
    assert message.offset_msg_ids(host, np.array([offset, offset])).decode() == ",".join([record["expected"]] * 2)


@pytest.mark.parametrize("record", family("ids.jsonl", "offset-decode/"), ids=name_of)
def test_decode_of_given_ids(record: dict[str, Any]) -> None:
    text, decoded = record["input"]["text"], record["decoded"]
    if "error" in decoded or text.startswith("Z"):  # Java reads a letter above F as if it were a digit
        with pytest.raises(DecodeError):
            message.decode_offset_msg_id(text)
        return
    host, offset = message.decode_offset_msg_id(text.encode())
    assert (host[:-4].hex(), int.from_bytes(host[-4:]), offset) == (decoded["ip"], decoded["port"], decoded["offset"])


def test_ids_of_no_message_and_of_a_wrong_host() -> None:
    assert message.offset_msg_ids(HOST, np.zeros(0, np.int64)) == b""
    with pytest.raises(ValueError, match="host"):
        message.offset_msg_id(b"123", 0)


@pytest.mark.parametrize("record", family("stored_messages.jsonl", "crc-property"), ids=name_of)
def test_crc_property_is_an_ordinary_property(record: dict[str, Any]) -> None:
    """Nothing here writes it; what Java wrote must read as one pair and change neither tag nor key."""
    text = bytes.fromhex(record["hex"])
    data = message.encode_stored(**PLAIN | {"properties": b"TAGS\x01TagA\x02" + text})
    rows, _ = scan(data, check_crc=True, tags=True)
    assert rows[0, message.TAGS_CODE] == 2598919
    assert dict(reference.properties_of(text))[b"__CRC32#"].decode() == f"{record['input']['crc']:010d}"[::-1]


def test_tags_code() -> None:
    assert message.tags_code(b"") == 0
    assert message.tags_code(b"TAGS\x01tag-test\x02") == -810002715
    assert message.tags_code(b"XTAGS\x01a\x02TAGS\x01\x02k\x01TAGS\x02") == 0
    assert message.tags_code(b"TAGS\x01TagA\x02TAGS\x01TagB") == 2598920
