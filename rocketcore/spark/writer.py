"""The sink: Arrow record batches from Spark to client batches of RocketMQ.

``RocketMQWriter`` is made in the driver and pickled into the tasks, so the write id made there is the same in every
attempt: a row that a failed attempt has sent already is sent again with the same UNIQ_KEY, as long as the partition is
computed in the same order again. That is at least once, with ids to find the repeats by.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from rocketcore.errors import MessageIllegal
from rocketcore.spark.options import SinkOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch


__all__ = ["RocketMQWriter", "TaskSummary"]

logger = logging.getLogger(__name__)


@dataclass
class TaskSummary(WriterCommitMessage):
    """What one task sent, all of it acknowledged."""

    partition: int
    rows: int
    batches: int
    sent_bytes: int
    retries: int
    not_safe: int
    millis: int


class RocketMQWriter(DataSourceArrowWriter):
    """Sends the rows of a batch query; see ``SinkOptions``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._write_id = secrets.randbits(64) if options.write_id is None else options.write_id

    def write(self, iterator: Iterator[RecordBatch]) -> TaskSummary:
        """Send a partition and wait for every answer; raises for the first row or request that fails."""
        from rocketcore.client.arrow_sender import RecordBatchSender, SendSettings
        from rocketcore.client.config import ProducerConfig
        from rocketcore.client.producer import ProducerLogic
        from rocketcore.spark.connection import connect

        options = self._options
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        connection = connect(options)
        config = ProducerConfig(
            namesrv=connection.instance.config.namesrv,
            access_key=connection.instance.config.access_key,
            secret_key=connection.instance.config.secret_key,
            timeout=options.send_timeout,
            retries=0,
            group=options.producer_group,
        )
        settings = SendSettings(
            topic=options.topic,
            tag=options.tags,
            properties=options.properties,
            write_id=self._write_id,
            partition=partition,
            ordered=options.queue_selector == "hash",
            batch_bytes=options.batch_bytes,
            max_in_flight=options.max_in_flight,
            timeout=options.send_timeout,
            retries=options.send_retries,
        )
        connection.run(connection.instance.refresh())  # a kept connection may know older routes
        sender = RecordBatchSender(ProducerLogic(config, connection.instance), settings)
        try:
            # Rows are waited for on this thread: the connections' thread goes on meanwhile.
            for batch in iterator:
                connection.run(sender.send(batch))
            summary = connection.run(sender.finish())
        except MessageIllegal as error:
            raise MessageIllegal(f"partition {partition}, {error}") from None
        finally:
            connection.run(sender.abandon())
        return TaskSummary(
            partition=partition,
            rows=summary.rows,
            batches=summary.batches,
            sent_bytes=summary.sent_bytes,
            retries=summary.retries,
            not_safe=summary.not_safe,
            millis=round(summary.seconds * 1000),
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the sum of the tasks; there is nothing left to do, every row is stored."""
        tasks = [message for message in messages if isinstance(message, TaskSummary)]
        logger.info(
            "write done write_id=%016x tasks=%d rows=%d batches=%d sent_bytes=%d retries=%d slowest_millis=%d",
            self._write_id,
            len(tasks),
            sum(task.rows for task in tasks),
            sum(task.batches for task in tasks),
            sum(task.sent_bytes for task in tasks),
            sum(task.retries for task in tasks),
            max((task.millis for task in tasks), default=0),
        )
        if not_safe := sum(task.not_safe for task in tasks):
            logger.warning("stored, but not flushed or replicated write_id=%016x batches=%d", self._write_id, not_safe)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what stays: messages that were sent before the query failed are not taken back."""
        rows = sum(message.rows for message in messages if isinstance(message, TaskSummary))
        logger.warning("write failed write_id=%016x: at least %d rows were sent and stay", self._write_id, rows)
