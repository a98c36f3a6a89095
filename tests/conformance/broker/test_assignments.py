"""Queues that the broker shares out, and whether a group pulls or pops: 400, 401, 402 (broker.md §25)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.broker.connection import Connection, consumer
from tests.conformance.broker.differences import expected
from tests.conformance.peer import unique

Assigned = list[tuple[int, str]]


def assigned(broker: Connection, topic: str, group: str, client_id: str = "c1", **more: Any) -> Assigned | None:
    """Return the queues of a client and how it reads them; None where it is to leave things as they are."""
    asked = {
        "topic": topic, "consumerGroup": group, "clientId": client_id, "strategyName": "AVG",
        "messageModel": "CLUSTERING", **more,
    }  # fmt: skip
    answer = broker.ask(400, {}, json.dumps(asked).encode())
    assert (answer.code, answer.remark) == (0, None)
    found = answer.json
    if not found:
        return None
    assert all(each["messageQueue"]["topic"] == topic for each in found["messageQueueAssignments"])
    return sorted((each["messageQueue"]["queueId"], each["mode"]) for each in found["messageQueueAssignments"])


def set_mode(broker: Connection, topic: str, group: str, mode: str, share: int = -1) -> tuple[int, str | None]:
    body = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share}
    answer = broker.ask(401, {}, json.dumps(body).encode())
    return answer.code, answer.remark


def test_queues_of_one_client(broker: Connection) -> None:
    topic, group = broker.topic(queues=2), broker.group()
    assert assigned(broker, topic, group) is None
    broker.heartbeat("c1", consumer(group, topic))
    both = [(0, "PULL"), (1, "PULL")]
    assert assigned(broker, topic, group) == both
    assert assigned(broker, topic, group, strategyName="AVG_BY_CIRCLE") == both
    assert assigned(broker, topic, group, "nobody") == []
    assert assigned(broker, topic, unique("G"), "nobody", messageModel="BROADCASTING") == both
    assert assigned(broker, topic, group, strategyName="x") is None
    assert assigned(broker, topic, group, strategyName=None) is None
    assert assigned(broker, unique("T"), group) is None
    hashed = assigned(broker, topic, group, strategyName="CONSISTENT_HASH")
    assert hashed == expected(broker, "queues that CONSISTENT_HASH gives one client")


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE"])
def test_queues_of_three_clients(broker: Connection, connect: Callable[[], Connection], strategy: str) -> None:
    topic, group = broker.topic(queues=5), broker.group()
    for name in ("c1", "c2", "c3"):
        connect().heartbeat(name, consumer(group, topic))
    shares = [assigned(broker, topic, group, name, strategyName=strategy) for name in ("c1", "c2", "c3")]
    numbers = {"AVG": [[0, 1], [2, 3], [4]], "AVG_BY_CIRCLE": [[0, 3], [1, 4], [2]]}[strategy]
    assert shares == [[(number, "PULL") for number in each] for each in numbers]


def test_a_group_that_pops(broker: Connection, connect: Callable[[], Connection]) -> None:
    topic, group = broker.topic(queues=3), broker.group()
    for name in ("c1", "c2", "c3"):
        connect().heartbeat(name, consumer(group, topic))
    assert set_mode(broker, topic, group, "POP") == (0, None)
    assert assigned(broker, topic, group) == [(-1, "POP")]
    assert assigned(broker, topic, group, "nobody") == [(-1, "POP")]
    assert set_mode(broker, topic, group, "POP", 1) == (0, None)
    shares = [assigned(broker, topic, group, name) for name in ("c1", "c2", "c3", "nobody")]
    assert shares == [[(0, "POP"), (1, "POP")], [(1, "POP"), (2, "POP")], [(0, "POP"), (2, "POP")], []]
    assert set_mode(broker, topic, group, "PULL") == (0, None)
    assert assigned(broker, topic, group, "c2") == [(1, "PULL")]


def test_all_modes(broker: Connection) -> None:
    topic, group, other = broker.topic(), broker.group(), broker.group()
    set_mode(broker, topic, group, "POP", 2)
    set_mode(broker, topic, group, "no mode")
    assert broker.ask(401, {}, json.dumps({"topic": topic, "consumerGroup": other}).encode()).code == 0
    answer = broker.ask(402)
    assert (answer.code, answer.remark) == (0, None)
    assert answer.json["messageRequestModeMap"][topic] == {
        group: {"topic": topic, "consumerGroup": group, "popShareQueueNum": -1},
        other: {"topic": topic, "consumerGroup": other, "mode": "PULL", "popShareQueueNum": 0},
    }


def test_modes_that_are_refused(broker: Connection) -> None:
    group, name = broker.group(), unique("T")
    assert set_mode(broker, f"%RETRY%{group}", group, "POP") == (16, "retry topic is not allowed to set mode")
    assert set_mode(broker, name, group, "POP") == (17, f"topic[{name}] not exist")


@pytest.mark.parametrize("code", [400, 401])
@pytest.mark.parametrize("body", [b"", b"{", b"{}"])
def test_bodies_that_are_none(broker: Connection, code: int, body: bytes) -> None:
    assert broker.ask(code, {}, body).code == 1


def test_a_client_that_does_not_say_how_its_group_reads(broker: Connection) -> None:
    topic, group = broker.topic(), broker.group()
    broker.heartbeat("c1", consumer(group, topic))
    body = {"topic": topic, "consumerGroup": group, "clientId": "c1", "strategyName": "AVG"}
    assert broker.ask(400, {}, json.dumps(body).encode()).code == 1
