"""Threads that run handlers, and what their calls mean; handed out and collected by a ``ConsumeService``."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from rocketcore.client.handler import Handler, HandlerResult
from rocketcore.client.process_queue import ProcessQueue
from rocketcore.client.runtime import ends_this_task
from rocketcore.message import ConsumeResult, ReceivedMessage
from rocketcore.warning import warn

__all__ = ["Job", "Workers", "call", "outcome", "outcomes"]

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Job:
    """Messages of one queue that a handler is given together, and what it has said of them so far."""

    handler: Handler
    process_queue: ProcessQueue
    messages: list[ReceivedMessage]
    results: list[HandlerResult] = field(default_factory=list)
    number: int = 0
    """Jobs begin in the order of their numbers."""
    admitted: bool = False
    """It is handled to its end, also when the consumer is stopped meanwhile."""
    begun: bool = False
    abandoned: bool = False
    """The messages are given to someone else: the handler does not count any more, it may never return."""
    replaced: bool = False
    """Another thread runs in place of the one that has this."""


class Workers:
    """Threads that run handlers; they are started as work comes, up to ``capacity``.

    goes_on  called on a worker's thread before each message of a job, says whether it is still to be handled
    report   called on a worker's thread with each job that has ended, and the seconds that a message of it took
    finish   awaits, on the loop, what a handler returned; ``finish_batch`` what one of batches did
    """

    def __init__(
        self,
        name: str,
        capacity: int,
        loop: asyncio.AbstractEventLoop,
        goes_on: Callable[[Job], bool],
        report: Callable[[Job, float], None],
        finish: Callable[[Handler, ReceivedMessage, Awaitable[object]], Coroutine[Any, Any, HandlerResult]],
        finish_batch: Callable[[Job, Awaitable[object]], Coroutine[Any, Any, list[HandlerResult]]],
    ) -> None:
        self._name = name
        self._capacity = capacity
        self._loop = loop
        self._goes_on = goes_on
        self._report = report
        self._finish = finish
        self._finish_batch = finish_batch
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._live = 0
        self._started = 0
        self._outstanding = 0

    def submit(self, job: Job) -> None:
        self._outstanding += 1
        self._start_thread()
        self._jobs.put(job)

    def _start_thread(self) -> None:
        if self._outstanding > self._live and self._live < self._capacity:
            # Daemon: a handler that never returns must not keep the interpreter from ending.
            thread = threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True)
            self._threads.add(thread)
            self._live += 1
            self._started += 1
            thread.start()

    def finished(self) -> None:
        self._outstanding -= 1

    def replace_one(self) -> None:
        """Let another thread do the work of one that may never come back."""
        self._capacity += 1
        self._start_thread()

    def take_back(self) -> None:
        """Have one thread less: one that was replaced came back."""
        self._capacity -= 1
        if self._live > self._capacity:
            self._live -= 1
            self._jobs.put(None)

    def stop(self) -> None:
        for _ in range(self._live):  # the threads leave their set as they are told
            self._jobs.put(None)

    def contains_caller(self) -> bool:
        return threading.current_thread() in self._threads

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            began = time.perf_counter()
            job.begun = True
            try:
                if job.handler.batched is None:
                    self._handle(job)
                elif self._goes_on(job):
                    job.results += self._results_of(job)
            except BaseException:  # the thread must live: what has no result comes again
                job.results += [(message, ConsumeResult.RETRY, None) for message in job.messages[len(job.results) :]]
                warn(logger, "handler failed in an unexpected way queue=%s", job.process_queue.queue, traceback=True)
            shared = job.messages if job.handler.batched is not None else job.results
            self._report(job, (time.perf_counter() - began) / max(1, len(shared)))
        self._threads.discard(threading.current_thread())

    def _handle(self, job: Job) -> None:
        """Run a handler of messages."""
        for message in job.messages:
            if not self._goes_on(job):
                return
            try:
                result = job.handler.function(message)
            except BaseException as error:  # sys.exit() too: it would end this thread, and nobody would know
                job.results.append(job.handler.failed(message, error))
                continue
            if result is None:
                job.results.append((message, ConsumeResult.SUCCESS, None))
            elif not inspect.isawaitable(result):
                job.results.append(job.handler.result_of(message, result))
            elif (awaited := self._awaited(job.handler, message, result)) is not None:
                job.results.append(awaited)
            else:
                return

    def _results_of(self, job: Job) -> list[HandlerResult]:
        """Run a handler of batches; no results where the loop ends before it."""
        try:
            result = job.handler.function(list(job.messages))
        except BaseException as error:  # sys.exit() too, as above
            return job.handler.failed_all(job.messages, error)
        if not inspect.isawaitable(result):
            return job.handler.results_of(job.messages, result)
        coroutine = self._finish_batch(job, result)
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except (concurrent.futures.CancelledError, RuntimeError):
            coroutine.close()
            return []

    def _awaited(self, handler: Handler, message: ReceivedMessage, result: Awaitable[object]) -> HandlerResult | None:
        """Have the loop await what a plain call returned, and wait for it here; None when the loop ends before it."""
        coroutine = self._finish(handler, message, result)
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except (concurrent.futures.CancelledError, RuntimeError):  # the consumer is closed: the message will come again
            coroutine.close()
            return None


async def call(handler: Handler, message: ReceivedMessage) -> object:
    """Run a coroutine handler."""
    return await handler.function(message)


async def outcome(handler: Handler, message: ReceivedMessage, result: Awaitable[object]) -> HandlerResult:
    """Await what a handler returned, and return what it means; what would end the loop is a failure of the handler.

    raises  what is meant for this task, see ``ends_this_task``
    """
    try:
        returned: object = result
        while inspect.isawaitable(returned):  # a coroutine function may return what it should have awaited
            returned = await returned
        return handler.result_of(message, returned)
    except BaseException as error:
        if ends_this_task(error):
            raise
        return handler.failed(message, error)


async def outcomes(job: Job, result: Awaitable[object]) -> list[HandlerResult]:
    """As ``outcome``, of a handler of batches."""
    try:
        returned: object = result
        while inspect.isawaitable(returned):
            returned = await returned
        return job.handler.results_of(job.messages, returned)
    except BaseException as error:
        if ends_this_task(error):
            raise
        return job.handler.failed_all(job.messages, error)
