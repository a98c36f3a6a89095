"""Counters and rates."""

from __future__ import annotations

from rocketcore.broker.stats import SNAPSHOT_SECONDS, BrokerStats
from rocketcore.service import ManualClock

DAY_MILLIS = 86_400_000


def test_rates_are_differences_over_time() -> None:
    clock = ManualClock()
    stats = BrokerStats(clock)
    for _ in range(12):
        stats.count_put("T", 50, 5_000)
        stats.count_get("g", "T", 20, 2_000)
        clock.advance(SNAPSHOT_SECONDS)
        stats.snapshot()
    assert stats.topic_put_rate("T") == 5.0
    assert stats.group_get_rate("g", "T") == 2.0
    assert stats.topic_put_rate("other") == 0.0
    assert stats.rates("put_messages") == "5.0 5.0 5.0"


def test_a_burst_shows_in_the_short_rate_first() -> None:
    clock = ManualClock()
    stats = BrokerStats(clock)
    for _ in range(60):
        clock.advance(SNAPSHOT_SECONDS)
        stats.snapshot()
    stats.count_put("T", 1_200, 1)
    clock.advance(SNAPSHOT_SECONDS)
    assert [float(rate) for rate in stats.rates("put_messages").split()] == [120.0, 20.0, 2.0]


def test_a_pull_without_messages_is_a_miss() -> None:
    stats = BrokerStats(ManualClock())
    stats.count_get("g", "T", 0, 0)
    assert (stats.totals.get_missed, stats.totals.get_found) == (1, 0)


def test_totals_of_the_morning_are_kept_for_two_days() -> None:
    clock = ManualClock(10 * DAY_MILLIS)
    stats = BrokerStats(clock)
    stats.count_put("T", 7, 1)
    clock.set_wall(11 * DAY_MILLIS)
    stats.snapshot()
    stats.count_put("T", 1, 1)
    clock.set_wall(12 * DAY_MILLIS)
    stats.snapshot()
    yesterday, today = stats.midnights
    assert (yesterday.put_messages, today.put_messages) == (7, 8)
