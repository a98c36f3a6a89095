"""Handing messages of a queue out to a group until they are acknowledged, and again where they are not.

Where a group goes on in a queue is the larger of what it popped and of its committed offset, so that a group whose
members pulled before, or pull beside, goes on behind them. A reset (222) goes back.

What is not acknowledged when its time is over goes to the group's retry topic of its topic, with one reconsumption
more; that topic is popped with it. Of an ordered POP it stays where it is, and the queue gives nothing else until it is
done.

Bounds  ``PER_QUEUE`` messages of a group in a queue, ``CAPACITY`` in all, are handed out and not acknowledged. What a
        group holds keeps its files from retention, at most ``LONGEST_MILLIS`` for each time that it is handed out.

Java: ``PopMessageProcessor``, ``PopReviveService`` (5.5.0).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rocketcore._fast.properties import decode_properties, encode_properties
from rocketcore.broker.admission import Admission
from rocketcore.broker.context import BrokerContext
from rocketcore.broker.pop.journal import PopJournal
from rocketcore.broker.pop.state import Checkpoint, Entry, PopState, QueueKey
from rocketcore.broker.record import RecordReader
from rocketcore.broker.selection import Selection
from rocketcore.broker.store import Cold, GetResult, GetStatus, PutResult, PutStatus, StoredMessage
from rocketcore.broker.store.log.record_head import HEAD_BYTES, RecordHead
from rocketcore.codes import MAX_PROPERTIES_BYTES, RETRY_TOPIC_PREFIX, ResponseCode
from rocketcore.errors import BrokerError, RocketError
from rocketcore.message import FIRST_POP_TIME, ORIGIN_GROUP
from rocketcore.protocol.pop_info import NORMAL, RETRY_V1, RETRY_V2, marker_of, pop_retry_topic
from rocketcore.service import Clock, PeriodicTask
from rocketcore.transport.channel import Channel

__all__ = ["CAPACITY", "LONGEST_MILLIS", "PER_QUEUE", "Asked", "PopService", "Taken"]

logger = logging.getLogger(__name__)

PER_QUEUE = 10_000
CAPACITY = 500_000
LONGEST_MILLIS = 24 * 60 * 60 * 1000
REVIVE_SECONDS = 0.1
SAVE_SECONDS = 60.0
ERROR_SECONDS = 10.0
"""What could not be put or read is tried again after this time."""

_MOST_READS = 16
"""Reads of a queue for one POP, where a filter lets nothing through."""


@dataclass(slots=True)
class Asked:
    """What one POP asks of each queue.

    owner       whose reads wait in a row
    check       called when it has waited for the disk; raises BrokerError where it may not go on
    attempt_id  of a POP in order
    pop_time    when it was handed the first message, 0: it was handed none; all that it is handed has this time
    """

    owner: Channel
    invisible: int
    init_mode: int
    check: Callable[[], object]
    attempt_id: str = ""
    pop_time: int = 0

    def time(self, clock: Clock) -> int:
        """Return the time of what is handed out now."""
        self.pop_time = self.pop_time or clock.time_millis()
        return self.pop_time


@dataclass(slots=True)
class Taken:
    """What one POP got of one queue; ``end_offset`` is what the store has to have before it is answered."""

    topic: str
    queue_id: int
    start: int
    offsets: list[int]
    body: bytes
    end_offset: int
    counts: list[int] | None = None

    @property
    def marker(self) -> str:
        return marker_of(self.topic)


class PopService:
    """Loop thread only; ``load`` follows the store's."""

    def __init__(self, context: BrokerContext, admission: Admission, journal: PopJournal, state: PopState) -> None:
        self.journal = journal
        self.state = state
        self.on_free: Callable[[str, str, int], None] = lambda topic, group, queue_id: None
        """Called with topic, group and queue id when POPs in order may go on, though no message came."""
        self.on_room: Callable[[str, str, int], None] = lambda topic, group, queue_id: None
        """Called with the same when others may, since so many messages are handed out no longer."""
        self.on_any_room: Callable[[bool], bool] = lambda was_full: True
        """Called again and again while less than ``CAPACITY`` is handed out: who waited for that may go on.

        Told whether there may be more of them since it last took note of it, which it tells.
        """
        self.on_more: Callable[[str, str, int], None] = lambda topic, group, queue_id: None
        """Called with the same when a POP read as much of a queue as it may at once, and there may be more for it."""
        self.revived = 0
        """Messages that came again since the start."""
        self._context = context
        self._admission = admission
        self._reader = RecordReader(1)
        self._was_full = False
        """Whether somebody may wait because ``CAPACITY`` was reached."""
        self.drops = 0
        """How often something was deleted since the start."""
        self._dropped: dict[str, int] = {}
        """Group → where the log has to be stored to for its deletion to be; until it is."""
        self._uncommitted: deque[tuple[int, QueueKey, int]] = deque()
        """Where the log has to be synced to, queue and offset, in this order."""
        self._revive_task = PeriodicTask("broker-pop-revive", self.revive_due, REVIVE_SECONDS)
        self._save_task = PeriodicTask("broker-pop-save", journal.save, SAVE_SECONDS)

    def load(self) -> None:
        """Read what was handed out; offsets, which are saved every few seconds, then say so too."""
        self.journal.load()
        for (topic, group, queue_id), queue in self.state.queues.items():
            committed = self._context.offsets.find(group, topic, queue_id)
            if queue.reset or queue.done_until > (-1 if committed is None else committed):
                self._context.offsets.commit(group, topic, queue_id, queue.done_until)
        self._context.offsets.on_reset, self._context.offsets.on_remove = self._reset, self._drop

    def start(self) -> None:
        self._revive_task.start()
        self._save_task.start()

    async def stop(self) -> None:
        await self._revive_task.stop()
        await self._save_task.stop()

    def needed_from(self) -> int | None:
        """Return the physical offset of the first message, or record of the journal, that is still needed."""
        store = self._context.store
        found = self.journal.needed_from()
        for (topic, _, queue_id), offset in self.state.first_in_flight():
            place = store.place(topic, queue_id, max(offset, store.min_offset(topic, queue_id)))
            if place is not None:
                found = place if found is None else min(found, place)
        return found

    # ------------------------------------------------------------------ positions

    def position(self, topic: str, group: str, queue_id: int, init_mode: int = 0) -> int:
        """Return where the group goes on in a queue.

        init_mode  where a new group begins: 0 at the first message, 1 behind the last but one, unless the queue still
                   has its first message
        """
        queue = self.state.find(topic, group, queue_id)
        committed = self._context.offsets.find(group, topic, queue_id)
        found = max(-1 if queue is None else queue.next, -1 if committed is None else committed)
        if found >= 0:
            return found
        store = self._context.store
        first = store.min_offset(topic, queue_id)
        if init_mode == 0 or first <= 0 or topic.startswith(RETRY_TOPIC_PREFIX):
            return first
        return max(store.max_offset(topic, queue_id) - 1, 0)

    def rest(self, topic: str, group: str, queue_id: int) -> int:
        """How many messages of a queue the group has not got yet."""
        return max(0, self._context.store.max_offset(topic, queue_id) - self.position(topic, group, queue_id))

    def retry_topics(self, topic: str, group: str) -> list[str]:
        """The topics by which what the group did not acknowledge comes again, as far as they are there."""
        names = [pop_retry_topic(topic, group, marker) for marker in (RETRY_V2, RETRY_V1)]
        return [name for name in names if self._context.topics.find(name) is not None]

    def room(self, topic: str, group: str, queue_id: int) -> int:
        """How many messages of a queue may be handed out to the group now."""
        queue = self.state.find(topic, group, queue_id)
        in_all = CAPACITY - self.state.in_flight
        self._was_full |= in_all <= 0
        return min(PER_QUEUE - (0 if queue is None else len(queue.in_flight)), in_all)

    # ------------------------------------------------------------------ taking

    async def read(self, asked: Asked, topic: str, queue_id: int, *what: Any) -> GetResult:
        """Read for a POP; raises what the store and ``Asked.check`` do."""
        reads, call = self._context.store.reads, partial(self._context.store.get, topic, queue_id, *what)
        try:
            return reads.now(asked.owner, call)
        except Cold:
            found = await reads.read(asked.owner, call)
        asked.check()
        return found

    async def take(
        self, asked: Asked, key: QueueKey, count: int, max_bytes: int, wanted: Selection, *, in_order: bool = False
    ) -> Taken | None:
        """Hand out at most ``count`` messages of a queue; None where there is nothing now.

        in_order  for the first time (``order``)
        raises    BrokerError where the store takes no record of it; what ``read`` raises
        """
        topic, group, queue_id = key
        store, init_mode = self._context.store, asked.init_mode
        self._context.offsets.take_reset(group, topic, queue_id)  # the position says so already
        committed = self._context.offsets.find(group, topic, queue_id)
        if (committed is None or committed < 0) and self.state.find(*key) is None:
            # Where the group begins is decided by its first POP, also of an empty queue: not anew by each that waits.
            self._context.offsets.check_room(group, topic, queue_id)
            self._context.offsets.commit(group, topic, queue_id, self.position(topic, group, queue_id, init_mode))
        for _ in range(_MOST_READS):
            if in_order and self.state.in_order(key):
                return None  # another POP got something while this one waited for the disk
            drops = self.drops
            offset = self.position(topic, group, queue_id, init_mode)
            most = min(count, self.room(topic, group, queue_id))
            if most <= 0 or offset == store.max_offset(topic, queue_id):
                return None
            found = await self.read(
                asked, topic, queue_id, offset, most, wanted.sorted_codes, wanted.properties, max_bytes
            )
            if self.drops != drops or self.position(topic, group, queue_id, init_mode) != offset:
                continue  # another POP went on while this one waited for the disk, or this is another topic by now
            if found.status is GetStatus.FOUND:
                return self._hand_out(asked, key, offset, found, in_order=in_order)
            if found.next_begin_offset == offset:
                return None
            self._move(key, found.next_begin_offset)
        self.on_more(*key)
        await self._context.cooperative.step()
        asked.check()
        return None

    def _hand_out(self, asked: Asked, key: QueueKey, start: int, found: GetResult, *, in_order: bool) -> Taken:
        offsets = queue_offsets(found.body)
        topic, group, queue_id = key
        following, counts = found.next_begin_offset, None
        self._context.offsets.take_reset(group, topic, queue_id)  # one that came meanwhile: this follows it
        times = asked.time(self._context.clock), asked.invisible
        if in_order:
            counts = [0] * len(offsets)
            result = self.put(["order", *key, offsets, counts, following, *times, asked.attempt_id])
        else:
            result = self.put(["pop", *key, start, offsets, following, *times])
        self._commit(key)
        stats = self._context.stats
        stats.count_get(group, topic, found.count, len(found.body), queue_id)
        stats.count_checkpoint(group, topic)
        return Taken(topic, queue_id, start, offsets, found.body, result.end_offset, counts)

    def _commit(self, key: QueueKey) -> None:
        """Bring the committed offset to where the group is, in order: to what it has done.

        It is saved in a file of its own, which may be on disk before the journal is. A start would pass over what was
        handed out by a record that is not there, so it is committed when that is synced.
        """
        self._uncommitted.append((self.journal.end_offset, key, self.state.queues[key].done_until))

    def _commit_synced(self) -> None:
        synced = self._context.store.synced_offset
        while self._uncommitted and self._uncommitted[0][0] <= synced:
            _, (topic, group, queue_id), offset = self._uncommitted.popleft()
            committed = self._context.offsets.find(group, topic, queue_id)
            if committed is not None and offset < committed <= self._context.store.max_offset(topic, queue_id):
                continue  # members that pull have committed more meanwhile
            self._context.offsets.commit(group, topic, queue_id, offset)

    def _move(self, key: QueueKey, offset: int) -> None:
        """Pass over what is not for the group, or not there; after a crash it is passed over once more."""
        self.state.apply(["next", *key, offset])
        self._commit(key)
        self._commit_synced()

    # ------------------------------------------------------------------ changes

    async def acknowledge(self, *acks: tuple[QueueKey, Iterable[int], int]) -> None:
        """Note what is done of POPs, by queue, offsets and POP time, and return when that is stored.

        What is not handed out, or by another POP, is passed over; one that is acknowledged while the note of the same
        is on its way to the disk waits for that, too.
        """
        entries: list[Entry] = []
        for key, offsets, pop_time in acks:
            if done := [offset for offset in offsets if self.state.delivery(*key, offset, pop_time)]:
                entries.append(["ack", *key, done])
        if entries:
            self.put(*entries)
            self._free(entries)
            for _, topic, group, _, done in entries:
                self._context.stats.count_acks(group, topic, len(done))
        if self.journal.end_offset > self._context.store.durable_offset:
            await self.stored(self.journal.end_offset)

    def _free(self, entries: Iterable[Entry]) -> None:
        """Let queues go on whose POP in order is done with these acknowledgements, or that had no room before."""
        freed: Counter[QueueKey] = Counter()
        for _, topic, group, queue_id, done in entries:
            freed[topic, group, queue_id] += len(done)
        for (topic, group, queue_id), count in freed.items():
            queue = self.state.queues[topic, group, queue_id]
            if len(queue.in_flight) < PER_QUEUE <= len(queue.in_flight) + count:
                for _ in range(count):  # each of those who wait may want one
                    self.on_room(topic, group, queue_id)
            if queue.ordered:
                self._commit((topic, group, queue_id))
                if not queue.in_flight:
                    self.on_free(topic, group, queue_id)

    async def hide(self, key: QueueKey, offset: int, pop_time: int, invisible: int, *, suspended: bool) -> int:
        """Have a message stay invisible for another while from now on; return the time of now, its new POP time.

        raises  BrokerError where it is not handed out, or by another POP
        """
        if self.state.delivery(*key, offset, pop_time) is None:
            raise BrokerError.of(
                ResponseCode.NO_MESSAGE,
                f"message is acknowledged or came again: topic={key[0]} group={key[1]} queue_id={key[2]} "
                f"offset={offset} popTime={pop_time}",
            )
        # Its handle has to be another one than the last, whatever the clock says.
        now = max(self._context.clock.time_millis(), pop_time + 1)
        result = self.put(["hide", *key, offset, now, invisible, suspended])
        self._context.stats.count_checkpoint(key[1], key[0])
        await self.stored(result.end_offset)
        return now

    def put(self, *entries: Entry) -> PutResult:
        """Put entries into the journal and apply them; raises BrokerError where the store does not take them."""
        result = self.journal.put(*entries)
        if result.status is not PutStatus.PUT_OK:
            raise self._admission.refusal(result)
        return result

    async def stored(self, end_offset: int) -> None:
        """Wait until what was put counts as stored; raises BrokerError where it does not, or not yet."""
        status = await self._admission.stored(PutResult(PutStatus.PUT_OK, end_offset=end_offset))
        if status is not PutStatus.PUT_OK:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, status.value)
        self._commit_synced()

    def _reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """An admin moved a group: what it popped before stays handed out, the next POP goes on from there."""
        key = (topic, group, queue_id)
        if key in self.state.queues:
            self.put(["reset", *key, offset])
        self._uncommitted = deque(each for each in self._uncommitted if each[1] != key)

    def _drop(self, topics: Collection[str], group: str) -> int:
        """Forget topics, or a group, that are deleted; return where the log has to be stored to, 0 where it tells none.

        The store remembers a deleted topic by itself (``PopJournal.load``), so a record of it may come late. Of a group
        nothing else tells.

        raises  BrokerError where the store takes no record of a group, and nothing has changed then
        """
        self.drops += 1
        there = {topic for topic, owner, _ in self.state.queues if topic in topics or owner == group}
        end = 0
        if group:
            durable = self._context.store.durable_offset
            self._dropped = {name: place for name, place in self._dropped.items() if place > durable}
            if there:
                self._dropped[group] = self.put(["drop", "", group]).end_offset
            end = self._dropped.get(group, 0)
        elif there:
            for topic in sorted(there):
                self.journal.take_back(["drop", topic, ""])
            self.journal.settle()
            end = self.journal.end_offset
        self._uncommitted = deque(
            each for each in self._uncommitted if each[1][0] not in topics and group != each[1][1]
        )
        return end

    # ------------------------------------------------------------------ revive

    async def revive_due(self) -> None:
        """Have come again what was not acknowledged in time."""
        self.journal.settle()
        self._commit_synced()
        if self.state.in_flight < CAPACITY and self.on_any_room(self._was_full):
            self._was_full = False
        while (checkpoint := self.state.take_due()) is not None:
            if checkpoint.counts is not None:
                self.on_free(*checkpoint.key)  # a POP in order finds it where it is
                continue
            failure = None
            for offset in sorted(checkpoint.left):
                try:
                    await self._revive(checkpoint, offset)
                except (RocketError, OSError) as error:
                    failure = error  # of one message: the others need not wait for it
                await asyncio.sleep(0)  # thousands may be due together, and others want the loop
            if failure is not None:
                self.state.postpone(checkpoint, ERROR_SECONDS)
                logger.error(
                    "popped messages not put again topic=%s group=%s queue_id=%d reason=%s", *checkpoint.key, failure
                )

    async def _revive(self, checkpoint: Checkpoint, offset: int) -> None:
        topic, _, queue_id = checkpoint.key
        store = self._context.store
        found = await store.reads.read(self, partial(store.get, topic, queue_id, offset, 1))
        if offset not in checkpoint.left:
            return  # acknowledged meanwhile
        if found.status is not GetStatus.FOUND or queue_offsets(found.body) != [offset]:
            logger.error("popped message is gone topic=%s group=%s queue_id=%d offset=%d", *checkpoint.key, offset)
            self.put(["ack", *checkpoint.key, [offset]])
            return
        message = self._retry_of(found.body, checkpoint)
        place = message.topic, message.queue_id
        entry: Entry = ["revive", *checkpoint.key, offset, *place, store.next_offset(*place)]
        self.put(entry)
        result = self._admission.count(message.topic, store.put(message), message.queue_id)
        if result.status is not PutStatus.PUT_OK:
            # From the POP on, or from now where the clock was set back behind it.
            passed = max(self._context.clock.time_millis() - checkpoint.pop_time, 0)
            again = passed + int(ERROR_SECONDS * 1000)
            entry = ["hide", *checkpoint.key, offset, checkpoint.pop_time, again, checkpoint.suspended]
            self.journal.take_back(entry)
            raise self._admission.refusal(result)
        self.revived += 1

    def _retry_of(self, body: bytes, checkpoint: Checkpoint) -> StoredMessage:
        """Return a message as it is put into the retry topic, which is made where it is missing."""
        topic, group, _ = checkpoint.key
        message = next(self._reader.read(body)).message
        properties = decode_properties(message.properties)
        properties.setdefault(FIRST_POP_TIME, str(checkpoint.pop_time))
        properties[ORIGIN_GROUP] = group
        encoded = encode_properties(properties)
        if len(encoded) <= MAX_PROPERTIES_BYTES:  # else it comes again without these
            message.properties = encoded
        message.reconsume_times += not checkpoint.suspended
        if marker_of(topic) == NORMAL:
            marker = RETRY_V2 if self._context.config.enable_retry_topic_v2 else RETRY_V1
            message.topic = pop_retry_topic(topic, group, marker)
        message.queue_id = 0
        self._context.topics.ensure(message.topic, 1)
        return message


def queue_offsets(body: bytes) -> list[int]:
    """Return the queue offsets of records that lie back to back."""
    offsets = []
    at = 0
    while (head := RecordHead.read(body[at : at + HEAD_BYTES])) is not None:
        offsets.append(head.queue_offset)
        at += head.size
    return offsets
