"""Requests about consumer groups."""

from __future__ import annotations

from rocketcore.admin.requests import signed_attributes


def test_attributes_that_were_read_are_written_as_changes() -> None:
    """A broker tells them by name, and refuses names without a sign; some it refuses to set twice."""
    assert signed_attributes({}, {"priority.factor": "20"}) == {"+priority.factor": "20"}
    before = {"priority.factor": "20", "queue.type": "BatchCQ", "message.type": "FIFO"}
    after = {"priority.factor": "10", "queue.type": "BatchCQ"}
    assert signed_attributes(before, after) == {"+priority.factor": "10", "-message.type": ""}
