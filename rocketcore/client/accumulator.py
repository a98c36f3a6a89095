"""Accumulator: messages handed over one by one leave as batches, one batch per queue.

Messages without a queue of their own share one open batch per topic, and the queue is chosen when it leaves; messages
with a ``message_group`` or a given queue share the open batch of that queue, and its batches leave one after the other,
so that their order stays. A batch leaves when it is full, when its first message is ``linger`` seconds old, or when the
last batch on its way was answered.

``append`` may be called from any thread; everything else happens on the event loop. Memory is bounded: bytes that were
accepted and not answered count against ``buffer_bytes``, and ``append`` refuses what does not fit.

RocketMQ 5.5.0: ``ProduceAccumulator``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from rocketcore._fast.message import encode_batch
from rocketcore.client.config import ProducerConfig
from rocketcore.client.ids import new_uniq_key
from rocketcore.client.outgoing import can_be_batched, property_text
from rocketcore.errors import ClientClosed, ConfigError, RequestTimeout, RocketError
from rocketcore.message import Message, MessageQueue, SendResult

if TYPE_CHECKING:
    from rocketcore.client.producer import ProducerLogic, TopicPublisher

__all__ = ["Accumulator", "SendFuture"]

logger = logging.getLogger(__name__)

MESSAGE_OVERHEAD_BYTES: Final = 22
"""What a message takes in a batch besides its body and its properties."""

IN_FLIGHT: Final = 8
"""Batches of one topic that may be unanswered at a time."""


class _Batch:
    """Messages that leave together, and what became of them."""

    __slots__ = (
        "bodies",
        "bytes",
        "callbacks",
        "error",
        "event",
        "flags",
        "ids",
        "loop",
        "message_ids",
        "properties",
        "queue",
        "result",
        "topic",
    )

    def __init__(self, topic: str, queue: MessageQueue | None, loop: asyncio.AbstractEventLoop) -> None:
        self.topic = topic
        self.queue = queue
        self.loop = loop
        self.ids: list[str] = []
        self.bodies: list[bytes] = []
        self.properties: list[str] = []
        self.flags: list[int] = []
        self.bytes = 0
        self.event = threading.Event()
        self.callbacks: list[Callable[[], None]] = []
        self.result: SendResult | None = None
        self.message_ids: list[str] = []
        self.error: BaseException | None = None

    def settle(self, result: SendResult | None, error: BaseException | None) -> None:
        """Note the outcome and wake all who wait for it."""
        self.result = result
        self.error = error
        if result is not None:
            self.message_ids = result.offset_msg_id.split(",")
        self.bodies.clear()
        self.properties.clear()
        self.event.set()
        while self.callbacks:
            self.callbacks.pop()()


class SendFuture:
    """What will become of one message that ``send_nowait`` took: ``await`` it, or call ``result()``.

    One object shares the outcome of its batch, which is why it is not a ``concurrent.futures.Future``; the methods it
    has mean the same.
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: _Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    @property
    def msg_id(self) -> str:
        """The id that the message has been given."""
        return self._batch.ids[self._index]

    def done(self) -> bool:
        """Say whether the outcome is known."""
        return self._batch.event.is_set()

    def result(self, timeout: float | None = None) -> SendResult:
        """Wait for the outcome; raises what the send failed with, RequestTimeout after ``timeout`` seconds."""
        batch = self._batch
        if not batch.event.is_set():
            self._wait(timeout)
        if batch.error is not None:
            raise batch.error
        result = batch.result
        assert result is not None
        index = self._index
        return SendResult(
            result.status,
            batch.ids[index],
            batch.message_ids[index] if index < len(batch.message_ids) else "",
            result.queue,
            result.offset + index,
            result.transaction_id,
            result.recall_handle,
        )

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; return what the send failed with, None if it did not."""
        if not self._batch.event.is_set():
            self._wait(timeout)
        return self._batch.error

    def add_done_callback(self, callback: Callable[[SendFuture], object]) -> None:
        """Call a function with this future when the outcome is known; on the thread that learns it."""
        batch = self._batch
        call = self._guarded(callback)
        batch.callbacks.append(call)
        # settle() may have emptied the list just before
        if batch.event.is_set() and call in batch.callbacks:
            batch.callbacks.remove(call)
            call()

    def _guarded(self, callback: Callable[[SendFuture], object]) -> Callable[[], None]:
        def call() -> None:
            try:
                callback(self)
            except Exception:
                logger.exception("callback failed msg_id=%s", self.msg_id)

        return call

    def _wait(self, timeout: float | None) -> None:
        if asyncio._get_running_loop() is self._batch.loop:
            raise ConfigError("the message is not sent yet: await the future on its event loop")
        if not self._batch.event.wait(timeout):
            raise RequestTimeout(f"message {self.msg_id} was not sent within {timeout:g} s")

    def __await__(self) -> Generator[Any, None, SendResult]:
        if not self._batch.event.is_set():
            loop = asyncio.get_running_loop()
            done: asyncio.Future[None] = loop.create_future()

            def wake(_: SendFuture) -> None:
                loop.call_soon_threadsafe(_resolve, done)

            self.add_done_callback(wake)
            yield from done.__await__()
        return self.result()

    def __repr__(self) -> str:
        state = "pending" if not self.done() else "failed" if self._batch.error is not None else "sent"
        return f"<SendFuture {state} msg_id={self.msg_id}>"


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Accumulator:
    """Collects messages and sends them as batches by ``logic``, on the event loop that runs when it is made."""

    def __init__(self, logic: ProducerLogic, config: ProducerConfig) -> None:
        self._logic = logic
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # guards all below
        self._answered = threading.Condition(self._lock)
        self._open: dict[str | MessageQueue, _Batch] = {}
        self._ready: deque[_Batch] = deque()
        self._bytes = 0
        self._closed = False
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._in_flight = 0
        self._chains: dict[MessageQueue, deque[_Batch]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed: list[asyncio.Future[None]] = []

    def append(
        self, publisher: TopicPublisher, message: Message, queue: MessageQueue | None, *, wait: bool = False
    ) -> SendFuture | None:
        """Take a message; None when the buffer is full. Thread-safe.

        publisher  of the message's topic; it says which queue a message_group belongs to
        wait       wait for room instead, which only threads other than the loop's may do
        """
        topic = message.topic
        body = message.body
        if queue is None and message.message_group is not None:
            queue = self._logic.target(publisher, message.message_group, None, -1).queue
        msg_id = new_uniq_key()
        properties = property_text(message, msg_id)
        size = len(body) + len(properties) + MESSAGE_OVERHEAD_BYTES
        config = self._config
        key: str | MessageQueue = topic if queue is None else queue
        with self._lock:
            if self._closed:
                raise ClientClosed("the producer is closed")
            # A message larger than the whole buffer is taken when it has the buffer to itself.
            while self._bytes and self._bytes + size > config.buffer_bytes:
                self._seal_all()
                if not wait:
                    return None
                self._answered.wait()
                if self._closed:
                    raise ClientClosed("the producer is closed")
            self._bytes += size
            if not can_be_batched(message):
                batch = _Batch(topic, queue, self._loop)
                future = self._add(batch, message.flag, msg_id, body, properties, size)
                self._ready.append(batch)
                self._wake()
                return future
            opened = self._open.get(key)
            if opened is not None and opened.bytes + size > config.batch_bytes:
                self._seal(key)
                opened = None
            if opened is None:
                opened = self._open[key] = _Batch(topic, queue, self._loop)
                self._wake()
            future = self._add(opened, message.flag, msg_id, body, properties, size)
            if len(opened.ids) >= config.batch_count or opened.bytes >= config.batch_bytes:
                self._seal(key)
            return future

    @staticmethod
    def _add(batch: _Batch, flag: int, msg_id: str, body: bytes, properties: str, size: int) -> SendFuture:
        index = len(batch.ids)
        batch.ids.append(msg_id)
        batch.bodies.append(body)
        batch.properties.append(properties)
        batch.flags.append(flag)
        batch.bytes += size
        return SendFuture(batch, index)

    def _seal(self, key: str | MessageQueue) -> None:
        self._ready.append(self._open.pop(key))
        self._wake()

    def _seal_all(self) -> None:
        for key in list(self._open):
            self._seal(key)

    def _wake(self) -> None:
        """Have ``_pump`` run on the loop soon; once for any number of calls until it does."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._pump)

    def _pump(self) -> None:
        """Start what is ready, and a timer for what is not."""
        with self._lock:
            self._woken = False
            while self._ready and self._in_flight < IN_FLIGHT:
                self._start(self._ready.popleft())
            if self._open and self._timer is None:
                self._timer = self._loop.call_later(self._config.linger, self._linger_over)

    def _linger_over(self) -> None:
        with self._lock:
            self._timer = None
            self._seal_all()
        self._pump()

    def _start(self, batch: _Batch) -> None:
        if batch.queue is not None:
            chain = self._chains.get(batch.queue)
            if chain is not None:
                chain.append(batch)
                return
            self._chains[batch.queue] = deque()
        self._in_flight += 1
        task = self._loop.create_task(self._deliver(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, batch: _Batch) -> None:
        result: SendResult | None = None
        error: BaseException | None = None
        try:
            if len(batch.ids) == 1:
                result = await self._logic.send_encoded(
                    batch.topic, batch.queue, batch.bodies[0], batch.properties[0], batch.ids[0], batch.flags[0]
                )
            else:
                body = encode_batch(batch.bodies, [text.encode() for text in batch.properties], batch.flags)
                result = await self._logic.send_encoded_batch(batch.topic, None, batch.queue, body, batch.ids)
        except (RocketError, ValueError) as failure:
            error = failure
        except asyncio.CancelledError:
            error = ClientClosed("the producer was closed before the message was sent")
            raise
        finally:
            batch.settle(result, error)
            self._finish(batch)

    def _finish(self, batch: _Batch) -> None:
        with self._lock:
            self._in_flight -= 1
            self._bytes -= batch.bytes
            if batch.queue is not None:
                chain = self._chains.pop(batch.queue)
                if chain:
                    self._ready.extendleft(reversed(chain))
            if not self._in_flight and not self._ready:
                # The broker is idle: what has gathered meanwhile gains nothing by waiting for more.
                self._seal_all()
            self._answered.notify_all()
        for waiter in self._changed:
            _resolve(waiter)
        self._changed.clear()
        self._pump()

    async def room(self) -> None:
        """Wait until a batch was answered."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._changed.append(waiter)
        await waiter

    async def flush(self) -> None:
        """Send what is open, and wait until nothing is on its way."""
        with self._lock:
            self._seal_all()
        self._pump()
        while self._bytes:
            await self.room()

    async def close(self) -> None:
        """Refuse more, and flush."""
        with self._lock:
            self._closed = True
        await self.flush()
        if self._timer is not None:
            self._timer.cancel()
