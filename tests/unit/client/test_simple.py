"""SimpleConsumer without sockets: whom it asks when, what it says of messages, and what it does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from rocketcore.client.config import ConsumerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.pull import PullConsumer
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.simple import SimpleConsumer
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import (
    AcksFailed,
    ClientClosed,
    ConfigError,
    ConnectionLost,
    ForkedClient,
    InvisibleTimeOver,
    NoPermission,
    RequestNotSupported,
    RequestTimeout,
)
from rocketcore.message import MessageQueue, ReceivedMessage, hand_out
from rocketcore.protocol.headers.pop import PopMessageRequestHeader
from rocketcore.service import ManualClock
from tests.unit.client.fakes import route
from tests.unit.client.pop_brokers import Brokers

INVISIBLE = 30.0


def run(
    test: Callable[[SimpleConsumer, Brokers, ManualClock], Awaitable[None]], *brokers: str, ordered: bool = False
) -> None:
    """Run a test with a consumer of topic T at some brokers; its clock stands still."""

    async def work() -> None:
        clock = ManualClock()
        remoting = Brokers({"T": route(*(brokers or ("a",)))}, clock)
        config = ConsumerConfig(group="g", invisible=INVISIBLE, close_timeout=1.0, ordered=ordered)
        consumer = SimpleConsumer(config=config, clock=clock)
        consumer._set_up(ClientInstance(consumer.config, remoting, ASYNCIO, clock=clock))
        await consumer.subscribe("T")
        async with asyncio.timeout(20):
            await test(consumer, remoting, clock)
        consumer._remoting = _Closed()  # type: ignore[assignment]
        await consumer.close()

    asyncio.run(work())


class _Closed:
    async def close(self) -> None:
        pass


def test_what_is_acknowledged_together_leaves_together() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        for i in range(20):
            remoting.put("a", b"%d" % i)
        messages = await consumer.receive(16) + await consumer.receive(16)
        assert [message.body for message in messages] == [b"%d" % i for i in range(20)]
        for message in messages:
            message.ack()
            message.ack()  # does nothing
        await consumer.flush()
        assert remoting.acks["a"] == [list(range(20))]

    run(test)


def test_in_order_a_pop_without_an_answer_is_made_again_as_the_same() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.put("a", b"x")
        remoting.failures[RequestCode.POP_MESSAGE] = [ConnectionLost("cut")]
        receiving = asyncio.create_task(consumer.receive(timeout=1000))
        await remoting.was_asked(RequestCode.POP_MESSAGE)
        clock.advance(10)
        remoting.put("a", b"y")
        await receiving
        await consumer.receive(timeout=0.0)
        asked = [request for _, request in remoting.asked if request.code == RequestCode.POP_MESSAGE]
        pops = [request.header(PopMessageRequestHeader) for request in asked]
        assert all(pop.order for pop in pops)
        first, again, *others = [pop.attempt_id for pop in pops]
        assert first == again is not None
        assert first not in others

    run(test, ordered=True)


def test_a_broker_without_batches_is_told_one_by_one() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.failures[RequestCode.BATCH_ACK_MESSAGE] = [ResponseCode.REQUEST_CODE_NOT_SUPPORTED]
        for _ in range(3):
            remoting.put("a", b"x")
        for message in await consumer.receive():
            message.ack()
        await consumer.flush()
        assert sorted(remoting.acks["a"]) == [[0], [1], [2]]

    run(test)


def test_an_ack_is_repeated_until_a_broker_has_it() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.put("a", b"x")
        remoting.failures[RequestCode.ACK_MESSAGE] = [ConnectionLost("gone"), RequestTimeout("late")]
        [message] = await consumer.receive()
        message.ack()
        await consumer.flush()
        assert remoting.acks["a"] == [[0]]

    run(test)


def test_an_ack_that_no_broker_takes_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.put("a", b"x")
        remoting.failures[RequestCode.ACK_MESSAGE] = [ResponseCode.NO_MESSAGE]
        [message] = await consumer.receive()
        message.ack()
        with pytest.raises(AcksFailed, match=r"1 message not acknowledged.*NO_MESSAGE"):
            await consumer.flush()
        await consumer.flush()

    with caplog.at_level(logging.WARNING):
        run(test)
    assert "delivered again" in caplog.text


def test_a_broker_that_comes_back_too_late_is_told_nothing() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.put("a", b"x")
        [message] = await consumer.receive()
        remoting.failures[RequestCode.ACK_MESSAGE] = [ConnectionLost("gone")]
        message.ack()
        flushing = asyncio.create_task(consumer.flush())
        await remoting.was_asked(RequestCode.ACK_MESSAGE)
        clock.advance(INVISIBLE)
        with pytest.raises(AcksFailed, match="over before the broker could be told"):
            await flushing
        assert not remoting.acks["a"]

    run(test)


def test_an_ack_after_the_invisible_time_says_so() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.put("a", b"x")
        [message] = await consumer.receive()
        clock.advance(INVISIBLE + 1)
        with pytest.raises(InvisibleTimeOver, match=r"30 s, which were over 1.000 s ago: it is delivered again"):
            message.ack()
        await consumer.flush()
        assert not remoting.acks["a"]

    run(test)


def test_a_longer_invisible_time_gives_the_message_another_handle() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.put("a", b"x")
        [message] = await consumer.receive()
        message.change_invisible(100.0)
        await consumer.flush()
        clock.advance(INVISIBLE + 1)
        message.ack()
        await consumer.flush()
        assert remoting.changes == {0: 100_000}
        [ack] = [request for _, request in remoting.asked if request.code == RequestCode.ACK_MESSAGE]
        assert (ack.ext_fields or {})["extraInfo"] == "0 7 100000 3 0 a 0 0"

    run(test)


def test_an_invisible_time_that_was_not_changed_is_the_one_before() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.put("a", b"x")
        remoting.failures[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = [ResponseCode.NO_MESSAGE]
        [message] = await consumer.receive()
        message.change_invisible(100.0)
        with pytest.raises(AcksFailed):
            await consumer.flush()
        clock.advance(INVISIBLE + 1)
        with pytest.raises(InvisibleTimeOver):
            message.ack()

    run(test)


def test_a_message_is_given_back_for_later() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.put("a", b"now")
        remoting.put("a", b"later")
        now, later = await consumer.receive()
        now.retry()
        later.retry(delay=90)
        with pytest.raises(InvisibleTimeOver, match="given back"):
            later.change_invisible(5)
        await consumer.flush()
        assert remoting.changes == {0: 10_000, 1: 90_000}

    run(test)


def test_sources_are_asked_in_turn() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        for i in range(30):
            remoting.put("a", b"a%d" % i)
        remoting.put("b", b"b")
        first = await consumer.receive(10)
        second = await consumer.receive(10)
        assert {message.body[:1] for message in first} | {message.body[:1] for message in second} == {b"a", b"b"}

    run(test, "a", "b")


def test_a_silent_broker_holds_up_no_other() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.silent.add("a")
        remoting.put("b", b"b")
        async with asyncio.timeout(2):
            assert [message.body for message in await consumer.receive()] == [b"b"]

    run(test, "a", "b")


def test_who_waits_pops_nothing_until_there_is_something() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        waiting = asyncio.create_task(consumer.receive())
        await remoting.was_asked(RequestCode.NOTIFICATION, 2)
        assert sorted(remoting.asked_of(RequestCode.POP_MESSAGE)) == ["a", "b"]
        remoting.put("b", b"at last")
        assert [message.body for message in await waiting] == [b"at last"]
        pops = [request.ext_fields or {} for _, request in remoting.asked if request.code == RequestCode.POP_MESSAGE]
        assert {fields["pollTime"] for fields in pops} == {"0"}

    run(test, "a", "b")


def test_a_broker_that_still_counts_on_us_is_not_asked_again() -> None:
    """It tells one of a group of a message: were the first question given up, nobody would hear."""

    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        gone = asyncio.create_task(consumer.receive())
        await remoting.was_asked(RequestCode.NOTIFICATION)
        gone.cancel()
        waiting = asyncio.create_task(consumer.receive())
        await remoting.was_asked(RequestCode.POP_MESSAGE, 2)
        remoting.put("a", b"x")
        assert [message.body for message in await waiting] == [b"x"]
        assert remoting.asked_of(RequestCode.NOTIFICATION) == ["a"]

    run(test)


def test_what_was_popped_for_a_caller_who_has_gone_is_for_the_next() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.put("a", b"x")
        remoting.hold["a"] = asyncio.Event()
        gone = asyncio.create_task(consumer.receive())
        await remoting.popping.wait()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        remoting.hold.pop("a").set()
        assert [message.body for message in await consumer.receive()] == [b"x"]

    run(test)


def test_what_lay_here_for_half_its_time_is_not_handed_out() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.put("a", b"x")
        consumer.put_back(await consumer.receive())
        clock.advance(INVISIBLE / 2)
        assert await consumer.receive(timeout=0) == []
        await consumer.flush()
        assert remoting.changes == {0: 1000}

    run(test)


def test_what_nobody_has_seen_is_given_back_on_close() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.put("a", b"x")
        consumer.put_back(await consumer.receive())
        consumer._remoting = _Closed()  # type: ignore[assignment]
        await consumer.close()
        assert remoting.changes == {0: 1000}
        with pytest.raises(ClientClosed):
            await consumer.receive()

    run(test)


def test_a_tag_is_compared_again() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        await consumer.subscribe("T", tag="other")
        remoting.put("a", b"x")  # has tag t, as a tag of the same hash would
        assert await consumer.receive(timeout=0) == []
        await consumer.flush()
        assert remoting.acks["a"] == [[0]]

    run(test)


def test_what_a_broker_refuses_is_for_who_waits() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.failures[RequestCode.POP_MESSAGE] = [
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            ResponseCode.NO_PERMISSION,
        ]
        with pytest.raises(RequestNotSupported, match="pop of topic 'T'"):
            await consumer.receive()
        clock.advance(10)
        with pytest.raises(NoPermission):
            await consumer.receive()
        clock.advance(10)
        remoting.put("a", b"x")
        assert len(await consumer.receive()) == 1

    run(test)


def test_a_broker_that_promises_what_it_does_not_give_is_left_alone() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.put("a", b"x")
        remoting.failures[RequestCode.POP_MESSAGE] = [ResponseCode.POLLING_TIMEOUT] * 1000
        await consumer.receive(timeout=0.0)
        waiting = asyncio.create_task(consumer.receive(timeout=1000))
        await asyncio.sleep(0.05)  # the clock stands still: it may be asked once more, and then waits
        assert len(remoting.asked_of(RequestCode.POP_MESSAGE)) <= 3
        waiting.cancel()

    run(test)


def test_a_child_acknowledges_nothing() -> None:
    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        remoting.put("a", b"x")
        [message] = await consumer.receive()
        consumer.forked()
        with pytest.raises(ForkedClient):
            message.ack()

    run(test)


def test_wrong_use_is_named() -> None:
    with pytest.raises(ConfigError, match="broadcast is not for a SimpleConsumer"):
        SimpleConsumer(group="g", broadcast=True)
    with pytest.raises(ConfigError, match="invisible must be 1 to 43200 seconds"):
        SimpleConsumer(group="g", invisible=0.5)
    pulled = ReceivedMessage("T", b"", MessageQueue("T", "a", 0), 0, "", "")
    consumer = PullConsumer(group="g")
    hand_out([pulled], consumer.take_result, consumer.take_reply)
    with pytest.raises(ConfigError, match="only messages of a SimpleConsumer"):
        pulled.change_invisible(5)

    async def test(consumer: SimpleConsumer, remoting: Brokers, clock: ManualClock) -> None:
        for wrong in (0, 2.5, "3", True):
            with pytest.raises(ConfigError, match=r"max_messages must be a whole number of at least 1, got"):
                await consumer.receive(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="timeout must be a number of seconds, got None"):
            await consumer.receive(1, None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"subscribe\(\): topic must be text, got int"):
            await consumer.subscribe(3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"subscribe\(\): tag must be text, got list"):
            await consumer.subscribe("T", tag=["a"])  # type: ignore[arg-type]
        await consumer.unsubscribe("T")
        with pytest.raises(ConfigError, match="no subscription"):
            await consumer.receive()

    run(test)
