"""Transactions: half messages, and how each ends.

Java: ``TransactionalMessageServiceImpl``, ``TransactionalMessageBridge`` (5.5.0).

Half   A message that is part of a transaction is stored in RMQ_SYS_TRANS_HALF_TOPIC, where no consumer sees it. A
       commit stores it again where it is for, through admission, so that it may ask for a delay there.
Op     Either is followed by an op message, in RMQ_SYS_TRANS_OP_HALF_TOPIC: tags ``d``, and as body the queue offsets of
       half messages that need no decision any more, joined by commas. What ended in one turn of the loop shares one;
       what was only moved to the end of its queue is in others, whose property ``RC_MOVED`` says so.
       Commit and op message are put together, so that they are one write to the log: only a crash of the disk that
       tears it keeps the first alone, and then the producer is asked again.
Start  Positions are offsets of the group CID_RMQ_SYS_TRANS in both topics, as Apache keeps them. What lies behind them
       is read once the broker runs; a decision that comes before that waits for it.

A decision that comes twice stores nothing twice while the outcome is known: from the first undecided message on, and of
the last ``REMEMBERED`` that their producers were asked about. Beyond that it does what Apache does: a commit stores
again. Who asks producers is ``TransactionCheck``.

How old a half message is counts from when this broker stored it, by its monotonic clock: neither a producer's clock nor
one that is set changes it. Of messages from before the start the wall clock says how old they were then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Final, NamedTuple

from rocketcore._fast.properties import decode_properties, encode_properties
from rocketcore.broker.admission import Admission
from rocketcore.broker.context import BrokerContext
from rocketcore.broker.record import RecordReader, StoredRecord
from rocketcore.broker.store import PutResult, PutStatus, StoredMessage
from rocketcore.broker.transactions.arrivals import Arrivals
from rocketcore.broker.transactions.half_messages import HalfMessages, HalfState, OpMessages, op_body, read_op_body
from rocketcore.codes import (
    OVERLOAD,
    TRANS_GROUP,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_MASK,
    MessageSysFlag,
    ResponseCode,
)
from rocketcore.errors import BrokerError
from rocketcore.message import (
    CHECK_IMMUNITY_TIME,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAGS,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    TRANSACTION_PREPARED_QUEUE_OFFSET,
    UNIQ_KEY,
)
from rocketcore.protocol.headers.message import EndTransactionRequestHeader

logger = logging.getLogger(__name__)

QUEUE: Final = 0
"""The only queue of both topics."""
LOAD_SECONDS: Final = 3.0
"""How long a decision waits for a broker that has just started (Java: ``waitTimeMillsInTransactionQueue``)."""

_OP_BYTES: Final = 4096
_READ: Final = 256
_OWNER: Final = "transactions"
_MOVED: Final = "RC_MOVED"
"""Property of an op message that decides nothing: its half messages go on under other offsets. Apache's never do."""

_OP_PROPERTIES: Final = encode_properties({TAGS: "d"})
_MOVED_PROPERTIES: Final = encode_properties({TAGS: "d", _MOVED: "true"})


class RealPlace(NamedTuple):
    """Where a half message is for."""

    topic: str
    queue_id: int


class _Ending(NamedTuple):
    """A decision that is carried out at the end of this turn of the loop.

    message  what a commit stores; None for a rollback
    """

    queue_offset: int
    first: int
    state: HalfState
    message: StoredMessage | None
    properties: dict[str, str]
    outcome: asyncio.Future[None]


