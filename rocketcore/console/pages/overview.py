"""The front page: what the cluster does now, and what needs attention."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rocketcore.admin.cluster import BrokerStatus
from rocketcore.admin.shapes import broker_figures, broker_row, topic_kind, whole
from rocketcore.admin.survey import GroupSurvey, TopicSurvey
from rocketcore.codes import DLQ_TOPIC_PREFIX, MASTER_ID, TRANS_GROUP, TRANS_HALF_TOPIC
from rocketcore.console.console import Page, Visit
from rocketcore.console.counts import TopicCounts
from rocketcore.console.drawing import spark, topology
from rocketcore.naming import is_system_group
from rocketcore.service import SYSTEM_CLOCK

__all__ = ["overview"]

FULL: Final = 0.85
"""Of a disk; brokers refuse messages at 0.9."""
STILL_MILLIS: Final = 60_000
MOST_ATTENTION: Final = 8


async def overview(visit: Visit) -> Page:
    brokers, topics, groups, producers = await asyncio.gather(
        visit.admin.broker_status(), visit.admin.survey_topics(), visit.admin.survey_groups(), visit.admin.producers(),
        return_exceptions=True,
    )  # fmt: skip
    for answer in (brokers, topics, groups):
        if isinstance(answer, BaseException):
            raise answer
    assert not isinstance(brokers, BaseException)
    assert not isinstance(topics, BaseException)
    assert not isinstance(groups, BaseException)
    rates = visit.cluster.rates
    lag = _lag_of(groups)
    now = rates.latest()
    figures = _figures(brokers)
    dead = [name for name in topics.configs if name.startswith(DLQ_TOPIC_PREFIX)]
    api = {
        "brokers": [broker_row(each) for each in brokers],
        "topics": sum(topic_kind(name, topics.own) == "normal" for name in topics.configs),
        "groups": sum(not is_system_group(name) for name in groups.configs),
        "producers": None if isinstance(producers, BaseException) else len(producers),
        "in_msgs": now["in_msgs"],
        "out_msgs": now["out_msgs"],
        "in_bytes": now["in_bytes"],
        "put_p50_ms": now["p50_ms"],
        "put_p50_bucket": rates.median_bucket(),
        "put_p99_ms": now["p99_ms"],
        "lag": lag,
        **figures,
        "half": _half(visit.cluster.counts, brokers, topics, groups),
        "dead_letter_groups": len(dead),
        "dead_letters": visit.cluster.counts.messages(dead),
        "attention": _attention(visit, brokers, topics, groups),
        "failed": {name: str(error) for name, error in {**topics.failed, **groups.failed}.items()},
    }
    sparks = {name: spark(rates.line(name)) for name in ("in_msgs", "out_msgs", "in_bytes", "p99_ms", "lag")}
    drawing = topology(visit.url, groups, {name for name in topics.configs if topic_kind(name, topics.own) == "normal"})
    return Page("overview.html", "Overview", {"now": api, "sparks": sparks, "drawing": drawing}, api)


def _lag_of(groups: GroupSurvey) -> int | None:
    if groups.failed:
        return None
    return sum(each.lag for name, topics in groups.traffic.items() for each in topics.values()
               if not is_system_group(name))  # fmt: skip


def _figures(brokers: list[BrokerStatus]) -> dict[str, Any]:
    """Return what masters say together; None where one of them does not."""
    runtimes: list[Mapping[str, str]] = [each.runtime or {} for each in brokers if each.broker_id == MASTER_ID]
    ratios = [broker_figures(runtime)["disk_ratio"] for runtime in runtimes]
    logs = [broker_figures(runtime)["log_bytes"] for runtime in runtimes]
    delayed = [_delayed(runtime) for runtime in runtimes]
    known_ratios = [ratio for ratio in ratios if ratio is not None]
    return {
        "disk_ratio": max(known_ratios, default=None),
        "log_bytes": None if None in logs or not logs else sum(logs),
        "delayed": None if None in delayed or not delayed else sum(each or 0 for each in delayed),
    }


def _delayed(runtime: Mapping[str, str]) -> int | None:
    """Return how many messages wait for a time or in the queues of delay levels; None where a broker does not say."""
    if not runtime:
        return None
    waiting = whole(runtime.get("timerCongestNum")) or 0  # 4.9 has no timers
    for name, said in runtime.items():
        if name.startswith("scheduleMessageOffset_"):
            position, _, end = said.partition(",")
            waiting += max(0, (whole(end) or 0) - (whole(position) or 0))
    return waiting


def _half(counts: TopicCounts, brokers: list[BrokerStatus], topics: TopicSurvey, groups: GroupSurvey) -> int | None:
    """Return how many half messages wait for the end of their transactions.

    Our brokers count them. Apache's do not: as many at most as lie behind the place up to which all have ended, which
    its check moves; before it has moved that once, all that are kept.
    """
    counted = [whole((each.runtime or {}).get("halfMessages")) for each in brokers if each.broker_id == MASTER_ID]
    if counted and None not in counted:
        return sum(each or 0 for each in counted)
    if topics.failed or groups.failed:
        return None
    if TRANS_HALF_TOPIC not in topics.configs:
        return 0
    behind = groups.traffic.get(TRANS_GROUP, {}).get(TRANS_HALF_TOPIC)
    return counts.messages([TRANS_HALF_TOPIC]) if behind is None else behind.lag


def _attention(
    visit: Visit, brokers: list[BrokerStatus], topics: TopicSurvey, groups: GroupSurvey
) -> list[dict[str, Any]]:
    """Return what somebody should look at, the most urgent first."""
    found: list[dict[str, Any]] = []
    unit = visit.text("msg")

    def add(level: str, what: str, name: str, more: str, where: str) -> None:
        found.append({"level": level, "what": what, "name": name, "more": more, "url": where})

    for broker in brokers:
        where = visit.url("/broker", name=broker.broker, id=broker.broker_id)
        if not broker.alive:
            add("bad", "broker does not answer", broker.broker, str(broker.error), where)
            continue
        runtime = broker.runtime or {}
        ratio = broker_figures(runtime)["disk_ratio"]
        if ratio is not None and ratio >= FULL:
            add("bad" if ratio >= 0.9 else "warn", "disk is nearly full", broker.broker, f"{ratio:.0%}", where)
        for name in ("damagedMessages", "logReadErrors"):
            if whole(runtime.get(name)):
                add("bad", "store found damage", broker.broker, f"{name}={runtime[name]}", where)
    for name in topics.configs:
        group = name.removeprefix(DLQ_TOPIC_PREFIX)
        if group != name:
            add("warn", "group has a topic of dead letters", group, "", visit.url("/dead-letters/group", name=group))
    for name, config in groups.configs.items():
        if not config.consume_enable:
            add("warn", "group may not consume", name, "", visit.url("/group", name=name))
    now = SYSTEM_CLOCK.time_millis()
    behind = [(each.lag, name, each) for name in groups.traffic if (each := groups.total(name)) and each.lag]
    for lag, name, each in sorted(behind, key=lambda one: one[:2], reverse=True)[:MOST_ATTENTION]:
        if is_system_group(name):
            continue
        # What was consumed last is old, and nothing was within ten seconds.
        stands = each.rate == 0 and each.consumed_at is not None and now - each.consumed_at > STILL_MILLIS
        level, what = ("warn", "group is behind and consumes nothing") if stands else ("info", "group is behind")
        add(level, what, name, f"{lag:,} {unit}", visit.url("/group", name=name))
    for lost, name in _overtaken(visit, topics, [name for _, name, _ in behind]):
        add("bad", "retention has overtaken the group", name, f"{lost:,} {unit}", visit.url("/group", name=name))
    order = ("bad", "warn", "info")
    return sorted(found, key=lambda each: order.index(each["level"]))[:MOST_ATTENTION]


def _overtaken(visit: Visit, topics: TopicSurvey, groups: Sequence[str]) -> list[tuple[int, str]]:
    """Return how many messages were deleted before each group saw them, of those groups where that is known."""
    wanted = set(groups)
    stored = {name: held for name, held in topics.offsets.items() if not wanted.isdisjoint(held)}
    oldest = visit.cluster.counts.oldest(stored)
    lost: dict[str, int] = {}
    for held in stored.values():
        for group in wanted & held.keys():
            missed = sum(max(0, oldest.get(queue, 0) - max(0, offset)) for queue, offset in held[group].items())
            lost[group] = lost.get(group, 0) + missed
    return sorted(((count, group) for group, count in lost.items() if count), reverse=True)
