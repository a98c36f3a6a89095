"""Send Arrow record batches: rows become the elements of client batches without a Python object per row.

A record batch is cut into groups of rows that share topic and queue, a kernel lays each group out as batch bodies of at
most ``batch_bytes``, and each body is one SEND_BATCH_MESSAGE (320). Several requests may be under way, one per queue,
so that the rows of a queue keep their order.

Columns: ``body`` (binary or string) and any of ``topic``, ``tags``, ``keys``, ``properties``, ``shardingKey``,
``brokerName`` with ``queueId``, ``flag``, ``msgId``. A null means: without it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy
import pyarrow as pa

from rocketcore._fast.columns import BatchEncoder
from rocketcore._fast.header import encode_properties
from rocketcore.client.arrow_columns import Columns, Rows, codes_of, message_columns, refuse_rows, taken
from rocketcore.client.producer import ProducerLogic
from rocketcore.client.selectors import find_selector
from rocketcore.codes import MAX_MESSAGE_BYTES
from rocketcore.errors import ConfigError, RocketError
from rocketcore.message import MessageQueue, SendStatus, check_send_topic

__all__ = ["RecordBatchSender", "SendSettings", "SendSummary"]

logger = logging.getLogger(__name__)

BATCH_BYTES: Final = 1 << 20
RETRY_PAUSE: Final = 0.1
"""Seconds before the second attempt; each later pause is longer by as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """How record batches are packed and sent.

    topic, tag, properties  of every row; a column of the same purpose is used where they are None or empty
    write_id, partition     the first 24 digits of a row's UNIQ_KEY; the last 8 count the rows of this sender
    ordered                 the queue is chosen by ``shardingKey``, as ``Producer`` chooses it by ``message_group``
    max_in_flight           requests without an answer
    timeout                 seconds for one attempt
    """

    topic: str | None = None
    tag: str | None = None
    properties: Mapping[str, str] | None = None
    write_id: int = 0
    partition: int = 0
    ordered: bool = False
    batch_bytes: int = BATCH_BYTES
    max_in_flight: int = 4
    timeout: float = 10.0
    retries: int = 2


@dataclass(slots=True)
class SendSummary:
    """What a sender did. ``not_safe`` batches are stored but with a status other than SEND_OK."""

    rows: int = 0
    sent_bytes: int = 0
    batches: int = 0
    retries: int = 0
    not_safe: int = 0
    seconds: float = 0.0


