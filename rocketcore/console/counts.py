"""TopicCounts: how many messages topics have, counted a few topics a second, those first that somebody looks at.

No broker says it of all topics at once, and a list asks for nothing once per row: it shows what was counted last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from rocketcore.admin.timestamps import timestamp
from rocketcore.errors import RocketError
from rocketcore.message_queue import MessageQueue
from rocketcore.service import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from rocketcore.admin.logic import AsyncAdmin
    from rocketcore.console.topic_rates import TopicRates

__all__ = ["TopicCounts"]

logger = logging.getLogger(__name__)

A_SECOND: Final = 8
"""Topics that are counted in a second."""
FRESH_SECONDS: Final = 5.0
"""For which a count is not made again."""
MOST_REQUESTS: Final = 24
"""That a page may cost in counts made now: a route and an answer of each broker for each of a few topics."""
MOST_KEPT: Final = 20_000

_UNKNOWN: Final[dict[str, Any]] = {"messages": None, "last_stored_at": None, "counted_at": None}


class TopicCounts:
    """What was counted, by topic."""

    def __init__(self, admin: AsyncAdmin, rates: TopicRates, clock: Clock = SYSTEM_CLOCK) -> None:
        self._admin = admin
        self._rates = rates
        self._clock = clock
        self._counts: dict[str, tuple[float, dict[str, Any]]] = {}
        self._wanted: dict[str, None] = {}
        self._oldest: dict[str, dict[MessageQueue, int]] = {}
        self._brokers = 3
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="console-counts")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def of(self, topics: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the last counts of topics; a few that are not fresh are counted now, the others soon."""
        names = list(topics)
        stale = [name for name in names if not self._is_fresh(name)]
        if len(stale) * (1 + self._brokers) <= MOST_REQUESTS:
            await self.count(stale)
        else:
            self._wanted.update(dict.fromkeys(stale[:MOST_KEPT]))
        return {name: self._counts[name][1] if name in self._counts else _UNKNOWN for name in names}

    def messages(self, topics: Iterable[str]) -> int | None:
        """Return how many messages topics have together, as counted last; None where one was not; it is soon."""
        names = list(topics)
        self._want(names)
        known = [self._counts[name][1]["messages"] for name in names if name in self._counts]
        return None if len(known) < len(names) or None in known else sum(known)

    def _want(self, names: list[str]) -> None:
        self._wanted.update(dict.fromkeys([name for name in names if not self._is_fresh(name)][:MOST_KEPT]))

    def oldest(self, topics: Iterable[str]) -> dict[MessageQueue, int]:
        """Return the smallest offsets of the queues of topics, as far as they were counted; what is old is soon."""
        names = list(topics)
        self._want(names)
        return {queue: offset for name in names for queue, offset in self._oldest.get(name, {}).items()}

    def _is_fresh(self, name: str) -> bool:
        return name in self._counts and self._clock.monotonic() - self._counts[name][0] < FRESH_SECONDS

    async def count(self, names: Iterable[str]) -> None:
        """Count topics now."""
        await asyncio.gather(*map(self._count, names))

    async def _count(self, name: str) -> None:
        found = _UNKNOWN
        try:
            stats = await self._admin.topic_stats(name)
        except RocketError as error:
            logger.debug("not counted topic=%s error=%s", name, error)
        else:
            if len(self._oldest) >= MOST_KEPT:
                self._oldest.clear()
            self._oldest[name] = {queue: each.min_offset for queue, each in stats.items()}
            self._brokers = max(1, len({queue.broker for queue in stats}))
            self._rates.add_count(name, sum(each.max_offset for each in stats.values()))
            found = {
                "messages": sum(each.max_offset - each.min_offset for each in stats.values()),
                "last_stored_at": timestamp(max((each.last_update_timestamp for each in stats.values()), default=0)),
                "counted_at": timestamp(self._clock.time_millis()),
            }
        if len(self._counts) >= MOST_KEPT:
            self._counts.clear()
        self._counts[name] = self._clock.monotonic(), found

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(1)
            names = list(self._wanted)[:A_SECOND]
            for name in names:
                del self._wanted[name]
            try:
                await self.count(names)
            except Exception:
                logger.exception("count failed")
