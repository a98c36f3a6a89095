"""Redrives: all dead letters of a group back to it, at a rate and behind the pages, and how far each of them is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from rocketcore.admin.dead_letters import RedrivePace
from rocketcore.admin.timestamps import timestamp
from rocketcore.errors import Overloaded, RocketError
from rocketcore.service import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from rocketcore.admin.dead_letters import DeadLetterQueue
    from rocketcore.admin.logic import AsyncAdmin

__all__ = ["Redrive", "Redrives"]

logger = logging.getLogger(__name__)

MOST_RUNNING: Final = 4
"""At the same time; of one group only one."""
MOST_KEPT: Final = 100
"""Groups of which the last redrive is remembered."""


@dataclass(slots=True)
class Redrive:
    """One redrive.

    rate   dead letters a second at most
    count  how many were meant when it began; ``done`` of them were redriven
    state  ``stopped`` is one that somebody ended; ``failed`` has its error
    """

    group: str
    rate: float
    count: int
    began_at: str | None
    done: int = 0
    state: Literal["running", "done", "stopped", "failed"] = "running"
    error: str | None = None

    def row(self) -> dict[str, Any]:
        return asdict(self)


class Redrives:
    """Those of one cluster; loop only. What a redrive has done outlives it: the group's offset in its dead letters."""

    def __init__(self, admin: AsyncAdmin, clock: Clock = SYSTEM_CLOCK) -> None:
        self._admin = admin
        self._clock = clock
        self._last: dict[str, Redrive] = {}
        self._running: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}

    def of(self, group: str) -> Redrive | None:
        """Return how the last redrive of a group stands; what is returned changes no more."""
        last = self._last.get(group)
        return None if last is None else replace(last)

    def start(self, group: str, queues: Sequence[DeadLetterQueue], rate: float) -> Redrive:
        """Begin to redrive what these queues hold; raises Overloaded while one of the group, or too many, run."""
        if group in self._running:
            raise Overloaded(f"the dead letters of group {group!r} are being redriven: stop that first")
        if len(self._running) >= MOST_RUNNING:
            raise Overloaded(f"{MOST_RUNNING} redrives are running: wait for one")
        count = sum(each.end - each.redriven for each in queues)
        redrive = Redrive(group, rate, count, timestamp(self._clock.time_millis()))
        self._last.pop(group, None)
        self._last[group] = redrive
        while len(self._last) > MOST_KEPT:
            del self._last[next(name for name in self._last if name not in self._running)]
        stop = asyncio.Event()
        task = asyncio.create_task(self._run(redrive, list(queues), stop), name=f"console-redrive-{group}")
        self._running[group] = task, stop
        return redrive

    async def stop(self, group: str) -> None:
        """End the redrive of a group, if one runs, once what it has asked for is answered."""
        if group in self._running:
            task, stop = self._running[group]
            stop.set()
            await asyncio.wait([task])

    async def close(self) -> None:
        await asyncio.gather(*map(self.stop, list(self._running)))

    async def _run(self, redrive: Redrive, queues: list[DeadLetterQueue], stop: asyncio.Event) -> None:
        try:
            await self._redrive(redrive, queues, stop)
            redrive.state = "done" if redrive.done >= redrive.count or not stop.is_set() else "stopped"
        except RocketError as error:
            redrive.state, redrive.error = "failed", str(error)
            with contextlib.suppress(RocketError):
                redrive.done = await self._done(redrive.group, queues)
        except Exception as error:
            logger.exception("redrive failed group=%s", redrive.group)
            redrive.state, redrive.error = "failed", type(error).__name__
        finally:
            del self._running[redrive.group]
        logger.info(
            "redrive ended group=%s state=%s redriven=%d of=%d error=%s",
            redrive.group, redrive.state, redrive.done, redrive.count, redrive.error,
        )  # fmt: skip

    async def _redrive(self, redrive: Redrive, queues: list[DeadLetterQueue], stop: asyncio.Event) -> None:
        pace = RedrivePace(redrive.rate)
        began = self._clock.monotonic()
        for each in queues:
            offset = each.redriven
            while offset < each.end and not stop.is_set():
                page = await self._admin.dead_letters(each.queue, offset, min(pace.page, each.end - offset))
                if not page:
                    break
                redrive.done += await self._admin.redrive(redrive.group, page)
                offset = page[-1].offset + 1
                with contextlib.suppress(TimeoutError):
                    pause = pace.pause(redrive.done, self._clock.monotonic() - began)
                    await asyncio.wait_for(stop.wait(), pause) if pause else await asyncio.sleep(0)

    async def _done(self, group: str, queues: list[DeadLetterQueue]) -> int:
        """Return how many are behind the group's offsets by now: the page that failed may be done in part."""
        now = {each.queue: each.redriven for each in await self._admin.dead_letter_queues(group)}
        marks = ((each, now.get(each.queue, each.redriven)) for each in queues)
        return sum(min(mark, each.end) - each.redriven for each, mark in marks if mark > each.redriven)
