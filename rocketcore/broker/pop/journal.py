"""What changes in the table of popped messages, kept in the log: queue 0 of ``rmq_sys_REVIVE_LOG_<cluster>``.

A record's body is the JSON of entries (``pop/state.py``). An answer to a POP or to an acknowledgement leaves when
its record counts as stored, so a start that reads the records knows all that a client was told.

A message that comes again is put into its retry topic in the step of the loop in which its ``revive`` entry is put,
right behind it. A crash may cut the log between the two, and nothing else lies behind the entry then: only the last
record of the queue can tell of a message that is not there. The start takes that back, by its first record.

File  ``config/popState.json``: ``{"journalOffset", "entries"}``, the table as it was at an offset of the queue, written
      every minute, so that a start reads what came since; older records may go with their files. It is made in slices
      while the table changes: of a queue that was looked at later, the first records since say once more what the file
      says already. What becomes of a message is what the last entry about it says, so that changes nothing. A topic
      that was deleted behind the last record before that offset is passed over: what is new of its name came later.

Java's brokers keep messages ``ck`` and ``ack`` in the eight queues of this topic; theirs and ours pass each other over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from rocketcore.broker.pop.state import Entry, PopState
from rocketcore.broker.record import RecordReader
from rocketcore.broker.state.json_file import JsonFile, StateWriter
from rocketcore.broker.store import MessageStore, PutResult, PutStatus, StoredMessage
from rocketcore.errors import RocketError
from rocketcore.service import SYSTEM_CLOCK, Clock

__all__ = ["PopJournal"]

logger = logging.getLogger(__name__)

_KINDS = frozenset({"pop", "order", "ack", "hide", "revive", "next", "reset", "drop"})
_TAGS = b"TAGS\x01rc\x02"
_MAX_PER_READ = 32
_SYNC_SECONDS = 0.1
_ENTRIES_AT_ONCE = 256
_PAUSE = partial(asyncio.sleep, 0)


class PopJournal:
    """Puts entries and applies them; loop thread only."""

    def __init__(
        self,
        store: MessageStore,
        state: PopState,
        topic: str,
        file: JsonFile,
        writer: StateWriter,
        *,
        clock: Clock = SYSTEM_CLOCK,
        step: Callable[[], Awaitable[None]] = _PAUSE,
    ) -> None:
        self.topic = topic
        self.skipped = 0
        """Records that a start could not read."""
        self.end_offset = 0
        """Where the last record of this run ends in the log."""
        self._store = store
        self._state = state
        self._file = file
        self._writer = writer
        self._clock = clock
        self._owed: list[Entry] = []
        """What is applied and not put: first in the next record. Mostly it takes back entries of a message that did not
        get to its retry topic."""
        self._saved = 0
        self._needed = 0
        self._step = step

    # ------------------------------------------------------------------ start

    def load(self) -> None:
        """Make the table of what was saved and of the records since; raises OSError where it cannot be saved anew."""
        saved = self._file.load(_parse)
        begin, entries = saved if saved is not None else (0, [])
        low, high = self._store.min_offset(self.topic, 0), self._store.max_offset(self.topic, 0)
        told_until = self._place_before(min(begin, high), low)
        for entry in entries:
            if not self._store.is_deleted(entry[1], told_until):
                self._state.apply(entry)
        self._saved = self._needed = min(begin, high)
        if begin > high:
            # The log lost its end. New records will have the offsets that were noted, and must not be passed over.
            logger.error("journal of popped messages lost its end topic=%s noted=%d end=%d", self.topic, begin, high)
            self._file.save(self._encode())
        if begin < low and saved is not None:
            logger.error("journal of popped messages begins late topic=%s noted=%d begin=%d", self.topic, begin, low)
        self._replay(max(min(begin, high), low), high)

    def _place_before(self, offset: int, low: int) -> int:
        """Return the physical offset of the last record before one; where retention took it, of what is left."""
        if offset <= low:
            return self._store.min_physical_offset
        place = self._store.place(self.topic, 0, offset - 1)
        return self._store.max_physical_offset if place is None else place  # not known: nothing was deleted behind it

    def _replay(self, begin: int, end: int) -> None:
        reader = RecordReader(_MAX_PER_READ)
        last: tuple[Entry, Entry] | None = None
        offset = begin
        while offset < end:
            try:
                found = self._store.get(self.topic, 0, offset, _MAX_PER_READ)
                records = list(reader.read(found.body))
            except (RocketError, OSError) as error:
                self._skip(offset, error)
                offset += 1
                continue
            for record in records:
                if record.message.properties.startswith(_TAGS):
                    try:
                        last = self._replay_record(bytes(record.message.body), record.physical_offset)
                    except (ValueError, TypeError, LookupError, AttributeError, msgspec.MsgspecError) as error:
                        # Of another version, or another program's: it says nothing that can be believed.
                        self._skip(record.queue_offset, error)
            offset = max(found.next_begin_offset, offset + 1)
        if last is not None:
            (*_, retry_topic, retry_queue, retry_offset), undo = last
            if self._store.max_offset(retry_topic, retry_queue) <= retry_offset:
                self.take_back(undo)

    def _skip(self, offset: int, error: Exception) -> None:
        self.skipped += 1
        logger.error("record of popped messages not read topic=%s offset=%d reason=%r", self.topic, offset, error)

    def _replay_record(self, body: bytes, physical_offset: int) -> tuple[Entry, Entry] | None:
        """Apply the entries of a record; return one that revives, and what takes it back."""
        revived = None
        for entry in msgspec.json.decode(body):
            if self._store.is_deleted(entry[1], physical_offset):
                continue
            if entry[0] == "revive":
                queue = self._state.find(*entry[1:4])
                before = None if queue is None else queue.in_flight.get(entry[4])
                if before is not None:
                    revived = entry, ["hide", *entry[1:5], before.pop_time, before.invisible, before.suspended]
            self._state.apply(entry)
        return revived

    def settle(self) -> None:
        """Put what is owed: at the start before anything else is, later as soon as the store takes it."""
        if self._owed:
            self._put()

    # ------------------------------------------------------------------ entries

    def put(self, *entries: Entry) -> PutResult:
        """Put entries as one record and, where the store takes it, apply them; with another status nothing changed."""
        result = self._put(*entries)
        if result.status is PutStatus.PUT_OK:
            for entry in entries:
                self._state.apply(entry)
        return result

    def take_back(self, entry: Entry) -> None:
        """Apply an entry that the store did not take, or that undoes the last one; have it put before any other."""
        self._state.apply(entry)
        self._owed.append(entry)

    def _put(self, *entries: Entry) -> PutResult:
        while len(self._owed) > _ENTRIES_AT_ONCE:  # more than fit into a record may be: topics deleted on a full disk
            result = self._put_record(self._owed[:_ENTRIES_AT_ONCE])
            if result.status is not PutStatus.PUT_OK:
                return result
            del self._owed[:_ENTRIES_AT_ONCE]
        result = self._put_record([*self._owed, *entries])
        if result.status is PutStatus.PUT_OK:
            self._owed.clear()
        return result

    def _put_record(self, entries: list[Entry]) -> PutResult:
        body = msgspec.json.encode(entries)
        now = self._clock.time_millis()
        message = StoredMessage(topic=self.topic, queue_id=0, body=body, properties=_TAGS, born_timestamp=now)
        result = self._store.put(message)
        if result.status is PutStatus.PUT_OK:
            self.end_offset = result.end_offset
        return result

    # ------------------------------------------------------------------ saving

    async def save(self) -> None:
        """Save the table, where it changed, when everything that it tells of is on disk."""
        store = self._store
        offset = store.next_offset(self.topic, 0)
        if offset == self._saved or store.read_only_reason is not None:
            return
        text = await self._encode_in_slices(offset)
        end = store.max_physical_offset
        while store.synced_offset < end:
            if store.read_only_reason is not None:
                return
            await asyncio.sleep(_SYNC_SECONDS)
        self._writer.save(self._file, lambda: text)
        try:
            await self._writer.flushed()
        except OSError:
            return  # the writer has told, and tries again
        # The generation before this one is the spare: what it needs stays.
        self._needed, self._saved = self._saved, offset

    def needed_from(self) -> int | None:
        """Return the physical offset of the first record that a start may read, None where there is none.

        Where its place cannot be read now, all of the log counts as needed.
        """
        first = max(self._needed, self._store.min_offset(self.topic, 0))
        return self._store.place(self.topic, 0, first) or 0 if first < self._store.max_offset(self.topic, 0) else None

    async def _encode_in_slices(self, offset: int) -> bytes:
        """Return the table as it is from an offset on, or later; it changes meanwhile."""
        parts: list[bytes] = []
        some: list[Entry] = []
        for key in list(self._state.queues):
            some += self._state.entries_of(key)
            await self._step()
            for first in range(0, len(some) - _ENTRIES_AT_ONCE + 1, _ENTRIES_AT_ONCE):
                parts.append(_listed(some[first : first + _ENTRIES_AT_ONCE]))
                await self._step()
            del some[: len(some) - len(some) % _ENTRIES_AT_ONCE]
        if some:
            parts.append(_listed(some))
        return _text(offset, parts)

    def _encode(self) -> bytes:
        return _text(self._store.next_offset(self.topic, 0), [_listed(list(self._state.entries()))])


def _listed(entries: list[Entry]) -> bytes:
    """Return entries as they stand in the file's list, without its brackets."""
    return msgspec.json.encode(entries)[1:-1]


def _text(offset: int, parts: list[bytes]) -> bytes:
    """Return the file's text, of parts that are not empty or of one."""
    return b'{"journalOffset":%d,"entries":[%b]}' % (offset, b",".join(parts))


def _parse(text: dict[str, Any]) -> tuple[int, list[Entry]]:
    offset, entries = text.get("journalOffset"), text.get("entries")
    if not isinstance(offset, int) or not isinstance(entries, list):
        raise ValueError("popState.json has no journalOffset or no entries")
    if any(not isinstance(entry, list) or not entry or entry[0] not in _KINDS for entry in entries):
        raise ValueError("popState.json has an entry of no known kind")
    return offset, entries
