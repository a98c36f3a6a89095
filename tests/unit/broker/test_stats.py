"""Counters and rates."""

from __future__ import annotations

import pytest

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


def data(stats: BrokerStats, name: str, key: str) -> list[tuple[int, float, float]]:
    found = stats.data(name, key)
    assert found is not None
    spans = (found.stats_minute, found.stats_hour, found.stats_day)
    return [(span.sum, span.tps, span.avgpt) for span in spans if span is not None]


def test_a_counter_over_a_minute_an_hour_and_a_day() -> None:
    clock = ManualClock()
    stats = BrokerStats(clock, "Cluster")
    for _ in range(2 * 8640):  # two days
        stats.count_put("T", 30, 3_000, 10)
        clock.advance(SNAPSHOT_SECONDS)
        stats.snapshot()
    found = data(stats, "TOPIC_PUT_NUMS", "T")
    assert [(tps, average) for _, tps, average in found] == [(3.0, 3.0)] * 3
    # A sum goes back to the sample before the begin of its span.
    assert [total - seconds * 3 for (total, *_), seconds in zip(found, (60, 3600, 86_400), strict=True)] == [0, 30, 30]
    assert data(stats, "TOPIC_PUT_SIZE", "T")[0] == (18_000, 300.0, 300.0)
    assert data(stats, "BROKER_PUT_NUMS", "Cluster") == data(stats, "TOPIC_PUT_NUMS", "T")


def test_a_counter_that_has_just_begun() -> None:
    stats = BrokerStats(ManualClock())
    stats.count_put("T", 20, 100, 2)
    assert data(stats, "TOPIC_PUT_NUMS", "T") == [(20, 2.0, 10.0)] * 3
    assert stats.data("TOPIC_PUT_NUMS", "U") is None


def test_a_counter_that_rests_leaves_its_spans_one_after_the_other() -> None:
    clock = ManualClock()
    stats = BrokerStats(clock)

    def pass_by(seconds: int) -> list[int]:
        for _ in range(seconds // 10):
            clock.advance(SNAPSHOT_SECONDS)
            stats.snapshot()
        return [sums for sums, *_ in data(stats, "TOPIC_PUT_NUMS", "T")]

    stats.count_put("T", 5, 50)
    assert pass_by(60) == [5, 5, 5]
    assert pass_by(20) == [0, 5, 5]
    assert pass_by(2 * 3600) == [0, 0, 5]
    for _ in range(2 * 8640):
        clock.advance(SNAPSHOT_SECONDS)
        stats.snapshot()
    assert stats.data("TOPIC_PUT_NUMS", "T") is None  # nobody has counted there for a day
    stats.count_put("T", 1, 1)
    assert data(stats, "TOPIC_PUT_NUMS", "T")[0][0] == 1


def test_what_groups_were_handed_and_gave_back() -> None:
    stats = BrokerStats(ManualClock(), "Cluster")
    stats.count_get("g", "T", 4, 400, queue_id=3, seconds=0.02)
    stats.count_get("g", "T", 2, 200, queue_id=3)
    stats.count_get("g", "T", 0, 0)
    stats.count_send_back("g", "T")
    assert data(stats, "GROUP_GET_NUMS", "T@g")[0] == (6, 0.6, 3.0)
    assert data(stats, "GROUP_GET_SIZE", "T@g")[0] == (600, 60.0, 300.0)
    assert data(stats, "GROUP_GET_LATENCY", "3@T@g")[0] == (20, 2.0, 10.0)
    assert data(stats, "SNDBCK_PUT_NUMS", "T@g")[0] == (1, 0.1, 1.0)
    assert data(stats, "BROKER_GET_NUMS", "Cluster")[0][0] == 6


def test_counters_go_with_their_topic_or_group() -> None:
    stats = BrokerStats(ManualClock(), "T")
    for topic, group in (("T", "g"), ("T", "h"), ("U", "g"), ("g", "T")):
        stats.count_put(topic, 1, 1)
        stats.count_get(group, topic, 1, 1)

    def there() -> set[str]:
        keys = ("T@g", "T@h", "U@g", "g@T")
        found = {
            key for key in keys if stats.data("GROUP_GET_NUMS", key) and stats.data("GROUP_GET_LATENCY", f"0@{key}")
        }
        return found | {topic for topic in ("T", "U", "g") if stats.data("TOPIC_PUT_SIZE", topic)}

    assert there() == {"T@g", "T@h", "U@g", "g@T", "T", "U", "g"}
    stats.forget_topics(["T"])
    assert there() == {"U@g", "g@T", "U", "g"}
    assert stats.data("BROKER_PUT_NUMS", "T") is not None
    stats.forget_group("g")
    assert there() == {"g@T", "U", "g"}
    stats.count_get("g", "U", 7, 1)
    assert data(stats, "GROUP_GET_NUMS", "U@g")[0][0] == 7


def test_counters_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketcore.broker.stat_items.MOST_ITEMS", 10)
    monkeypatch.setattr("rocketcore.broker.stats.MOST_ITEMS", 10)
    stats = BrokerStats(ManualClock())
    for number in range(100):
        stats.count_put(f"T{number}", 1, 1)
    assert len(stats._items) == 10
    assert stats.data("TOPIC_PUT_NUMS", "T0") is not None
    assert stats.data("TOPIC_PUT_NUMS", "T99") is None
    stats.snapshot()
    assert len(stats._puts) == 0


def test_counters_of_queues_have_a_limit_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketcore.broker.stats._MOST_QUEUE_ITEMS", 4)
    stats = BrokerStats(ManualClock())
    for queue_id in range(10):
        stats.count_put("T", 1, 1, queue_id=queue_id)
    assert data(stats, "QUEUE_PUT_NUMS", "T@1")[0][0] == 1
    assert stats.data("QUEUE_PUT_NUMS", "T@2") is None
    assert data(stats, "TOPIC_PUT_NUMS", "T")[0][0] == 10


def test_how_long_sends_waited() -> None:
    times = BrokerStats(ManualClock()).put_times
    assert times.quantile(0.99) == 0.0
    for millis in range(1, 101):
        times.add(millis / 1000)
    assert (times.quantile(0.99), times.longest) == (0.1, 0.1)
    assert times.quantile(0.5) == 0.051
    assert str(times).startswith("[<=0ms]:0 [0~10ms]:10 [10~50ms]:40 [50~100ms]:50 [100~200ms]:0 ")
