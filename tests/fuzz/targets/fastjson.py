"""fastjson's dialect: it reads standard JSON as ``json`` does, and what it writes it reads again as the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from rocketcore.protocol import fastjson
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, refused

DEPTH = 200
"""Brackets of a text whose value is compared, which takes some frames of the stack for each level."""


class NoValue:
    """Where a reader refused the text."""


def run(data: bytes) -> None:
    found: Any = NoValue
    refused(lambda: fastjson.message_queue(data.decode(errors="replace")))
    box = refused(lambda: [fastjson.loads(data)])
    if box is not None:
        found = box[0]
    try:
        standard = json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError):
        standard = NoValue
    if data.count(b"[") + data.count(b"{") > DEPTH:
        return
    if standard is not NoValue and b'"$ref"' not in data:
        if found is NoValue:
            assert is_extreme(data), "standard JSON is refused"
        else:
            assert same(found, standard)
    if found is not NoValue:
        check_texts(found)
        # What is no number becomes null: the second text stays as it is.
        once = fastjson.dumps_plain(fastjson.loads(fastjson.dumps_plain(found)))
        assert fastjson.dumps_plain(fastjson.loads(once)) == once


def check_texts(found: Any) -> None:
    """Every text has UTF-8, so that it can be written wherever it goes next."""
    if isinstance(found, str):
        found.encode()
    elif isinstance(found, dict):
        for key, value in found.items():
            check_texts(key)
            check_texts(value)
    elif isinstance(found, list):
        for value in found:
            check_texts(value)


def refuse(name: str) -> None:
    raise ValueError(f"{name} is not standard")


def is_extreme(data: bytes) -> bool:
    """Numbers beyond a double or of thousands of digits, deep nesting: readers may differ."""
    return len(data) > 300 or b"\xef\xbb\xbf" in data or b"\x00" in data


def same(found: Any, standard: Any) -> bool:
    """Compare values; a float may have been read by another algorithm, half a surrogate pair is a question mark."""
    if isinstance(found, dict):
        return (
            isinstance(standard, dict)
            and found.keys() == (standard := {plain(key): value for key, value in standard.items()}).keys()
            and all(same(value, standard[key]) for key, value in found.items())
        )
    if isinstance(found, list):
        return isinstance(standard, list) and len(found) == len(standard) and all(map(same, found, standard))
    if isinstance(found, str):
        return isinstance(standard, str) and found == plain(standard)
    if isinstance(found, float) or isinstance(standard, float):
        return not isinstance(standard, bool) and found == standard
    return type(found) is type(standard) and found == standard


def plain(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "?", text)


def seeds() -> Iterable[bytes]:
    for record in vectors("bodies.jsonl"):
        for text in (record.get("expected"), record.get("input")):
            if isinstance(text, str) and len(text) < 700:
                yield text.encode("utf-8", "replace")
    yield from (
        b'{"a":[1,-2.5e3,null,true,"x\\u00e9\\n"],"b":{}}',
        b"{0:'a',1:\"b\",/* c */ name: .5, // d\n}",
        b'{{"brokerName":"b","queueId":0,"topic":"T"}:7}',
        b'{"a":{"x":[1,2]},"b":{"$ref":"$.a.x[1]"},"c":{"$ref":"@"},"d":[{"$ref":".."}]}',
        b"[1L,2S,3B,4F,5D,NaN,undefined,+7,-0.0,1e400]",
        b'{{"a":1,2:3}:4}',
        b'{{{{"a":1}:2}:3}:4}',
        b'{"\\ud800":{"$ref":"\\udc00"}}',
        b'["\\x41\\0\\v\\ud83d\\ude00\\ud800"]',
    )


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b'{"$ref":"$"}', b'{"$ref":"@"}', b'{"$ref":".."}', b'"$ref":"$.', b"[0]", b'{"topic":"', b'"brokerName":"',
        b'"queueId":', b"null", b"true", b"false", b"NaN", b"undefined", b"/*", b"*/", b"//", b"\\u", b"\\x",
        b"1e308", b"\xef\xbb\xbf", b"{{", b"}}", b"\\ud83d", b"\\ude00",
    ),
    max_length=2048,
)  # fmt: skip
