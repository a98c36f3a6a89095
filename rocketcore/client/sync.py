"""The blocking clients: same names as in ``rocketcore.aio``, no logic of their own.

What a consumer does goes on by itself: the asyncio consumer runs on an event loop on a daemon thread. The producer,
which needs that only for ``send_nowait``, is in ``rocketcore.client.sync_producer``.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

from rocketcore.client.blocking import blocking, constructor, on_loop
from rocketcore.client.config import ConsumerConfig, ConsumerOptions, NameServers, check_max_messages, check_max_wait
from rocketcore.client.group_consumer import GroupConsumer
from rocketcore.client.handler import BatchHandler, MessageHandler, batched
from rocketcore.client.listeners import refuse_in_listener
from rocketcore.client.loop_thread import LoopThread
from rocketcore.client.problems import Gaps
from rocketcore.client.process import close_forgotten, watch
from rocketcore.client.pull import Polled
from rocketcore.client.pull import PullConsumer as AsyncPullConsumer
from rocketcore.client.push import PushConsumer as AsyncPushConsumer
from rocketcore.client.stopping import Leaving, Stopping, exit_by
from rocketcore.client.subscriber import Subscriber
from rocketcore.client.sync_producer import Producer
from rocketcore.client.tracebacks import edge
from rocketcore.errors import ClientClosed, ConfigError, ForkedClient, RocketError
from rocketcore.message import ReceivedMessage
from rocketcore.service import wait_or_signal

__all__ = ["HostedConsumer", "Producer", "PullConsumer", "PushConsumer", "Subscription"]

T = TypeVar("T")
ConsumerT = TypeVar("ConsumerT", bound=Subscriber)
MemberT = TypeVar("MemberT", bound=GroupConsumer)
Handler = TypeVar("Handler", bound=MessageHandler)
Batch = TypeVar("Batch", bound=BatchHandler)

CLOSE_MARGIN = 15.0
ITERATION_CHUNK = 32
ITERATION_SECONDS = 60.0
"""Of one poll of a ``PullConsumer``."""


class HostedConsumer(Generic[ConsumerT]):
    """An asyncio consumer on a loop thread that starts on first use."""

    _kind: ClassVar[type[Any]]

    @constructor
    def __init__(
        self, namesrv: NameServers = None, *, config: ConsumerConfig | None = None, **options: Unpack[ConsumerOptions]
    ) -> None:
        self._consumer: ConsumerT = self._kind(namesrv, config=config, **options)
        self._consumer.listens_on_threads = True
        self._thread: LoopThread | None = None
        self._lock = threading.RLock()  # guards starting and closing; a handler may come in
        self._closed = False
        self._forked = False
        self._finalizer: weakref.finalize[..., Any] | None = None
        watch(self)

    def __enter__(self) -> Self:
        self._leaving = Leaving(exit_by)
        self._leaving.__enter__()
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        finally:
            self._leaving.restore()

    def _in_child(self) -> None:
        """Note that this is a child: the threads of a consumer that has any are the parent's."""
        self._forked = self._thread is not None
        self._lock = threading.RLock()
        if self._finalizer is not None:
            self._finalizer.detach()

    @property
    def config(self) -> ConsumerConfig:
        """The settings of this consumer."""
        return self._consumer.config

    @property
    def client_id(self) -> str:
        """The name under which brokers know this consumer; after it started."""
        return self._consumer.client_id

    @property
    def gaps(self) -> Gaps:
        """The offsets that brokers leave out of their answers; ``gaps.tell(function)`` has a function called on this
        one's loop."""
        return self._consumer.gaps

    def _check(self) -> None:
        if self._forked:
            raise ForkedClient("the consumer was started by the parent process: start it, or make one, after fork()")
        if self._closed and not self._consumer.revoking:
            raise ClientClosed("the consumer is closed")

    def _logic(self) -> ConsumerT:
        return self._consumer

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the consumer on its loop."""
        try:
            self._check()
            with self._lock:
                if self._thread is None:
                    made = LoopThread(f"consumer-{self.config.group}")
                    if self._thread is not None:  # of a handler that came in
                        made.stop()
                    else:
                        self._thread = made
                if self._finalizer is None:
                    # The thread knows the asyncio consumer and not this one, which may so be forgotten.
                    self._finalizer = weakref.finalize(self, _forgotten, self._consumer, self._thread)
                    self._finalizer.atexit = False  # what is there at the end is closed by the watch
            thread = self._thread
        except BaseException:
            coroutine.close()
            raise
        return thread.run(coroutine)

    def _call_later(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the loop call a function before whatever it is asked after this; nothing where it has ended."""
        if self._thread is not None and not self._forked:
            with contextlib.suppress(RuntimeError):
                self._thread.loop.call_soon_threadsafe(functools.partial(function, *arguments))

    start = blocking(Subscriber.start)
    subscription = on_loop(Subscriber.subscription)
    wait_ready = blocking(Subscriber.wait_ready)
    watermarks = blocking(Subscriber.watermarks)
    committed = blocking(Subscriber.committed)
    lag = blocking(Subscriber.lag)

    def close(self) -> None:
        """Finish what is being handled, store the offsets, leave the group; a second call does nothing."""
        with self._lock:
            if self._closed or self._forked:
                return
            self._closed = True
            thread = self._thread
        if thread is None:
            return
        if self._finalizer is not None:
            self._finalizer.detach()
        _end(self._consumer, thread)


