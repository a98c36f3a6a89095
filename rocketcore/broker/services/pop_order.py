"""POP in order: a queue gives a group nothing more before all that it handed out is acknowledged.

What is not acknowledged in time is handed out again from where it is, those of it that are not acknowledged, with the
number of times that each was handed out before. A client that asks again with the attempt id of what it has, since it
saw no answer, gets the same at once, and that counts as no further time.

Java: ``ConsumerOrderInfoManager``, ``PopMessageProcessor`` (5.5.0).
"""

from __future__ import annotations

from rocketcore.broker.context import BrokerContext
from rocketcore.broker.selection import Selection
from rocketcore.broker.services.pop import Asked, PopService, Taken, queue_offsets
from rocketcore.broker.state.pop_state import QueueKey
from rocketcore.broker.store import GetStatus
from rocketcore.protocol.pop_info import NORMAL

__all__ = ["OrderedPops", "order_count_info"]


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
        attempt_id = asked.attempt_id
        repeats = bool(attempt_id) and all(each.attempt_id == attempt_id for each in handed_out.values())
        if not repeats and any(each.due > now for each in handed_out.values()):
            return None
        return await self._again(asked, key, sorted(handed_out)[:count], repeats)

    def has_message(self, key: QueueKey) -> bool:
        """Whether a POP in order would get something of a queue now."""
        handed_out = self._pop.state.in_order(key)
        if not handed_out:
            topic, group, queue_id = key
            return self._pop.rest(topic, group, queue_id) > 0
        now = self._context.clock.monotonic()
        return all(each.due <= now for each in handed_out.values())

    async def _again(self, asked: Asked, key: QueueKey, offsets: list[int], repeats: bool) -> Taken | None:
        topic, _, queue_id = key
        bodies: dict[int, bytes] = {}
        gone = []
        drops = self._pop.drops
        for offset in offsets:
            found = await self._pop.read(asked, topic, queue_id, offset, 1)
            if found.status is GetStatus.FOUND and queue_offsets(found.body) == [offset]:
                bodies[offset] = found.body
            else:
                gone.append(offset)
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
        following = self._pop.state.queues[key].next
        # Each POP has a time of its own, by which its handles are told from the last ones.
        times = asked.time(self._context.clock), asked.invisible
        result = self._pop.put(["order", *key, left, counts, following, *times, asked.attempt_id])
        body = b"".join(bodies[offset] for offset in left)
        return Taken(topic, queue_id, left[0], left, body, result.end_offset, counts)


def order_count_info(taken: list[Taken]) -> str:
    """Return how often what was taken was handed out before (Java: ``ConsumerOrderInfoManager.update``)."""
    items = []
    for each in taken:
        counts = each.counts or []
        again = [(offset, count) for offset, count in zip(each.offsets, counts, strict=True) if count]
        items += [f"{NORMAL} qo{each.queue_id}%{offset} {count}" for offset, count in again]
        items.append(f"{NORMAL} {each.queue_id} {min(counts, default=0)}")
    return ";".join(items)
