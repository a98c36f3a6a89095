"""The request table against the header annotations of Java, and against itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rocketcore.codes import RequestCode
from rocketcore.protocol.bodies.base import Body
from rocketcore.protocol.schema import Header
from tests.fixtures.vectors import FOLDER
from tests.reference.requests import REQUESTS, Request, Server

HEADER_CODES: dict[str, str] = json.loads((FOLDER / "codes.json").read_text(encoding="ascii"))["5.5.0"]["headerCodes"]

UNSERVED = {
    RequestCode[name]
    for name in [
        "QUERY_BROKER_OFFSET",
        "GET_TOPIC_CONFIG_LIST",
        "GET_TOPIC_NAME_LIST",
        "TRIGGER_DELETE_FILES",
        "GET_CLIENT_CONFIG",
        "SUSPEND_CONSUMER",
        "RESUME_CONSUMER",
        "RESET_CONSUMER_OFFSET_IN_CONSUMER",
        "RESET_CONSUMER_OFFSET_IN_BROKER",
        "ADJUST_CONSUMER_THREAD_POOL",
        "WHO_CONSUME_THE_MESSAGE",
        "REGISTER_FILTER_SERVER",
        "REGISTER_MESSAGE_FILTER_CLASS",
        "ACK_LITE_MESSAGE",
    ]
}
"""Codes that exist and that no release serves."""


def test_every_served_code_has_a_row() -> None:
    assert set(REQUESTS) == {int(code) for code in set(RequestCode) - UNSERVED}


@pytest.mark.parametrize("code", HEADER_CODES)
def test_request_header_is_that_of_java(code: str) -> None:
    row = REQUESTS[int(code)]
    if HEADER_CODES[code] == "GetAllProducerInfoRequestHeader" or row.request_header is not None:
        assert row.request_header is not None
        assert row.request_header.__name__ == HEADER_CODES[code]


@pytest.mark.parametrize("row", REQUESTS.values(), ids=lambda row: row.code.name)
def test_rows_name_what_exists(row: Request) -> None:
    assert row.served_by
    for header in (row.request_header, row.response_header):
        assert header is None or issubclass(header, Header)
    for body in (row.request_body_type, row.response_body_type):
        assert body is None or issubclass(body, Body)


def served(server: Server) -> set[int]:
    return {code for code, row in REQUESTS.items() if server in row.served_by}


def test_who_serves_what() -> None:
    expected: dict[Server, Any] = {
        Server.NAMESERVER: {
            *range(100, 107),
            205,
            206,
            216,
            217,
            219,
            224,
            304,
            311,
            312,
            313,
            318,
            319,
            322,
            327,
            901,
            904,
        },
        Server.CLIENT: {39, 40, 220, 221, 307, 309, 326, 200073},
    }
    for server, codes in expected.items():
        assert served(server) == codes
