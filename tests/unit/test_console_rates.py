"""The console's rates: rings, gaps, and what a sample makes of what brokers count."""

from __future__ import annotations

import asyncio

from rocketcore.admin.survey import GroupProgress, GroupSurvey
from rocketcore.console.rates import HEAT_COLUMNS, RINGS, Rates, Sampler, put_times
from rocketcore.console.topic_rates import TopicRates
from rocketcore.errors import ConnectError, RocketError
from rocketcore.service import ManualClock


def test_coarser_rows_are_the_means_of_what_was_known() -> None:
    rates = Rates()
    for second in range(20):
        value = None if second == 3 else float(second)
        rates.add(1_000_000 + second, (value, None, 1.0, None, None, None))
    fine, coarse = rates.table(1), rates.table(10)
    assert fine["time"] == list(range(1_000_000, 1_000_020))
    assert fine["in_msgs"][2:5] == [2.0, None, 4.0]
    assert coarse["time"] == [1_000_000, 1_000_010]
    assert coarse["in_msgs"] == [(45 - 3) / 9, 14.5]
    assert coarse["out_msgs"] == [None, None]
    assert rates.latest()["in_msgs"] == 19.0
    assert rates.line("in_msgs", 2) == [18.0, 19.0]


def test_rings_are_bounded() -> None:
    rates = Rates()
    for second in range(2000):
        rates.add(second, (1.0,) * 6)
    assert [len(rates.table(step)["time"]) for step, _ in RINGS] == [601, 200, 34]


class Brokers:
    """An admin client whose brokers say what a test gives them."""

    def __init__(self) -> None:
        self.says: dict[str, dict[str, str] | RocketError] = {}
        self.groups = 0

    async def broker_runtimes(self) -> dict[str, dict[str, str] | RocketError]:
        return self.says

    async def survey_groups(self) -> GroupSurvey:
        self.groups += 1
        return GroupSurvey(traffic={"g": {"t": GroupProgress(lag=7)}, "h": {"t": GroupProgress(lag=1)}})


def test_a_sample_is_the_growth_since_the_last() -> None:
    brokers, clock, rates = Brokers(), ManualClock(1_000_000_000), Rates()
    sampler = Sampler(brokers, rates, TopicRates(clock), clock)  # type: ignore[arg-type]

    def sample(**says: int | RocketError) -> dict[str, float | None]:
        brokers.says = {
            name: value if isinstance(value, RocketError) else
            {"msgPutTotalTodayNow": str(value), "msgGetTotalTodayNow": "0", "putLatency50": "0.75",
             "putLatency99": "2.50"}
            for name, value in says.items()
        }  # fmt: skip
        asyncio.run(sampler.sample())
        clock.advance(2)
        return rates.latest()

    assert sample(a=100, b=50)["in_msgs"] is None
    now = sample(a=120, b=60)
    assert (now["in_msgs"], now["out_msgs"], now["in_bytes"], now["lag"]) == (15.0, 0.0, None, 8.0)
    assert (now["p50_ms"], now["p99_ms"]) == (0.75, 2.5)
    assert sample(a=140, b=ConnectError("away"))["in_msgs"] == 10.0
    assert sample(a=0, b=80)["in_msgs"] is None  # one was restarted, the other was away
    assert sample(a=10, b=90)["in_msgs"] == 10.0
    assert sample()["p99_ms"] is None
    assert brokers.groups == 2  # every ten seconds


def test_put_times_are_read_as_brokers_say_them() -> None:
    said = {"putMessageDistributeTime": "[<=0ms]:3 [0~10ms]:20 [10s~]:1 "}
    assert put_times(said) == [("<=0ms", 3), ("0~10ms", 20), ("10s~", 1)]
    assert put_times({}) == []


def test_latencies_are_what_grew_in_ten_seconds() -> None:
    rates = Rates()
    assert rates.median_bucket() is None
    for second, fast, slow in ((100, 5, 1), (101, 8, 1), (109, 9, 2), (110, 9, 4), (111, 2, 0), (112, 3, 0)):
        rates.add_times(second, {"0~10ms": fast, "10~50ms": slow})
    # The first look has nothing before it, and at 111 the broker was started anew.
    assert rates.heat() == [(100, {"0~10ms": 4, "10~50ms": 1}), (110, {"0~10ms": 1, "10~50ms": 2})]
    assert rates.median_bucket() == "10~50ms"
    for second in range(0, 100_000, 10):
        rates.add_times(second, {"0~10ms": second})
    assert len(rates.heat()) == HEAT_COLUMNS


def test_rates_of_topics_come_from_two_looks_at_the_groups() -> None:
    clock = ManualClock(1_000_000_000)
    rates = TopicRates(clock)

    def look(ends: dict[str, dict[str, int]], **failed: RocketError) -> dict[str, float | None]:
        clock.advance(10)
        traffic = {"g": {"t": GroupProgress(rate=2.0)}, "h": {"t": GroupProgress(rate=0.5)}}
        rates.add_survey(GroupSurvey(traffic=traffic, ends=ends, failed=failed))
        return rates.of("t")

    assert rates.of("t") == {"in_tps": None, "out_tps": None}
    assert look({"t": {"a": 100}}) == {"in_tps": None, "out_tps": 2.5}
    assert look({"t": {"a": 150}})["in_tps"] == 5.0
    assert rates.of("nobody-consumes-it") == {"in_tps": None, "out_tps": 0.0}
    assert look({"t": {"a": 160, "b": 7000}})["in_tps"] is None  # nobody sent those within ten seconds
    assert look({"t": {"a": 170, "b": 7010}})["in_tps"] == 2.0
    assert look({"t": {"a": 1, "b": 7010}})["in_tps"] is None
    assert look({"t": {"a": 11, "b": 7010}}, b=ConnectError("away")) == {"in_tps": None, "out_tps": None}
    rates.add_survey(None)
    assert rates.of("t") == {"in_tps": None, "out_tps": None}


def test_the_rate_of_a_topic_that_nobody_consumes_comes_from_two_counts() -> None:
    clock = ManualClock(1_000_000_000)
    rates = TopicRates(clock)
    rates.add_count("t", 1000)
    clock.advance(20)
    rates.add_count("t", 1010)
    assert rates.of("t") == {"in_tps": 0.5, "out_tps": None}
    clock.advance(301)
    assert rates.of("t")["in_tps"] is None
    rates.add_count("t", 2000)
    assert rates.of("t")["in_tps"] is None