class _HostedMember(HostedConsumer[MemberT]):
    """A consumer that owns queues."""

    _stopped_by: signal.Signals | None = None

    unsubscribe = blocking(GroupConsumer.unsubscribe)
    queues = on_loop(GroupConsumer.queues)
    assignment = on_loop(GroupConsumer.assignment)
    pause = on_loop(GroupConsumer.pause)
    resume = on_loop(GroupConsumer.resume)
    paused = on_loop(GroupConsumer.paused)
    _finish_held = blocking(GroupConsumer.finish_held)

    @property
    def stopped_by(self) -> signal.Signals | None:
        """The signal that ended the last ``run()`` or iteration; None where another reason did."""
        return self._stopped_by

    def drain(self, timeout: float = 30.0) -> bool:
        """Take nothing new, finish what is here, store the offsets, and leave the group.

        A ``PushConsumer`` lets its handlers, or your loop over it, finish the messages that it has read ahead. A
        ``PullConsumer`` commits what polls have returned.

        timeout  seconds to finish; the rest then comes again, to this group
        returns  whether all was finished
        raises   ConfigError in a handler, which it would wait for
        """
        if self._inside_handler():
            raise ConfigError("drain() in a handler would wait for that handler: call close(), or drain elsewhere")
        refuse_in_listener(self._consumer, "drain")
        try:
            return self._closed or self._thread is None or self._finish_held(timeout)
        finally:
            self.close()

    def _inside_handler(self) -> bool:
        return False


def _end(consumer: Subscriber, thread: LoopThread) -> None:
    try:
        thread.run(consumer.close(), consumer.config.close_timeout + CLOSE_MARGIN)
    finally:
        thread.stop()


def _forgotten(consumer: Subscriber, thread: LoopThread) -> None:
    """Close what a consumer had that nobody refers to any more."""
    close_forgotten(f"consumer of group {consumer.config.group}", lambda: _end(consumer, thread))


class Subscription:
    """What ``subscribe`` returns; a decorator of the topic's handler."""

    __slots__ = ("_set_handler", "_topic")

    def __init__(self, topic: str, set_handler: Callable[[str, MessageHandler], None]) -> None:
        self._topic = topic
        self._set_handler = set_handler

    def __call__(self, handler: Handler) -> Handler:
        """Make a function the handler of the topic; it runs on one of the consumer's ``threads``."""
        self._set_handler(self._topic, handler)
        return handler


class BatchSubscription:
    """What ``subscribe_batch`` returns; a decorator of the topic's handler of batches."""

    __slots__ = ("_max_messages", "_max_wait", "_subscription", "_topic")

    def __init__(self, topic: str, max_messages: int, max_wait: float, subscription: Subscription) -> None:
        self._topic = topic
        self._max_messages = max_messages
        self._max_wait = max_wait
        self._subscription = subscription

    def __call__(self, handler: Batch) -> Batch:
        """Make a function the handler of the topic; it runs on one of the consumer's ``threads``."""
        self._subscription(batched(self._topic, handler, self._max_messages, self._max_wait))
        return handler


