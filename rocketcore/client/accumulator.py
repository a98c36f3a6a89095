"""Accumulator: messages handed over one by one leave as batches, one batch per queue.

Messages without a queue of their own share one open batch per topic, and the queue is chosen when it leaves; messages
with a ``message_group`` or a given queue share the open batch of that queue, and its batches leave one after the other,
so that their order stays. A batch leaves at the next turn of the loop if its broker has nothing of ours to do; behind
others it leaves when it is full, when it has waited for ``linger`` seconds, or when they were answered.

``append`` may be called from any thread; it finds out all that is wrong with a message, so that a batch holds only what
can be sent. Everything else happens on the event loop. Memory is bounded: bytes that were accepted and not answered
count against ``buffer_bytes``. Time is bounded: ``delivery_timeout`` seconds after it was appended, a message is sent
or has failed, whatever happened to it in between. Each broker has a number of batches under way of its own, so that one
that does not answer holds up what is meant for it alone.

RocketMQ 5.5.0: ``ProduceAccumulator``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, Protocol

from rocketcore._fast.message import encode_batch
from rocketcore.client.attempts import Attempts
from rocketcore.client.config import ProducerConfig
from rocketcore.client.future import Batch, Failures, SendFuture
from rocketcore.client.ids import new_uniq_key
from rocketcore.client.lane import Lane, Windows
from rocketcore.client.outgoing import can_be_batched, property_text
from rocketcore.client.publisher import TopicPublisher
from rocketcore.client.send_command import SendTarget
from rocketcore.errors import ClientClosed, ConfigError, Overloaded, RocketError
from rocketcore.message import Message, MessageQueue, SendResult, SendStatus
from rocketcore.service import SYSTEM_CLOCK, Backoff, Clock

__all__ = ["Accumulator", "BatchSender"]

logger = logging.getLogger(__name__)

MESSAGE_OVERHEAD_BYTES: Final = 22
"""What a message takes in a batch besides its body and its properties."""

BATCH_PROPERTIES: Final = "WAIT\x01true\x02"
OVER_LIMIT: Final = 2
"""A callback, which must not wait, may fill the buffer to so many times its limit."""

FIRST_LOOK_UP_PAUSE: Final = 0.1
LONGEST_LOOK_UP_PAUSE: Final = 1.0
_LEAST_TIMEOUT: Final = 0.001
_SLICE_SECONDS: Final = 0.5
"""Threads wait in slices of this length, so that a signal's handler runs between two."""


class BatchSender(Protocol):
    """What the accumulator needs of its producer; ``check`` and ``find_publisher`` for any thread."""

    def check(self, message: Message) -> None: ...

    def find_publisher(self, topic: str) -> TopicPublisher | None: ...

    async def publisher(self, topic: str, timeout: float | None = None) -> TopicPublisher: ...

    async def refresh_route(self, topic: str, timeout: float) -> None: ...

    def target(
        self,
        publisher: TopicPublisher,
        message_group: str | None,
        queue: MessageQueue | None,
        avoid: Collection[int] = (),
        full: Collection[str] = (),
    ) -> SendTarget | None: ...

    async def packed(self, body: bytes) -> tuple[bytes, int]: ...

    async def attempt(
        self, target: SendTarget, body: bytes, properties: str, msg_id: str, timeout: float,
        *, sys_flag: int = 0, flag: int = 0, batch: bool = False,
    ) -> SendResult: ...  # fmt: skip


