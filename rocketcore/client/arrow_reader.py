"""Read ranges of queues into Arrow record batches, without a Python object per message.

A range ``[start, end)`` of a queue is pulled to its own end, whatever arrives meanwhile; ``pull_plan`` says by which
pulls, several at a time. Consume-queue offsets are dense, so that without a filter a range of n offsets holds n
messages, and anything else is a gap.

Pulling and decoding are apart: the loop pulls ahead, as far as there is room, while another thread decodes what came
and hands it on. Answers come one range after the other, but the first pulls of the next ranges are sent before the last
of one are answered: a thousand small queues do not cost a thousand waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rocketcore.client import api
from rocketcore.client.api import PullHead, PullStatus
from rocketcore.client.arrow_batches import DEFAULT_COLUMNS, BatchBuilder, schema_of
from rocketcore.client.arrow_ranges import QueueRange, offsets_of
from rocketcore.client.attempts import Retries, refuses, until_answered
from rocketcore.client.config import RECORD_BATCH_BYTES
from rocketcore.client.instance import ClientInstance
from rocketcore.client.pull_plan import PULL_MESSAGES, Pull, RangePlan, Stride
from rocketcore.codes import MASTER_ID, TOOLS_GROUP, PullSysFlag, RequestCode, ResponseCode, SerializeType
from rocketcore.errors import ConfigError, OffsetOutOfRange, RocketError, RouteNotFound, TransportError
from rocketcore.filter import SQL92, SUBSCRIBE_ALL, TAG, check_filter, parse_tags
from rocketcore.message import MessageQueue
from rocketcore.printable import printable
from rocketcore.protocol.command import RemotingCommand, next_opaque
from rocketcore.protocol.headers.message import PullMessageRequestHeader
from rocketcore.transport.remoting import PipeliningRemoting

__all__ = ["RangeReader", "ReadSettings", "probe"]

logger = logging.getLogger(__name__)

MOST_PULLS: Final = 16
"""Pulls under way at a time. Two long answers are as many as help; of short ones a broker works at many at once."""

NARROW_MESSAGES: Final = 32
"""An answer of just so many, where there are more, comes from a broker that knows no long answers."""

REFUSALS: Final = 3
"""Answers in a row that refuse a pull, before it counts as refused; a failure on the way has all the time."""

SHOWN_RUNS: Final = 20
"""Runs of lost offsets that an error names."""

_PULL_MESSAGE: Final = int(RequestCode.PULL_MESSAGE)
_SUCCESS: Final = int(ResponseCode.SUCCESS)
_BINARY: Final = int(SerializeType.ROCKETMQ)
"""Headers of brokers of any version; read in less time than JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """What is read of each message, and how.

    columns            names out of ``COLUMNS``, in the order of the result
    tags, sql          filter by tag expression, or by an SQL92 expression that the broker evaluates
    fail_on_data_loss  raise OffsetOutOfRange where messages of the range are gone; else log it and go on
    if_damaged         what the DecodeError of a damaged message says last: how to read the others; None: such a one is
                       left out, with a warning
    pull_bytes         asked for in one pull; batch_bytes: what a record batch gathers
    timeout            seconds for one attempt at a pull; fetch_timeout: until it is given up
    """

    columns: tuple[str, ...] = DEFAULT_COLUMNS
    group: str = TOOLS_GROUP
    tags: str = SUBSCRIBE_ALL
    sql: str | None = None
    fail_on_data_loss: bool = True
    if_damaged: str | None = ""
    pull_bytes: int = 1 << 20
    batch_bytes: int = RECORD_BATCH_BYTES
    timeout: float = 10.0
    fetch_timeout: float = 120.0

    def __post_init__(self) -> None:
        schema_of(self.columns)
        parse_tags(self.tags)
        check_filter(self.tags, self.sql)

    @property
    def schema(self) -> pa.Schema:
        """The schema of every record batch."""
        return schema_of(self.columns)

    @property
    def takes_all(self) -> bool:
        """Whether every message is wanted."""
        return self.sql is None and parse_tags(self.tags).takes_all

    def request(self, queue: MessageQueue, offset: int, count: int) -> PullMessageRequestHeader:
        """Return the request for ``count`` messages at an offset, which a broker answers at once."""
        return PullMessageRequestHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=min(PULL_MESSAGES, count),
            sys_flag=int(PullSysFlag.SUBSCRIPTION),
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=self.sql or self.tags,
            expression_type=TAG if self.sql is None else SQL92,
            max_msg_bytes=self.pull_bytes,
            rc_pull=1,
            bname=queue.broker,
        )


