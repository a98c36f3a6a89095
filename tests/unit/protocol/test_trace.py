"""Traces as text: what Java's clients write is read, and what is written is what they write."""

from __future__ import annotations

import pytest

from rocketcore.errors import DecodeError
from rocketcore.protocol.trace import (
    ConsumeCode,
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    TracedKind,
    decode_traces,
    encode_trace,
)

PUB = PubTrace(
    timestamp=1700000000000,
    region="DefaultRegion",
    group="PG",
    topic="T",
    msg_id="ID",
    tags="a",
    keys=None,
    store_host="10.0.0.1:10911",
    body_length=5,
    cost_millis=7,
    kind=TracedKind.ORDER,
    offset_msg_id="OID",
    success=True,
)
WRITTEN: list[tuple[Trace, str]] = [
    (PUB, "Pub|1700000000000|DefaultRegion|PG|T|ID|a|null|10.0.0.1:10911|5|7|4|OID|true$"),
    (
        SubBeforeTrace(timestamp=1, region="R", group="CG", request_id="RQ", msg_id="ID", retry_times=2, keys="k1 k2"),
        "SubBefore|1|R|CG|RQ|ID|2|k1 k2$",
    ),
    (
        SubAfterTrace(
            request_id="RQ",
            msg_id="ID",
            cost_millis=3,
            success=False,
            code=ConsumeCode.FAILED,
            timestamp=9,
            group="CG",
        ),
        "SubAfter|RQ|ID|3|false|null|4|9|CG$",
    ),
    (
        EndTransactionTrace(
            timestamp=1,
            region="R",
            group="PG",
            topic="T",
            msg_id="ID",
            tags="",
            keys="k",
            store_host="h:1",
            kind=TracedKind.COMMIT,
            transaction_id="TX",
            state="COMMIT_MESSAGE",
            from_check=True,
        ),
        "EndTransaction|1|R|PG|T|ID||k|h:1|2|TX|COMMIT_MESSAGE|true$",
    ),
    (
        RecallTrace(timestamp=1, region="R", group="PG", topic="T", msg_id="ID", success=True),
        "Recall|1|R|PG|T|ID|true$",
    ),
]


def wire(text: str) -> str:
    return text.replace("|", "\x01").replace("$", "\x02")


@pytest.mark.parametrize(("trace", "text"), WRITTEN, ids=lambda value: type(value).__name__)
def test_a_record_is_as_javas(trace: Trace, text: str) -> None:
    assert encode_trace(trace) == wire(text)
    assert decode_traces(wire(text).encode()) == [trace]


def test_a_message_has_several_records() -> None:
    body = "".join(wire(text) for _, text in WRITTEN).encode()
    assert decode_traces(body) == [trace for trace, _ in WRITTEN]


def test_older_and_newer_records_are_read() -> None:
    [old] = decode_traces(wire("Pub|1|R|PG|T|ID|a|k|h:1|5|7|0|true$").encode())
    assert isinstance(old, PubTrace)
    assert (old.offset_msg_id, old.success) == (None, True)
    [new] = decode_traces(wire("Pub|1|R|PG|T|ID|a|k|h:1|5|7|0|OID|true|10.0.0.9$").encode())
    assert isinstance(new, PubTrace)
    assert new.client_host == "10.0.0.9"
    assert decode_traces(encode_trace(new).encode()) == [new]
    [cloud] = decode_traces(wire("SubAfter|RQ|ID|3|true|k|0|$").encode())
    assert isinstance(cloud, SubAfterTrace)
    assert (cloud.code, cloud.timestamp, cloud.group) == (0, None, None)
    assert decode_traces(wire("Later|1|2$").encode()) == []


@pytest.mark.parametrize("text", ["Pub|1$", "Pub|x|R|PG|T|ID|a|k|h:1|5|7|0|OID|true$", "SubBefore|1|R|CG|RQ|ID|no|k$"])
def test_what_is_no_record_is_an_error(text: str) -> None:
    with pytest.raises(DecodeError, match="trace"):
        decode_traces(wire(text).encode())
    with pytest.raises(DecodeError, match="trace"):
        decode_traces(b"Pub\x01\xff")
