"""Text of POP against Java's."""

from __future__ import annotations

from typing import Any

import pytest

from rocketcore.errors import DecodeError
from rocketcore.protocol.pop_info import (
    Handle,
    marker_of,
    parse_message_offsets,
    parse_order_counts,
    parse_start_offsets,
)
from tests.fixtures.vectors import family, name_of

PARSERS = {"start": parse_start_offsets, "offsets": parse_message_offsets, "counts": parse_order_counts}


@pytest.mark.parametrize("record", family("pop.jsonl", "extra/"), ids=name_of)
def test_a_handle_is_that_of_java(record: dict[str, Any]) -> None:
    given, decoded = record["input"], record["decoded"]
    handle = Handle(
        given["ckOffset"],
        given["popTime"],
        given["invisibleTime"],
        given["reviveQid"],
        marker_of(given["topic"]),
        given["brokerName"],
        given["queueId"],
        given["msgQueueOffset"],
    )
    assert handle.encode() == record["expected"]
    assert Handle.decode(record["expected"]) == handle
    assert handle.stored_topic("T", "CG") == decoded["realTopic"]


@pytest.mark.parametrize("record", family("pop.jsonl", "extra-decode/"), ids=name_of)
def test_a_handle_is_read_as_java_reads_it(record: dict[str, Any]) -> None:
    decoded = record["decoded"]
    if any(isinstance(value, dict) for value in decoded.values()):
        with pytest.raises(DecodeError):
            Handle.decode(record["input"]["text"])
        return
    handle = Handle.decode(record["input"]["text"])
    assert (handle.start_offset, handle.pop_time, handle.invisible_time, handle.revive_queue_id) == (
        decoded["ckOffset"],
        decoded["popTime"],
        decoded["invisibleTime"],
        decoded["reviveQid"],
    )
    assert (handle.marker, handle.broker) == (decoded["retry"], decoded["brokerName"])
    assert (handle.queue_id, handle.queue_offset) == (decoded["queueId"], decoded["queueOffset"])


@pytest.mark.parametrize(
    "record",
    [*family("pop.jsonl", "info-decode/"), *family("pop.jsonl", "info/start"), *family("pop.jsonl", "info/offsets")],
    ids=name_of,
)
def test_offsets_are_read_as_java_reads_them(record: dict[str, Any]) -> None:
    parse = PARSERS[record["name"].split("/")[1].split("@")[0]]
    text = record["input"]["text"] if "input" in record else record["expected"]
    decoded = record["decoded"]
    if decoded is not None and "error" in decoded:
        with pytest.raises(DecodeError):
            parse(text)
        return
    assert {"@".join(key): value for key, value in parse(text).items()} == (decoded or {})  # type: ignore[attr-defined]
