"""Send requests: read into rows, examined, and put as stored messages."""

from __future__ import annotations

import ipaddress
from typing import Any

import numpy as np
import pytest

from rocketcore._fast import command as command_kernel
from rocketcore._fast import frame as frame_kernel
from rocketcore._fast import sends as kernel
from tests.fixtures.vectors import family, name_of
from tests.reference import header as header_reference
from tests.reference import message as reference
from tests.unit.fast.test_command import BINARY, JSON, SEND, TYPES, Tables

HOST = bytes([10, 0, 0, 1]) + (10911).to_bytes(4)
BORN = bytes([10, 0, 0, 9]) + (50000).to_bytes(4)
V6 = ipaddress.ip_address("2001:db8::1").packed + (10911).to_bytes(4)
EXTRA = b"CLUSTER\x01c1\x02"
KEY = b"UNIQ_KEY\x010A0000090001000000020000000A0003\x02"


class SendTables(Tables):
    """The same, of which the send headers can be read too."""

    def send(self, scratch: int = 4096) -> tuple[list[dict[str, int]], bytearray]:
        names = [name for name in dir(kernel) if name.startswith("SEND_") and name != "SEND_COLUMNS"]
        out, room = np.full((64, kernel.SEND_COLUMNS), -77, np.int64), bytearray(scratch)
        done = kernel.scan_send(self.data, self.rows, self.heads, 0, self.count, out, room)
        return [{name[5:]: int(row[getattr(kernel, name)]) for name in names} for row in out[:done]], room


@pytest.mark.parametrize("vector", family("frames.jsonl", "typed/"), ids=name_of)
def test_sends_of_java(vector: dict[str, Any]) -> None:
    """A hook's ext field is one this reader does not know; without it the request is read."""
    tables = SendTables(bytes.fromhex(vector["hex"]))
    rows, _ = tables.send()
    assert rows[0]["STATUS"] == 1
    code, language, version, opaque, flag, remark, ext = tables.read()
    ext = {key: value for key, value in ext.items() if key != "extra"}
    body = tables.data[tables.rows[0][frame_kernel.BODY_START] :]
    serialize_type = TYPES[vector["input"]["serializeType"]]
    plain = SendTables(
        command_kernel.encode_frame(code, language, version, opaque, flag, remark, ext, body, serialize_type)
    )
    [row], scratch = plain.send()
    assert row["STATUS"] == (0 if "/send-v2@" in vector["name"] else 1)
    if row["STATUS"] == 0:
        check_send(plain, 0, row, scratch)


def check_send(tables: SendTables, index: int, row: dict[str, int], scratch: bytearray) -> None:
    """Compare a send row with the reference, field by field."""

    def cut(name: str) -> str:
        return tables.data[row[f"{name}_START"] :][: row[f"{name}_LENGTH"]].decode()

    command = header_reference.Header(*tables.read(index))
    fields = header_reference.read_send(command)
    assert fields is not None
    start = row["PROPERTIES_START"]
    found = {
        "b": cut("TOPIC"), "e": row["QUEUE_ID"], "f": row["SYS_FLAG"], "g": row["BORN_TIMESTAMP"],
        "h": row["MESSAGE_FLAG"], "j": row["RECONSUME_TIMES"], "k": False, "m": False,
        "i": scratch[start : start + row["PROPERTIES_LENGTH"]].decode(),
    }  # fmt: skip
    assert found == {key: value for key, value in fields.items() if key in found}
    assert (row["OPAQUE"], row["FLAG_BITS"]) == (command.opaque, command.flag)
    frame_row = tables.rows[index]
    for name in ("SERIALIZE_TYPE", "BODY_START", "BODY_LENGTH"):
        assert row[name] == frame_row[getattr(frame_kernel, name)]


