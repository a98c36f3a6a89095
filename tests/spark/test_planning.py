"""Cutting ranges of queues into tasks, and ranges that are not all there."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcore.client.arrow_ranges import QueueRange
from rocketcore.errors import ConfigError, OffsetOutOfRange
from rocketcore.message import MessageQueue
from rocketcore.spark.options import SourceOptions
from rocketcore.spark.planning import MOST_TASKS, clamp_range, join_ranges, plan_tasks, split_ranges

QUEUE = MessageQueue("T", "broker-a", 0)


def queue_range(start: int, end: int, queue_id: int = 0) -> QueueRange:
    return QueueRange(MessageQueue("T", "broker-a", queue_id), start, end)


def test_a_range_is_one_task_and_an_empty_one_is_none() -> None:
    assert split_ranges([queue_range(5, 9), queue_range(3, 3, 1)], None, None) == [queue_range(5, 9)]


def test_max_records() -> None:
    assert split_ranges([queue_range(0, 10)], None, 4) == [queue_range(0, 3), queue_range(3, 6), queue_range(6, 10)]


def test_min_partitions_cuts_the_longest_first() -> None:
    assert split_ranges([queue_range(0, 2), queue_range(0, 100, 1)], 3, None) == [
        queue_range(0, 2),
        queue_range(0, 50, 1),
        queue_range(50, 100, 1),
    ]


def test_more_tasks_than_spark_can_run_are_refused_before_they_are_made() -> None:
    whole = [queue_range(0, 1 << 50), queue_range(5, 6, 1)]
    tasks = (1 << 50) // 1_000_000 + 2
    expected = f"would be {tasks} tasks for {(1 << 50) + 1} messages, {MOST_TASKS} are possible"
    with pytest.raises(ConfigError, match=expected):
        split_ranges(whole, None, 1_000_000)
    with pytest.raises(ConfigError, match=f"would be {MOST_TASKS + 1} tasks"):
        split_ranges(whole, MOST_TASKS + 1, None)
    with pytest.raises(ConfigError, match=f"would be {MOST_TASKS + 1} tasks"):
        split_ranges(whole, None, 1, MOST_TASKS + 1)


def test_with_max_partitions_no_more_parts_are_made_than_they_need() -> None:
    whole = [queue_range(0, 1 << 50), queue_range(0, 3, 1), queue_range(0, 1 << 49, 2)]
    parts = split_ranges(whole, 10, 1_000_000, 50)
    assert 200 <= len(parts) <= 203
    tasks = [sum(map(len, task)) for task in join_ranges(parts, 50)]
    assert len(tasks) == 50
    assert max(tasks) < 1.3 * min(tasks)


def test_many_queues_are_cut_into_many_tasks_at_once() -> None:
    whole = [queue_range(0, 10_000 + number, number) for number in range(1000)]
    parts = split_ranges(whole, 50_000, None)
    assert len(parts) == 50_000
    assert {len(part) for part in parts} <= set(range(195, 225))


@pytest.mark.parametrize(
    ("queues", "messages", "options", "tasks"),
    [
        (1000, 20, {}, 32),
        (1000, 20_000, {}, 400),
        (40, 100_000, {}, 40),
        (32, 1, {}, 32),
        (1000, 20, {"max_partitions": 4}, 4),
        (1000, 20, {"min_partitions": 1}, 1000),
        (100, 20, {"max_records_per_partition": 10}, 200),
    ],
)
def test_many_queues_with_few_messages_are_few_tasks(
    queues: int, messages: int, options: dict[str, Any], tasks: int
) -> None:
    whole = [queue_range(0, messages, number) for number in range(queues)]
    planned = plan_tasks(whole, SourceOptions(topics=("T",), **options), warn=False)
    assert len(planned) == tasks
    assert sum(len(part) for task in planned for part in task) == queues * messages


ranges = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 300)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=6
)


@given(ranges, st.none() | st.integers(1, 40), st.none() | st.integers(1, 100), st.none() | st.integers(1, 40))
def test_every_offset_is_in_exactly_one_task(
    edges: list[tuple[int, int]], min_partitions: int | None, max_records: int | None, most: int | None
) -> None:
    whole = [queue_range(start, end, number) for number, (start, end) in enumerate(edges)]
    if most is not None and min_partitions is not None:
        min_partitions = min(most, min_partitions)
    parts = split_ranges(whole, min_partitions, max_records, most)
    expected = [(part.queue, offset) for part in whole for offset in range(part.start, part.end)]
    assert [(part.queue, offset) for part in parts for offset in range(part.start, part.end)] == expected
    assert all(len(part) for part in parts)
    if max_records and len(parts) < (most or len(parts) + 1):
        assert all(len(part) <= max_records for part in parts)
    if min_partitions:
        assert len(parts) >= min(min_partitions, len(expected))


def test_a_range_within_the_queue_is_left_alone() -> None:
    assert clamp_range(queue_range(3, 7), queue_range(3, 9), True) == queue_range(3, 7)


@pytest.mark.parametrize(
    ("wanted", "left", "reason"),
    [
        (queue_range(0, 7), queue_range(3, 7), "starts at 0, the queue at 3"),
        (queue_range(4, 12), queue_range(4, 9), "ends at 12, the queue at 9"),
        (queue_range(0, 2), queue_range(3, 3), "starts at 0, the queue at 3"),
        (queue_range(20, 30), queue_range(9, 9), "ends at 30, the queue at 9"),
        (queue_range(20, 9), queue_range(9, 9), "starts at 20, the queue ends at 9"),
    ],
)
def test_a_range_beyond_the_queue_is_data_loss(
    wanted: QueueRange, left: QueueRange, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    held = queue_range(3, 9)
    with pytest.raises(OffsetOutOfRange, match=reason):
        clamp_range(wanted, held, True)
    with caplog.at_level(logging.WARNING):
        assert clamp_range(wanted, held, False) == left
    assert reason in caplog.text
