"""POP mode of a PushConsumer without sockets: what brokers are told, and how much is taken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from rocketcore.client.config import ConsumerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.pop_mode import MESSAGES_IN_MEMORY, PopMode
from rocketcore.client.process_queue import ProcessQueue
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.simple import SimpleConsumer
from rocketcore.codes import RequestCode
from rocketcore.errors import ClientError, ConfigError, RequestTimeout, RocketError
from rocketcore.message import ConsumeResult, MessageQueue, ReceivedMessage
from rocketcore.protocol.bodies.pop import MessageQueueAssignment, MessageRequestMode
from rocketcore.service import ManualClock
from tests.unit.client.fakes import route
from tests.unit.client.pop_brokers import Brokers

INVISIBLE = 30.0
ALL = MessageQueue("T", "a", -1)
SUCCESS, RETRY = ConsumeResult.SUCCESS, ConsumeResult.RETRY


class Popping:
    """A member in POP mode, and what it hands to handlers."""

    def __init__(self, consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock, limit: int) -> None:
        self.mode = PopMode(consumer, self.arrived, self.bury, limit)
        self.remoting = remoting
        self.clock = clock
        self.buried: list[ReceivedMessage] = []
        self.no_grave: RocketError | None = None
        self._news = asyncio.Event()

    def arrived(self, process_queue: ProcessQueue) -> None:
        self._news.set()

    async def bury(self, message: ReceivedMessage) -> None:
        if self.no_grave is not None:
            raise self.no_grave
        self.buried.append(message)

    async def popped(self, put: int, count: int | None = None) -> list[tuple[ProcessQueue, ReceivedMessage]]:
        """Have messages at the broker, and return them when so many of them have been popped."""
        for i in range(put):
            self.remoting.put("a", b"%d" % i)
        while sum(map(len, self.mode.process_queues())) < (put if count is None else count):
            self._news.clear()
            await self._news.wait()
        return [(queue, message) for queue in self.mode.process_queues() for message in queue.take(1000)]


def run(test: Callable[[Popping], Awaitable[None]], *, limit: int = 16) -> None:
    """Run a test with a member that pops topic T at broker a; its clock stands still."""

    async def work() -> None:
        clock = ManualClock()
        remoting = Brokers({"T": route("a")}, clock)
        consumer = SimpleConsumer(config=ConsumerConfig(group="g", invisible=INVISIBLE), clock=clock)
        consumer._set_up(ClientInstance(consumer.config, remoting, ASYNCIO, clock=clock))
        await consumer.subscribe("T")
        popping = Popping(consumer, remoting, clock, limit)
        reader = popping.mode.reader(ALL)
        reader.start()
        async with asyncio.timeout(20):
            await test(popping)
            task = reader.drop()
            await popping.mode.close(1.0)
            await asyncio.gather(*filter(None, [task]), return_exceptions=True)

    asyncio.run(work())


def test_results_are_the_brokers() -> None:
    async def test(popping: Popping) -> None:
        (queue, done), (_, failed), (_, later) = await popping.popped(3)
        popping.mode.settle(queue, done, SUCCESS, None)
        popping.mode.settle(queue, failed, RETRY, None)
        popping.mode.settle(queue, later, RETRY, 90.0)
        await popping.mode.receipts.flush()
        assert popping.remoting.acks["a"] == [[0]]
        assert popping.remoting.changes == {1: 10_000, 2: 90_000}
        assert popping.mode.process_queues() == []

    run(test)


def test_what_failed_too_often_is_buried() -> None:
    async def test(popping: Popping) -> None:
        [(queue, message)] = await popping.popped(1)
        popping.mode.settle(queue, message, RETRY, None)
        await popping.remoting.was_asked(RequestCode.ACK_MESSAGE)
        assert popping.buried == [message]
        assert popping.remoting.acks["a"] == [[0]]

    run(test, limit=0)


def test_what_could_not_be_buried_comes_again() -> None:
    async def test(popping: Popping) -> None:
        popping.no_grave = RequestTimeout("away")
        [(queue, message)] = await popping.popped(1)
        popping.mode.settle(queue, message, RETRY, None)
        await popping.remoting.was_asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
        assert popping.remoting.changes == {0: 10_000}

    run(test, limit=0)


def test_a_handler_that_takes_long_keeps_its_message() -> None:
    async def test(popping: Popping) -> None:
        [(queue, message)] = await popping.popped(1)
        for _ in range(8):
            popping.clock.advance(INVISIBLE / 4)
            popping.mode.renew()
            await popping.mode.receipts.flush()
        popping.mode.settle(queue, message, SUCCESS, None)
        await popping.mode.receipts.flush()
        assert popping.remoting.acks["a"] == [[0]]

    run(test)


def test_a_result_that_is_too_late_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def test(popping: Popping) -> None:
        [(queue, message)] = await popping.popped(1)
        popping.clock.advance(INVISIBLE)
        popping.mode.settle(queue, message, SUCCESS, None)
        await popping.mode.receipts.flush()
        assert not popping.remoting.acks["a"]

    with caplog.at_level(logging.WARNING):
        run(test)
    assert "result too late" in caplog.text


def test_no_more_is_taken_than_there_is_room_for() -> None:
    async def test(popping: Popping) -> None:
        (queue, message), *_ = await popping.popped(300, MESSAGES_IN_MEMORY)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(popping.remoting.asked_of(RequestCode.POP_MESSAGE)) == MESSAGES_IN_MEMORY / 32
        popping.mode.settle(queue, message, SUCCESS, None)
        await popping.remoting.was_asked(RequestCode.POP_MESSAGE, MESSAGES_IN_MEMORY // 32 + 1)

    run(test)


def test_what_is_not_done_at_the_end_is_given_back() -> None:
    async def test(popping: Popping) -> None:
        await popping.popped(2)
        await popping.mode.close(1.0)
        assert popping.remoting.changes == {0: 1000, 1: 1000}

    run(test)


def test_a_broker_says_what_is_popped() -> None:
    async def test(popping: Popping) -> None:
        pulled = MessageQueue("T", "a", 1)
        popping.remoting.assignments = [
            MessageQueueAssignment(message_queue=ALL, mode=MessageRequestMode.POP),
            MessageQueueAssignment(message_queue=pulled, mode=MessageRequestMode.PULL),
        ]
        assert await popping.mode.ask("T") == [ALL, pulled]
        assert popping.mode.pops(ALL)
        assert not popping.mode.pops(pulled)
        popping.remoting.assignments = None
        with pytest.raises(ClientError, match="does not say which queues of 'T'"):
            await popping.mode.ask("T")
        assert popping.mode.pops(ALL)

    run(test)


def test_broadcast_is_not_for_pop() -> None:
    with pytest.raises(ConfigError, match="pop is not for broadcast"):
        ConsumerConfig(pop=True, broadcast=True)
