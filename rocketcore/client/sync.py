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
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar, Unpack

from rocketcore.client.config import ConsumerConfig, ConsumerOptions, NameServers, StartFrom
from rocketcore.client.consume_service import MessageHandler
from rocketcore.client.process import close_forgotten, watch
from rocketcore.client.pull import Polled
from rocketcore.client.pull import PullConsumer as AsyncPullConsumer
from rocketcore.client.push import PushConsumer as AsyncPushConsumer
from rocketcore.client.runtime import LoopThread
from rocketcore.client.sync_producer import Producer
from rocketcore.client.trouble import Gaps
from rocketcore.errors import ClientClosed, ForkedClient, RocketError
from rocketcore.message import MessageQueue, ReceivedMessage
from rocketcore.service import wait_or_signal

__all__ = ["Producer", "PullConsumer", "PushConsumer", "Subscription"]

T = TypeVar("T")
Handler = TypeVar("Handler", bound=MessageHandler)

CLOSE_MARGIN = 15.0
ITERATION_CHUNK = 32


class _Hosted:
    """An asyncio consumer on a loop thread that starts on first use."""

    def __init__(self, consumer: AsyncPushConsumer | AsyncPullConsumer) -> None:
        self._hosted = consumer
        self._thread: LoopThread | None = None
        self._lock = threading.RLock()  # guards starting and closing; a handler may come in
        self._closed = False
        self._forked = False
        self._finalizer: weakref.finalize[..., Any] | None = None
        watch(self)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def forked(self) -> None:
        """Note that this is a child: the threads of a consumer that has any are the parent's."""
        self._forked = self._thread is not None
        self._lock = threading.RLock()
        if self._finalizer is not None:
            self._finalizer.detach()

    @property
    def config(self) -> ConsumerConfig:
        """The settings of this consumer."""
        return self._hosted.config

    @property
    def client_id(self) -> str:
        """The name under which brokers know this consumer; after it started."""
        return self._hosted.client_id

    @property
    def gaps(self) -> Gaps:
        """What brokers leave out of their answers; ``gaps.tell(function)`` has a function called on this one's loop."""
        return self._hosted.gaps

    def _check(self) -> None:
        if self._forked:
            raise ForkedClient("the consumer was started by the parent process: start it, or make one, after fork()")
        if self._closed:
            raise ClientClosed("the consumer is closed")

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
                    self._finalizer = weakref.finalize(self, _forgotten, self._hosted, self._thread)
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

    @staticmethod
    async def _call(function: Callable[..., T], *arguments: object) -> T:
        """Call a function that belongs to the loop; for ``_run``."""
        return function(*arguments)

    def start(self) -> None:
        """Join the group and begin to pull; a second call does nothing."""
        self._run(self._hosted.start())

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait until this member has its share of the queues of every topic that it is subscribed to.

        raises  ConfigError without a subscription; what a broker refuses; RequestTimeout after ``timeout`` seconds,
                which says what is missing
        """
        self._run(self._hosted.wait_ready(timeout))

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
        _end(self._hosted, thread)


def _end(consumer: AsyncPushConsumer | AsyncPullConsumer, thread: LoopThread) -> None:
    try:
        thread.run(consumer.close(), consumer.config.close_timeout + CLOSE_MARGIN)
    finally:
        thread.stop()


def _forgotten(consumer: AsyncPushConsumer | AsyncPullConsumer, thread: LoopThread) -> None:
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


class PushConsumer(_Hosted):
    """Receives messages as a member of a group (Java: ``DefaultMQPushConsumer``); thread-safe.

    Subscribe, then iterate and settle each message with ``ack()``, ``retry()`` or ``process()``; or give each topic a
    handler, which runs on a pool of ``threads``, and call ``run()``. A handler that returns is done with the message;
    one that raises gets it again, after the delay of ``RetryLater`` if it raised that.

    namesrv  as in ``Producer``
    config   settings as one object; or its fields as keyword arguments, see ``ConsumerConfig``
    """

    def __init__(
        self, namesrv: NameServers = None, *, config: ConsumerConfig | None = None, **options: Unpack[ConsumerOptions]
    ) -> None:
        self._consumer = AsyncPushConsumer(namesrv, config=config, **options)
        self._ended = threading.Event()
        self._closer: threading.Thread | None = None
        super().__init__(self._consumer)

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
            self._run(self._call(self._consumer.set_handler, topic, handler))

    def unsubscribe(self, topic: str) -> None:
        """End a subscription; the queues of the topic are given up."""
        self._run(self._consumer.unsubscribe(topic))

    def queues(self, *, include_retry: bool = False) -> list[MessageQueue]:
        """Return the queues of subscribed topics that this consumer reads now, sorted.

        include_retry  also those of the group's own retry topic
        """
        return self._run(self._call(functools.partial(self._consumer.queues, include_retry=include_retry)))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield the messages of topics without a handler, until ``close()`` or Ctrl-C."""
        while True:
            taken: deque[ReceivedMessage] = deque()
            exhausted = False
            try:
                self._run(self._consumer.take_into(taken, ITERATION_CHUNK))
                if not taken:
                    return
                while taken and not self._closed:
                    message = taken.popleft()
                    if self._consumer.still_owned(message):
                        yield message
                exhausted = True
            except (ClientClosed, KeyboardInterrupt):
                return
            finally:
                if not exhausted:  # who stopped iterating has not seen the rest
                    self._call_later(self._consumer.give_back, taken)

    def run(self) -> None:
        """Consume with the handlers until SIGINT, SIGTERM or ``close()``; then finish, and leave the group.

        raises  ConfigError without a handler; what a broker refuses, after the same
        """
        refusals: list[RocketError] = []

        def refused(error: RocketError) -> None:
            refusals.append(error)
            self._ended.set()

        self._check()
        self._consumer.check_handlers()
        with _SignalsSet(self._ended):
            try:
                self._run(self._call(self._consumer.tell_refusals, refused))
                self.start()
            except ClientClosed:
                if not self._ended.is_set():
                    raise
                # a handler has closed the consumer while it was started
            wait_or_signal(self._ended)
        self.close()
        if self._closer is not None:  # a handler's close came first
            self._closer.join()
        if refusals:
            raise refusals[0]

    def close(self) -> None:
        """Finish what handlers have begun, store the offsets, leave the group; a second call does nothing.

        A handler may call it: then it returns at once, and the consumer closes when the handler is done.
        """
        self._ended.set()
        on_loop = self._thread is not None and self._thread.is_current  # where coroutine handlers run
        if on_loop or self._consumer.called_by_handler():
            # The interpreter waits for this thread at its end: until then the offsets are not stored.
            self._closer = threading.Thread(target=super().close, name="consumer-close", daemon=False)
            self._closer.start()
        else:
            super().close()

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Stop pulling, from some queues or from all."""
        self._run(self._call(self._consumer.pause, queues))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on pulling."""
        self._run(self._call(self._consumer.resume, queues))


