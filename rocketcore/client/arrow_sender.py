"""Send Arrow record batches: rows become the elements of client batches without a Python object per row.

A record batch is cut into groups of rows that share topic and queue, a kernel lays each group out as batch bodies of at
most ``batch_bytes``, and each body is one SEND_BATCH_MESSAGE (320). Several requests may be under way, one per queue,
so that the rows of a queue keep their order (``arrow_delivery``).

Rows that may go to any queue fill bodies across record batches: one of 1 MiB is a little more than a body of 1 MiB, and
its rest would be a request of its own, for which a MiB of rows takes the client 0.45 ms of CPU in place of 0.38. Such a
rest waits for ``LINGER`` seconds at most, and not at all where nothing goes on by itself.

Encoding a body is a tenth of what it costs to send it. Done on the caller's thread, each body handed over to the
loop's, it cost a row 7 to 24 % more CPU. So a caller with a thread of its own runs ``send`` in the place of the loop
(``LoopThread.run_here``): two threads that take turns wake each other six times a body.

A row is copied once, into its body. Without that copy, two pieces a row from Arrow's own buffers, and with a body that
leaves in parts while it is laid out, a row of 1 KiB took as much CPU.

Columns: ``body`` (binary or string) and any of ``topic``, ``tags``, ``keys``, ``properties``, ``shardingKey``,
``brokerName`` with ``queueId``, ``flag``, ``msgId``. A null means: without it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy
import pyarrow as pa

from rocketcore._fast.arrow_in import BatchEncoder
from rocketcore._fast.properties import encode_properties
from rocketcore.client.arrow_columns import Codes, Columns, Rows, codes_of, message_columns, refuse_rows, taken
from rocketcore.client.arrow_delivery import BATCH_BYTES, MAX_IN_FLIGHT, MOMENT, BodyDelivery, SendSummary
from rocketcore.client.attempts import Retries, until_answered
from rocketcore.client.selectors import find_selector
from rocketcore.client.send_buffers import SendBuffers
from rocketcore.client.sender import Sender
from rocketcore.errors import ConfigError, MessageIllegal, RocketError, RouteNotFound, TransportError
from rocketcore.message import MessageQueue
from rocketcore.naming import check_send_topic

__all__ = ["RecordBatchSender", "SendSettings", "SendSummary"]

logger = logging.getLogger(__name__)

LINGER: Final = 0.02
"""Seconds that rows which do not fill a body wait for more: a multiple of what Spark needs for a record batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """How record batches are packed and sent.

    topic, tag, properties  of every row; a column of the same purpose is used where they are None or empty
    write_id, partition     the first 24 digits of a row's UNIQ_KEY; the last 8 count the rows of this sender
    ordered                 the queue is chosen by ``shardingKey``, as ``Producer`` chooses it by ``message_group``
    queues                  topic → the queues that keys are spread over, so that every sender of a write, and every
                            retry, chooses alike; of a topic that is not here its route of the first use
    create_topics           whether a topic that does not exist may be created by the first send to it
    max_in_flight           requests without an answer
    timeout                 seconds for one attempt
    delivery_timeout        seconds in which a batch is tried again
    """

    topic: str | None = None
    tag: str | None = None
    properties: Mapping[str, str] | None = None
    write_id: int = 0
    partition: int = 0
    ordered: bool = False
    queues: Mapping[str, Sequence[MessageQueue]] = field(default_factory=dict)
    create_topics: bool = True
    batch_bytes: int = BATCH_BYTES
    max_in_flight: int = MAX_IN_FLIGHT
    timeout: float = 10.0
    delivery_timeout: float = 120.0


@dataclass(slots=True)
class _Filling:
    """A body with room for more rows, of any queue of its topic."""

    topic: str
    view: memoryview  # reads the buffer, so that no other body is laid out there
    size: int = 0