class TransactionService:
    """Stores half messages, commits them and rolls them back. Loop thread only.

    is_gone  (topic, physical offset): whether the topic was deleted after a message for it was stored there
    """

    def __init__(self, context: BrokerContext, admission: Admission, is_gone: Callable[[str, int], bool]) -> None:
        self.halves = HalfMessages()
        self._ops = OpMessages()
        self._context = context
        self._admission = admission
        self._is_gone = is_gone
        self._reader = RecordReader(_READ)
        self._loaded = asyncio.Event()
        self._pending: list[_Ending] = []
        self._unwritten: list[int] = []
        """Half messages that need no decision any more, of which no op message says so yet."""
        self._moved: list[int] = []
        """The same of those that go on under other offsets."""
        self._positions = 0, 0
        self._arrivals = Arrivals()
        self._stored_before: dict[int, float] = {}
        """First offset → monotonic seconds at which a message was stored that lay there at the start, and was moved."""
        self._began_millis, self._began = 0, 0.0
        self._old_end = 0
        """Messages before this offset lay there at the start."""
        self._settling: tuple[int, int, int] | None = None
        """Positions that count once the log is on disk up to the third number."""

    # ------------------------------------------------------------------ start

    def load(self) -> bool:
        """Take over the positions, once the store is loaded; whether they said more than the store holds.

        Then they are to be saved before a message is stored: the queues will grow past them.
        """
        clock = self._context.clock
        self._began_millis, self._began = clock.time_millis(), clock.monotonic()
        self._old_end = self._context.store.max_offset(TRANS_HALF_TOPIC, QUEUE)
        half, half_wrong = self._position(TRANS_HALF_TOPIC)
        op, op_wrong = self._position(TRANS_OP_HALF_TOPIC)
        self.halves = HalfMessages(half)
        self._ops = OpMessages(op)
        self._positions = half, op
        self.settle()
        return half_wrong or op_wrong

    def _position(self, topic: str) -> tuple[int, bool]:
        """Return a committed offset within the bounds of its queue, and whether it was behind its end."""
        context = self._context
        saved = context.offsets.find(TRANS_GROUP, topic, QUEUE) or 0
        low, high = context.store.min_offset(topic, QUEUE), context.store.max_offset(topic, QUEUE)
        return min(max(saved, low), high), saved > high

    @property
    def is_loaded(self) -> bool:
        """Whether it is known which half messages are undecided."""
        return self._loaded.is_set()

    def undecided(self) -> int | None:
        """Return how many half messages wait for an end; None before that is known."""
        end = self._context.store.max_offset(TRANS_HALF_TOPIC, QUEUE)
        return self.halves.undecided(end) if self.is_loaded else None

    async def read_back(self) -> None:
        """Find out which half messages are undecided; raises StoreCorrupted, OSError, and may be called again then."""
        store, halves = self._context.store, self.halves
        end, op_end = store.max_offset(TRANS_HALF_TOPIC, QUEUE), store.max_offset(TRANS_OP_HALF_TOPIC, QUEUE)
        ended_before: set[int] = set()
        halves.grow(end)
        at = self._ops.end
        while at < op_end:
            records, at = await self.read(TRANS_OP_HALF_TOPIC, at, _READ)
            for record in records:
                offsets, is_moved = _ended_by(record)
                self._ops.stored(record.queue_offset, max(offsets, default=-1))
                for offset in offsets:
                    if halves.begin <= offset < end:
                        halves.end_one(offset, HalfState.ENDED, offset)
                    elif offset < halves.begin and not is_moved:
                        ended_before.add(offset)
            await asyncio.sleep(0)
        self._ops.end = max(self._ops.end, op_end)
        await self._find_moved(end, ended_before)
        self._loaded.set()

    async def _find_moved(self, end: int, ended_before: set[int]) -> None:
        """Find undecided messages that were moved: their first offset is what producers may still know.

        A crash may have kept a copy and not the op message that ends the one before it. Apache's broker may have noted
        a decision under the first offset alone.
        """
        halves = self.halves
        at = halves.begin
        newest: dict[int, int] = {}
        while (at := halves.next_open(at, end)[0]) < end:
            records, behind = await self.read(TRANS_HALF_TOPIC, at, halves.next_open(at, end)[1] - at)
            for record in records:
                offset = record.queue_offset
                properties = decode_properties(record.message.properties)
                first = first_offset(record, properties)
                if halves.state(offset) is not HalfState.OPEN:
                    continue
                if first != offset and first in ended_before:
                    halves.end_one(offset, HalfState.ENDED, first)
                    continue
                before = newest.get(first)
                newest[first] = offset
                if before is not None:
                    self._moved.append(before)
                    halves.moved(before, first, offset)
                elif first != offset:
                    halves.moved(first, first, offset)
            at = behind
            await asyncio.sleep(0)

    async def read(self, topic: str, queue_offset: int, count: int) -> tuple[list[StoredRecord], int]:
        """Return messages from an offset on, those that can be read, and the offset behind them.

        raises  StoreCorrupted while the queue is repaired, OSError
        """
        store = self._context.store
        found = await store.reads.read(_OWNER, store.get, topic, QUEUE, queue_offset, min(count, _READ), wide=True)
        return list(self._reader.read(found.body)), max(found.next_begin_offset, queue_offset + 1)

    # ------------------------------------------------------------------ positions

    def advance(self) -> None:
        """Forget what is decided, up to the first message that is not."""
        half = self.halves.advance()
        if half >= self.halves.end:
            self._stored_before.clear()
        self._settling = half, self._ops.advance(half), self._context.store.max_physical_offset

    def settle(self) -> None:
        """Commit the positions for which the log is on disk: a power cut may take back what is only stored.

        It comes before each save of offsets: those of this group are the broker's, whatever a client commits for it.
        """
        if self._settling is not None and self._context.store.synced_offset >= self._settling[2]:
            self._positions = self._settling[:2]
            self._settling = None
        offsets = self._context.offsets
        for topic, position in zip((TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC), self._positions, strict=True):
            if offsets.find(TRANS_GROUP, topic, QUEUE) != position:
                offsets.commit(TRANS_GROUP, topic, QUEUE, position)

    def needed_from(self) -> int | None:
        """Return the physical offset of the first half message that a start reads, None where there is none."""
        store, half = self._context.store, self._positions[0]
        if half >= store.max_offset(TRANS_HALF_TOPIC, QUEUE):
            return None
        return store.place(TRANS_HALF_TOPIC, QUEUE, half) or 0

    # ------------------------------------------------------------------ half messages

    def prepare(self, message: StoredMessage, properties: dict[str, str]) -> PutResult:
        """Put a message that waits for the end of its transaction; its real place enters its properties.

        raises  BrokerError where it asks for a time that it would not get when it is committed
        """
        self._admission.check(message, properties)
        if unique := properties.get(UNIQ_KEY):
            properties[TRANSACTION_ID] = unique
        # These two are the broker's: who could set them might end the transaction of somebody else.
        for name in (TRANSACTION_CHECK_TIMES, TRANSACTION_PREPARED_QUEUE_OFFSET):
            properties.pop(name, None)
        properties |= {REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(message.queue_id)}
        return self.put_half(message, properties, is_sent=True)

    def put_half(self, message: StoredMessage, properties: dict[str, str], *, is_sent: bool = False) -> PutResult:
        """Put a message at the end of the half messages."""
        half = replace(
            message,
            topic=TRANS_HALF_TOPIC,
            queue_id=QUEUE,
            sys_flag=message.sys_flag & ~TRANSACTION_MASK,
            properties=encode_properties(properties),
        )
        result = self._admission.count(TRANS_HALF_TOPIC, self._context.store.put(half, is_sent=is_sent))
        if result.status is PutStatus.PUT_OK:
            self._arrivals.note(result.queue_offset, self._context.clock.monotonic())
        return result

    def age(self, record: StoredRecord, properties: dict[str, str]) -> float:
        """Return for how many seconds a message has been here, that which it is a copy of counted in."""
        return self._context.clock.monotonic() - self._stored_at(record, first_offset(record, properties))

    def uptime(self) -> float:
        """Return for how many seconds this broker has run."""
        return self._context.clock.monotonic() - self._began

    def _stored_at(self, record: StoredRecord, first: int) -> float:
        arrival = self._arrivals.find(first) if first >= self._old_end else self._stored_before.get(first)
        if arrival is not None:
            return arrival
        before_millis = 0
        if record.queue_offset < self._old_end:
            before_millis = max(self._began_millis - record.store_timestamp, 0)
        return self._began - before_millis / 1000

    def moved(self, record: StoredRecord, first: int, to: int) -> None:
        """Note that a message goes on under another offset."""
        if first < self._old_end:
            self._stored_before[first] = self._stored_at(record, first)
        self.halves.moved(record.queue_offset, first, to)
        self.no_longer_open(record.queue_offset, moved=True)

    def no_longer_open(self, queue_offset: int, *, moved: bool = False) -> None:
        """Have the next op message name a half message that needs no decision any more, or goes on elsewhere."""
        (self._moved if moved else self._unwritten).append(queue_offset)

    # ------------------------------------------------------------------ ends

    async def end(self, owner: Hashable, header: EndTransactionRequestHeader) -> None:
        """Commit or roll back; return when that is stored (Java: ``EndTransactionProcessor``).

        owner   whose read of the half message it is
        raises  BrokerError, by broker.md §20.2 and where the store does not take it
        """
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                await self._loaded.wait()
        except TimeoutError:
            raise BrokerError.of(ResponseCode.SYSTEM_BUSY, f"{OVERLOAD}: half messages are still read") from None
        store = self._context.store
        data = await store.reads.read(owner, store.lookup, header.commit_log_offset)
        record = None if data is None else next(self._reader.read(data))
        if record is None or record.message.topic != TRANS_HALF_TOPIC:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        properties = decode_properties(record.message.properties)
        self._check(header, record, properties)
        first = first_offset(record, properties)
        state, message = HalfState.ROLLED_BACK, None
        if header.commit_or_rollback == MessageSysFlag.TRANSACTION_COMMIT:
            state, message = HalfState.COMMITTED, await self._committed_message(record, properties)
        loop = asyncio.get_running_loop()
        if not self._pending:
            loop.call_soon(self._end_pending)
        ending = _Ending(record.queue_offset, first, state, message, properties, loop.create_future())
        self._pending.append(ending)
        await ending.outcome

    def _check(self, header: EndTransactionRequestHeader, record: StoredRecord, properties: dict[str, str]) -> None:
        """Refuse a decision that is too late, or not of this message."""
        context = self._context
        immunity = immunity_millis(properties, context.config.transaction_time_out)
        if (
            immunity is not None
            and self.age(record, properties) * 1000 > immunity
            and not header.from_transaction_check
        ):
            raise BrokerError.of(ResponseCode.ILLEGAL_OPERATION, None)
        refusal = None
        if properties.get(PRODUCER_GROUP) != header.producer_group:
            refusal = "The producer group wrong"
        elif record.queue_offset != header.tran_state_table_offset:
            refusal = "The transaction state table offset wrong"
        elif record.physical_offset != header.commit_log_offset:
            refusal = "The commit log offset wrong"
        if refusal is not None:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, refusal)

    async def _committed_message(self, record: StoredRecord, properties: dict[str, str]) -> StoredMessage:
        """Return what a commit stores, for the topic that the half message is for, which is made where it is missing.

        The text keeps TRAN_MSG, as Apache's does; REAL_TOPIC and REAL_QID go (5.5.0).
        """
        context = self._context
        place = real_place(properties)
        if place is None:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, "the half message has no real topic and queue")
        if self._is_gone(place.topic, record.physical_offset):
            raise BrokerError.of(ResponseCode.TOPIC_NOT_EXIST, f"topic[{place.topic}] was deleted")
        if context.topics.find(place.topic) is None:
            context.topics.ensure(place.topic, max(place.queue_id + 1, context.config.default_topic_queue_nums))
            await context.writer.flushed()
        del properties[REAL_TOPIC], properties[REAL_QUEUE_ID]
        return replace(
            record.message,
            topic=place.topic,
            queue_id=place.queue_id,
            sys_flag=record.message.sys_flag & ~TRANSACTION_MASK | MessageSysFlag.TRANSACTION_COMMIT,
            prepared_transaction_offset=record.physical_offset,
        )

    def _end_pending(self) -> None:
        """Carry out the decisions of this turn, with one op message."""
        pending, self._pending = self._pending, []
        done = []
        for ending in pending:
            try:
                self._end_one(ending)
            except Exception as error:
                if not ending.outcome.done():
                    ending.outcome.set_exception(error)
            else:
                done.append(ending.outcome)
        self.write_ops()
        if done:
            store = self._context.store
            store.wait(store.max_physical_offset, lambda status: _settle(done, status))

    def _end_one(self, ending: _Ending) -> None:
        queue_offset, state = self.halves.current(ending.queue_offset, ending.first)
        if state in (HalfState.COMMITTED, HalfState.ROLLED_BACK):
            if state is not ending.state:
                known = "committed" if state is HalfState.COMMITTED else "rolled back"
                raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"the transaction was {known} before")
            return
        if ending.message is not None:
            result = self._admission.put(ending.message, ending.properties)
            if result.status is not PutStatus.PUT_OK:
                raise self._admission.refusal(result)
        self.halves.end_one(queue_offset, ending.state, ending.first)
        self._unwritten.append(queue_offset)

    def write_ops(self) -> None:
        """Put op messages for what needs no decision any more. What the store refuses is put with the next."""
        self._write_ops(self._moved, _MOVED_PROPERTIES)
        self._write_ops(self._unwritten, _OP_PROPERTIES)

    def _write_ops(self, unwritten: list[int], properties: bytes) -> None:
        context = self._context
        while unwritten:
            count = size = 0
            while count < len(unwritten) and size < _OP_BYTES:
                size += len(str(unwritten[count])) + 1
                count += 1
            offsets = unwritten[:count]
            message = StoredMessage(
                topic=TRANS_OP_HALF_TOPIC,
                queue_id=QUEUE,
                body=op_body(offsets),
                properties=properties,
                born_timestamp=context.clock.time_millis(),
                born_host=context.store.store_host,
            )
            result = self._admission.count(TRANS_OP_HALF_TOPIC, context.store.put(message))
            if result.status is not PutStatus.PUT_OK:
                logger.warning("op message not stored, later half_messages=%d reason=%s", len(unwritten), result.reason)
                return
            self._ops.stored(result.queue_offset, max(offsets))
            del unwritten[:count]


