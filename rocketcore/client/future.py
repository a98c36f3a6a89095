"""SendFuture: what becomes of a message that ``send_nowait`` took, and the failures that no one asks for.

The messages of a batch share one outcome: a future is its batch and a number, so that handing over a message costs no
lock, condition or event of its own. Nothing here is locked, so that a signal's handler and the end of an object may use
a future wherever they come in.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from rocketcore.client.attempts import Attempts
from rocketcore.client.outgoing import Outgoing
from rocketcore.client.send_command import SendTarget
from rocketcore.errors import ClientClosed, ConfigError, ForkedClient, RequestTimeout, RocketError, SendsFailed
from rocketcore.message import MessageQueue, SendResult
from rocketcore.service import Clock, acquire_or_signal
from rocketcore.warning import Recurring, warn

__all__ = ["Batch", "Failures", "Item", "Place", "SendFuture", "abandon", "late"]

logger = logging.getLogger(__name__)
_callbacks = Recurring(logger)

WARN_SECONDS: Final = 60.0
"""At most one line of the log in so many seconds says that sends fail and no one asks."""
MOST_UNTOLD: Final = 1000
"""Batches of failures that are kept one by one until someone asks; of older ones only the number is."""


class Failures:
    """Messages that were not sent and whose futures no one has asked.

    ``add`` is for the loop, the rest for any thread. There is no lock: a signal's handler, or the end of an object, may
    ask for a future in the middle of everything here.
    """

    __slots__ = ("_clock", "_untold", "_warn_after")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._untold: deque[tuple[int, Batch]] = deque()
        """Batches that failed, each with the number of older messages that were folded into it."""
        self._warn_after = 0.0

    def add(self, batch: Batch) -> None:
        """Count the messages of a batch that failed, but for those whose futures have been asked already."""
        unseen = batch.unseen()
        if not unseen:
            return
        self._untold.append((0, batch))
        if len(self._untold) > MOST_UNTOLD:
            self._fold()
        now = self._clock.monotonic()
        if now >= self._warn_after:
            self._warn_after = now + WARN_SECONDS
            count = sum(older + each.unseen() for older, each in list(self._untold))
            text = "messages of send_nowait not sent topic=%s messages=%d error=%s"
            warn(logger, text, batch.topic, count, batch.error)

    def _fold(self) -> None:
        """Keep of the two oldest batches one, and the number of the other's messages."""
        with contextlib.suppress(IndexError):  # someone is told just now
            older, first = self._untold.popleft()
            more, second = self._untold.popleft()
            self._untold.appendleft((older + more + second.unseen(), first))

    def tell(self) -> None:
        """Raise SendsFailed if there is something to tell; what was told is not told again."""
        count, first = 0, None
        with contextlib.suppress(IndexError):
            while True:
                older, batch = self._untold.popleft()
                unseen = older + batch.unseen()
                if unseen and first is None:
                    first = batch.error
                count += unseen
        if first is not None:
            raise SendsFailed(count, first) from first


@dataclass(slots=True, eq=False)
class Place:
    """What is particular about a message: it has a queue, or a group, or is no part of a batch.

    target  where it goes; None while the queue is not known, or where queues take turns
    alone   whether it is no part of a batch
    """

    group: str | None
    queue: MessageQueue | None
    target: SendTarget | None
    alone: bool


Item: TypeAlias = "tuple[SendFuture, bytes, bytes, int, int, str, Place | None]"
"""A message: its future, body, properties, flag, size, topic, and what is particular about it."""


