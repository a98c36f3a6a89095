"""An event loop in a thread of its own, and callers on other threads that wait for what it runs.

For what has to go on by itself in a blocking program: consumers, ``send_nowait``, and the reads and writes of Spark.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import sys
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import uvloop

from rocketcore.errors import ClientClosed, ConfigError
from rocketcore.service import acquire_or_signal
from rocketcore.warning import MACHINERY, warn

__all__ = ["LoopThread"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_END_SECONDS: Final = 2.0
"""What cancelled tasks get to end when their loop does."""

_ENTER_SECONDS: Final = 0.1
"""A wait for the loop's place is done in parts, between which a signal's handler may raise."""

_STANDS_SECONDS: Final = 0.1
"""What a loop that stood still gets to show that it turns again."""

REST_SECONDS: Final = 0.02
"""The longest rest of a loop whose place another thread has taken; its timers are late by so much."""


class _Call(Generic[T]):
    """A coroutine that a thread has the loop run, and waits for.

    gate      released when there is an outcome
    given_up  whether the caller has gone; then the coroutine does not begin, or is cancelled
    """

    __slots__ = ("_coroutine", "_result", "_task", "error", "gate", "given_up")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine: Coroutine[Any, Any, T] | None = coroutine
        self._result: list[T] = []
        self._task: asyncio.Task[T] | None = None
        self.error: BaseException | None = None
        self.given_up = False
        self.gate = threading.Lock()
        self.gate.acquire()

    def begin(self) -> None:
        """Run the coroutine; on the loop."""
        coroutine, self._coroutine = self._coroutine, None
        if coroutine is None:
            return
        if self.given_up:
            coroutine.close()
            return
        self._task = asyncio.get_running_loop().create_task(coroutine)
        self._task.add_done_callback(self._keep_outcome)

    def _keep_outcome(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.error = concurrent.futures.CancelledError()
        elif (error := task.exception()) is not None:
            self.error = error
        else:
            self._result.append(task.result())
        self.gate.release()

    def give_up(self) -> None:
        """End the coroutine, whose caller has gone; on the loop."""
        if self._task is not None:
            self._task.cancel()
        else:
            self.drop()

    def drop(self) -> None:
        """End a coroutine that has not begun."""
        coroutine, self._coroutine = self._coroutine, None
        if coroutine is not None:
            coroutine.close()

    @property
    def ended(self) -> bool:
        """Whether there is an outcome."""
        return bool(self._result) or self.error is not None

    def result(self) -> T:
        """Return the outcome, or raise it."""
        if self.error is not None:
            raise self.error
        return self._result.pop()


class InPlace(Protocol):
    """What a coroutine that runs in the place of its loop needs done meanwhile."""

    def begin(self) -> bool:
        """Tell whether the coroutine may begin without a task."""

    def wait(self) -> bool:
        """Bring what the coroutine waits for nearer; False: nothing came within a moment, the loop is needed."""

    def end(self) -> bool:
        """Tell whether the loop may stand still for some longer."""


@types.coroutine
def _steps_of(coroutine: Coroutine[Any, Any, T], waited: Any) -> Generator[Any, Any, T]:
    while True:
        try:
            sent = yield waited
        except BaseException as error:
            step = partial(coroutine.throw, error)
        else:
            step = partial(coroutine.send, sent)
        try:
            waited = step()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


async def _rest_of(coroutine: Coroutine[Any, Any, T], waited: Any) -> T:
    """Run a coroutine on from where it waits for ``waited``. From Python 3.12 on a task takes no generator."""
    return await _steps_of(coroutine, waited)


class LoopThread:
    """An event loop on a named daemon thread, started when it is made.

    Callers share nothing that is locked with the loop: a signal's handler may come in anywhere, and call too or raise.
    """

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self._stopped = False
        self.stands = False
        """Whether the loop did not turn when that was looked at last."""
        self._left = False
        """Whether those who waited at the end have been told."""
        self._calls: set[_Call[Any]] = set()
        self._right = threading.Lock()
        """Of the one thread that may touch the loop: its own, until that lets another one in."""
        self._right.acquire()
        self._bell = threading.Lock()
        """Released to end a rest of the loop's thread."""
        self._bell.acquire()
        self._resting = False
        self._visitor = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            try:
                self.loop.run_forever()
            finally:
                self._stopped = True
                self.loop.run_until_complete(self._end_tasks())
        except BaseException:
            warn(logger, "loop ended thread=%s", self._thread.name, traceback=True)
            raise
        finally:
            self._left = True
            for call in list(self._calls):
                self._end_call(call)
            self.loop.close()
            self._right.release()

    def _rest(self) -> None:
        """Let another thread have the loop; on the loop, which then has its timers and all else to look at."""
        self._resting = True
        self._right.release()
        self._bell.acquire(timeout=REST_SECONDS)
        self._resting = False
        self._right.acquire()

    def _ring(self) -> None:
        """Have the loop go on by itself."""
        if self._resting:
            with contextlib.suppress(RuntimeError):  # it was rung
                self._bell.release()

    def _end_call(self, call: _Call[Any]) -> None:
        """End what a caller waits for; after ``sys.exit()`` in a callback there is no one else to do it."""
        if not call.ended:
            call.drop()
            call.error = ClientClosed(f"the thread {self._thread.name!r} has ended")
            with contextlib.suppress(RuntimeError):  # both sides have seen the end
                call.gate.release()

    @staticmethod
    async def _end_tasks() -> None:
        """Cancel what still runs: someone may be waiting for its result."""
        await asyncio.sleep(0)  # what was handed over last becomes a task only now
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_END_SECONDS)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread, or in its place."""
        return threading.get_ident() in (self._thread.ident, self._visitor)

    @property
    def alive(self) -> bool:
        """Whether the loop still runs."""
        return self._thread.is_alive()

    def answers(self, timeout: float) -> bool:
        """Whether the loop turns within ``timeout`` seconds: what is called on it returns."""
        gate = threading.Lock()
        gate.acquire()
        self._hand_over(gate.release)
        self.stands = not acquire_or_signal(gate, timeout)
        return not self.stands

    def where(self) -> str:
        """Say which function of the application is running on the loop now, as far as that can be seen."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        calls: list[str] = []
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.startswith(MACHINERY):
                calls.append(f"{code.co_name}() at {code.co_filename}:{frame.f_lineno}")
            frame = frame.f_back
        return calls[-1] if calls else "unknown"

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None, *, margin: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result.

        With ``margin``, a loop that turns within so many seconds after ``timeout`` is waited for longer: the coroutine
        bounds itself. One that stood still before, and still does, is not waited for at all.

        Where this raises, the coroutine has ended, or sees a CancelledError next.

        raises  ConfigError on the loop's own thread, which would wait for itself; ClientClosed after ``stop()``, or
                when that or the end of the thread ended it; TimeoutError when ``timeout`` seconds were not enough
        """
        self._refuse_own(coroutine)
        if margin is not None and self.stands and not self.answers(_STANDS_SECONDS):
            coroutine.close()
            raise TimeoutError(f"the thread {self._thread.name!r} does not answer")
        return self._wait(_Call(coroutine), coroutine, timeout, margin)

    def run_here(self, coroutine: Coroutine[Any, Any, T], place: InPlace) -> T:
        """Run a coroutine as ``run`` does, but on this thread as long as it need not wait for the loop.

        Two threads that take turns wake each other, and want the interpreter's lock at the same time. So the loop's
        thread rests while this one has its place, and for REST_SECONDS at most after: who comes back until then finds
        it resting. A coroutine that has to wait for more than ``place`` brings goes on as a task of the loop; until
        then it must not ask for the task that it runs in. What a signal's handler raises leaves the loop intact, but
        perhaps not what the coroutine was changing.

        raises  as ``run``
        """
        self._refuse_own(coroutine)
        held: list[threading.Lock] = []
        outer = asyncio._get_running_loop()
        try:
            call = self._in_place(coroutine, place, held, outer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except BaseException:
            coroutine.close()
            raise
        finally:
            self._give_back(held, outer)  # once more: a signal's handler may have come in while it was done
        return self._wait(call, coroutine)

    def _in_place(
        self,
        coroutine: Coroutine[Any, Any, T],
        place: InPlace,
        held: list[threading.Lock],
        outer: asyncio.AbstractEventLoop | None,
    ) -> _Call[T]:
        """Return what is left for the loop; raises StopIteration with the result where that is nothing."""
        try:
            self._enter(held)
            asyncio._set_running_loop(self.loop)
            if not place.begin():
                return _Call(coroutine)
            try:
                waited = coroutine.send(None)
                while waited is not None and (waited.done() or place.wait()):
                    if waited.done():
                        waited = coroutine.send(None)
            except StopIteration:
                if not place.end():
                    self._ring()
                raise
            return _Call(_rest_of(coroutine, waited))
        finally:
            self._give_back(held, outer)

    def leave_to(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Have the loop run a coroutine that nobody waits for, once it turns; a loop that has ended drops it."""
        call = _Call(coroutine)
        try:
            self._hand_over(call.begin)
        except ClientClosed:
            call.drop()

    def _refuse_own(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        if self.is_current:
            coroutine.close()
            raise ConfigError(
                f"this call waits for the thread {self._thread.name!r} and was made on it, by a callback or a handler"
            )

    def _enter(self, held: list[threading.Lock]) -> None:
        """Take the place of the loop's thread, and note in ``held`` that it is taken; raises ClientClosed."""
        held += [self._right] * self._right.acquire(blocking=False)
        while not held:
            # Asked for again: the thread may have been rung out of the rest before this one woke up.
            self._hand_over(self._rest, ring=False)
            held += [self._right] * self._right.acquire(timeout=_ENTER_SECONDS)
        self._visitor = threading.get_ident()
        if self._stopped:
            raise ClientClosed("the client is closed")

    def _give_back(self, held: list[threading.Lock], outer: asyncio.AbstractEventLoop | None) -> None:
        """Leave the place of the loop's thread, if it is held."""
        if not held:
            return
        asyncio._set_running_loop(outer)
        self._visitor = 0
        held.pop().release()  # in one line, before which the lock is held and noted, and behind which it is neither

    def _wait(
        self,
        call: _Call[T],
        coroutine: Coroutine[Any, Any, T],
        timeout: float | None = None,
        margin: float | None = None,
    ) -> T:
        """Wait for the outcome of a call, which the loop begins where nobody has."""
        try:
            self._calls.add(call)
            self._hand_over(call.begin)
            if self._left:
                self._end_call(call)
            while not acquire_or_signal(call.gate, timeout):
                if margin is not None and self.answers(margin):
                    timeout = margin
                    continue
                raise TimeoutError(f"{coroutine!r} has not ended within {timeout} s")
            return call.result()
        except concurrent.futures.CancelledError:
            if self._stopped:
                raise ClientClosed("the client was closed meanwhile") from None
            raise
        except BaseException:
            # a KeyboardInterrupt or a timeout leaves the coroutine running: end it, its caller has gone
            call.given_up = True
            try:
                self._hand_over(call.give_up)
            except ClientClosed:
                call.drop()
            raise
        finally:
            self._calls.discard(call)

    def _hand_over(self, function: Callable[[], None], *, ring: bool = True) -> None:
        """Have the loop call a function; raises ClientClosed after ``stop()``."""
        try:
            if not self._stopped:
                self.loop.call_soon_threadsafe(function)
                if ring:
                    self._ring()
                return
        except RuntimeError:  # it was closed just now
            pass
        raise ClientClosed("the client is closed")

    def stop(self, timeout: float = 5.0) -> None:
        """End the loop and its thread; a second call does nothing."""
        if not self._stopped:
            with contextlib.suppress(RuntimeError):  # it has ended
                self.loop.call_soon_threadsafe(self.loop.stop)
                self._ring()
        self._stopped = True
        if not self.is_current:
            self._thread.join(timeout)
