"""JSON bodies of every class: what is read is written and read again as the same.

input  u8: class · JSON text
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rocketcore.protocol.bodies.base import Body
from rocketcore.protocol.bodies.heartbeat import HeartbeatData
from rocketcore.protocol.bodies.pop import BatchAck
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, refused
from tests.reference.declarations import BODIES

CLASSES: Final[list[type[Body]]] = [kind for kind in BODIES.values() if issubclass(kind, Body) and kind is not Body]


def run(data: bytes) -> None:
    if not data:
        return
    kind = CLASSES[data[0] % len(CLASSES)]
    body = refused(lambda: kind.decode(data[1:]))
    if body is None:
        return
    repr(body)
    # What is not a number is written as null, and null is read as the default: the second text stays as it is.
    again = kind.decode(body.encode())
    once = again.encode()
    assert kind.decode(once).encode() == once
    if isinstance(body, BatchAck):
        refused(lambda: body.bit_set)
    if isinstance(body, HeartbeatData):
        assert body.fingerprint() == again.fingerprint()  # type: ignore[attr-defined]


def seeds() -> Iterable[bytes]:
    places = {kind.__name__: index for index, kind in enumerate(CLASSES)}
    for record in vectors("bodies.jsonl"):
        if record["class"] in places:
            for text in (record.get("expected"), record.get("input")):
                if isinstance(text, str) and len(text) < 900:
                    yield bytes([places[record["class"]]]) + text.encode("utf-8", "replace")
    for index, kind in enumerate(CLASSES):
        yield bytes([index]) + kind().encode()


WORDS: Final = sorted({b'"%b":' % name.encode() for kind in CLASSES for name in kind().to_json() if len(name) < 28})
TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        *WORDS, b'{"$ref":"$"}', b'"$ref":"$.', b"null", b"true", b'{"topic":"T","brokerName":"b","queueId":1}',
        b"1e400", b"NaN", b'"-1"', b"[[", b"{{", b"\xc2\xb2",
    ),
    max_length=2048,
)  # fmt: skip
