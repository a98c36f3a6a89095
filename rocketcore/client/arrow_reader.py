"""Read ranges of queues into Arrow record batches, without a Python object per message.

A range ``[start, end)`` of a queue is pulled to its own end, whatever arrives meanwhile. Consume-queue offsets are
dense, so that without a filter a range of n offsets holds n messages, and anything else is a gap.

Pulling (``RangeReader``) and decoding (``decode``) are apart: where there is a loop, it pulls the next answers while
another thread decodes these.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa

from rocketcore.client import api
from rocketcore.client.api import PullResult, PullStatus
from rocketcore.client.arrow_batches import DEFAULT_COLUMNS, BatchBuilder, schema_of
from rocketcore.client.arrow_ranges import QueueRange, offsets_of
from rocketcore.client.attempts import Retries, refuses, until_answered
from rocketcore.client.instance import ClientInstance
from rocketcore.codes import MASTER_ID, PullSysFlag
from rocketcore.errors import ConfigError, OffsetOutOfRange, RocketError
from rocketcore.filter import SQL92, SUBSCRIBE_ALL, TAG, parse_tags
from rocketcore.message import MessageQueue
from rocketcore.printable import printable
from rocketcore.protocol.headers.message import PullMessageRequestHeader

__all__ = ["RangeReader", "ReadSettings", "probe"]

logger = logging.getLogger(__name__)

PULL_MESSAGES: Final = 8192
"""Messages asked for in one pull; a broker caps it as its settings say (by default Apache's at 32, ours at this)."""

NARROW_MESSAGES: Final = 32
"""An answer of just so many, where there are more, comes from a broker that knows no long answers."""

REFUSALS: Final = 3
"""Answers in a row that refuse a pull, before it counts as refused; a failure on the way has all the time."""

SHOWN_RUNS: Final = 20
"""Runs of lost offsets that an error names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """What is read of each message, and how.

    columns            names out of ``COLUMNS``, in the order of the result
    tags, sql          filter by tag expression, or by an SQL92 expression that the broker evaluates
    fail_on_data_loss  raise OffsetOutOfRange where messages of the range are gone; else log it and go on
    pull_bytes         asked for in one pull; batch_bytes: what a record batch gathers
    timeout            seconds for one attempt at a pull; fetch_timeout: until it is given up
    """

    columns: tuple[str, ...] = DEFAULT_COLUMNS
    group: str = "ARROW_READER"
    tags: str = SUBSCRIBE_ALL
    sql: str | None = None
    fail_on_data_loss: bool = True
    pull_bytes: int = 1 << 20
    batch_bytes: int = 1 << 20
    timeout: float = 10.0
    fetch_timeout: float = 120.0

    def __post_init__(self) -> None:
        schema_of(self.columns)
        parse_tags(self.tags)

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
    """Stored messages of a range, and the offsets that they stand for."""

    begin: int
    end: int
    result: PullResult


async def probe(
    instance: ClientInstance, queue: MessageQueue, offset: int, settings: ReadSettings, timeout: float
) -> None:
    """Ask a broker for one message as a reader will; raises its refusal."""
    address, _ = instance.routes.subscribe_address(queue.broker)
    await api.pull_message(instance.remoting, address, settings.request(queue, offset, 1), timeout)


class RangeReader:
    """Pulls one range of a queue; belongs to one event loop, or to one thread.

    On a loop the next answers are on their way while some are used.
    """

    def __init__(self, instance: ClientInstance, queue_range: QueueRange, settings: ReadSettings) -> None:
        self._instance = instance
        self._queue = queue_range.queue
        self._offset, self._end = queue_range.start, queue_range.end
        self._settings = settings
        self._takes_all = settings.takes_all
        self._builder = BatchBuilder(
            queue_range.queue.broker, settings.columns, parse_tags(settings.tags).tags, settings.batch_bytes
        )
        self._broker_id = MASTER_ID
        self._asked_slave = False
        self._standstill: Retries | None = None
        self._pause: float | None = None
        self._pending: asyncio.Task[list[Answer]] | None = None

    async def next_answers(self) -> list[Answer]:
        """Return the next answers, about as many as a record batch takes; none after the last.

        raises  OffsetOutOfRange where messages of the range are gone (see ReadSettings); the broker's refusal; what the
                pull failed with when its time was over
        """
        pending, self._pending = self._pending, None
        answers = await (pending or self._gather())
        if self._instance.runtime.concurrent and self._offset < self._end:
            self._pending = asyncio.ensure_future(self._gather())
            await asyncio.sleep(0)  # the request leaves before the answers are handed over
        return answers

    def decode(self, answers: Sequence[Answer]) -> Iterator[pa.RecordBatch]:
        """Yield the record batches that answers fill; without answers what is left. Any thread, one at a time.

        raises  DecodeError; OffsetOutOfRange where messages of the range are gone (see ReadSettings)
        """
        builder = self._builder
        for answer in answers:
            before = builder.appended
            yield from builder.append(answer.result.body, self._end)
            if self._takes_all and builder.appended - before < answer.end - answer.begin:
                there = offsets_of(answer.result.body, answer.end - answer.begin)
                edges = [answer.begin - 1, *there, answer.end]
                self._note_loss([range(last + 1, after) for last, after in pairwise(edges)], answer.result)
        # A part of a batch waits for more only if it is small: Spark is to have something to do.
        if builder.rows and (not answers or builder.fill >= 0.5):
            yield builder.finish()

    async def open(self) -> None:
        """Ask for the route if it is not known; a failure is left to the first pull, which has more time."""
        if self._instance.routes.find(self._queue.topic) is None:
            await self._instance.try_refresh(self._queue.topic, timeout=self._settings.timeout)

    async def close(self) -> None:
        """Give up what is under way."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)

    async def _gather(self) -> list[Answer]:
        """Pull until the next answer might be more than a record batch takes, or the range ends."""
        answers: list[Answer] = []
        gathered = longest = 0
        while self._offset < self._end and gathered + longest <= self._settings.batch_bytes:
            begin = self._offset
            result = await self._pull()
            self._advance(result)
            if result.status is PullStatus.FOUND and result.next_begin_offset > begin:
                answers.append(Answer(begin, self._offset, result))
                gathered += len(result.body)
                longest = max(longest, len(result.body))
        return answers

    async def _pull(self) -> PullResult:
        settings, queue, instance = self._settings, self._queue, self._instance
        if self._pause is not None:
            await instance.runtime.pause(self._pause)
        header = settings.request(queue, self._offset, self._end - self._offset)
        refusals = 0

        async def pull(limit: float) -> PullResult:
            address, broker_id = instance.routes.subscribe_address(queue.broker, self._broker_id)
            self._asked_slave = broker_id != MASTER_ID
            return await api.pull_message(instance.remoting, address, header, limit)

        def final(error: RocketError) -> bool:
            nonlocal refusals
            self._broker_id = MASTER_ID
            refusals = refusals + 1 if refuses(error) else 0
            return refusals >= REFUSALS

        retries = Retries(settings.fetch_timeout, instance.clock)
        return await until_answered(instance, queue.topic, retries, settings.timeout, pull, final)

    def _advance(self, result: PullResult) -> None:
        """Move to where an answer says; raises or logs what is missing, but for the messages of an answer."""
        if result.offset_delta:
            raise ConfigError(f"{self._queue} belongs to a static topic, which cannot be read as columns yet")
        begin, self._broker_id = self._offset, result.suggest_which_broker_id
        following = min(self._end, max(begin, result.next_begin_offset))
        found, passed = result.status is PullStatus.FOUND, result.status is PullStatus.NO_MATCHED_MSG
        if found and self._takes_all and following - begin == NARROW_MESSAGES and following < self._end:
            _note_narrow(self._queue.broker)
        if not (found or passed):
            if self._asked_slave:
                # It may lag: what a slave does not have its master is asked for.
                self._broker_id, following = MASTER_ID, begin
            elif begin < result.min_offset:
                following = min(self._end, result.min_offset)
            elif begin >= result.max_offset:
                following = self._end
        stuck = False
        if following > begin:
            self._standstill = self._pause = None
        else:
            # A broker may be at work on the queue: it has as long as for any answer.
            self._standstill = self._standstill or Retries(self._settings.fetch_timeout, self._instance.clock)
            self._pause = self._standstill.next_pause()
            stuck = self._pause is None
        self._offset = self._end if stuck else following
        if stuck or not (found or (passed and not self._takes_all)):
            self._note_loss([range(begin, self._offset)], result)

    def _note_loss(self, runs: Sequence[range], result: PullResult) -> None:
        """Raise or log that the messages at some offsets, in order, are not there any more."""
        gone = [run for run in runs if run]
        if not gone:
            return
        texts = [f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in gone[:SHOWN_RUNS]]
        places = ", ".join(texts) + (" and others" if len(gone) > SHOWN_RUNS else "")
        lost = (
            f"{sum(map(len, gone))} messages of {self._queue} are gone, those at {places}; "
            f"the queue holds {result.min_offset} to {result.max_offset}"
        )
        if self._settings.fail_on_data_loss:
            raise OffsetOutOfRange(lost)
        logger.warning("data loss: %s", lost)


@lru_cache(maxsize=256)
def _note_narrow(broker: str) -> None:
    """Say once how a broker that sends short answers is made to send longer ones."""
    logger.info(
        "broker %s sends %d messages an answer: maxTransferCountOnMessageInMemory and its sisters say so",
        printable(broker),
        NARROW_MESSAGES,
    )
