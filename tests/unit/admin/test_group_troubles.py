"""What is wrong with a group, as a table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rocketcore.admin.group_troubles import GroupCondition, shared_client_ids, told_by_brokers, troubles
from rocketcore.admin.groups import QueueProgress
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.client import Connection, ConsumerConnection


def row(queue_id: int, waiting: float | None) -> QueueProgress:
    return QueueProgress(MessageQueue("T", "b", queue_id), 10, 5, None, waiting)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, []),
        ({"members": 2, "lag": 0, "dead_letters": 0}, []),
        ({"members": 2, "lag": 9, "rate": 3.0}, []),
        ({"members": None, "lag": 9}, []),
        ({"unlike": "a wants T1; b wants T2"}, [("subscriptions", "fail", "a wants T1; b wants T2")]),
        ({"shared": "app at h:1 and h:2"}, [("client id", "fail", "app at h:1 and h:2")]),
        ({"members": 0, "lag": 9}, [("stopped group", "warn", "no member, and 9 messages wait")]),
        ({"members": 0, "lag": 0}, []),
        ({"members": 2, "lag": 9, "rate": 0.0}, [("stuck group", "warn", "2 members consume none of 9 messages")]),
        ({"dead_letters": 3}, [("dead letters", "warn", "3 messages failed for the last time")]),
        ({"group": "DEFAULT_CONSUMER"}, []),
        ({"group": "DEFAULT_CONSUMER", "lag": 0}, [("default group", "warn", "share its messages")]),
        ({"group": "DEFAULT_PRODUCER", "members": 1}, [("default group", "warn", "share its messages")]),
        ({"members": 1, "queues": (row(0, 700.0), row(1, 2.0))}, [("stuck queue", "warn", "T b/0: more than 600 s")]),
        ({"members": 1, "queues": (row(0, 700.0), row(1, 700.0))}, []),  # it is behind everywhere
        ({"members": 1, "queues": (row(0, None), row(1, 2.0))}, []),
        ({"members": 0, "queues": (row(0, 700.0), row(1, 2.0))}, []),
    ],
)
def test_what_is_wrong(known: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    found = troubles(GroupCondition(**{"group": "g"} | known))
    assert [(each.check, each.state) for each in found] == [(check, state) for check, state, _ in expected]
    for each, (_, _, text) in zip(found, expected, strict=True):
        assert text in each.detail
        assert each.hint


def test_what_brokers_say_is_laid_together_and_rubbish_is_passed_over() -> None:
    runtimes: list[dict[str, str]] = [
        {"unlikeGroups": json.dumps({"g": "x"})},
        {"unlikeGroups": json.dumps({"h": "y"})},
        {},
        {"unlikeGroups": "{"},
        {"unlikeGroups": "[1]"},
    ]
    assert told_by_brokers(runtimes, "unlikeGroups") == {"g": "x", "h": "y"}


def test_a_client_id_is_shared_where_one_broker_has_it_twice() -> None:
    def seen(*clients: tuple[str, str]) -> ConsumerConnection:
        return ConsumerConnection(
            [Connection(name, address, None, 0) for name, address in clients], {}, None, None, None
        )

    assert shared_client_ids([seen(("a", "h:1"), ("b", "h:2")), seen(("a", "h:3"))]) == ""
    assert shared_client_ids([seen(("a", "h:1")), seen(("a", "h:2"), ("a", "h:3"))]) == "a at h:2 and h:3"