def frame_of(
    serialize_type: int, changes: dict[str, str | None] | None = None, code: int = 310, flag: int = 0
) -> bytes:
    return command_kernel.encode_frame(code, 3, 407, 9, flag, None, SEND | (changes or {}), b"hi", serialize_type)


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"i": None, "j": None, "k": None, "l": None, "m": None, "n": None},
        {"l": "16", "j": "3"},
        {"d": "-1", "e": "-2147483648", "f": "2147483647", "g": "-9223372036854775808", "h": "-0"},
        {"g": "9223372036854775807"},
        {"i": 'é\x01中😀\x02"\\/\x1f', "bname": "b-a"},
        {"a": "gröup", "b": "t" * 200},
    ],
)
def test_sends_on_the_fast_path(serialize_type: int, changes: dict[str, str | None]) -> None:
    tables = SendTables(frame_of(serialize_type, changes) + frame_of(serialize_type, flag=2))
    rows, scratch = tables.send()
    assert [row["STATUS"] for row in rows] == [0, 0]
    for index, row in enumerate(rows):
        check_send(tables, index, row, scratch)


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
@pytest.mark.parametrize(
    "changes",
    [
        *({key: None} for key in "abcdefgh"),
        *({key: ""} for key in "abcdefgh"),
        *({key: bad} for key in "defhjl" for bad in ("x", "1.5", "+1", " 1", "2147483648", "-2147483649", "-")),
        {"g": "9223372036854775808"},
        {"g": "-9223372036854775809"},
        {"k": "true"},
        {"m": "true"},
        {"m": "TRUE"},
        {"m": "1"},
        {"o": "x"},
        {"AccessKey": "ak"},
        {"ns": "x"},
        {"i": "x" * 5000},
    ],
    ids=str,
)
def test_sends_for_the_slow_path(serialize_type: int, changes: dict[str, str | None]) -> None:
    """The row after it is read all the same."""
    tables = SendTables(frame_of(serialize_type, changes) + frame_of(serialize_type))
    rows, scratch = tables.send()
    assert [row["STATUS"] for row in rows] == [1, 0]
    check_send(tables, 1, rows[1], scratch)


@pytest.mark.parametrize(("code", "flag"), [(10, 0), (320, 0), (325, 0), (310, 1), (310, 3)])
def test_other_commands_are_no_sends(code: int, flag: int) -> None:
    rows, _ = SendTables(frame_of(JSON, code=code, flag=flag)).send()
    assert rows[0]["STATUS"] == 1


def test_invalid_utf8_in_a_binary_send_is_for_the_slow_path() -> None:
    data = frame_of(BINARY).replace(b"TagA", b"Tag\xff")
    assert SendTables(data).send()[0][0]["STATUS"] == 1


def test_send_stops_when_scratch_is_full() -> None:
    text = SEND["i"]
    tables = SendTables(frame_of(BINARY) * 5)
    rows, scratch = tables.send(scratch=2 * len(text) + 1)
    assert len(rows) == 2
    assert scratch == (text * 2).encode() + b"\0"
    assert SendTables(frame_of(BINARY)).send(scratch=len(text) - 1)[0][0]["STATUS"] == 1


def test_send_stops_when_the_table_is_full() -> None:
    tables = SendTables(frame_of(JSON) * 5)
    out = np.zeros((3, kernel.SEND_COLUMNS), np.int64)
    assert kernel.scan_send(tables.data, tables.rows, tables.heads, 1, 5, out, bytearray(1000)) == 3
    assert out[0][kernel.SEND_BODY_START] == tables.rows[1][frame_kernel.BODY_START]


def test_rows_that_do_not_fit_the_data_are_refused() -> None:
    tables = SendTables(frame_of(JSON))
    out = np.zeros((1, kernel.SEND_COLUMNS), np.int64)
    with pytest.raises(ValueError, match="not within"):
        kernel.scan_send(tables.data[:-1], tables.rows, tables.heads, 0, 1, out, bytearray(100))
    with pytest.raises(ValueError, match="rows"):
        kernel.scan_send(tables.data, tables.rows, tables.heads, 0, 65, out, bytearray(100))
    tables.heads[0][frame_kernel.EXT_END] = len(tables.data) + 1
    assert kernel.scan_send(tables.data, tables.rows, tables.heads, 0, 1, out, bytearray(100)) == 1
    assert out[0][kernel.SEND_STATUS] == 1


def send_frame(topic: str, queue_id: int, properties: bytes, body: bytes, **changes: str) -> bytes:
    fields = {
        "a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1700000000000",
        "h": "7", "i": properties.decode(), "j": "0", "k": "false", "m": "false",
    } | changes  # fmt: skip
    return command_kernel.encode_frame(310, 12, 401, 1, 0, None, fields, body, 0)


