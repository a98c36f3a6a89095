"""POP in order: a queue gives a group nothing more before all that it handed out is acknowledged, or its time is over.

What is not acknowledged in time is handed out again from where it is, those of it that are not acknowledged, with the
number of times that each was handed out before; new messages follow it in the same answer. A client that asks again
with the attempt id of what it has, since it saw no answer, gets the same at once, and that counts as no further time.

Java: ``ConsumerOrderInfoManager``, ``PopMessageProcessor`` (5.5.0).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from rocketcore.broker.context import BrokerContext
from rocketcore.broker.pop.service import Asked, PopService, Taken, queue_offsets
from rocketcore.broker.pop.state import Checkpoint, QueueKey
from rocketcore.broker.selection import Selection
from rocketcore.broker.store import GetResult, GetStatus
from rocketcore.protocol.pop_info import NORMAL

__all__ = ["OrderedPops", "order_count_info"]


class _Following(NamedTuple):
    """How many new messages may follow what comes again, and of what length and kind."""

    most: int
    max_bytes: int
    wanted: Selection


class OrderedPops:
    """Loop thread only."""

    def __init__(self, context: BrokerContext, pop: PopService) -> None:
        self._context = context
        self._pop = pop

    async def take(self, asked: Asked, key: QueueKey, count: int, max_bytes: int, wanted: Selection) -> Taken | None:
        """As ``PopService.take``, in order."""
        handed_out = self._pop.state.in_order(key)
        if not handed_out:
            return await self._pop.take(asked, key, count, max_bytes, wanted, in_order=True)
        now = self._context.clock.monotonic()
        repeats = _has_attempt(handed_out, asked.attempt_id)
        if not repeats and any(each.due > now for each in handed_out.values()):
            return None
        offsets = sorted(handed_out)
        following = None if repeats or count <= len(offsets) else _Following(count - len(offsets), max_bytes, wanted)
        return await self._again(asked, key, offsets[:count], repeats, following)

    def has_message(self, key: QueueKey, attempt_id: str) -> bool:
        """Whether a POP in order with this attempt id would get something of a queue now."""
        handed_out = self._pop.state.in_order(key)
        if not handed_out:
            topic, group, queue_id = key
            return self._pop.rest(topic, group, queue_id) > 0
        if _has_attempt(handed_out, attempt_id):
            return True
        now = self._context.clock.monotonic()
        return all(each.due <= now for each in handed_out.values())

    async def _again(
        self, asked: Asked, key: QueueKey, offsets: list[int], repeats: bool, following: _Following | None
    ) -> Taken | None:
        """Hand out again what a queue handed out, and behind it what follows; nothing else is handed out of it then."""
        topic, group, queue_id = key
        bodies: dict[int, bytes] = {}
        gone = []
        drops = self._pop.drops
        for offset in offsets:
            found = await self._pop.read(asked, topic, queue_id, offset, 1)
            if found.status is GetStatus.FOUND and queue_offsets(found.body) == [offset]:
                bodies[offset] = found.body
            else:
                gone.append(offset)
        begin = self._pop.position(*key)
        new = None if following is None else await self._read_new(asked, key, begin, following, bodies.values())
        if self._pop.drops != drops:
            self._pop.on_free(*key)  # this may be another topic by now: its request looks again
            return None
        handed_out = self._pop.state.in_order(key)
        left = [offset for offset in bodies if offset in handed_out]
        now = self._context.clock.monotonic()
        repeats = repeats and all(handed_out[offset].attempt_id == asked.attempt_id for offset in left)
        if not repeats and any(handed_out[offset].due > now for offset in left):
            return None  # another POP got them while this one waited for the disk
        if gone := [offset for offset in gone if offset in handed_out]:
            self._pop.put(["ack", *key, gone])
            if not left:
                self._pop.on_free(*key)
        if not left:
            return None
        counts = [(handed_out[offset].counts or {}).get(offset, 0) + (not repeats) for offset in left]
        queue = self._pop.state.queues[key]
        behind, goes_on = b"", queue.next
        if new is not None and new.status is GetStatus.FOUND and self._pop.position(*key) == begin:
            behind, goes_on = new.body, new.next_begin_offset
            left += queue_offsets(behind)
            counts += [0] * new.count
            self._context.stats.count_get(group, topic, new.count, len(behind), queue_id)
        # Each POP has a time of its own, by which its handles are told from the last ones.
        times = asked.time(self._context.clock), asked.invisible
        result = self._pop.put(["order", *key, left, counts, goes_on, *times, asked.attempt_id])
        body = b"".join(bodies.get(offset, b"") for offset in left) + behind
        return Taken(topic, queue_id, left[0], left, body, result.end_offset, counts)

    async def _read_new(
        self, asked: Asked, key: QueueKey, begin: int, following: _Following, before: Collection[bytes]
    ) -> GetResult | None:
        """Read what follows what was handed out; None where there is nothing, or no room for it."""
        topic, _, queue_id = key
        most = min(following.most, self._pop.room(*key))
        size = following.max_bytes - sum(map(len, before))
        if not before or most <= 0 or size <= 0 or begin == self._context.store.max_offset(topic, queue_id):
            return None
        wanted = following.wanted
        found = await self._pop.read(asked, topic, queue_id, begin, most, wanted.sorted_codes, wanted.properties, size)
        return found if len(found.body) <= size else None  # the first message of an answer may be longer than it


def _has_attempt(handed_out: Mapping[int, Checkpoint], attempt_id: str) -> bool:
    """Whether all that was handed out was by this attempt, which gets it again."""
    return bool(attempt_id) and all(each.attempt_id == attempt_id for each in handed_out.values())


def order_count_info(taken: list[Taken]) -> str:
    """Return how often what was taken was handed out before (Java: ``ConsumerOrderInfoManager.update``)."""
    items = []
    for each in taken:
        counts = each.counts or []
        again = [(offset, count) for offset, count in zip(each.offsets, counts, strict=True) if count]
        items += [f"{NORMAL} qo{each.queue_id}%{offset} {count}" for offset, count in again]
        items.append(f"{NORMAL} {each.queue_id} {min(counts, default=0)}")
    return ";".join(items)
