"""SimpleConsumer: the application takes messages when it wants them, and says of each when it is done (POP, 5.x).

The brokers remember who has what: no member owns a queue, nothing is rebalanced, and no offset is stored here. A
message that is taken is invisible to the rest of the group; one that is not acknowledged in time comes again.

Where nothing is there, the client does not have brokers hold a POP: messages that it brought after the caller had gone
would be invisible to all. It has them say when there is something (NOTIFICATION), which takes nothing, and pops then.

RocketMQ 5.5.0: ``DefaultMQPushConsumerImpl`` in POP mode; the ``SimpleConsumer`` of the gRPC clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Coroutine, Iterable
from datetime import datetime
from typing import Any, Final, Unpack

from rocketcore.client.config import (
    ConsumerConfig,
    ConsumerOptions,
    NameServers,
    check_max_messages,
    check_seconds,
    client_config,
)
from rocketcore.client.instance import ClientInstance
from rocketcore.client.popper import ANY_QUEUE, HOLD_SECONDS, Popper
from rocketcore.client.process_queue import ProcessQueue
from rocketcore.client.receipts import Receipt, Receipts
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.serving import serve_broker_requests
from rocketcore.client.subscriber import LOOK_AGAIN, Subscriber
from rocketcore.client.subscription import Noted
from rocketcore.errors import ClientClosed, ConfigError, RocketError
from rocketcore.message import MessageQueue, ReceivedMessage
from rocketcore.protocol.bodies.heartbeat import ConsumeType
from rocketcore.service import SYSTEM_CLOCK, Clock, Deadline, PeriodicTask
from rocketcore.transport.client import RemotingClient

__all__ = ["SimpleConsumer"]

logger = logging.getLogger(__name__)

POP_PATIENCE: Final = 0.25
"""How long ``receive`` waits for one broker before it asks the next as well."""
FIRST_REFRESH: Final = 1.0
ROUTE_SECONDS: Final = 1.0
"""Between two questions for the route of a topic that does not exist yet."""


class _Source:
    """One topic at one broker, which has at most one request of each kind.

    taking   the POP that is under way
    looking  the NOTIFICATION that is. It is not given up: its broker would still count on it, and wake nobody else
    """

    __slots__ = ("looking", "popper", "taking")

    def __init__(self, popper: Popper) -> None:
        self.popper = popper
        self.taking: asyncio.Task[None] | None = None
        self.looking: asyncio.Task[None] | None = None


class SimpleConsumer(Subscriber):
    """Takes messages as a member of a group, and acknowledges each (Java: POP, ``SimpleConsumer``).

    ``invisible`` seconds after it was received a message that is not acknowledged is for any member again; its
    ``change_invisible`` prolongs that. ``ordered``: the group gets more messages of a queue only when it has
    acknowledged all that it has; the others come again from there. All methods belong to one event loop, but for those
    of messages.
    """

    consume_type = ConsumeType.CONSUME_ACTIVELY

    def __init__(
        self,
        namesrv: NameServers = None,
        *,
        config: ConsumerConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        super().__init__(client_config(ConsumerConfig, namesrv, options, config), clock)
        if self.config.broadcast:
            raise ConfigError("broadcast is not for a SimpleConsumer: its brokers hand out each message once")
        if isinstance(self.config.start_from, datetime):
            raise ConfigError("start_from of a SimpleConsumer is 'first' or 'last': brokers know no time for POP")
        self._sources: dict[tuple[str, str], _Source] = {}
        """In the order in which they are asked: who was asked last comes last."""
        self._arrived: deque[ReceivedMessage] = deque()
        """Messages that were popped and that nobody has seen."""
        self._routes_at = 0.0
        self._tasks: list[PeriodicTask] = []

    # Life

    async def start(self) -> None:
        """Join the group; a second call does nothing."""
        if self._closed:
            raise ClientClosed("the consumer is closed")
        if self._started:
            return
        self._remoting = RemotingClient(**self.config.remoting)
        self._set_up(ClientInstance(self.config, self._remoting, ASYNCIO, clock=self.clock))
        serve_broker_requests(self._remoting, self)
        self._tasks = [
            PeriodicTask(
                "consumer-route", self.instance.refresh, self.config.route_interval, initial_delay=FIRST_REFRESH
            ),
            PeriodicTask("consumer-heartbeat", self.instance.heartbeat, self.config.heartbeat_interval),
        ]
        for task in self._tasks:
            task.start()
        await self._join()

    def _set_up(self, instance: ClientInstance) -> None:
        self.instance = instance
        instance.register_consumer(self)
        self._loop = asyncio.get_running_loop()
        self.receipts = Receipts(instance, self.group, self.clock)
        self.started_at = self.clock.time_millis()
        self._started = True

    async def close(self) -> None:
        """Send the acknowledgements, give back unseen messages, leave the group.

        A second call waits for the first.
        """
        await self._end()

    async def _leave_group(self) -> None:
        async with contextlib.AsyncExitStack() as ends:
            # Also where this is cancelled, nothing may go on by itself.
            ends.push_async_callback(self._remoting.close)
            for task in self._tasks:
                ends.push_async_callback(task.stop)
            ends.push_async_callback(self._stop_asking)
            ends.push_async_callback(self._stop_joining)
            await self._stop_joining()
            await self._stop_asking()
            await self._finish_replies()
            self.give_back(self._arrived)
            self._arrived.clear()
            await self.receipts.close(self.config.close_timeout)
            await self.instance.unregister()

    async def _stop_asking(self) -> None:
        """End what waits for messages; what takes some has a moment to say what it took."""
        takes = [source.taking for source in self._sources.values() if source.taking is not None]
        if takes:
            await asyncio.wait(takes, timeout=POP_PATIENCE)
        requests = [
            request
            for source in self._sources.values()
            for request in (source.taking, source.looking)
            if request is not None
        ]
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    # Subscribing

    async def subscribe(self, topic: str, *, tag: str | None = None, sql: str | None = None) -> None:
        """Receive the messages of a topic, too.

        tag     the tags wanted, ``a || b``; default: all messages
        sql     an SQL92 condition on properties, in place of tags; the broker needs ``enablePropertyFilter``
        raises  a broker's refusal
        """
        await self.join_topic(self.note_subscription(topic, tag, sql))

    async def join_topic(self, noted: Noted) -> None:
        await super().join_topic(noted)
        self._news.set()

    async def unsubscribe(self, topic: str) -> None:
        """End a subscription; you can still acknowledge the messages received before."""
        topic = self.wire_topic(topic)
        self._problems.over(f"topic={topic}")
        if self._subscriptions.pop(topic, None) is not None and self._started:
            await self.instance.heartbeat()

    def route_changed(self, topic: str) -> None:
        """Ask its new brokers, too."""
        self._news.set()

    def process_queues(self) -> list[ProcessQueue]:
        return []

    async def _until_ready(self) -> None:
        while not all(self.instance.routes.find(topic) for topic in self._subscriptions):
            self.raise_refusal()
            await self._find_routes()
            await asyncio.sleep(LOOK_AGAIN)
        await self.instance.heartbeat()

    # Receiving

    async def receive(self, max_messages: int = 16, timeout: float = 10.0) -> list[ReceivedMessage]:
        """Return messages, waiting for the first at most ``timeout`` seconds; an empty list when none came.

        Each is invisible to the rest of the group for ``invisible`` seconds: ``ack()`` it in that time.

        raises  ConfigError without a subscription; a broker's refusal, with no message to return
        """
        return await self.receive_into([], max_messages, timeout)

    async def receive_into(
        self, received: list[ReceivedMessage], max_messages: int = 16, timeout: float = 10.0
    ) -> list[ReceivedMessage]:
        """As ``receive``, for who may be interrupted: ``put_back`` takes what was then received."""
        check_max_messages(max_messages)
        check_seconds("timeout", timeout)
        self._check_subscribed()
        await self.start()
        deadline = Deadline(timeout, self.clock)
        while not self._closed:
            self._take_arrived(received, max_messages)
            if not received and await self._ask_in_turn(max_messages):
                self._take_arrived(received, max_messages)
            if received:
                return received
            self.raise_refusal()
            if deadline.expired:
                return received
            await self._wait_until_there_is_something(deadline.remaining())
        raise ClientClosed("the consumer was closed meanwhile")

    def _take_arrived(self, received: list[ReceivedMessage], limit: int) -> None:
        while self._arrived and len(received) < limit:
            message = self._arrived.popleft()
            receipt = _receipt_of(message)
            if receipt.deadline - self.clock.monotonic() > receipt.seconds / 2:
                received.append(message)
            else:
                logger.info("message not handed out, its time is half over msg_id=%s", message.msg_id)
                self.give_back([message])

    def put_back(self, messages: list[ReceivedMessage]) -> None:
        """Have a later ``receive`` return again what one took and could not hand over."""
        self._arrived.extendleft(reversed(messages))

    def give_back(self, messages: Iterable[ReceivedMessage]) -> None:
        """Let other members have what was popped here and nobody has seen."""
        for message in messages:
            self.receipts.give_back(_receipt_of(message))

    def _find_sources(self) -> list[tuple[tuple[str, str], _Source]]:
        """Return what there is to ask now, who waited longest first; what is gone is forgotten."""
        wanted = {
            (topic, queue.broker)
            for topic in self._subscriptions
            if (route := self.instance.routes.find(topic)) is not None
            for queue in route.subscribe
        }
        for key in [key for key in self._sources if key not in wanted]:
            source = self._sources.pop(key)
            if source.looking is not None:
                source.looking.cancel()
            self._refusals.pop(source.popper.queue, None)
        for key in sorted(wanted - self._sources.keys()):
            self._sources[key] = _Source(Popper(self, self.receipts, MessageQueue(*key, ANY_QUEUE)))
        return list(self._sources.items())

    async def _ask_in_turn(self, limit: int) -> bool:
        """Pop from one source after the other until one has something; return whether one had."""
        for key, source in self._find_sources():
            if self._arrived:
                return True
            if source.taking is not None or source.popper.pause > 0:
                continue
            self._sources[key] = self._sources.pop(key)
            source.taking = self._begin(source, self._pop_source(source, limit))
            await asyncio.wait([source.taking], timeout=POP_PATIENCE)
        return bool(self._arrived)

    def _begin(self, source: _Source, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"consumer-pop-{source.popper.queue.topic}")
        task.add_done_callback(lambda done: self._done(source, done))
        return task

    def _done(self, source: _Source, task: asyncio.Task[None]) -> None:
        if source.taking is task:
            source.taking = None
        if source.looking is task:
            source.looking = None
        if not task.cancelled() and task.exception() is None:
            self._news.set()

    async def _wait_until_there_is_something(self, seconds: float) -> None:
        """Have all brokers say when they have something; wait for the first that does, or until one may be asked."""
        self._news.clear()
        wait = min(seconds, await self._seconds_to_routes())
        for _, source in self._find_sources():
            if source.popper.pause > 0:
                wait = min(wait, source.popper.pause)
            elif source.taking is None and source.looking is None:
                source.looking = self._begin(source, self._await_source(source, min(seconds, HOLD_SECONDS)))
        try:
            async with asyncio.timeout(max(0.0, wait)):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _seconds_to_routes(self) -> float:
        """Ask for routes that are missing; return when to ask again."""
        if all(self.instance.routes.find(topic) for topic in self._subscriptions):
            return math.inf
        if self.clock.monotonic() >= self._routes_at:
            await self._find_routes()
            self._routes_at = self.clock.monotonic() + ROUTE_SECONDS
        return max(0.0, self._routes_at - self.clock.monotonic())

    # Requests

    async def _pop_source(self, source: _Source, limit: int) -> None:
        """Pop from one source into what has arrived."""
        try:
            messages = await source.popper.take(limit)
        except RocketError as error:
            await self._failed(source, error)
            return
        self.pulled(source.popper.queue)
        self._arrived += messages

    async def _await_source(self, source: _Source, seconds: float) -> None:
        """Wait until a source says that it has something, or for as long as it may say nothing."""
        try:
            await source.popper.look(seconds)
        except RocketError as error:
            await self._failed(source, error)
            return
        self.pulled(source.popper.queue)

    async def _failed(self, source: _Source, error: RocketError) -> None:
        """Leave a source alone for a while; what waiting does not change is for who waits for messages."""
        logger.info("pop failed group=%s queue=%s error=%s", self.group, source.popper.queue, error)
        source.popper.failed(error)
        await self.pull_failed(source.popper.queue, error)
        if error.refresh_route:
            await self.instance.try_refresh(source.popper.queue.topic)

    def forked(self) -> None:
        """Note that this is a child, whose messages are the parent's to acknowledge."""
        if self._started:
            self.receipts.forked = True

    async def flush(self) -> None:
        """Wait until brokers have been told what was acknowledged, or made invisible for longer.

        raises  AcksFailed for what they were not told; those messages are delivered again
        """
        if self._started:
            await self.receipts.flush()


def _receipt_of(message: ReceivedMessage) -> Receipt:
    receipt = message._take_result
    assert isinstance(receipt, Receipt)
    return receipt
