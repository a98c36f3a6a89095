"""A thread that waits for the disk, so that the event loop does not.

``DiskThread`` runs one job at a time, in order, and answers on the loop: one saves consume queues and checkpoint (Java:
``FlushConsumeQueueService``), a few read what is not in memory (``cold_reads``). Groups of the log have a thread of
their own, which needs no Python (``_fast.flusher``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

__all__ = ["DiskThread"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

Done = Callable[[T | None, BaseException | None], None]


class _Job(Generic[T]):
    __slots__ = ("done", "work")

    def __init__(self, work: Callable[[], T], done: Done[T]) -> None:
        self.work = work
        self.done = done


class DiskThread:
    """A named thread for blocking work; ``done(result, error)`` of each job runs on the loop, in the jobs' order."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        self._jobs.put(_Job(work, done))  # type: ignore[arg-type]  # the queue holds jobs of any result

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` after the jobs before it; raises what it raises."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if answer.cancelled():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]  # None only where T allows it

        self.submit(work, done)
        return await answer

    async def stop(self) -> None:
        """End the thread after the jobs it has."""
        await self.run(lambda: None)
        self._jobs.put(None)
        self._thread.join()

    def leave(self) -> None:
        """Have the thread end after the jobs it has, and do not wait: the disk may never answer the one it is at."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            result: object = None
            error: BaseException | None = None
            try:
                result = job.work()
            except Exception as caught:
                error = caught
            try:
                self._loop.call_soon_threadsafe(job.done, result, error)
            except RuntimeError:
                logger.warning("event loop closed before a disk job was done thread=%s", self._thread.name)
                return