class Sends:
    """Some send requests in one chunk, scanned, and a buffer to put them into."""

    def __init__(self, *frames: bytes, queues: int = 4) -> None:
        self.data = b"".join(frames)
        rows = np.zeros((len(frames), frame_kernel.FRAME_COLUMNS), np.int64)
        heads = np.zeros((len(frames), frame_kernel.HEAD_COLUMNS), np.int64)
        self.rows = np.zeros((len(frames), kernel.SEND_COLUMNS), np.int64)
        self.scratch = bytearray(len(self.data))
        assert frame_kernel.read_frames(self.data, 0, rows, heads)[:2] == (len(frames), len(self.data))
        assert kernel.scan_send(self.data, rows, heads, 0, len(frames), self.rows, self.scratch) == len(frames)
        self.results = np.zeros((len(frames), kernel.RESULT_COLUMNS), np.int64)
        self.next_offsets = np.arange(queues, dtype=np.int64) * 100
        self.out = bytearray(4096)

    def put(self, first: int = 0, *, topic: bytes = b"T", limit: int = 4096, **changes: Any) -> int:
        options: dict[str, Any] = {
            "next_offsets": self.next_offsets, "born_host": BORN, "store_host": HOST, "store_timestamp": 1700000000001,
            "extra_properties": EXTRA, "max_body": 1000, "results": self.results,
        }  # fmt: skip
        return kernel.put_records(
            self.out, 10, limit, 5000, self.data, self.scratch, self.rows, first, len(self.rows), topic=topic,
            **options | changes,
        )  # fmt: skip


def test_put_records_lays_out_plain_messages() -> None:
    sends = Sends(
        send_frame("T", 1, KEY + b"TAGS\x01TagA", b"one"),
        send_frame("T", 3, KEY + b"WAIT\x01false\x02", b"two", j="2"),
        send_frame("T", 1, KEY + b"WAIT\x01true\x02", b"three"),
    )
    assert sends.put() == 3
    end = int(sends.results[2, kernel.RESULT_POSITION] + sends.results[2, kernel.RESULT_SIZE])
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
    assert list(sends.results[:, kernel.RESULT_QUEUE_OFFSET]) == [100, 300, 101]
    assert list(sends.results[:, kernel.RESULT_WAIT]) == [1, 0, 1]
    start, length = sends.results[0, [kernel.RESULT_UNIQ_KEY_START, kernel.RESULT_UNIQ_KEY_LENGTH]]
    assert bytes(sends.scratch[start : start + length]) == b"0A0000090001000000020000000A0003"
    assert sends.out[:10] == bytes(10)
    assert sends.out[end:] == bytes(4096 - end)


@pytest.mark.parametrize(
    "frame",
    [
        send_frame("T", 0, KEY, b""),
        send_frame("T", 0, KEY, b"x", f="4"),
        send_frame("T", 0, KEY, b"x", m="true"),
        send_frame("T", 0, KEY + b"DELAY\x013\x02", b"x"),
        send_frame("Other", 0, KEY, b"x"),
        send_frame("T", 4, KEY, b"x"),
        send_frame("T", -1, KEY, b"x"),
        send_frame("T", 0, KEY, b"x" * 1001),
        send_frame("T", 0, KEY + b"p\x01" + b"v" * 32720, b"x"),
    ],
)
def test_put_records_leaves_the_unusual_to_the_caller(frame: bytes) -> None:
    sends = Sends(send_frame("T", 2, KEY, b"before"), frame, send_frame("T", 2, KEY, b"after"))
    assert sends.put() == 1
    assert sends.put(1) == 0
    assert list(sends.next_offsets) == [0, 100, 201, 300]
    assert sends.put(2) == 1
    assert list(sends.next_offsets) == [0, 100, 202, 300]


@pytest.mark.parametrize(
    ("properties", "sys_flag", "asks"),
    [
        (b"", 0, 0),
        (b"TAGS\x01a\x02", 1, 0),
        (b"WAIT\x01tRuE\x02", 0, 0),
        (b"WAIT\x01yes\x02", 0, kernel.ASKS_NO_WAIT),
        (b"WAIT\x01false\x02WAIT\x01true\x02", 0, kernel.ASKS_REWRITE),
        (b"TRAN_MSG\x01false\x02", 0, 0),
        (b"TRAN_MSG\x01true\x02", 0, kernel.ASKS_TRANSACTION),
        (b"TRAN_MSG\x01TrUe\x02", 0, kernel.ASKS_TRANSACTION),
        (b"TRAN_MSG\x01true\x02TRAN_MSG\x01no\x02", 0, kernel.ASKS_REWRITE),
        (b"", 4, kernel.ASKS_TRANSACTION),
        (b"", 8, kernel.ASKS_TRANSACTION),
        (b"", 0x80, kernel.ASKS_INNER_BATCH),
        (b"INNER_NUM\x012\x02", 0, kernel.ASKS_INNER_BATCH),
        (b"DELAY\x013", 0, kernel.ASKS_DELAY),
        (b"POP_CK\x011\x02", 0, kernel.ASKS_POP_CHECKPOINT),
        (b"TIMER_DELAY_MS\x011\x02", 0, kernel.ASKS_TIMER),
        (b"TIMER_DELAY_SEC\x011\x02", 0, kernel.ASKS_TIMER),
        (b"TIMER_DELIVER_MS\x011\x02DELAY\x011\x02", 0, kernel.ASKS_TIMER | kernel.ASKS_DELAY),
        (b"none\x02", 0, kernel.ASKS_REWRITE),
        (b"\x02", 0, kernel.ASKS_REWRITE),
        (b"k\x01", 0, kernel.ASKS_REWRITE),
        (b"none", 0, kernel.ASKS_REWRITE),
        (b"TAGS\x01a\x02k\x01v\x02TAGS\x01b", 0, kernel.ASKS_REWRITE),
        (b"CLUSTER\x01mine", 0, kernel.ASKS_REWRITE),
        (b"__CRC32#\x010123456789\x02", 0, kernel.ASKS_REWRITE),
    ],
)
def test_what_a_message_asks_for(properties: bytes, sys_flag: int, asks: int) -> None:
    assert kernel.examine(KEY + properties, sys_flag, EXTRA) == asks
    assert kernel.examine(properties, sys_flag, EXTRA) == asks | kernel.ASKS_KEY


