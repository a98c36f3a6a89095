"""What the console's front page says of groups: which consume nothing, and of which messages were deleted unseen."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("jinja2")

from rocketcore.admin.survey import GroupProgress, GroupSurvey, TopicSurvey
from rocketcore.codes import TRANS_GROUP, TRANS_HALF_TOPIC
from rocketcore.console.counts import TopicCounts
from rocketcore.console.pages.overview import _attention, _delayed, _half
from rocketcore.console.pages.topic import _problems
from rocketcore.console.topic_rates import TopicRates
from rocketcore.errors import ConnectError
from rocketcore.message_queue import MessageQueue
from rocketcore.protocol.bodies.stats import TopicOffset
from rocketcore.service import ManualClock

QUEUE = MessageQueue("t", "broker-a", 0)


class Brokers:
    """An admin client whose topic begins at offset 100."""

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        return {QUEUE: TopicOffset(100, 300, 1)}


def said(progress: GroupProgress, offset: int, *, counted: bool = True) -> list[tuple[str, str]]:
    counts = TopicCounts(Brokers(), TopicRates(), ManualClock(1_000_000_000))  # type: ignore[arg-type]
    if counted:
        asyncio.run(counts.count(["t"]))
    visit: Any = SimpleNamespace(url=lambda *_, **__: "", text=str, cluster=SimpleNamespace(counts=counts))
    topics = TopicSurvey(offsets={"t": {"g": {QUEUE: offset}, "other": {QUEUE: 0}}})
    found = _attention(visit, [], topics, GroupSurvey(traffic={"g": {"t": progress}}))
    return [(each["what"], each["more"]) for each in found]


def test_a_group_that_consumes_is_only_behind() -> None:
    assert said(GroupProgress(lag=50, consumed_at=1, rate=3.0), 250) == [("group is behind", "50 msg")]
    assert said(GroupProgress(lag=50), 250) == [("group is behind", "50 msg")]
    assert said(GroupProgress(), 300) == []


def test_a_group_that_consumes_nothing_is_told_of() -> None:
    assert said(GroupProgress(lag=50, consumed_at=1), 250) == [("group is behind and consumes nothing", "50 msg")]


def test_what_was_deleted_before_a_group_saw_it_comes_first() -> None:
    behind = GroupProgress(lag=260, rate=1.0)
    assert said(behind, 40) == [("retention has overtaken the group", "60 msg"), ("group is behind", "260 msg")]
    assert said(behind, 40, counted=False) == [("group is behind", "260 msg")]


def test_half_messages_are_those_that_our_brokers_count_or_that_apaches_check_has_before_it() -> None:
    def broker(**runtime: str) -> Any:
        return SimpleNamespace(broker_id=0, runtime=runtime)

    with_halves = TopicSurvey(configs={TRANS_HALF_TOPIC: {}})
    behind = GroupSurvey(traffic={TRANS_GROUP: {TRANS_HALF_TOPIC: GroupProgress(lag=9)}})
    ours, apaches = broker(halfMessages="3"), broker(putTps="1")
    counts = TopicCounts(Brokers(), TopicRates(), ManualClock(1_000_000_000))  # type: ignore[arg-type]
    assert _half(counts, [ours, ours], with_halves, behind) == 6
    assert _half(counts, [ours, apaches], with_halves, behind) == 9
    assert _half(counts, [apaches], TopicSurvey(), GroupSurvey()) == 0
    away = ConnectError("away")
    assert _half(counts, [apaches], with_halves, GroupSurvey(traffic=behind.traffic, failed={"b": away})) is None
    assert _half(counts, [apaches], with_halves, GroupSurvey()) is None
    asyncio.run(counts.count([TRANS_HALF_TOPIC]))
    assert _half(counts, [apaches], with_halves, GroupSurvey()) == 200  # those that are kept


def test_delayed_messages_are_those_of_timers_and_of_levels() -> None:
    levels = {"scheduleMessageOffset_1": "10,12", "scheduleMessageOffset_18": "0,5", "scheduleMessageOffset_2": "x"}
    assert _delayed({"timerCongestNum": "3", **levels}) == 10
    assert _delayed({"bootTimestamp": "1", **levels}) == 7
    assert _delayed({}) is None


def test_a_topic_on_one_of_several_brokers_is_odd() -> None:
    row = {"master": "a:1", "broker": "broker-a", "perm": "rw", "read_queues": 4, "write_queues": 4}
    assert [what for what, *_ in _problems([row], 2, {})] == ["All queues are on one broker."]
    assert _problems([row], 1, {}) == _problems([row, {**row, "broker": "broker-b"}], 2, {}) == []


def test_a_queue_that_holds_most_messages_is_odd() -> None:
    row = {"master": "a:1", "broker": "broker-a", "perm": "rw", "read_queues": 8, "write_queues": 8}
    stored = {MessageQueue("t", "broker-a", number): 200 for number in range(8)}
    assert _problems([row], 1, stored) == []
    fullest = MessageQueue("t", "broker-a", 3)
    [(what, place, _)] = _problems([row], 1, {**stored, fullest: 4000})
    assert (what, place) == ("A queue holds far more messages than the others.", "broker-a/3")
    assert _problems([row], 1, dict.fromkeys(stored, 1) | {fullest: 999}) == []


def test_dead_letters_are_counted_once_all_topics_of_them_were() -> None:
    counts = TopicCounts(Brokers(), TopicRates(), ManualClock(1_000_000_000))  # type: ignore[arg-type]
    assert counts.messages([]) == 0
    assert counts.messages(["t", "u"]) is None
    asyncio.run(counts.count(["t", "u"]))
    assert counts.messages(["t", "u"]) == 400
