"""PushConsumer: messages come to handlers, or to whoever iterates; each has a result of its own.

Clustering: a failed message goes back to its broker, which delivers it again after a while and puts it into the group's
dead letter queue (DLQ) after ``max_reconsume_times``. Broadcasting: a failed message is gone. Ordered: a failed message
holds up its queue until it succeeds.

RocketMQ 5.5.0: ``DefaultMQPushConsumer``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Unpack

from rocketcore.client import api
from rocketcore.client.config import ConsumerConfig, ConsumerOptions, NameServers, client_config
from rocketcore.client.consume_service import ConsumeService
from rocketcore.client.group_consumer import GroupConsumer
from rocketcore.client.handler import HandlerResult, MessageHandler, check_handler
from rocketcore.client.hooks import consume_hooks
from rocketcore.client.listeners import refuse_in_listener
from rocketcore.client.offset_store import OFFSET_TIMEOUT, find_offset
from rocketcore.client.process_queue import ProcessQueue
from rocketcore.client.queue_reader import QueueReader
from rocketcore.client.send_back import SEND_BACK_TIMEOUT, TO_THE_DLQ, send_message_back, send_to_retry_topic
from rocketcore.client.subscriber import LOOK_AGAIN
from rocketcore.client.subscription import Noted, Subscription
from rocketcore.errors import ConfigError, RequestNotSupported, RocketError
from rocketcore.message import (
    ConsumeResult,
    MessageQueue,
    ReceivedMessage,
    count_redelivery,
    delay_level_of,
)
from rocketcore.protocol.bodies.client import CMResult, ProcessQueueInfo
from rocketcore.service import PeriodicTask
from rocketcore.warning import warn

if TYPE_CHECKING:
    from rocketcore.client.pop_mode import PopMode
    from rocketcore.client.watched import Watched

__all__ = ["PushConsumer"]

logger = logging.getLogger(__name__)

RETRY_LOCALLY_AFTER: Final = 5.0
EXPIRED_DELAY_LEVEL: Final = 3
EXPIRED_CHECKS_PER_TIMEOUT: Final = 10
DEFAULT_MAX_RECONSUME_TIMES: Final = 16
LOCK_INTERVAL: Final = 20.0
LOCK_EXPIRES: Final = 30.0
LOCK_TIMEOUT: Final = 1.0
SUSPEND_MIN: Final = 0.01
SUSPEND_MAX: Final = 30.0
_FIRST_RETRY_LEVEL: Final = 3


class PushConsumer(GroupConsumer):
    """Receives messages as a member of a group (Java: ``DefaultMQPushConsumer``).

    Subscribe, then iterate (``async for``) and say what became of each message by ``ack()``, ``retry()`` or
    ``process()``; or give each topic a handler, a function or a coroutine function. A handler that returns is done with
    the message. If it raises, it gets the message again, after the delay of ``RetryLater`` if it raised that. All
    methods belong to one loop.
    """

    def __init__(
        self, namesrv: NameServers = None, *, config: ConsumerConfig | None = None, **options: Unpack[ConsumerOptions]
    ) -> None:
        super().__init__(client_config(ConsumerConfig, namesrv, options, config))
        self._handlers: dict[str, MessageHandler] = {}
        self._returning: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._draining = False
        self._tell_refusals: list[Callable[[RocketError], None]] = []
        self._locking = asyncio.Lock()
        """Held while locks are renewed or given back: a renewal on its way would take one again that was given back."""
        self._pop: PopMode | None = None
        """What brokers have us pop, with ``pop=True``; once it has started."""
        self._watched: Watched | None = None
        """Messages that hooks see; once it has started, and where there are any."""
        self._last_queue: MessageQueue | None = None
        self._last_process_queue: ProcessQueue | None = None
        """Of the last message that had a result."""

    # Subscribing

    def subscribe(
        self, topic: str, *, tag: str | None = None, sql: str | None = None, handler: MessageHandler | None = None
    ) -> Subscription:
        """Subscribe to a topic: ``await`` it, or decorate the topic's handler with it.

        tag  the tags wanted, ``a || b``; default: all messages
        sql  an SQL92 condition on properties, in place of tags; the broker needs ``enablePropertyFilter``
        """
        if handler is not None:
            check_handler(topic, handler)
        subscription = Subscription(self, topic, tag, sql)
        if handler is not None:
            self.set_handler(topic, handler)
        return subscription

    def set_handler(self, topic: str, handler: MessageHandler) -> None:
        """Give the messages of a topic a handler; raises ConfigError for what cannot be called."""
        check_handler(topic, handler)
        self._handlers[topic] = handler
        if self._started:
            self._service.set_handler(topic, handler)
            if self.wire_topic(topic) not in self._shared:
                self.join_soon()

    async def join_topic(self, noted: Noted) -> None:
        """Begin to read a subscribed topic; before the consumer starts, that is left to the start."""
        if self._started and (noted.changed or not any(queue.topic == noted.topic for queue in self._readers)):
            self._leave_joining()
            await self._or_forget(noted, self._join())

    def _has_retry_topic(self) -> bool:
        return not self.config.broadcast

    # Life

    async def start(self) -> None:
        """Join the group and begin to pull; a second call does nothing."""
        if not self._started and not self._closed:
            if self.config.trace or consume_hooks(self.config.hooks):
                from rocketcore.client.watched import Watched

                self._watched = Watched(self.config, self.clock)
            self._service = ConsumeService(
                self.group,
                self.config.threads,
                self._process_result,
                ordered=self.config.ordered,
                consumable=self._consumable,
                check=self.raise_refusal,
                handed=None if self._watched is None else self._watched.handed,
                clock=self.clock,
            )
            for topic, handler in self._handlers.items():
                self._service.set_handler(topic, handler)
        await super().start()

    def _more_tasks(self) -> list[PeriodicTask]:
        if self.config.pop:
            from rocketcore.client.pop_mode import PopMode

            self._pop = PopMode(self, self._service.arrived, self._bury, self._max_reconsume_times)
        interval = max(0.01, self.config.consume_timeout / EXPIRED_CHECKS_PER_TIMEOUT)
        tasks = [PeriodicTask("consumer-expired", self._return_expired, interval)]
        if self._pop is not None:
            tasks += self._pop.tasks()
        if self.config.ordered:
            tasks.append(PeriodicTask("consumer-locks", self._renew_locks, LOCK_INTERVAL))
        return tasks

    async def run(self) -> None:
        """Consume until ``close()`` is called or this task is cancelled; then finish, and leave the group.

        raises  ConfigError without a handler; a broker's refusal, after the same
        """
        if self._inside_handler():
            raise ConfigError("run() in a handler of its consumer would wait for itself")
        refuse_in_listener(self, "run")
        self.check_handlers()
        try:
            await self.start()
            while not self._stopping:
                self.raise_refusal()
                await self._wait_for_news()
        finally:
            await self.close()

    def check_handlers(self) -> None:
        """Refuse to run without work; raises ConfigError."""
        self._check_subscribed()
        if self._closed:
            return
        if not self._handlers:
            raise ConfigError(f"the consumer of group {self.group!r} has no handler: give it one, or iterate over it")
        named = {self.wire_topic(topic) for topic in self._handlers}
        if missing := sorted(self._subscriptions.keys() - named):
            raise ConfigError(
                f"the consumer of group {self.group!r} has no handler for {', '.join(map(repr, missing))}: run() would"
                " never hand their messages to anybody; give each topic a handler, or iterate"
            )

    def refused(self, what: object, error: RocketError) -> None:
        super().refused(what, error)
        self._service.wake_all()
        for tell in self._tell_refusals:
            tell(error)

    def tell_refusals(self, tell: Callable[[RocketError], None]) -> None:
        """Have a function called, on the loop, with a broker's refusal, now or later."""
        self._tell_refusals.append(tell)
        for error in self._refusals.values():
            tell(error)

    def stop(self) -> None:
        """Have ``run`` end."""
        self._stopping = True
        self._news.set()

    async def close(self) -> None:
        """Finish what handlers have begun, store the offsets, leave the group; a second call waits for the first."""
        self.stop()
        if self._started and not self._closed:
            self._service.stop_feeding()
        await super().close()

    def _inside_handler(self) -> bool:
        return self._started and self._service.inside_handler()

    async def _finish_all(self) -> None:
        self._draining = True
        self._service.hurry()
        while any(len(each) for each in self.process_queues() if not each.paused) or self._returning:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._service.progress(), LOOK_AGAIN)

    def _positions(self) -> dict[MessageQueue, int | None]:
        positions = super()._positions()
        for queue in [queue for queue in positions if self._pop is not None and self._pop.pops(queue)]:
            del positions[queue]
            own = [each for each in self._queues_of(queue.topic) if each.broker == queue.broker]
            positions |= dict.fromkeys(own)
        return positions

    async def _stop_handling(self) -> None:
        await self._service.stop()

    async def _finish(self) -> None:
        try:
            if not await self._service.drain(self.config.close_timeout):
                warn(logger, "handlers still run group=%s timeout=%g", self.group, self.config.close_timeout)
        finally:
            await self._stop_handling()
        if self._watched is not None:
            await self._watched.close()
        if self._pop is not None:
            await self._pop.close(self.config.close_timeout)
        if self._returning:
            await asyncio.wait(self._returning, timeout=SEND_BACK_TIMEOUT)
            for task in self._returning:
                task.cancel()

    # Iterating

    async def take(self, limit: int, is_over: Callable[[], bool] = lambda: False) -> list[ReceivedMessage]:
        """Wait for messages of topics without a handler; return up to ``limit``, none when the consumer is closed.

        is_over  tells, after ``wake_takers``, that who waits wants none any more
        raises   ConfigError without a subscription; a broker's refusal, when no message is left to return
        """
        self._check_subscribed()
        await self.start()
        return await self._service.take(limit, is_over)

    def wake_takers(self) -> None:
        """Have all who wait for messages look again."""
        if self._started:
            self._service.wake_all()

    async def take_into(self, taken: deque[ReceivedMessage], limit: int, is_over: Callable[[], bool]) -> None:
        """As ``take``, for who may be interrupted: what was taken is then known to be given back."""
        taken += await self.take(limit, is_over)

    def give_back(self, messages: Iterable[ReceivedMessage]) -> None:
        """Have messages that were taken, and that nobody has looked at, handed out again."""
        for message in reversed(list(messages)):
            process_queue = self._process_queue_of(message)
            if process_queue is not None:
                self._again(process_queue, message)

    def still_owned(self, message: ReceivedMessage) -> bool:
        """Say whether a message that was taken is still ours to work on."""
        return self._process_queue_of(message) is not None

    def _process_queue_of(self, message: ReceivedMessage) -> ProcessQueue | None:
        """Return the process queue that a message is in; None where it is not ours any more."""
        if self._pop is not None and (process_queue := self._pop.find(message)) is not None:
            return process_queue
        reader = self._readers.get(message.queue)
        return reader.process_queue if reader is not None and reader.process_queue.holds(message) else None

    def called_by_handler(self) -> bool:
        """Say whether the calling thread is running one of this consumer's handlers."""
        return self._started and self._service.called_by_handler()

    # Flow

    def arrived(self, process_queue: ProcessQueue) -> None:
        self._service.arrived(process_queue)

    # Settling

    def take_result(self, message: ReceivedMessage, result: object, delay: float | None) -> None:
        """Take what became of a message; any thread."""
        if not isinstance(result, ConsumeResult):
            raise ConfigError(f"the result of a message must be a ConsumeResult, got {result!r}")
        self._service.take_result(message, result, delay)

    def _process_result(self, handled: HandlerResult) -> None:
        message, result, delay = handled
        if self._watched is not None:
            self._watched.settled(message, result)
        if self._pop is not None and (popped := self._pop.find(message)) is not None:
            if self._pop.suspends(message, result):
                self._suspend(popped, message, delay)
            else:
                self._pop.settle(popped, message, result, delay)
            return
        # Verdicts come in runs of one queue, and hashing a queue costs as much as all the rest here.
        process_queue = self._last_process_queue
        if process_queue is None or message.queue is not self._last_queue or process_queue.dropped:
            reader = self._readers.get(message.queue)
            process_queue = None if reader is None else reader.process_queue
            self._last_queue, self._last_process_queue = message.queue, process_queue
        if process_queue is None or not process_queue.holds(message) or message.offset in process_queue.returning:
            return  # it has a result already, or the queue is not ours any more
        if self._store_timer is None:
            self.store_soon()
        if result is ConsumeResult.SUCCESS:
            process_queue.remove(message)
        elif self.config.broadcast:
            text = "broadcast message dropped, its handling failed and it does not come again msg_id=%s queue=%s"
            self.failures.warn(("broadcast", message.topic), text, message.msg_id, message.queue)
            process_queue.remove(message)
        elif self.config.ordered and not 0 <= self.config.max_reconsume_times <= message.reconsume_times:
            self._suspend(process_queue, message, delay)
        else:
            level = 0 if delay is None or self.config.ordered else delay_level_of(delay)
            self._return(process_queue, message, level)

    def _suspend(self, process_queue: ProcessQueue, message: ReceivedMessage, delay: float | None) -> None:
        """Try an ordered message again in place."""
        count_redelivery(message)
        seconds = min(SUSPEND_MAX, max(SUSPEND_MIN, self.config.suspend_time if delay is None else delay))
        process_queue.give_back([message])
        process_queue.suspended = True
        asyncio.get_running_loop().call_later(seconds, self._resume, process_queue)

    def _resume(self, process_queue: ProcessQueue) -> None:
        # Whatever the clock says: a loop's timers may be a little early, and come once.
        process_queue.suspended = False
        self._service.arrived(process_queue)

    def _again(self, process_queue: ProcessQueue, message: ReceivedMessage) -> None:
        process_queue.give_back([message])
        self._service.arrived(process_queue)

    def _return(self, process_queue: ProcessQueue, message: ReceivedMessage, delay_level: int) -> None:
        process_queue.returning.add(message.offset)
        task = asyncio.get_running_loop().create_task(
            self._send_back(process_queue, message, delay_level), name=f"consumer-retry-{message.msg_id}"
        )
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _send_back(self, process_queue: ProcessQueue, message: ReceivedMessage, delay_level: int) -> None:
        """Give a message back to its broker, else send it to the retry topic, else try again here."""
        try:
            if self.config.ordered:
                await send_to_retry_topic(self, message, 0, self._max_reconsume_times)
            else:
                await send_message_back(self, message, delay_level, self._max_reconsume_times)
        except RocketError as error:
            logger.info("message not sent back msg_id=%s error=%s", message.msg_id, error)
            try:
                level = _FIRST_RETRY_LEVEL + message.reconsume_times
                await send_to_retry_topic(self, message, level, self._max_reconsume_times)
            except RocketError as second:
                text = "message kept, it cannot be sent back msg_id=%s error=%s"
                self.failures.warn(("kept", type(second)), text, message.msg_id, second)
                process_queue.returning.discard(message.offset)
                asyncio.get_running_loop().call_later(RETRY_LOCALLY_AFTER, self._again, process_queue, message)
                return
        if message.reconsume_times >= self._max_reconsume_times:
            self._buried(message)
        process_queue.returning.discard(message.offset)
        process_queue.remove(message)
        self.store_soon()
        self._service.feed()

    def _buried(self, message: ReceivedMessage) -> None:
        """Tell that a message failed for the last time, and was put among the group's dead letters."""
        text = "message put among the dead letters, it failed %d times group=%s topic=%s queue=%s offset=%d msg_id=%s"
        times, queue = message.reconsume_times + 1, message.queue
        kind = "dead", message.topic
        self.failures.warn(kind, text, times, self.group, message.topic, queue, message.offset, message.msg_id)

    @property
    def _max_reconsume_times(self) -> int:
        limit = self.config.max_reconsume_times
        return DEFAULT_MAX_RECONSUME_TIMES if limit < 0 else limit

    def _return_expired(self) -> None:
        """Send back what someone has been working on for too long: who took it may have forgotten it."""
        if self.config.ordered or self.config.broadcast:
            return
        for process_queue in self.process_queues():
            expired = process_queue.expired(self.config.consume_timeout)
            late = [message for message in expired if message.offset not in process_queue.returning]
            if late:
                self._service.abandon(late)
            for message in late:
                popped = self._pop is not None and self._pop.find(message) is not None
                if not popped and (not process_queue.holds(message) or message.offset in process_queue.returning):
                    continue
                text = "message without a result after %g seconds, it comes again msg_id=%s queue=%s"
                kind = "expired", message.topic
                self.failures.warn(kind, text, self.config.consume_timeout, message.msg_id, message.queue)
                if self._pop is not None and popped:
                    self._pop.settle(process_queue, message, ConsumeResult.RETRY, None)
                else:
                    self._return(process_queue, message, EXPIRED_DELAY_LEVEL)

    # POP mode

    async def _share(self, topic: str) -> list[MessageQueue] | None:
        if self._pop is None or topic == self.retry_topic:
            return await super()._share(topic)
        before = set(self._pop.assigned[topic])
        share: list[MessageQueue] | None
        try:
            share = await self._pop.ask(topic)
        except RequestNotSupported:  # a broker of 4.9: members share the queues by themselves
            self._pop.assigned[topic] = set()
            share = await super()._share(topic)
        except RocketError as error:
            self._rebalancer.problem = error
            return None
        # A queue that is read the other way now gets another reader.
        switched = (before ^ self._pop.assigned[topic]) & self._readers.keys()
        if switched:
            await self._give_up(sorted(switched))
        return share

    def process_queues(self) -> list[ProcessQueue]:
        return super().process_queues() + (self._pop.process_queues() if self._pop is not None else [])

    async def first_offset(self, queue: MessageQueue) -> int:
        if self._pop is not None and self._pop.pops(queue):
            if isinstance(self.config.start_from, datetime):
                await self._store_start(queue, self.config.start_from)
            return 0
        return await super().first_offset(queue)

    async def _store_start(self, popped: MessageQueue, start: datetime) -> None:
        """Have a group begin at a time in what it pops: brokers know none, and begin behind its stored offset."""
        remoting, routes = self.instance.remoting, self.instance.routes
        route = await self.instance.route(popped.topic)
        every = popped.queue_id < 0
        queues = [each for each in route.subscribe if each.broker == popped.broker] if every else [popped]
        address, _ = routes.subscribe_address(popped.broker)
        for queue in queues:
            if await self.offsets.stored(queue, address) is None:
                offset = await find_offset(self.instance, queue, start)
                await api.update_consumer_offset(remoting, address, self.group, queue, offset, OFFSET_TIMEOUT)

    def note_offsets(self, queues: Iterable[MessageQueue]) -> None:
        super().note_offsets(queue for queue in queues if self._pop is None or not self._pop.pops(queue))

    async def _bury(self, message: ReceivedMessage) -> None:
        await send_message_back(self, message, TO_THE_DLQ, self._max_reconsume_times)
        self._buried(message)

    # Locks of an ordered consumer

    def _consumable(self, process_queue: ProcessQueue) -> bool:
        if process_queue.paused or process_queue.leaving or process_queue.suspended:
            return False
        if self._paused and not self._draining:  # what was popped lies in queues that have no reader
            reader = self._readers.get(process_queue.queue)
            if reader is None or reader.process_queue is not process_queue:
                return False
        if not self.config.ordered:
            return True
        return process_queue.last_lock is not None and self.clock.monotonic() - process_queue.last_lock < LOCK_EXPIRES

    async def _acquire(self, queues: list[MessageQueue]) -> set[MessageQueue]:
        if not self.config.ordered:
            return set(queues)
        popped = {queue for queue in queues if self._pop is not None and self._pop.pops(queue)}
        locks = await self._lock(queue for queue in queues if queue not in popped)
        return popped | {queue for queue, locked in locks.items() if locked}

    async def _lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
        """Return whether queues are locked for us now; nothing of those whose broker does not say."""
        answers = await asyncio.gather(*(self._lock_at(*each) for each in self._by_broker(queues)))
        return {queue: locked for answer in answers for queue, locked in answer.items()}

    async def _lock_at(self, address: str, queues: list[MessageQueue]) -> dict[MessageQueue, bool]:
        remoting = self.instance.remoting
        try:
            held = await api.lock_queues(remoting, address, self.group, self.client_id, queues, LOCK_TIMEOUT)
        except RocketError as error:
            logger.info("queues not locked group=%s address=%s error=%s", self.group, address, error)
            return {}
        return {queue: queue in held for queue in queues}

    async def _unlock_at(self, address: str, queues: list[MessageQueue]) -> None:
        remoting = self.instance.remoting
        try:
            await api.unlock_queues(remoting, address, self.group, self.client_id, queues, LOCK_TIMEOUT)
        except RocketError as error:
            logger.info("queues not unlocked group=%s address=%s error=%s", self.group, address, error)

    def _by_broker(self, queues: Iterable[MessageQueue]) -> list[tuple[str, list[MessageQueue]]]:
        """Return queues with the address of the master that keeps their locks; without those whose master is away."""
        by_broker: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            by_broker[queue.broker].append(queue)
        addresses = ((self.instance.routes.find_publish_address(broker), own) for broker, own in by_broker.items())
        return [(address, own) for address, own in addresses if address is not None]

    def own(self, queue: MessageQueue, offset: int) -> QueueReader:
        if self._pop is not None and self._pop.pops(queue):
            popping = self._pop.reader(queue)
            popping.process_queue.paused = self._paused
            self._readers[queue] = popping
            popping.start()
            return popping
        reader = super().own(queue, offset)
        if self.config.ordered:
            reader.process_queue.last_lock = self.clock.monotonic()
        return reader

    async def _renew_locks(self) -> None:
        async with self._locking:
            # Not those that are taken meanwhile: they have locks of their own.
            readers = {
                queue: reader
                for queue, reader in self._readers.items()
                if not reader.process_queue.leaving and (self._pop is None or not self._pop.pops(queue))
            }
            answers = await self._lock(readers)
        now = self.clock.monotonic()
        for queue, locked in answers.items():  # without an answer the lock is ours until it expires
            process_queue = readers[queue].process_queue
            process_queue.last_lock = now if locked else None
            if locked:
                self._service.arrived(process_queue)

    async def _give_up(self, queues: list[MessageQueue]) -> None:
        process_queues = [self._readers[queue].process_queue for queue in queues] if self.config.ordered else []
        try:
            for process_queue in process_queues:
                process_queue.leaving = True
            await self._wait_until_idle(process_queues)
            await super()._give_up(queues)
        finally:
            for process_queue in process_queues:
                process_queue.leaving = False
                # A queue that was not dropped, because this was cancelled, goes on.
                self._service.arrived(process_queue)

    async def _wait_until_idle(self, process_queues: list[ProcessQueue]) -> None:
        """Wait for the handlers of queues that we give up: the next owner must not begin while ours still works."""
        try:
            async with asyncio.timeout(self.config.close_timeout):
                while any(process_queue.handed_count for process_queue in process_queues):
                    await self._service.progress()
        except TimeoutError:
            self.failures.warn("given up", "queues given up while handlers still run group=%s", self.group)

    async def _release(self, queues: list[MessageQueue]) -> None:
        if self.config.ordered:
            async with self._locking:
                await asyncio.gather(*(self._unlock_at(*each) for each in self._by_broker(queues)))

    # What brokers ask

    async def consume_directly(self, message: ReceivedMessage) -> tuple[CMResult, str | None]:
        """Have a handler consume one message now, because an administrator asked."""
        handler = self._handlers.get(message.topic)
        if handler is None:
            return CMResult.CR_THROW_EXCEPTION, f"topic {message.topic} has no handler"
        return await self._service.run_once(handler, message)

    def process_queue_info(self, process_queue: ProcessQueue) -> ProcessQueueInfo:
        info = super().process_queue_info(process_queue)
        if not self.config.ordered:
            return info
        return replace(info, locked=self._consumable(process_queue))
