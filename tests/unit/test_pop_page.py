"""docs/pop.md: its bounds are those of the source, the tests that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rocketcore.broker.pop import ack, poll, processor, service
from rocketcore.broker.state import request_mode
from rocketcore.broker.waiting import pending_requests
from tests.fixtures.pages import PAGES

PAGE = (PAGES / "pop.md").read_text()
ROOT = Path(__file__).resolve().parents[2]
TESTS = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
BOUNDS = {
    "messages of one POP": processor._MAX_MESSAGES,
    "messages that one batch (200151) acknowledges": ack.BATCH_MOST,
    "messages of a group in a queue that are handed out": service.PER_QUEUE,
    "messages of all groups that are handed out": service.CAPACITY,
    "invisible time": service.LONGEST_MILLIS,
    "characters of an attempt id": processor.LONGEST_ATTEMPT,
    "time that a POP waits": pending_requests.LONGEST_SECONDS * 1000,
    "POPs that look at a topic of more than 64 queues at once": processor._WIDE_LOOKS,
    "POPs of a group and topic that wait": poll.PER_GROUP,
    "POPs of a topic that wait": poll.PER_TOPIC,
    "POPs that wait": poll.CAPACITY,
    "groups and topics with a request mode": request_mode.CAPACITY,
}


def test_the_bounds_are_those_of_the_source() -> None:
    section = PAGE[PAGE.index("## Bounds") : PAGE.index("## Where it is kept")]
    rows = re.findall(r"^\| ([^|]+) \| ([\d,]+)(?: ms)?(?:; [^|]+)? \|", section, re.MULTILINE)
    assert {name: int(value.replace(",", "")) for name, value in rows} == BOUNDS


def test_how_often_is_said_in_words() -> None:
    assert "one POP in five" in PAGE
    assert processor._RETRY_FIRST == 1 / 5
    assert "Every minute" in PAGE
    assert service.SAVE_SECONDS == 60


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_the_tests_that_it_names_are_there(file: str, name: str) -> None:
    text = (ROOT / file).read_text()
    assert f"def {name or 'test_'}" in text