@dataclass(slots=True, eq=False)
class Batch:
    """Messages that leave together, and what became of them; it belongs to the loop that sends them.

    key          the backlog that the batch belongs to: its topic, its queue, or None while that is not known
    items        the messages; none after the outcome
    destination  whose part of the buffer its bytes count against
    noted        of its bytes those that have been counted
    end          monotonic seconds by which the outcome is known
    attempts     those that failed; None before the first one did
    request      what attempts carry; None before the first one
    done         whether the outcome is known; any thread may look, and then at the outcome
    """

    topic: str
    key: str | MessageQueue | None
    loop: asyncio.AbstractEventLoop
    failures: Failures
    end: float
    destination: str
    pid: int = field(default_factory=os.getpid)
    group: str | None = None
    queue: MessageQueue | None = None
    items: list[Item] = field(default_factory=list)
    count: int = 0
    bytes: int = 0
    noted: int = 0
    attempts: Attempts | None = None
    request: Outgoing | None = None
    is_under_way: bool = False
    done: bool = False
    result: SendResult | None = None
    message_ids: list[str] = field(default_factory=list)
    error: BaseException | None = None
    looked: set[int] = field(default_factory=set)
    untold: list[SendFuture] = field(default_factory=list)
    """Futures whose callbacks are being called, or are not called yet."""
    unclaimed: list[None] = field(default_factory=lambda: [None])
    """Taken by the thread that gives the batch its outcome."""

    def unseen(self) -> int:
        """Return of how many messages no one knows yet that they failed."""
        return self.count - len(self.looked)

    def too_late(self, timeout: float, failure: RocketError | None) -> SendResult | RocketError:
        """Return the outcome at the end of the time; ``failure`` is why its route is not known."""
        if self.result is not None:
            return self.result
        if self.attempts is not None:
            return self.attempts.error(timeout)
        why = "what was sent before has not been answered" if failure is None else str(failure)
        error = RequestTimeout(f"send to topic {self.topic!r}: not sent within {timeout:g} s: {why}")
        error.__cause__ = failure
        return error

    def closed(self) -> ClientClosed:
        """Return the outcome where the producer is closed first."""
        if self.request is None:
            return ClientClosed("the producer was closed before the message was sent")
        return ClientClosed("the producer was closed before a broker answered: the message may be stored or not")

    def check_process(self) -> None:
        """Raise ForkedClient where the outcome will never be known: what sends this is in the parent process."""
        if os.getpid() != self.pid:
            raise ForkedClient("the message is sent by the parent process, which alone learns what becomes of it")

    def finish(self, outcome: SendResult | BaseException) -> None:
        """Note the outcome and wake all who wait for it; a second outcome counts for nothing."""
        if not self._settle(outcome):
            return
        for future in self.untold:
            if future._callbacks:
                future._call_back()
        self.untold = []
        if self.error is not None:
            self.failures.add(self)

    def _settle(self, outcome: SendResult | BaseException) -> bool:
        try:
            self.unclaimed.pop()
        except IndexError:
            return False
        if isinstance(outcome, BaseException):
            logger.debug("send_nowait failed topic=%s", self.topic, exc_info=outcome)
            _drop_tracebacks(outcome)
            self.error = outcome
        else:
            self.result = outcome
            self.message_ids = outcome.offset_msg_id.split(",")
        self.request = None
        self.untold = [item[0] for item in self.items]
        self.items.clear()
        self.done = True
        return True

    def abandon(self, error: BaseException) -> list[_Callback]:
        """Fail, on another thread, what its loop has no outcome of: it stands still in a callback.

        Whoever waits is woken, also for an outcome that was known before.

        returns  the callbacks of the application that were not called
        """
        if self._settle(error):
            self.failures.add(self)
        left: list[_Callback] = []
        for future in list(self.untold):
            left += future._wake()
        return left


