"""The two worlds that the client logic runs in, reduced to what differs between them.

The logic is coroutines. On asyncio they wait on the loop. On threads all that they await has happened when it returns,
so a coroutine runs to its end in one step on the caller's thread (``rocketcore.transport.blocking.run_sync``).

``LoopThread`` is for what has to go on by itself in a blocking program: consumers, and ``send_nowait``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import uvloop

from rocketcore.errors import ClientClosed

__all__ = ["ASYNCIO", "THREADS", "AsyncioRuntime", "LoopThread", "Runtime", "ThreadRuntime"]

T = TypeVar("T")


class Runtime(Protocol):
    """How to exclude others, where to compute for long, and how to wait."""

    def lock(self) -> AbstractAsyncContextManager[object]:
        """Return a new lock."""

    async def offload(self, function: Callable[..., T], *arguments: object) -> T:
        """Compute something that takes milliseconds."""

    async def pause(self, seconds: float) -> None:
        """Let time pass."""


class AsyncioRuntime:
    """Coroutines on an event loop."""

    def lock(self) -> AbstractAsyncContextManager[object]:
        return asyncio.Lock()

    async def offload(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.to_thread(function, *arguments)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _ThreadLock:
    """A thread lock for ``async with``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class ThreadRuntime:
    """Coroutines that never wait, each on the thread that called."""

    def lock(self) -> AbstractAsyncContextManager[object]:
        return _ThreadLock()

    async def offload(self, function: Callable[..., T], *arguments: object) -> T:
        return function(*arguments)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - the caller is a thread and no loop runs in it


ASYNCIO = AsyncioRuntime()
THREADS = ThreadRuntime()


class LoopThread:
    """An event loop on a named daemon thread, started when it is made."""

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result.

        raises  ClientClosed after ``stop()``; TimeoutError when ``timeout`` seconds were not enough
        """
        if self.loop.is_closed() or not self._thread.is_alive():
            coroutine.close()
            raise ClientClosed("the client is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout)
        except BaseException as error:
            # a KeyboardInterrupt or a timeout leaves the coroutine running: end it, its caller has gone
            if not isinstance(error, concurrent.futures.CancelledError):
                future.cancel()
            raise

    def stop(self, timeout: float = 5.0) -> None:
        """End the loop and its thread; a second call does nothing."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join(timeout)
