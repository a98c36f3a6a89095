"""ConsumeService: messages from the queues to those who handle them, and their results back.

Plain functions run on threads, coroutine functions on the loop; ``capacity`` bounds how many of each run at once. A
thread gets several messages at a time when the handler is quick, so that a hand-over costs less than the work, and one
at a time when it is not. Messages that no handler takes wait for whoever iterates.

In order (``ordered``): of each queue one thread at a time has messages. It takes the next only when one is done, and
while the queue may still be worked on; what it has left then, or behind a message that failed, goes back to its place.

RocketMQ 5.5.0: ``ConsumeMessageConcurrentlyService``, ``ConsumeMessageOrderlyService``.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from rocketcore.client.daemon import call_on_daemon
from rocketcore.client.handler import Handler, HandlerResult, MessageHandler
from rocketcore.client.process_queue import ProcessQueue
from rocketcore.client.workers import Job, Workers, call, outcome, outcomes
from rocketcore.codes import RETRY_TOPIC_PREFIX
from rocketcore.message import ConsumeResult, ReceivedMessage, RetryLater
from rocketcore.protocol.bodies.client import CMResult
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.warning import Recurring

__all__ = ["ConsumeService"]

logger = logging.getLogger(__name__)

CHUNK_SECONDS: Final = 0.001
CHUNK_MAX: Final = 32
CHUNKS_PER_HANDLER: Final = 2


def _is_mixed(process_queue: ProcessQueue) -> bool:
    """Say whether a queue has messages of several topics: those that a group has again."""
    return process_queue.queue.topic.startswith(RETRY_TOPIC_PREFIX)


class ConsumeService:
    """Hands messages out and collects results; all methods but those that take results belong to the loop.

    process_result  called on the loop with what became of each message
    consumable      whether messages of a queue may be handed out now; any thread
    handed          told of messages that a handler, or who iterates, gets
    clock           says how often failures are told
    check           raises what keeps messages from ever coming, before someone waits for them
    """

    def __init__(
        self,
        group: str,
        capacity: int,
        process_result: Callable[[HandlerResult], None],
        *,
        ordered: bool,
        consumable: Callable[[ProcessQueue], bool] = lambda process_queue: True,
        check: Callable[[], None] = lambda: None,
        handed: Callable[[list[ReceivedMessage]], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._capacity = capacity
        self._process_result = process_result
        self._ordered = ordered
        self._consumable = consumable
        self._check = check
        self._handed = handed
        self._failures = Recurring(logger, clock)
        self._handlers: dict[str, Handler] = {}
        self._workers = Workers(
            f"consumer-{group}",
            capacity,
            self._loop,
            self._goes_on,
            self._report,
            self._finish,
            self._finish_batch,
        )
        self._gathering: dict[ProcessQueue, asyncio.TimerHandle] = {}
        """Queues with too few messages for a handler of batches, and when it gets them all the same."""
        self._due: set[ProcessQueue] = set()
        self._hurrying = False
        self._ready: dict[ProcessQueue, None] = {}
        self._reports: deque[tuple[Job, float] | HandlerResult] = deque()
        self._planned = False
        self._jobs: set[Job] = set()
        """What handlers have been given and have not reported."""
        self._on_threads = 0
        self._on_loop = 0
        self._handler_seconds: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._numbers = itertools.count(1)
        self._admission = threading.Lock()
        """Of ``_stopped`` and ``_last_admitted``."""
        self._last_admitted = 0
        self._stopped = False
        self._progress = asyncio.Event()

    def set_handler(self, topic: str, handler: MessageHandler | None) -> None:
        """Give a topic a handler, or leave its messages to whoever iterates."""
        if handler is None:
            self._handlers.pop(topic, None)
        else:
            self._handlers[topic] = Handler(handler, self._failures)
        self.feed()

    def arrived(self, process_queue: ProcessQueue) -> None:
        """Note that a queue has messages that no one works on."""
        if process_queue.waiting_count and not process_queue.dropped:
            self._ready[process_queue] = None
            self.feed()

    def feed(self) -> None:
        """Give handlers what is waiting, as far as they can take it, and wake who iterates."""
        if self._stopped:
            return
        if self._handlers:
            self._feed_handlers()
        if self._waiters and self._find_for_iteration() is not None:
            self._wake_one()

    def _feed_handlers(self) -> None:
        # One chunk of each queue in turn: a queue that always has more must not take every place.
        turn = deque(self._ready)
        while turn:
            process_queue = turn.popleft()
            if self._available(process_queue):
                topic = process_queue.peek_topic()
                handler = self._handlers.get(topic)
                if handler is None or not self._has_place(handler) or not self._is_enough(handler, process_queue):
                    continue
                del self._ready[process_queue]
                self._hand_out(handler, process_queue, topic)  # a hook may give its message a result, and feed
                if process_queue.waiting_count:
                    self._ready[process_queue] = None
                    turn.append(process_queue)
            elif not process_queue.waiting_count or process_queue.dropped:
                self._ready.pop(process_queue, None)

    def _has_place(self, handler: Handler) -> bool:
        if handler.on_loop:
            return self._on_loop < self._capacity
        # a chunk waits for each thread, so that none has to wait for the loop
        return self._on_threads < (self._capacity if self._ordered else self._capacity * CHUNKS_PER_HANDLER)

    def _is_enough(self, handler: Handler, process_queue: ProcessQueue) -> bool:
        """Say whether a handler gets what waits in a queue now; one of batches may wait for more."""
        batched = handler.batched
        if batched is None or self._hurrying or process_queue in self._due:
            return True
        if process_queue.waiting_count >= batched.max_messages or _is_mixed(process_queue):
            return True
        if process_queue not in self._gathering:
            self._gathering[process_queue] = self._loop.call_later(batched.max_wait, self._is_due, process_queue)
        return False

    def _is_due(self, process_queue: ProcessQueue) -> None:
        del self._gathering[process_queue]
        if process_queue.waiting_count and not process_queue.dropped:
            self._due.add(process_queue)
            self._ready[process_queue] = None
        self.feed()

    def hurry(self) -> None:
        """Give handlers of batches what is there, without waiting for more."""
        self._hurrying = True
        self.feed()

    def _take_batch(self, handler: Handler, process_queue: ProcessQueue, topic: str) -> list[ReceivedMessage]:
        """Take the messages of one topic for a handler of batches."""
        assert handler.batched is not None
        self._due.discard(process_queue)
        timer = self._gathering.pop(process_queue, None)
        if timer is not None:
            timer.cancel()
        if not _is_mixed(process_queue):
            return process_queue.take(handler.batched.max_messages)
        taken: list[ReceivedMessage] = []
        while process_queue.waiting_count and process_queue.peek_topic() == topic:
            taken += process_queue.take(1)
            if len(taken) == handler.batched.max_messages:
                break
        return taken

    def _available(self, process_queue: ProcessQueue) -> bool:
        if process_queue.dropped or not process_queue.waiting_count or not self._consumable(process_queue):
            return False
        return not self._ordered or not process_queue.handed_count

    def _hand_out(self, handler: Handler, process_queue: ProcessQueue, topic: str) -> None:
        if handler.on_loop:
            taken = (
                process_queue.take(1) if handler.batched is None else self._take_batch(handler, process_queue, topic)
            )
            job = Job(handler, process_queue, taken)
            self._on_loop += 1
            run = self._run_coroutine(job) if handler.batched is None else self._run_batch(job)
            task = self._loop.create_task(run)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif handler.batched is not None:
            job = Job(handler, process_queue, self._take_batch(handler, process_queue, topic))
            self._on_threads += 1
            job.number = next(self._numbers)
            self._workers.submit(job)
        else:
            # A retry queue mixes the topics of its group, and they may have different handlers. What is handed out in
            # order may come back to its place, and who is told would be told twice.
            single = process_queue.queue.topic != topic or (self._ordered and self._handed is not None)
            job = Job(handler, process_queue, process_queue.take(1 if single else self.chunk_size(topic)))
            self._on_threads += 1
            job.number = next(self._numbers)
            self._workers.submit(job)
        self._jobs.add(job)
        if self._handed is not None:
            self._handed(job.messages)

    def chunk_size(self, topic: str) -> int:
        """Return how many messages of a topic a thread gets at a time: about a millisecond's work."""
        seconds = self._handler_seconds.get(topic, CHUNK_SECONDS)
        return max(1, min(CHUNK_MAX, int(CHUNK_SECONDS / max(seconds, 1e-9))))

    async def _run_coroutine(self, job: Job) -> None:
        job.begun = True
        [message] = job.messages
        try:
            job.results.append(await outcome(job.handler, message, call(job.handler, message)))
        finally:
            self._jobs.discard(job)
            if not job.abandoned:
                self._on_loop -= 1
            self._progress.set()
        self._process_result(job.results[0])
        self.feed()

    async def _run_batch(self, job: Job) -> None:
        job.begun = True

        async def call_it() -> object:
            return await job.handler.function(list(job.messages))

        try:
            job.results += await outcomes(job, call_it())
        finally:
            self._jobs.discard(job)
            if not job.abandoned:
                self._on_loop -= 1
            self._progress.set()
        self._settle(job)
        self.feed()

    async def _finish_batch(self, job: Job, result: Awaitable[object]) -> list[HandlerResult]:
        """As ``_finish``."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await outcomes(job, result)

    def _settle(self, job: Job) -> None:
        """Say what became of the messages of a job; those that go back to their place do so from the last on."""
        for result in reversed(job.results) if self._ordered else job.results:
            self._process_result(result)

    async def _finish(self, handler: Handler, message: ReceivedMessage, result: Awaitable[object]) -> HandlerResult:
        """Await what a handler on a thread returned, as a task that counts as a handler."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await outcome(handler, message, result)

    def abandon(self, messages: Iterable[ReceivedMessage]) -> None:
        """Count no longer on the handlers that have these messages: they may never return.

        What they have said so far counts, and others are run in their place.
        """
        given_up = set(map(id, messages))
        for job in [job for job in self._jobs if not given_up.isdisjoint(map(id, job.messages))]:
            self._jobs.discard(job)
            job.abandoned = True
            for result in list(job.results):
                self._process_result(result)
            if job.handler.on_loop:
                self._on_loop -= 1
            elif job.begun:
                job.replaced = True
                self._on_threads -= 1
                self._workers.replace_one()
        self._progress.set()
        self.feed()

    def inside_handler(self) -> bool:
        """Say whether the current task is a coroutine handler."""
        return asyncio.current_task() in self._tasks

    def called_by_handler(self) -> bool:
        """Say whether the calling thread is one that runs handlers."""
        return self._workers.contains_caller()

    async def run_once(self, function: MessageHandler, message: ReceivedMessage) -> tuple[CMResult, str | None]:
        """Run a handler on one message that belongs to no queue here, and say how it ended."""
        handler = Handler(function, self._failures)
        try:
            if handler.on_loop:
                result = function(message)
            else:
                result = await call_on_daemon("consume-directly", function, message)
            while inspect.isawaitable(result):
                result = await result
        except RetryLater as error:
            handler.failed(message, error)
            return CMResult.CR_LATER, None
        except (Exception, SystemExit) as error:  # an exit would end the loop
            handler.failed(message, error)
            return CMResult.CR_THROW_EXCEPTION, f"{type(error).__name__}: {error}"
        _, consumed, _ = handler.result_of(message, result)
        return (CMResult.CR_SUCCESS if consumed is ConsumeResult.SUCCESS else CMResult.CR_LATER), None

    def take_result(self, message: ReceivedMessage, result: ConsumeResult, delay: float | None) -> None:
        """Take what became of a message that was handed out; any thread."""
        if threading.get_ident() == self._loop_thread:
            self._process_result((message, result, delay))
            self._progress.set()
            self.feed()
        else:
            self._enqueue((message, result, delay))

    def _goes_on(self, job: Job) -> bool:
        """Say whether the next message of a job is to be handled; any thread."""
        # A consumer that stops gives up its queues first, and then waits for what has begun.
        if job.abandoned or (job.process_queue.dropped and not self._stopped):
            return False
        if not self._ordered:
            return job.admitted or self._admit(job)
        return (
            not self._stopped
            and (not job.results or job.results[-1][1] is ConsumeResult.SUCCESS)
            and self._consumable(job.process_queue)
        )

    def _admit(self, job: Job) -> bool:
        """Say whether a job begins. After a stop those begin that are before one that has: what is left out before it
        in its queue would keep the group's offset back, and all behind come again.
        """
        with self._admission:
            if self._stopped and job.number > self._last_admitted:
                return False
            self._last_admitted = max(self._last_admitted, job.number)
        job.admitted = True
        return True

    def _report(self, job: Job, seconds: float) -> None:
        self._enqueue((job, seconds))

    def _enqueue(self, report: tuple[Job, float] | HandlerResult) -> None:
        self._reports.append(report)
        if not self._planned:
            self._planned = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:  # the loop has ended: the consumer is closed, and the message will come again
                logger.debug("result after close")

    def _collect(self) -> None:
        self._planned = False
        while self._reports:
            report = self._reports.popleft()
            if len(report) == 2:
                self._finish_job(*report)
            else:
                self._process_result(report)
        self._progress.set()
        self.feed()

    def _finish_job(self, job: Job, seconds: float) -> None:
        self._workers.finished()
        self._jobs.discard(job)
        if job.replaced:
            self._workers.take_back()
        else:
            self._on_threads -= 1
        if not job.abandoned and len(job.results) < len(job.messages):
            job.process_queue.give_back(job.messages[len(job.results) :])
            self._ready[job.process_queue] = None
        self._settle(job)
        if job.results:
            topic = job.results[0][0].topic
            before = self._handler_seconds.get(topic, seconds)
            self._handler_seconds[topic] = 0.8 * before + 0.2 * seconds

    # Iteration

    def _find_for_iteration(self) -> ProcessQueue | None:
        for process_queue in list(self._ready):
            if process_queue.dropped:
                del self._ready[process_queue]
            elif self._available(process_queue) and process_queue.peek_topic() not in self._handlers:
                return process_queue
        return None

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def take(self, limit: int, is_over: Callable[[], bool] = lambda: False) -> list[ReceivedMessage]:
        """Wait for messages without a handler and return up to ``limit`` of one queue; none after ``stop()``.

        is_over  tells, after ``wake_all``, that who waits wants none any more
        raises   what ``check`` raises
        """
        while not self._stopped and not is_over():
            process_queue = self._find_for_iteration()
            if process_queue is not None:
                taken = process_queue.take(1 if self._ordered else limit)
                # the next call begins with another queue
                del self._ready[process_queue]
                if process_queue.waiting_count:
                    self._ready[process_queue] = None
                self._wake_one()
                if self._handed is not None:
                    self._handed(taken)
                return taken
            self._check()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()  # what woke this one is there for another
                raise
        return []

    def stop_feeding(self) -> None:
        """Hand nothing out any more; who iterates gets the end."""
        with self._admission:
            self._stopped = True
        self.wake_all()

    def wake_all(self) -> None:
        """Have all who wait for messages look again."""
        while self._waiters:
            self._wake_one()

    async def progress(self) -> None:
        """Wait until another result has been taken."""
        self._progress.clear()
        await self._progress.wait()

    async def drain(self, timeout: float) -> bool:
        """Wait until the handlers that run are done; False when some are not after ``timeout`` seconds."""
        own = 1 if self.inside_handler() else 0  # a handler may close its own consumer
        try:
            async with asyncio.timeout(timeout):
                while self._on_threads + self._on_loop > own:
                    await self.progress()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End the threads; cancel handlers that are still running on the loop."""
        self.stop_feeding()
        self._workers.stop()
        for timer in self._gathering.values():
            timer.cancel()
        self._gathering.clear()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._failures.tell_rest()