class Answer(NamedTuple):
    """Stored messages of a queue, and the offsets that they stand for; ``body`` lies in what was received."""

    queue: MessageQueue
    begin: int
    end: int
    body: memoryview
    head: PullHead


async def probe(
    instance: ClientInstance, queue: MessageQueue, offset: int, settings: ReadSettings, timeout: float
) -> None:
    """Ask a broker for one message as a reader will; raises its refusal."""
    address, _ = instance.routes.subscribe_address(queue.broker)
    await api.pull_message(instance.remoting, address, settings.request(queue, offset, 1), timeout)


class _Reading:
    """A range that is being pulled.

    address     of who was asked last
    fields      of a pull request, but for the offsets
    standstill  since when answers lead nowhere
    """

    __slots__ = ("address", "broker_id", "fields", "plan", "queue", "standstill")

    def __init__(self, queue: MessageQueue, plan: RangePlan, fields: dict[str, str]) -> None:
        self.queue = queue
        self.plan = plan
        self.fields = fields
        self.address = ""
        self.broker_id = MASTER_ID
        self.standstill: Retries | None = None

    def command(self, pull: Pull) -> RemotingCommand:
        """Return the request of a pull."""
        fields = self.fields.copy()
        fields["queueOffset"] = str(pull.begin)
        fields["maxMsgNums"] = str(min(PULL_MESSAGES, len(pull)))
        return RemotingCommand(_PULL_MESSAGE, opaque=next_opaque(), ext_fields=fields, serialize_type=_BINARY)


