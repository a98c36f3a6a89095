"""The sink: Arrow record batches from Spark to client batches of RocketMQ.

``RocketMQWriter`` is made in the driver and pickled into the tasks, so the write id and the queues that keys are spread
over are the same in every attempt: a row that a failed attempt has sent already is sent again with the same UNIQ_KEY to
the same queue, as long as the partition is computed in the same order again. That is at least once, with ids to find
the repeats by.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyarrow import RecordBatch
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from rocketcore.client.arrow_sender import RecordBatchSender, SendSettings
from rocketcore.client.attempts import Retries, newest_route
from rocketcore.client.config import ProducerConfig
from rocketcore.client.sender import Sender
from rocketcore.errors import ConfigError, MessageIllegal, NoBrokerRegistered, RouteNotFound
from rocketcore.message import MessageQueue
from rocketcore.spark.connection import Connection, connect
from rocketcore.spark.options import SinkOptions

__all__ = ["RocketMQWriter", "TaskSummary", "plan_queues"]

logger = logging.getLogger(__name__)

Queues = Mapping[str, Sequence[MessageQueue]]
"""Topic → the queues that keys are spread over."""


@dataclass
class TaskSummary(WriterCommitMessage):
    """What one task sent, all of it acknowledged. ``queues`` are those that its keys were spread over."""

    partition: int
    rows: int
    batches: int
    sent_bytes: int
    retries: int
    not_safe: int
    millis: int
    queues: Queues = field(default_factory=dict)


def plan_queues(options: SinkOptions) -> Queues:
    """Return the queues that the keys of a write are spread over; in the driver, where brokers may be waited for.

    raises  ConfigError when the topic of the options does not exist, and is not to be created
    """
    if options.topic is None:
        return {}
    connection = connect(options)
    ordered = options.queue_selector == "hash"
    try:
        retries = Retries(options.delivery_timeout, connection.instance.clock, level=logging.WARNING)
        route = connection.run(newest_route(connection.instance, options.topic, options.request_timeout, retries))
    except NoBrokerRegistered as error:
        raise ConfigError(f"option topic: {error}") from None
    except RouteNotFound as error:
        if not options.create_topic:
            raise ConfigError(f"option topic: {error}; create it first, or give createTopic=true") from None
        if ordered:
            text = f"option topic: {error}; with queueSelector=hash it has to exist: keys belong to its queues"
            raise ConfigError(text) from None
        return {}
    if not route.publish:
        raise ConfigError(f"option topic: topic {options.topic!r} has no queue that can be written to")
    return {options.topic: route.publish} if ordered else {}


class RocketMQWriter(DataSourceArrowWriter):
    """Sends the rows of a batch query; see ``SinkOptions``.

    columns  of the rows, by position: what each means to a message, None for one that is left out; None: their names
    queues   see ``plan_queues``
    """

    def __init__(
        self, options: SinkOptions, columns: Sequence[str | None] | None = None, queues: Queues | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._queues = queues or {}
        self._write_id = secrets.randbits(64) if options.write_id is None else options.write_id

    def write(self, iterator: Iterator[RecordBatch]) -> TaskSummary:
        """Send a partition and wait for every answer; raises for the first row or request that fails."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        if context is not None and context.attemptNumber():
            logger.warning("attempt %d of partition %d: rows may be there twice", context.attemptNumber(), partition)
        connection = connect(self._options)
        sender = self._sender(connection, partition)
        try:
            # Rows are waited for on this thread: the connections' thread goes on meanwhile.
            for batch in iterator:
                connection.run(sender.send(self._renamed(batch)))
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
            queues=sender.pinned,
        )

    def _sender(self, connection: Connection, partition: int) -> RecordBatchSender:
        options = self._options
        config = ProducerConfig(
            namesrv=connection.instance.config.namesrv,
            access_key=connection.instance.config.access_key,
            secret_key=connection.instance.config.secret_key,
            timeout=options.send_timeout,
            retries=0,
            group=options.producer_group,
            latency_fault_tolerance=True,
        )
        settings = SendSettings(
            topic=options.topic,
            tag=options.tags,
            properties=options.properties,
            write_id=self._write_id,
            partition=partition,
            ordered=options.queue_selector == "hash",
            queues=self._queues,
            create_topics=options.create_topic,
            batch_bytes=options.batch_bytes,
            max_in_flight=options.max_in_flight,
            timeout=options.send_timeout,
            delivery_timeout=options.delivery_timeout,
        )
        return RecordBatchSender(Sender(config, connection.instance), settings)

    def _renamed(self, batch: RecordBatch) -> RecordBatch:
        """Return a record batch with the columns that a message has, under the names that they have there."""
        if self._columns is not None:
            wanted = [index for index, name in enumerate(self._columns) if name is not None]
            batch = batch.select(wanted).rename_columns([self._columns[index] for index in wanted])
        if self._options.ignore_system_columns and "properties" in batch.schema.names:
            from rocketcore.client.arrow_columns import without_reserved

            place = batch.schema.get_field_index("properties")
            batch = batch.set_column(place, "properties", without_reserved(batch.column(place)))
        return batch

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the sum of the tasks; there is nothing left to do, every row is stored.

        raises  RouteNotFound when a topic's route changed between tasks: rows of one key may be in two queues
        """
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
        _check_alike(tasks)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what stays: messages that were sent before the query failed are not taken back."""
        rows = sum(message.rows for message in messages if isinstance(message, TaskSummary))
        logger.warning("write failed write_id=%016x: at least %d rows were sent and stay", self._write_id, rows)


def _check_alike(tasks: list[TaskSummary]) -> None:
    """Refuse a write whose tasks spread the keys of a topic over different queues."""
    seen: dict[str, Sequence[MessageQueue]] = {}
    for task in tasks:
        for topic, queues in task.queues.items():
            if list(seen.setdefault(topic, queues)) != list(queues):
                raise RouteNotFound(
                    f"the queues of topic {topic!r} changed during the write, {len(seen[topic])} and {len(queues)}: "
                    "all rows are sent, but those of one shardingKey may be in two queues"
                )
