"""Message traces: what clients tell of each message that they sent or consumed, as text in messages of a trace topic.

A message of the topic holds records; each ends in U+0002, and U+0001 is between its fields. What is not there is the
text ``null``. Its keys are the ids and keys of all messages that it tells of.

RocketMQ 5.5.0: ``TraceDataEncoder``, ``TraceBean``, ``TraceContext``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar, Final, TypeAlias

from rocketcore.errors import DecodeError

__all__ = [
    "ConsumeCode",
    "EndTransactionTrace",
    "PubTrace",
    "RecallTrace",
    "SubAfterTrace",
    "SubBeforeTrace",
    "Trace",
    "TracedKind",
    "decode_traces",
    "encode_trace",
]

FIELD_SEPARATOR: Final = "\x01"
RECORD_END: Final = "\x02"
_NULL: Final = "null"


class TracedKind(IntEnum):
    """What kind of message was sent (Java: ``MessageType``)."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeCode(IntEnum):
    """How a consumption ended (Java: ``ConsumeReturnType``)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PubTrace:
    """A message was sent; times are milliseconds. ``msg_id`` of a batch is the ids, joined by commas."""

    NAME: ClassVar[str] = "Pub"

    timestamp: int
    region: str | None
    group: str | None
    topic: str
    msg_id: str
    tags: str | None
    keys: str | None
    store_host: str | None
    body_length: int
    cost_millis: int
    kind: int = TracedKind.NORMAL
    offset_msg_id: str | None = None
    success: bool = True
    client_host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubBeforeTrace:
    """A message is given to a handler; ``request_id`` ties it to what follows."""

    NAME: ClassVar[str] = "SubBefore"

    timestamp: int
    region: str | None
    group: str | None
    request_id: str
    msg_id: str
    retry_times: int
    keys: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAfterTrace:
    """A handler is done with a message. ``code`` is a ``ConsumeCode``; clients of 4.9 on a cloud end with it."""

    NAME: ClassVar[str] = "SubAfter"

    request_id: str
    msg_id: str
    cost_millis: int
    success: bool
    keys: str | None = None
    code: int = ConsumeCode.SUCCESS
    timestamp: int | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionTrace:
    """A producer said how a transaction ended; ``state`` is the name of Java's ``LocalTransactionState``."""

    NAME: ClassVar[str] = "EndTransaction"

    timestamp: int
    region: str | None
    group: str | None
    topic: str
    msg_id: str
    tags: str | None
    keys: str | None
    store_host: str | None
    kind: int
    transaction_id: str | None
    state: str
    from_check: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallTrace:
    """A timed message was taken back [5.3]."""

    NAME: ClassVar[str] = "Recall"

    timestamp: int
    region: str | None
    group: str | None
    topic: str
    msg_id: str
    success: bool


Trace: TypeAlias = PubTrace | SubBeforeTrace | SubAfterTrace | EndTransactionTrace | RecallTrace

_CLASSES: Final[dict[str, type[Trace]]] = {
    kind.NAME: kind for kind in (PubTrace, SubBeforeTrace, SubAfterTrace, EndTransactionTrace, RecallTrace)
}
_LEAST: Final = {"Pub": 12, "SubBefore": 6, "SubAfter": 4}
"""Fields that Java reads of any version; of the other kinds all are there."""


def encode_trace(trace: Trace) -> str:
    """Return the text of a record, its end included."""
    values = [trace.NAME]
    for each in fields(trace):
        value = getattr(trace, each.name)
        if each.name == "client_host" and value is None:
            continue
        if isinstance(value, bool):
            values.append("true" if value else "false")
        elif isinstance(value, IntEnum):
            values.append(str(int(value)))
        else:
            values.append(_NULL if value is None else str(value))
    return FIELD_SEPARATOR.join(values) + RECORD_END


def decode_traces(body: bytes) -> list[Trace]:
    """Return the records of a message of a trace topic; those of kinds that are not known are left out.

    raises  DecodeError for what is no text, and for a record that is cut or has other than a number where one belongs
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"trace: {error.reason}", error.start) from None
    traces = []
    for record in text.split(RECORD_END):
        name, *values = record.split(FIELD_SEPARATOR)
        kind = _CLASSES.get(name)
        if kind is not None:
            traces.append(_decoded(kind, values))
    return traces


def _decoded(kind: type[Trace], values: list[str]) -> Trace:
    declared = list(fields(kind))
    if kind is PubTrace and len(values) == 12:  # an old client: no offset_msg_id
        values = [*values[:11], _NULL, values[11]]
    if len(values) < _LEAST.get(kind.NAME, len(declared)):
        raise DecodeError(f"trace {kind.NAME}: {len(values)} fields")
    found: dict[str, Any] = {}
    for each, value in zip(declared, values, strict=False):
        if value == "" and each.name in ("timestamp", "group") and kind is SubAfterTrace:
            continue  # how a client on a cloud ends the record
        found[each.name] = _value(kind, each.name, str(each.type), value)
    return kind(**found)


def _value(kind: type[Trace], name: str, annotation: str, text: str) -> Any:
    if annotation == "bool":
        return text.lower() == "true"
    if text == _NULL and annotation.endswith("| None"):
        return None
    if annotation.startswith("int"):
        try:
            return int(text)
        except ValueError:
            raise DecodeError(f"trace {kind.NAME}: {name} is {text[:40]!r}") from None
    return text