class RangeReader:
    """Pulls ranges of queues, one after the other, and makes record batches of them.

    Pulls belong to one event loop and go on by themselves between two calls of ``next_answers``, until what is ready
    nearly fills a record batch: beside that two long answers are under way, and no more is in memory. ``decode`` is for
    one other thread, or for the same.
    """

    def __init__(self, instance: ClientInstance, ranges: Iterable[QueueRange], settings: ReadSettings) -> None:
        assert isinstance(instance.remoting, PipeliningRemoting), "pulls go on by themselves, on a loop"
        self._instance = instance
        self._remoting = instance.remoting
        self._settings = settings
        self._dense = settings.takes_all
        self._waiting = deque(queue_range for queue_range in ranges if len(queue_range))
        self._open: deque[_Reading] = deque()
        self._strides: dict[tuple[str, str], Stride] = {}
        self._under_way = 0
        self._expected_bytes = 0.0
        self._ready: list[Answer] = []
        self._ready_bytes = 0
        self._enough_bytes = max(1, min(settings.pull_bytes, settings.batch_bytes) * 7 // 8)
        self._is_ready = asyncio.Event()
        self._is_room = asyncio.Event()
        self._pulling: asyncio.Task[None] | None = None
        self._builder = BatchBuilder(
            settings.columns, parse_tags(settings.tags).tags, settings.batch_bytes, settings.if_damaged
        )

    def record_batches(self, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> Generator[pa.RecordBatch, None, None]:
        """Yield all record batches, decoded on the caller's thread; what is under way ends with the generator.

        run     runs a coroutine on the loop and returns its result
        raises  as ``next_answers`` and ``decode``
        """
        try:
            while answers := run(self.next_answers()):
                yield from self.decode(answers)
            yield from self.decode(())
        finally:
            run(self.close())

    async def next_answers(self) -> list[Answer]:
        """Return the next answers, about as many as a record batch takes; none after the last.

        raises  OffsetOutOfRange where messages of a range are gone (see ReadSettings); the broker's refusal; what a
                pull failed with when its time was over
        """
        if self._pulling is None:
            self._pulling = asyncio.create_task(self._pull_all(), name="range-reader")
        await self._is_ready.wait()
        answers, self._ready, self._ready_bytes = self._ready, [], 0
        if not answers:
            await self._pulling
        elif not self._pulling.done():
            self._is_ready.clear()
            self._is_room.set()
        return answers

    def decode(self, answers: Sequence[Answer]) -> Iterator[pa.RecordBatch]:
        """Yield the record batches that answers fill; without answers what is left. Any thread, one at a time.

        raises  DecodeError; RemoteProtocolError for an answer with messages out of order or before its range;
                OffsetOutOfRange where messages of a range are gone (see ReadSettings)
        """
        builder = self._builder
        for queue, begin, end, body, head in answers:
            before = builder.appended
            yield from builder.append(queue, begin, end, body)
            if self._dense and builder.appended - before < end - begin:
                there = offsets_of(body, end - begin)
                edges = [begin - 1, *there, end]
                self._note_loss(queue, [range(last + 1, after) for last, after in pairwise(edges)], head)
        # A part of a batch waits for more only if it is small: Spark is to have something to do.
        if builder.rows and (not answers or builder.fill >= 0.5):
            yield builder.finish()

    async def close(self) -> None:
        """Give up what is under way."""
        pulling, self._pulling = self._pulling, None
        if pulling is not None:
            pulling.cancel()
            await asyncio.gather(pulling, return_exceptions=True)

    # Pulling

    async def _pull_all(self) -> None:
        """Pull everything, as long as there is room for it."""
        try:
            for topic in {queue_range.queue.topic: None for queue_range in self._waiting}:
                if self._instance.routes.find(topic) is None:
                    # A failure is left to the first pull, which has more time.
                    await self._instance.try_refresh(topic, timeout=self._settings.timeout)
            while self._open or self._waiting:
                self._send_pulls()
                if self._ready_bytes >= self._enough_bytes:
                    self._is_ready.set()
                    self._is_room.clear()
                    await self._is_room.wait()
                await self._take_answer(self._open[0])
                if self._open[0].plan.done:
                    self._open.popleft()
        finally:
            self._is_ready.set()
            for reading in self._open:
                self._forget(reading.plan.drop_others(None))

    def _send_pulls(self) -> None:
        """Send what can be sent; the first pull of all in any case."""
        index = 0
        while True:
            has_room = self._under_way < MOST_PULLS and self._expected_bytes <= self._settings.pull_bytes
            if index == len(self._open):
                if not self._waiting or not (has_room or not index):
                    return
                self._open.append(self._begin(self._waiting.popleft()))
            reading = self._open[index]
            if not has_room and (index or reading.plan.head is not None):
                return
            pull = reading.plan.next_pull()
            if pull is None:
                index += 1
                continue
            self._under_way += 1
            self._expected_bytes += pull.expected_bytes
            try:
                pull.sent = self._remoting.invoke_nowait(
                    self._address(reading, pull), reading.command(pull), self._settings.timeout
                )
            except (RouteNotFound, TransportError):
                pull.sent = None
            if pull.sent is None:
                return  # there is no connection yet: it is made where the answer is waited for

    def _begin(self, queue_range: QueueRange) -> _Reading:
        queue = queue_range.queue
        stride = self._strides.setdefault((queue.broker, queue.topic), Stride(self._settings.pull_bytes))
        plan = RangePlan(queue_range.start, queue_range.end, stride, dense=self._dense)
        return _Reading(queue, plan, self._settings.request(queue, 0, 1).to_ext_fields())

    def _address(self, reading: _Reading, pull: Pull) -> str:
        reading.address, broker_id = self._instance.routes.subscribe_address(reading.queue.broker, reading.broker_id)
        pull.from_slave = broker_id != MASTER_ID
        return reading.address

    async def _take_answer(self, reading: _Reading) -> None:
        """Wait for the answer at the head of a range, and judge it."""
        pull = reading.plan.head
        assert pull is not None, "it was sent before all others"
        sent: asyncio.Future[RemotingCommand] | None = pull.sent
        response = None
        # Its time begins with the wait for it, not when the first wait has failed.
        retries = Retries(self._settings.fetch_timeout, self._instance.clock)
        if sent is not None:
            with contextlib.suppress(TransportError):
                response = await sent
        if response is None or response.code != _SUCCESS:
            response, head = await self._answer(reading, pull, retries)
        else:
            head = _head_of(response, reading, pull)
        body = response.view_body()
        if head.offset_delta:
            raise ConfigError(f"{reading.queue} belongs to a static topic, which cannot be read as columns yet")
        asked_slave = pull.from_slave
        outcome = reading.plan.answered(head, len(body))
        self._forget((pull, *outcome.dropped))
        found, moved = outcome.found, outcome.end > outcome.begin
        if found:
            self._ready.append(Answer(reading.queue, outcome.begin, outcome.end, body, head))
            self._ready_bytes += len(body)
            if outcome.end - outcome.begin == NARROW_MESSAGES < len(pull) and self._dense:
                _note_narrow(reading.queue.broker)
        useless = head.status not in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG)
        reading.broker_id = MASTER_ID if useless and asked_slave else head.suggest_which_broker_id
        if outcome.lost:
            self._note_loss(reading.queue, [range(outcome.begin, outcome.end)], head)
        if moved:
            reading.standstill = None
            return
        # A broker may be at work on the queue: it has as long as for any answer.
        reading.standstill = reading.standstill or Retries(self._settings.fetch_timeout, self._instance.clock)
        pause = reading.standstill.next_pause()
        if pause is not None:
            await self._instance.runtime.pause(pause)
            return
        outcome = reading.plan.give_up()
        self._forget(outcome.dropped)
        self._note_loss(reading.queue, [range(outcome.begin, outcome.end)], head)

    async def _answer(self, reading: _Reading, pull: Pull, retries: Retries) -> tuple[RemotingCommand, PullHead]:
        """Return the answer to a pull, which is asked again while its broker is away and there is time."""
        instance, settings = self._instance, self._settings
        first: asyncio.Future[RemotingCommand] | None = pull.sent
        refusals = 0

        async def ask(limit: float) -> tuple[RemotingCommand, PullHead]:
            nonlocal first
            sent, first = first, None
            if sent is not None:
                response = await sent
            else:
                address = self._address(reading, pull)
                response = await self._remoting.invoke(address, reading.command(pull), limit)
            return response, _head_of(response, reading, pull)

        def final(error: RocketError) -> bool:
            nonlocal refusals
            reading.broker_id = MASTER_ID
            refusals = refusals + 1 if refuses(error) else 0
            # What the others were answered is as old as their connection; they are sent again after this one.
            for other in self._open:
                self._forget(other.plan.drop_others(pull))
            return refusals >= REFUSALS

        return await until_answered(instance, reading.queue.topic, retries, settings.timeout, ask, final)

    def _forget(self, pulls: Iterable[Pull]) -> None:
        """Count pulls no more as under way; answers that are still to come are dropped."""
        for pull in pulls:
            self._under_way -= 1
            self._expected_bytes -= pull.expected_bytes
            sent: asyncio.Future[RemotingCommand] | None = pull.sent
            if sent is not None and not sent.cancel() and not sent.cancelled():
                sent.exception()  # nobody else looks at it

    def _note_loss(self, queue: MessageQueue, runs: Sequence[range], head: PullHead) -> None:
        """Raise or log that the messages at some offsets, in order, are not there any more."""
        gone = [run for run in runs if run]
        if not gone:
            return
        texts = [f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in gone[:SHOWN_RUNS]]
        places = ", ".join(texts) + (" and others" if len(gone) > SHOWN_RUNS else "")
        lost = (
            f"{sum(map(len, gone))} messages of {queue} are gone, those at {places}; "
            f"the queue holds {head.min_offset} to {head.max_offset}"
        )
        if self._settings.fail_on_data_loss:
            raise OffsetOutOfRange(lost)
        logger.warning("data loss: %s", lost)


def _head_of(response: RemotingCommand, reading: _Reading, pull: Pull) -> PullHead:
    queue = reading.queue
    return api.pull_head(response, reading.address, queue.topic, queue.queue_id, pull.begin)


@lru_cache(maxsize=256)
def _note_narrow(broker: str) -> None:
    """Say once how a broker that sends short answers is made to send longer ones."""
    logger.warning(
        "broker %s sends %d messages an answer, which is slow: its maxTransferCountOnMessageInMemory, "
        "maxTransferCountOnMessageInDisk, maxTransferBytesOnMessageInMemory and maxTransferBytesOnMessageInDisk decide",
        printable(broker),
        NARROW_MESSAGES,
    )
