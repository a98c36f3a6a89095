"""Read ranges of queues into Arrow record batches, without a Python object per message.

A range ``[start, end)`` of a queue is pulled to its own end, whatever arrives meanwhile; a kernel turns the stored
messages of each answer into column buffers. Consume-queue offsets are dense, so that without a filter a range of n
offsets holds n messages, and anything else is a gap.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from rocketcore._fast.columns import StoredColumns
from rocketcore.client import api
from rocketcore.client.api import PullResult, PullStatus
from rocketcore.client.instance import ClientInstance
from rocketcore.codes import MASTER_ID, PullSysFlag
from rocketcore.errors import ConfigError, OffsetOutOfRange, RocketError
from rocketcore.filter import SQL92, SUBSCRIBE_ALL, TAG, parse_tags
from rocketcore.message import MessageQueue
from rocketcore.protocol.compression import decompress
from rocketcore.protocol.headers import PullMessageRequestHeader

__all__ = ["COLUMNS", "DEFAULT_COLUMNS", "QueueRange", "QueueReader", "ReadSettings", "find_range"]

logger = logging.getLogger(__name__)

_TIME: Final = pa.timestamp("us", tz="UTC")

COLUMNS: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "msgId": pa.string(),
    "tags": pa.string(),
    "keys": pa.string(),
    "body": pa.binary(),
    "bornTimestamp": _TIME,
    "storeTimestamp": _TIME,
    "properties": pa.map_(pa.string(), pa.string()),
    "bornHost": pa.string(),
    "storeHost": pa.string(),
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
    "reconsumeTimes": pa.int32(),
    "commitLogOffset": pa.int64(),
    "storeSize": pa.int32(),
}
"""Every column of a message, in order."""

DEFAULT_COLUMNS: Final = tuple(COLUMNS)[:10]
"""What is read when nothing else is asked for."""

PULL_MESSAGES: Final = 8192
"""Messages asked for in one pull; a broker caps it as its settings say (by default Apache's at 32, ours at this)."""

RETRIES: Final = 2
"""Further attempts at a pull that fails on the way; a pull changes nothing."""

RETRY_PAUSE: Final = 0.2

_sleep: Final = time.sleep
"""Waits on the caller's thread, where a coroutine runs without an event loop."""

EMPTY_PULLS: Final = 5
"""Answers in a row that bring nothing and move nothing, before a range counts as lost."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The messages of a queue from offset ``start`` up to, not including, ``end``."""

    queue: MessageQueue
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """What is read of each message, and how.

    columns            names out of ``COLUMNS``, in the order of the result
    tags, sql          filter by tag expression, or by an SQL92 expression that the broker evaluates
    fail_on_data_loss  raise OffsetOutOfRange where messages of the range are gone; else log it and go on
    pull_bytes         asked for in one pull; batch_bytes: what a record batch gathers
    """

    columns: tuple[str, ...] = DEFAULT_COLUMNS
    group: str = "ARROW_READER"
    tags: str = SUBSCRIBE_ALL
    sql: str | None = None
    fail_on_data_loss: bool = True
    pull_bytes: int = 1 << 20
    batch_bytes: int = 1 << 20
    timeout: float = 10.0

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in COLUMNS]
        if unknown:
            raise ConfigError(f"a message has no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
        parse_tags(self.tags)

    @property
    def schema(self) -> pa.Schema:
        """The schema of every record batch."""
        return pa.schema([(name, COLUMNS[name]) for name in self.columns])


Position = Literal["first", "last"] | datetime | int


async def find_range(
    instance: ClientInstance, queue: MessageQueue, start: Position, end: Position, *, timeout: float
) -> tuple[QueueRange, QueueRange]:
    """Return the asked range of a queue, and the range of all that the queue holds now.

    start, end  ``first``, ``last`` (after the last message), an offset, or the store time of the first message
    """
    address, _ = instance.routes.subscribe_address(queue.broker)
    low = await api.min_offset(instance.remoting, address, queue, timeout)
    high = await api.max_offset(instance.remoting, address, queue, timeout)
    edges = []
    for position in (start, end):
        if isinstance(position, datetime):
            if position.tzinfo is None:
                raise ConfigError("a time needs a time zone, for example datetime(…, tzinfo=UTC)")
            millis = round(position.timestamp() * 1000)
            edges.append(await api.search_offset(instance.remoting, address, queue, millis, timeout))
        elif position == "first":
            edges.append(low)
        elif position == "last":
            edges.append(high)
        else:
            edges.append(position)
    return QueueRange(queue, edges[0], edges[1]), QueueRange(queue, low, high)


class BatchBuilder:
    """Gathers pull answers of one queue into one record batch.

    tags  exact tags to keep, empty for all: a broker compares their hashes only
    """

    def __init__(self, queue: MessageQueue, columns: tuple[str, ...], tags: frozenset[str]) -> None:
        self._queue = queue
        self._names = columns
        self._tags = tags
        kept = [name for name in columns if name != "brokerName"]
        if tags and "tags" not in kept:
            kept.append("tags")
        self._stored = StoredColumns(kept or ["queueOffset"])
        self.gathered_bytes = 0

    @property
    def rows(self) -> int:
        """Messages gathered, before the tags are compared."""
        return self._stored.rows

    def append(self, body: bytes, limit_offset: int) -> int:
        """Add the messages of a pull answer that lie below an offset, and return their number; raises DecodeError."""
        count, position = self._stored.append(body, 0, len(body), limit_offset, check_crc=True)
        if position < len(body):
            # The limit, or a bad record behind good ones: this call raises for the latter.
            self._stored.append(body, position, len(body), limit_offset, check_crc=True)
        self.gathered_bytes += len(body)
        return count

    def finish(self) -> pa.RecordBatch:
        """Return the record batch."""
        rows, compressed = self._stored.rows, self._stored.compressed
        arrays = {name: _array(name, rows, buffers) for name, buffers in self._stored.finish().items()}
        if compressed and "body" in arrays:
            arrays["body"] = _decompressed(arrays["body"], compressed)
        if "brokerName" in self._names:
            arrays["brokerName"] = pa.repeat(pa.scalar(self._queue.broker, pa.string()), rows)
        schema = pa.schema([(name, COLUMNS[name]) for name in self._names])
        batch = pa.RecordBatch.from_arrays([arrays[name] for name in self._names], schema=schema)
        if self._tags:
            batch = batch.filter(pc.is_in(arrays["tags"], pa.array(sorted(self._tags))))
        return batch


def _array(name: str, rows: int, buffers: tuple[Any, ...]) -> pa.Array:
    kind = COLUMNS[name]
    owned: list[Any] = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    if not pa.types.is_map(kind):
        return pa.Array.from_buffers(kind, rows, owned)
    validity, offsets, key_offsets, key_data, item_offsets, item_data = owned
    entries = key_offsets.size // 4 - 1
    pairs = pa.StructArray.from_arrays(
        [
            pa.Array.from_buffers(pa.string(), entries, [None, key_offsets, key_data]),
            pa.Array.from_buffers(pa.string(), entries, [None, item_offsets, item_data]),
        ],
        fields=[kind.key_field, kind.item_field],
    )
    return pa.Array.from_buffers(kind, rows, [validity, offsets], children=[pairs])


def _decompressed(bodies: pa.Array, compressed: list[tuple[int, int]]) -> pa.Array:
    """Return the bodies with the compressed ones unpacked: the only rows that become Python objects."""
    pieces, begin = [], 0
    for row, sys_flag in compressed:
        body = bodies[row].as_py()
        # As Java: no body is none to decompress, whatever the flag says.
        if body:
            pieces += [bodies.slice(begin, row - begin), pa.array([decompress(body, sys_flag)], pa.binary())]
            begin = row + 1
    return pa.concat_arrays([*pieces, bodies.slice(begin)])


class QueueReader:
    """Reads one range of a queue, batch by batch; belongs to one event loop, or to one thread.

    ``concurrent=False`` is for a blocking transport; otherwise the next answer is on its way while a batch is used.
    """

    def __init__(
        self, instance: ClientInstance, portion: QueueRange, settings: ReadSettings, *, concurrent: bool = True
    ) -> None:
        self._instance = instance
        self._queue = portion.queue
        self._offset, self._end = portion.start, portion.end
        self._settings = settings
        self._filter = parse_tags(settings.tags)
        self._whole = self._filter.takes_all and settings.sql is None
        self._broker_id = MASTER_ID
        self._empty = 0
        self._concurrent = concurrent
        self._pending: asyncio.Task[PullResult] | None = None

    async def next_batch(self) -> pa.RecordBatch | None:
        """Return the next messages, None after the last.

        raises  OffsetOutOfRange where messages of the range are gone (see ReadSettings); the broker's refusal
        """
        builder = BatchBuilder(self._queue, self._settings.columns, self._filter.tags)
        while self._offset < self._end and builder.gathered_bytes < self._settings.batch_bytes:
            result = await (self._pending or self._pull())
            self._pending = None
            self._take(result, builder)
            if self._concurrent and self._offset < self._end:
                self._pending = asyncio.ensure_future(self._pull())
                await asyncio.sleep(0)  # the request leaves before the batch is handed over
        if not builder.rows:
            return None
        return builder.finish()

    async def close(self) -> None:
        """Give up what is under way."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)

    async def _pull(self) -> PullResult:
        settings, queue = self._settings, self._queue
        if self._empty:
            await self._pause(0.05 * self._empty)
        header = PullMessageRequestHeader(
            consumer_group=settings.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=self._offset,
            max_msg_nums=min(PULL_MESSAGES, self._end - self._offset),
            sys_flag=int(PullSysFlag.SUBSCRIPTION),
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=settings.sql or settings.tags,
            expression_type=TAG if settings.sql is None else SQL92,
            max_msg_bytes=settings.pull_bytes,
            rc_pull=1,
            bname=queue.broker,
        )
        for attempt in range(RETRIES, -1, -1):
            address, _ = self._instance.routes.subscribe_address(queue.broker, self._broker_id)
            try:
                return await api.pull_message(self._instance.remoting, address, header, settings.timeout)
            except RocketError as error:
                if not error.retriable or not attempt:
                    raise
                logger.info("pull is repeated queue=%s address=%s error=%s", queue, address, error)
                self._broker_id = MASTER_ID
            await self._pause(RETRY_PAUSE)
        raise AssertionError("the last attempt returns or raises")

    async def _pause(self, seconds: float) -> None:
        if self._concurrent:
            await asyncio.sleep(seconds)
        else:
            _sleep(seconds)

    def _take(self, result: PullResult, builder: BatchBuilder) -> None:
        """Enter an answer into the batch and move on; raises or logs what is missing."""
        if result.offset_delta:
            raise ConfigError(f"{self._queue} belongs to a static topic, which cannot be read as columns yet")
        begin, self._broker_id = self._offset, result.suggest_which_broker_id
        count = 0
        if result.status is PullStatus.FOUND:
            count = builder.append(result.body, self._end)
            self._offset = min(self._end, max(begin, result.next_begin_offset))
            missing = self._offset - begin - count if self._whole else 0
        elif result.status is PullStatus.NO_MATCHED_MSG:
            self._offset = min(self._end, max(begin, result.next_begin_offset))
            missing = self._offset - begin if self._whole else 0
        elif begin < result.min_offset:
            self._offset = min(self._end, result.min_offset)
            missing = self._offset - begin
        elif begin >= result.max_offset:
            self._offset, missing = self._end, self._end - begin
        else:
            self._offset = min(self._end, max(begin, result.next_begin_offset))
            missing = self._offset - begin
        self._empty = 0 if self._offset > begin else self._empty + 1
        if self._empty > EMPTY_PULLS:
            self._offset, missing = self._end, self._end - begin
        if missing > 0:
            lost = f"{missing} of the messages of {self._queue} from offset {begin} to {self._end} are gone"
            if self._settings.fail_on_data_loss:
                raise OffsetOutOfRange(f"{lost}; the queue holds {result.min_offset} to {result.max_offset}")
            logger.warning("data loss: %s", lost)
