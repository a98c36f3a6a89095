"""Reads that may wait for the disk: the one place where they do, so that the event loop does not.

``now`` makes a read that raises ``Cold`` instead of waiting (``pages``). ``later`` has a thread read the ranges that it
lacks, makes it again, and so on until it has its answer. ``read`` is both, for a coroutine.

Order     What one owner, mostly a connection, reads is answered in the order in which it was asked for: behind a read
          that waits, others of its owner wait too.
Bounds    An owner may have ``PER_OWNER`` reads waiting, all together ``CAPACITY``; more are refused with SYSTEM_BUSY.
          At most ``THREADS`` ranges are being read, each of 2 MiB at most, into the system's memory and not ours.
Ahead     What is read ahead of a reader (``Pages.read_ahead``) is read when nothing waits for a thread, and is as if it
          had never been tried where the disk refuses it and nobody waits for it.
Deadline  A read that has no answer after ``SECONDS`` fails, is counted and named; so do those behind it when they have
          waited as long. A thread that hangs in the disk hangs alone, with a descriptor of its own; ``stop`` leaves it.

A disk that fails a page fails the reads that need it and no others (``Pages.loaded``).
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from rocketcore.broker.store.flush import DiskThread
from rocketcore.broker.store.log.pages import Cold, LogRange, Pages, UnitRange
from rocketcore.codes import OVERLOAD, ResponseCode
from rocketcore.errors import BrokerError, StoreError
from rocketcore.service import Clock

__all__ = ["CAPACITY", "PER_OWNER", "SECONDS", "THREADS", "ColdReads"]

P = ParamSpec("P")
T = TypeVar("T")

CAPACITY: Final = 10_000
PER_OWNER: Final = 1024
THREADS: Final = 4
SECONDS: Final = 8.0
"""Less than the ten after which a client gives a pull up, so that it learns why."""

_MOST_ROUNDS: Final = 1000
"""Ranges that one read may turn out to lack, one after the other: a search by time needs two for each of its steps."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Waiting:
    owner: Hashable
    call: Callable[[], Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]
    deadline: float
    lacks: str = ""
    loads: int = 0
    rounds: int = 0
    ended: bool = False


@dataclass(slots=True, eq=False)
class _Load:
    """A range that is read, or will be; and who waits for it."""

    what: LogRange | UnitRange
    waiting: list[_Waiting] = field(default_factory=list)