def _settle(outcomes: list[asyncio.Future[None]], status: PutStatus) -> None:
    """Tell those who wait what became of their decisions."""
    for outcome in outcomes:
        if outcome.done():
            continue
        if status is PutStatus.PUT_OK:
            outcome.set_result(None)
        elif status is PutStatus.FLUSH_DISK_TIMEOUT:
            outcome.set_exception(BrokerError.of(ResponseCode.FLUSH_DISK_TIMEOUT, status.value))
        else:
            outcome.set_exception(BrokerError.of(ResponseCode.SERVICE_NOT_AVAILABLE, status.value))


def _ended_by(record: StoredRecord) -> tuple[list[int], bool]:
    """Return the queue offsets of half messages that an op message ends, and whether they were only moved."""
    properties = decode_properties(record.message.properties)
    if properties.get(TAGS) != "d":
        return [], False
    return read_op_body(bytes(record.message.body)), _MOVED in properties


def first_offset(record: StoredRecord, properties: dict[str, str]) -> int:
    """Return the queue offset under which a half message was stored first."""
    text = properties.get(TRANSACTION_PREPARED_QUEUE_OFFSET, "")
    return int(text) if text.isascii() and text.isdigit() else record.queue_offset


def real_place(properties: dict[str, str]) -> RealPlace | None:
    """Return where a half message is for, None where it does not say."""
    topic, queue_id = properties.get(REAL_TOPIC), properties.get(REAL_QUEUE_ID, "")
    if not topic or not (queue_id.isascii() and queue_id.isdigit()):
        return None
    return RealPlace(topic, int(queue_id))


def immunity_millis(properties: dict[str, str], time_out: int) -> int | None:
    """Return how long a half message wants not to be asked about, None where it does not say.

    time_out  stands for what is no number
    """
    text = properties.get(CHECK_IMMUNITY_TIME)
    if not text:
        return None
    try:
        seconds = int(text)
    except ValueError:
        return time_out
    return time_out if seconds == -1 else seconds * 1000
