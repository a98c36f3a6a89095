"""The JSON dialect: reading what fastjson writes and accepts, writing what it reads."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import re
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore.errors import DecodeError
from rocketcore.message import MessageQueue
from rocketcore.protocol import fastjson
from tests.fixtures.vectors import family, name_of

QUEUE = MessageQueue("T", "b", 0)
QUEUE_TEXT = '{"brokerName":"b","queueId":0,"topic":"T"}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",-1:"b"}', {0: "a", -1: "b"}),
        ('{ 0 : "a" }', {0: "a"}),
        (f"{{{QUEUE_TEXT}:5}}", {QUEUE: 5}),
        ('{{"topic":"T","queueId":0,"brokerName":"b"}:5}', {QUEUE: 5}),
        ('{{"other":1}:5}', {'{"other":1}': 5}),
        ('{{"other":1},:5}', None),
        ("{'a':'b\\'c'}", {"a": "b'c"}),
        ("{a:1,$b:2}", {"a": 1, "$b": 2}),
        ('{"a":1,}', {"a": 1}),
        ("[1,2,]", [1, 2]),
        ('/*c*/{"a"://x\n1}', {"a": 1}),
        ('{"a":"b\\x41\\v\\0\\/"}', {"a": "bA\v\0/"}),
        ('{x:"\\ud83d\\ude80"}', {"x": "🚀"}),
        ('{x:"a\x01\n"}', {"x": "a\x01\n"}),
        ("{x:1L,y:.5,z:-1.5E-3D,w:+2}", {"x": 1, "y": 0.5, "z": -0.0015, "w": 2}),
        ("{x:true,y:false,z:null}", {"x": True, "y": False, "z": None}),
        ('\ufeff{"a":1}', {"a": 1}),
        ("{}", {}),
        ("{x:[]}", {"x": []}),
        ("{x:9223372036854775807}", {"x": 2**63 - 1}),
    ],
)
def test_dialect(text: str, value: Any) -> None:
    if value is None:
        with pytest.raises(DecodeError):
            fastjson.loads(text.encode())
    else:
        assert fastjson.loads(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "[",
        '{"a"',
        '{"a":',
        '{"a":1',
        "{a}",
        "{:1}",
        "[1 2]",
        '{"a":1 "b":2}',
        "{,}",
        "hello",
        '{"a":1}x',
        '"',
        "'a",
        "{[]:1}",
        "{x:@}",
        "{x:" + "9" * 5000 + "}",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        fastjson.loads(text.encode())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":{"b":1},"c":{"$ref":"$.a"}}', {"a": {"b": 1}, "c": {"b": 1}}),
        ('{"a":[{"b":1}],"c":{"$ref":"$.a[0]"}}', {"a": [{"b": 1}], "c": {"b": 1}}),
        ('{"a":{"b.c":{"d":1}},"c":{"$ref":"$.a.b\\\\.c"}}', {"a": {"b.c": {"d": 1}}, "c": {"d": 1}}),
        ('{"c":{"$ref":"$.x.y"}}', {"c": None}),
        ('{"a":[1],"c":{"$ref":"$.a[7]"}}', {"a": [1], "c": None}),
        ('{"c":{"$ref":"nonsense"}}', {"c": None}),
        ('{"c":{"$ref":"$?"}}', {"c": None}),
        ('{"c":{"$ref":5}}', {"c": {"$ref": 5}}),
        ('[{"a":1},{"$ref":"$[0]"}]', [{"a": 1}, {"a": 1}]),
    ],
)
def test_references(text: str, value: Any) -> None:
    assert fastjson.loads(text.encode()) == value


def test_reference_behind_a_queue_key() -> None:
    path = "$.t.MessageQueue\\\\ \\\\[topic\\\\=T\\\\,\\\\ brokerName\\\\=b\\\\,\\\\ queueId\\\\=0\\\\]"
    value = fastjson.loads(f'{{"t":{{{QUEUE_TEXT}:{{"x":1}}}},"c":{{"$ref":"{path}"}}}}'.encode())
    assert value["c"] == {"x": 1}


def test_half_a_surrogate_pair_is_a_question_mark() -> None:
    """Java writes it so; a text without UTF-8 would fail wherever it is written next."""
    assert fastjson.loads(b'["\\ud83d\\ude80","\\ud83dx\\ude80","\\ude80\\ud83d"]') == ["🚀", "?x?", "??"]
    assert fastjson.loads(b'{"\\ud800":{"a\\udfff":1}}') == {"?": {"a?": 1}}


@pytest.mark.parametrize("path", ["@", "..", "$", "$.a"])
def test_references_without_end_are_refused(path: str) -> None:
    with pytest.raises(DecodeError, match="a reference to what it is part of"):
        fastjson.loads(b'{"a":{"x":{"$ref":"%b"}},"b":{"$ref":"$.a.x"}}' % path.encode())


@pytest.mark.parametrize("text", [b'{"$ref":"$"}', b'{{"$ref":"$.a"}:1}', b'{{"x":{"$ref":"@"}}:1}'])
def test_references_in_odd_places_are_refused(text: bytes) -> None:
    with pytest.raises(DecodeError, match="a reference"):
        fastjson.loads(text)


@pytest.mark.parametrize("levels", [2, 3, 20])
def test_objects_within_keys_cannot_multiply(levels: int) -> None:
    """A text that is quoted within a text within a text doubles with every level."""
    with pytest.raises(DecodeError, match="an object for a key within a key"):
        fastjson.loads(b"{" * levels + b'{"a":1' + b"}:1" * levels + b"}")
    assert fastjson.loads(b'{{"a":{"b":1}}:1,{"a":2}:2}') == {'{"a":{"b":1}}': 1, '{"a":2}': 2}


def test_values_in_the_dialect_have_a_limit() -> None:
    """Each takes a microsecond or two, and a frame has room for eight million."""
    many = b"[" + b"0," * 1000 + b"]"
    assert len(fastjson.loads(many)) == 1000
    with pytest.raises(DecodeError, match="more than 999 values"):
        fastjson.loads(many, max_values=999)
    assert len(fastjson.loads(b"[" + b"0," * 1000 + b"0]", max_values=9)) == 1001, "standard JSON has no limit"
    assert inspect.signature(fastjson.loads).parameters["max_values"].default == 1_000_000


def test_many_references_take_linear_time() -> None:
    count = 20_000
    numbers = ",".join(f"{index}:{index}" for index in range(count))
    nowhere = ",".join(f'{{"$ref":"$.n.x{index}"}}' for index in range(count))
    there = ",".join(f'{{"$ref":"$.n.{index}"}}' for index in range(count))
    value = fastjson.loads(f'{{"n":{{{numbers}}},"a":[{nowhere}],"b":[{there}]}}'.encode())
    assert value["a"] == [None] * count
    assert value["b"] == list(range(count))


def lines_of_references(count: int, width: int) -> bytes:
    """Lists that hold ``width`` references to the list before."""
    lists = ['"l0":[]']
    for index in range(1, count):
        lists.append(f'"l{index}":[' + ",".join([f'{{"$ref":"$.l{index - 1}"}}'] * width) + "]")
    return ("{" + ",".join(lists) + "}").encode()


def test_references_cannot_multiply() -> None:
    """Five kilobytes that stand for 10²⁰ values."""
    with pytest.raises(DecodeError, match="references that make more than 1000000 values"):
        fastjson.loads(lines_of_references(20, 10))
    assert len(fastjson.loads(lines_of_references(5, 10))["l4"]) == 10


def test_paths_of_references_have_a_limit() -> None:
    """Two bytes are a step: a frame of long paths held its reader for 20 seconds."""
    paths = ",".join(['{"$ref":"$.x' + ".a" * 100 + '"}'] * 20)
    text = ('{"x":' + '{"a":' * 100 + "1" + "}" * 100 + f',"r":[{paths}]}}').encode()
    assert fastjson.loads(text)["r"] == [1] * 20
    with pytest.raises(DecodeError, match="more than 2000 values"):
        fastjson.loads(text, max_values=2000)
    nowhere = ",".join(['{"$ref":"$.y' + ".a" * 1000 + '"}'] * 20)
    assert fastjson.loads(f"[{nowhere}]".encode(), max_values=100) == [None] * 20


def test_references_cannot_nest_deeper_than_text() -> None:
    with pytest.raises(DecodeError, match="nested deeper than 256"):
        fastjson.loads(lines_of_references(300, 1))
    assert fastjson.loads(lines_of_references(200, 1))["l3"] == [[[[]]]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{{"a":1,2:3}:4}', {'{"a":1,2:3}': 4}),
        (b"{1.5:2}", {"1.5": 2}),
        (b'{{"topic":["T"]}:1}', {'{"topic":["T"]}': 1}),
        (b'{{"topic":"T","queueId":true}:1}', {'{"queueId":true,"topic":"T"}': 1}),
        ('{{"topic":"T","queueId":"²"}:1}'.encode(), {'{"queueId":"²","topic":"T"}': 1}),
        ('{"a":[7],"b":{"$ref":"$.a[٠]"},"c":{"$ref":"$.a.²"}}'.encode(), {"a": [7], "b": 7, "c": None}),
    ],
)
def test_keys_and_paths_of_odd_kinds(text: bytes, value: Any) -> None:
    found = fastjson.loads(text)
    assert found == value
    assert fastjson.loads(fastjson.dumps_plain(found)) == found


def test_nesting_is_bounded() -> None:
    deep = b"[" * 600 + b"1," + b"]" * 600
    with pytest.raises(DecodeError, match="nested deeper than 256"):
        fastjson.loads(deep)
    with pytest.raises(DecodeError):
        fastjson.loads(b"[" * 100_000)
    assert fastjson.loads(b"{x:" + b"[" * 200 + b"]" * 200 + b"}")


def test_many_comments_and_blanks_take_linear_time() -> None:
    assert fastjson.loads(b"/**/ " * 50_000 + b"[1,]") == [1]
    with pytest.raises(DecodeError):
        fastjson.loads(b"/* " * 50_000)


def test_writers() -> None:
    value = {"b": [1, 2.5, None, True], "a": {1: "x", 0: "y"}, "q": 'é/\x01\x7f"\\'}
    assert fastjson.dumps(value) == b'{"a":{"0":"y","1":"x"},"b":[1,2.5,null,true],"q":"\xc3\xa9/\\u0001\x7f\\"\\\\"}'
    assert fastjson.dumps_plain(value) == fastjson.dumps(value).replace(b'"0"', b"0").replace(b'"1"', b"1")
    assert fastjson.dumps_plain({QUEUE: {}, "x": []}) == f'{{"x":[],{QUEUE_TEXT}:{{}}}}'.encode()
    assert fastjson.dumps({"a": "\ud83d"}) == b'{"a":"?"}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (1e-7, "1.0E-7"),
        (1e21, "1.0E21"),
        (12345678.0, "1.2345678E7"),
        (0.001, "0.001"),
        (0.00025, "2.5E-4"),
        (1e7, "1.0E7"),
        (123456789012.5, "1.234567890125E11"),
        (-1e-4, "-1.0E-4"),
        (9999999.0, "9999999.0"),
        (math.inf, "null"),
        (1.5e300, "1.5E300"),
    ],
)
def test_doubles_as_java_writes_them(value: float, text: str) -> None:
    assert fastjson.dumps_plain(value) == text.encode()


def test_queues_as_text_or_object() -> None:
    assert fastjson.message_queue(QUEUE_TEXT) == fastjson.message_queue(json.loads(QUEUE_TEXT)) == QUEUE
    assert fastjson.message_queue({"topic": "T", "queueId": "3"}) == MessageQueue("T", "", 3)
    assert fastjson.message_queue({"topic": "T", "queueId": "x"}) is None
    assert fastjson.message_queue("T") is None


@pytest.mark.parametrize(
    ("value", "queue"),
    [
        ({"brokerName": "b", "mainQueue": False, "queueGroupId": -1, "queueId": 3, "topic": "T"}, ("T", "b", 3)),
        ({"Topic": "T", "BrokerName": "b", "QueueID": 3}, ("T", "b", 3)),
        ({"topic": "T", "broker_name": "b", "queue-id": "3"}, ("T", "b", 3)),
        ({"topic": "T", "Topic": "other", "brokerName": "b", "queueId": None}, ("T", "b", 0)),
        ({"topic": "T", "aFieldOfTomorrow": {"queueId": 7}}, ("T", "", 0)),
    ],
)
def test_queues_with_more_fields_and_in_other_spellings(value: dict[str, Any], queue: tuple[str, str, int]) -> None:
    """As fastjson 1.2 reads them: Apache's 4.9.7 locks each of these (41)."""
    assert fastjson.message_queue(value) == MessageQueue(*queue)
    (read,) = fastjson.loads(b"{" + json.dumps(value).encode() + b":1}")
    assert fastjson.message_queue(read) == MessageQueue(*queue)