class ColdReads:
    """Loop thread only; ``start`` comes before the first ``later``.

    owner  of a read: any hashable; ``forget`` ends what waits for it
    """

    def __init__(self, pages: Pages, clock: Clock) -> None:
        self.cold_reads = 0
        """Ranges that threads read since the start."""
        self.timeouts = 0
        """Reads that failed since the start because the disk did not answer."""
        self.waiting: dict[Hashable, deque[_Waiting]] = {}
        """What waits, by its owner."""
        self._pages = pages
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0
        self._loads: dict[LogRange | UnitRange, _Load] = {}
        self._pending: deque[_Load] = deque()
        self._ahead: deque[_Load] = deque()
        self._idle: list[DiskThread] = []
        self._busy: set[DiskThread] = set()

    def __len__(self) -> int:
        """How many reads wait."""
        return self._count

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pages.read_ahead = self._read_ahead
        self._pages.begin()

    async def stop(self) -> None:
        """Fail what waits, end the threads; one that hangs in the disk is left to itself."""
        self._loop = None
        self._pending.clear()
        self._ahead.clear()
        for owner in list(self.waiting):
            self.forget(owner, "the store is shutting down")
        for thread in self._busy:
            thread.leave()
        self._busy.clear()
        while self._idle:
            await self._idle.pop().stop()

    # ------------------------------------------------------------------ reading

    @property
    def waiting_reads(self) -> int:
        """How many reads wait for the disk."""
        return self._count

    def now(self, owner: Hashable, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what ``call`` returns.

        raises  Cold where it would have to wait for the disk, or for other reads of the owner; what it raises
        """
        if owner in self.waiting:
            raise Cold
        self._pages.asks = True
        try:
            return call(*args, **kwargs)
        finally:
            self._pages.asks = False

    def later(
        self,
        owner: Hashable,
        cold: Cold,
        call: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Make a read that was ``cold`` when what it lacks was read, and those of its owner before it were answered.

        done    gets what ``call`` returns, in the step of the loop in which it does
        failed  gets what ``call`` or ``done`` raises; OSError (ETIMEDOUT) of a disk that does not answer; StoreError
                when the owner is forgotten, or the store stops
        raises  BrokerError (SYSTEM_BUSY) where too many wait, StoreError after ``stop``
        """
        if self._loop is None:
            raise StoreError("the store is shutting down")
        mine = self.waiting.get(owner, ())
        if self._count >= CAPACITY or len(mine) >= PER_OWNER:
            raise BrokerError.of(ResponseCode.SYSTEM_BUSY, f"{OVERLOAD}: too many reads wait for the disk")
        waiting = _Waiting(owner, call, done, failed, self._clock.monotonic() + SECONDS)
        self.waiting.setdefault(owner, deque()).append(waiting)
        self._count += 1
        if not mine:
            self._load(waiting, cold)

    async def read(self, owner: Hashable, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what ``call`` returns, when all that it reads is in memory; raises what ``now`` and ``later`` do."""
        try:
            return self.now(owner, call, *args, **kwargs)
        except Cold as cold:
            lacks = cold
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T) -> None:
            if not answer.done():
                answer.set_result(result)

        def failed(error: Exception) -> None:
            if not answer.done():
                answer.set_exception(error)

        self.later(owner, lacks, partial(call, *args, **kwargs), done, failed)
        return await answer

    def forget(self, owner: Hashable, reason: str = "its connection closed") -> None:
        """End what waits for an owner that is gone."""
        for waiting in self.waiting.pop(owner, ()):
            self._count -= 1
            waiting.ended = True
            waiting.failed(StoreError(f"not read: {reason}"))

    def look(self) -> None:
        """Fail what has waited too long; called every second."""
        now = self._clock.monotonic()
        for owner, mine in list(self.waiting.items()):
            if mine[0].deadline > now:
                continue
            while mine and mine[0].deadline <= now:  # in the order of their deadlines
                waiting = mine[0]
                self.timeouts += 1
                logger.error("disk does not answer path=%s seconds=%g", waiting.lacks, SECONDS)
                reason = f"the disk has not answered for {SECONDS:g} s"
                self._end(waiting, OSError(errno.ETIMEDOUT, reason, waiting.lacks))
            self._advance(owner)
        self._pages.age()

    # ------------------------------------------------------------------ waiting

    def _load(self, waiting: _Waiting, cold: Cold) -> None:
        """Have a thread read what a read lacks."""
        waiting.loads = len(cold.ranges)
        waiting.rounds += 1
        for what in cold.ranges:
            waiting.lacks = f"{what.path}:{what.begin}"
            load = self._loads.get(what)
            if load is None:
                load = self._loads[what] = _Load(what)
                self._pending.append(load)
            elif not load.waiting and load in self._ahead:
                self._ahead.remove(load)
                self._pending.append(load)
            # A disk that never answers does not gather those who gave it up.
            load.waiting = [each for each in load.waiting if not each.ended]
            load.waiting.append(waiting)
        self._work()

    def _read_ahead(self, what: LogRange) -> bool:
        """Read a range when a thread is free; returns False where others have to be read ahead first."""
        if self._loop is None or len(self._ahead) >= THREADS or what in self._loads:
            return False
        load = self._loads[what] = _Load(what)
        self._ahead.append(load)
        self._work()
        return True

    def _work(self) -> None:
        """Give threads that are idle something to read."""
        while self._pending or self._ahead:
            thread = self._idle.pop() if self._idle else self._new_thread()
            if thread is None:
                return
            load = self._pending.popleft() if self._pending else self._ahead.popleft()
            self._busy.add(thread)
            self.cold_reads += 1
            thread.submit(load.what.load, partial(self._loaded, thread, load))

    def _new_thread(self) -> DiskThread | None:
        if self._loop is None or len(self._busy) >= THREADS:
            return None
        try:
            return DiskThread(f"rocket-store-read-{len(self._busy)}", self._loop)
        except RuntimeError as error:
            # What waits is read when a thread is free, or fails when its time is over.
            logger.error("no thread to read with reason=%s", error)
            return None

    def _loaded(self, thread: DiskThread, load: _Load, end: int | None, error: BaseException | None) -> None:
        """A thread has read a range."""
        if self._loop is None:
            return
        self._busy.discard(thread)
        self._idle.append(thread)
        del self._loads[load.what]
        failure = error if isinstance(error, OSError) or error is None else OSError(errno.EIO, repr(error))
        if failure is not None and not load.waiting and isinstance(load.what, LogRange):
            self._pages.not_read(load.what)
        else:
            self._pages.loaded(load.what, load.what.begin if end is None else end, failure)
        for waiting in load.waiting:
            waiting.loads -= 1
            if not waiting.ended and not waiting.loads:
                self._advance(waiting.owner)
        self._work()

    def _advance(self, owner: Hashable) -> None:
        """Answer what waits for an owner, as far as it is in memory."""
        while (mine := self.waiting.get(owner)) and not mine[0].loads:
            waiting = mine[0]
            self._pages.asks = True
            try:
                outcome = waiting.call()
            except Cold as cold:
                if waiting.rounds < _MOST_ROUNDS:
                    self._load(waiting, cold)
                    return
                outcome = OSError(errno.EAGAIN, "the data read leaves memory before it is used", waiting.lacks)
            except Exception as error:
                outcome = error
            finally:
                self._pages.asks = False
            self._end(waiting, outcome)

    def _end(self, waiting: _Waiting, outcome: Any) -> None:
        """Take out the first of its owner's reads, and say what became of it."""
        mine = self.waiting[waiting.owner]
        mine.popleft()
        if not mine:
            del self.waiting[waiting.owner]
        self._count -= 1
        waiting.ended = True
        if not isinstance(outcome, Exception):
            try:
                waiting.done(outcome)
                return
            except Exception as error:
                outcome = error
        waiting.failed(outcome)
