"""Command headers against the frames that Apache RocketMQ's Java classes make."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rocketcore._fast import command as command_kernel
from rocketcore._fast import frame
from rocketcore.errors import DecodeError, LocalProtocolError
from tests.fixtures.vectors import family, name_of
from tests.reference import frame as reference_frame
from tests.reference import header as reference

TYPES = {"JSON": 0, "ROCKETMQ": 1}
JSON, BINARY = 0, 1
SEND = {
    "a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
    "i": "TAGS\x01TagA\x02", "j": "0", "k": "false", "m": "false", "n": "b-a",
}  # fmt: skip


class Tables:
    """The frames of some bytes, their heads read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.rows = np.zeros((64, frame.FRAME_COLUMNS), np.int64)
        self.heads = np.full((64, frame.HEAD_COLUMNS), -77, np.int64)
        self.count, position, _ = frame.read_frames(data, 0, self.rows, self.heads)
        assert position == len(data)

    def read(self, index: int = 0) -> Any:
        _, start, length, _, _, serialize_type = self.rows[index]
        return command_kernel.read(self.data, start, length, serialize_type)


def one(header_bytes: bytes, serialize_type: int = JSON, body: bytes = b"") -> Tables:
    return Tables(reference_frame.frame(header_bytes, body, serialize_type))


# Read as the newest release does.
OLDER = {
    "decode/JSON/language-NODE_JS@4.9.7", "decode/ROCKETMQ/language-13@4.9.7", "decode/JSON/at-type-ext@4.9.7",
    "decode/JSON/at-type-ext@5.3.3",
}  # fmt: skip


def decodes(prefix: str) -> list[dict[str, Any]]:
    return [vector for vector in family("frames.jsonl", prefix) if vector["name"] not in OLDER]


def joined(text: str | None) -> str | None:
    """Text of a vector, where a lone surrogate is written as such, as Java encodes it."""
    return None if text is None else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def expected(decoded: dict[str, Any]) -> reference.Header:
    language = decoded["language"]
    ext = decoded["ext"]
    return reference.Header(
        decoded["code"],
        -1 if language is None else reference.LANGUAGES.index(language),
        decoded["version"],
        decoded["opaque"],
        decoded["flag"],
        joined(decoded["remark"]),
        None if ext is None else {key: joined(value) or "" for key, value in ext.items() if value is not None},
    )


@pytest.mark.parametrize("vector", family("frames.jsonl", "encode/") + family("frames.jsonl", "typed/"), ids=name_of)
def test_reads_what_java_writes(vector: dict[str, Any]) -> None:
    tables = Tables(bytes.fromhex(vector["hex"]))
    if "error" in vector["decoded"]:  # Java cannot read everything it writes
        with pytest.raises(DecodeError):
            tables.read()
        return
    want = expected(vector["decoded"])
    assert tables.read() == want
    head = tables.heads[0]
    assert head[frame.STATUS] == 0
    columns = [frame.CODE, frame.LANGUAGE, frame.VERSION, frame.OPAQUE, frame.FLAG]
    assert head[columns].tolist() == [want.code, want.language, want.version, want.opaque, want.flag]


@pytest.mark.parametrize("vector", family("frames.jsonl", "encode/"), ids=name_of)
def test_writes_what_java_writes(vector: dict[str, Any]) -> None:
    given, serialize_type = vector["input"], TYPES[vector["input"]["serializeType"]]
    body = bytes.fromhex(given["body"] or "")
    command = (
        given["code"], reference.LANGUAGES.index(given["language"]), given["version"], given["opaque"], given["flag"],
        given["remark"], given["ext"], body, serialize_type,
    )  # fmt: skip
    if "error" in vector["decoded"]:
        with pytest.raises(LocalProtocolError, match="key"):
            command_kernel.encode_frame(*command)
        return
    written = command_kernel.encode_frame(*command)
    if serialize_type == BINARY and not -0x8000 <= given["code"] <= 0x7FFF:
        assert written[4] == JSON, "Java cuts the code to 16 bits"
        assert Tables(written).read()[0] == given["code"]
        return
    java = bytes.fromhex(vector["hex"])
    ours, theirs = Tables(written), Tables(java)
    assert ours.read() == theirs.read()
    assert written[ours.rows[0][frame.BODY_START] :] == body
    if len(given["ext"] or {}) < 2 and (vector["java"] == "5.5.0" or serialize_type == BINARY):
        assert written == java  # with more ext fields the order is that of Java's hash table


@pytest.mark.parametrize("vector", decodes("decode/JSON/"), ids=name_of)
def test_odd_json_is_read_as_java_does_or_left_to_the_general_reader(vector: dict[str, Any]) -> None:
    tables = Tables(bytes.fromhex(vector["hex"]))
    found = tables.read()
    assert (found is None) == (tables.heads[0][frame.STATUS] == 1)
    if found is not None:
        assert found == expected(vector["decoded"])


