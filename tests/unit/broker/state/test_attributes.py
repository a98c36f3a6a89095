"""Attributes of topics and groups, by the rules of Java's ``AttributeUtil``."""

from __future__ import annotations

import pytest

from rocketcore.broker.state.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, altered, read_changes
from rocketcore.errors import BrokerSystemError


def test_attributes_come_change_and_go() -> None:
    first = altered({}, [("+priority.factor", "20"), ("+lite.bind.topic", "T")], GROUP_ATTRIBUTES, is_new=True)
    assert first == {"priority.factor": "20", "lite.bind.topic": "T"}
    changes = [("-lite.bind.topic", ""), ("+priority.factor", "0")]
    assert altered(first, changes, GROUP_ATTRIBUTES, is_new=False) == {"priority.factor": "0"}


def test_changes_as_text() -> None:
    assert read_changes(" +message.type=FIFO, -queue.type,") == {"+message.type": "FIFO", "-queue.type": ""}


@pytest.mark.parametrize(
    ("signed", "value", "is_new", "remark"),
    [
        ("+", "x", True, "kv string format wrong."),
        ("y", "x", True, "kv string format wrong."),
        ("xy", "x", True, "only add attribute is supported while creating topic. key: y"),
        ("-priority.factor", "", True, "only add attribute is supported while creating topic. key: priority.factor"),
        ("xy", "x", False, "wrong format key: y"),
        ("-priority.factor", "", False, "attempt to delete a nonexistent key: priority.factor"),
        ("+colour", "x", False, "unsupported key: colour"),
        ("+priority.factor", "101", False, "value is not in range(0, 100)"),
        ("+priority.factor", "much", False, "value is not in range(0, 100)"),
        ("+priority.factor", "+-5", False, "value is not in range(0, 100)"),
        ("+lite.sub.client.quota", "-2", False, f"value is not in range(-1, {(1 << 63) - 1})"),
        ("+lite.sub.model", "Own", False, "value is not in set: [Exclusive, Shared]"),
        ("+lite.bind.topic", "x" * 128, False, "value is longer than 127 characters"),
    ],
)
def test_changes_that_are_refused(signed: str, value: str, is_new: bool, remark: str) -> None:
    with pytest.raises(BrokerSystemError) as refused:
        altered({}, [(signed, value)], GROUP_ATTRIBUTES, is_new=is_new)
    assert refused.value.remark == remark


def test_what_a_topic_is_made_with_stays() -> None:
    assert altered({}, [("+queue.type", "SimpleCQ")], TOPIC_ATTRIBUTES, is_new=True) == {"queue.type": "SimpleCQ"}
    with pytest.raises(BrokerSystemError, match="unchangeable"):
        altered({}, [("+queue.type", "SimpleCQ")], TOPIC_ATTRIBUTES, is_new=False)
