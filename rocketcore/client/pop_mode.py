"""POP mode of a ``PushConsumer``: brokers say by which queues a member reads, and that it pops them [5.x].

A group is switched by SET_MESSAGE_REQUEST_MODE (401); a member that was made with ``pop=True`` asks with each
rebalance. Popped messages go the way of pulled ones to the handlers. Their results go to the broker, which delivers
again what failed. While a message is handled, or waits to be, its invisible time is renewed.

RocketMQ 5.5.0: ``RebalanceImpl.getRebalanceResultFromBroker``, ``ConsumeMessagePopConcurrentlyService``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from rocketcore.client import pop_api
from rocketcore.client.pop_api import MAX_POP
from rocketcore.client.popper import HOLD_SECONDS, Popper
from rocketcore.client.process_queue import ProcessQueue
from rocketcore.client.queue_reader import QueueReader
from rocketcore.client.receipts import Receipt, Receipts
from rocketcore.client.subscriber import Subscriber
from rocketcore.errors import ClientClosed, ClientError, InvisibleTimeOver, RocketError
from rocketcore.message import ConsumeResult, MessageQueue, ReceivedMessage, hand_out
from rocketcore.protocol.bodies.heartbeat import MessageModel
from rocketcore.protocol.bodies.pop import MessageRequestMode, QueryAssignmentRequestBody
from rocketcore.service import PeriodicTask

__all__ = ["NO_LOCK", "PopMode"]

logger = logging.getLogger(__name__)

ASSIGNMENT_TIMEOUT: Final = 3.0
MESSAGES_IN_MEMORY: Final = 96
"""Popped messages of one topic and broker that are here and not done (Java: ``popThresholdForQueue``)."""
CHECKS_PER_INVISIBLE_TIME: Final = 4
NO_LOCK: Final = math.inf
"""When a popped queue was locked: its broker keeps the order by what it hands out."""
TAKE_SECONDS: Final = 0.25
"""What a POP that is under way gets to say what it took when its consumer closes."""


class _PopReader(QueueReader):
    """Pops one assigned queue, or all of a topic at a broker, as long as there is room."""

    __slots__ = ("_mode", "_popper", "room")

    def __init__(self, consumer: Subscriber, mode: PopMode, queue: MessageQueue) -> None:
        super().__init__(consumer, ProcessQueue(queue, 0, consumer.clock, consumer.config))
        self.process_queue.last_lock = NO_LOCK
        self._mode = mode
        self._popper = Popper(consumer, mode.receipts, queue)
        self.room = asyncio.Event()
        self.room.set()

    async def _run(self) -> None:
        consumer, process_queue = self._consumer, self.process_queue
        while not process_queue.dropped:
            await process_queue.room.wait()
            await self.room.wait()
            await asyncio.sleep(self._popper.pause)
            try:
                # Who gives the queue up meanwhile loses nothing: what was taken is there to be handled.
                if not await asyncio.shield(self._mode.begin_taking(self._popper.take(MAX_POP))):
                    await self._popper.look(HOLD_SECONDS)
                if self._failing:
                    self._failing = False
                    consumer.pulled(process_queue.queue)
            except RocketError as error:
                logger.info("pop failed group=%s queue=%s error=%s", consumer.group, process_queue.queue, error)
                self._failing = True
                self._popper.failed(error)
                await consumer.pull_failed(process_queue.queue, error)
                if error.refresh_route:
                    await consumer.instance.try_refresh(process_queue.queue.topic)


class PopMode:
    """What a ``PushConsumer`` popped and has not done yet, and which queues it pops.

    arrived    is told of queues that have messages for handlers
    bury       puts a message into the group's DLQ
    """

    def __init__(
        self,
        consumer: Subscriber,
        arrived: Callable[[ProcessQueue], None],
        bury: Callable[[ReceivedMessage], Awaitable[None]],
        max_reconsume_times: int,
    ) -> None:
        self._consumer = consumer
        self._arrived = arrived
        self._bury = bury
        self._max_reconsume_times = max_reconsume_times
        self.receipts = Receipts(consumer.instance, consumer.group, consumer.clock)
        self.assigned: dict[str, set[MessageQueue]] = defaultdict(set)
        """Topic → queues that are popped; an id of -1 stands for all of a broker."""
        self._readers: dict[tuple[str, str], _PopReader] = {}
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        """What was popped, by the queue that it lies in; it stays ours when others pop there."""
        self._receipts_of: dict[tuple[MessageQueue, int], Receipt] = {}
        self._held: dict[tuple[str, str], int] = defaultdict(int)
        self._takes: set[asyncio.Task[bool]] = set()
        self._burials: set[asyncio.Task[None]] = set()
        self._closed = False

    def tasks(self) -> list[PeriodicTask]:
        """Return what goes on beside."""
        interval = self._consumer.config.invisible / CHECKS_PER_INVISIBLE_TIME
        return [PeriodicTask("consumer-invisible", self.renew, interval)]

    async def ask(self, topic: str) -> list[MessageQueue]:
        """Ask a broker which queues of a topic this member reads, note which of them it pops, and return all.

        raises  ClientError where it does not say; what the request failed with
        """
        instance = self._consumer.instance
        await instance.route(topic)
        await instance.send_missing_heartbeats()  # a broker answers only members that it has heard of
        allocate = self._consumer.config.allocate
        body = QueryAssignmentRequestBody(
            topic=topic,
            consumer_group=self._consumer.group,
            client_id=instance.client_id,
            strategy_name=allocate if isinstance(allocate, str) else "AVG",
            message_model=MessageModel.CLUSTERING,
        )
        address, assignments = await instance.ask_any_broker(
            topic,
            lambda asked, share: pop_api.query_assignment(instance.remoting, asked, body, share),
            ASSIGNMENT_TIMEOUT,
        )
        if assignments is None:
            raise ClientError(f"the broker at {address} does not say which queues of {topic!r} this consumer reads")
        self.assigned[topic] = {
            each.message_queue
            for each in assignments
            if each.message_queue is not None and each.mode is MessageRequestMode.POP
        }
        return [each.message_queue for each in assignments if each.message_queue is not None]

    def pops(self, queue: MessageQueue) -> bool:
        """Say whether an assigned queue is popped."""
        return queue in self.assigned.get(queue.topic, ())

    def reader(self, queue: MessageQueue) -> QueueReader:
        """Return a new reader of an assigned queue."""
        reader = _PopReader(self._consumer, self, queue)
        self._readers[queue.topic, queue.broker] = reader
        self._check_room((queue.topic, queue.broker))
        return reader

    # Messages

    def begin_taking(self, taking: Coroutine[Any, Any, list[ReceivedMessage]]) -> asyncio.Task[bool]:
        """Return the task that takes messages in, and says whether there were any."""
        task = asyncio.get_running_loop().create_task(self._take_messages(taking), name="consumer-pop")
        self._takes.add(task)
        task.add_done_callback(self._taken)
        return task

    def _taken(self, task: asyncio.Task[bool]) -> None:
        self._takes.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it has it; where nobody does any more, it is of no interest

    async def _take_messages(self, taking: Coroutine[Any, Any, list[ReceivedMessage]]) -> bool:
        messages = await taking
        self._accept(messages)
        return bool(messages)

    def _accept(self, messages: list[ReceivedMessage]) -> None:
        by_queue: dict[MessageQueue, list[ReceivedMessage]] = defaultdict(list)
        for message in messages:
            receipt = message._take_result
            assert isinstance(receipt, Receipt)
            if self._closed:
                self.receipts.give_back(receipt)
                continue
            if (message.queue, message.offset) not in self._receipts_of:  # else it came again while it is here
                self._held[self._key(message)] += 1
            self._receipts_of[message.queue, message.offset] = receipt
            by_queue[message.queue].append(message)
        hand_out(messages, self._consumer.take_result, self._consumer.take_reply)
        for queue, some in by_queue.items():
            process_queue = self._queues.get(queue)
            if process_queue is None:
                process_queue = ProcessQueue(queue, 0, self._consumer.clock, self._consumer.config)
                process_queue.last_lock = NO_LOCK
                self._queues[queue] = process_queue
            process_queue.displace(some)
            process_queue.put(some, some[-1].offset + 1)
            self._arrived(process_queue)
        for key in set(map(self._key, messages)):
            self._check_room(key)

    def _key(self, message: ReceivedMessage) -> tuple[str, str]:
        """Return the topic and the broker that a message counts for."""
        return self._consumer.wire_topic(message.topic), message.queue.broker

    def _check_room(self, key: tuple[str, str]) -> None:
        reader = self._readers.get(key)
        if reader is not None:
            if self._held[key] < MESSAGES_IN_MEMORY:
                reader.room.set()
            else:
                reader.room.clear()

    def process_queues(self) -> list[ProcessQueue]:
        """Return the queues that have messages which are not done."""
        return [process_queue for process_queue in self._queues.values() if len(process_queue)]

    def find(self, message: ReceivedMessage) -> ProcessQueue | None:
        """Return the process queue of a message that was popped and is not done."""
        process_queue = self._queues.get(message.queue)
        return process_queue if process_queue is not None and process_queue.holds(message) else None

    def suspends(self, message: ReceivedMessage, result: ConsumeResult) -> bool:
        """Whether a message is tried again where it is, and those of its queue behind it wait for that."""
        if not self._consumer.config.ordered or result is ConsumeResult.SUCCESS:
            return False
        limit = self._consumer.config.max_reconsume_times
        return limit < 0 or message.reconsume_times < limit

    def settle(
        self, process_queue: ProcessQueue, message: ReceivedMessage, result: ConsumeResult, delay: float | None
    ) -> None:
        """Tell the broker what became of a message, which is done here."""
        receipt = self._receipts_of.pop((message.queue, message.offset))
        process_queue.remove(message)
        key = self._key(message)
        self._held[key] -= 1
        self._check_room(key)
        if result is ConsumeResult.RETRY and message.reconsume_times >= self._max_reconsume_times:
            task = asyncio.get_running_loop().create_task(self._give_up(message, receipt), name="consumer-bury")
            self._burials.add(task)
            task.add_done_callback(self._burials.discard)
            return
        self._tell(message, receipt, result, delay)

    def _tell(self, message: ReceivedMessage, receipt: Receipt, result: ConsumeResult, delay: float | None) -> None:
        try:
            receipt(message, result, delay)
        except (InvisibleTimeOver, ClientClosed) as error:
            text = "result too late, the message comes again group=%s error=%s"
            self._consumer.failures.warn(("late", type(error)), text, self._consumer.group, error)

    async def _give_up(self, message: ReceivedMessage, receipt: Receipt) -> None:
        """Put a message into the DLQ that failed too often; where that fails, it comes again and fails again."""
        try:
            await self._bury(message)
        except RocketError as error:
            text = "message not put among the dead letters msg_id=%s error=%s"
            self._consumer.failures.warn(("bury", type(error)), text, message.msg_id, error)
            self._tell(message, receipt, ConsumeResult.RETRY, None)
        else:
            self._tell(message, receipt, ConsumeResult.SUCCESS, None)

    def renew(self) -> None:
        """Prolong the invisible time of what is not done and has less than half of it left."""
        seconds = self._consumer.config.invisible
        now = self._consumer.clock.monotonic()
        for receipt in self._receipts_of.values():
            if 0 < receipt.deadline - now < seconds / 2:
                self.receipts.say(receipt, seconds)

    # The end

    async def close(self, timeout: float) -> None:
        """Give back what is not done, and tell brokers what became of the rest."""
        if self._takes:
            await asyncio.wait(self._takes, timeout=TAKE_SECONDS)
        self._closed = True
        for receipt in self._receipts_of.values():
            self.receipts.give_back(receipt)
        if self._burials:
            await asyncio.wait(self._burials, timeout=timeout)
        await self.receipts.close(timeout)
        for task in [*self._takes, *self._burials]:
            task.cancel()
