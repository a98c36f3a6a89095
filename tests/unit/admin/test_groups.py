"""Requests about consumer groups."""

from __future__ import annotations

from rocketcore.admin.groups import _put_group
from rocketcore.protocol.bodies.group import SubscriptionGroupConfig


def test_attributes_that_were_read_are_written_as_changes() -> None:
    """A broker tells them by name, and refuses names without a sign."""
    config = SubscriptionGroupConfig("g", attributes={"priority.factor": "20"})
    sent = SubscriptionGroupConfig.decode(_put_group(config).body)
    assert sent.attributes == {"+priority.factor": "20"}
    assert config.attributes == {"priority.factor": "20"}
