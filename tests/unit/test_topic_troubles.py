"""What is wrong with topics, as far as their queues tell."""

from __future__ import annotations

import pytest

from rocketcore.admin.topic_troubles import topic_troubles
from rocketcore.protocol.bodies.topic import TopicConfig


@pytest.mark.parametrize(
    ("read", "write", "perm", "wrong"),
    [(8, 8, 6, False), (8, 4, 6, False), (4, 8, 6, True), (4, 8, 4, False), (4, 8, 2, False)],
)
def test_queues_that_are_written_and_not_read(read: int, write: int, perm: int, wrong: bool) -> None:
    counts = {"a": TopicConfig("T", 8, 8), "b": TopicConfig("T", read, write, perm)}
    found = topic_troubles("T", counts)
    assert [each.check for each in found] == (["unread queues"] if wrong else [])
    if wrong:
        assert "8 on b; read: 4 on b" in found[0].detail
        assert " on a" not in found[0].detail


def test_the_hint_for_a_topic_that_begins_with_a_dash() -> None:
    [found] = topic_troubles("-t", {"a": TopicConfig("-t", 1, 3)})
    assert found.hint == "rocket topic update --read-queues 3 -- -t"
