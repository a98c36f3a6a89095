"""TopicRates: messages a second into topics and out of them, from what is asked for anyway.

No broker of any version says it of all topics at once. But the progress of all groups, which the sampler asks every
master for, has the next offsets of each topic that a group consumes, and how fast it does: two of them make the rates
of all these topics without a request more. Of a topic that nobody consumes it takes two counts (``TopicCounts``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketcore.service import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from rocketcore.admin.survey import GroupSurvey

__all__ = ["TopicRates"]

LONGEST: Final = 300.0
"""Seconds between two looks, at most: what lies further apart says nothing about now."""
MOST_KEPT: Final = 20_000


class TopicRates:
    """By topic."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._in: dict[str, float] = {}
        self._out: dict[str, float] | None = None
        self._ends: tuple[float, dict[str, dict[str, int]]] = (0.0, {})
        self._written: dict[str, tuple[float, int]] = {}
        self._counted: dict[str, tuple[float, float]] = {}

    def add_survey(self, survey: GroupSurvey | None) -> None:
        """Take in the progress of all groups; None, or with a broker that failed: nothing is known by it."""
        now = self._clock.monotonic()
        self._in, self._out = {}, None
        (before, olds), self._ends = self._ends, (now, {})
        if survey is None or survey.failed:
            return
        self._ends = now, survey.ends
        for topic, ends in survey.ends.items() if 0 < now - before <= LONGEST else ():
            old = olds.get(topic, {})
            # A broker that is new here, or lost a topic, would be a rate that nobody had.
            if ends.keys() == old.keys() and all(ends[name] >= old[name] for name in ends):
                self._in[topic] = sum(ends[name] - old[name] for name in ends) / (now - before)
        self._out = {}
        for topics in survey.traffic.values():
            for topic, each in topics.items():
                self._out[topic] = self._out.get(topic, 0.0) + each.rate

    def add_count(self, topic: str, written: int) -> None:
        """Take in the offsets of a topic's next messages, of all queues together."""
        now = self._clock.monotonic()
        if len(self._written) >= MOST_KEPT:
            self._written.clear()
            self._counted.clear()
        before, old = self._written.get(topic, (0.0, -1))
        self._written[topic] = now, written
        self._counted.pop(topic, None)
        if 0 <= old <= written and 0 < now - before <= LONGEST:
            self._counted[topic] = now, (written - old) / (now - before)

    def of(self, topic: str) -> dict[str, float | None]:
        """Return ``in_tps`` and ``out_tps`` of a topic; None where unknown, 0 out where no group consumes it."""
        now = self._clock.monotonic()
        counted_at, counted = self._counted.get(topic, (now, None))
        into = self._in.get(topic, counted if now - counted_at <= LONGEST else None)
        out = None if self._out is None else self._out.get(topic, 0.0)
        return {"in_tps": _rounded(into), "out_tps": _rounded(out)}


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 2)
