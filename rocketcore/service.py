"""Time, retry intervals and supervised background work, so that no other module reads a clock or starts a bare task.

``Clock`` is the only source of time below the command line: tests pass a ``ManualClock`` and turn it by hand. asyncio
is imported where it is used, here and in ``transport``: a command that only asks has no loop, and starts without it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio
    from random import Random

__all__ = [
    "SYSTEM_CLOCK",
    "Backoff",
    "Clock",
    "Deadline",
    "ManualClock",
    "PeriodicTask",
    "PeriodicThread",
    "Seldom",
    "SystemClock",
    "acquire_or_signal",
    "wait_or_signal",
]

logger = logging.getLogger(__name__)

_SIGNAL_SECONDS: Final = 0.5
"""The main thread waits in slices of this length. A signal that comes in the instant before it waits, or that another
thread took, does not end a wait; its handler runs between two slices."""


class Clock(Protocol):
    """Wall time for what is stored and shown, monotonic time for deadlines and leases."""

    def time_millis(self) -> int:
        """Milliseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def time_millis(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)


SYSTEM_CLOCK = SystemClock()


class ManualClock:
    """A clock that stands still until it is turned."""

    __slots__ = ("_millis", "_monotonic")

    def __init__(self, time_millis: int = 1_700_000_000_000) -> None:
        self._millis = time_millis
        self._monotonic = 0.0

    def time_millis(self) -> int:
        return self._millis

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Turn both clocks forward."""
        self._millis += round(seconds * 1000)
        self._monotonic += seconds

    def set_wall(self, time_millis: int) -> None:
        """Set the wall clock, forward or back; monotonic time goes on."""
        self._millis = time_millis


class Deadline:
    """A point in monotonic time that several steps share."""

    __slots__ = ("_clock", "_end", "timeout")

    def __init__(self, timeout: float, clock: Clock = SYSTEM_CLOCK, since: float | None = None) -> None:
        """Begin to count; ``since`` monotonic seconds that may have passed, None: now."""
        self.timeout = timeout
        self._clock = clock
        self._end = (clock.monotonic() if since is None else since) + timeout

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - self._clock.monotonic())

    @property
    def expired(self) -> bool:
        return self._clock.monotonic() >= self._end


class Backoff:
    """Exponential intervals with jitter: the bound of each is ``factor`` times the last's, at most ``maximum``."""

    __slots__ = ("_initial", "_maximum", "_next", "_random", "factor")

    def __init__(
        self, initial: float = 0.1, maximum: float = 30.0, factor: float = 2.0, *, rng: Random | None = None
    ) -> None:
        self._initial = initial
        self._maximum = maximum
        self.factor = factor
        self._next = initial
        self._random = rng

    def next(self) -> float:
        """Return the next interval in seconds, between half of it and all of it."""
        if self._random is None:  # most are made for what does not fail
            from random import Random

            self._random = Random()
        interval = self._next
        self._next = min(self._maximum, interval * self.factor)
        return interval * (0.5 + self._random.random() / 2)

    def reset(self) -> None:
        """Start over after a success."""
        self._next = self._initial


class Seldom:
    """Says when something that happens often is told again: at most once in ``interval`` seconds."""

    def __init__(self, interval: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._interval = interval
        self._clock = clock
        self._next = float("-inf")
        self._unsaid = 0

    def due(self) -> int | None:
        """Return how often it happened untold since the last time, or None: it is not told now."""
        now = self._clock.monotonic()
        if now < self._next:
            self._unsaid += 1
            return None
        self._next = now + self._interval
        return self.rest()

    def rest(self) -> int:
        """Return how often it happened untold since the last time, and count from 0."""
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid


class PeriodicTask:
    """A named asyncio task that runs a function at an interval and outlives its failures.

    A failure is logged and counted, the next round runs as planned. ``wake()`` starts a round at once. A function that
    wants its next round sooner than at the interval returns in how many seconds.

    interval  in seconds; a function is asked for it before each round
    """

    def __init__(
        self,
        name: str,
        function: Callable[[], Awaitable[float | None] | float | None],
        interval: float | Callable[[], float],
        *,
        initial_delay: float | None = None,
    ) -> None:
        self.name = name
        self.failures = 0
        import asyncio

        self._function = function
        self._interval = interval if callable(interval) else lambda: interval
        self._initial_delay = self._interval() if initial_delay is None else initial_delay
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        import asyncio

        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=self.name)

    def wake(self) -> None:
        self._wake.set()

    async def stop(self) -> None:
        """Cancel the task and wait for its end."""
        import asyncio

        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        # Not ``await task``: its CancelledError could not be told from one that is meant for the caller, who may be
        # closing things because it was cancelled itself.
        await asyncio.wait([task])

    async def _run(self) -> None:
        import asyncio

        delay = self._initial_delay
        while True:
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            delay = self._interval()
            try:
                result = self._function()
                sooner = await result if isinstance(result, Awaitable) else result
                if sooner is not None:
                    delay = min(sooner, delay)
            except Exception:
                self._failed()
            except asyncio.CancelledError:
                # Where nobody cancelled this task, it is the end of something that the function waited for.
                this = asyncio.current_task()
                if this is None or this.cancelling():
                    raise
                self._failed()

    def _failed(self) -> None:
        self.failures += 1
        logger.exception("task failed task=%s failures=%d", self.name, self.failures)


class PeriodicThread:
    """The same for blocking code: a named daemon thread, woken by ``wake()``, ended by ``stop()``."""

    def __init__(
        self, name: str, function: Callable[[], float | None], interval: float, *, initial_delay: float | None = None
    ) -> None:
        self.name = name
        self.failures = 0
        self._function = function
        self._interval = interval
        self._initial_delay = interval if initial_delay is None else initial_delay
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread after the round it is in; wait at most ``timeout`` seconds."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _run(self) -> None:
        delay = self._initial_delay
        while True:
            self._wake.wait(delay)
            self._wake.clear()
            if self._stopped:
                return
            delay = self._interval
            try:
                sooner = self._function()
                if sooner is not None:
                    delay = min(sooner, delay)
            except Exception:
                self.failures += 1
                logger.exception("thread failed thread=%s failures=%d", self.name, self.failures)


def wait_or_signal(event: threading.Event, check: Callable[[], None] = lambda: None) -> None:
    """Wait for an event that a signal's handler may set; what a handler raises, or ``check`` meanwhile, ends it."""
    while not event.wait(_SIGNAL_SECONDS):
        check()


def acquire_or_signal(lock: threading.Lock, timeout: float | None = None) -> bool:
    """Wait for a lock that another thread releases; what a signal's handler raises ends the wait.

    returns  False when ``timeout`` seconds were not enough
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    while not lock.acquire(timeout=min(_SIGNAL_SECONDS, max(0.0, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            return False
    return True
