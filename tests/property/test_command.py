"""Header kernels against the oracle: valid headers of both forms, damaged ones, texts, property strings."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore._fast import command as command_kernel
from rocketcore._fast import frame
from rocketcore._fast import properties as properties_kernel
from rocketcore.errors import DecodeError
from tests.reference import frame as reference_frame
from tests.reference import header as reference
from tests.reference import properties as reference_properties

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
EXT = st.none() | st.dictionaries(TEXTS, TEXTS, max_size=8)
HEADERS = st.builds(
    reference.Header,
    code=st.integers(-0x8000, 0x7FFF),
    language=st.integers(0, 13),
    version=st.integers(-0x8000, 0x7FFF),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
    remark=st.none() | TEXTS,
    ext=EXT,
)
# Bytes that matter to UTF-8 readers, and some that do not.
RAW_TEXTS = st.binary(max_size=12) | st.lists(
    st.sampled_from(b"A\x80\x8f\x90\x9f\xa0\xbf\xc2\xe0\xed\xef\xf0\xf4\xff"), max_size=10
).map(bytes)


def damage(data: bytes, changes: list[tuple[int, int]], cut: int) -> bytes:
    changed = bytearray(data)
    for at, value in changes:
        if changed:
            changed[at % len(changed)] = value
    return bytes(changed[: len(changed) - cut % (len(changed) + 1)])


DAMAGE = (
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255) | st.sampled_from(b'"\\{}:,0-n \xff')), max_size=3),
    st.just(0) | st.integers(0, 30),
)


def read_head(data: bytes, serialize_type: int) -> tuple[bytes, Any, Any]:
    """The header as the only frame between other bytes, so that positions are not those of the buffer."""
    start = reference_frame.frame(b"", b"..", 1)
    whole = start + reference_frame.frame(data, b"body", serialize_type)
    rows, heads = np.zeros((1, frame.FRAME_COLUMNS), np.int64), np.zeros((1, frame.HEAD_COLUMNS), np.int64)
    assert frame.read_frames(whole, len(start), rows, heads)[:2] == (1, len(whole))
    return whole, rows, heads


def compare(data: bytes, serialize_type: int, want: reference.Header | None) -> None:
    """Compare read_frames and read with what the oracle read."""
    whole, rows, heads = read_head(data, serialize_type)
    assert heads[0][frame.STATUS] == (1 if want is None else 0)
    if want is None:
        return
    assert command_kernel.read(whole, rows[0][frame.HEADER_START], len(data), serialize_type) == want
    columns = [frame.CODE, frame.LANGUAGE, frame.VERSION, frame.OPAQUE, frame.FLAG]
    assert heads[0][columns].tolist() == [want.code, want.language, want.version, want.opaque, want.flag]


@given(want=HEADERS, body=st.binary(max_size=20))
def test_json_is_written_as_the_oracle_and_read_back(want: reference.Header, body: bytes) -> None:
    text = reference.write_json(want)
    assert command_kernel.encode_frame(*want, body, 0) == reference_frame.frame(text, body, 0)
    compare(text, 0, want)


@given(want=HEADERS, body=st.binary(max_size=20))
def test_binary_is_written_as_the_oracle_and_read_back(want: reference.Header, body: bytes) -> None:
    """An empty text is no text in a binary header, and an empty key cannot be written."""
    ext = None if want.ext is None else {key: value for key, value in want.ext.items() if key}
    want = want._replace(ext=ext)
    data = reference.write_binary(want)
    assert command_kernel.encode_frame(*want, body, 1) == reference_frame.frame(data, body, 1)
    left = {key: value for key, value in (ext or {}).items() if value}
    compare(data, 1, want._replace(remark=want.remark or None, ext=left if ext else None))


@given(
    want=HEADERS,
    indent=st.sampled_from([None, 0, 1, "\t"]),
    ascii_only=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_json_of_any_writer(want: reference.Header, indent: Any, ascii_only: bool, order: Any) -> None:
    """Keys in any order, white space, escapes: still standard JSON."""
    items = list(json.loads(reference.write_json(want)).items())
    order.shuffle(items)
    text = json.dumps(dict(items), indent=indent, ensure_ascii=ascii_only)
    compare(text.encode(), 0, want)


@given(want=HEADERS, ascii_only=st.booleans(), changes=DAMAGE[0], cut=DAMAGE[1])
def test_damaged_json(want: reference.Header, ascii_only: bool, changes: list[tuple[int, int]], cut: int) -> None:
    text = json.dumps(json.loads(reference.write_json(want)), ensure_ascii=ascii_only, separators=(",", ":")).encode()
    data = damage(text, changes, cut)
    compare(data, 0, reference.read_json(data))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)


@given(
    fields=st.dictionaries(
        st.sampled_from([*sorted(reference.KEYS), "body"]),
        JSON_VALUES | st.integers(-(2**31), 2**31 - 1) | st.sampled_from(["JAVA", "java", "PYTHON", "3"])
        | st.dictionaries(TEXTS, TEXTS | JSON_VALUES, max_size=3),
    )
)  # fmt: skip
def test_json_of_other_types(fields: dict[str, Any]) -> None:
    data = json.dumps(fields).encode()
    compare(data, 0, reference.read_json(data))


@given(want=HEADERS, changes=DAMAGE[0], cut=DAMAGE[1])
def test_damaged_binary(want: reference.Header, changes: list[tuple[int, int]], cut: int) -> None:
    check_binary(damage(reference.write_binary(want), changes, cut))


@given(keys=st.lists(st.tuples(RAW_TEXTS, RAW_TEXTS), max_size=4), remark=RAW_TEXTS, slack=st.integers(-3, 3))
def test_binary_of_any_bytes(keys: list[tuple[bytes, bytes]], remark: bytes, slack: int) -> None:
    """Texts that are not UTF-8, keys that come twice, a length of the ext fields that is not that of its entries."""
    entries = b"".join(len(k).to_bytes(2) + k + len(v).to_bytes(4) + v for k, v in keys)
    length = (len(entries) + slack).to_bytes(4, signed=True)
    check_binary(reference.FIXED.pack(1, 2, 3, 4, 5) + len(remark).to_bytes(4) + remark + length + entries)


def check_binary(data: bytes) -> None:
    try:
        want = reference.read_binary(data)
    except DecodeError:
        compare(data, 1, None)
        with pytest.raises(DecodeError) as caught:
            command_kernel.read(data, 0, len(data), 1)
        assert 0 <= caught.value.position <= len(data)
    else:
        compare(data, 1, want)


PROPERTY_TEXTS = st.text(st.sampled_from("ab\x01\x01\x02\x02é中😀"), max_size=30)


@given(text=PROPERTY_TEXTS)
def test_properties(text: str) -> None:
    assert properties_kernel.decode_properties(text.encode()) == reference_properties.decode(text)


@given(properties=st.dictionaries(TEXTS, st.none() | TEXTS, max_size=6))
def test_properties_are_written_as_the_oracle_does(properties: dict[str, str | None]) -> None:
    assert properties_kernel.encode_properties(properties) == reference_properties.encode(properties).encode()


@given(data=RAW_TEXTS)
def test_text_is_decoded_as_java_does(data: bytes) -> None:
    assert properties_kernel.decode_text(data) == reference.java_text(data)


@given(text=st.text(st.characters(), max_size=20))
def test_java_hash(text: str) -> None:
    """With unpaired surrogates too, which a Java string can hold."""
    assert properties_kernel.java_hash(text) == reference.java_hash(text)
