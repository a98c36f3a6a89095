"""Delayed delivery by level (Java: ``ScheduleMessageService``, 5.5.0).

A delayed message lies in queue ``level - 1`` of SCHEDULE_TOPIC_XXXX and carries its real topic and queue as properties.
Messages of one level come due in the order in which they were stored, so each level is one position in one queue.

Time     A message that arrives while the service runs is due a delay later by the monotonic clock: no jump of the wall
         clock makes it early or late. One that lay there at the start is due when its queue says, by the wall clock of
         the start; where that clock had gone back, after its whole delay.
Once     A delivery holds where its message waited (``delivery.mark_of``). ``config/delayOffset.json`` says how far
         each level was at some end of the log. So the log behind that end tells, after any crash, which messages came
         since: none is lost, none comes twice.
Damage   What cannot be read or put is named, counted and passed over. A message whose place in its queue is damaged is
         whole in the log: its level waits while the store repairs the queue. Where that did not help, the message is
         passed over, and the position stays before it until a start has built the queue again.

File     ``config/delayOffset.json``: ``{"dataVersion", "offsetTable": {level: next queue offset}, "logOffset"}``.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rocketcore._fast.properties import decode_properties
from rocketcore._fast.record import delay_level
from rocketcore.broker.later.delivery import ERROR_SECONDS, InFlight, Outdated, Put, mark_of, put_delivery
from rocketcore.broker.record import RecordReader, StoredRecord
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.store import Cold, MessageStore, PutStatus, StoredMessage
from rocketcore.broker.store.log.record_head import RecordHead
from rocketcore.codes import SCHEDULE_TOPIC
from rocketcore.errors import RocketError, StoreCorrupted
from rocketcore.message import DELAY, REAL_QUEUE_ID, REAL_TOPIC
from rocketcore.protocol.bodies.stats import DelayOffsetSerializeWrapper
from rocketcore.protocol.bodies.topic import DataVersion
from rocketcore.service import SYSTEM_CLOCK, Clock, PeriodicTask

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1

_ARRIVAL_SECONDS = 0.05
"""Messages that arrive within this time of the first of them are due together, with the last."""

_LONGEST_MILLIS = 2 * 60 * 60 * 1000
"""The longest delay that a message may have been promised under other settings, as of RocketMQ's own levels: a queue
that says a later time is damaged, and its whole level would stand still until then."""

_MAX_PER_READ = 32
_LOG_BYTES_PER_SAVE = 64 << 20
"""Positions that stand still are saved again when the log has grown by this much: a start reads what came since."""


def schedule(message: StoredMessage, properties: dict[str, str], level_count: int) -> StoredMessage:
    """Return the message for the queue of its level, where it waits; its real place enters its properties.

    By a prepared transaction offset, which the commit of a half message brings, it would look like a delivery.
    """
    level = delay_level(properties[DELAY])
    if level > level_count:
        level = level_count
        properties[DELAY] = str(level)
    properties |= {REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(message.queue_id)}
    return replace(message, topic=SCHEDULE_TOPIC, queue_id=level - 1, prepared_transaction_offset=0)


@dataclass(slots=True)
class _Level:
    number: int
    delay: float
    """In seconds; for messages that arrive now."""
    in_flight: InFlight
    cursor: int = 0
    """Next queue offset to look at."""
    old_end: int = 0
    """Messages before this one were there at the start."""
    due_end: int = 0
    """Messages from ``old_end`` to this one are due."""
    arrivals: deque[tuple[float, int]] = field(default_factory=deque)
    """When messages arrived (monotonic), and the end of the queue after them; those before ``due_end`` are gone."""
    arrival_end: float = -math.inf
    """Until when what arrives belongs to the last of ``arrivals``."""
    repaired_for: int = -1
    """Queue offset that could not be read, so that a repair was waited for."""
    is_reading: bool = False
    """Whether it waits for the disk."""
    unread: tuple[int, int] | None = None
    """Queue offset of the first message that the next start is to try again, and from where on the log has deliveries
    of messages behind it."""
    next_due: float = -math.inf
    """Monotonic time before which there is nothing to do."""

    @property
    def queue_id(self) -> int:
        return self.number - 1

    @property
    def position(self) -> int:
        """Every message before this one is on disk in its real topic, or will never be."""
        first = self.in_flight.first
        position = self.cursor if first is None else min(self.cursor, first.queue_offset)
        return position if self.unread is None else min(position, self.unread[0])

    def arrived(self, end: int, now: float) -> None:
        """Note that the queue ends at ``end`` from now on."""
        if now < self.arrival_end:
            self.arrivals[-1] = now, end
            return
        self.arrival_end = now + _ARRIVAL_SECONDS
        self.arrivals.append((now, end))
        self.next_due = min(self.next_due, now + self.delay)

    def update_due_end(self, now: float) -> None:
        """Bring ``due_end`` up to date."""
        arrivals = self.arrivals
        while arrivals and arrivals[0][0] + self.delay <= now:
            self.due_end = arrivals.popleft()[1]
        if not arrivals:
            self.arrival_end = -math.inf


class DelayService:
    """Moves delayed messages to their real topics when they are due; driven by ``deliver_due``, every 100 ms.

    on_put   see ``InFlight``
    is_gone  (topic, physical offset): whether the topic was deleted after a message for it was stored there
    """

    def __init__(
        self,
        store: MessageStore,
        delay_levels: tuple[int, ...],
        file: JsonFile,
        *,
        on_put: Callable[[str, int, int, int, int], None],
        is_gone: Callable[[str, int], bool],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.skipped = 0
        """Messages passed over since the start."""
        self._store = store
        self.file = file
        self._on_put = on_put
        self._is_gone = is_gone
        self._clock = clock
        self._levels = {number: self._level(number, millis / 1000) for number, millis in enumerate(delay_levels, 1)}
        self._longest_millis = max((_LONGEST_MILLIS, *delay_levels))
        self._reader = RecordReader(_MAX_PER_READ)
        self._version = DataVersion()
        self._saved: list[int] = []
        self._saved_end = 0
        self._delivered: set[int] = set()
        self._log_offset = 0
        self._outdated = Outdated(file, self.encode_file, clock, "positions not saved, delayed messages wait for that")
        self._loaded_millis = 0
        self._loaded = 0.0
        self._stopped = False
        self._task = PeriodicTask("broker-delay", self.deliver_due, TICK_SECONDS)

    def _level(self, number: int, delay: float) -> _Level:
        return _Level(number, delay, InFlight(self._store, self._on_put, lambda: self._refill(number)))

    def _refill(self, number: int) -> None:
        if not self._stopped:
            self._deliver_level(self._levels[number])

    def load(self) -> None:
        """Read the positions, once the store is loaded, and bring them to where the log says that deliveries are.

        A level that the configuration no longer has stays as long as its queue: its messages come when they were to.
        """
        self._loaded_millis, self._loaded = self._clock.time_millis(), self._clock.monotonic()
        saved = self.file.load(_parse)
        table: Mapping[int, int] = {}
        self._log_offset = -1
        if saved is not None:
            wrapper, self._log_offset = saved
            table, self._version = wrapper.offset_table, wrapper.data_version
        longest = max((level.delay for level in self._levels.values()), default=0.0)
        for topic, queue_id in self._store.queues():
            if topic == SCHEDULE_TOPIC:
                self._levels.setdefault(queue_id + 1, self._level(queue_id + 1, longest))
        self._outdated.found = self._log_offset > self._store.max_physical_offset
        for level in self._levels.values():
            low, high = self._bounds(level)
            level.cursor = min(max(table.get(level.number, 0), low), high)
            level.old_end = level.due_end = high
            self._outdated.found = self._outdated.found or table.get(level.number, 0) > high
        self._find_deliveries()
        self._outdated.replace()

    def _find_deliveries(self) -> None:
        """Pass over what was delivered after the positions were saved."""
        waiting = [level for level in self._levels.values() if level.cursor < level.old_end]
        end = self._store.max_physical_offset
        if not 0 <= self._log_offset <= end:
            # Positions of Apache's, or a log that lost its end: a delivery lies behind the message that it delivers.
            self._log_offset = min((self._place_of(level) for level in waiting), default=end)
        if waiting and self._log_offset < end:
            self._delivered = self._store.deliveries(self._log_offset, by_level=True)
        for level in waiting:
            while self._delivered and self._pass_delivered(level):
                pass
        self._delivered = {mark for mark in self._delivered if self._still_waits(mark)}

    def _pass_delivered(self, level: _Level) -> bool:
        """Move the cursor past messages that were delivered before; False at the first that was not."""
        records = self._peek(level, _MAX_PER_READ)
        for record in records:
            if record.queue_offset != level.cursor or not self._came_before(record):
                return False
            level.cursor += 1
        return bool(records)

    def _still_waits(self, mark: int) -> bool:
        """Whether the message that was delivered lies behind its level's cursor, or may, so that it will be met."""
        try:
            record = self._store.lookup(mark - 1)
        except OSError:
            record = None
        if record is None:
            # Its place in its queue may be what is damaged: that is repaired, and the message is met then.
            return mark > self._store.min_physical_offset
        head = RecordHead.read(record)
        assert head is not None, "a sound record is longer"
        level = self._levels.get(head.queue_id + 1)
        return level is not None and head.queue_offset >= level.cursor

    def _came_before(self, record: StoredRecord) -> bool:
        """Whether a message was delivered before the start; asked once for each."""
        mark = mark_of(record)
        if mark not in self._delivered:
            return False
        self._delivered.discard(mark)
        return True

    def start(self) -> None:
        self._stopped = False
        self._task.start()

    async def stop(self) -> None:
        """Deliver nothing any more; what is on its way still counts when it is durable."""
        self._stopped = True
        await self._task.stop()

    def message_arrived(self, queue_id: int, end: int) -> None:
        """Note that the queue of a level has a new message and ends at ``end`` now."""
        level = self._levels.get(queue_id + 1)
        if level is not None:
            level.arrived(end, self._clock.monotonic())

    def positions(self) -> dict[int, tuple[int, int]]:
        """Level → (next message, end of its queue)."""
        return {level.number: (level.position, self._bounds(level)[1]) for level in self._levels.values()}

    def needed_from(self) -> int | None:
        """Return the physical offset of the first message that waits, None where none does.

        Where a place cannot be read now, all of the log counts as needed.
        """
        found = None
        for level in self._levels.values():
            position = level.position
            low, high = self._bounds(level)
            if max(position, low) < high:
                place = self._store.place(SCHEDULE_TOPIC, level.queue_id, max(position, low)) or 0
                found = place if found is None else min(found, place)
        return found

    def encode(self) -> bytes:
        """The positions as request 45 answers them."""
        table = {level.number: level.position for level in self._levels.values()}
        return DelayOffsetSerializeWrapper(table, self._version).encode()

    def encode_file(self) -> bytes:
        """The positions as the file holds them, with the end of the log up to which they are complete."""
        return b'%b,"logOffset":%d}' % (self.encode().rstrip()[:-1], self._complete_until())

    def _complete_until(self) -> int:
        """Return where the log begins that a start reads: every delivery before counts in the positions."""
        if self._delivered and any(level.position < level.old_end for level in self._levels.values()):
            return self._log_offset
        firsts = [level.in_flight.first for level in self._levels.values()]
        places = [first.result.physical_offset for first in firsts if first is not None]
        places += [level.unread[1] for level in self._levels.values() if level.unread is not None]
        return min(places, default=self._store.max_physical_offset)

    def take_changes(self) -> bool:
        """Say whether a position moved since the last call, or the log grew much while messages wait."""
        if self._outdated.found:
            return False
        positions = [level.position for level in self._levels.values()]
        end = self._store.max_physical_offset
        if positions == self._saved:
            waiting = any(level.position < self._bounds(level)[1] for level in self._levels.values())
            if not waiting or end - self._saved_end < _LOG_BYTES_PER_SAVE:
                return False
        self._saved, self._saved_end = positions, end
        self._version.next_version(self._clock.time_millis())
        return True

    def deliver_due(self) -> None:
        """Deliver what is due now in every level."""
        if not self._outdated.replace():
            return
        for level in self._levels.values():
            level.in_flight.forget_synced()
            self._deliver_level(level)

    def _bounds(self, level: _Level) -> tuple[int, int]:
        store = self._store
        return store.min_offset(SCHEDULE_TOPIC, level.queue_id), store.max_offset(SCHEDULE_TOPIC, level.queue_id)

    def _deliver_level(self, level: _Level) -> None:
        """Deliver what is due in a level; an error is the level's own."""
        now = self._clock.monotonic()
        if level.next_due > now or level.is_reading:
            return
        reads, owner = self._store.reads, _owner(level)
        try:
            level.update_due_end(now)
            while level.in_flight.has_room() and reads.now(owner, self._deliver_some, level, now):
                pass
        except Cold as cold:
            self._deliver_later(level, cold)
        except Exception as error:
            self._failed(level, error)

    def _deliver_later(self, level: _Level, cold: Cold) -> None:
        """Deliver on when what a level lacks is in memory."""
        level.is_reading = True
        resume = partial(self._resume_level, level)
        try:
            self._store.reads.later(_owner(level), cold, lambda: None, resume, partial(self._failed, level))
        except RocketError as error:
            self._failed(level, error)

    def _resume_level(self, level: _Level, _: None) -> None:
        level.is_reading = False
        if not self._stopped:
            self._deliver_level(level)

    def _failed(self, level: _Level, error: Exception) -> None:
        level.is_reading = False
        if self._stopped:
            return
        level.next_due = self._clock.monotonic() + ERROR_SECONDS
        logger.error(
            "delayed messages not delivered level=%d again_in=%gs", level.number, ERROR_SECONDS, exc_info=error
        )

    def _deliver_some(self, level: _Level, now: float) -> bool:
        """Deliver a few messages; False when the level has to wait."""
        if self._store.is_in_repair(SCHEDULE_TOPIC, level.queue_id):
            return False
        low, high = self._bounds(level)
        if level.cursor < low:
            logger.warning("delayed messages were deleted level=%d from=%d to=%d", level.number, level.cursor, low)
            level.cursor = low
        end = min(high, max(level.due_end, level.old_end))
        if level.cursor >= end:
            level.next_due = level.arrivals[0][0] + level.delay if level.arrivals else math.inf
            return False
        before = level.cursor
        puts: list[Put] = []
        try:
            for record in self._read(level, min(_MAX_PER_READ, end - before)):
                if record.queue_offset < level.old_end:
                    due = self._due_time(level, record)
                    if due > now:
                        level.next_due = due
                        return False
                self._pass_over(level, record.queue_offset - level.cursor, "damaged")
                if not self._deliver(level, record, puts):
                    return False
        finally:
            if puts:
                level.in_flight.add(puts)
        return level.cursor > before

    def _due_time(self, level: _Level, record: StoredRecord) -> float:
        """Return when a message is due that lay there at the start (monotonic)."""
        stored = record.store_timestamp
        due = self._store.tags_code(SCHEDULE_TOPIC, level.queue_id, record.queue_offset)
        if due is None or not stored <= due <= stored + self._longest_millis:
            due = stored + int(level.delay * 1000)
        # A message that seems to come from the future waits its whole delay: it cannot be older than the start.
        return self._loaded + max(min(due - self._loaded_millis, due - stored), 0) / 1000

    # Reading

    def _read(self, level: _Level, count: int) -> Sequence[StoredRecord]:
        """Return the next messages; none where the queue needs a repair first, or one was passed over."""
        try:
            records, end = self._records(level, count)
        except (RocketError, ValueError) as error:
            if count > 1:
                return self._read(level, 1)
            if isinstance(error, StoreCorrupted) and level.repaired_for != level.cursor:
                level.repaired_for = level.cursor
                return ()
            if isinstance(error, StoreCorrupted) and level.unread is None:
                is_old = level.cursor < level.old_end
                level.unread = level.cursor, self._log_offset if is_old else self._store.max_physical_offset
            self._pass_over(level, 1, str(error))
            return ()
        if not records:
            self._pass_over(level, end - level.cursor, "damaged")
        return records

    def _records(self, level: _Level, count: int) -> tuple[list[StoredRecord], int]:
        """Return messages from the cursor on, and the offset behind them.

        raises  StoreCorrupted, DecodeError, UnicodeDecodeError for one that cannot be read; OSError
        """
        found = self._store.get(SCHEDULE_TOPIC, level.queue_id, level.cursor, count)
        try:
            return list(self._reader.read(found.body)), found.next_begin_offset
        except UnicodeDecodeError as error:
            if count > 1:
                raise
            head = RecordHead.read(found.body)
            raise ValueError(f"the record at {head and head.physical_offset}: {error}") from error

    def _peek(self, level: _Level, count: int) -> list[StoredRecord]:
        """Return messages from the cursor on, none where they cannot be read."""
        try:
            return self._records(level, count)[0]
        except (RocketError, ValueError, OSError):
            return []

    def _place_of(self, level: _Level) -> int:
        """Return the physical offset of a level's next message, or the start of the log."""
        records = self._peek(level, 1)
        return records[0].physical_offset if records else 0

    def _pass_over(self, level: _Level, count: int, reason: str) -> None:
        """Move the cursor past messages that cannot be delivered."""
        if count <= 0:
            return
        self.skipped += count
        logger.error(
            "delayed messages passed over queue=%s/%d queue_offset=%d messages=%d reason=%s",
            *(SCHEDULE_TOPIC, level.queue_id, level.cursor, count, reason),
        )
        level.cursor += count

    # Delivering

    def _deliver(self, level: _Level, record: StoredRecord, puts: list[Put]) -> bool:
        """Put one due message where it belongs; False if the store takes nothing at the moment.

        The text of its properties stays as it is, DELAY, REAL_TOPIC and REAL_QID included, as upstream leaves it.
        """
        if self._came_before(record):
            level.cursor += 1
            return True
        message = record.message
        try:
            result = put_delivery(self._store, record, decode_properties(message.properties), self._is_gone)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            self._pass_over(level, 1, f"the record at {record.physical_offset}: {error!r}")
            return True
        if result.status is not PutStatus.PUT_OK:
            return False
        puts.append(Put(record.queue_offset, message.topic, message.queue_id, result))
        level.cursor += 1
        return True


def _owner(level: _Level) -> tuple[str, int]:
    """Whose reads those of a level are (``ColdReads``)."""
    return "delay", level.number


def _parse(text: dict[str, Any]) -> tuple[DelayOffsetSerializeWrapper, int]:
    """Return the positions of a file, and the end of the log that they are for, -1 where it does not say."""
    log_offset = text.pop("logOffset", -1)
    if not isinstance(log_offset, int):
        raise ValueError(f"logOffset {log_offset!r}")
    return DelayOffsetSerializeWrapper.from_json(text), log_offset
