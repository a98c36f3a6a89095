"""Allocation strategies against what the Java classes give each member."""

from __future__ import annotations

from typing import Any

import pytest

from rocketcore.errors import ConfigError
from rocketcore.message import MessageQueue
from rocketcore.protocol.allocate import (
    STRATEGIES,
    AllocateStrategy,
    average,
    average_by_circle,
    consistent_hash,
    find_strategy,
    sorted_ids,
    sorted_queues,
)
from tests.fixtures.vectors import family, name_of


def queue_of(value: dict[str, Any]) -> MessageQueue:
    return MessageQueue(value["topic"], value["brokerName"], value["queueId"])


@pytest.mark.parametrize(
    "record",
    [each for each in family("hash.jsonl", "allocate/") if each["name"].split("/")[1] in STRATEGIES],
    ids=name_of,
)
def test_each_member_gets_what_java_gives_it(record: dict[str, Any]) -> None:
    queues = [queue_of(value) for value in record["input"]["queues"]]
    clients = record["input"]["clients"]
    allocate = STRATEGIES[record["name"].split("/")[1]]
    for client_id, positions in record["expected"].items():
        assert allocate(client_id, queues, clients) == [queues[position] for position in positions]


@pytest.mark.parametrize("strategy", [average, average_by_circle, consistent_hash])
@pytest.mark.parametrize(("members", "count"), [(1, 1), (3, 8), (8, 3), (7, 100)])
def test_every_queue_has_one_owner(strategy: AllocateStrategy, members: int, count: int) -> None:
    queues = sorted_queues(MessageQueue("T", f"b-{i % 3}", i) for i in range(count))
    clients = sorted_ids(f"10.0.0.{i}@1" for i in range(members))
    shares = [strategy(client_id, queues, clients) for client_id in clients]
    assert sorted(queue for share in shares for queue in share) == sorted(queues)


def test_client_ids_sort_by_utf16_code_unit() -> None:
    [record] = family("hash.jsonl", "client/sorted")
    assert sorted_ids(record["input"]["ids"]) == record["expected"]


def test_queues_sort_as_in_java() -> None:
    [record] = family("hash.jsonl", "queue/sorted")
    expected = [queue_of(value) for value in record["expected"]]
    assert sorted_queues(queue_of(value) for value in record["input"]["queues"]) == expected


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(ConfigError, match="AVG_BY_CIRCLE"):
        find_strategy("ROUND_ROBIN")
