"""What the tasks of a write tell the driver at their end, and what the driver says and checks when it has them all."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pyspark.sql.datasource import WriterCommitMessage

from rocketcore.errors import RouteNotFound
from rocketcore.message import MessageQueue

__all__ = ["Queues", "TaskSummary", "log_failure", "log_success"]

logger = logging.getLogger(__name__)

Queues: TypeAlias = Mapping[str, Sequence[MessageQueue]]
"""Topic → the queues that keys are spread over."""


@dataclass
class TaskSummary(WriterCommitMessage):
    """What one task sent, all of it acknowledged. ``queues`` are those that its keys were spread over."""

    write_id: int
    partition: int
    rows: int
    batches: int
    sent_bytes: int
    retries: int
    not_safe: int
    millis: int
    queues: Queues = field(default_factory=dict)


def log_success(what: str, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Log the sum of the tasks of a write; every row of it is stored.

    what    the write, as its lines name it
    raises  RouteNotFound when a topic's route changed between tasks: rows of one key may be in two queues
    """
    tasks = _summaries(messages)
    logger.info(
        "done %s tasks=%d rows=%d batches=%d sent_bytes=%d retries=%d slowest_millis=%d",
        what,
        len(tasks),
        sum(task.rows for task in tasks),
        sum(task.batches for task in tasks),
        sum(task.sent_bytes for task in tasks),
        sum(task.retries for task in tasks),
        max((task.millis for task in tasks), default=0),
    )
    if not_safe := sum(task.not_safe for task in tasks):
        logger.warning("stored, but not flushed or replicated %s batches=%d", what, not_safe)
    _check_alike(tasks)


def log_failure(what: str, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Log what stays of a write that failed: messages that were sent are not taken back."""
    tasks = _summaries(messages)
    rows = sum(task.rows for task in tasks)
    logger.warning("failed %s: at least %d rows of %d tasks were sent and stay", what, rows, len(tasks))


def _summaries(messages: Iterable[WriterCommitMessage | None]) -> list[TaskSummary]:
    """Leave out the None that stands for a task without an end."""
    return [message for message in messages if isinstance(message, TaskSummary)]


def _check_alike(tasks: list[TaskSummary]) -> None:
    """Refuse a write whose tasks spread the keys of a topic over different queues."""
    seen: dict[str, Sequence[MessageQueue]] = {}
    for task in tasks:
        for topic, queues in task.queues.items():
            if list(seen.setdefault(topic, queues)) != list(queues):
                raise RouteNotFound(
                    f"the queues of topic {topic!r} changed during the write, {len(seen[topic])} and {len(queues)}: "
                    "all rows are sent, but rows of one shardingKey may be in two queues. If you run the write "
                    "again, it sends them again; the option writeId keeps their ids"
                )