class RecordBatchSender:
    """Sends the rows of record batches in the order they come; belongs to one event loop, or to one thread.

    ``concurrent=False`` is for a blocking transport: each request is answered before the next is sent.
    """

    def __init__(self, logic: ProducerLogic, settings: SendSettings, *, concurrent: bool = True) -> None:
        self.summary = SendSummary()
        self._logic = logic
        self._settings = settings
        self._encoder = BatchEncoder(
            write_id=settings.write_id,
            partition=settings.partition,
            tags=(settings.tag or "").encode(),
            properties=encode_properties(settings.properties or {}),
        )
        # As long as the longest request that a broker takes; a row that does not fit into it is refused.
        self._buffer = bytearray(MAX_MESSAGE_BYTES)
        self._select = find_selector(logic.config.selector)
        self._in_flight: dict[MessageQueue, asyncio.Task[None]] = {}
        self._concurrent = concurrent
        self._started = time.monotonic()
        if settings.topic is not None:
            check_send_topic(settings.topic)

    async def send(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch; returns when all are sent, the last of them perhaps not yet acknowledged.

        raises  MessageIllegal naming the row that no broker takes; what an earlier request failed with
        """
        columns = message_columns(batch, self.summary.rows)
        for topic, rows in self._by_topic(columns):
            for queue, group in await self._by_queue(topic, columns, rows):
                for body in self._bodies(columns, group):
                    await self._submit(topic, queue, body)
        self.summary.rows += batch.num_rows

    async def finish(self) -> SendSummary:
        """Wait until everything is acknowledged; raises what a request failed with."""
        while self._in_flight:
            await self._settle()
        self.summary.seconds = time.monotonic() - self._started
        return self.summary

    async def abandon(self) -> None:
        """Give up what is under way."""
        tasks, self._in_flight = list(self._in_flight.values()), {}
        for task in tasks:
            task.cancel()
        if tasks:  # without a loop, gather() would fail even for nothing
            await asyncio.gather(*tasks, return_exceptions=True)

    def _by_topic(self, columns: Columns) -> Iterator[tuple[str, Rows]]:
        """Split by the column topic; every topic is checked as one that may be sent to."""
        if self._settings.topic is not None:
            yield self._settings.topic, None
            return
        topics = columns.get("topic")
        if topics is None:
            raise ConfigError("rows need a topic: name one, or give the column topic")
        refuse_rows(topics.is_null(), self.summary.rows, "the topic is null")
        encoded = topics.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        for name in names:
            check_send_topic(name)
        if len(names) == 1:
            yield names[0], None
            return
        codes = encoded.indices.to_numpy()
        for code, name in enumerate(names):
            yield name, numpy.flatnonzero(codes == code)

    async def _by_queue(self, topic: str, columns: Columns, rows: Rows) -> list[tuple[MessageQueue | None, Rows]]:
        """Split by the queue that the rows ask for; rows that ask for none come last, with None."""
        if self._settings.ordered and "shardingKey" in columns:
            publisher = await self._logic.publisher(topic, self._settings.timeout)
            targets = publisher.targets
            groups = taken(columns["shardingKey"], rows).dictionary_encode()
            # One Python text per different key, not per row.
            chosen = [self._select(key, len(targets)) % len(targets) for key in groups.dictionary.to_pylist()]
            queues = [target.queue for target in targets]
            codes = numpy.array([*chosen, -1], dtype=numpy.int64)[codes_of(groups)]
        elif "brokerName" in columns:
            brokers = taken(columns["brokerName"], rows).dictionary_encode()
            names = brokers.dictionary.to_pylist()
            numbers = taken(columns["queueId"], rows).fill_null(-1).to_numpy(zero_copy_only=False)
            pairs, inverse = numpy.unique(numpy.stack([codes_of(brokers), numbers]), axis=1, return_inverse=True)
            queues = []
            lookup = numpy.full(pairs.shape[1], -1, dtype=numpy.int64)
            for index, (broker, number) in enumerate(pairs.T.tolist()):
                if broker >= 0 and number >= 0:
                    lookup[index] = len(queues)
                    queues.append(MessageQueue(topic, names[broker], number))
            codes = lookup[inverse.reshape(-1)]
        else:
            return [(None, rows)]
        parts: list[tuple[MessageQueue | None, Rows]] = []
        for code in numpy.unique(codes).tolist():
            inside = numpy.flatnonzero(codes == code)
            parts.append((queues[code] if code >= 0 else None, inside if rows is None else rows[inside]))
        return sorted(parts, key=lambda part: part[0] is None)

    def _bodies(self, columns: Columns, rows: Rows) -> Iterator[bytes]:
        """Yield the batch bodies of the given rows; raises MessageIllegal naming the row that no broker takes."""
        first, last = 0, len(columns["body"]) if rows is None else len(rows)
        while first < last:
            done, size = self._encoder.encode(
                self._buffer,
                self._settings.batch_bytes,
                first,
                last,
                self.summary.rows,
                body=columns["body"],
                rows=None if rows is None else rows.data,
                tags=columns.get("tags"),
                keys=columns.get("keys"),
                properties=columns.get("properties"),
                msg_id=columns.get("msgId"),
                flag=columns.get("flag"),
            )
            yield bytes(memoryview(self._buffer)[:size])
            self.summary.sent_bytes += size
            first += done

    async def _submit(self, topic: str, queue: MessageQueue | None, body: bytes) -> None:
        """Send a batch body once there is room for it, and its queue has nothing under way."""
        limit = self._settings.max_in_flight if self._concurrent else 1
        while len(self._in_flight) >= limit:
            await self._settle()
        target = queue or await self._free_queue(topic)
        while target in self._in_flight:
            await self._settle()
        delivery = self._deliver(topic, target, body, movable=queue is None)
        if not self._concurrent:
            await delivery
            return
        self._in_flight[target] = asyncio.ensure_future(delivery)
        await asyncio.sleep(0)  # the request leaves now, not when the next batch has been encoded

    async def _free_queue(self, topic: str) -> MessageQueue:
        """Return the next queue in turn; if there are enough queues, one with nothing under way."""
        publisher = await self._logic.publisher(topic, self._settings.timeout)
        for _ in publisher.targets:
            queue = publisher.targets[publisher.rotation.next()].queue
            if queue not in self._in_flight:
                break
        return queue

    async def _settle(self) -> None:
        """Wait for an answer; raises what a request failed with, after the others are given up."""
        done, _ = await asyncio.wait(self._in_flight.values(), return_when=asyncio.FIRST_COMPLETED)
        self._in_flight = {queue: task for queue, task in self._in_flight.items() if task not in done}
        try:
            for task in done:
                task.result()
        except RocketError:
            await self.abandon()
            raise

    async def _deliver(self, topic: str, queue: MessageQueue, body: bytes, *, movable: bool) -> None:
        """Send one batch body until it is stored; where the rows asked for no queue, a retry goes to another one."""
        settings = self._settings
        attempt = 0
        while True:
            try:
                result = await self._logic.send_encoded_batch(topic, None, queue, body, (), settings.timeout)
                break
            except RocketError as error:
                if not error.retriable or attempt == settings.retries:
                    raise
                attempt += 1
                logger.info("batch is sent again topic=%s queue=%s attempt=%d error=%s", topic, queue, attempt, error)
                if error.refresh_route:
                    await self._refresh(topic)
                if self._concurrent:
                    await asyncio.sleep(RETRY_PAUSE * attempt)
                if movable:
                    queue = await self._free_queue(topic)
        self.summary.batches += 1
        self.summary.retries += attempt
        self.summary.not_safe += result.status is not SendStatus.SEND_OK

    async def _refresh(self, topic: str) -> None:
        try:
            await self._logic.instance.refresh_topic(topic, timeout=self._settings.timeout)
        except RocketError as error:
            logger.info("route not refreshed topic=%s error=%s", topic, error)