class SendFuture:
    """The future of a message that ``send_nowait`` took: ``await`` it, or call ``result()``.

    The methods mean what those of ``concurrent.futures.Future`` mean; ``to_future()`` is one, for functions that insist
    on the class. A message that was taken cannot be taken back, so ``cancel()`` returns False.
    """

    __slots__ = ("_batch", "_callbacks", "_index", "msg_id")

    def __init__(self, batch: Batch, msg_id: str) -> None:
        """Begin without a place.

        batch  one that is never done; the loop puts the message into another
        """
        self._batch = batch
        self._index = 0
        self._callbacks: list[Callable[[], None]] = []
        self.msg_id = msg_id
        """The id that the message has been given."""

    def done(self) -> bool:
        """Say whether the outcome is known."""
        return self._batch.done

    def running(self) -> bool:
        """Say whether the outcome is still to come."""
        return not self._batch.done

    def cancel(self) -> bool:
        """Return False: the message was handed over."""
        return False

    def cancelled(self) -> bool:
        """Return False, always."""
        return False

    def result(self, timeout: float | None = None) -> SendResult:
        """Wait for the outcome; raises what the send failed with, RequestTimeout after ``timeout`` seconds."""
        if not self._batch.done:
            self._wait(timeout)
        batch = self._batch
        result = batch.result
        if result is None:
            raise self._own_error()
        index = self._index
        return SendResult(
            result.status,
            self.msg_id,
            batch.message_ids[index] if index < len(batch.message_ids) else "",
            result.queue,
            result.offset + index,
            result.transaction_id,
            result.recall_handle,
        )

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; return what the send failed with, None if it did not."""
        if not self._batch.done:
            self._wait(timeout)
        return None if self._batch.error is None else self._own_error()

    def _own_error(self) -> BaseException:
        """Return the failure of the batch as an object of one's own: each raise adds to the traceback of its object."""
        batch = self._batch
        batch.looked.add(self._index)
        error = batch.error
        assert error is not None, "a batch ends with a result or an error"
        try:
            own = copy.copy(error)
        except Exception:  # an exception of someone else's, whose constructor wants more than its args
            return error
        own.__cause__ = error.__cause__
        return own

    def add_done_callback(self, callback: Callable[[SendFuture], object]) -> None:
        """Call a function with this future when the outcome is known.

        It runs on the thread that learns the outcome, and holds up all that is sent meanwhile; or here and now, where
        the outcome is known. It may send; what would wait for that thread, such as ``flush()``, raises ConfigError.
        """
        self._when_done(_Callback(self, callback))

    def _when_done(self, call: Callable[[], None]) -> None:
        callbacks = self._callbacks
        callbacks.append(call)
        # finish() may have emptied the list just before
        if self._batch.done:
            try:
                callbacks.remove(call)
            except ValueError:
                return
            call()

    def _call_back(self) -> None:
        while self._callbacks:
            try:
                call = self._callbacks.pop(0)
            except IndexError:  # who added it calls it
                return
            call()

    def _wake(self) -> list[_Callback]:
        """Wake who waits; return the callbacks that were not called, which may be anyone's and not return."""
        calls: list[Callable[[], None]] = []
        with contextlib.suppress(IndexError):  # the loop may go on just now
            while True:
                calls.append(self._callbacks.pop(0))
        left: list[_Callback] = []
        for call in calls:
            if isinstance(call, _Callback):
                left.append(call)
            else:
                call()
        return left

    def to_future(self) -> Future[SendResult]:
        """Return a ``concurrent.futures.Future`` of the same outcome, for functions that take no other."""
        future: Future[SendResult] = Future()
        future.set_running_or_notify_cancel()

        def pass_on(done: SendFuture) -> None:
            error = done.exception()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())

        self._when_done(_Callback(self, pass_on, first=True))
        return future

    def _wait(self, timeout: float | None) -> None:
        self._batch.check_process()
        if asyncio._get_running_loop() is self._batch.loop:
            raise ConfigError(
                "the message is not sent yet, and this thread sends it, so it cannot wait here. In a coroutine, "
                "await the future; in a callback of send_nowait, use add_done_callback()"
            )
        gate = threading.Lock()
        gate.acquire()
        self._when_done(gate.release)
        if not acquire_or_signal(gate, timeout):
            raise RequestTimeout(f"message {self.msg_id} was not sent within {timeout:g} s")

    def __await__(self) -> Generator[Any, None, SendResult]:
        if not self._batch.done:
            self._batch.check_process()
            loop = asyncio.get_running_loop()
            done: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                with contextlib.suppress(RuntimeError):  # who waited has gone, and the loop with him
                    loop.call_soon_threadsafe(_resolve, done)

            self._when_done(wake)
            yield from done.__await__()
        return self.result()

    def __repr__(self) -> str:
        state = "pending" if not self.done() else "failed" if self._batch.error is not None else "sent"
        return f"<SendFuture {state} msg_id={self.msg_id}>"


class _Callback:
    """A function of the application that is called with a future; what it raises is told.

    first  whether it is called before others where the loop stands still: someone may wait for what it does
    """

    __slots__ = ("_function", "_future", "first")

    def __init__(self, future: SendFuture, function: Callable[[SendFuture], object], first: bool = False) -> None:
        self._future = future
        self._function = function
        self.first = first

    def __call__(self) -> None:
        try:
            self._function(self._future)
        except Exception as error:
            _tell(self._function, self._future, error)
        except BaseException as error:
            # sys.exit() would end the loop that sends for all; on another thread it means that one
            if asyncio._get_running_loop() is not self._future._batch.loop:
                raise
            _tell(self._function, self._future, error)


def late(coming: deque[Item], new_batch: Callable[[str, None, str], Batch]) -> Iterator[Batch]:
    """Yield messages that no loop takes in any more, each as a batch."""
    with contextlib.suppress(IndexError):
        while True:
            item = coming.popleft()
            batch = item[0]._batch = new_batch(item[5], None, item[5])
            batch.items.append(item)
            yield batch


def abandon(batches: Iterable[Batch], where: str) -> None:
    """Fail the batches of a loop that stands still; their callbacks run on a thread of their own, which may not end.

    where  the function of the application that the loop is in
    """
    text = "the producer was closed while a callback of send_nowait did not return; the message may be stored or not"
    error = ClientClosed(f"{text}: {where}")
    left: list[_Callback] = []
    for batch in batches:
        batch.count = batch.count or 1  # of one that came late nobody has counted the message
        left += batch.abandon(error)
    if left:
        left.sort(key=lambda call: not call.first)
        threading.Thread(target=_call_all, args=(left,), name="producer-callbacks", daemon=True).start()


def _call_all(calls: list[_Callback]) -> None:
    for call in calls:
        call()


def _drop_tracebacks(error: BaseException) -> None:
    """Let go of the frames that an error and its causes came through: they hold the bodies."""
    seen: set[int] = set()  # ids: an exception need not be hashable
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += (one.__cause__, one.__context__)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _tell(callback: Callable[[SendFuture], object], future: SendFuture, error: BaseException) -> None:
    kind = getattr(callback, "__qualname__", type(callback)), type(error)
    _callbacks.warn(kind, "callback failed msg_id=%s error=%r", future.msg_id, error, error=error, level=logging.ERROR)
