"""What the broker counts: messages and bytes in and out, in all, per topic and per group (Java: ``BrokerStatsManager``,
``StoreStatsService``, 5.5.0). Counting is an addition; rates are made from samples when someone asks."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from rocketcore.broker.stat_items import MOST_ITEMS, SAMPLE_SECONDS, StatItem, StatItems
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


@dataclass(slots=True)
class _Snapshot:
    time: float
    totals: Totals


class _Puts(NamedTuple):
    """What was stored in a topic."""

    messages: StatItem
    bytes: StatItem


class _Gets(NamedTuple):
    """What a group was handed from a topic; milliseconds of reading by queue id."""

    messages: StatItem
    bytes: StatItem
    latency: dict[int, StatItem]


class PutTimes:
    """How long sends waited until their messages were durable, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.total = 0.0
        self.counts = [0] * (len(PUT_TIMES) + 1)
        self._newest: deque[float] = deque(maxlen=_NEWEST_TIMES)

    def add(self, seconds: float) -> None:
        self._newest.append(seconds)
        self.total += seconds
        self.longest = max(self.longest, seconds)
        self.counts[bisect_left(PUT_TIMES, seconds)] += 1

    def quantile(self, part: float) -> float:
        """The time that this part of the newest thousand did not exceed."""
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
        self.totals = Totals()
        self.put_times = PutTimes()
        self._items = StatItems(clock)
        self._puts: dict[str, _Puts] = {}
        self._gets: dict[tuple[str, str], _Gets] = {}
        self._all_puts = self._items.item(BROKER_PUT_NUMS, cluster)
        self._all_gets = self._items.item(BROKER_GET_NUMS, cluster)
        self._snapshots: deque[_Snapshot] = deque(maxlen=_SNAPSHOTS)
        self._midnights: tuple[Totals, Totals] = (Totals(), Totals())
        self._day = self._today()
        self.snapshot()

    def count_put(self, topic: str, messages: int, size: int, times: int = 1) -> None:
        """Count stored messages of one topic, and by how many sends they came."""
        self.totals.put_messages += messages
        self.totals.put_bytes += size
        puts = self._puts.get(topic)
        if puts is None:
            item = self._items.item
            puts = self._puts[topic] = _Puts(item(TOPIC_PUT_NUMS, topic), item(TOPIC_PUT_SIZE, topic))
        add = self._items.add
        add(puts.messages, messages, times)
        add(puts.bytes, size, times)
        add(self._all_puts, messages, times)

    def count_get(
        self, group: str, topic: str, messages: int, size: int, queue_id: int = 0, seconds: float = 0.0
    ) -> None:
        """Count one pull that was answered, with how many messages and bytes, and how long the disk took for it."""
        totals = self.totals
        if not messages:
            totals.get_missed += 1
            return
        totals.get_found += 1
        totals.get_messages += messages
        totals.get_bytes += size
        gets = self._gets.get((group, topic))
        if gets is None:
            item, key = self._items.item, f"{topic}@{group}"
            gets = self._gets[group, topic] = _Gets(item(GROUP_GET_NUMS, key), item(GROUP_GET_SIZE, key), {})
        latency = gets.latency.get(queue_id)
        if latency is None:
            latency = gets.latency[queue_id] = self._items.item(GROUP_GET_LATENCY, f"{queue_id}@{topic}@{group}")
        add = self._items.add
        add(gets.messages, messages)
        add(gets.bytes, size)
        add(self._all_gets, messages)
        millis = round(seconds * 1000) if seconds else 0
        add(latency, millis)
        if millis > totals.longest_get_millis:
            totals.longest_get_millis = millis

    def count_send_back(self, group: str, topic: str) -> None:
        """Count one message that a group gave back."""
        self._items.add(self._items.item(SNDBCK_PUT_NUMS, f"{topic}@{group}"), 1)

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a topic that was deleted."""
        self._items.forget(lambda name, key: not name.startswith("BROKER_") and _topic_of(key) == topic)
        self._puts.pop(topic, None)
        for place in [place for place in self._gets if place[1] == topic]:
            del self._gets[place]

    def forget_group(self, group: str) -> None:
        """Drop the counters of a group that was deleted."""
        self._items.forget(lambda name, key: "@" in key and key.rpartition("@")[2] == group)
        for place in [place for place in self._gets if place[0] == group]:
            del self._gets[place]

    def data(self, name: str, key: str) -> BrokerStatsData | None:
        """What request 315 tells of a counter, None for one that there is not."""
        return self._items.data(name, key)

    def counters(self) -> list[tuple[tuple[str, str], StatItem]]:
        """Name and key of each counter, topic@group of a group's, with what it counted."""
        return self._items.totals()

    def snapshot(self) -> None:
        """Keep the counters of now; called every ``SNAPSHOT_SECONDS``."""
        self._snapshots.append(_Snapshot(self._clock.monotonic(), replace(self.totals)))
        if self._items.tick() or len(self._gets) > MOST_ITEMS or len(self._puts) > MOST_ITEMS:
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
        return self._items.minute(TOPIC_PUT_NUMS, topic)

    def group_get_rate(self, group: str, topic: str) -> float:
        """Messages a second handed to a group from a topic over the last minute."""
        return self._items.minute(GROUP_GET_NUMS, f"{topic}@{group}")

    def rates(self, name: str) -> str:
        """One of the totals as RocketMQ shows rates: ``<10 s> <60 s> <600 s>``."""
        return " ".join(str(self._total_rate(name, seconds)) for seconds in (10.0, 60.0, 600.0))

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


def _topic_of(key: str) -> str:
    """The topic in a key: alone, or before the group and behind the queue id."""
    parts = key.split("@")
    return parts[-2] if len(parts) > 1 else key