class _SignalsSet:
    """While it lasts, SIGINT and SIGTERM set an event; outside the main thread it does nothing."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event
        self._before: dict[int, Any] = {}

    def _set(self, number: int, frame: FrameType | None) -> None:
        self._event.set()

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._set)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class PullConsumer(_Hosted):
    """Polls messages as a member of a group (Java: ``DefaultLitePullConsumer``); thread-safe.

    namesrv  as in ``Producer``
    config   settings as one object; or its fields as keyword arguments, see ``ConsumerConfig``
    """

    def __init__(
        self, namesrv: NameServers = None, *, config: ConsumerConfig | None = None, **options: Unpack[ConsumerOptions]
    ) -> None:
        self._consumer = AsyncPullConsumer(namesrv, config=config, **options)
        super().__init__(self._consumer)

    def subscribe(self, topic: str, *, tag: str | None = None, sql: str | None = None) -> None:
        """Read this member's share of a topic; ``tag`` and ``sql`` as ``PushConsumer.subscribe``."""
        self._run(self._consumer.subscribe(topic, tag=tag, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        """End a subscription; the queues of the topic are given up."""
        self._run(self._consumer.unsubscribe(topic))

    def assign(self, queues: Iterable[MessageQueue], *, tag: str | None = None, sql: str | None = None) -> None:
        """Read these queues and no others, whoever else reads them; each call replaces the one before."""
        self._run(self._consumer.assign(queues, tag=tag, sql=sql))

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this consumer reads now."""
        return self._run(self._call(self._consumer.assignment))

    def poll(self, timeout: float = 5.0, *, max_messages: int | None = None) -> list[ReceivedMessage]:
        """Return messages, waiting for the first at most ``timeout`` seconds; an empty list when none came.

        max_messages  at most so many; default: the consumer's ``max_messages``
        raises        ConfigError where nothing is subscribed or assigned; what a broker refuses, with no
                      message to return
        """
        polled = Polled()
        try:
            return self._run(self._consumer.poll_into(polled, timeout, max_messages))
        except BaseException:
            # a Ctrl-C while, or just after, the loop took messages: nobody has seen them
            self._call_later(self._consumer.put_back, polled)
            raise

    def seek(self, queue: MessageQueue, offset: int | StartFrom) -> None:
        """Go on reading a queue at an offset, a time, ``"first"`` or ``"last"``.

        raises  ConfigError for a queue that this consumer does not read, and for an offset that the queue does not have
        """
        self._run(self._consumer.seek(queue, offset))

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the message of a queue that a poll would return next."""
        return self._run(self._call(self._consumer.position, queue))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset that the group has stored for a queue, None without one."""
        return self._run(self._consumer.committed(queue))

    def offset_for_timestamp(self, queue: MessageQueue, time: datetime) -> int:
        """Return the offset of the first message of a queue that was stored at a time or later."""
        return self._run(self._consumer.offset_for_timestamp(queue, time))

    def commit(self, offsets: Mapping[MessageQueue, int] | ReceivedMessage | None = None) -> None:
        """Store how far the group is: what polls have returned, or as far as ``offsets`` says.

        offsets  of each queue the offset of the next message to read; or the last message of a queue that is done
        raises   ConfigError for anything else
        """
        self._run(self._consumer.commit(offsets))

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Have polls leave some queues out, or all; nothing is fetched from them."""
        self._run(self._call(self._consumer.pause, queues))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Have polls return messages of these queues again."""
        self._run(self._call(self._consumer.resume, queues))
