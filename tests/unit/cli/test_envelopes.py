"""Lines of JSON to send: the body's text as it stands, and the place of each fault."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rocketcore.cli.messages.envelopes import read_envelope
from rocketcore.files.faults import TextFault
from rocketcore.files.json_text import JsonFault, json_documents, json_members, json_value


def body(text: str) -> Any:
    fields = read_envelope(text.encode(), 2)
    assert fields is not None
    return fields["body"]


@pytest.mark.parametrize(
    "text",
    [
        "12527.60048171909141234",
        "1505253645000000000000001",
        "1.10",
        "-0",
        "1E400",
        "1e-400",
        "9" * 5000,
        "null",
        "true",
        "[]",
        '{"a":1,"a":2}',
        '{ "price":1.10,\r\t"n" : [ 1.0 , {"x": null} ] }',
        '{"half":"\\ud800"}',
        '["\\u0041", "\\/", "ä", "\u2028", "\U0001f680"]',
    ],
)
def test_a_body_that_is_no_string_is_the_text_that_stands_there(text: str) -> None:
    for before, behind in (("", ""), ('"tag":"t", ', ""), ("", ', "keys":["body"]'), ('"body":"first", ', "")):
        assert body(f'{{{before}"body":{text}{behind}}}') == text
    assert body(f'\t{{ "b\\u006fdy"\r:\r {text} \t}}\r\r\n') == text


@pytest.mark.parametrize(
    ("text", "content"), [('"a\\n\\u00e4"', "a\nä"), ('"1.10"', "1.10"), ('""', ""), ('"\\u0000"', "\0")]
)
def test_a_body_that_is_a_string_is_its_content(text: str, content: str) -> None:
    assert body(f'{{"body": {text}}}') == content


def test_numbers_stand_for_their_digits_where_a_text_is_wanted() -> None:
    line = b'{"body": "b", "tag": 7, "keys": [1, 2.50, "k"], "properties": {"n": 1.10}, "message_group": 1e3}'
    fields = read_envelope(line, 1)
    assert fields == {
        "body": "b", "tag": "7", "keys": ["1", "2.50", "k"], "properties": {"n": "1.10"}, "message_group": "1e3"
    }  # fmt: skip
    assert read_envelope(b'{"body": "b", "keys": 42}', 1) == {"body": "b", "keys": "42"}


@pytest.mark.parametrize("line", [b"", b"\n", b"\r\n", b"  \t\r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf \n"])
def test_a_blank_line_is_no_message(line: bytes) -> None:
    assert read_envelope(line, 1) is None


@pytest.mark.parametrize(
    ("line", "place"),
    [
        (b'{"body": NaN}', "column 10: .*NaN is not JSON"),
        (b'{"body": ["NaN", -Infinity]}', "column 18: .*-Infinity is not JSON"),
        (b'{"body": 01}', "column 11"),
        (b'{"body": 1.}', "column 11"),
        (b'{"body": .5}', "column 10"),
        (b'{"body": +1}', "column 10"),
        (b'{"body": "a\tb"}', "column 12"),
        (b'{"body": "\\x"}', "column 11"),
        (b'{"body": "\\ud800"}', "column 10: .*half of a surrogate pair"),
        (b'{"body": "b", "keys": ["\\udc00"]}', "column 23: .*keys has half"),
        (b'{"body": "b", "properties": {"\\udc00": "v"}}', "column 29: .*properties has half"),
        (b'{"body": 1', "column 11"),
        (b'{"body": 1} {"body": 2}', "column 13"),
        (b'{"body": 1,}', "column 1[12]"),  # from Python 3.13 on the comma itself
        (b"{'body': 1}", "column 2"),
        (b'"text"', "column 1: .*no object"),
        (b"  [1]", "column 3: .*no object"),
        (b'{"tag": "t"}  ', "column 12: .*no body"),
        (b'{"body_base64": 1234}', "column 17: .*body_base64 is not a text"),
        (b'{"body_base64": "?"}', "column 17: .*body_base64"),
        (b'{"body": "b", "tag": true}', "column 22: .*tag is not a text"),
        (b'{"body": "b", "delay": 3}', "column 24: .*unknown field delay"),
        ('{"body": "ä'.encode() + b"\xff", "column 12: the byte 0xff is no UTF-8"),
        (b'{"body": ' + b"[" * 100_000, "column 1: .*nested too deeply"),
    ],
    ids=range(24),
)  # fmt: skip
@pytest.mark.parametrize("number", [1, 7])
def test_a_fault_has_line_and_column(line: bytes, place: str, number: int) -> None:
    with pytest.raises(TextFault, match=f"^line {number}, {place}"):
        read_envelope(line, number)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_named(encoding: str) -> None:
    with pytest.raises(TextFault, match=r"^line 1, column 1: the file (is|looks like) UTF-(16|32)"):
        read_envelope('{"body": "b"}\n'.encode(encoding), 1)


def test_documents_of_a_text() -> None:
    def texts(text: str) -> list[str]:
        return [text[value.begin : value.end] for value in json_documents(text)]

    assert texts("") == texts(" \n") == texts("[]") == texts(" [ ]\n") == []
    assert texts('[1.10, {"a" : 2},\n "x"]\n') == ["1.10", '{"a" : 2}', '"x"']
    assert texts('{\n  "a": 1\n}\n{"a": 1.0}{"b":2}') == ['{\n  "a": 1\n}', '{"a": 1.0}', '{"b":2}']
    assert texts("[1]\n[2, 3]\n") == ["[1]", "[2, 3]"], "lines of arrays are no array"
    comma = 2 if sys.version_info >= (3, 13) else 3
    for text, position in (("[1, 2", 5), ('{"a": 1}\nx', 9), ("[1,]", comma), ("[1]]", 3)):
        with pytest.raises(JsonFault) as fault:
            texts(text)
        assert fault.value.position == position, text


def test_members_are_those_of_the_value() -> None:
    text = ' { "a" : 1.10 , "b":[ 1,2 ],"\\u0063" : {"a":3}, "a": "last" } '
    members = json_members(text)
    assert {name: text[value.begin : value.end] for name, value in members.items()} == {
        "a": '"last"', "b": "[ 1,2 ]", "c": '{"a":3}'
    }  # fmt: skip
    assert {name: value.content for name, value in members.items()} == json_value(text).content
    assert json_members(" {} ") == {}


@pytest.mark.parametrize("line", [b'{"body": "x", "body_base64": "YQ=="}', b'{"body_base64": "YQ==", "body": ""}'])
def test_an_envelope_has_one_body(line: bytes) -> None:
    with pytest.raises(TextFault, match="an envelope has body or body_base64, not both"):
        read_envelope(line, 1)
    assert read_envelope(b'{"body": null, "body_base64": "YQ=="}', 1) == {"body": b"a"}