class Accumulator:
    """Collects messages and sends them as batches by ``logic``, on the event loop that runs when it is made."""

    def __init__(self, logic: BatchSender, config: ProducerConfig, clock: Clock = SYSTEM_CLOCK) -> None:
        self._logic = logic
        self._config = config
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._failures = Failures(clock)
        self._lock = threading.Lock()  # guards the following up to _woken
        self._changed = threading.Condition(self._lock)
        self._open: dict[str | MessageQueue, Batch] = {}
        self._new: list[str | MessageQueue] = []
        """Keys of batches that were opened since the loop looked last."""
        self._ready: deque[Batch] = deque()
        self._unrouted: set[str] = set()
        """Topics of which a message waits to learn its queue; what follows it must not overtake it."""
        self._unsettled: dict[Batch, None] = {}
        self._bytes = 0
        self._closed = False
        self._woken = False
        # What follows belongs to the loop.
        self._lanes: dict[str | MessageQueue | tuple[str], Lane] = {}
        self._windows = Windows()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._linger: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None

    # Taking messages, on any thread

    def append(self, message: Message, queue: MessageQueue | None = None, *, wait: bool = False) -> SendFuture | None:
        """Take a message; None when the buffer is full.

        wait    wait for room instead. The loop's own thread, where callbacks run, does not wait but goes over the limit
        raises  what is wrong with the message; ClientClosed; with ``wait`` Overloaded where no room came in
                ``delivery_timeout`` seconds
        """
        self._logic.check(message)
        topic, body, config = message.topic, message.body, self._config
        msg_id = new_uniq_key()
        properties = property_text(message, msg_id).encode()
        size = len(body) + len(properties) + MESSAGE_OVERHEAD_BYTES
        with self._lock:
            if self._closed:
                raise ClientClosed("the producer is closed")
            # A message larger than the whole buffer is taken when it has the buffer to itself.
            if self._bytes and self._bytes + size > config.buffer_bytes and not self._make_room(size, wait):
                return None
            key: str | MessageQueue | None = topic
            if queue is not None or message.message_group is not None:
                key = self._fixed_queue(message, queue)
            batch = None
            if key is not None and can_be_batched(message):
                batch = self._open.get(key)
                if batch is not None and batch.bytes + size > config.batch_bytes:
                    self._seal(key)
                    batch = None
                if batch is None:
                    self._new.append(key)
                    batch = self._open[key] = self._new_batch(topic, key)
            else:
                batch = self._new_batch(topic, key)
                batch.group, batch.queue = message.message_group, queue
                self._ready.append(batch)
            if not self._woken and (self._new or self._ready):  # of this call, or of one that a Ctrl-C ended
                self._wake()
            index = len(batch.ids)
            batch.ids.append(msg_id)
            batch.bodies.append(body)
            batch.properties.append(properties)
            batch.flags.append(message.flag)
            batch.bytes += size
            self._bytes += size
            is_full = index + 1 >= config.batch_count or batch.bytes >= config.batch_bytes
            if is_full and key is not None and self._open.get(key) is batch:
                self._seal(key)
                self._wake()
            return SendFuture(batch, index)

    async def append_when_room(self, message: Message, queue: MessageQueue | None = None) -> SendFuture:
        """Take a message as soon as there is room; raises as ``append``."""
        future = self.append(message, queue)
        if future is None:
            try:
                async with asyncio.timeout(self._config.delivery_timeout):
                    while (future := self.append(message, queue)) is None:
                        await self._next_change()
            except TimeoutError:
                raise self._overloaded() from None
        return future

    def _new_batch(self, topic: str, key: str | MessageQueue | None) -> Batch:
        end = self._clock.monotonic() + self._config.delivery_timeout
        batch = Batch(topic, key, self._loop, self._failures, end)
        self._unsettled[batch] = None
        return batch

    def _make_room(self, size: int, wait: bool) -> bool:
        """Wait until a message fits; the lock is held. False where the caller does not wait."""
        limit = self._config.buffer_bytes
        end = self._clock.monotonic() + self._config.delivery_timeout
        here = threading.get_ident() == self._loop_thread
        while self._bytes and self._bytes + size > limit:
            self._seal_all()
            self._wake()
            if not wait:
                return False
            if here:
                if self._bytes + size > limit * OVER_LIMIT:
                    raise self._overloaded()
                return True
            left = end - self._clock.monotonic()
            if left <= 0:
                raise self._overloaded()
            self._changed.wait(min(left, _SLICE_SECONDS))
            if self._closed:
                raise ClientClosed("the producer is closed")
        return True

    def _overloaded(self) -> Overloaded:
        config = self._config
        return Overloaded(
            f"send_nowait: {self._bytes} bytes are not answered yet, buffer_bytes allows {config.buffer_bytes}"
        )

    def _fixed_queue(self, message: Message, queue: MessageQueue | None) -> MessageQueue | None:
        """Return the queue that a message has to go to; None where that is not known yet. The lock is held."""
        topic = message.topic
        publisher = None if topic in self._unrouted else self._logic.find_publisher(topic)
        if publisher is None:
            self._unrouted.add(topic)
            return None
        target = self._logic.target(publisher, message.message_group, queue)
        assert target is not None, "no broker is avoided"
        return target.queue

    def _seal(self, key: str | MessageQueue) -> None:
        self._ready.append(self._open[key])  # a Ctrl-C comes between two calls: at worst it is in both then
        del self._open[key]

    def _seal_all(self) -> None:
        for key in list(self._open):
            self._seal(key)

    def _wake(self) -> None:
        """Have ``_pump`` run on the loop soon; once for any number of calls until it does."""
        if not self._woken:
            self._loop.call_soon_threadsafe(self._pump)
            self._woken = True

    # Sending batches, on the loop

    def _pump(self) -> None:
        """Start what is ready or has nothing to wait for; arm the timers for the rest."""
        with self._lock:
            new, self._new = self._new, []
            for key in new:
                if key in self._open and self._is_idle(key):
                    self._seal(key)
            self._woken = False
            ready, self._ready = dict.fromkeys(self._ready), deque()
            for batch in ready:
                if batch.key is not None and self._open.get(batch.key) is batch:
                    del self._open[batch.key]
            if self._open and self._linger is None:
                self._linger = self._loop.call_later(self._config.linger, self._linger_over)
            if self._unsettled and self._expiry is None:
                self._arm_expiry(next(iter(self._unsettled)))
        for batch in ready:
            self._enter(batch)

    def _linger_over(self) -> None:
        self._linger = None
        with self._lock:
            self._seal_all()
        self._pump()

    def _is_idle(self, key: str | MessageQueue) -> bool:
        """Say whether a broker of an open batch has nothing of ours to do, so that waiting for more gains nothing."""
        lane = self._lanes.get(key)
        if lane is not None and (lane.waiting or (lane.queue is not None and lane.under_way)):
            return False
        if isinstance(key, str):
            publisher = self._logic.find_publisher(key)
            return publisher is None or any(map(self._windows.idle, publisher.addresses))
        publisher = self._logic.find_publisher(key.topic)
        target = publisher.by_queue.get(key) if publisher is not None else None
        return target is None or self._windows.idle(target.address)

    def _enter(self, batch: Batch) -> None:
        """Put a sealed batch into its lane."""
        key = (batch.topic,) if batch.key is None else batch.key
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(batch.topic, batch.key)
        lane.waiting.append(batch)
        self._advance(lane)

    def _advance(self, lane: Lane) -> None:
        """Start batches of a lane as long as it may, and there is room at a broker."""
        while lane.waiting and lane.looking is None and not (lane.queue is not None and lane.under_way):
            publisher = self._logic.find_publisher(lane.topic)
            if publisher is None or (lane.queue is not None and lane.queue not in publisher.by_queue):
                lane.looking = self._task(self._look_up(lane))
                return
            if lane.key is None:
                self._give_queue(publisher, lane.waiting.popleft())
                continue
            batch = lane.waiting[0]
            avoid = () if batch.attempts is None or lane.queue is not None else batch.attempts.avoid
            target = self._logic.target(publisher, None, lane.queue, avoid, self._windows.full)
            if target is None:
                if lane.queue is not None:
                    wanted: Collection[str] = (publisher.by_queue[lane.queue].address,)
                else:
                    wanted = publisher.addresses
                if self._windows.wait(lane, wanted):
                    return
                # No broker is full: a new route has none but those that failed.
                assert batch.attempts is not None, "a queue is left out because of its broker's window or failures"
                batch.attempts.avoid.clear()
                continue
            lane.waiting.popleft()
            batch.is_under_way = True
            lane.under_way += 1
            self._windows.enter(target.address)
            self._task(self._send(lane, batch, target))
        self._drop_if_done(lane)

    def _drop_if_done(self, lane: Lane) -> None:
        key = (lane.topic,) if lane.key is None else lane.key
        if lane.waiting or lane.under_way or lane.looking is not None or self._lanes.get(key) is not lane:
            return
        del self._lanes[key]
        if lane.key is None:
            with self._lock:
                self._unrouted.discard(lane.topic)

    def _give_queue(self, publisher: TopicPublisher, batch: Batch) -> None:
        """Move a batch to the lane of its queue, now that the topic's queues are known."""
        try:
            target = self._logic.target(publisher, batch.group, batch.queue)
        except Exception as error:  # a selector may be anyone's
            self._settle(batch, error)
            return
        assert target is not None, "no broker is avoided"
        batch.key = target.queue
        self._enter(batch)

    async def _look_up(self, lane: Lane) -> None:
        """Ask for the topic's route until the lane's batches have somewhere to go, or none of them has time left."""
        pauses = Backoff(FIRST_LOOK_UP_PAUSE, LONGEST_LOOK_UP_PAUSE)
        logic, timeout = self._logic, self._config.timeout
        try:
            while lane.waiting:
                try:
                    if logic.find_publisher(lane.topic) is None:
                        await logic.publisher(lane.topic, timeout)
                    else:
                        await logic.refresh_route(lane.topic, timeout)
                except RocketError as error:
                    if not error.retriable:
                        raise
                    lane.failure = error
                publisher = logic.find_publisher(lane.topic)
                if publisher is not None and (lane.queue is None or lane.queue in publisher.by_queue):
                    break
                await asyncio.sleep(pauses.next())
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            lane.looking = None
            while lane.waiting:
                self._settle(lane.waiting.popleft(), error)
        lane.looking = None
        self._advance(lane)

    async def _send(self, lane: Lane, batch: Batch, target: SendTarget) -> None:
        """Make an attempt with a batch that has its part of the broker's window; then settle it, or send it again."""
        outcome: SendResult | BaseException | None = None
        try:
            try:
                result = await self._attempt(batch, target)
            finally:
                self._leave(target.address)
            if not self._is_safe_enough(batch, target, result):
                batch.result = result
            else:
                outcome = result
        except asyncio.CancelledError:
            self._settle(batch, batch.closed())
            raise
        except BaseException as error:
            try:
                outcome = await self._after(batch, target, error)
            except asyncio.CancelledError:
                self._settle(batch, error)
                raise
            except BaseException as failure:  # of a hook, while the route was asked for
                outcome = failure
        lane.under_way -= 1
        if outcome is None:
            batch.is_under_way = False
            lane.waiting.appendleft(batch)
        else:
            self._settle(batch, outcome)
        self._advance(lane)
        if self._windows.idle(target.address):
            self._seal_idle()

    async def _attempt(self, batch: Batch, target: SendTarget) -> SendResult:
        if batch.request is None:
            batch.request = await self._encode(batch)
            batch.forget_parts()
        body, properties, msg_id, sys_flag, flag = batch.request
        timeout = min(self._config.timeout, max(batch.end - self._clock.monotonic(), _LEAST_TIMEOUT))
        return await self._logic.attempt(
            target, body, properties, msg_id, timeout, sys_flag=sys_flag, flag=flag, batch=len(batch.ids) > 1
        )

    async def _encode(self, batch: Batch) -> tuple[bytes, str, str, int, int]:
        """Return body, properties, message ids, system flag and flag of a batch's request."""
        if len(batch.ids) > 1:
            body = encode_batch(batch.bodies, batch.properties, batch.flags)
            return body, BATCH_PROPERTIES, ",".join(batch.ids), 0, 0
        body, sys_flag = batch.bodies[0], 0
        if len(body) >= self._config.compress_over_bytes:
            body, sys_flag = await self._logic.packed(body)
        return body, batch.properties[0].decode(), batch.ids[0], sys_flag, batch.flags[0]

    def _attempts(self, batch: Batch) -> Attempts:
        if batch.attempts is None:
            # Time is what bounds them, unless the user wants none.
            batch.attempts = Attempts(batch.topic, None if self._config.retries else 0)
        return batch.attempts

    def _is_safe_enough(self, batch: Batch, target: SendTarget, result: SendResult) -> bool:
        if result.status is SendStatus.SEND_OK or not self._config.retry_another_broker_when_not_store_ok:
            return True
        if isinstance(batch.key, MessageQueue):
            return True
        attempts = self._attempts(batch)
        return not attempts.not_safe(target) or attempts.count > self._config.retries

    async def _after(self, batch: Batch, target: SendTarget, error: BaseException) -> SendResult | BaseException | None:
        """Return what a failed attempt means for its batch: the outcome, or None when it may be sent again now."""
        if not isinstance(error, RocketError):
            return error
        attempts = self._attempts(batch)
        logger.debug("send failed topic=%s address=%s error=%s", batch.topic, target.address, error)
        again = attempts.failed(target, error)
        if again and attempts.refresh_route and self._clock.monotonic() < batch.end:
            await self._logic.refresh_route(batch.topic, batch.end - self._clock.monotonic())
        if again and self._all_failed(batch, attempts):
            pause = attempts.pause()
            again = self._clock.monotonic() + pause < batch.end
            if again:
                await asyncio.sleep(pause)
        if again and self._clock.monotonic() < batch.end:
            return None
        return batch.result or attempts.error(self._config.delivery_timeout)

    def _all_failed(self, batch: Batch, attempts: Attempts) -> bool:
        publisher = self._logic.find_publisher(batch.topic)
        if publisher is None or isinstance(batch.key, MessageQueue):
            return True
        return all(target.broker_number in attempts.avoid for target in publisher.targets)

    def _leave(self, address: str) -> None:
        """Give back a part of a broker's window, and let the next one have it."""
        self._windows.leave(address)
        while (lane := self._windows.next_lane(address)) is not None:
            self._advance(lane)

    def _seal_idle(self) -> None:
        """Send what has gathered for brokers that are idle now: it gains nothing by waiting for more."""
        with self._lock:
            for key in [key for key in self._open if self._is_idle(key)]:
                self._seal(key)
            nothing = not self._ready
        if not nothing:
            self._pump()

    def _settle(self, batch: Batch, outcome: SendResult | BaseException) -> None:
        with self._lock:
            # Before the callbacks, which may send.
            self._bytes -= batch.bytes
            self._changed.notify_all()
        batch.settle(outcome)
        with self._lock:
            del self._unsettled[batch]
            self._changed.notify_all()
            if not self._unsettled and self._expiry is not None:
                # A loop holds what its timers call, also a producer that no one else refers to.
                self._expiry.cancel()
                self._expiry = None
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    # Time

    def _arm_expiry(self, oldest: Batch) -> None:
        self._expiry = self._loop.call_later(max(0.0, oldest.end - self._clock.monotonic()), self._expire)

    def _expire(self) -> None:
        """Fail the batches that have waited for too long; those under way end by their own time-out."""
        self._expiry = None
        now = self._clock.monotonic()
        with self._lock:
            batches = list(self._unsettled)
            to_come = {*self._ready, *self._open.values()}
        for batch in batches:
            if batch.end > now or batch.is_under_way or batch in to_come:
                continue
            lane = self._lanes.get((batch.topic,) if batch.key is None else batch.key)
            if lane is not None and batch in lane.waiting:  # a Ctrl-C may have kept it from its lane
                lane.waiting.remove(batch)
                self._drop_if_done(lane)
            failure = None if lane is None else lane.failure
            self._settle(batch, batch.too_late(self._config.delivery_timeout, failure))
        following = next((batch for batch in batches if batch.end > now), None)
        if following is not None:
            self._arm_expiry(following)

    # The end

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _next_change(self) -> None:
        """Wait until a batch has its outcome."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _all_so_far(self) -> list[Batch]:
        """Seal what is open; return all that has no outcome yet."""
        with self._lock:
            self._seal_all()
            self._wake()
            return list(self._unsettled)

    async def flush(self) -> None:
        """Wait for the outcome of all that was appended before; raises SendsFailed for failures that no one knows."""
        for batch in self._all_so_far():
            while batch in self._unsettled:
                await self._next_change()
        self._failures.tell()

    def flush_from_thread(self, alive: Callable[[], bool]) -> None:
        """As ``flush``, for other threads.

        alive   says whether the loop still runs
        raises  ConfigError on the loop's thread, which would wait for itself; ClientClosed where the loop has ended
        """
        if threading.get_ident() == self._loop_thread:
            raise ConfigError("flush() in a callback of send_nowait would wait for its own thread")
        left = self._all_so_far()
        with self._lock:
            while left := [batch for batch in left if batch in self._unsettled]:
                if not self._changed.wait(_SLICE_SECONDS) and not alive():
                    raise ClientClosed(f"{len(left)} batches of send_nowait were not sent: their thread has ended")
        self._failures.tell()

    async def close(self, timeout: float | None = None) -> None:
        """Refuse more, send what is there; what is not sent in ``timeout`` seconds fails. Raises as ``flush``."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        try:
            async with asyncio.timeout(timeout):
                for batch in self._all_so_far():
                    while batch in self._unsettled:
                        await self._next_change()
        except TimeoutError:
            pass
        finally:
            await self._give_up()
        self._failures.tell()

    async def _give_up(self) -> None:
        """Fail what is left, stop all that goes on by itself."""
        for timer in (self._linger, self._expiry):
            if timer is not None:
                timer.cancel()
        with self._lock:
            self._seal_all()
            waiting, self._ready = list(dict.fromkeys(self._ready)), deque()
        for lane in self._lanes.values():
            waiting += lane.waiting
            lane.waiting.clear()
        for batch in waiting:
            self._settle(batch, batch.closed())
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for batch in list(self._unsettled):  # its task was cancelled before it began
            self._settle(batch, batch.closed())
