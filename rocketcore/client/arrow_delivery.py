"""Deliver batch bodies: several under way, one per queue, each tried again until it is stored or its time is over.

A body that may go to any queue of its topic leaves a broker that failed for another; ``fault`` remembers who failed.
One that belongs to a queue waits for that queue's broker to come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, fields
from typing import Any, Final

from rocketcore.client import api
from rocketcore.client.attempts import Retries, until_answered
from rocketcore.client.config import ClientConfig, ProducerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.outgoing import properties_in_batch
from rocketcore.client.sender import Sender
from rocketcore.errors import BrokerError, NoPermission, RequestTimeout, RocketError, TopicNotExist, TransportError
from rocketcore.message import UNIQ_KEY, MessageQueue, SendResult, SendStatus
from rocketcore.protocol.command import RemotingCommand

__all__ = ["BATCH_BYTES", "MAX_IN_FLIGHT", "MOMENT", "BodyDelivery", "SendSummary", "batch_ids", "body_sender"]

BATCH_BYTES: Final = 1 << 20
MAX_IN_FLIGHT: Final = 4

MOMENT: Final = 0.05
"""Seconds that something on a connection is waited for in the place of the loop."""

_REFUSALS = (NoPermission, TopicNotExist)
"""Answers that another broker may not share; when all have given one, waiting longer changes nothing."""


def body_sender(instance: ClientInstance, group: str, timeout: float) -> Sender:
    """Return a sender for bodies, whose attempts ``BodyDelivery`` makes.

    group    of the producer
    timeout  seconds for one attempt
    """
    client = {item.name: getattr(instance.config, item.name) for item in fields(ClientConfig)}
    settings = {"group": group, "timeout": timeout, "retries": 0, "latency_fault_tolerance": True}
    return Sender(ProducerConfig(**{**client, **settings}), instance)


@dataclass(slots=True)
class SendSummary:
    """What a sender did. ``not_safe`` batches are stored but with a status other than SEND_OK."""

    rows: int = 0
    sent_bytes: int = 0
    batches: int = 0
    retries: int = 0
    not_safe: int = 0
    seconds: float = 0.0


class BodyDelivery:
    """Sends batch bodies; belongs to one event loop, or to one thread.

    timeout           seconds for one attempt
    delivery_timeout  seconds for one body, from its first attempt
    max_in_flight     bodies under way; 1 where nothing goes on by itself
    """

    def __init__(
        self,
        sender: Sender,
        summary: SendSummary,
        *,
        timeout: float,
        delivery_timeout: float,
        max_in_flight: int,
    ) -> None:
        self._sender = sender
        self._summary = summary
        self._timeout = timeout
        self._delivery_timeout = delivery_timeout
        self._max_in_flight = max_in_flight
        self._first_timeout = Retries(delivery_timeout, sender.instance.clock).attempt_timeout(timeout)
        self._in_flight: dict[MessageQueue, asyncio.Future[Any]] = {}
        """Answers that are waited for, and tasks that go on after a failure; one that has failed stays."""
        self._begun: dict[asyncio.Future[RemotingCommand], Callable[[], None]] = {}
        """Answers to first attempts, and what is to be done when one is there."""
        self._failure: BaseException | None = None  # what a body failed with, until it is raised
        self._ended: asyncio.Future[None] | None = None  # of who waits for the end of any of them
        self._silent: set[str] = set()  # brokers that did not answer in time

    async def submit(self, topic: str, queue: MessageQueue | None, body: bytes | memoryview) -> None:
        """Send a body once there is room for it, and its queue has nothing under way.

        queue   None: any of the topic
        raises  what an earlier body failed with
        """
        if not self._sender.instance.runtime.concurrent:
            await self._deliver(topic, queue, queue or await self._free_queue(topic), body)
            return
        while len(self._in_flight) >= self._max_in_flight:
            await self._await_answer()
        first = queue or await self._free_queue(topic)
        while first in self._in_flight:
            await self._await_answer()
        if not self._begin(topic, queue, first, body):
            self._start_delivery(first, self._deliver(topic, queue, first, body))
            await asyncio.sleep(0)  # the request leaves now, not when the next batch has been encoded

    async def finish(self) -> None:
        """Wait until everything is acknowledged; raises what a body failed with."""
        while self._in_flight:
            await self._await_answer()

    def can_begin(self, topic: str) -> bool:
        """Tell whether bodies of a topic are begun without the caller's task: route known, a broker connected."""
        publisher = self._sender.find_publisher(topic)
        return (
            publisher is not None and self._failure is None and any(map(self._sender.is_connected, publisher.targets))
        )

    def poll(self, seconds: float) -> bool:
        """Take the answers that are there in the place of the loop; tell whether there was anything to do."""
        came = self._sender.poll(seconds)
        if came:
            for answer in [each for each in self._begun if each.done()]:
                self._handle_answer(answer)
        return came

    def is_written(self) -> bool:
        """Have all that was submitted written, if that takes no more than a moment; in the place of the loop."""
        while self._sender.unsent():
            if not self.poll(MOMENT):
                return False
        return True

    async def abandon(self) -> None:
        """Give up what is under way."""
        under_way, self._in_flight = list(self._in_flight.values()), {}
        for each in under_way:
            each.cancel()
        if under_way:  # without a loop, gather() would fail even for nothing
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _await_answer(self) -> None:
        """Wait for the end of a body; raises what one failed with, after the others are given up."""
        if self._failure is None:
            self._ended = asyncio.get_running_loop().create_future()
            await self._ended
        if self._failure is not None:
            failure, self._failure = self._failure, None
            await self.abandon()
            raise failure

    def _begin(self, topic: str, owner: MessageQueue | None, queue: MessageQueue, body: bytes | memoryview) -> bool:
        """Make the first attempt at a body, if that takes no waiting: nearly always the only one.

        A task and the coroutines of ``_deliver`` cost a body of 1 MiB a tenth of its CPU time.
        """
        if queue.broker in self._silent:
            return False
        begun = self._sender.begin_batch(queue, body, self._first_timeout)
        if begun is None:
            return False

        def answered() -> None:
            if begun.answer.cancelled():
                return
            failure = None
            try:
                result = begun.result()
                if result is not None:
                    self._count_batch(result)
                    self._note_body_end(queue)
                    return
            except RocketError as error:
                failure = error
            retries = Retries(self._delivery_timeout, self._sender.instance.clock, since=begun.began)
            self._start_delivery(queue, self._deliver(topic, owner, queue, body, retries, failure))

        self._in_flight[queue] = begun.answer
        self._begun[begun.answer] = answered
        begun.answer.add_done_callback(self._handle_answer)
        return True

    def _handle_answer(self, answer: asyncio.Future[RemotingCommand]) -> None:
        """Do what the answer to a first attempt asks for, once."""
        answered = self._begun.pop(answer, None)
        if answered is not None:
            answered()

    def _start_delivery(self, queue: MessageQueue, delivery: Coroutine[Any, Any, None]) -> None:
        """Have a body delivered that takes waiting."""

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                return
            error = task.exception()
            if error is not None:
                self._failure = self._failure or error
            self._note_body_end(queue, failed=error is not None)

        task = self._in_flight[queue] = asyncio.ensure_future(delivery)
        task.add_done_callback(ended)

    def _note_body_end(self, queue: MessageQueue, *, failed: bool = False) -> None:
        """Note the end of a body, and tell who waits."""
        if not failed:
            self._in_flight.pop(queue, None)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _count_batch(self, result: SendResult, retries: int = 0) -> None:
        self._summary.batches += 1
        self._summary.retries += retries
        self._summary.not_safe += result.status is not SendStatus.SEND_OK

    async def _free_queue(self, topic: str, avoid: Collection[int] = ()) -> MessageQueue:
        """Return the next queue in turn of a broker that works; if there are enough queues, one with nothing under way.

        avoid  number of the broker that just failed; where there is no other, it is asked again
        """
        publisher = self._sender.find_publisher(topic) or await self._sender.publisher(topic, self._timeout)
        for _ in publisher.targets:
            target = self._sender.target(publisher, None, None, avoid) or self._sender.target(publisher, None, None)
            assert target is not None, "without brokers to avoid there is always one"
            queue = target.queue
            if queue not in self._in_flight:
                break
        return queue

    async def _deliver(
        self,
        topic: str,
        owner: MessageQueue | None,
        queue: MessageQueue,
        body: bytes | memoryview,
        retries: Retries | None = None,
        failure: RocketError | None = None,
    ) -> None:
        """Send one body, first to ``queue``, until it is stored; without an ``owner`` retries go to other queues.

        failure  of the first attempt, where that was made already
        """
        sender = self._sender
        ids = batch_ids(body) if sender.has_send_hooks else ()
        retries = retries or Retries(self._delivery_timeout, sender.instance.clock)
        refusals = 0

        async def send(limit: float) -> SendResult:
            nonlocal queue, failure
            if failure is not None:
                error, failure = failure, None
                raise error
            if retries.count and owner is None:
                queue = await self._free_queue(topic, self._broker_of(topic, queue))
            await self._await_sign_of_life(queue, limit)
            return await sender.send_encoded_batch(topic, None, queue, body, ids, limit)

        def final(error: RocketError) -> bool:
            nonlocal refusals
            if isinstance(error, RequestTimeout):
                self._silent.add(queue.broker)
            refusals = refusals + 1 if isinstance(error, _REFUSALS) else 0
            return refusals > self._brokers(topic)

        # A queue that was in the route comes back to it with its broker.
        result = await until_answered(
            sender.instance, topic, retries, self._timeout, send, final, elsewhere=owner is None
        )
        self._count_batch(result, retries.count)

    async def _await_sign_of_life(self, queue: MessageQueue, timeout: float) -> None:
        """Ask a broker that left a body without an answer for something small, before it is sent another.

        A connection keeps its order: behind a body that has no answer yet a second copy of it helps nobody, and when
        the broker wakes up it stores them all.
        """
        if queue.broker not in self._silent:
            return
        instance = self._sender.instance
        address, _ = instance.routes.subscribe_address(queue.broker)
        try:
            await api.max_offset(instance.remoting, address, queue, timeout)
        except TransportError as error:
            raise type(error)(f"send to topic {queue.topic!r}: {queue.broker} does not answer: {error}") from error
        except BrokerError:
            pass  # a refusal is an answer
        self._silent.discard(queue.broker)

    def _brokers(self, topic: str) -> int:
        publisher = self._sender.find_publisher(topic)
        return publisher.brokers if publisher is not None else 1

    def _broker_of(self, topic: str, queue: MessageQueue) -> Collection[int]:
        """Return the number of a queue's broker, none where the route has lost the queue."""
        publisher = self._sender.find_publisher(topic)
        target = publisher.by_queue.get(queue) if publisher is not None else None
        return () if target is None else (target.broker_number,)


def batch_ids(body: bytes | memoryview) -> list[str]:
    """Return the ids of the messages in a batch body."""
    return [properties[UNIQ_KEY] for properties in properties_in_batch(body)]
