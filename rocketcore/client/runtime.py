"""The two worlds that the client logic runs in, reduced to what differs between them.

The logic is coroutines. On asyncio they wait on the loop. On threads all that they await has happened when it returns,
so a coroutine runs to its end in one step on the caller's thread (``rocketcore.transport.blocking.run_sync``).

``LoopThread`` is for what has to go on by itself in a blocking program: consumers, and ``send_nowait``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

import uvloop

from rocketcore.errors import ClientClosed, ConfigError
from rocketcore.service import result_or_signal
from rocketcore.transport.blocking import run_sync

__all__ = [
    "ASYNCIO",
    "LOOP_BESIDE_THREADS",
    "THREADS",
    "AsyncioRuntime",
    "Lock",
    "LoopThread",
    "Runtime",
    "ThreadRuntime",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_END_SECONDS: Final = 2.0
"""What cancelled tasks get to end when their loop does."""


class Lock(Protocol):
    """Excludes others, and is not waited for longer than there is time."""

    async def acquire(self, timeout: float) -> bool:
        """Take the lock; False where others had it for ``timeout`` seconds."""

    def release(self) -> None:
        """Let the next one have it."""


class Runtime(Protocol):
    """How to exclude others, where to compute for long, and how to wait."""

    def lock(self) -> Lock:
        """Return a new lock."""

    async def offload(self, function: Callable[..., T], *arguments: object) -> T:
        """Compute something that takes milliseconds."""

    async def pause(self, seconds: float) -> None:
        """Let time pass."""

    async def ask_instance(self, question: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the ``ClientInstance``, which may live in another world."""


class _LoopLock:
    """A lock between the tasks of a loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def acquire(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                return await self._lock.acquire()
        except TimeoutError:
            return False

    def release(self) -> None:
        self._lock.release()


class AsyncioRuntime:
    """Coroutines on an event loop."""

    def lock(self) -> Lock:
        return _LoopLock()

    async def offload(self, function: Callable[..., T], *arguments: object) -> T:
        try:
            work = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
        except RuntimeError:
            return function(*arguments)  # the interpreter ends: it starts no thread any more
        return await work

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def ask_instance(self, question: Coroutine[Any, Any, T]) -> T:
        return await question


class _ThreadLock:
    """A lock between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def acquire(self, timeout: float) -> bool:
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()


class ThreadRuntime:
    """Coroutines that never wait, each on the thread that called."""

    def lock(self) -> Lock:
        return _ThreadLock()

    async def offload(self, function: Callable[..., T], *arguments: object) -> T:
        return function(*arguments)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - the caller is a thread and no loop runs in it

    async def ask_instance(self, question: Coroutine[Any, Any, T]) -> T:
        return await question


class LoopBesideThreads(AsyncioRuntime):
    """Coroutines on the loop that a blocking client has beside its threads, whose world its instance lives in."""

    async def ask_instance(self, question: Coroutine[Any, Any, T]) -> T:
        return await self.offload(run_sync, question)


ASYNCIO = AsyncioRuntime()
THREADS = ThreadRuntime()
LOOP_BESIDE_THREADS = LoopBesideThreads()


class LoopThread:
    """An event loop on a named daemon thread, started when it is made."""

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self._lock = threading.Lock()  # guards _stopped: nothing is handed to the loop after that it is to stop
        self._stopped = False
        self._waited_for: set[concurrent.futures.Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            try:
                self.loop.run_forever()
            finally:
                with self._lock:
                    self._stopped = True
                self.loop.run_until_complete(self._end_tasks())
        except BaseException:
            logger.exception("loop ended thread=%s", self._thread.name)
            raise
        finally:
            self._leave_no_one_waiting()
            self.loop.close()

    def _leave_no_one_waiting(self) -> None:
        """End what callers wait for; after ``sys.exit()`` in a callback there is no one else to do it."""
        with self._lock:
            left = [future for future in self._waited_for if not future.done()]
        for future in left:
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                future.set_exception(ClientClosed(f"the thread {self._thread.name!r} has ended"))

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

        raises  ConfigError on the loop's own thread, which would wait for itself; ClientClosed after ``stop()``, or
                when that or the end of the thread ended it; TimeoutError when ``timeout`` seconds were not enough
        """
        if self.is_current:
            coroutine.close()
            raise ConfigError(
                f"this call waits for the thread {self._thread.name!r} and was made on it, by a callback or a handler"
            )
        with self._lock:
            if self._stopped or not self._thread.is_alive():
                coroutine.close()
                raise ClientClosed("the client is closed")
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
            self._waited_for.add(future)
        try:
            return result_or_signal(future, timeout)
        except concurrent.futures.CancelledError:
            if self._stopped:
                raise ClientClosed("the client was closed meanwhile") from None
            raise
        except BaseException:
            # a KeyboardInterrupt or a timeout leaves the coroutine running: end it, its caller has gone
            future.cancel()
            raise
        finally:
            self._waited_for.discard(future)

    def stop(self, timeout: float = 5.0) -> None:
        """End the loop and its thread; a second call does nothing."""
        with self._lock:
            if not self._stopped and self._thread.is_alive():
                self.loop.call_soon_threadsafe(self.loop.stop)
            self._stopped = True
        if not self.is_current:
            self._thread.join(timeout)
