"""Stored messages to Arrow record batches, without a Python object per message.

A kernel turns pull answers into column buffers, which pyarrow takes as they are; a compressed body is unpacked on its
way into its column, by the system's zlib, LZ4 or Zstandard. Where one of these is missing, the body is an object for a
moment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rocketcore._fast.arrow_out import StoredColumns
from rocketcore.client.arrow_ranges import offsets_of
from rocketcore.client.config import MOST_RECORD_BATCH_BYTES
from rocketcore.errors import ConfigError, DecodeError, RemoteProtocolError
from rocketcore.message_queue import MessageQueue
from rocketcore.protocol.compression import decompress
from rocketcore.protocol.message import size_at
from rocketcore.warning import warn

__all__ = ["COLUMNS", "DEFAULT_COLUMNS", "BatchBuilder", "schema_of"]

logger = logging.getLogger(__name__)

_OFFSET_AT: Final = 20
"""Where a stored message has its queue offset."""
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


def schema_of(columns: tuple[str, ...]) -> pa.Schema:
    """Return the schema of record batches with these columns; raises ConfigError for one that messages do not have."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise ConfigError(f"messages have no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    return pa.schema([(name, COLUMNS[name]) for name in columns])


class BatchBuilder:
    """Gathers messages of queues into record batches; belongs to one thread.

    tags         exact tags to keep, empty for all: a broker compares their hashes only
    batch_bytes  a record batch ends with the message that makes it as long as this: bytes as stored, bodies unpacked,
                 and counted only if they are among the columns; at most ``MOST_RECORD_BATCH_BYTES``
    if_damaged   what the error of a damaged message says last: how to read the others; None: such a one is left out,
                 with a warning
    """

    def __init__(
        self, columns: tuple[str, ...], tags: frozenset[str], batch_bytes: int, if_damaged: str | None = ""
    ) -> None:
        self._schema = schema_of(columns)
        self._tags = tags
        self._if_damaged = if_damaged
        self._batch_bytes = min(batch_bytes, MOST_RECORD_BATCH_BYTES)
        kept = [name for name in columns if name != "brokerName"]
        if tags and "tags" not in kept:
            kept.append("tags")
        self._stored = StoredColumns(kept or ["queueOffset"], decompress)
        self._brokers: list[tuple[str, int]] = []
        """Brokers of the rows gathered, and the row at which each begins."""
        self.appended = 0
        """Messages appended or left out so far, before their tags were compared."""

    def append(self, queue: MessageQueue, begin: int, end: int, body: bytes | memoryview) -> Iterator[pa.RecordBatch]:
        """Add the messages of a pull answer that stands for the offsets from ``begin`` up to ``end``, those behind left
        out; yield the batches that became full.

        raises  DecodeError for a damaged message, and for a body that does not decompress (see ``if_damaged``);
                RemoteProtocolError for one that lies before ``begin``, or not behind the message before it
        """
        stored, position, after = self._stored, 0, begin - 1
        while position < len(body):
            if not self._brokers or self._brokers[-1][0] != queue.broker:
                self._brokers.append((queue.broker, stored.rows))
            rows, damage = stored.rows, None
            try:
                _, position = stored.append(body, position, len(body), end, True, self._batch_bytes, after)
            except DecodeError as error:
                damage = error
            count = stored.rows - rows
            self.appended += count
            if count:
                after = stored.last_queue_offset
            if damage is not None:
                for _ in range(count):  # those before it are appended, which nothing said
                    position += size_at(body, position)
                position = self._pass_over(queue, body, position, end, damage)
                continue
            if stored.stopped_by == "order":
                [found] = offsets_of(memoryview(body)[position:], 1)
                raise RemoteProtocolError(
                    f"{queue}: the answer to the pull at {begin} has offset {found} where {after + 1} or more "
                    "has to come"
                )
            if stored.gathered_bytes >= self._batch_bytes:
                yield self.finish()
            elif stored.stopped_by == "limit":
                break
            elif stored.stopped_by == "full":
                # Text that is not UTF-8 is up to three times as long in its column as what was gathered.
                if not stored.rows:
                    raise DecodeError(f"{queue}: a message is longer than a column")
                yield self.finish()

    def _pass_over(
        self, queue: MessageQueue, body: bytes | memoryview, position: int, end: int, error: DecodeError
    ) -> int:
        """Leave out the damaged message at a position, see ``if_damaged``; return where the next one begins."""
        size = size_at(body, position)
        offset = int.from_bytes(body[position + _OFFSET_AT : position + _OFFSET_AT + 8], signed=True)
        if offset >= end:
            return len(body)
        text = f"{queue}: the message at offset {offset} is damaged: {error.reason}"
        if not size:
            raise type(error)(f"{text}; it does not tell where the next one begins") from None
        if self._if_damaged is not None:
            raise type(error)(f"{text}; {self._if_damaged}" if self._if_damaged else text) from None
        warn(logger, "damaged message left out queue=%s offset=%d error=%s", queue, offset, error.reason)
        self.appended += 1
        return position + size

    @property
    def rows(self) -> int:
        """Messages of the record batch that is being gathered, before the tags are compared."""
        return self._stored.rows

    @property
    def fill(self) -> float:
        """How full that record batch is, 0 to 1."""
        return self._stored.gathered_bytes / self._batch_bytes

    def finish(self) -> pa.RecordBatch:
        """Return what is gathered as a record batch."""
        rows = self._stored.rows
        arrays = {name: _array(name, rows, buffers) for name, buffers in self._stored.finish().items()}
        brokers, self._brokers = self._brokers, []
        if "brokerName" in self._schema.names:
            ends = [begin for _, begin in brokers[1:]] + [rows]
            arrays["brokerName"] = pa.concat_arrays(
                [
                    pa.repeat(pa.scalar(broker, pa.string()), end - begin)
                    for (broker, begin), end in zip(brokers, ends, strict=True)
                ]
            )
        batch = pa.RecordBatch.from_arrays([arrays[name] for name in self._schema.names], schema=self._schema)
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
