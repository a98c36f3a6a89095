"""Sends that are answered from their rows: scan_send and put_records.

input  u8: form in bits 0 and 1, room for properties in bits 2 to 5 · form 0: a stream of frames, 1: JSON headers,
       2: binary headers, joined by two line feeds
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rocketcore._fast import frame
from rocketcore._fast import sends as sends_kernel
from rocketcore.errors import DecodeError
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, exact
from tests.reference import frame as reference_frame
from tests.reference import header as reference
from tests.reference import message as reference_message
from tests.reference.message import join_properties
from tests.reference.sends import asks

ROWS = 6
SEND_NUMBERS = {
    "e": sends_kernel.SEND_QUEUE_ID, "f": sends_kernel.SEND_SYS_FLAG, "g": sends_kernel.SEND_BORN_TIMESTAMP,
    "h": sends_kernel.SEND_MESSAGE_FLAG, "j": sends_kernel.SEND_RECONSUME_TIMES,
}  # fmt: skip
EXTRA = b"CLUSTER\x01c\x02"
HOST = b"\x0a\x00\x00\x09\x00\x00\x2a\x9f"
JOINT = b"\n\n"


def run(data: bytes) -> None:
    if not data:
        return
    form, room, payload = data[0] & 3, 8 << (data[0] >> 2 & 15) % 9, data[1:]
    if form == 0:
        stream = payload
    else:
        parts = payload.split(JOINT)
        stream = b"".join(reference_frame.frame(part, b"body%d" % i, form >> 1) for i, part in enumerate(parts))
    block = exact(stream)
    rows, heads = np.zeros((ROWS, frame.FRAME_COLUMNS), np.int64), np.zeros((ROWS, frame.HEAD_COLUMNS), np.int64)
    try:
        count, _, code = frame.read_frames(block, 0, rows, heads)
    except DecodeError:
        return
    read = [whole(block, row, head) for row, head in zip(rows[:count], heads[:count], strict=True)]
    codes = {command.code for command in read if command is not None and not command.flag & 1}
    alike = None not in read and len(codes) == 1 and not any(command.flag & 1 for command in read if command)
    assert code == (codes.pop() if alike else -1)
    check_sends(stream, block, rows, heads, read, room)


def whole(block: memoryview, row: Any, head: Any) -> reference.Header | None:
    """Read a header whole, as the reference reads it; None where the kernels leave it to the general reader."""
    start, length, kind = row[[frame.HEADER_START, frame.HEADER_LENGTH, frame.SERIALIZE_TYPE]].tolist()
    text = bytes(block[start : start + length])
    try:
        want = reference.read_binary(text) if kind else reference.read_json(text)
    except DecodeError:
        want = None
    assert head[frame.STATUS] == (want is None)
    return want


def check_sends(stream: bytes, block: memoryview, rows: Any, heads: Any, read: list[Any], room: int) -> None:
    out, scratch = np.zeros((ROWS, sends_kernel.SEND_COLUMNS), np.int64), np.zeros(room, np.uint8)
    first = 0
    while first < len(read):
        out[:] = 0
        done = sends_kernel.scan_send(block, rows, heads, first, len(read), out, scratch)  # type: ignore[arg-type]
        assert done > 0
        texts = [check_send(stream, out[i], read[first + i], bytes(scratch)) for i in range(done)]
        store(stream, block, scratch, out, done, texts)
        first += done


def check_send(stream: bytes, row: Any, command: reference.Header | None, scratch: bytes) -> bytes:
    """Compare a row with the reference; returns the properties."""
    if row[sends_kernel.SEND_STATUS]:
        return b""
    assert command is not None
    want = reference.read_send(command)
    assert want is not None
    assert cut(stream, row, "TOPIC").decode() == want["b"]
    assert not want["m"]
    properties = cut(scratch, row, "PROPERTIES")
    assert reference.java_text(properties) == want["i"]
    assert {key: int(row[column]) for key, column in SEND_NUMBERS.items()} == {
        key: int(want[key]) for key in SEND_NUMBERS
    }
    return properties


def cut(data: bytes, row: Any, name: str) -> bytes:
    start, length = (int(row[getattr(sends_kernel, f"SEND_{name}_{part}")]) for part in ("START", "LENGTH"))
    return data[start : start + length]


def store(stream: bytes, block: memoryview, scratch: Any, sends: Any, count: int, texts: list[bytes]) -> None:
    """Store the rows: what is stored reads as the reference says, and what is not stored asks for more than that."""
    out, results = np.zeros(2048, np.uint8), np.zeros((ROWS, sends_kernel.RESULT_COLUMNS), np.int64)
    next_offsets = np.arange(4, dtype=np.int64)
    at = first = 0
    while first < count:
        topic = cut(stream, sends[first], "TOPIC")
        if sends[first][sends_kernel.SEND_STATUS] or len(topic) > 1000:
            first += 1
            continue
        stored = sends_kernel.put_records(
            out, at, len(out), 1 << 30, block, scratch, sends, first, count, topic=topic, next_offsets=next_offsets,  # type: ignore[arg-type]
            born_host=HOST, store_host=HOST, store_timestamp=1_700_000_000_000, extra_properties=EXTRA, max_body=64,
            results=results,
        )  # fmt: skip
        for index in range(first, first + stored):
            record = reference_message.decode(bytes(out), at, len(out), check_crc=True)
            assert results[index][sends_kernel.RESULT_POSITION] == at
            assert (record.topic, record.body) == (topic, cut(stream, sends[index], "BODY"))
            assert record.properties == join_properties(texts[index], EXTRA)
            assert is_plain(sends[index], texts[index])
            assert record.physical_offset == (1 << 30) + at
            at += record.size
        if stored == 0:
            assert not is_plain(sends[first], texts[first])
        first += max(stored, 1)


def is_plain(row: Any, text: bytes) -> bool:
    """Whether a send of its own topic is stored as it came."""
    return bool(
        0 < row[sends_kernel.SEND_BODY_LENGTH] <= 64
        and 0 <= row[sends_kernel.SEND_QUEUE_ID] < 4
        and asks(text, int(row[sends_kernel.SEND_SYS_FLAG]), EXTRA) <= {"NO_WAIT"}
    )


def seeds() -> Iterable[bytes]:
    wanted = {10, 11, 105, 310, 320, 361}
    for record in vectors("frames.jsonl"):
        if len(record["hex"]) < 1600 and (record.get("decoded") or {}).get("code") in wanted:
            yield b"\x00" + bytes.fromhex(record["hex"])
    properties = "UNIQ_KEY\x010A0000090001000000020000000A0003\x02WAIT\x01true\x02TAGS\x01a"
    send = {
        "a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
        "i": properties, "j": "0", "k": "false", "l": "16", "m": "false", "n": "b",
    }  # fmt: skip
    pull = {
        "consumerGroup": "g", "topic": "T", "queueId": "1", "queueOffset": "9", "maxMsgNums": "32", "sysFlag": "2",
        "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "0", "subscription": "*",
        "expressionType": "TAG", "bname": "b", "maxMsgBytes": "9",
    }  # fmt: skip
    for code, ext in (
        (310, send),
        (11, pull),
        (105, {"topic": "T"}),
        (105, {"topic": "T", "acceptStandardJsonOnly": "true"}),
    ):
        command = reference.Header(code, 0, 407, 5, 0, None, ext)
        text, data = reference.write_json(command), reference.write_binary(command)
        yield b"\x11" + text
        yield b"\x21" + JOINT.join([text, text.replace(b'"opaque":5', b'"opaque":6')])
        yield b"\x22" + data
        yield b"\x22" + JOINT.join([data, data])


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b'"code":310,"extFields":{', b'"code":11,"extFields":{', b'"a":"', b'"i":"', b'\\u0001', b'\\u0002', b"\n\n",
        b'"queueId":"', b'"queueOffset":"', b'"sysFlag":"', b'"bname":"b",', b'"false"', b'"true"',
        b"-9223372036854775808", b"\x00\x01i\x00\x00\x00\x04", b"UNIQ_KEY", b"WAIT", b"TAGS", b"\x01", b"\x02",
        b"DELAY", b"TRAN_MSG",
    ),
)  # fmt: skip
