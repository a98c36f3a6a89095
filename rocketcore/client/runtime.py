"""The two worlds that the client logic runs in, reduced to what differs between them.

The logic is coroutines. On asyncio they wait on the loop. On threads all that they await has happened when it returns,
so a coroutine runs to its end in one step on the caller's thread (``rocketcore.transport.blocking.client.run_sync``);
nothing there needs asyncio, whose import takes as long as a command's whole work.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from rocketcore.transport.blocking.client import run_sync

__all__ = [
    "ASYNCIO",
    "LOOP_BESIDE_THREADS",
    "THREADS",
    "Lock",
    "Runtime",
    "Signal",
    "ThreadRuntime",
    "ends_this_task",
    "returns_coroutine",
]

T = TypeVar("T")


def returns_coroutine(function: object) -> bool:
    """Say whether a call only makes a coroutine, as far as that can be seen without calling."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def ends_this_task(error: BaseException) -> bool:
    """Say whether what the application's code let out is meant for the task that runs it, not a failure of that code.

    True where this task is cancelled, and for a KeyboardInterrupt of a Ctrl-C.
    """
    if isinstance(error, Exception):
        return False
    import asyncio

    if isinstance(error, asyncio.CancelledError):  # else one of something that the code waited for
        task = asyncio.current_task()
        return task is None or bool(task.cancelling())
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


class Lock(Protocol):
    """Excludes others, and is not waited for longer than there is time."""

    async def acquire(self, timeout: float) -> bool:
        """Take the lock; False where others had it for ``timeout`` seconds."""

    def release(self) -> None:
        """Let the next one have it."""


class Signal(Protocol):
    """Something that will have happened; who waits for it is woken then."""

    def set(self) -> None:
        """Say that it has happened."""

    async def wait(self, timeout: float) -> bool:
        """Wait for it; False where it did not happen within ``timeout`` seconds."""


class _LoopLock:
    """A lock between the tasks of a loop."""

    def __init__(self) -> None:
        import asyncio

        self._lock = asyncio.Lock()

    async def acquire(self, timeout: float) -> bool:
        import asyncio

        try:
            async with asyncio.timeout(timeout):
                return await self._lock.acquire()
        except TimeoutError:
            return False

    def release(self) -> None:
        self._lock.release()


class _LoopSignal:
    """For the tasks of one loop."""

    def __init__(self) -> None:
        import asyncio

        self._event = asyncio.Event()
        self.set = self._event.set

    async def wait(self, timeout: float) -> bool:
        import asyncio

        try:
            async with asyncio.timeout(timeout):
                return await self._event.wait()
        except TimeoutError:
            return False


class Runtime:
    """How to exclude others, where to compute for long, and how to wait: on an event loop.

    concurrent  whether several requests can be under way: tasks go on while their maker does something else
    """

    concurrent = True

    def lock(self) -> Lock:
        """Return a new lock."""
        return _LoopLock()

    def signal(self) -> Signal:
        """Return a new signal."""
        return _LoopSignal()

    async def offload(self, function: Callable[..., T], *arguments: object) -> T:
        """Compute something that takes milliseconds."""
        import asyncio

        try:
            work = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
        except RuntimeError:
            return function(*arguments)  # the interpreter ends: it starts no thread any more
        return await work

    async def pause(self, seconds: float) -> None:
        """Let time pass."""
        import asyncio

        await asyncio.sleep(seconds)

    async def at_once(self, calls: Sequence[Coroutine[Any, Any, object]]) -> None:
        """Run coroutines side by side; only where several requests can be under way."""
        import asyncio

        async with asyncio.TaskGroup() as tasks:
            for call in calls:
                tasks.create_task(call)

    async def ask_instance(self, question: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the ``ClientInstance``, which may live in another world."""
        return await question


class _ThreadLock:
    """A lock between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def acquire(self, timeout: float) -> bool:
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()


class _ThreadSignal:
    """Between threads."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.set = self._event.set

    async def wait(self, timeout: float) -> bool:
        return self._event.wait(timeout)


class ThreadRuntime(Runtime):
    """Coroutines that never wait, each on the thread that called."""

    concurrent = False

    def lock(self) -> Lock:
        return _ThreadLock()

    def signal(self) -> Signal:
        return _ThreadSignal()

    async def offload(self, function: Callable[..., T], *arguments: object) -> T:
        return function(*arguments)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - the caller is a thread and no loop runs in it


class LoopBesideThreads(Runtime):
    """Coroutines on the loop that a blocking client has beside its threads, whose world its instance lives in."""

    async def ask_instance(self, question: Coroutine[Any, Any, T]) -> T:
        return await self.offload(run_sync, question)


ASYNCIO = Runtime()
THREADS = ThreadRuntime()
LOOP_BESIDE_THREADS = LoopBesideThreads()
