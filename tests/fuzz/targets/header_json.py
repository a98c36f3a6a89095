"""JSON headers: kernel, general reader and reference agree; what is taken is written and read again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import numpy as np

from rocketcore._fast import command as command_kernel
from rocketcore._fast import frame
from rocketcore.protocol import command, json_header
from rocketcore.protocol.frame import FrameDecoder
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, exact, refused
from tests.reference import frame as reference_frame
from tests.reference import header as reference


def run(data: bytes) -> None:
    values = command_kernel.read(exact(data), 0, len(data), 0)
    assert values == reference.read_json(data)
    general = refused(lambda: json_header.read_json_header(data))
    if values is not None:
        assert general == values
        check_head(data, values)
    if general is not None:
        for text in (general[5] or "", *itertools.chain.from_iterable((general[6] or {}).items())):
            text.encode()
        once = rewritten(data)
        assert rewritten(once) == once


def check_head(data: bytes, values: reference.Header) -> None:
    """Read the fixed fields in a buffer that ends with the header."""
    whole = exact(reference_frame.frame(data, b"", 0))
    rows, heads = np.zeros((1, frame.FRAME_COLUMNS), np.int64), np.zeros((1, frame.HEAD_COLUMNS), np.int64)
    assert frame.read_frames(whole, 0, rows, heads)[0] == 1
    columns = [frame.CODE, frame.LANGUAGE, frame.VERSION, frame.OPAQUE, frame.FLAG, frame.STATUS]
    assert heads[0][columns].tolist() == [*values[:5], 0]


def rewritten(data: bytes) -> bytes:
    """Return the header of the command that a header makes, as we write it."""
    command._opaque = itertools.count()  # type: ignore[misc]  # a header that names no opaque gets the next one
    (made,) = FrameDecoder().feed(reference_frame.frame(data, b"", 0))
    return made.encode()[8:]


def seeds() -> Iterable[bytes]:
    for record in vectors("frames.jsonl"):
        data = bytes.fromhex(record["hex"])
        if 8 < len(data) < 700 and data[4] == 0:
            yield data[8 : 8 + int.from_bytes(data[5:8])]
    base = reference.Header(105, 3, 493, 7, 0, "r", {"topic": 'T"é\\', "k": "v"})
    text = reference.write_json(base)
    yield text
    yield json.dumps(json.loads(text), indent=1).encode()
    yield text.replace(b'"v"', b'{"a":[1,2.5,null,true]}')
    yield text.replace(b'"v"', b'{{"topic":"T","brokerName":"b","queueId":1}:2}')
    yield text.replace(b'"', b"'").replace(b"'topic'", b"topic")
    yield text.replace(b'"v"', b'{"$ref":"$.extFields"}')


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b'"code":', b'"extFields":{', b'"flag":', b'"language":"', b'"opaque":', b'"remark":', b'"version":',
        b'"serializeTypeCurrentRPC":"JSON"', b"null", b"true", b"JAVA", b"PYTHON", b"2147483647", b"-2147483648",
        b"1e5", b"\\u00e9", b"\\ud83d\\ude00", b"\\ud800", b"\\\\", b'\\"', b'{"$ref":"$"}', b'"$ref":"$.', b"//",
        b"/**/", b"\xc3\xa9", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"{{", b"\xef\xbb\xbf", b"NaN", b"0x",
    ),
    max_length=1024,
)  # fmt: skip