USUAL = {
    "standard", "whitespace", "code-negative", "ext-null", "ext-empty", "remark-null", "escapes", "raw-unicode",
    "go-style", "serialize-type-name", "language-JAVA", "language-GO",
}  # fmt: skip


@pytest.mark.parametrize("vector", decodes("decode/JSON/"), ids=name_of)
def test_usual_json_needs_no_general_reader(vector: dict[str, Any]) -> None:
    case = vector["name"].split("@")[0].split("/")[-1]
    if case in USUAL:
        assert Tables(bytes.fromhex(vector["hex"])).read() is not None
    if case in {"duplicate-keys", "unknown-keys", "opaque-missing", "invalid-utf8", "bom", "escape-lone-surrogate"}:
        assert Tables(bytes.fromhex(vector["hex"])).read() is None


@pytest.mark.parametrize("vector", decodes("decode/ROCKETMQ/"), ids=name_of)
def test_odd_binary_headers(vector: dict[str, Any]) -> None:
    tables = Tables(bytes.fromhex(vector["hex"]))
    if "error" in vector["decoded"]:
        assert tables.heads[0][frame.STATUS] == 1
        with pytest.raises(DecodeError) as caught:
            tables.read()
        assert 8 <= caught.value.position <= len(tables.data)
    else:
        assert tables.heads[0][frame.STATUS] == 0
        assert tables.read() == expected(vector["decoded"])


def test_specification_example_json() -> None:
    text = (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    written = command_kernel.encode_frame(105, 0, 479, 7, 0, None, {"topic": "T"}, b"", JSON)
    assert written == bytes.fromhex("0000007f0000007b") + text


def test_specification_example_binary() -> None:
    written = command_kernel.encode_frame(105, 0, 479, 7, 0, None, {"topic": "T"}, b"ab", BINARY)
    want = "00000027 01000021 0069 00 01df 00000007 00000000 00000000 0000000c 0005 746f706963 00000001 54 6162"
    assert written == bytes.fromhex(want)


def test_one_bad_header_spoils_no_other() -> None:
    good = command_kernel.encode_frame(105, 0, 479, 7, 0, None, {"topic": "T"}, b"ab", BINARY)
    bad = reference_frame.frame(b"\x00" * 5, b"", BINARY)
    tables = Tables(good + bad + good)
    assert tables.heads[:3, frame.STATUS].tolist() == [0, 1, 0]
    assert tables.read(2)[3] == 7


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_values_are_texts_of_any_kind(serialize_type: int) -> None:
    ext = {"é\x01": '\x00\x1f\x7f"\\/\u2028😀', "b" * 300: "x" * 5000, "c": " "}
    tables = Tables(command_kernel.encode_frame(-5, 3, -1, -(2**31), 2**31 - 1, "中\n", ext, b"body", serialize_type))
    assert tables.read() == (-5, 3, -1, -(2**31), 2**31 - 1, "中\n", ext)


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_many_ext_fields(serialize_type: int) -> None:
    ext = {f"key{i}": str(i) for i in range(1000)}
    assert Tables(command_kernel.encode_frame(1, 3, 0, 0, 0, None, ext, b"", serialize_type)).read()[6] == ext


def test_none_is_not_written() -> None:
    written = command_kernel.encode_frame(1, 3, 0, 0, 0, None, {"a": None, "b": "1"}, b"", JSON)
    assert Tables(written).read()[5:] == (None, {"b": "1"})


def test_unpaired_surrogates_become_question_marks() -> None:
    ext = {"k\udc00": "\ud83d\ude00 \ud83d", "n": None}
    frame_bytes = command_kernel.encode_frame(1, 3, 0, 0, 0, "\udfff", ext, b"", JSON)
    assert Tables(frame_bytes).read()[5:] == ("?", {"k?": "😀 ?"})
    answer = command_kernel.encode_pull_response_header(0, 1, 2, "\udfff", 0, 0, 0, 0, 0, JSON)
    assert Tables(answer).read()[5] == "?"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"ext_fields": {"a": 1}}, TypeError),
        ({"ext_fields": {1: "a"}}, TypeError),
        ({"ext_fields": {"k" * 32768: "v"}, "serialize_type": BINARY}, LocalProtocolError),
        ({"remark": "x" * 17_000_000}, LocalProtocolError),
        ({"remark": 5}, TypeError),
        ({"language": 14}, ValueError),
        ({"language": -1}, ValueError),
        ({"serialize_type": 2}, ValueError),
        ({"opaque": 1 << 31}, OverflowError),
        ({"code": 1 << 31}, OverflowError),
        ({"body": "text"}, TypeError),
    ],
)
def test_what_is_not_a_command(arguments: dict[str, Any], error: type[Exception]) -> None:
    good: dict[str, Any] = {
        "code": 1, "language": 3, "version": 0, "opaque": 0, "flag": 0, "remark": None, "ext_fields": None, "body": b"",
        "serialize_type": JSON,
    }  # fmt: skip
    command_kernel.encode_frame(**good)
    with pytest.raises(error):
        command_kernel.encode_frame(**(good | arguments))


