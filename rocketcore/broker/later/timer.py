"""Delivery at a time (Java: ``TimerMessageStore``, 5.5.0, whose wheel is a heap in memory here).

A message that asks for a time lies in queue 0 of rmq_sys_wheel_timer and carries its real topic and queue, and the
second in which it leaves, as properties (``store/timed.py``). So Apache's broker, that opens the store, can go on.

Pending  16 bytes of memory each (``_fast/timer_heap.pyx``), ``timerMaxPendingMessages`` at most. A start makes them of
         the units of the queue, and reads no message for that.
Time     A message that asks for a delay and arrives while the service runs is due by the monotonic clock: no jump of
         the wall clock makes it early or late. All others are due by the wall clock. None comes before its time.
Once     A delivery holds where its message waited (``delivery.mark_of``), and ``config/timerOffset.json`` what is
         delivered (``timer_progress``). So none is lost and none comes twice, after any crash.
Recall   A message of its own takes another one back (``TIMER_DEL_UNIQKEY``): it names it, and is due before any other
         of the same second.
Damage   As of delay levels: what cannot be read or put is named, counted and passed over. The rest goes on.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rocketcore._fast.consume_queue import UNIT_SIZE, unit
from rocketcore._fast.properties import decode_properties, encode_properties
from rocketcore._fast.timer_heap import TimerHeap, timer_code_due
from rocketcore.broker.later.delivery import (
    ERROR_SECONDS,
    InFlight,
    Outdated,
    Put,
    Undeliverable,
    mark_of,
    put_delivery,
)
from rocketcore.broker.later.timer_progress import Progress, Saved, parse
from rocketcore.broker.later.timer_schedule import delete_key, schedule
from rocketcore.broker.record import RecordReader, StoredRecord
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.stats import Totals
from rocketcore.broker.store import Cold, MessageStore, PutResult, PutStatus, StoredMessage
from rocketcore.broker.store.queues.consume_queue import is_blank
from rocketcore.broker.store.timed import asked_time, timer_due, timer_out
from rocketcore.broker.store.writing.appender import PROPERTIES_MAX_BYTES
from rocketcore.codes import TIMER_TOPIC, ResponseCode
from rocketcore.errors import BrokerError, RocketError, StoreCorrupted
from rocketcore.message import (
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
)
from rocketcore.service import SYSTEM_CLOCK, Clock, PeriodicTask

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1

_MAX_PER_READ = 32
_READS_PER_TURN = 16
"""So that the loop is away for some ten milliseconds; the rest follows when this is stored."""
_MAX_RESTING = 1024
_LOG_BYTES_PER_SAVE = 64 << 20
_UNITS_PER_READ = 1 << 16
_ROOM = 128
"""Bytes of properties that a delivery and the store may add."""

_OWNER = "timer"
"""Whose reads these are (``ColdReads``)."""


class _Waiting(NamedTuple):
    """A message that is due: no later than ``low`` says its unit, and whether it asked for a delay."""

    low: int
    queue_offset: int
    is_delay: bool


class TimerService:
    """Moves messages to their real topics when it is time; driven by ``deliver_due``, every 100 ms.

    on_put   see ``InFlight``
    totals   where it is counted what begins to wait and what is delivered
    is_gone  (topic, physical offset): whether the topic was deleted after a message for it was stored there
    """

    def __init__(
        self,
        store: MessageStore,
        file: JsonFile,
        *,
        on_put: Callable[[str, int, int, int, int], None],
        is_gone: Callable[[str, int], bool],
        totals: Totals | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.skipped = 0
        """Messages passed over since the start."""
        self.recalled = 0
        """Messages that were taken back, since the start."""
        self.file = file
        self._store = store
        self._is_gone = is_gone
        self._clock = clock
        self._reader = RecordReader(_MAX_PER_READ)
        self._times = TimerHeap()
        """By the wall clock, as the units say."""
        self._delays = TimerHeap()
        """By the monotonic clock, in milliseconds."""
        self._delays_from = 0
        """What the units of ``_delays`` say is at least this more than their time by the monotonic clock."""
        self._deadlines: dict[int, int] = {}
        """Queue offset → time by the monotonic clock, of delays that are on their way to the disk."""
        self._end = 0
        """Queue offset of what arrives next."""
        self._hand: deque[_Waiting] = deque()
        """Due, and delivered next."""
        self._resting: list[tuple[float, _Waiting]] = []
        """Could not be read; when they are tried again (monotonic)."""
        self._unread: _Waiting | None = None
        """The first that could not be read though its queue was repaired: the next start tries it again."""
        self._repaired_for = -1
        self._totals = totals or Totals()
        self._on_put = on_put
        self._in_flight = InFlight(store, self._came, self._refill)
        self._is_reading = False
        self._rests_until = -math.inf
        self._recalls: dict[int, set[str]] = {}
        """TIMER_OUT_MS → keys of messages that were taken back."""
        self._loaded = Saved()
        self._progress = Progress()
        self._delivered: set[int] = set()
        self._outdated = Outdated(file, self.encode_file, clock, "times not saved, messages wait for that")
        self._written = -1, 0
        self._stopped = False
        self._task = PeriodicTask("broker-timer", self.deliver_due, TICK_SECONDS)

    # ------------------------------------------------------------------ start

    def load(self) -> None:
        """Find what waits, once the store is loaded."""
        store = self._store
        low, high = store.min_offset(TIMER_TOPIC, 0), store.max_offset(TIMER_TOPIC, 0)
        end = store.max_physical_offset
        saved = self.file.load(parse) or Saved()
        self._outdated.found = saved.log_offset > end or saved.before > high
        first = max(low, min(saved.first, high))
        log_offset = saved.log_offset
        if not 0 <= log_offset <= end:
            # No file, or a log that lost its end: a delivery lies behind the message that it delivers.
            log_offset = store.place(TIMER_TOPIC, 0, first) or 0
        self._loaded = Saved(saved.until, min(saved.before, high), first, log_offset)
        self._progress.begin(self._loaded)
        self._delivered = store.deliveries(log_offset, by_level=False) if first < high and log_offset < end else set()
        if not self._find_waiting(first, high):
            # All units are sound, so what is left is no delivery of a message that waits.
            self._delivered = set()
        self._end = high
        self._outdated.replace()

    def _find_waiting(self, first: int, end: int) -> int:
        """Take the units of a part of the queue for what waits; returns how many cannot be right."""
        wrong, last_due = 0, -1
        latest = self._clock.time_millis() + self._store.config.timer_max_delay_sec * 1000
        while first < end:
            try:
                units = self._store.units(TIMER_TOPIC, 0, first, min(_UNITS_PER_READ, end - first))
            except OSError as error:
                logger.error("queue of the timer not read queue_offset=%d reason=%s", first, error)
                units = b""
            if units:
                saved = self._loaded
                result = self._times.push_units(units, first, saved.until, saved.before, latest, self._delivered)
                wrong += result[0]
                last_due = max(last_due, result[1])
            else:
                self._times.push(0, first)
                wrong += 1
            first += len(units) // UNIT_SIZE or 1
        if last_due >= 0:
            self._progress.delivered(last_due, self._loaded.log_offset)
        return wrong

    def start(self) -> None:
        self._stopped = False
        self._task.start()

    async def stop(self) -> None:
        """Deliver nothing any more; what is on its way still counts when it is durable."""
        self._stopped = True
        await self._task.stop()

    # ------------------------------------------------------------------ what waits

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._times) + len(self._delays) + len(self._hand) + len(self._resting)

    def schedule(self, message: StoredMessage, properties: dict[str, str]) -> StoredMessage:
        """Return the message for where it waits, or itself where it is to be stored at once; see ``schedule``.

        raises  BrokerError where it asks for what it does not get
        """
        config = self._store.config
        if not config.timer_wheel_enable and TIMER_OUT_MS not in properties:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        waiting = schedule(message, properties, self._clock.time_millis(), config.timer_max_delay_sec)
        if waiting is None:
            return message
        if len(self) >= config.timer_max_pending_messages:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, {config.timer_max_pending_messages} messages wait already "
                "(timerMaxPendingMessages)",
            )
        return waiting

    def was_put(self, result: PutResult, properties: dict[str, str]) -> None:
        """Note a message that ``schedule`` made and the store took."""
        if TIMER_DEL_UNIQKEY in properties:
            # Now, as the message that it takes back may be due by another clock.
            self._recall(int(properties[TIMER_OUT_MS]), properties[TIMER_DEL_UNIQKEY])
        elif TIMER_DELAY_SEC in properties or TIMER_DELAY_MS in properties:
            delay = asked_time(properties, 0) or 0
            self._deadlines[result.queue_offset] = math.ceil(self._clock.monotonic() * 1000) + delay

    def message_arrived(self, queue_id: int, end: int) -> None:
        """Note that the queue has new messages and ends at ``end`` now."""
        while queue_id == 0 and self._end < end:
            units = self._store.units(TIMER_TOPIC, 0, self._end, end - self._end)
            assert units, "what arrives is in memory"
            for index in range(len(units) // UNIT_SIZE):
                physical_offset, size, code = unit(units, index)
                if not is_blank(physical_offset, size):
                    # One that says no time is due now: what it is will be seen.
                    self._arrived(self._end, max(timer_code_due(code, physical_offset, size), 0))
                self._end += 1

    def _arrived(self, queue_offset: int, due: int) -> None:
        self._totals.timer_enqueued += 1
        deadline = self._deadlines.pop(queue_offset, None)
        if deadline is None:
            self._times.push(due, queue_offset)
            return
        ahead = due - deadline
        self._delays_from = min(self._delays_from, ahead) if len(self._delays) else ahead
        self._delays.push(deadline, queue_offset)

    def _came(self, topic: str, messages: int, size: int, times: int, queue_id: int) -> None:
        self._totals.timer_dequeued += messages
        self._on_put(topic, messages, size, times, queue_id)

    def _recall(self, out: int, key: str) -> None:
        self._recalls.setdefault(out, set()).add(key)

    def needed_from(self) -> int | None:
        """Return the physical offset of the first message that waits, None where none does.

        Where a place cannot be read now, all of the log counts as needed.
        """
        first = self._first()
        return None if first is None else self._store.place(TIMER_TOPIC, 0, first) or 0

    def _first(self) -> int | None:
        """Return the lowest queue offset of a message that waits or is on its way."""
        offsets = [offset for heap in (self._times, self._delays) if (offset := heap.lowest_offset()) is not None]
        offsets += [waiting.queue_offset for waiting in self._held()]
        offsets += [put.queue_offset for put in self._in_flight]
        return min(offsets, default=None)

    def _held(self) -> Iterable[_Waiting]:
        """Return those that are in neither heap."""
        yield from self._hand
        for _, waiting in self._resting:
            yield waiting
        if self._unread is not None:
            yield self._unread

    def behind(self) -> int:
        """Return by how many milliseconds the next message is late; 0 where none is."""
        first = self._times.first_due()
        return 0 if first is None else max(0, self._clock.time_millis() - first)

    # ------------------------------------------------------------------ what is saved

    def _advance(self) -> Saved:
        """Return what can be said now of what is delivered."""
        # What arrives later is due later than now.
        lows = [self._clock.time_millis(), *(waiting.low for waiting in self._held())]
        lows += [put.due for put in self._in_flight]
        for heap, ahead in ((self._times, 0), (self._delays, self._delays_from)):
            due = heap.first_due()
            if due is not None:
                lows.append(due + ahead)
        until = timer_out(min(lows))
        self._recalls = {out: keys for out, keys in self._recalls.items() if out >= until}
        return self._progress.advance(until, self._first(), self._end, self._store.max_physical_offset)

    def encode_file(self) -> bytes:
        """What the file says."""
        return self._advance().encode()

    def take_changes(self) -> bool:
        """Say whether more is delivered than at the last call, or the log grew much."""
        if self._outdated.found:
            return False
        until, end = self._advance().until, self._store.max_physical_offset
        if until == self._written[0] and end - self._written[1] < _LOG_BYTES_PER_SAVE:
            return False
        self._written = until, end
        return True

    # ------------------------------------------------------------------ delivering

    def deliver_due(self) -> None:
        """Deliver what is due now."""
        if not self._outdated.replace():
            return
        self._in_flight.forget_synced()
        self._deliver_all()

    def _deliver_all(self) -> None:
        now = self._clock.monotonic()
        if self._is_reading or now < self._rests_until:
            return
        try:
            for _ in range(_READS_PER_TURN):
                if not self._in_flight.has_room() or not self._take_due_messages():
                    return
                if not self._store.reads.now(_OWNER, self._deliver_some):
                    return
            self._in_flight.go_on_later()
        except Cold as cold:
            self._is_reading = True
            try:
                self._store.reads.later(_OWNER, cold, lambda: None, self._resume_delivery, self._failed)
            except RocketError as error:
                self._failed(error)
        except Exception as error:
            self._failed(error)

    def _refill(self) -> None:
        if not self._stopped:
            self._deliver_all()

    def _resume_delivery(self, _: None) -> None:
        self._is_reading = False
        self._refill()

    def _failed(self, error: Exception) -> None:
        self._is_reading = False
        if self._stopped:
            return
        self._rests_until = self._clock.monotonic() + ERROR_SECONDS
        logger.error("messages for a time not delivered again_in=%gs", ERROR_SECONDS, exc_info=error)

    def _take_due_messages(self) -> bool:
        """Have some messages that are due in hand; whether there are any."""
        if self._hand:
            return True
        now = self._clock.monotonic()
        if self._resting:
            self._hand.extend(waiting for again, waiting in self._resting[:_MAX_PER_READ] if again <= now)
            del self._resting[: len(self._hand)]
        for due, queue_offset in self._times.pop_due(self._clock.time_millis(), _MAX_PER_READ - len(self._hand)):
            self._hand.append(_Waiting(due, queue_offset, is_delay=False))
        ahead = self._delays_from
        for due, queue_offset in self._delays.pop_due(int(now * 1000), _MAX_PER_READ - len(self._hand)):
            self._hand.append(_Waiting(due + ahead, queue_offset, is_delay=True))
        return bool(self._hand)

    def _deliver_some(self) -> bool:
        """Deliver what is in hand; False where that has to wait."""
        if self._store.is_in_repair(TIMER_TOPIC, 0):
            return False
        records = self._read(sorted(waiting.queue_offset for waiting in self._hand))
        if records is None:
            return False
        puts: list[Put] = []
        try:
            while self._hand:
                waiting = self._hand[0]
                record = records.get(waiting.queue_offset)
                if isinstance(record, OSError):
                    self._rest(waiting, record)
                elif not isinstance(record, StoredRecord):
                    self._pass_over(waiting.queue_offset, record or "damaged")
                elif not self._deliver(waiting, record, puts):
                    return False
                self._hand.popleft()
        finally:
            if puts:
                for put in puts:
                    self._progress.delivered(put.due, put.result.physical_offset)
                self._in_flight.add(puts)
        return True

    def _rest(self, waiting: _Waiting, error: OSError) -> None:
        """Try a message again later, and others meanwhile; raises the error where too many rest."""
        if len(self._resting) >= _MAX_RESTING:
            raise error
        logger.error(
            "message for a time not read queue_offset=%d again_in=%gs reason=%s",
            *(waiting.queue_offset, ERROR_SECONDS, error),
        )
        self._resting.append((self._clock.monotonic() + ERROR_SECONDS, waiting))

    def _read(self, offsets: Sequence[int]) -> dict[int, StoredRecord | OSError | str] | None:
        """Return the messages at queue offsets, ascending, or why one is not to be had; what is damaged is left out.

        returns  None where the queue is repaired first
        """
        found: dict[int, StoredRecord | OSError | str] = {}
        at = 0
        while at < len(offsets):
            count = 1
            while at + count < len(offsets) and offsets[at + count] == offsets[at] + count:
                count += 1
            if not self._read_run(offsets[at], offsets[at] + count, found):
                return None
            at += count
        return found

    def _read_run(self, first: int, end: int, found: dict[int, StoredRecord | OSError | str]) -> bool:
        """Read messages that lie next to each other; False where the queue is repaired first."""
        while first < end:
            try:
                result = self._store.get(TIMER_TOPIC, 0, first, end - first)
                found.update((record.queue_offset, record) for record in self._reader.read(result.body))
                first = max(result.next_begin_offset, first + 1)
                continue
            except OSError as error:
                reason: OSError | str = error
            except (RocketError, ValueError) as error:
                reason = str(error)
                if isinstance(error, StoreCorrupted) and end - first == 1 and not self._was_repaired(first):
                    return False
            if end - first == 1:
                found[first] = reason
                first = end
            else:
                # One after the other: each has a fault of its own, or none.
                for queue_offset in range(first, end):
                    if not self._read_run(queue_offset, queue_offset + 1, found):
                        return False
                first = end
        return True

    def _was_repaired(self, queue_offset: int) -> bool:
        """Whether a repair of the queue did not help a message; False has it waited for."""
        if self._repaired_for != queue_offset:
            self._repaired_for = queue_offset
            return False
        if self._unread is None:
            self._unread = next(waiting for waiting in self._hand if waiting.queue_offset == queue_offset)
        return True

    def _pass_over(self, queue_offset: int, reason: str) -> None:
        """Name a message that cannot be delivered."""
        self.skipped += 1
        logger.error("message for a time passed over queue_offset=%d reason=%s", queue_offset, reason)

    def _deliver(self, waiting: _Waiting, record: StoredRecord, puts: list[Put]) -> bool:
        """Put one message where it belongs, if it is due; False if the store takes nothing at the moment.

        The text of its properties keeps all that it says, as upstream leaves it.
        """
        message = record.message
        properties = decode_properties(message.properties)
        due = timer_due(properties, record.store_timestamp)
        if due is None:
            self._pass_over(record.queue_offset, f"its TIMER_OUT_MS is {properties.get(TIMER_OUT_MS)!r}")
            return True
        if self._came_before(record, due):
            return True
        now = self._clock.time_millis()
        if due > now and not waiting.is_delay:
            self._times.push(due, record.queue_offset)
            return True
        out = timer_out(due)
        if TIMER_DEL_UNIQKEY in properties:
            self._recall(out, properties[TIMER_DEL_UNIQKEY])
            return True
        if delete_key(properties.get(REAL_TOPIC, ""), properties.get(UNIQ_KEY, "")) in self._recalls.get(out, ()):
            self.recalled += 1
            return True
        if len(message.properties) + _ROOM <= PROPERTIES_MAX_BYTES:
            told = {TIMER_ENQUEUE_MS: str(record.store_timestamp), TIMER_DEQUEUE_MS: str(now)}
            message.properties = encode_properties(properties | told)
        try:
            result = put_delivery(self._store, record, properties, self._is_gone)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, Undeliverable) else repr(error)
            self._pass_over(record.queue_offset, f"the record at {record.physical_offset}: {reason}")
            return True
        if result.status is not PutStatus.PUT_OK:
            return False
        puts.append(Put(record.queue_offset, message.topic, message.queue_id, result, due))
        return True

    def _came_before(self, record: StoredRecord, due: int) -> bool:
        """Whether a message was delivered before the start; asked once for each."""
        mark = mark_of(record)
        if mark in self._delivered:
            self._delivered.discard(mark)
            return True
        return record.queue_offset < self._loaded.before and due <= self._loaded.until
