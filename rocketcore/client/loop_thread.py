"""An event loop in a thread of its own, and callers on other threads that wait for what it runs.

For what has to go on by itself in a blocking program: consumers, ``send_nowait``, and the reads and writes of Spark.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

import uvloop

from rocketcore.errors import ClientClosed, ConfigError
from rocketcore.service import acquire_or_signal

__all__ = ["LoopThread"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_END_SECONDS: Final = 2.0
"""What cancelled tasks get to end when their loop does."""


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
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[T]) -> None:
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


class LoopThread:
    """An event loop on a named daemon thread, started when it is made.

    Callers share nothing that is locked with the loop: a signal's handler may come in anywhere, and call too or raise.
    """

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self._stopped = False
        self._left = False
        """Whether those who waited at the end have been told."""
        self._calls: set[_Call[Any]] = set()
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
            logger.exception("loop ended thread=%s", self._thread.name)
            raise
        finally:
            self._left = True
            for call in list(self._calls):
                self._leave(call)
            self.loop.close()

    def _leave(self, call: _Call[Any]) -> None:
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
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    @property
    def alive(self) -> bool:
        """Whether the loop still runs."""
        return self._thread.is_alive()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result.

        Where this raises, the coroutine has ended, or sees a CancelledError next.

        raises  ConfigError on the loop's own thread, which would wait for itself; ClientClosed after ``stop()``, or
                when that or the end of the thread ended it; TimeoutError when ``timeout`` seconds were not enough
        """
        if self.is_current:
            coroutine.close()
            raise ConfigError(
                f"this call waits for the thread {self._thread.name!r} and was made on it, by a callback or a handler"
            )
        call = _Call(coroutine)
        try:
            self._calls.add(call)
            self._hand_over(call.begin)
            if self._left:
                self._leave(call)
            if not acquire_or_signal(call.gate, timeout):
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

    def _hand_over(self, function: Callable[[], None]) -> None:
        """Have the loop call a function; raises ClientClosed after ``stop()``."""
        try:
            if not self._stopped:
                self.loop.call_soon_threadsafe(function)
                return
        except RuntimeError:  # it was closed just now
            pass
        raise ClientClosed("the client is closed")

    def stop(self, timeout: float = 5.0) -> None:
        """End the loop and its thread; a second call does nothing."""
        if not self._stopped:
            with contextlib.suppress(RuntimeError):  # it has ended
                self.loop.call_soon_threadsafe(self.loop.stop)
        self._stopped = True
        if not self.is_current:
            self._thread.join(timeout)