@pytest.mark.parametrize(("start", "length"), [(-1, 5), (0, -1), (5, 100)])
def test_read_outside_the_data(start: int, length: int) -> None:
    with pytest.raises(ValueError, match="not within"):
        command_kernel.read(b"0123456789", start, length, JSON)


def test_read_of_an_unknown_type() -> None:
    with pytest.raises(ValueError, match="serialize type 2"):
        command_kernel.read(b"{}", 0, 2, 2)


# ---- answers


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
@pytest.mark.parametrize("transaction_id", [None, b"0A000009", 'q"\x01é'.encode()])
def test_send_response(serialize_type: int, transaction_id: bytes | None) -> None:
    msg_id = b",".join([b"0A00000100002A9F0000000000000064"] * 40)
    region = b"DefaultRegion"
    answer = command_kernel.encode_send_response(-9, 479, 3, 2**63 - 1, msg_id, transaction_id, serialize_type, region)
    want = {
        "msgId": msg_id.decode(), "queueId": "3", "queueOffset": str(2**63 - 1), "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }  # fmt: skip
    if transaction_id is not None:
        want["transactionId"] = transaction_id.decode()
    assert Tables(answer).read() == (0, 3, 479, -9, 1, None, want)
    if serialize_type == JSON:
        json.loads(answer[8:])


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_pull_response_header(serialize_type: int) -> None:
    body = bytes(3000)
    start = command_kernel.encode_pull_response_header(
        19, 4, 479, "näh", 1, 2**63 - 1, -1, 0, len(body), serialize_type
    )
    tables = Tables(start + body)
    ext = {
        "suggestWhichBrokerId": "1", "nextBeginOffset": str(2**63 - 1), "minOffset": "-1", "maxOffset": "0",
    }  # fmt: skip
    assert tables.read() == (19, 3, 479, 4, 1, "näh", ext)
    assert tables.rows[0][frame.BODY_START] == len(start)


def tables_of(data: bytes, rows: int = 8, start: int = 0) -> tuple[Any, Any, tuple[int, int, int]]:
    frames, heads = np.zeros((rows, frame.FRAME_COLUMNS), np.int64), np.zeros((rows, frame.HEAD_COLUMNS), np.int64)
    return frames, heads, frame.read_frames(data, start, frames, heads)


def request(code: int, serialize_type: int, flag: int = 0, opaque: int = 1, ext: dict[str, str] | None = None) -> bytes:
    return command_kernel.encode_frame(code, 3, 479, opaque, flag, None, ext, b"body", serialize_type)


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_frames_and_heads_in_one_call(serialize_type: int) -> None:
    data = b"".join(request(105, serialize_type, opaque=n, ext={"topic": "a"}) for n in range(3))
    two_calls = Tables(data)
    frames, heads, result = tables_of(data + data[:9])
    assert result == (3, len(data), 105)
    assert (frames[:3] == two_calls.rows[:3]).all()
    assert (heads[:3] == two_calls.heads[:3]).all()
    assert tables_of(data, rows=2)[2] == (2, len(data) // 3 * 2, 105)
    assert tables_of(data, start=len(data))[2] == (0, len(data), -1)


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_the_shared_code_is_that_of_plain_requests_only(serialize_type: int) -> None:
    plain, answer = request(105, serialize_type), request(105, serialize_type, flag=1)
    other, unusual = request(310, serialize_type), reference_frame.frame(b'{"code":105,/**/"opaque":7}', b"", JSON)
    oneway = request(105, serialize_type, flag=2)
    assert tables_of(plain + oneway + plain)[2][2] == 105
    for odd in (answer, other, unusual):
        for data in (odd + plain, plain + odd, plain + odd + plain):
            assert tables_of(data)[2][2] == -1


def test_a_bad_frame_is_refused_when_it_is_the_first() -> None:
    good, bad = request(105, JSON), b"\x00\x00\x00\x00"
    assert tables_of(good + bad)[2] == (1, len(good), 105)
    with pytest.raises(DecodeError):
        tables_of(good + bad, start=len(good))
    with pytest.raises(ValueError, match="not within"):
        tables_of(good, start=len(good) + 1)
