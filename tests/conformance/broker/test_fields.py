"""Every request with a field more, in header and body, and with each field less (``fields.py``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcore.codes import RequestCode
from tests.conformance.broker.connection import BrokerAddress
from tests.conformance.broker.fields import OTHERWISE, ours, play, recorded, requests
from tests.reference.routes import broker_routes

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
CODES = list(requests())


def test_every_request_that_is_served_is_walked() -> None:
    assert requests().keys() == broker_routes().keys()


@pytest.mark.parametrize("code", CODES, ids=[RequestCode(code).name for code in CODES])
def test_one_field_more_and_each_field_less(broker_address: BrokerAddress, code: int) -> None:
    """Apache's as recorded, which shows that the record is up to date; ours the same, but for rows of the page."""
    answered = play(broker_address, {code: requests()[code]})[str(code)]
    assert answered == (recorded(code) if broker_address.apache else ours(code))


@pytest.mark.parametrize("code", CODES, ids=[RequestCode(code).name for code in CODES])
def test_a_field_more_changes_nothing(code: int) -> None:
    expected = ours(code)
    assert {
        name: answered for name, answered in expected.items() if "one more" in name and answered != expected["as it is"]
    } == {}


def test_what_is_answered_otherwise_has_its_row() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    for code, rows in OTHERWISE.items():
        assert ours(code) != recorded(code)
        for _, row in rows.values():
            assert len([line for line in lines if line.startswith(f"| {row}")]) == 1, row
