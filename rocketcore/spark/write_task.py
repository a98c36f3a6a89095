"""What a task of a write does: the record batches that Spark gives it to client batches of RocketMQ.

A row that a failed attempt has sent already is sent again with the same UNIQ_KEY, made of write id, partition and row,
and with a key to the same queue, as long as the partition is computed in the same order again. That is at least once,
with ids to find the repeats by.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyarrow import RecordBatch
from pyspark import TaskContext

from rocketcore.client.arrow_columns import copied_columns
from rocketcore.client.arrow_delivery import body_sender
from rocketcore.client.arrow_sender import RecordBatchSender, SendSettings
from rocketcore.client.loop_client import LoopClient
from rocketcore.errors import MessageIllegal
from rocketcore.spark.connection import connect
from rocketcore.spark.options import SinkOptions
from rocketcore.spark.task_summary import Queues, TaskSummary

__all__ = ["WritePlan", "write_partition"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What all tasks of a write have in common; made in the driver and pickled into them.

    columns  of the rows, by position: what each means to a message, None for one that is left out; None: their names
    queues   that keys are spread over, the same in every task and every attempt
    """

    options: SinkOptions
    columns: Sequence[str | None] | None = None
    queues: Queues = field(default_factory=dict)


def write_partition(batches: Iterator[RecordBatch], plan: WritePlan, write_id: int) -> TaskSummary:
    """Send a partition and wait for every answer; raises for the first row or request that fails."""
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    if context is not None and context.attemptNumber():
        logger.warning("attempt %d of partition %d: rows may be there twice", context.attemptNumber(), partition)
    client = connect(plan.options)
    sender = _sender(client, plan, write_id, partition)
    try:
        # Rows are waited for on this thread: the connections' thread goes on meanwhile, when that takes long.
        for batch in batches:
            client.run_here(sender.send(*_message_columns(batch, plan)), sender)
        summary = client.run(sender.finish())
    except MessageIllegal as error:
        raise MessageIllegal(f"partition {partition}, {error}") from None
    finally:
        client.run(sender.abandon())
    return TaskSummary(
        write_id=write_id,
        partition=partition,
        rows=summary.rows,
        batches=summary.batches,
        sent_bytes=summary.sent_bytes,
        retries=summary.retries,
        not_safe=summary.not_safe,
        millis=round(summary.seconds * 1000),
        queues=sender.pinned,
    )


def _sender(client: LoopClient, plan: WritePlan, write_id: int, partition: int) -> RecordBatchSender:
    options = plan.options
    settings = SendSettings(
        topic=options.topic,
        tag=options.tags,
        properties=options.properties,
        write_id=write_id,
        partition=partition,
        ordered=options.queue_selector == "hash",
        queues=plan.queues,
        create_topics=options.create_topic,
        batch_bytes=options.batch_bytes,
        max_in_flight=options.max_in_flight,
        timeout=options.send_timeout,
        delivery_timeout=options.delivery_timeout,
    )
    return RecordBatchSender(body_sender(client.instance, options.producer_group, options.send_timeout), settings)


def _message_columns(batch: RecordBatch, plan: WritePlan) -> tuple[RecordBatch, Sequence[str] | None]:
    """Return a record batch with the columns that a message has, and what they mean to it, None: as they are called."""
    names: list[str] | None = None
    if plan.columns is not None:
        names = [name for name in plan.columns if name is not None]
        if len(names) < len(plan.columns):
            batch = batch.select([index for index, name in enumerate(plan.columns) if name is not None])
    if not plan.options.ignore_system_columns:
        return batch, names
    return copied_columns(batch if names is None else batch.rename_columns(names)), None