def test_a_text_of_many_pairs_or_bytes_is_not_searched_for_repeats() -> None:
    """Each name that may be there twice costs a pass over the text."""
    texts = [f"name{i}\x01value\x02".encode() for i in range(65)]
    assert kernel.examine(b"".join(texts[:64]), 0, b"") == kernel.ASKS_KEY
    assert kernel.examine(b"".join(texts), 0, b"") == kernel.ASKS_KEY | kernel.ASKS_REWRITE
    assert kernel.examine(b"a\x01" + bytes(32_764) + b"\x02", 0, b"") == kernel.ASKS_KEY
    assert kernel.examine(b"a\x01" + bytes(32_765) + b"\x02", 0, b"") == kernel.ASKS_KEY | kernel.ASKS_REWRITE


def test_what_the_name_of_a_property_asks_for() -> None:
    assert kernel.asked_by("TIMER_DELIVER_MS") == kernel.ASKS_TIMER
    assert kernel.asked_by("POP_CK") == kernel.ASKS_POP_CHECKPOINT
    assert kernel.asked_by("KEYS") == kernel.asked_by("") == kernel.asked_by("\ud800") == 0


def test_put_records_ends_each_record_in_its_checksum() -> None:
    sends = Sends(
        send_frame("T", 1, KEY + b"TAGS\x01TagA", b"one"),
        send_frame("T", 3, KEY, b"two"),
        send_frame("T", 3, KEY + b"__CRC32#\x010123456789\x02", b"a checksum of its own"),
    )
    assert sends.put(checksum=True) == 2
    assert sends.put(2, checksum=True) == 0
    end = int(sends.results[1, kernel.RESULT_POSITION] + sends.results[1, kernel.RESULT_SIZE])
    out = bytes(sends.out)
    records, bad = reference.decode_all(out, 10, end)
    assert bad is None
    assert [record.properties[:-20] for record in records] == [
        KEY + b"TAGS\x01TagA\x02CLUSTER\x01c1\x02",
        KEY + b"CLUSTER\x01c1\x02",
    ]
    for record in records:
        assert reference.verdict(out[record.position : record.position + record.size], record, sealed=True) == "sealed"
    size = len(KEY) + len(EXTRA) + 20
    for filled, stored in ((32767 - size - 3, 1), (32767 - size - 2, 0)):
        sends = Sends(send_frame("T", 1, KEY + b"k\x01" + b"x" * filled + b"\x02", b"one"))
        sends.out = bytearray(40000)
        assert sends.put(checksum=True, limit=40000) == stored


def test_put_records_stops_before_the_limit() -> None:
    sends = Sends(*(send_frame("T", 0, KEY, b"x") for _ in range(3)))
    assert sends.put() == 3
    size = int(sends.results[0, kernel.RESULT_SIZE])
    sends.out[:] = bytes(4096)
    assert sends.put(limit=10 + 3 * size - 1) == 2
    assert sends.put(2, limit=10 + size - 1) == -1
    assert sends.out[10 + 2 * size :] == bytes(4096 - 10 - 2 * size)


def test_put_records_with_v6_hosts_and_a_long_topic() -> None:
    topic = "t" * 200
    sends = Sends(send_frame(topic, 0, KEY, b"x", f="48"), send_frame(topic, 0, KEY, b"y", f="1"))
    assert sends.put(topic=topic.encode(), born_host=V6, extra_properties=b"") == 2
    end = int(sends.results[1, kernel.RESULT_POSITION] + sends.results[1, kernel.RESULT_SIZE])
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
        sends.put(results=np.zeros((0, kernel.RESULT_COLUMNS), np.int64))
    with pytest.raises(ValueError, match="range"):
        sends.put(limit=4097)
