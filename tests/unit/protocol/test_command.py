"""Commands: made, encoded, decoded; the general header reader against Java's."""

from __future__ import annotations

from typing import Any

import pytest

from rocketcore.codes import CURRENT_VERSION, LanguageCode, RequestCode, ResponseCode, SerializeType
from rocketcore.errors import BrokerError, DecodeError, LocalProtocolError, TopicNotExist
from rocketcore.protocol.command import PLACED_BODY_BYTES, RemotingCommand, next_opaque, request_name
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.protocol.headers.message import PullMessageRequestHeader
from rocketcore.protocol.headers.nameserver import GetRouteInfoRequestHeader
from rocketcore.protocol.json_header import UNKNOWN_LANGUAGE, read_json_header
from tests.fixtures.vectors import family, name_of

JAVA = [record for record in family("frames.jsonl", "decode/") if record["java"] == "5.5.0"]

ACCEPTED_BEYOND_JAVA = {
    "decode/JSON/unquoted-keys": "4.9.7 accepts it",
    "decode/JSON/ext-unquoted-number-keys": "4.9.7 accepts it",
    "decode/JSON/bom": "4.9.7 accepts it",
    "decode/JSON/invalid-utf8": "4.9.7 reads U+FFFD",
}
"""Headers for which 5.5.0 closes the connection and we do not."""


def decoded(record: dict[str, Any]) -> RemotingCommand:
    (command,) = FrameDecoder().feed(bytes.fromhex(record["hex"]))
    return command


def expectation(record: dict[str, Any]) -> tuple[Any, ...]:
    java = record["decoded"]
    language = UNKNOWN_LANGUAGE if java["language"] is None else LanguageCode[java["language"]]
    ext = java["ext"]
    if ext is not None:
        # Java keeps a null value; here it is as if the field were absent, which is how every handler reads it.
        ext = {name: text for name, text in ext.items() if text is not None}
    return java["code"], language, java["version"], java["flag"], java["remark"] or None, ext or None, java["body"]


@pytest.mark.parametrize("record", [r for r in JAVA if "error" not in r["decoded"]], ids=name_of)
def test_what_java_reads(record: dict[str, Any]) -> None:
    name = record["name"].split("@")[0]
    command = decoded(record)
    seen = (command.code, command.language, command.version, command.flag, command.remark or None)
    body = command.body.hex() or None
    if name == "decode/ROCKETMQ/trailing-bytes":
        # Java forgets to skip them and takes them for the beginning of the body.
        assert (body, record["decoded"]["body"]) == ("42", "de")
        body = "de"
    expected = expectation(record)
    if name == "decode/JSON/ext-value-types":
        # Decimal text of floating point numbers: Java keeps 1.50 as it was written.
        assert command.ext_fields is not None
        assert float(command.ext_fields["d"]) == 1.5
        expected[5].pop("d")
        command.ext_fields.pop("d")
    if name == "decode/JSON/escape-lone-surrogate":
        assert command.remark is not None
        assert len(command.remark) == 1
        return
    assert (*seen, command.ext_fields or None, body) == expected
    if record["decoded"]["opaque"] != "fresh":
        assert command.opaque == record["decoded"]["opaque"]


@pytest.mark.parametrize("record", [r for r in JAVA if "error" in r["decoded"]], ids=name_of)
def test_what_java_refuses(record: dict[str, Any]) -> None:
    if ACCEPTED_BEYOND_JAVA.get(record["name"].split("@")[0]):
        assert decoded(record).opaque is not None
        return
    try:
        commands = FrameDecoder().feed(bytes.fromhex(record["hex"]))
    except DecodeError:
        return
    assert commands == [], "a frame whose length claims more than came is not complete"


READABLE = [
    record
    for record in family("frames.jsonl", "encode/")
    if "error" not in record["decoded"] and record["input"].get("code", 0) <= 32767
]
"""Frames that Java reads back itself, without those whose code it cuts to 16 bits."""


@pytest.mark.parametrize("record", READABLE, ids=name_of)
def test_frames_that_java_wrote_round_trip(record: dict[str, Any]) -> None:
    frame = bytes.fromhex(record["hex"])
    (command,) = FrameDecoder().feed(frame)
    (again,) = FrameDecoder().feed(command.encode())
    for name in ("code", "language", "version", "opaque", "flag", "remark", "ext_fields", "body", "serialize_type"):
        # An empty map and none are the same: the binary form cannot tell them apart.
        assert (getattr(again, name) or None) == (getattr(command, name) or None), name


def test_request_and_response() -> None:
    request = RemotingCommand.request(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        GetRouteInfoRequestHeader(topic="T"),
        memoryview(b"body"),
        serialize_type=SerializeType.ROCKETMQ,
    )
    assert (request.is_response, request.is_oneway, request.language) == (False, False, LanguageCode.PYTHON)
    assert request.version == CURRENT_VERSION
    (arrived,) = FrameDecoder().feed(request.encode())
    assert arrived.header(GetRouteInfoRequestHeader).topic == "T"
    response = RemotingCommand.response(arrived, ResponseCode.TOPIC_NOT_EXIST, "no route")
    assert (response.opaque, response.serialize_type) == (request.opaque, SerializeType.ROCKETMQ)
    (answer,) = FrameDecoder().feed(response.encode())
    assert answer.is_response
    with pytest.raises(TopicNotExist, match="route of T at ns:1: TOPIC_NOT_EXIST \\(17\\): no route"):
        answer.raise_for_code("ns:1", "route of T")
    answer.raise_for_code(accept={ResponseCode.TOPIC_NOT_EXIST})
    assert "answer 17" in repr(answer)


