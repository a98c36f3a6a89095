"""Recall handles, as Java makes and reads them."""

from __future__ import annotations

from typing import Any

import pytest

from rocketcore.errors import DecodeError
from rocketcore.protocol.recall import RecallHandle
from tests.fixtures.vectors import family, name_of

FIELDS = "topic", "brokerName", "timestamp", "uniqKey"


@pytest.mark.parametrize("record", family("ids.jsonl", "recall/"), ids=name_of)
def test_handles_are_those_of_java(record: dict[str, Any]) -> None:
    assert RecallHandle(*(record["input"][name] for name in FIELDS)).encode() == record["expected"]


@pytest.mark.parametrize("record", family("ids.jsonl", "recall"), ids=name_of)
def test_handles_are_read_as_by_java(record: dict[str, Any]) -> None:
    text = record["expected"] if "expected" in record else record["input"]["text"]
    if "error" in record["decoded"]:
        with pytest.raises(DecodeError, match=r"^recall handle is invalid$"):
            RecallHandle.decode(text)
    else:
        assert RecallHandle.decode(text) == tuple(record["decoded"][name] for name in FIELDS)


@pytest.mark.parametrize("text", ["djEgYSBiIGMgZCBl\n", "a+/=", "=", "djEg4A=="])
def test_what_is_no_base64_or_no_text_is_no_handle(text: str) -> None:
    with pytest.raises(DecodeError):
        RecallHandle.decode(text)
