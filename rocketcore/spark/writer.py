"""The sink of batch queries, and what the driver checks before a write, be it of a batch or of a stream.

``RocketMQWriter`` is made in the driver and pickled into the tasks (``write_task``), so the write id and the queues
that keys are spread over are the same in every attempt.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator

from pyarrow import RecordBatch
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rocketcore.client.attempts import Retries, newest_route
from rocketcore.client.route_table import TopicRoute
from rocketcore.errors import ConfigError, NoBrokerRegistered, RocketError, RouteNotFound, TransportError
from rocketcore.spark.connection import connect
from rocketcore.spark.options import SinkOptions
from rocketcore.spark.schema import check_write_schema
from rocketcore.spark.task_summary import Queues, TaskSummary, log_failure, log_success
from rocketcore.spark.write_task import WritePlan, write_partition

__all__ = ["RocketMQWriter", "plan_queues", "plan_write"]

logger = logging.getLogger(__name__)


def plan_write(options: SinkOptions, schema: StructType, *, patient: bool = False) -> WritePlan:
    """Check rows and topic, and fix the queues of keys; in the driver, before the first task.

    patient  see ``plan_queues``
    raises   ConfigError naming the option or the column; TransportError when no name server answers
    """
    columns = check_write_schema(schema, options)
    try:
        return WritePlan(options, columns, plan_queues(options, patient=patient))
    except RocketError as error:
        raise error.with_traceback(None) from None  # Spark prints every frame; the last line is what counts


def plan_queues(options: SinkOptions, *, patient: bool = False) -> Queues:
    """Return the queues that the keys of a write are spread over; brokers that are away are waited for.

    patient  whether name servers are waited for, too: the cluster was there, only this process has not seen it
    raises   ConfigError when the topic of the options does not exist, and is not to be created; TransportError when no
             name server answers
    """
    if options.topic is None:
        return {}
    ordered = options.queue_selector == "hash"
    try:
        route = _route(options, options.topic, patient)
    except NoBrokerRegistered as error:
        raise ConfigError(f"option topic: {error}") from None
    except RouteNotFound as error:
        if not options.create_topic:
            raise ConfigError(f"option topic: {error}; create it first, or give createTopic=true") from None
        if ordered:
            text = "with queueSelector=hash it has to exist, as keys belong to its queues: create it"
            raise ConfigError(f"option topic: {error}; {text}") from None
        return {}
    if not route.publish:
        raise ConfigError(f"option topic: topic {options.topic!r} has no writable queue")
    return {options.topic: route.publish} if ordered else {}


def _route(options: SinkOptions, topic: str, patient: bool) -> TopicRoute:
    """Return the newest route of a topic; where no name server answers, the one that this process knows."""
    connection = connect(options)
    instance = connection.instance
    known = instance.routes.find(topic)
    retries = Retries(options.delivery_timeout, instance.clock, level=logging.WARNING)
    try:
        route = connection.run(
            newest_route(instance, topic, options.request_timeout, retries, patient=patient and known is None)
        )
    except TransportError as error:
        if known is None:
            raise
        logger.warning("known route used, no name server answers topic=%s error=%s", topic, error)
        return known
    if options.queue_selector == "hash" and known is not None and known.publish != route.publish:
        count, before = len(route.publish), len(known.publish)
        logger.warning("keys go to other queues than before topic=%s queues=%d before=%d", topic, count, before)
    return route


class RocketMQWriter(DataSourceArrowWriter):
    """Sends the rows of a batch query; see ``SinkOptions``, and ``WritePlan`` for columns and queues."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._write_id = secrets.randbits(64) if plan.options.write_id is None else plan.options.write_id

    def write(self, iterator: Iterator[RecordBatch]) -> TaskSummary:
        """Send a partition and wait for every answer; raises for the first row or request that fails."""
        return write_partition(iterator, self._plan, self._write_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the sum of the tasks; there is nothing left to do, every row is stored.

        raises  RouteNotFound when a topic's route changed between tasks: rows of one key may be in two queues
        """
        log_success(self._name, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what stays: messages that were sent before the query failed are not taken back."""
        log_failure(self._name, messages)

    @property
    def _name(self) -> str:
        return f"write write_id={self._write_id:016x}"
