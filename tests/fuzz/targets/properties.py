"""Property text and text: kernel and reference agree, whatever the bytes are.

input  property text
"""

from __future__ import annotations

from collections.abc import Iterable

from rocketcore._fast import properties as properties_kernel
from rocketcore._fast import record as record_kernel
from tests.fixtures.vectors import vectors
from tests.fuzz.target import Target, exact
from tests.reference import header as reference
from tests.reference import message as reference_message
from tests.reference import properties as reference_properties


def run(data: bytes) -> None:
    block = exact(data)
    pairs = dict(reference_message.properties_of(data))
    found = properties_kernel.decode_properties(block)
    assert found == {
        reference.java_text(name): reference.java_text(value) for name, value in reference_message.properties_of(data)
    }
    tags = pairs.get(b"TAGS")
    text = reference.java_text(data)
    assert properties_kernel.decode_text(block) == text
    assert properties_kernel.java_hash(text) == reference.java_hash(text)
    assert record_kernel.tags_code(block) == (0 if tags is None else reference.java_hash(reference.java_text(tags)))
    written = properties_kernel.encode_properties(found)
    assert written == reference_properties.encode(found).encode()
    assert properties_kernel.decode_properties(written) == found


def seeds() -> Iterable[bytes]:
    for record in vectors("properties.jsonl"):
        if "hex" in record and len(record["hex"]) < 1200:
            yield bytes.fromhex(record["hex"])
        elif isinstance(record["input"], dict) and isinstance(record["input"].get("text"), str):
            yield record["input"]["text"].encode("utf-8", "surrogatepass")
    yield b"UNIQ_KEY\x010A0000090001000000020000000A0003\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01k1 k2\x02" * 3
    yield b"TAGS\x01\xed\xa0\x80\xc3\xa9\x02\x01x\x02y\x01\x02TAGS\x01\xf0\x9f\x98\x80"


TARGET = Target(
    run=run,
    seeds=seeds,
    words=(
        b"\x01", b"\x02", b"TAGS\x01", b"\x02TAGS\x01", b"\x01\x01", b"\x02\x02", b"\xc3\xa9", b"\xed\xa0\x80",
        b"\xf0\x9f\x98\x80", b"\xf4\x90",
    ),
    max_length=1024,
)  # fmt: skip
