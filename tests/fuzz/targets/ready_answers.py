"""Questions answered from the receive buffer, against the reference reader and the general encoder.

input  u8: form in bit 0 · form 0: a stream of frames, 1: JSON headers joined by two line feeds, each its own frame
"""

from __future__ import annotations

from collections.abc import Iterable

from rocketcore._fast import command as command_kernel
from rocketcore._fast.answers import ReadyAnswers
from rocketcore.codes import LanguageCode, RemotingFlag
from rocketcore.errors import DecodeError
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, exact
from tests.reference import frame as reference_frame
from tests.reference import header as reference

CODE, VERSION, LIMIT = 105, 479, 1 << 16
ANSWERS = {b"orders": b"{}", "Ü\ufffd".encode(): b"x" * 300, b"T": b""}
JOINT = b"\n\n"
READY = ReadyAnswers(CODE, b"topic", b"zone", ANSWERS, VERSION, LIMIT)
"""One for all inputs, as a server has one for all reads: what an input leaves behind may not reach the next."""


def run(data: bytes) -> None:
    if not data:
        return
    stream = data[1:]
    if data[0] & 1:
        stream = b"".join(reference_frame.frame(part, b"body", 0) for part in stream.split(JOINT))
    found = READY.answer(exact(stream))
    try:
        want = expected(stream)
    except UnicodeDecodeError:
        return  # looked up by bytes, which the reference's texts do not show; that nothing breaks is seen
    assert found == want


def expected(stream: bytes) -> bytes | None:
    """Return the answers; None where one request is not for the table, so that all of them are left alone."""
    try:
        rows, end = reference_frame.scan(stream, 0, len(stream), 256, LIMIT)
    except DecodeError:
        return None
    if not rows or end != len(stream):
        return None
    answers = []
    for _, start, length, _, _, kind in rows:
        text = stream[start : start + length]
        text.decode()
        try:
            command = reference.read_binary(text) if kind else reference.read_json(text)
        except DecodeError:
            command = None
        if command is None or command.code != CODE or command.flag:
            return None
        fields = command.ext or {}
        body = ANSWERS.get(fields.get("topic", "absent").encode())
        if body is None or "zone" in fields:
            return None
        answers.append(
            command_kernel.encode_frame(
                0, LanguageCode.PYTHON, VERSION, command.opaque, RemotingFlag.RESPONSE, None, None, body, kind
            )
        )
    return b"".join(answers)


def seeds() -> Iterable[bytes]:
    for kind in (0, 1):
        asked = [
            command_kernel.encode_frame(CODE, 0, 401, opaque, 0, None, {"topic": topic, **more}, b"", kind)
            for opaque, (topic, more) in enumerate(
                [("orders", {}), ("T", {"acceptStandardJsonOnly": "true"}), ("Ü\ufffd", {}), ("T", {"zone": "z"})]
            )
        ]
        yield from (b"\0" + frame for frame in asked)
        yield b"\0" + b"".join(asked[:3])
        yield b"\0" + b"".join(asked)
    frames = [bytes.fromhex(record["hex"]) for record in vectors("frames.jsonl") if len(record["hex"]) < 600]
    yield from (b"\0" + frame for frame in frames[:40])
    yield b'\1{"code":105,"opaque":1,"extFields":{"topic":"orders"}}'
    yield b'\1{"code":105,"opaque":1,"extFields":{"topic":"T"}}\n\n{"code":105,"opaque":2,"extFields":{"topic":"T"}}'


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b'"topic"', b'"zone"', b'"orders"', b'"code":105', b'"flag":0', b"\x00\x05topic", b"\x00\x69", b"\n\n",
    ),
)  # fmt: skip