class RecordBatchSender:
    """Sends the rows of record batches in the order they come; belongs to one event loop, or to one thread."""

    def __init__(self, sender: Sender, settings: SendSettings) -> None:
        self.summary = SendSummary()
        self._sender = sender
        self._settings = settings
        self._encoder = BatchEncoder(
            write_id=settings.write_id,
            partition=settings.partition,
            tags=(settings.tag or "").encode(),
            properties=encode_properties(settings.properties or {}),
        )
        self._buffers = SendBuffers(settings.max_in_flight + 2)
        self._filling: _Filling | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lingers_until = math.inf  # monotonic seconds; inf while a batch is being sent
        self._leaving: asyncio.Task[None] | None = None
        self._select = find_selector(sender.config.selector)
        self._delivery = BodyDelivery(
            sender,
            self.summary,
            timeout=settings.timeout,
            delivery_timeout=settings.delivery_timeout,
            max_in_flight=settings.max_in_flight,
        )
        self.pinned: dict[str, Sequence[MessageQueue]] = dict(settings.queues)
        """The queues that keys are spread over, by topic."""
        self._known_topics: set[str] = set()
        self._started = time.monotonic()
        if settings.topic is not None:
            check_send_topic(settings.topic)

    async def send(self, batch: pa.RecordBatch, names: Sequence[str] | None = None) -> None:
        """Send the rows of a batch; returns when all are sent, but for a rest that waits a moment for more.

        What is sent is perhaps not yet acknowledged: see ``finish``.

        names   what each column means to a message; None: what it is called
        raises  MessageIllegal naming the row that no broker takes; what an earlier request failed with
        """
        await self._stop_lingering()
        columns = message_columns(batch, self.summary.rows, names)
        for topic, rows in self._by_topic(columns):
            if not self._settings.create_topics and topic not in self._known_topics:
                await self._open_topic(topic, rows)
            for queue, group in await self._by_queue(topic, columns, rows):
                if queue is None and self._filling is not None and self._filling.topic != topic:
                    await self._send_filling()
                for body in self._bodies(topic, queue, columns, group):
                    await self._delivery.submit(topic, queue, body)
        self.summary.rows += batch.num_rows
        if self._filling is None:
            return
        if self._sender.instance.runtime.concurrent:
            self._lingers_until = time.monotonic() + LINGER
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(LINGER, self._send_waiting_rows)
        else:
            await self._send_filling()

    def begin(self) -> bool:
        """Tell whether ``send`` may begin in the place of the loop, after the answers that are there are taken."""
        self._delivery.poll(0)
        topic = self._settings.topic
        return (
            topic is not None
            and self._leaving is None
            and (self._settings.create_topics or topic in self._known_topics)
            and self._delivery.can_begin(topic)
        )

    def wait(self) -> bool:
        """Take answers in the place of the loop; False where none comes within a moment."""
        return self._delivery.poll(MOMENT)

    def end(self) -> bool:
        """Have everything written in the place of the loop; False where that has to do some of it."""
        return self._delivery.is_written()

    async def finish(self) -> SendSummary:
        """Send the last rows and wait until everything is acknowledged; raises what a request failed with."""
        await self._stop_lingering()
        await self._send_filling()
        await self._delivery.finish()
        self.summary.seconds = time.monotonic() - self._started
        return self.summary

    async def abandon(self) -> None:
        """Give up what is under way, and let go of everything; the end of every sender."""
        if self._timer is not None:
            self._timer.cancel()
        if self._leaving is not None:
            self._leaving.cancel()
            await asyncio.gather(self._leaving, return_exceptions=True)
        await self._delivery.abandon()
        self._timer = self._leaving = self._filling = None
        self._buffers.release()

    def _send_waiting_rows(self) -> None:
        """Send the rows that have waited for more; nearly always others have taken their place meanwhile."""
        self._timer = None
        if self._filling is None:
            return
        left = self._lingers_until - time.monotonic()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(min(left, LINGER), self._send_waiting_rows)
        else:
            self._leaving = asyncio.ensure_future(self._send_filling())

    async def _stop_lingering(self) -> None:
        """Keep the body that waits for more rows; where it is leaving, wait for that, and raise what it met with."""
        self._lingers_until = math.inf
        if self._leaving is not None:
            leaving, self._leaving = self._leaving, None
            await leaving

    async def _send_filling(self) -> None:
        filling, self._filling = self._filling, None
        if filling is not None:
            await self._delivery.submit(filling.topic, None, filling.view[: filling.size].toreadonly())

    async def _open_topic(self, topic: str, rows: Rows) -> None:
        """Ask for the newest route of a topic at its first row, because it must not be created.

        Where no name server answers, a route that is known will do, as it does for every producer. That the topic of
        the settings exists is known: without a route its broker is away, and is waited for.

        raises  MessageIllegal for the row of another topic that does not exist
        """
        settings, instance = self._settings, self._sender.instance

        def unknown(error: RocketError) -> bool:
            return isinstance(error, RouteNotFound) and not error.retriable and topic != settings.topic

        async def ask(limit: float) -> None:
            try:
                await instance.refresh_topic(topic, timeout=limit)
            except TransportError as error:
                if instance.routes.find(topic) is None:
                    raise
                logger.info("known route used, no name server answers topic=%s error=%s", topic, error)

        retries = Retries(settings.delivery_timeout, instance.clock)
        try:
            await until_answered(instance, topic, retries, settings.timeout, ask, unknown)
        except RouteNotFound as error:
            if not unknown(error):
                raise
            row = self.summary.rows + (0 if rows is None else int(rows[0]))
            raise MessageIllegal(f"row {row}: topic {topic!r} does not exist ({error})") from error
        self._known_topics.add(topic)

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
        codes = encoded.indices.to_numpy()
        for code, name in enumerate(names):
            try:
                check_send_topic(name)
            except MessageIllegal as error:
                raise MessageIllegal(f"row {self.summary.rows + int((codes == code).argmax())}: {error}") from None
        if len(names) == 1:
            yield names[0], None
            return
        for code, name in enumerate(names):
            yield name, numpy.flatnonzero(codes == code)

    async def _by_queue(self, topic: str, columns: Columns, rows: Rows) -> list[tuple[MessageQueue | None, Rows]]:
        """Split by the queue that the rows ask for; rows that ask for none come last, with None."""
        queues: Sequence[MessageQueue]
        if self._settings.ordered and "shardingKey" in columns:
            queues, codes = await self._queues_of_keys(topic, taken(columns["shardingKey"], rows))
        elif "brokerName" in columns:
            brokers, numbers = taken(columns["brokerName"], rows), taken(columns["queueId"], rows)
            queues, codes = await self._queues_of_names(topic, brokers, numbers, rows)
        else:
            return [(None, rows)]
        parts: list[tuple[MessageQueue | None, Rows]] = []
        for code in numpy.unique(codes).tolist():
            inside = numpy.flatnonzero(codes == code)
            parts.append((queues[code] if code >= 0 else None, inside if rows is None else rows[inside]))
        return sorted(parts, key=lambda part: part[0] is None)

    async def _queues_of_keys(self, topic: str, keys: pa.Array) -> tuple[Sequence[MessageQueue], Codes]:
        """Return queues, and for each row which of them its key belongs to, -1 without a key."""
        queues = self.pinned.get(topic)
        if queues is None:
            publisher = await self._sender.publisher(topic, self._settings.timeout)
            queues = self.pinned[topic] = [target.queue for target in publisher.targets]
        groups = keys.dictionary_encode()
        # One Python text per different key, not per row.
        chosen = [self._select(key, len(queues)) % len(queues) for key in groups.dictionary.to_pylist()]
        return queues, numpy.array([*chosen, -1], dtype=numpy.int64)[codes_of(groups)]

    async def _queues_of_names(
        self, topic: str, brokers: pa.Array, queue_ids: pa.Array, rows: Rows
    ) -> tuple[Sequence[MessageQueue], Codes]:
        """Return the queues that rows name, and for each row which of them, -1 where it names none."""
        publisher = await self._sender.publisher(topic, self._settings.timeout)
        encoded = brokers.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        numbers = queue_ids.fill_null(-1).to_numpy(zero_copy_only=False)
        pairs, first, inverse = numpy.unique(
            numpy.stack([codes_of(encoded), numbers]), axis=1, return_index=True, return_inverse=True
        )
        queues: list[MessageQueue] = []
        lookup = numpy.full(pairs.shape[1], -1, dtype=numpy.int64)
        for index, (broker, number) in enumerate(pairs.T.tolist()):
            if broker >= 0 and number >= 0:
                queue = MessageQueue(topic, names[broker], number)
                if queue not in publisher.by_queue:
                    row = self.summary.rows + int(first[index] if rows is None else rows[first[index]])
                    raise MessageIllegal(
                        f"row {row}: {queue} is not a writable queue of {topic!r}; its writable queues are "
                        f"{_queue_text(publisher.by_queue)}"
                    )
                lookup[index] = len(queues)
                queues.append(queue)
        return queues, lookup[inverse.reshape(-1)]

    def _bodies(self, topic: str, queue: MessageQueue | None, columns: Columns, rows: Rows) -> Iterator[memoryview]:
        """Yield the batch bodies of the given rows, each in a buffer that is its own as long as it is referred to.

        queue   that the rows ask for; None: they go on in the body that is being filled, and the last of them stay in
                one as long as it has room
        raises  MessageIllegal naming the row that no broker takes
        """
        filling = self._filling if queue is None else None
        first, last = 0, len(columns["body"]) if rows is None else len(rows)
        while first < last:
            if filling is None:
                filling = _Filling(topic, memoryview(self._buffers.free())[: self._sender.config.max_message_bytes])
            done, size = self._encoder.encode(
                filling.view,
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
                used=filling.size,
            )
            self.summary.sent_bytes += size - filling.size
            filling.size = size
            first += done
            if queue is None and first == last and size < self._settings.batch_bytes:
                break
            body, filling = filling.view[:size].toreadonly(), None
            if queue is None:
                self._filling = None
            yield body
        if queue is None:
            self._filling = filling


def _queue_text(queues: Iterable[MessageQueue]) -> str:
    """Name queues by broker: ``broker-a 0–3, broker-b 0–3``."""
    ids: dict[str, list[int]] = {}
    for queue in queues:
        ids.setdefault(queue.broker, []).append(queue.queue_id)
    return ", ".join(f"{broker} {min(numbers)}–{max(numbers)}" for broker, numbers in sorted(ids.items()))
