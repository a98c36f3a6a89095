"""What the broker counts: messages and bytes in and out, in all, per topic and per group (Java: ``BrokerStatsManager``,
``StoreStatsService``, 5.5.0). Counting is an addition; rates are made from snapshots when someone asks."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace

from rocketcore.service import SYSTEM_CLOCK, Clock

SNAPSHOT_SECONDS = 10.0
_SNAPSHOTS = 61


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


@dataclass(slots=True)
class _Snapshot:
    time: float
    totals: Totals
    topic_puts: Counter[str]
    group_gets: Counter[tuple[str, str]]


class BrokerStats:
    """Counters and their rates over the last 10, 60 and 600 seconds."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.totals = Totals()
        self._topic_puts: Counter[str] = Counter()
        self._group_gets: Counter[tuple[str, str]] = Counter()
        self._snapshots: deque[_Snapshot] = deque(maxlen=_SNAPSHOTS)
        self._midnights: tuple[Totals, Totals] = (Totals(), Totals())
        self._day = self._today()
        self.snapshot()

    def count_put(self, topic: str, messages: int, size: int) -> None:
        """Count stored messages of one topic."""
        self.totals.put_messages += messages
        self.totals.put_bytes += size
        self._topic_puts[topic] += messages

    def count_get(self, group: str, topic: str, messages: int, size: int) -> None:
        """Count one pull that was answered, with how many messages and bytes."""
        totals = self.totals
        if not messages:
            totals.get_missed += 1
            return
        totals.get_found += 1
        totals.get_messages += messages
        totals.get_bytes += size
        self._group_gets[group, topic] += messages

    def snapshot(self) -> None:
        """Keep the counters of now; called every ``SNAPSHOT_SECONDS``."""
        self._snapshots.append(
            _Snapshot(self._clock.monotonic(), replace(self.totals), self._topic_puts.copy(), self._group_gets.copy())
        )
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
        old = self._snapshot_before(60.0)
        return self._rate(self._topic_puts[topic] - old.topic_puts[topic], old)

    def group_get_rate(self, group: str, topic: str) -> float:
        """Messages a second handed to a group from a topic over the last minute."""
        old = self._snapshot_before(60.0)
        return self._rate(self._group_gets[group, topic] - old.group_gets[group, topic], old)

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
