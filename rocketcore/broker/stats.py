"""What the broker counts: messages and bytes in and out, in all, per topic, queue and group.

Counting is an addition to plain numbers, by topic and queue; they become counters when someone asks, and every ten
seconds. Rates are made from samples of those.

Java: ``BrokerStatsManager``, ``StoreStatsService`` (5.5.0).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from rocketcore.broker.stat_items import MOST_ITEMS, SAMPLE_SECONDS, StatItem, StatItems
from rocketcore.naming import is_system_topic
from rocketcore.protocol.bodies.stats import BrokerStatsData
from rocketcore.service import SYSTEM_CLOCK, Clock

SNAPSHOT_SECONDS = SAMPLE_SECONDS
_SNAPSHOTS = 61
_NEWEST_TIMES: Final = 1000
PUT_TIMES: Final = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0)
_PUT_TIME_NAMES: Final = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s",
    "5~10s", "10s~",
)  # fmt: skip

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
GROUP_GET_LATENCY: Final = "GROUP_GET_LATENCY"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
_QUEUE_NAMES: Final = "QUEUE_"
"""What the names of counters of single queues begin with."""
MOST_TALLIES: Final = 100_000
"""Pairs of group and topic of which is known, without a search, what a pull counts."""
_MOST_QUEUE_ITEMS: Final = 50_000
"""Counters of single queues that are kept."""


@dataclass(slots=True)
class Totals:
    """Counters since the start of the broker."""

    put_messages: int = 0
    put_bytes: int = 0
    put_failures: int = 0
    get_found: int = 0
    get_missed: int = 0
    get_messages: int = 0
    get_bytes: int = 0
    longest_get_millis: int = 0
    timer_enqueued: int = 0
    timer_dequeued: int = 0


@dataclass(slots=True)
class _Snapshot:
    time: float
    totals: Totals


class Tally(dict[int, list[int]]):
    """What was counted of a topic, or of a group in it, and is in no counter yet: numbers by queue id.

    put  messages, bytes, and messages less sends
    got  messages, bytes, pulls, milliseconds of reading

    items_of_all  the counters of all queues together
    begin         makes those of one queue
    """

    __slots__ = ("_begin", "is_noted", "is_system", "items_of_all", "queue_items")

    def __init__(
        self, is_system: bool, items: tuple[StatItem, ...], begin: Callable[[int], tuple[StatItem, ...]]
    ) -> None:
        super().__init__()
        self.is_system = is_system
        self.items_of_all = items
        self.queue_items: dict[int, tuple[StatItem, ...]] = {}
        self.is_noted = False
        self._begin = begin

    def __missing__(self, queue_id: int) -> list[int]:
        self.queue_items[queue_id] = self._begin(queue_id)
        counts = self[queue_id] = [0, 0, 0, 0]
        return counts


class PutTimes:
    """How long sends waited until their messages were durable, in seconds."""

    def __init__(self) -> None:
        self._longest = 0.0
        self._total = 0.0
        self._counts = [0] * (len(PUT_TIMES) + 1)
        self._newest: list[float] = []
        self._fresh: list[float] = []

    def add(self, seconds: float) -> None:
        self._fresh.append(seconds)
        if len(self._fresh) >= _NEWEST_TIMES:
            self._settle()

    def _settle(self) -> None:
        """Count what came since the last time: of many in order each costs little."""
        fresh = self._fresh
        if not fresh:
            return
        self._newest = [*self._newest, *fresh][-_NEWEST_TIMES:]
        fresh.sort()
        self._total += sum(fresh)
        self._longest = max(self._longest, fresh[-1])
        before = 0
        for index, limit in enumerate(PUT_TIMES):
            until = bisect_right(fresh, limit)
            self._counts[index] += until - before
            before = until
        self._counts[-1] += len(fresh) - before
        fresh.clear()

    @property
    def longest(self) -> float:
        self._settle()
        return self._longest

    @property
    def total(self) -> float:
        """Of all sends together."""
        self._settle()
        return self._total

    @property
    def counts(self) -> list[int]:
        """How many took at most each of ``PUT_TIMES``, and more than the one before it; at the end the rest."""
        self._settle()
        return self._counts

    def quantile(self, part: float) -> float:
        """The time that this part of the newest thousand did not exceed."""
        self._settle()
        times = sorted(self._newest)
        return times[min(len(times) - 1, int(len(times) * part))] if times else 0.0

    def __str__(self) -> str:
        """As RocketMQ shows it."""
        return "".join(f"[{name}]:{count} " for name, count in zip(_PUT_TIME_NAMES, self.counts, strict=True))


class BrokerStats:
    """Counters, and their rates over the last 10, 60 and 600 seconds.

    cluster  under whose name the counters of the whole broker are found
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, cluster: str = "") -> None:
        self._clock = clock
        self._totals = Totals()
        self.put_times = PutTimes()
        self._items = StatItems(clock)
        self._queue_items = StatItems(clock, _MOST_QUEUE_ITEMS)
        self._puts: dict[str, Tally] = {}
        self._gets: dict[tuple[str, str], Tally] = {}
        self._fresh_puts: list[Tally] = []
        self._fresh_gets: list[Tally] = []
        self._broker_items = {
            name: self._items.item(f"BROKER_{name}", cluster)
            for name in (
                "PUT_NUMS",
                "GET_NUMS",
                "PUT_NUMS_WITHOUT_SYSTEM_TOPIC",
                "GET_NUMS_WITHOUT_SYSTEM_TOPIC",
                "ACK_NUMS",
                "CK_NUMS",
            )
        }
        self._snapshots: deque[_Snapshot] = deque(maxlen=_SNAPSHOTS)
        self._midnights: tuple[Totals, Totals] = (Totals(), Totals())
        self._day = self._today()
        self.snapshot()

    # ------------------------------------------------------------------ counting

    def puts(self, topic: str) -> Tally:
        """Return what counts the stored messages of a topic; this is on the path of each send.

        Who stores a message that came alone adds 1 and its size to the first two numbers of its queue.
        """
        puts = self._puts.get(topic)
        if puts is None:
            puts = self._begin_puts(topic)
        if not puts.is_noted:
            puts.is_noted = True
            self._fresh_puts.append(puts)
        return puts

    def count_put(self, topic: str, messages: int, size: int, times: int = 1, queue_id: int = 0) -> None:
        """Count stored messages of one queue, and by how many sends they came."""
        counts = self.puts(topic)[queue_id]
        counts[0] += messages
        counts[1] += size
        counts[2] += messages - times

    def count_put_failure(self) -> None:
        """Count a send that the store refused."""
        self._totals.put_failures += 1

    def gets(self, group: str, topic: str) -> Tally:
        """Return what counts the messages of a topic that a group was handed; this is on the path of each pull.

        Who answers one adds messages, bytes and 1 to the first three numbers of its queue, as long as it ``is_noted``.
        """
        gets = self._gets.get((group, topic))
        if gets is None:
            gets = self._begin_gets(group, topic)
        if not gets.is_noted:
            gets.is_noted = True
            self._fresh_gets.append(gets)
        return gets

    def count_get(
        self, group: str, topic: str, messages: int, size: int, queue_id: int = 0, seconds: float = 0.0
    ) -> None:
        """Count one pull that was answered, with how many messages and bytes, and how long the disk took for it."""
        if not messages:
            self._totals.get_missed += 1
            return
        counts = self.gets(group, topic)[queue_id]
        counts[0] += messages
        counts[1] += size
        counts[2] += 1
        if seconds:
            millis = round(seconds * 1000)
            counts[3] += millis
            self._totals.longest_get_millis = max(self._totals.longest_get_millis, millis)

    def count_send_back(self, group: str, topic: str) -> None:
        """Count one message that a group gave back."""
        self._items.add(self._items.item(SNDBCK_PUT_NUMS, f"{topic}@{group}"), 1)

    def count_acks(self, group: str, topic: str, messages: int) -> None:
        """Count popped messages that were acknowledged together."""
        self._items.add(self._items.item("GROUP_ACK_NUMS", f"{topic}@{group}"), messages)
        self._items.add(self._broker_items["ACK_NUMS"], messages)

    def count_checkpoint(self, group: str, topic: str) -> None:
        """Count one note of messages that were handed out by a POP, or of one that got another invisible time."""
        self._items.add(self._items.item("GROUP_CK_NUMS", f"{topic}@{group}"), 1)
        self._items.add(self._broker_items["CK_NUMS"], 1)

    def _begin_puts(self, topic: str) -> Tally:
        item, queue_item = self._items.item, self._queue_items.item

        def begin(queue_id: int) -> tuple[StatItem, ...]:
            key = f"{topic}@{queue_id}"
            return queue_item("QUEUE_PUT_NUMS", key), queue_item("QUEUE_PUT_SIZE", key)

        items = item(TOPIC_PUT_NUMS, topic), item(TOPIC_PUT_SIZE, topic)
        puts = self._puts[topic] = Tally(is_system_topic(topic), items, begin)
        return puts

    def _begin_gets(self, group: str, topic: str) -> Tally:
        item, queue_item = self._items.item, self._queue_items.item

        def begin(queue_id: int) -> tuple[StatItem, ...]:
            key = f"{topic}@{queue_id}@{group}"
            latency = item(GROUP_GET_LATENCY, f"{queue_id}@{topic}@{group}")
            return queue_item("QUEUE_GET_NUMS", key), queue_item("QUEUE_GET_SIZE", key), latency

        if len(self._gets) >= MOST_TALLIES:
            self._settle()
            self._gets.clear()
        key = f"{topic}@{group}"
        items = item(GROUP_GET_NUMS, key), item(GROUP_GET_SIZE, key)
        gets = self._gets[group, topic] = Tally(is_system_topic(topic), items, begin)
        return gets

    def _settle(self) -> None:
        """Bring the counters up to date."""
        for puts in self._fresh_puts:
            self._settle_puts(puts)
        self._fresh_puts.clear()
        for gets in self._fresh_gets:
            self._settle_gets(gets)
        self._fresh_gets.clear()

    def _settle_puts(self, puts: Tally) -> None:
        puts.is_noted = False
        add, add_to_queue = self._items.add, self._queue_items.add
        messages = size = times = 0
        for queue_id, counts in puts.items():
            count, length, more, _ = counts
            if not count:
                continue
            counts[:] = 0, 0, 0, 0
            nums, sizes = puts.queue_items[queue_id]
            add_to_queue(nums, count, count - more)
            add_to_queue(sizes, length, count - more)
            messages, size, times = messages + count, size + length, times + count - more
        add(puts.items_of_all[0], messages, times)
        add(puts.items_of_all[1], size, times)
        add(self._broker_items["PUT_NUMS"], messages, times)
        if not puts.is_system:
            add(self._broker_items["PUT_NUMS_WITHOUT_SYSTEM_TOPIC"], messages, times)
        self._totals.put_messages += messages
        self._totals.put_bytes += size

    def _settle_gets(self, gets: Tally) -> None:
        gets.is_noted = False
        add, add_to_queue = self._items.add, self._queue_items.add
        messages = size = times = 0
        for queue_id, counts in gets.items():
            count, length, pulls, millis = counts
            if not pulls:
                continue
            counts[:] = 0, 0, 0, 0
            nums, sizes, latency = gets.queue_items[queue_id]
            add_to_queue(nums, count, pulls)
            add_to_queue(sizes, length, pulls)
            add(latency, millis, pulls)
            messages, size, times = messages + count, size + length, times + pulls
        add(gets.items_of_all[0], messages, times)
        add(gets.items_of_all[1], size, times)
        add(self._broker_items["GET_NUMS"], messages, times)
        if not gets.is_system:
            add(self._broker_items["GET_NUMS_WITHOUT_SYSTEM_TOPIC"], messages, times)
        self._totals.get_found += times
        self._totals.get_messages += messages
        self._totals.get_bytes += size

    def forget_topics(self, topics: Collection[str]) -> None:
        """Drop the counters of topics that were deleted."""
        gone = frozenset(topics)
        self._settle()
        self._items.forget(lambda name, key: not name.startswith("BROKER_") and _topic_of(name, key) in gone)
        self._queue_items.forget(lambda name, key: _topic_of(name, key) in gone)
        for topic in gone:
            self._puts.pop(topic, None)
        for place in [place for place in self._gets if place[1] in gone]:
            del self._gets[place]

    def forget_group(self, group: str) -> None:
        """Drop the counters of a group that was deleted."""
        self._settle()
        self._items.forget(lambda name, key: "@" in key and key.rpartition("@")[2] == group)
        self._queue_items.forget(lambda name, key: key.count("@") == 2 and key.rpartition("@")[2] == group)
        for place in [place for place in self._gets if place[0] == group]:
            del self._gets[place]

    # ------------------------------------------------------------------ asking

    @property
    def totals(self) -> Totals:
        """What was counted since the start."""
        self._settle()
        return self._totals

    def data(self, name: str, key: str) -> BrokerStatsData | None:
        """What request 315 tells of a counter, None for one that there is not."""
        self._settle()
        items = self._queue_items if name.startswith(_QUEUE_NAMES) else self._items
        return items.data(name, key)

    def counters(self) -> list[tuple[tuple[str, str], StatItem]]:
        """Name and key of each counter, topic@group of a group's, with what it counted; but for those of queues."""
        self._settle()
        return self._items.totals()

    def snapshot(self) -> None:
        """Keep the counters of now; called every ``SNAPSHOT_SECONDS``."""
        self._snapshots.append(_Snapshot(self._clock.monotonic(), replace(self.totals)))
        dropped = [items.tick() for items in (self._items, self._queue_items)]
        if any(dropped) or len(self._gets) > MOST_ITEMS or len(self._puts) > MOST_ITEMS:
            self._puts.clear()
            self._gets.clear()
        today = self._today()
        if today != self._day:
            self._day = today
            self._midnights = (self._midnights[1], replace(self.totals))

    @property
    def midnights(self) -> tuple[Totals, Totals]:
        """The totals at midnight before today's and at today's (UTC)."""
        return self._midnights

    def topic_put_rate(self, topic: str) -> float:
        """Messages a second stored in a topic over the last minute."""
        self._settle()
        return self._items.minute(TOPIC_PUT_NUMS, topic)

    def group_get_rate(self, group: str, topic: str) -> float:
        """Messages a second handed to a group from a topic over the last minute."""
        self._settle()
        return self._items.minute(GROUP_GET_NUMS, f"{topic}@{group}")

    def rates(self, name: str) -> str:
        """One of the totals as RocketMQ shows rates: ``<10 s> <60 s> <600 s>``."""
        return " ".join(str(self._total_rate(name, seconds)) for seconds in (10.0, 60.0, 600.0))

    def rate(self, name: str) -> str:
        """One of the totals by the second, over the last 10 s."""
        return str(self._total_rate(name, 10.0))

    def _total_rate(self, name: str, seconds: float) -> float:
        old = self._snapshot_before(seconds)
        return self._rate(getattr(self.totals, name) - getattr(old.totals, name), old)

    def _snapshot_before(self, seconds: float) -> _Snapshot:
        limit = self._clock.monotonic() - seconds
        return next((shot for shot in reversed(self._snapshots) if shot.time <= limit), self._snapshots[0])

    def _rate(self, difference: int, old: _Snapshot) -> float:
        elapsed = self._clock.monotonic() - old.time
        return round(difference / elapsed, 3) if elapsed > 0 else 0.0

    def _today(self) -> int:
        return self._clock.time_millis() // 86_400_000


def _topic_of(name: str, key: str) -> str:
    """The topic in a key: alone, or before the group and behind the queue id; of a queue's counter it comes first."""
    parts = key.split("@")
    if name.startswith(_QUEUE_NAMES):
        return parts[0]
    return parts[-2] if len(parts) > 1 else key