@pytest.mark.parametrize("record", family("bodies.jsonl", "encode/text/"), ids=name_of)
def test_texts_of_java(record: dict[str, Any]) -> None:
    java = fastjson.loads(record["expected"].encode(errors="replace"))
    assert java == fastjson.loads(fastjson.dumps(java))
    if record["java"] == "5.5.0":
        assert fastjson.dumps(java).decode() == record["expected"]


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"])).filter(lambda key: key != "$ref"), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_writing_and_reading_again(value: Any) -> None:
    assert fastjson.loads(fastjson.dumps(value)) == value
    assert fastjson.loads(fastjson.dumps_plain(value)) == value
    # A bare name in front forces the reader of the dialect: it agrees with the one for standard JSON.
    assert fastjson.loads(b"{x:" + fastjson.dumps(value) + b"}") == {"x": value}


@given(st.binary(max_size=60) | st.text("{}[]:,\"'\\/*0123456789.eE-+LuxN$ref ab", max_size=60).map(str.encode))
def test_arbitrary_bytes_raise_nothing_else(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        fastjson.loads(data)


_SLOW_TOKEN = re.compile(
    r"""(?P<space>(?:[\s\0]|/\*.*?\*/|//[^\n]*)+)
      | (?P<punctuation>[{}\[\],:])
      | (?P<string>"[^"\\]*"|'[^'\\]*')
      | (?P<escaped>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[LSBFD]?)
      | (?P<name>[A-Za-z_$][\w$]*)
    """,
    re.VERBOSE | re.DOTALL,
)
"""The tokens in their plainest form: character by character, whatever it costs."""


@given(st.text(alphabet="\"'\\/*\n \0ax_$1.eL{}:,+-é", max_size=40))
def test_tokens_end_where_the_plainest_grammar_ends_them(text: str) -> None:
    fast, slow = re.match(fastjson._TOKEN, text, re.VERBOSE | re.DOTALL), _SLOW_TOKEN.match(text)
    assert (fast and (fast.lastgroup, fast[0])) == (slow and (slow.lastgroup, slow[0]))


LENGTH = 1 << 18


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{a:"\\n' + "x" * LENGTH + '"}', id="text"),
        pytest.param("{a:'\\n" + "x" * LENGTH + "'}", id="single quotes"),
        pytest.param('{a:"' + "\\n" * (LENGTH // 2) + '"}', id="escapes"),
        pytest.param('{a:"\\n' + "x" * LENGTH, id="text without end"),
        pytest.param('{a:"' + "\\n" * (LENGTH // 2), id="escapes without end"),
        pytest.param("{a:" + " " * LENGTH + "1}", id="blanks"),
        pytest.param("{a:" + "\0" * LENGTH + "!", id="zeros before what is wrong"),
        pytest.param("{a:" + "/**/" * (LENGTH // 4) + "1}", id="comments"),
        pytest.param("{a:" + "//\n" * (LENGTH // 3) + "1}", id="line comments"),
        pytest.param("{a:/*" + "*" * LENGTH, id="comment without end"),
        pytest.param("{a:1,b:{$ref:'$." + "x" * LENGTH + "'}}", id="path of a reference"),
    ],
)
def test_a_document_takes_memory_in_proportion(text: str) -> None:
    data = text.encode()
    tracemalloc.start()
    try:
        with contextlib.suppress(DecodeError):
            fastjson.loads(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(data)