def test_raise_for_a_code_without_a_class() -> None:
    command = RemotingCommand(9999, remark=None)
    with pytest.raises(BrokerError) as caught:
        command.raise_for_code("b:1")
    assert (caught.value.code, caught.value.code_name) == (9999, "CODE_9999")


def test_codes_beyond_16_bits_are_sent_as_json() -> None:
    request = RemotingCommand.request(RequestCode.POP_MESSAGE, serialize_type=SerializeType.ROCKETMQ)
    assert request.serialize_type == SerializeType.JSON
    (arrived,) = FrameDecoder().feed(request.encode())
    assert arrived.code == 200050


def test_a_frame_that_no_peer_accepts_is_not_sent() -> None:
    command = RemotingCommand.request(RequestCode.SEND_MESSAGE, body=bytes(16 * 1024 * 1024))
    with pytest.raises(LocalProtocolError, match="SEND_MESSAGE: a frame of 16777"):
        command.encode()


def test_opaques_differ_and_fit() -> None:
    opaques = {next_opaque() for _ in range(1000)}
    assert len(opaques) == 1000
    assert all(0 <= opaque < 2**31 for opaque in opaques)


def test_names() -> None:
    assert request_name(310) == "SEND_MESSAGE_V2"
    assert request_name(4711) == "CODE_4711"
    assert "one-way PULL_MESSAGE (11)" in repr(RemotingCommand.request(11, oneway=True))


def test_header_error_names_the_field() -> None:
    command = RemotingCommand.request(RequestCode.PULL_MESSAGE)
    with pytest.raises(DecodeError, match="PullMessageRequestHeader: consumerGroup is missing"):
        command.header(PullMessageRequestHeader)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "5", "null", '{"code":1', '{"code":1} x', '{"code":99999999999}', '{"code":"a"}',
        '{"extFields":{"a":{{"topic":"T","brokerName":"b"}:1}}}',
    ],
)  # fmt: skip
def test_general_reader_refuses(text: str) -> None:
    with pytest.raises(DecodeError, match=r"header: .* \(at byte \d+\)"):
        read_json_header(text.encode(), 100)


def test_a_header_that_is_not_standard_json_has_a_limit() -> None:
    text = b"{opaque:1,extFields:{%b}}"
    assert read_json_header(text % b"a:1,b:2,")[6] == {"a": "1", "b": "2"}
    with pytest.raises(DecodeError, match="more than 10000 values"):
        read_json_header(text % (b"a:1," * 10_001))


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_truth_value_is_no_language(value: str) -> None:
    assert read_json_header(f'{{"opaque":1,"language":{value}}}'.encode())[1] == UNKNOWN_LANGUAGE


def test_general_reader_leaves_a_missing_opaque_to_the_caller() -> None:
    assert read_json_header(b'{"code":7}') == (7, LanguageCode.JAVA, 0, None, 0, None, None)


def test_a_long_remark_is_cut() -> None:
    answer = RemotingCommand.response(RemotingCommand.request(1), 1, "no topic " + "x" * (1 << 20))
    assert answer.remark == "no topic " + "x" * 4087 + "… (1044489 more)"


@pytest.mark.parametrize("serialize_type", [SerializeType.JSON, SerializeType.ROCKETMQ])
@pytest.mark.parametrize("size", [0, PLACED_BODY_BYTES - 1, PLACED_BODY_BYTES, 300_000])
def test_pieces_are_the_frame(serialize_type: SerializeType, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    request = RemotingCommand.request(RequestCode.HEART_BEAT, body=body, serialize_type=serialize_type)
    request.add_ext_field("a", "b")
    pieces = request.pieces()
    if size < PLACED_BODY_BYTES:
        assert pieces == request.encode()
    else:
        assert b"".join(pieces) == request.encode()  # type: ignore[arg-type]
        assert pieces[1] is body


def test_pieces_that_are_too_long() -> None:
    with pytest.raises(LocalProtocolError, match=r"HEART_BEAT: a frame of \d+ bytes, \d+ are allowed"):
        RemotingCommand.request(RequestCode.HEART_BEAT, body=bytes(17 << 20)).pieces()


def test_the_body_of_a_received_command_without_a_copy() -> None:
    sent = RemotingCommand.request(RequestCode.HEART_BEAT, body=b"body")
    [command] = FrameDecoder().feed(sent.encode())
    view = command.view_body()
    assert isinstance(view.obj, bytes)
    assert bytes(view) == command.body == bytes(command.view_body()) == b"body"
    command.drop()
    assert bytes(command.view_body()) == b"body"
    [command] = FrameDecoder().feed(sent.encode())
    command.drop()
    assert bytes(command.view_body()) == b""
