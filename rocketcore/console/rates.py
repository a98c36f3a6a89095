"""Rates: what brokers count, sampled once a second and kept for a week in three rings.

1 s for 10 min, 10 s for 6 h, 60 s for 7 d: 12,840 rows at most. A coarser row is the mean of the finer ones that were
known; what no broker said is None, a gap in the line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rocketcore.admin.shapes import whole
from rocketcore.errors import RocketError
from rocketcore.service import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from rocketcore.admin.logic import AsyncAdmin
    from rocketcore.console.topic_rates import TopicRates

__all__ = ["RINGS", "SERIES", "Rates", "Sampler", "put_times", "sum_times"]

logger = logging.getLogger(__name__)

SERIES: Final = ("in_msgs", "out_msgs", "in_bytes", "p50_ms", "p99_ms", "lag")
"""Messages a second in and out, bytes a second in, milliseconds that half of the sends and 99 of 100 do not exceed,
messages waiting."""
RINGS: Final = ((1, 600), (10, 2160), (60, 10080))
"""Seconds of a row, and how many rows are kept."""
HEAT_SECONDS: Final = 10
HEAT_COLUMNS: Final = 60
"""Seconds of a column of the map of latencies, and how many are kept."""
LAG_SECONDS: Final = 10.0
"""Between two looks at all groups, at least; where one takes long, twenty times as long."""
_BUCKET: Final = re.compile(r"\[([^\]]+)\]:(\d+)")

Row = tuple[float | None, ...]


class Rates:
    """The rings; ``add`` takes a row of values in the order of ``SERIES``."""

    def __init__(self) -> None:
        self._rings = [deque[tuple[int, Row]](maxlen=length) for _, length in RINGS]
        self._open: list[tuple[int, list[Row]]] = [(0, []) for _ in RINGS]
        self._times: dict[str, int] = {}
        self._heat: deque[tuple[int, dict[str, int]]] = deque(maxlen=HEAT_COLUMNS)

    def add(self, second: int, row: Row) -> None:
        """Add what was known at a time, whole seconds since the epoch; a later row of the same second counts too."""
        for number, (step, _) in enumerate(RINGS):
            begin = second - second % step
            at, rows = self._open[number]
            if begin != at:
                if rows:
                    self._rings[number].append((at, _mean(rows)))
                at, rows = begin, []
                self._open[number] = at, rows
            rows.append(row)

    def table(self, step: int) -> dict[str, Any]:
        """Return the rows of a ring as columns: ``time`` and those of ``SERIES``, the newest one as far as it is."""
        number = [length for length, _ in RINGS].index(step)
        at, rows = self._open[number]
        shown = [*self._rings[number], *([(at, _mean(rows))] if rows else [])]
        columns = {name: [row[index] for _, row in shown] for index, name in enumerate(SERIES)}
        return {"step_seconds": step, "time": [time for time, _ in shown], **columns}

    def add_times(self, second: int, counts: Mapping[str, int]) -> None:
        """Add how many sends took how long, as brokers count them since they started, by bucket."""
        before, self._times = self._times, dict(counts)
        if before.keys() != counts.keys() or any(counts[label] < before[label] for label in before):
            return  # the first look, or a broker that was started anew
        begin = second - second % HEAT_SECONDS
        if not self._heat or self._heat[-1][0] != begin:
            self._heat.append((begin, dict.fromkeys(counts, 0)))
        column = self._heat[-1][1]
        for label, count in counts.items():
            column[label] = column.get(label, 0) + count - before[label]

    def heat(self) -> list[tuple[int, dict[str, int]]]:
        """Return how many sends of each time ended in each bucket: begin of the time, then counts by label."""
        return list(self._heat)

    def median_bucket(self) -> str | None:
        """Return the bucket that half of the last counted sends do not exceed: all that some brokers say."""
        counts = next((counts for _, counts in reversed(self._heat) if any(counts.values())), {})
        left = sum(counts.values()) / 2
        for label, count in counts.items():
            left -= count
            if count and left <= 0:
                return label
        return None

    def latest(self) -> dict[str, float | None]:
        """Return the newest row; None for what is not known."""
        _, rows = self._open[0]
        row = rows[-1] if rows else (None,) * len(SERIES)
        return dict(zip(SERIES, row, strict=True))

    def line(self, name: str, count: int = 120) -> list[float | None]:
        """Return the last values of a series, a second each."""
        return list(self.table(1)[name][-count:])


def _mean(rows: list[Row]) -> Row:
    columns = zip(*rows, strict=True)
    known = [[value for value in column if value is not None] for column in columns]
    return tuple(sum(values) / len(values) if values else None for values in known)


def put_times(runtime: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return how many sends took how long, by RocketMQ's buckets, as a broker says it in its runtime information."""
    return [(label, int(count)) for label, count in _BUCKET.findall(runtime.get("putMessageDistributeTime", ""))]


