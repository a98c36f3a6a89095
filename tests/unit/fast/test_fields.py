"""Requests without the two numbers that change: what is the same of them, and which are left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore._fast.fields import set_apart
from rocketcore.codes import SerializeType
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.frame import ChunkReader

FIELDS = {"topic": "T", "queueOffset": "12", "subscription": "a || b", "commitOffset": "-7", "queueId": "3"}
INT64 = st.integers(-(2**63), 2**63 - 1)


def frame(fields: dict[str, str], kind: SerializeType = SerializeType.JSON, code: int = 11, **parts: object) -> bytes:
    command = RemotingCommand(code, ext_fields=dict(fields), serialize_type=kind)
    for name, value in parts.items():
        setattr(command, name, value)
    return command.encode()


def apart(data: bytes, index: int = 0) -> tuple[bytes, int, int, int, int] | None:
    reader = ChunkReader()
    reader.scan(data, 0)
    chunk = reader.chunk
    return set_apart(chunk.data, chunk.rows, chunk.heads, index, b"queueOffset", b"commitOffset")


@given(INT64, INT64, st.sampled_from(list(SerializeType)), st.permutations(list(FIELDS)), st.integers(0, 2**31 - 1))
def test_the_rest_is_the_same_whatever_the_numbers(
    offset: int, commit: int, kind: SerializeType, order: list[str], opaque: int
) -> None:
    plain = apart(frame({name: FIELDS[name] for name in order}, kind))
    fields = {name: FIELDS[name] for name in order} | {"queueOffset": str(offset), "commitOffset": str(commit)}
    found = apart(frame({name: fields[name] for name in order}, kind, opaque=opaque))
    assert plain is not None
    assert found == (plain[0], offset, commit, opaque, int(kind))


@given(st.sampled_from(["topic", "subscription", "queueId"]), st.text(max_size=5), st.sampled_from(list(SerializeType)))
def test_the_rest_is_another_where_another_field_is(name: str, text: str, kind: SerializeType) -> None:
    one, other = apart(frame(FIELDS, kind)), apart(frame(FIELDS | {name: text}, kind))
    assert one is not None
    if other is not None and text != FIELDS[name]:
        assert other[0] != one[0]


def test_code_and_version_are_a_part_of_it() -> None:
    rests = [apart(frame(FIELDS)), apart(frame(FIELDS, code=361)), apart(frame(FIELDS, version=1))]
    assert len({rest and rest[0] for rest in rests}) == 3


@pytest.mark.parametrize(
    "data",
    [
        frame(FIELDS, flag=1),
        frame(FIELDS, flag=2),
        frame(FIELDS, body=b"x"),
        frame({}),
        frame(FIELDS | {"queueOffset": "x"}),
        frame(FIELDS | {"queueOffset": str(2**63)}),
        frame({name: value for name, value in FIELDS.items() if name != "commitOffset"}),
    ],
)
def test_what_is_unusual_is_left_alone(data: bytes) -> None:
    assert apart(data) is None


def test_a_number_that_comes_twice_is_left_alone() -> None:
    data = frame(FIELDS | {"queueOffsex": "13"}).replace(b"queueOffsex", b"queueOffset")
    assert apart(data) is None


def test_rows_that_are_not_there_or_not_of_the_data() -> None:
    reader = ChunkReader()
    reader.scan(frame(FIELDS), 0)
    chunk = reader.chunk
    with pytest.raises(IndexError, match="row 256"):
        set_apart(chunk.data, chunk.rows, chunk.heads, 256, b"a", b"b")
    with pytest.raises(ValueError, match="not within"):
        set_apart(chunk.data[:20], chunk.rows, chunk.heads, 0, b"a", b"b")
