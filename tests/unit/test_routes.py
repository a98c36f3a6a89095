"""The rows that say who answers which request, as tables."""

from __future__ import annotations

import json

import pytest

from rocketcore.codes import RequestCode
from rocketcore.transport.routes import Right, Route
from tests.fixtures.vectors import FOLDER
from tests.reference.routes import broker_routes, client_routes, nameserver_routes

_CODES: dict[str, str] = json.loads((FOLDER / "codes.json").read_text(encoding="ascii"))["5.5.0"]["headerCodes"]
JAVA_HEADERS = {int(code): name for code, name in _CODES.items()}
ROWS = [*nameserver_routes().items(), *broker_routes().items(), *client_routes().items()]


@pytest.mark.parametrize(("code", "route"), ROWS, ids=[RequestCode(code).name for code, _ in ROWS])
def test_a_request_has_the_header_that_java_has(code: int, route: Route) -> None:
    if route.header is not None and code in JAVA_HEADERS:
        assert route.header.__name__ == JAVA_HEADERS[code]


def test_most_rows_have_a_header_to_compare() -> None:
    assert len([code for code, route in ROWS if route.header is not None and code in JAVA_HEADERS]) >= 30


def test_a_server_says_what_each_request_needs() -> None:
    """A row that forgot to would be open to everybody."""
    open_to_all = {code for routes in (nameserver_routes(), broker_routes()) for code, route in routes.items()
                   if route.right is Right.ANY}  # fmt: skip
    assert open_to_all == set()


def test_who_answers_what() -> None:
    assert set(nameserver_routes()) == {*range(100, 107), 205, 206, 216, 217, 219, 224, 304, *range(311, 314),
                                        318, 319, 322, 327, 901, 904}  # fmt: skip
    assert set(client_routes()) == {39, 40, 220, 221, 307, 309, 326}


def test_only_sends_and_pulls_are_served_as_runs() -> None:
    routes = nameserver_routes() | broker_routes()
    assert {code for code, route in routes.items() if route.run is not None} == {
        RequestCode.PULL_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.LITE_PULL_MESSAGE,
    }
