"""Headers read straight from the bytes against the general reader over the map of ext fields: equal, errors too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rocketcore._fast.command import read
from rocketcore._fast.fields import read_fields
from rocketcore.errors import DecodeError
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import ChunkReader
from rocketcore.protocol.json_header import read_json_header
from rocketcore.protocol.schema import Header, HeaderType
from tests.property.test_command import DAMAGE, RAW_TEXTS, TEXTS, damage
from tests.reference import frame as reference_frame
from tests.reference import header as reference
from tests.reference.declarations import HEADERS

CLASSES = [kind for kind in HEADERS.values() if isinstance(kind, HeaderType) and kind is not Header]
USUAL = {
    "int": st.integers(-(2**31), 2**31 - 1).map(str),
    "Long": st.integers(-(2**63), 2**63 - 1).map(str),
    "bool": st.sampled_from(["true", "false", "TRUE", "yes"]),
    "str": TEXTS.filter(bool),
}
ODD = TEXTS | st.sampled_from(["", "+7", "-0", "007", "2147483648", "9223372036854775808", "9" * 50, "１", "LOWER"])


def scanned(data: bytes, serialize_type: int) -> tuple[RemotingCommand, RemotingCommand] | None:
    """The command of a header between other bytes, as it is received and as the general reader makes it."""
    before = reference_frame.frame(b"", b"..", 1)
    whole = before + reference_frame.frame(data, b"body", serialize_type)
    reader = ChunkReader()
    reader.scan(whole, len(before))
    try:
        received = reader.chunk.command(0)
    except DecodeError:
        return None
    code, language, version, opaque, flag, remark, ext = read(data, 0, len(data), serialize_type) or read_json_header(
        data
    )
    general = RemotingCommand(
        code, language=language, version=version, opaque=opaque or 0, flag=flag, remark=remark, ext_fields=ext,
        body=b"body", serialize_type=serialize_type,
    )  # fmt: skip
    return received, general


def outcome(read: Callable[[], Header]) -> Any:
    try:
        header = read()
    except DecodeError as error:
        return str(error)
    return {name: (type(value), value) for name, value in vars(header).items()}


def compare(kind: type[Header], data: bytes, serialize_type: int) -> None:
    both = scanned(data, serialize_type)
    if both is not None:
        received, general = both
        if len(data) & 1:
            received.detach()
        if len(data) & 2:
            assert received.body == b"body"
        assert outcome(lambda: received.header(kind)) == outcome(lambda: kind.from_ext_fields(general.ext_fields))
        assert (received.remark, received.ext_fields, received.body) == (general.remark, general.ext_fields, b"body")
        assert outcome(lambda: received.header(kind)) == outcome(lambda: kind.from_ext_fields(general.ext_fields))
        for name in ("code", "language", "version", "flag", "serialize_type"):
            assert getattr(received, name) == getattr(general, name)


@given(data=st.data(), kind=st.sampled_from(CLASSES), serialize_type=st.integers(0, 1))
def test_usual_headers_need_no_map(data: st.DataObject, kind: type[Header], serialize_type: int) -> None:
    ext = {
        field.wire_name: data.draw(USUAL[field.kind])
        for field in kind.FIELDS
        if field.kind in USUAL and (field.required or data.draw(st.booleans()))
    }
    command = reference.Header(11, 0, 407, 5, 0, None, ext)
    written = (reference.write_binary if serialize_type else reference.write_json)(command)
    both = scanned(written, serialize_type)
    assert both is not None
    assert read_fields(both[0], kind.table()) is not None
    compare(kind, written, serialize_type)


@given(
    data=st.data(),
    kind=st.sampled_from(CLASSES),
    serialize_type=st.integers(0, 1),
    changes=st.just([]) | DAMAGE[0],
    cut=DAMAGE[1],
)
def test_any_header_is_read_as_by_the_map(
    data: st.DataObject, kind: type[Header], serialize_type: int, changes: list[tuple[int, int]], cut: int
) -> None:
    """Fields that are missing, unknown, ill-typed or there twice, escapes, and bytes that were changed."""
    names = st.sampled_from([field.wire_name for field in kind.FIELDS] or ["x"]) | TEXTS
    kinds = {field.wire_name: USUAL.get(field.kind, ODD) for field in kind.FIELDS}
    entries = [(name, data.draw(kinds.get(name, TEXTS))) for name in kinds if data.draw(st.integers(0, 4))]
    entries += data.draw(st.lists(st.tuples(names, ODD), max_size=3))
    if data.draw(st.booleans()):
        entries = data.draw(st.permutations(entries))
    if serialize_type:
        ext = b"".join(entry(name.encode(), text.encode()) for name, text in entries)
        written = reference.FIXED.pack(11, 2, 3, 4, 5) + bytes(4) + len(ext).to_bytes(4) + ext
    else:
        written = reference.write_json(reference.Header(11, 0, 407, 5, 0, None, dict(entries)))
        # The same name twice: keys of one length exchanged in the text.
        for name, _ in entries[:2]:
            twin = next((other for other, _ in entries if other != name and len(other) == len(name)), None)
            if twin is not None and data.draw(st.booleans()):
                written = written.replace(f'"{name}":"'.encode(), f'"{twin}":"'.encode())
        if data.draw(st.booleans()):
            written = written.replace(b"topic", b"\\u0074opic")
    compare(kind, damage(written, changes, cut) if changes else written, serialize_type)


@given(kind=st.sampled_from(CLASSES), values=st.lists(RAW_TEXTS, min_size=30, max_size=30))
def test_binary_values_of_any_bytes(kind: type[Header], values: list[bytes]) -> None:
    ext = b"".join(entry(field.wire_name.encode(), value) for field, value in zip(kind.FIELDS, values, strict=False))
    compare(kind, reference.FIXED.pack(11, 2, 3, 4, 5) + bytes(4) + len(ext).to_bytes(4) + ext, 1)


def entry(name: bytes, value: bytes) -> bytes:
    return len(name).to_bytes(2) + name + len(value).to_bytes(4) + value
