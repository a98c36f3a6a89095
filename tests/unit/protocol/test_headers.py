"""Every header declaration against what the Java classes write and read."""

from __future__ import annotations

from typing import Any

import pytest

from rocketcore._fast import command as command_kernel
from rocketcore.errors import DecodeError
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.protocol.schema import Header
from tests.fixtures.vectors import family, name_of
from tests.reference.declarations import HEADERS, declared_vectors

VECTORS = declared_vectors("headers.jsonl", "header/")

JAVA_TYPES = {
    "String": "str",
    "Integer": "int",
    "int": "int",
    "Long": "Long",
    "long": "Long",
    "Boolean": "bool",
    "boolean": "bool",
    "BoundaryType": "BoundaryType",
}

NOT_IN_JAVA = {
    "CreateTopicRequestHeader": {"rcCreateOnly"},
    "PullMessageRequestHeader": {"rcPull"},
    "SendMessageRequestHeaderV2": {"rcFirstId"},
    "DeleteSubscriptionGroupRequestHeader": {"removeOffset", "cleanOffset"},
    "QueryMessageRequestHeader": {"_UNIQUE_KEY_QUERY"},
    "SendMessageResponseHeader": {"MSG_REGION", "TRACE_ON"},
}
"""Fields of one release that we send to all, that Java sets without declaring them, and ours (rc…)."""

NOT_IN_4_9 = {"GetAllSubscriptionGroupResponseHeader": {"totalGroupNum"}}
"""Fields that 5.5.0 requires, and that brokers of 4.9, whose answers we read too, do not send."""


def header_class(record: dict[str, Any]) -> type[Header]:
    return HEADERS[record["class"]]


@pytest.mark.parametrize("record", VECTORS, ids=name_of)
def test_fields_and_types_are_those_of_java(record: dict[str, Any]) -> None:
    declared = {field.wire_name: field for field in header_class(record).FIELDS}
    for java in record["fields"]:
        if java["type"] != "List":
            assert declared[java["name"]].kind == JAVA_TYPES[java["type"]], java["name"]


@pytest.mark.parametrize("record", [r for r in VECTORS if r["java"] == "5.5.0"], ids=name_of)
def test_no_field_is_invented(record: dict[str, Any]) -> None:
    declared = {field.wire_name for field in header_class(record).FIELDS}
    java = {field["name"] for field in record["fields"]}
    assert declared - java <= NOT_IN_JAVA.get(record["class"], set())


@pytest.mark.parametrize("record", [r for r in VECTORS if r["java"] == "5.5.0"], ids=name_of)
def test_required_is_what_java_marks_required(record: dict[str, Any]) -> None:
    declared = {field.wire_name: field for field in header_class(record).FIELDS}
    for java in record["fields"]:
        field = declared[java["name"]]
        if field.required != java["required"] and java["name"] not in NOT_IN_4_9.get(record["class"], set()):
            # Required in Java with a default: we give the default. Filled with the time in Java: the caller gives it.
            assert (java["required"] and field.default is not None) or java.get("default") == "now", java["name"]


@pytest.mark.parametrize("record", [r for r in VECTORS if "plainAccessConfigs" not in r["full"]["ext"]], ids=name_of)
def test_full_header_round_trip(record: dict[str, Any]) -> None:
    cls = header_class(record)
    ext_fields = record["full"]["ext"]
    header = cls.from_ext_fields(ext_fields)
    written = header.to_ext_fields()
    extra = written.keys() - ext_fields.keys()
    assert {name: written[name] for name in ext_fields if name in written} == ext_fields
    declared_elsewhere = {field.wire_name for field in cls.FIELDS} - {field["name"] for field in record["fields"]}
    assert extra <= declared_elsewhere
    assert cls.from_ext_fields(written) == header


@pytest.mark.parametrize("record", family("headers.jsonl", "header/"), ids=name_of)
def test_binary_frame_of_java(record: dict[str, Any]) -> None:
    (command,) = FrameDecoder().feed(bytes.fromhex(record["binaryFrame"]))
    assert (command.code, command.opaque, command.version) == (1, 7, 407)
    expected = record["full"]["ext"]
    if record["fast"]:
        # Java's hand-written encoders of these leave inherited fields out.
        expected = {name: text for name, text in expected.items() if name in (command.ext_fields or {})}
        assert {field["name"] for field in record["fields"] if not field.get("inherited")} <= expected.keys()
    assert (command.ext_fields or {}) == expected


@pytest.mark.parametrize("record", family("headers.jsonl", "header/"), ids=name_of)
def test_json_header_of_java(record: dict[str, Any]) -> None:
    data = record["jsonHeader"].encode()
    values = command_kernel.read(data, 0, len(data), 0)
    assert values is not None, "Java's own form is the usual form"
    assert (values[6] or {}) == record["full"]["ext"]


@pytest.mark.parametrize("record", [r for r in VECTORS if r["java"] == "5.5.0"], ids=name_of)
def test_one_missing_field(record: dict[str, Any]) -> None:
    cls = header_class(record)
    for field in cls.FIELDS:
        if field.wire_name not in record["full"]["ext"]:
            continue
        left = {name: text for name, text in record["full"]["ext"].items() if name != field.wire_name}
        if field.required and type(field.absent) is object:
            with pytest.raises(DecodeError, match=f"{cls.__name__}: {field.wire_name} is missing"):
                cls.from_ext_fields(left)
        else:
            assert getattr(cls.from_ext_fields(left), field.name) == field.absent


def test_every_declared_class_is_one_of_java() -> None:
    java = {record["class"] for record in VECTORS}
    # Java sets the fields of the first without a class; the others have ours alone.
    ours = {"CreateGroupRequestHeader", "CreateOnlyResponseHeader"}
    assert set(HEADERS) - java == {"HeartbeatResponseHeader"} | ours
