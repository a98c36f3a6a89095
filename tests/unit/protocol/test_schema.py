"""What a header class is made of, independent of any Java class."""

from __future__ import annotations

import pytest

from rocketcore.codes import BoundaryType
from rocketcore.errors import DecodeError
from rocketcore.protocol.schema import Header, Long, RpcHeader, wire


class Sample(RpcHeader):
    topic: str
    queue_id: int = wire("q", absent=-1)
    commit_offset: Long
    order: bool = False
    boundary_type: BoundaryType | None = None
    limit: int | None = None


class Strict(Header, strict=True):
    limit: int | None = None


FULL = {"topic": "T", "q": "3", "commitOffset": "9223372036854775807", "order": "true", "boundaryType": "UPPER"}


def test_values_by_type() -> None:
    header = Sample.from_ext_fields({**FULL, "nsd": "true", "unknown": "x"})
    assert (header.topic, header.queue_id, header.commit_offset, header.order) == ("T", 3, 2**63 - 1, True)
    assert header.boundary_type is BoundaryType.UPPER
    assert header.nsd is True
    assert header.limit is None
    assert header.to_ext_fields() == {**FULL, "nsd": "true"}


def test_constructor_checks_names_and_required_fields() -> None:
    assert Sample(topic="T", queue_id=1, commit_offset=0).order is False
    with pytest.raises(TypeError, match="Sample: commit_offset is missing"):
        Sample(topic="T", queue_id=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Sample has no field topik"):
        Sample(topic="T", queue_id=1, commit_offset=0, topik="x")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "text", ["", "x", "1.5", " 1", "1 ", "1_0", "0x1", "2147483648", "-2147483649", "１", "--1", "9" * 50]
)
def test_numbers_that_do_not_parse(text: str) -> None:
    # Optional or with a stand-in: as if missing. Strict classes refuse.
    assert Sample.from_ext_fields({**FULL, "limit": text, "q": text}).limit is None
    assert Sample.from_ext_fields({**FULL, "q": text}).queue_id == -1
    with pytest.raises(DecodeError, match="Strict: limit is"):
        Strict.from_ext_fields({"limit": text})


@pytest.mark.parametrize(("text", "value"), [("+7", 7), ("-7", -7), ("007", 7), ("2147483647", 2147483647), ("-0", 0)])
def test_numbers_as_java_parses_them(text: str, value: int) -> None:
    assert Strict.from_ext_fields({"limit": text}).limit == value


def test_required_field_of_the_wrong_type() -> None:
    with pytest.raises(DecodeError, match="Sample: commitOffset is 'x'"):
        Sample.from_ext_fields({**FULL, "commitOffset": "x"})
    with pytest.raises(DecodeError, match="Sample: topic is missing"):
        Sample.from_ext_fields(None)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("yes", False), ("1", False)]
)
def test_truth_values(text: str, value: bool) -> None:
    assert Sample.from_ext_fields({**FULL, "order": text}).order is value


def test_enumeration_names_as_java_reads_them() -> None:
    assert Sample.from_ext_fields({**FULL, "boundaryType": "upper"}).boundary_type is BoundaryType.UPPER
    assert Sample.from_ext_fields({**FULL, "boundaryType": "MIDDLE"}).boundary_type is None


def test_equality_and_text() -> None:
    one, other = Sample.from_ext_fields(FULL), Sample.from_ext_fields(FULL)
    assert one == other
    other.queue_id = 4
    assert one != other
    assert one != "something else"
    assert repr(Strict(limit=5)) == "Strict(limit=5)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
