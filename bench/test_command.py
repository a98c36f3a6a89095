"""Command headers, to columns, read whole and written; property strings. Rows: kernel, reference, json or struct."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench import data
from rocketcore._fast import command
from rocketcore._fast import properties as properties_kernel
from tests.reference import header as reference
from tests.reference import properties as reference_properties

FORMS = {"json": 0, "binary": 1}
COMMAND = reference.Header(310, 0, 479, 8, 0, None, data.SEND_FIELDS)
RESPONSE = reference.Header(
    0, 3, 479, 8, 1, None,
    {
        "msgId": "0A00000100002A9F0000000000000064", "queueId": "3", "queueOffset": "1234567",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    },
)  # fmt: skip


def encoded(form: str, count: int) -> bytes:
    return command.encode_frame(*COMMAND, b"hi", FORMS[form]) * count


@pytest.mark.parametrize("row", ["kernel", "reference", "library"])
@pytest.mark.parametrize("form", FORMS)
def test_read(benchmark: Any, form: str, row: str) -> None:
    """A header with its ext fields as a dict."""
    text = encoded(form, 1)[8:-2]
    benchmark.group = f"header-read-{form}"
    benchmark.extra_info["bytes"] = len(text)
    if row == "kernel":
        assert benchmark(command.read, text, 0, len(text), FORMS[form]) == COMMAND
    elif row == "reference":
        assert benchmark(reference.read_binary if FORMS[form] else reference.read_json, text) == COMMAND
    elif form == "json":
        assert benchmark(json.loads, text)["extFields"] == COMMAND.ext
    else:
        pytest.skip("no library reads the binary form; the reference is struct")


@pytest.mark.parametrize("row", ["kernel", "kernel-template", "reference"])
@pytest.mark.parametrize("form", FORMS)
def test_write_response(benchmark: Any, form: str, row: str) -> None:
    """The answer to a send; the reference writes JSON with ``json`` and the binary form with ``struct``."""
    benchmark.group = f"header-write-{form}"
    serialize_type, ext = FORMS[form], RESPONSE.ext
    assert ext is not None
    if row == "kernel":
        written = benchmark(command.encode_frame, *RESPONSE, b"", serialize_type)
    elif row == "kernel-template":
        written = benchmark(
            command.encode_send_response, 8, 479, 3, 1234567, ext["msgId"].encode(), None, serialize_type,
            ext["MSG_REGION"].encode(),
        )  # fmt: skip
    else:
        written = bytes(8) + benchmark(reference.write_binary if serialize_type else reference.write_json, RESPONSE)
    assert command.read(written, 8, len(written) - 8, serialize_type) == RESPONSE
    benchmark.extra_info["bytes"] = len(written)


@pytest.mark.parametrize("row", ["kernel", "reference"])
def test_decode_properties(benchmark: Any, row: str) -> None:
    text = properties_kernel.encode_properties(data.properties())
    benchmark.group = "properties-decode"
    if row == "kernel":
        assert benchmark(properties_kernel.decode_properties, text) == data.properties()
    else:
        assert benchmark(lambda: reference_properties.decode(text.decode())) == data.properties()


@pytest.mark.parametrize("row", ["kernel", "reference"])
def test_java_hash(benchmark: Any, row: str) -> None:
    benchmark.group = "java-hash"
    function = properties_kernel.java_hash if row == "kernel" else reference.java_hash
    assert benchmark(function, "order-tag") == reference.java_hash("order-tag")
