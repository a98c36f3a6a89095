"""Counters by name and key, with their sums over the last minute, hour and day (Java: ``StatsItemSet``, 5.5.0).

Counting is an addition. Every ten seconds what changed meanwhile is sampled; of these samples one in ten minutes is
kept for an hour and one an hour for a day. A counter that rests costs nothing. Unlike in RocketMQ a sum goes up to the
moment when someone asks, not to the last sample.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from rocketcore.protocol.bodies.stats import BrokerStatsData, BrokerStatsItem
from rocketcore.service import SYSTEM_CLOCK, Clock

SAMPLE_SECONDS: Final = 10.0
MOST_ITEMS: Final = 100_000
"""Counters that are kept; what would be one more counts nowhere, until some have rested for a day."""


class _Span(NamedTuple):
    """How far back a sum goes, and how often it is sampled."""

    seconds: float
    ticks: int
    samples: int


_SPANS: Final = (_Span(60.0, 1, 7), _Span(3600.0, 60, 7), _Span(86_400.0, 360, 25))
_DAY_TICKS: Final = 8640


class StatItem:
    """One counter: the sum of what was counted, and how often.

    began, rests_since  monotonic seconds, and the number of the tick at which it last changed
    """

    __slots__ = ("_samples", "began", "is_noted", "rests_since", "times", "value")

    def __init__(self, began: float) -> None:
        self.value = 0
        self.times = 0
        self.began = began
        self.is_noted = False
        self.rests_since = 0
        self._samples: tuple[deque[tuple[float, int, int]], ...] = tuple(deque(maxlen=span.samples) for span in _SPANS)

    def sample(self, span: int, now: float) -> None:
        self._samples[span].append((now, self.value, self.times))

    def over(self, span: int, now: float) -> BrokerStatsItem:
        """What was counted in a span up to now: its sum, a second, and each time."""
        limit = now - _SPANS[span].seconds
        time, value, times = self.began, 0, 0
        for sampled in reversed(self._samples[span]):
            if sampled[0] <= limit:
                time, value, times = sampled
                break
        total, count = self.value - value, self.times - times
        # As in RocketMQ a counter that has just begun has existed for one sample.
        seconds = max(now - time, SAMPLE_SECONDS)
        return BrokerStatsItem(total, round(total / seconds, 3), round(total / count, 3) if count else 0.0)


class StatItems:
    """Counters of a broker.

    most  how many are kept; default: ``MOST_ITEMS``
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, most: int | None = None) -> None:
        self._clock = clock
        self._most = MOST_ITEMS if most is None else most
        self._items: dict[tuple[str, str], StatItem] = {}
        self._changed: tuple[list[StatItem], dict[int, StatItem], dict[int, StatItem]] = ([], {}, {})
        self._ticks = 0

    def __len__(self) -> int:
        return len(self._items)

    def item(self, name: str, key: str) -> StatItem:
        """Return a counter; it begins when it is asked for first."""
        item = self._items.get((name, key))
        if item is None:
            item = StatItem(self._clock.monotonic())
            item.rests_since = self._ticks
            if len(self._items) < self._most:
                self._items[name, key] = item
        return item

    def add(self, item: StatItem, value: int, times: int = 1) -> None:
        """Count."""
        item.value += value
        item.times += times
        if not item.is_noted:
            item.is_noted = True
            self._changed[0].append(item)

    def tick(self) -> bool:
        """Sample what changed, every ``SAMPLE_SECONDS``; returns whether counters were dropped."""
        now = self._clock.monotonic()
        self._ticks += 1
        minute, hour, day = self._changed
        for item in minute:
            item.is_noted = False
            item.rests_since = self._ticks
            item.sample(0, now)
            hour[id(item)] = item
        minute.clear()
        if self._ticks % _SPANS[1].ticks == 0:
            self._sample_all(1, hour, now)
            day |= hour
            hour.clear()
        if self._ticks % _SPANS[2].ticks == 0:
            self._sample_all(2, day, now)
            day.clear()
            return self._drop_rested()
        return False

    def _sample_all(self, span: int, items: dict[int, StatItem], now: float) -> None:
        for item in items.values():
            item.sample(span, now)

    def _drop_rested(self) -> bool:
        before, limit = len(self._items), self._ticks - _DAY_TICKS
        self._remove(key for key, item in self._items.items() if item.rests_since <= limit)
        return len(self._items) < before

    def forget(self, is_gone: Callable[[str, str], bool]) -> None:
        """Drop the counters of which ``is_gone(name, key)`` says so."""
        self._remove(place for place in self._items if is_gone(*place))

    def _remove(self, places: Iterable[tuple[str, str]]) -> None:
        for place in list(places):
            del self._items[place]

    def minute(self, name: str, key: str) -> float:
        """A second over the last minute; 0 for what was never counted."""
        item = self._items.get((name, key))
        return 0.0 if item is None else item.over(0, self._clock.monotonic()).tps

    def totals(self) -> list[tuple[tuple[str, str], StatItem]]:
        """Name and key of all counters, with what was counted since each began."""
        return list(self._items.items())

    def data(self, name: str, key: str) -> BrokerStatsData | None:
        """Minute, hour and day of a counter, None for one that there is not."""
        item = self._items.get((name, key))
        if item is None:
            return None
        now = self._clock.monotonic()
        return BrokerStatsData(item.over(0, now), item.over(1, now), item.over(2, now))
