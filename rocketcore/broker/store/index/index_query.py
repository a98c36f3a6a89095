"""Messages by key, by unique id and by tag (Java: ``DefaultMessageStore.queryMessage``, ``QueryMessageProcessor``).

The index knows hashes, so each message that it leads to is read, checked and asked whether it has the key: RocketMQ
leaves that to the client, whose answer other keys of the same hash may fill. What was put before the question is
found: the index is waited for. Messages are found newest first, and answered in the order of the log.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from rocketcore._fast.index import key_hash
from rocketcore._fast.properties import decode_properties
from rocketcore._fast.record import (
    PROPERTIES_LENGTH,
    PROPERTIES_START,
    STORE_TIMESTAMP,
    STORED_COLUMNS,
    TOPIC_LENGTH,
    TOPIC_START,
    scan_stored,
)
from rocketcore.broker.store.index.index_folder import Cursor
from rocketcore.broker.store.index.message_index import MessageIndex
from rocketcore.errors import DecodeError
from rocketcore.message import KeyKind
from rocketcore.service import Clock, Deadline
from rocketcore.table import Table

__all__ = ["IndexQuery", "QueryResult"]

ANSWER_BYTES = 8 << 20
"""Messages of one answer have no more bytes together, but for the newest: a frame has an end."""
OFFSETS = 64
"""Places in the log that are looked at before others have their turn."""


@dataclass(slots=True)
class QueryResult:
    """The newest messages that were asked for, in the order of the log.

    last_timestamp, last_offset  of the newest message in the index
    behind                       bytes of the log that were not searched: the index had not come to them in time
    """

    records: list[bytes] = field(default_factory=list)
    last_timestamp: int = 0
    last_offset: int = 0
    behind: int = 0


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """One question: messages of ``topic`` with ``key``, stored from ``begin`` to ``end`` (milliseconds)."""

    topic: str
    key: str
    kind: KeyKind
    begin: int
    end: int

    async def ask(
        self,
        index: MessageIndex,
        durable_offset: int,
        lookup: Callable[[int], Awaitable[bytes | None]],
        max_count: int,
        seconds: float,
        clock: Clock,
    ) -> QueryResult:
        """Find the newest ``max_count`` messages; waits for the index, and searches, for ``seconds`` at most.

        lookup  returns the sound and visible record at a physical offset
        raises  TimeoutError when the search takes longer; OSError when index or log cannot be read
        """
        deadline = Deadline(seconds, clock)
        await index.reach(durable_offset, deadline.remaining())
        while True:
            try:
                found = await self._find(index, lookup, max_count, deadline)
                break
            except DecodeError:
                # The file is gone, and what it held is indexed again.
                await index.reach(durable_offset, deadline.remaining())
        timestamp, offset = index.files.last_update
        records = [found[physical_offset] for physical_offset in sorted(found)]
        return QueryResult(records, timestamp, offset, max(durable_offset - max(index.position, 0), 0))

    async def _find(
        self, index: MessageIndex, lookup: Callable[[int], Awaitable[bytes | None]], max_count: int, deadline: Deadline
    ) -> dict[int, bytes]:
        text = f"{self.topic}#T#{self.key}" if self.kind is KeyKind.TAG else f"{self.topic}#{self.key}"
        number = key_hash(text.encode("utf-8", "replace"))
        out = array("q", bytes(8 * OFFSETS))
        seen: set[int] = set()
        found: dict[int, bytes] = {}
        size = 0
        cursor: Cursor | None = None
        while True:
            look = partial(index.files.find, number, self.begin, self.end, out, cursor)
            count, cursor = await index.run(look)
            for physical_offset in out[:count]:
                if len(found) >= max_count:
                    return found
                if physical_offset in seen:
                    continue
                seen.add(physical_offset)
                record = await lookup(physical_offset)
                if record is None or not self._matches(record):
                    continue
                size += len(record)
                if found and size > ANSWER_BYTES:
                    return found
                found[physical_offset] = record
            if cursor is None or len(found) >= max_count:
                return found
            if deadline.expired:
                raise TimeoutError(f"the search took longer than {deadline.timeout:g} s")
            await asyncio.sleep(0)

    def _matches(self, record: bytes) -> bool:
        """Whether a record is what is asked for."""
        table = Table(1, STORED_COLUMNS)
        scan_stored(record, 0, len(record), table.view)
        row = table.flat
        topic = record[row[TOPIC_START] : row[TOPIC_START] + row[TOPIC_LENGTH]]
        if topic != self.topic.encode("utf-8", "replace") or not self.begin <= row[STORE_TIMESTAMP] <= self.end:
            return False
        start = row[PROPERTIES_START]
        return self.kind.fits(decode_properties(record[start : start + row[PROPERTIES_LENGTH]]), self.key)
