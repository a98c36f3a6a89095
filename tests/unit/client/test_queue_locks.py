"""A group in order without sockets: queues are locked, renewed, kept and given back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from rocketcore.client.push import LOCK_EXPIRES, LOCK_INTERVAL, PushConsumer
from rocketcore.message import MessageQueue, ReceivedMessage
from rocketcore.service import ManualClock
from tests.unit.client.groups import LockingBrokers, run, start, start_with


def test_a_queue_taken_while_locks_are_renewed_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G", ordered=True)
        await start(consumer)
        try:
            renewed, lost, taken = (MessageQueue("T", "a", queue_id) for queue_id in range(3))
            for queue in (renewed, lost):
                consumer.own(queue, 0)

            async def lock(queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
                consumer.own(taken, 0)
                return {renewed: True, lost: False}

            monkeypatch.setattr(consumer, "_lock", lock)
            await consumer._renew_locks()
            held = {
                process_queue.queue
                for process_queue in consumer.process_queues()
                if process_queue.last_lock is not None
            }
            assert held == {renewed, taken}
        finally:
            await consumer.close()

    run(body)


class InOrder:
    """A consumer in order whose handler is busy with the first of two messages of a queue, until it may ``go_on``."""

    queue = MessageQueue("T", "a", 0)

    def __init__(self) -> None:
        self.consumer = PushConsumer(group="G", ordered=True)
        self.brokers = LockingBrokers("a")
        self.handled: list[int] = []
        self.go_on = asyncio.Event()
        self._begun = asyncio.Event()

    async def __aenter__(self) -> InOrder:
        self.consumer.subscribe("T", handler=self._handle)
        await start_with(self.consumer, self.brokers)
        self.process_queue = self.consumer.own(self.queue, 0).process_queue
        self.process_queue.put([ReceivedMessage("T", b"", self.queue, offset, "id", "id") for offset in range(2)], 2)
        self.consumer._service.arrived(self.process_queue)
        await self._begun.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.go_on.set()
        self.brokers.may_lock.set()
        await self.consumer.close()

    async def _handle(self, message: ReceivedMessage) -> None:
        self.handled.append(message.offset)
        self._begun.set()
        await self.go_on.wait()

    async def give_up(self) -> asyncio.Task[None]:
        """Begin to give the queue up, which waits for the handler."""
        task = asyncio.create_task(self.consumer._give_up([self.queue]))
        await asyncio.sleep(0)
        return task


def test_a_queue_that_is_given_up_is_not_handed_out_by_a_renewal_of_its_lock() -> None:
    async def body() -> None:
        async with InOrder() as busy:
            renewal = asyncio.create_task(busy.consumer._renew_locks())
            await busy.brokers.locking.wait()
            leaving = await busy.give_up()
            busy.brokers.may_lock.set()
            await renewal
            await busy.consumer._renew_locks()
            assert busy.brokers.asked_to_lock == ["a:1"]
            busy.go_on.set()
            await leaving
            assert busy.handled == [0]
            assert busy.consumer.queues() == []

    run(body)


def test_a_queue_that_is_kept_after_all_goes_on() -> None:
    async def body() -> None:
        async with InOrder() as busy:
            leaving = await busy.give_up()
            leaving.cancel()
            await asyncio.wait([leaving])
            busy.go_on.set()
            while len(busy.process_queue):
                await busy.consumer._service.progress()
            assert busy.handled == [0, 1]

    run(body)


def test_a_lock_that_is_given_back_is_not_taken_again_by_a_renewal_on_its_way() -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G", ordered=True)
        brokers = LockingBrokers("a", "b")
        await start_with(consumer, brokers)
        try:
            queue = MessageQueue("T", "a", 0)
            consumer.own(queue, 0)
            consumer.own(MessageQueue("T", "b", 0), 0)
            renewal = asyncio.create_task(consumer._renew_locks())
            await brokers.locking.wait()
            leaving = asyncio.create_task(consumer._give_up([queue]))
            await brokers.storing.wait()
            for _ in range(10):  # what it does next, it does now
                await asyncio.sleep(0)
            assert brokers.asked_to_lock == ["a:1", "b:1"], "a broker that hangs keeps no other from being asked"
            brokers.may_lock.set()
            await renewal
            await leaving
            assert brokers.locks.lock("G", [queue], "the next owner") == [queue]
        finally:
            brokers.may_lock.set()
            await consumer.close()

    run(body)


def test_a_renewal_without_an_answer_takes_no_lock_away_before_its_time() -> None:
    async def body() -> None:
        clock = ManualClock()
        consumer = PushConsumer(group="G", ordered=True)
        consumer.clock = clock
        brokers = LockingBrokers("a", "b")
        brokers.may_lock.set()
        await start_with(consumer, brokers)
        try:
            silent, well = (consumer.own(MessageQueue("T", name, 0), 0).process_queue for name in "ab")
            gone = consumer.own(MessageQueue("T", "gone", 0), 0).process_queue
            brokers.silent.add("a:1")
            clock.advance(LOCK_INTERVAL)
            await consumer._renew_locks()
            assert [consumer._consumable(process_queue) for process_queue in (silent, gone, well)] == [True, True, True]
            clock.advance(LOCK_EXPIRES - LOCK_INTERVAL)
            assert [consumer._consumable(process_queue) for process_queue in (silent, gone, well)] == [
                False,
                False,
                True,
            ]
            brokers.locks.unlock("G", [well.queue], consumer.client_id)
            brokers.locks.lock("G", [well.queue], "another")
            await consumer._renew_locks()
            assert not consumer._consumable(well)
        finally:
            await consumer.close()

    run(body)


def test_a_failed_message_comes_again_though_the_timer_is_a_little_early() -> None:
    """The clock stands: by it the time is not over when the loop says so, and the loop says it once."""

    async def body() -> None:
        handled: list[int] = []
        both = asyncio.Event()

        async def fail_first(message: ReceivedMessage) -> None:
            handled.append(message.offset)
            if len(handled) == 1:
                raise ValueError("the first time it fails")
            if message.offset == 1:
                both.set()

        consumer = PushConsumer(group="G", ordered=True, suspend_time=0.01)
        consumer.clock = ManualClock()
        consumer.subscribe("T", handler=fail_first)
        await start_with(consumer, LockingBrokers("a"))
        try:
            queue = MessageQueue("T", "a", 0)
            process_queue = consumer.own(queue, 0).process_queue
            process_queue.put([ReceivedMessage("T", b"", queue, offset, "id", "id") for offset in range(2)], 2)
            consumer._service.arrived(process_queue)
            await both.wait()
            assert handled == [0, 0, 1]
        finally:
            await consumer.close()

    run(body)


def test_a_queue_is_given_up_though_who_asked_for_it_does_not_wait() -> None:
    async def body() -> None:
        consumer = PushConsumer(group="G")
        consumer.subscribe("T")
        brokers = LockingBrokers("a")
        await start_with(consumer, brokers)
        try:
            consumer.own(MessageQueue("T", "a", 0), 0)
            brokers.may_store.clear()
            leaving = asyncio.create_task(consumer.unsubscribe("T"))
            await brokers.storing.wait()
            leaving.cancel()
            await asyncio.wait([leaving])
            assert consumer.queues() == []
        finally:
            brokers.may_store.set()
            await consumer.close()

    run(body)