def sum_times(runtimes: Mapping[str, Mapping[str, str] | RocketError]) -> dict[str, int]:
    """Return the same of all brokers together, without those that did not answer."""
    buckets: dict[str, int] = {}
    for runtime in runtimes.values():
        for label, count in () if isinstance(runtime, RocketError) else put_times(runtime):
            buckets[label] = buckets.get(label, 0) + count
    return buckets


class Sampler:
    """Asks every master for its counters once a second, while the console runs."""

    def __init__(self, admin: AsyncAdmin, rates: Rates, topic_rates: TopicRates, clock: Clock = SYSTEM_CLOCK) -> None:
        self._admin = admin
        self._rates = rates
        self._topic_rates = topic_rates
        self._clock = clock
        self._before: dict[str, tuple[float, Mapping[str, int | None]]] = {}
        self._lag: float | None = None
        self._lag_due = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="console-rates")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self.sample()
            except Exception:
                logger.exception("sample failed")
            await asyncio.sleep(1 - self._clock.time_millis() % 1000 / 1000)

    async def sample(self) -> None:
        """Ask once, and add what is known."""
        try:
            runtimes = await self._admin.broker_runtimes()
        except RocketError as error:
            logger.debug("no sample error=%s", error)
            runtimes = {}
        await self._look_at_groups()
        self._rates.add_times(self._clock.time_millis() // 1000, sum_times(runtimes))
        self._rates.add(self._clock.time_millis() // 1000, (*self._row(runtimes), self._lag))

    async def _look_at_groups(self) -> None:
        began = self._clock.monotonic()
        if began < self._lag_due:
            return
        self._lag, survey = None, None
        with contextlib.suppress(RocketError):
            survey = await self._admin.survey_groups()
            totals = [survey.total(group) for group in survey.traffic]
            self._lag = None if survey.failed else float(sum(each.lag for each in totals if each is not None))
        took = self._clock.monotonic() - began
        self._topic_rates.add_survey(survey)
        self._lag_due = began + max(LAG_SECONDS, 20 * took)

    def _row(self, runtimes: Mapping[str, Mapping[str, str] | RocketError]) -> Row:
        """Return the sums over the brokers that answered twice; None where none did."""
        now = self._clock.monotonic()
        sums: list[float | None] = [None, None, None]
        slowest: dict[str, float | None] = {"putLatency50": None, "putLatency99": None}
        for address, runtime in runtimes.items():
            if isinstance(runtime, RocketError):
                self._before.pop(address, None)
                continue
            counters = {
                "in": whole(runtime.get("msgPutTotalTodayNow")),
                "out": whole(runtime.get("msgGetTotalTodayNow")),
                "bytes": whole(runtime.get("commitLogMaxOffset")),
            }
            before = self._before.get(address)
            self._before[address] = now, counters
            if before is not None and now > before[0]:
                for index, name in enumerate(counters):
                    new, old = counters[name], before[1][name]
                    if new is not None and old is not None and new >= old:
                        sums[index] = (sums[index] or 0.0) + (new - old) / (now - before[0])
            for name, known in slowest.items():
                with contextlib.suppress(KeyError, ValueError):
                    slowest[name] = max(float(runtime[name]), known or 0.0)
        return (*sums, *slowest.values())