class PushConsumer(_HostedMember[AsyncPushConsumer]):
    """Receives messages as a member of a group (Java: ``DefaultMQPushConsumer``); thread-safe.

    Subscribe, then iterate and say what became of each message by ``ack()``, ``retry()`` or ``process()``. Or give each
    topic a handler, which runs on a pool of ``threads``, and call ``run()``. A handler that returns is done with the
    message. If it raises, it gets the message again, after the delay of ``RetryLater`` if it raised that.

    namesrv  as in ``Producer``
    config   settings as one object; or its fields as keyword arguments, see ``ConsumerConfig``
    """

    _kind = AsyncPushConsumer

    @constructor
    def __init__(
        self, namesrv: NameServers = None, *, config: ConsumerConfig | None = None, **options: Unpack[ConsumerOptions]
    ) -> None:
        self._ended = threading.Event()
        self._closer: threading.Thread | None = None
        super().__init__(namesrv, config=config, **options)

    @edge
    def subscribe(
        self, topic: str, *, tag: str | None = None, sql: str | None = None, handler: MessageHandler | None = None
    ) -> Subscription:
        """Subscribe to a topic; the result decorates the topic's handler.

        tag  the tags wanted, ``a || b``; default: all messages
        sql  an SQL92 condition on properties, in place of tags; the broker needs ``enablePropertyFilter``
        """
        self._check()
        if self._thread is None:
            self._consumer.subscribe(topic, tag=tag, sql=sql, handler=handler)
        else:
            self._run(self._join(topic, tag, sql, handler))
        return Subscription(topic, self._set_handler)

    async def _join(self, topic: str, tag: str | None, sql: str | None, handler: MessageHandler | None) -> None:
        await self._consumer.subscribe(topic, tag=tag, sql=sql, handler=handler)

    def _set_handler(self, topic: str, handler: MessageHandler) -> None:
        if self._thread is None:
            self._consumer.set_handler(topic, handler)
        else:
            self._set_handler_on_loop(topic, handler)

    _set_handler_on_loop = on_loop(AsyncPushConsumer.set_handler)
    _tell_refusals = on_loop(AsyncPushConsumer.tell_refusals)

    @edge
    def subscribe_batch(
        self,
        topic: str,
        *,
        max_messages: int = 1000,
        max_wait: float = 0.2,
        tag: str | None = None,
        sql: str | None = None,
        handler: BatchHandler | None = None,
    ) -> BatchSubscription:
        """Subscribe to a topic whose handler gets several messages at a time (Java: ``consumeMessageBatchMaxSize``).

        The result decorates the handler. The messages of a batch lie in one queue, in their order. A handler that
        returns is done with all of them. If it raises, it gets all of them again, or with ``RetryLater(of=[…])`` those
        messages.

        max_messages  the most messages of a call; ``pull_threshold_for_queue`` bounds how many are here
        max_wait      seconds after which a handler gets fewer
        tag, sql      as ``subscribe``
        """
        check_max_messages(max_messages)
        check_max_wait(max_wait)
        set_handler = self.subscribe(topic, tag=tag, sql=sql)
        subscription = BatchSubscription(topic, max_messages, max_wait, set_handler)
        if handler is not None:
            subscription(handler)
        return subscription

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield the messages of topics without a handler, until ``close()``, Ctrl-C or SIGTERM.

        The first signal ends the iteration behind the message that is being worked on; ``stopped_by`` tells. The next
        does what it does without: a second Ctrl-C raises KeyboardInterrupt.
        """
        with Stopping(lambda: self._call_later(self._consumer.wake_takers)) as stopping:

            def is_over() -> bool:
                return stopping.signal is not None

            while not is_over():
                taken: deque[ReceivedMessage] = deque()
                try:
                    self._run(self._consumer.take_into(taken, ITERATION_CHUNK, is_over))
                    if not taken:
                        break
                    while taken and not self._closed and not is_over():
                        message = taken.popleft()
                        if self._consumer.still_owned(message):
                            yield message
                except ClientClosed:
                    break
                finally:
                    if taken:  # who stopped iterating has not seen the rest
                        self._call_later(self._consumer.give_back, taken)
            self._stopped_by = stopping.signal

    @edge
    def run(self) -> None:
        """Consume with the handlers until SIGINT, SIGTERM or ``close()``; then finish, and leave the group.

        In the main thread, and where the application has no handler for the signal of its own. ``stopped_by`` tells
        which came; the next one does what it does without.

        raises  ConfigError without a handler; a broker's refusal, after the same
        """
        refusals: list[RocketError] = []

        def refused(error: RocketError) -> None:
            refusals.append(error)
            self._ended.set()

        self._check()
        if self._inside_handler():
            raise ConfigError("run() in a handler of its consumer would wait for itself")
        refuse_in_listener(self._consumer, "run")
        self._consumer.check_handlers()
        try:
            with Stopping(self._ended.set) as stopping:
                try:
                    self._tell_refusals(refused)
                    self.start()
                except ClientClosed:
                    if not self._ended.is_set():
                        raise
                    # a handler has closed the consumer while it was started
                wait_or_signal(self._ended)
            self._stopped_by = stopping.signal
        finally:
            self.close()
        if self._closer is not None:  # a handler's close came first
            self._closer.join()
        if refusals:
            raise refusals[0]

    def _inside_handler(self) -> bool:
        on_loop = self._thread is not None and self._thread.is_current  # where coroutine handlers run
        return on_loop or self._consumer.called_by_handler()

    def close(self) -> None:
        """Finish what handlers have begun, store the offsets, leave the group; a second call does nothing.

        A handler may call it: then it returns at once, and the consumer closes when the handler is done.
        """
        if self._inside_handler():
            with self._lock:  # the thread takes it too: it closes nothing before ``run`` is told to wait for it
                if self._closer is None:
                    # The interpreter waits for this thread at its end: until then the offsets are not stored.
                    closer = threading.Thread(target=super().close, name="consumer-close", daemon=False)
                    closer.start()
                    self._closer = closer
                self._ended.set()
        else:
            self._ended.set()
            super().close()


class PullConsumer(_HostedMember[AsyncPullConsumer]):
    """Polls messages as a member of a group (Java: ``DefaultLitePullConsumer``); thread-safe.

    namesrv  as in ``Producer``
    config   settings as one object; or its fields as keyword arguments, see ``ConsumerConfig``
    """

    _kind = AsyncPullConsumer

    subscribe = blocking(AsyncPullConsumer.subscribe)
    assign = blocking(AsyncPullConsumer.assign)
    seek = blocking(AsyncPullConsumer.seek)
    position = on_loop(AsyncPullConsumer.position)
    offset_for_timestamp = blocking(AsyncPullConsumer.offset_for_timestamp)
    commit = blocking(AsyncPullConsumer.commit)

    @edge
    def poll(self, timeout: float = 5.0, *, max_messages: int | None = None) -> list[ReceivedMessage]:
        """Return messages, waiting for the first at most ``timeout`` seconds; an empty list when none came.

        max_messages  the most messages to return; default: the consumer's ``max_messages``
        raises        ConfigError where nothing is subscribed or assigned; a broker's refusal, with no message to return
        """
        return self._poll(timeout, max_messages, bool)

    def _poll(self, timeout: float, max_messages: int | None, is_over: Callable[[], bool]) -> list[ReceivedMessage]:
        polled = Polled()
        try:
            return self._run(self._consumer.poll_into(polled, timeout, max_messages, is_over))
        except BaseException:
            # a Ctrl-C while, or just after, the loop took messages: nobody has seen them
            self._call_later(self._consumer.put_back, polled)
            raise

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield messages, one poll each, until ``close()``, Ctrl-C or SIGTERM; ``commit()`` stores how far this came.

        The first signal ends the iteration behind the message that is being worked on; ``stopped_by`` tells. The next
        does what it does without: a second Ctrl-C raises KeyboardInterrupt.
        """
        with Stopping(lambda: self._call_later(self._consumer.wake_takers)) as stopping:

            def is_over() -> bool:
                return stopping.signal is not None

            over = False
            while not self._closed and not over:
                over = is_over()  # known before the poll, which notes what the one before has returned
                with contextlib.suppress(ClientClosed):
                    yield from self._poll(ITERATION_SECONDS, 1, is_over)
            self._stopped_by = stopping.signal
