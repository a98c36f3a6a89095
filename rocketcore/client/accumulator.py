"""Accumulator: messages handed over one by one leave as batches, one batch per queue.

Messages without a queue of their own share one open batch per topic, and the queue is chosen when it leaves; messages
with a ``message_group`` or a given queue share the open batch of that queue, and its batches leave one after the other,
so that their order stays. A batch leaves at the next turn of the loop if its broker has nothing of ours to do; behind
others it leaves when it is full, when it has waited for ``linger`` seconds, or when they were answered.

``append`` may be called from any thread, and in a signal's handler or at the end of an object wherever that comes in.
It holds no lock, hands a message over in one step, and may be ended by an exception at any point. It finds out all that
is wrong with a message, so that a batch holds only what can be sent. Everything else happens on the event loop. Memory
is bounded: bytes that were accepted and not answered count against ``buffer_bytes``, of which those for one topic, or
for one broker where the queue is given, leave a part to others. Time is bounded: ``delivery_timeout`` seconds after it
was appended, a message is sent or has failed, whatever happened to it in between. Each broker has a number of batches
under way of its own, so that one that does not answer holds up what is meant for it alone.

RocketMQ 5.5.0: ``ProduceAccumulator``.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Collection, Coroutine, Iterable
from typing import Any, Final

from rocketcore.client.backlog import Backlog, InFlight
from rocketcore.client.config import ProducerConfig
from rocketcore.client.delivery import Delivery
from rocketcore.client.future import Batch, Failures, Item, Place, SendFuture, abandon, late
from rocketcore.client.outgoing import can_be_batched
from rocketcore.client.publisher import TopicPublisher
from rocketcore.client.send_command import SendTarget
from rocketcore.client.sender import Sender
from rocketcore.errors import ClientClosed, Overloaded, RocketError
from rocketcore.ids import new_uniq_key
from rocketcore.message import Message, MessageQueue, SendResult
from rocketcore.service import SYSTEM_CLOCK, Backoff

__all__ = ["Accumulator"]

MESSAGE_OVERHEAD_BYTES: Final = 22
"""What a message takes in a batch besides its body and its properties."""
OVER_LIMIT: Final = 2
"""A callback, which must not wait, may fill the buffer to so many times its limit."""
FIRST_ROUTE_PAUSE: Final = 0.1
LONGEST_ROUTE_PAUSE: Final = 1.0
_SLICE_SECONDS: Final = 0.5
FREE_SHARE: Final = 0.75
"""How much of the room that others have not taken one destination may take."""


class Accumulator:
    """Collects messages and sends them as batches by ``sender``, on the event loop that runs when it is made."""

    def __init__(self, sender: Sender, config: ProducerConfig) -> None:
        self._sender, self._property_text = sender, sender.property_text
        self._config = config
        self._clock = SYSTEM_CLOCK
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._delivery = Delivery(sender, config, self._clock)
        self._failures = Failures(self._clock)
        # Any thread uses these, each in one step.
        self._coming: deque[Item] = deque()
        self._coming_bytes = 0
        """What ``_coming`` has, or had: threads that add at once may miscount it until the loop looks."""
        self._gates: deque[threading.Lock] = deque()
        """What threads wait at for room."""
        self._called_for = -1
        """The number of the loop's look that someone has called for."""
        self._unplaced = self._new_batch("", None, "")
        self._batch_bytes, self._batch_count = config.batch_bytes, config.batch_count
        self._free_bytes = round(config.buffer_bytes * FREE_SHARE)
        # What follows belongs to the loop; others only look.
        self._passes = 0
        """How often the loop has looked at ``_coming``."""
        self._open: dict[str | MessageQueue, Batch] = {}
        self._new: list[str | MessageQueue] = []
        """Keys of batches that were opened since the loop looked last."""
        self._ready: list[Batch] = []
        self._unrouted: set[str] = set()
        """Topics of which a message waits to learn its queue; what follows it must not overtake it."""
        self._pending: dict[Batch, None] = {}
        self._bytes = 0
        self._taken: dict[str, int] = {}
        """Of ``_bytes``, what each destination has."""
        self._taking = False
        self._closed = False
        self._ended = False
        self._backlogs: dict[str | MessageQueue | tuple[str], Backlog] = {}
        self._in_flight = InFlight()
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
        self._sender.check(message)
        topic, body = message.topic, message.body
        msg_id = new_uniq_key()
        properties = self._property_text(message, msg_id).encode()
        size = len(body) + len(properties) + MESSAGE_OVERHEAD_BYTES
        place = None
        if queue is not None or message.properties:
            place = self._place(message, queue)
        if self._closed:
            raise ClientClosed("the producer is closed")
        if self._bytes + self._coming_bytes + size > self._free_bytes:
            destination = topic if place is None or place.target is None else place.target.address
            if not self._has_room(destination, size) and not self._make_room(destination, size, wait):
                return None
        future = SendFuture(self._unplaced, msg_id)
        try:
            self._coming_bytes += size
            self._coming.append((future, body, properties, message.flag, size, topic, place))
            if self._called_for != self._passes:
                batch = self._open.get(topic) if place is None else None
                if (
                    batch is None
                    or batch.bytes + self._coming_bytes >= self._batch_bytes
                    or batch.count + len(self._coming) >= self._batch_count
                ):
                    self._wake()
        except BaseException:
            self._wake()  # what a signal's handler raised came too late: the message is taken
            raise
        if self._ended:
            self._refuse_late()
        return future

    async def append_when_room(self, message: Message, queue: MessageQueue | None = None) -> SendFuture:
        """Take a message as soon as there is room; raises as ``append``."""
        if (future := self.append(message, queue)) is None:
            try:
                async with asyncio.timeout(self._config.delivery_timeout):
                    while (future := self.append(message, queue)) is None:
                        await self._next_change()
            except TimeoutError:
                raise self._overloaded() from None
        return future

    def _place(self, message: Message, queue: MessageQueue | None) -> Place | None:
        """Return what is particular about a message; its queue is chosen where the topic's route is known."""
        group, target = message.message_group, None
        if queue is None and group is None and can_be_batched(message):
            return None
        if queue is not None and not isinstance(queue, MessageQueue):
            raise TypeError(f"message to {message.topic!r}: queue must be a MessageQueue, got {type(queue).__name__}")
        publisher = None if queue is None and group is None else self._sender.find_publisher(message.topic)
        if publisher is not None:
            target = self._sender.target(publisher, group, queue)
        return Place(group, queue, target, not can_be_batched(message))

    def _has_room(self, destination: str, size: int) -> bool:
        """Say whether a message fits.

        A destination may take ``FREE_SHARE`` of what others have left of the buffer: however many stand still,
        something is left for one that does not.
        """
        limit, coming = self._config.buffer_bytes, self._coming_bytes
        total = self._bytes + coming + size
        if total == size:
            return True  # larger than the whole buffer, perhaps: it has the buffer to itself
        own = self._taken.get(destination, 0) + coming + size
        return total <= limit and own <= (own + limit - total) * FREE_SHARE

    def _make_room(self, destination: str, size: int, wait: bool) -> bool:
        """Wait until a message fits. False where the caller does not wait."""
        if threading.get_ident() == self._loop_thread:
            self._take_in()
            self._seal_all()
            self._wake()
            if self._has_room(destination, size):
                return True
            if wait and self._bytes + size > self._config.buffer_bytes * OVER_LIMIT:
                raise self._overloaded()
            return wait
        end = self._clock.monotonic() + self._config.delivery_timeout
        while True:
            gate = threading.Lock()
            gate.acquire()
            self._gates.append(gate)
            self._wake()
            if self._has_room(destination, size):
                return True
            left = end - self._clock.monotonic()
            if left <= 0:
                raise self._overloaded()
            gate.acquire(timeout=min(left, _SLICE_SECONDS))  # in slices: a signal's handler runs between two
            if self._closed:
                raise ClientClosed("the producer is closed")

    def _overloaded(self) -> Overloaded:
        limit = self._config.buffer_bytes
        return Overloaded(f"send_nowait: {self._bytes} bytes are not answered yet, buffer_bytes allows {limit}")

    def _wake(self) -> None:
        """Have the loop look soon; once for any number of calls until it does."""
        # A number and no flag: where the loop looks between the two steps, the next caller calls once more.
        if self._called_for != (look := self._passes):
            try:
                self._loop.call_soon_threadsafe(self._pump)
            except RuntimeError:
                raise ClientClosed("the producer is closed: its loop has ended") from None
            self._called_for = look

    def _refuse_late(self) -> None:
        """Refuse what came when nobody looks any more."""
        for batch in late(self._coming, self._new_batch):
            batch.finish(batch.closed())
        raise ClientClosed("the producer is closed")

    def abandon(self, where: str) -> None:
        """Fail what has no outcome; on another thread, while the loop stands still in a callback at ``where``."""
        self._closed = self._ended = True
        abandon([*self._pending, *late(self._coming, self._new_batch)], where)

    def _let_in(self) -> None:
        """Have those who wait for room look."""
        with contextlib.suppress(IndexError):
            while True:
                self._gates.popleft().release()

    # Sending batches, on the loop

    def _new_batch(self, topic: str, key: str | MessageQueue | None, destination: str) -> Batch:
        end = self._clock.monotonic() + self._config.delivery_timeout
        return Batch(topic, key, self._loop, self._failures, end, destination)

    def _take_in(self) -> None:
        """Put what has come into batches."""
        if self._taking:
            return  # the end of an object, or a signal's handler, came in between
        self._taking = True
        coming, opened = self._coming, self._open
        most_bytes, most_count = self._batch_bytes, self._batch_count
        try:
            while coming:
                item = coming.popleft()
                future, _, _, _, size, topic, place = item
                if place is None:
                    batch = opened.get(topic)
                    if batch is None or batch.bytes + size > most_bytes:
                        batch = self._open_batch(topic, topic, topic)
                else:
                    batch = self._batch_at(topic, place, size)
                future._batch = batch
                future._index = batch.count
                batch.items.append(item)
                batch.count += 1
                batch.bytes += size
                if batch.count >= most_count or batch.bytes >= most_bytes:
                    self._seal(batch)
            for batch in (*opened.values(), *self._ready):
                self._note(batch, batch.bytes)
            self._coming_bytes = 0
        finally:
            self._taking = False

    def _note(self, batch: Batch, size: int) -> None:
        """Have a batch count as so many bytes."""
        more, batch.noted = size - batch.noted, size
        self._bytes += more
        self._taken[batch.destination] = taken = self._taken.get(batch.destination, 0) + more
        if not taken:
            del self._taken[batch.destination]

    def _batch_at(self, topic: str, place: Place, size: int) -> Batch:
        """Return the batch that a message with a place of its own joins."""
        target = place.target
        if place.group is None and place.queue is None:
            key: str | MessageQueue | None = topic
        elif target is None or topic in self._unrouted:
            self._unrouted.add(topic)
            key = None
        else:
            key = target.queue
        destination = topic if target is None or key is None else target.address
        if key is None or place.alone:
            batch = self._new_batch(topic, key, destination)
            batch.group, batch.queue = place.group, place.queue
            self._pending[batch] = None
            self._ready.append(batch)
            return batch
        found = self._open.get(key)
        if found is None or found.bytes + size > self._batch_bytes:
            found = self._open_batch(topic, key, destination)
        return found

    def _open_batch(self, topic: str, key: str | MessageQueue, destination: str) -> Batch:
        """Return a new batch of a key; the one that was open leaves."""
        full = self._open.get(key)
        if full is not None:
            self._seal(full)
        batch = self._open[key] = self._new_batch(topic, key, destination)
        self._pending[batch] = None
        self._new.append(key)
        return batch

    def _seal(self, batch: Batch) -> None:
        """Have a batch leave, if it is open."""
        if batch.key is not None and self._open.get(batch.key) is batch:
            self._ready.append(batch)
            del self._open[batch.key]

    def _seal_all(self) -> None:
        for batch in list(self._open.values()):
            self._seal(batch)

    def _pump(self) -> None:
        """Start what is ready or has nothing to wait for; arm the timers for the rest."""
        self._passes += 1
        self._take_in()
        if self._gates:
            self._seal_all()
            self._let_in()
        self._seal_idle(self._new)
        self._new.clear()
        ready, self._ready = self._ready, []
        if self._open and self._linger is None:
            self._linger = self._loop.call_later(self._config.linger, self._linger_over)
        if self._pending and self._expiry is None:
            self._arm_expiry(next(iter(self._pending)))
        for batch in ready:
            self._enter(batch)
        if self._coming:  # of one who saw a batch open that has left meanwhile
            self._wake()

    def _linger_over(self) -> None:
        self._linger = None
        self._take_in()
        self._seal_all()
        self._pump()

    def _seal_idle(self, keys: Iterable[str | MessageQueue]) -> None:
        """Have the batches of some keys leave whose brokers are idle: they gain nothing by waiting for more."""
        for key in keys:
            batch = self._open.get(key)
            if batch is not None and self._is_idle(key):
                self._seal(batch)

    def _is_idle(self, key: str | MessageQueue) -> bool:
        """Say whether a broker of an open batch has nothing of ours to do, so that waiting for more gains nothing."""
        backlog = self._backlogs.get(key)
        if backlog is not None and (backlog.waiting or (backlog.queue is not None and backlog.under_way)):
            return False
        if isinstance(key, str):
            publisher = self._sender.find_publisher(key)
            return publisher is None or any(map(self._in_flight.idle, publisher.addresses))
        publisher = self._sender.find_publisher(key.topic)
        target = publisher.by_queue.get(key) if publisher is not None else None
        return target is None or self._in_flight.idle(target.address)

    def _enter(self, batch: Batch) -> None:
        """Put a sealed batch into its backlog."""
        key = (batch.topic,) if batch.key is None else batch.key
        backlog = self._backlogs.get(key)
        if backlog is None:
            backlog = self._backlogs[key] = Backlog(batch.topic, batch.key)
        backlog.waiting.append(batch)
        self._advance(backlog)

    def _advance(self, backlog: Backlog) -> None:
        """Start batches of a backlog as long as it may, and there is room at a broker."""
        if self._ended:
            return
        while backlog.waiting and backlog.lookup is None and not (backlog.queue is not None and backlog.under_way):
            publisher = self._sender.find_publisher(backlog.topic)
            if publisher is None or (backlog.queue is not None and backlog.queue not in publisher.by_queue):
                backlog.lookup = self._task(self._find_route(backlog))
                return
            if backlog.key is None:
                self._give_queue(publisher, backlog.waiting.popleft())
                continue
            batch = backlog.waiting[0]
            avoid = () if batch.attempts is None or backlog.queue is not None else batch.attempts.avoid
            target = self._sender.target(publisher, None, backlog.queue, avoid, self._in_flight.full)
            if target is None:
                wanted: Collection[str] = publisher.addresses
                if backlog.queue is not None:
                    wanted = (publisher.by_queue[backlog.queue].address,)
                if self._in_flight.wait(backlog, wanted):
                    return
                # No broker is full: a new route has none but those that failed.
                assert batch.attempts is not None, "a queue is left out because of its broker's window or failures"
                batch.attempts.avoid.clear()
                continue
            backlog.waiting.popleft()
            batch.is_under_way = True
            backlog.under_way += 1
            self._in_flight.enter(target.address)
            self._task(self._send(backlog, batch, target))
        self._drop_if_done(backlog)

    def _drop_if_done(self, backlog: Backlog) -> None:
        key = (backlog.topic,) if backlog.key is None else backlog.key
        if backlog.waiting or backlog.under_way or backlog.lookup is not None or self._backlogs.get(key) is not backlog:
            return
        del self._backlogs[key]
        if backlog.key is None:
            self._unrouted.discard(backlog.topic)

    def _give_queue(self, publisher: TopicPublisher, batch: Batch) -> None:
        """Move a batch to the backlog of its queue, now that the topic's queues are known."""
        try:
            target = self._sender.target(publisher, batch.group, batch.queue)
        except BaseException as error:  # a selector may be anyone's, and must not end the loop
            self._finish(batch, error)
            return
        assert target is not None, "no broker is avoided"
        batch.key = target.queue
        self._enter(batch)

    async def _find_route(self, backlog: Backlog) -> None:
        """Ask for the topic's route until the backlog's batches have somewhere to go, or none of them has time left."""
        pauses = Backoff(FIRST_ROUTE_PAUSE, LONGEST_ROUTE_PAUSE)
        sender, timeout = self._sender, self._config.timeout
        try:
            while backlog.waiting:
                try:
                    if sender.find_publisher(backlog.topic) is None:
                        await sender.publisher(backlog.topic, timeout)
                    else:
                        await sender.refresh_route(backlog.topic, timeout)
                except RocketError as error:
                    if not error.retriable:
                        raise
                    backlog.failure = error
                publisher = sender.find_publisher(backlog.topic)
                if publisher is not None and (backlog.queue is None or backlog.queue in publisher.by_queue):
                    break
                await asyncio.sleep(pauses.next())
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            backlog.lookup = None
            while backlog.waiting:
                self._finish(backlog.waiting.popleft(), error)
        backlog.lookup = None
        self._advance(backlog)

    async def _send(self, backlog: Backlog, batch: Batch, target: SendTarget) -> None:
        """Make an attempt with a batch; then finish it, or send it again."""
        outcome: SendResult | BaseException | None = None
        try:
            try:
                result = await self._delivery.attempt(batch, target)
            finally:
                self._free_window(target.address)
            if not self._delivery.is_safe_enough(batch, target, result):
                batch.result = result
            else:
                outcome = result
        except asyncio.CancelledError:
            self._finish(batch, batch.closed())
            raise
        except BaseException as error:
            try:
                outcome = await self._delivery.after(batch, target, error)
            except asyncio.CancelledError:
                self._finish(batch, error)
                raise
            except BaseException as failure:  # of a hook, while the route was asked for
                outcome = failure
        backlog.under_way -= 1
        if outcome is None:
            batch.is_under_way = False
            backlog.waiting.appendleft(batch)
        else:
            self._finish(batch, outcome)
        self._advance(backlog)
        if self._in_flight.idle(target.address) and (self._open or self._coming):
            self._take_in()
            self._seal_idle(list(self._open))
            self._pump()

    def _free_window(self, address: str) -> None:
        """Give back a part of a broker's window, and let the next one have it."""
        self._in_flight.leave(address)
        while (backlog := self._in_flight.next_backlog(address)) is not None:
            self._advance(backlog)

    def _finish(self, batch: Batch, outcome: SendResult | BaseException) -> None:
        # Room first: callbacks may send.
        self._note(batch, 0)
        if self._gates:
            self._let_in()
        batch.finish(outcome)
        del self._pending[batch]
        if not self._pending and self._expiry is not None:
            # A loop holds what its timers call, also a producer that no one else refers to.
            self._expiry.cancel()
            self._expiry = None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _arm_expiry(self, oldest: Batch) -> None:
        self._expiry = self._loop.call_later(max(0.0, oldest.end - self._clock.monotonic()), self._expire)

    def _expire(self) -> None:
        """Fail the batches that have waited for too long; those under way end by their own time-out."""
        self._expiry = None
        now = self._clock.monotonic()
        batches = list(self._pending)
        to_come = {*self._ready, *self._open.values()}
        for batch in batches:
            if batch.end > now or batch.is_under_way or batch in to_come:
                continue
            backlog = self._backlogs.get((batch.topic,) if batch.key is None else batch.key)
            if backlog is not None and batch in backlog.waiting:  # a Ctrl-C may have kept it from its backlog
                backlog.waiting.remove(batch)
                self._drop_if_done(backlog)
            failure = None if backlog is None else backlog.failure
            self._finish(batch, batch.too_late(self._config.delivery_timeout, failure))
        following = next((batch for batch in batches if batch.end > now), None)
        if following is not None:
            self._arm_expiry(following)

    # The end

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._tasks.add(task := self._loop.create_task(work))
        task.add_done_callback(self._tasks.discard)
        return task

    def unfinished(self) -> int:
        """Return how many messages have no outcome yet, and nobody who asked for it."""
        return len(self._coming) + sum(batch.unseen() for batch in list(self._pending))

    def _next_change(self) -> asyncio.Future[None]:
        """Return what is done when a batch has its outcome."""
        self._waiters.append(waiter := self._loop.create_future())
        return waiter

    async def drain(self) -> None:
        """Wait for the outcome of all that was appended before."""
        self._take_in()
        self._seal_all()
        self._wake()
        for batch in list(self._pending):
            while batch in self._pending:
                await self._next_change()

    async def flush(self) -> None:
        """Wait for the outcome of all that was appended before; raises SendsFailed for failures that no one knows."""
        await self.drain()
        self.tell()

    def tell(self) -> None:
        """Raise SendsFailed for failures that no one knows; any thread."""
        self._failures.tell()

    async def close(self, timeout: float | None = None) -> None:
        """Refuse more, send what is there; what is not sent in ``timeout`` seconds fails. Raises as ``flush``."""
        self._closed = True
        self._let_in()
        try:
            async with asyncio.timeout(timeout):
                while self._coming or self._pending:  # who was about to append when we closed has done so
                    await self.drain()
        except TimeoutError:
            pass
        finally:
            await self._give_up()
        self.tell()

    async def _give_up(self) -> None:
        """Fail what is left, stop all that goes on by itself."""
        for timer in (self._linger, self._expiry):
            if timer is not None:
                timer.cancel()
        self._ended = True
        self._take_in()
        self._seal_all()
        waiting, self._ready = self._ready, []
        for backlog in self._backlogs.values():
            waiting += backlog.waiting
            backlog.waiting.clear()
        for batch in waiting:
            self._finish(batch, batch.closed())
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for batch in list(self._pending):  # its task was cancelled before it began
            self._finish(batch, batch.closed())
