"""ConsumeService: messages from the queues to those who handle them, and their verdicts back.

Plain functions run on threads, coroutine functions on the loop; ``capacity`` bounds how many handlers run at once. A
thread gets several messages at a time when the handler is quick, so that a hand-over costs less than the work, and one
at a time when it is not. Messages that no handler takes wait for whoever iterates.

In order (``ordered``): of each queue one message at a time is out, the next only when that one is done.

RocketMQ 5.5.0: ``ConsumeMessageConcurrentlyService``, ``ConsumeMessageOrderlyService``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from rocketcore.client.process_queue import ProcessQueue
from rocketcore.message import ConsumeResult, ReceivedMessage, RetryLater
from rocketcore.protocol.bodies import CMResult

__all__ = ["ConsumeService", "MessageHandler", "Verdict"]

logger = logging.getLogger(__name__)

MessageHandler: TypeAlias = Callable[[ReceivedMessage], Any]
"""Returns None or a ConsumeResult, or a coroutine of that; raises to have the message again."""

Verdict: TypeAlias = tuple[ReceivedMessage, ConsumeResult, float | None]
"""A message, what its handler said, and the delay it asked for."""

CHUNK_SECONDS: Final = 0.001
CHUNK_MAX: Final = 32
CHUNKS_PER_HANDLER: Final = 2


def _verdict(message: ReceivedMessage, result: object) -> Verdict:
    return message, result if isinstance(result, ConsumeResult) else ConsumeResult.SUCCESS, None


def _failure(message: ReceivedMessage, error: Exception) -> Verdict:
    if isinstance(error, RetryLater):
        return message, ConsumeResult.RETRY, error.delay
    logger.warning(
        "handler failed topic=%s queue=%s offset=%d msg_id=%s",
        message.topic,
        message.queue,
        message.offset,
        message.msg_id,
        exc_info=error,
    )
    return message, ConsumeResult.RETRY, None


class _Workers:
    """Threads that run handlers; they are started as work comes, up to ``capacity``."""

    def __init__(self, name: str, capacity: int, report: Callable[[list[Verdict], float], None]) -> None:
        self._name = name
        self._capacity = capacity
        self._report = report
        self._jobs: queue.SimpleQueue[tuple[MessageHandler, ProcessQueue, list[ReceivedMessage]] | None]
        self._jobs = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._outstanding = 0

    def submit(self, handler: MessageHandler, owner: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        self._outstanding += 1
        if self._outstanding > len(self._threads) and len(self._threads) < self._capacity:
            # Daemon: a handler that never returns must not keep the interpreter from ending.
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((handler, owner, messages))

    def finished(self) -> None:
        self._outstanding -= 1

    def stop(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def contains_caller(self) -> bool:
        return threading.current_thread() in self._threads

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            handler, owner, messages = job
            verdicts = []
            began = time.perf_counter()
            for message in messages:
                if owner.dropped:
                    continue
                try:
                    verdicts.append(_verdict(message, handler(message)))
                except Exception as error:
                    verdicts.append(_failure(message, error))
            self._report(verdicts, (time.perf_counter() - began) / len(messages))


class ConsumeService:
    """Hands messages out and collects verdicts; all methods but the settling of messages belong to the loop.

    settle  called on the loop with each verdict
    """

    def __init__(
        self,
        group: str,
        capacity: int,
        settle: Callable[[Verdict], None],
        *,
        ordered: bool,
        consumable: Callable[[ProcessQueue], bool] = lambda owner: True,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._capacity = capacity
        self._settle = settle
        self._ordered = ordered
        self._consumable = consumable
        self._handlers: dict[str, MessageHandler] = {}
        self._workers = _Workers(f"consumer-{group}", capacity, self._report)
        self._ready: dict[ProcessQueue, None] = {}
        self._verdicts: deque[tuple[list[Verdict], float | None]] = deque()
        self._planned = False
        self._running = 0
        self._handler_seconds: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._stopped = False
        self._progress = asyncio.Event()

    def set_handler(self, topic: str, handler: MessageHandler | None) -> None:
        """Give a topic a handler, or leave its messages to whoever iterates."""
        if handler is None:
            self._handlers.pop(topic, None)
        else:
            self._handlers[topic] = handler
        self.feed()

    def find_handler(self, topic: str) -> MessageHandler | None:
        """Return the handler of a topic."""
        return self._handlers.get(topic)

    def arrived(self, owner: ProcessQueue) -> None:
        """Note that a queue has messages that no one works on."""
        if owner.waiting_count and not owner.dropped:
            self._ready[owner] = None
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
        limit = self._capacity if self._ordered else self._capacity * CHUNKS_PER_HANDLER
        for owner in list(self._ready):
            while self._running < limit and self._available(owner):
                topic = owner.peek_topic()
                handler = self._handlers.get(topic)
                if handler is None:
                    break
                self._hand_out(handler, owner, topic)
            if not owner.waiting_count or owner.dropped:
                self._ready.pop(owner, None)

    def _available(self, owner: ProcessQueue) -> bool:
        if owner.dropped or not owner.waiting_count or not self._consumable(owner):
            return False
        return not self._ordered or not owner.handed_count

    def _hand_out(self, handler: MessageHandler, owner: ProcessQueue, topic: str) -> None:
        self._running += 1
        if inspect.iscoroutinefunction(handler):
            [message] = owner.take(1)
            task = self._loop.create_task(self._run_coroutine(handler, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        # a retry queue mixes the topics of its group, and they may have different handlers
        single = self._ordered or owner.queue.topic != topic
        self._workers.submit(handler, owner, owner.take(1 if single else self.chunk_size(topic)))

    def chunk_size(self, topic: str) -> int:
        """Return how many messages of a topic a thread gets at a time: about a millisecond's work."""
        seconds = self._handler_seconds.get(topic, CHUNK_SECONDS)
        return max(1, min(CHUNK_MAX, int(CHUNK_SECONDS / max(seconds, 1e-9))))

    async def _run_coroutine(
        self, handler: Callable[[ReceivedMessage], Awaitable[object]], message: ReceivedMessage
    ) -> None:
        try:
            verdict = _verdict(message, await handler(message))
        except Exception as error:
            verdict = _failure(message, error)
        finally:
            self._running -= 1
            self._progress.set()
        self._settle(verdict)
        self.feed()

    def inside_handler(self) -> bool:
        """Say whether the current task is a coroutine handler."""
        return asyncio.current_task() in self._tasks

    def called_by_handler(self) -> bool:
        """Say whether the calling thread is one that runs handlers."""
        return self._workers.contains_caller()

    async def run_once(self, handler: MessageHandler, message: ReceivedMessage) -> tuple[CMResult, str | None]:
        """Run a handler on one message that belongs to no queue here, and say how it ended."""
        try:
            if inspect.iscoroutinefunction(handler):
                result = await handler(message)
            else:
                result = await asyncio.to_thread(handler, message)
        except Exception as error:
            return CMResult.CR_THROW_EXCEPTION, f"{type(error).__name__}: {error}"
        return (CMResult.CR_LATER if result is ConsumeResult.RETRY else CMResult.CR_SUCCESS), None

    def settled(self, message: ReceivedMessage, result: ConsumeResult, delay: float | None) -> None:
        """Take the verdict on a message that was handed out; any thread."""
        if threading.get_ident() == self._loop_thread:
            self._settle((message, result, delay))
            self._progress.set()
            self.feed()
        else:
            self._enqueue([(message, result, delay)], None)

    def _report(self, verdicts: list[Verdict], seconds: float) -> None:
        self._enqueue(verdicts, seconds)

    def _enqueue(self, verdicts: list[Verdict], seconds: float | None) -> None:
        self._verdicts.append((verdicts, seconds))
        if not self._planned:
            self._planned = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:  # the loop has ended: the consumer is closed, and the message will come again
                logger.debug("verdict after close count=%d", len(verdicts))

    def _collect(self) -> None:
        self._planned = False
        while self._verdicts:
            verdicts, seconds = self._verdicts.popleft()
            if seconds is not None:
                self._running -= 1
                self._workers.finished()
                if verdicts:
                    topic = verdicts[0][0].topic
                    before = self._handler_seconds.get(topic, seconds)
                    self._handler_seconds[topic] = 0.8 * before + 0.2 * seconds
            for verdict in verdicts:
                self._settle(verdict)
        self._progress.set()
        self.feed()

    # Iteration

    def _find_for_iteration(self) -> ProcessQueue | None:
        for owner in list(self._ready):
            if owner.dropped:
                del self._ready[owner]
            elif self._available(owner) and owner.peek_topic() not in self._handlers:
                return owner
        return None

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def take(self, limit: int) -> list[ReceivedMessage]:
        """Wait for messages without a handler and return up to ``limit`` of one queue; none after ``stop()``."""
        while not self._stopped:
            owner = self._find_for_iteration()
            if owner is not None:
                taken = owner.take(1 if self._ordered else limit)
                # the next call begins with another queue
                del self._ready[owner]
                if owner.waiting_count:
                    self._ready[owner] = None
                self._wake_one()
                return taken
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        return []

    def stop_feeding(self) -> None:
        """Hand nothing out any more; who iterates gets the end."""
        self._stopped = True
        while self._waiters:
            self._wake_one()

    async def progress(self) -> None:
        """Wait until another verdict has been taken."""
        self._progress.clear()
        await self._progress.wait()

    async def drain(self, timeout: float) -> bool:
        """Wait until the handlers that run are done; False when some are not after ``timeout`` seconds."""
        own = 1 if self.inside_handler() else 0  # a handler may close its own consumer
        try:
            async with asyncio.timeout(timeout):
                while self._running > own:
                    await self.progress()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End the threads; cancel handlers that are still running on the loop."""
        self.stop_feeding()
        self._workers.stop()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
