"""Automatic batches: what leaves together, when, and what becomes of the futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rocketcore.client.accumulator import Accumulator
from rocketcore.client.config import ProducerConfig
from rocketcore.client.future import SendFuture
from rocketcore.client.instance import ClientInstance
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.sender import Sender
from rocketcore.codes import RequestCode
from rocketcore.errors import (
    ClientClosed,
    ConfigError,
    ConnectError,
    MessageIllegal,
    MessageRefused,
    Overloaded,
    RequestTimeout,
    RouteNotFound,
    SendsFailed,
)
from rocketcore.message import Message, MessageQueue
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import SendMessageRequestHeaderV2
from tests.unit.client.fakes import FakeRemoting, Outcome, route, stored


class Gate(FakeRemoting):
    """Holds every send until the test opens it."""

    def __init__(self, queues: int = 4) -> None:
        super().__init__({"T": route("a", queues=queues), "U": route("a")})
        self.open = asyncio.Event()
        self.begun = asyncio.Event()
        self.under_way = 0
        self.most_under_way = 0

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            self.begun.set()
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            await self.open.wait()
            self.under_way -= 1
        return await super().invoke(address, command, timeout)


Body = Callable[[Gate, Sender, Accumulator], Awaitable[None]]


def run(body: Body, *, make: Callable[[], Gate] | None = None, **settings: Any) -> None:
    async def main() -> None:
        config = ProducerConfig(**{"linger": 0.001, **settings})
        remoting = (make or Gate)()
        logic = Sender(config, ClientInstance(config, remoting, ASYNCIO))
        async with asyncio.timeout(10):
            await body(remoting, logic, Accumulator(logic, config))

    asyncio.run(main())


async def append(accumulator: Accumulator, logic: Sender, message: Message) -> SendFuture:
    future = accumulator.append(message)
    assert future is not None
    return future


def sizes(remoting: Gate) -> list[tuple[str, int, int]]:
    """Topic, queue and length of each request that was sent."""
    headers = [(request.header(SendMessageRequestHeaderV2), len(request.body)) for _, request in remoting.asked]
    return [(header.topic, header.queue_id, length) for header, length in headers]


def test_messages_of_a_topic_leave_as_one_batch_with_their_own_results() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.serve = lambda address, request: batch_answer(request, 3)
        remoting.open.set()
        futures = [await append(accumulator, logic, Message("T", f"m{i}")) for i in range(3)]
        assert not futures[0].done()
        results = [await future for future in futures]
        assert len(remoting.asked) == 1
        assert [result.offset for result in results] == [7, 8, 9]
        assert [result.msg_id for result in results] == [future.msg_id for future in futures]
        assert [result.offset_msg_id for result in results] == ["A0", "A1", "A2"]
        assert {result.queue for result in results} == {results[0].queue}

    run(body)


def batch_answer(request: RemotingCommand, count: int) -> Outcome:
    response = stored(request)
    assert response.ext_fields is not None
    response.ext_fields["msgId"] = ",".join(f"A{i}" for i in range(count))
    return response


def test_topics_and_queues_do_not_share_a_batch() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        for message in (
            Message("T", b"1"),
            Message("U", b"2"),
            Message("T", b"3", message_group="g"),
            Message("T", b"4"),
        ):
            await append(accumulator, logic, message)
        await accumulator.flush()
        assert sorted(topic for topic, _, _ in sizes(remoting)) == ["T", "T", "U"]

    run(body)


def test_a_full_batch_does_not_linger() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(4)]
        await asyncio.gather(*futures)
        assert len(remoting.asked) == 2

    run(body, linger=60.0, batch_count=2)


def test_bytes_bound_a_batch() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        for _ in range(10):
            await append(accumulator, logic, Message("T", b"x" * 400))
        await accumulator.flush()
        assert len(remoting.asked) == 5
        assert max(length for _, _, length in sizes(remoting)) <= 1100

    run(body, batch_bytes=1100)


def test_batches_of_one_queue_leave_one_after_the_other() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        await logic.publisher("T")
        for i in range(12):
            await append(accumulator, logic, Message("T", f"{i:02}", message_group="g"))
        flushed = asyncio.create_task(accumulator.flush())
        await asyncio.sleep(0.02)
        assert remoting.under_way == 1
        remoting.open.set()
        await flushed
        assert remoting.most_under_way == 1
        bodies = [body for _, request in remoting.asked for body in (request.body,)]
        positions = [index for index, body in enumerate(bodies) for i in range(12) if f"{i:02}".encode() in body[20:22]]
        assert positions == sorted(positions)
        assert [body[20:22] for body in bodies] == [b"00", b"02", b"04", b"06", b"08", b"10"]

    run(body, batch_count=2)


def test_batches_of_a_topic_leave_side_by_side_up_to_a_limit() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        for _ in range(20):
            await append(accumulator, logic, Message("T", b"x"))
        await asyncio.sleep(0.02)
        assert remoting.under_way == 8
        remoting.open.set()
        await accumulator.flush()
        assert len(remoting.asked) == 20

    run(body, batch_count=1)


def test_a_full_buffer_refuses_until_an_answer_came() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        accepted = 0
        while accumulator.append(Message("T", b"x" * 300)) is not None:
            accepted += 1
        assert 2 <= accepted <= 3
        waiting = asyncio.create_task(accumulator.append_when_room(Message("T", b"x" * 300)))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        remoting.open.set()
        assert (await (await waiting)).offset == 7
        await accumulator.flush()

    run(body, buffer_bytes=1200, batch_bytes=500)


def test_a_delayed_message_leaves_alone() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        await append(accumulator, logic, Message("T", b"x"))
        await append(accumulator, logic, Message("T", b"later", delay_level=3))
        await append(accumulator, logic, Message("T", b"y"))
        await accumulator.flush()
        assert sorted(request.code for _, request in remoting.asked) == [310, 320]

    run(body)


def test_a_refusal_reaches_every_future_of_the_batch() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.serve = lambda address, request: RemotingCommand.response(request, 13, "illegal")
        remoting.open.set()
        futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(2)]
        for future in futures:
            with pytest.raises(MessageRefused):
                await future
            assert isinstance(future.exception(), MessageRefused)

    run(body)


def test_result_must_not_block_the_loop() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        future = await append(accumulator, logic, Message("T", b"x"))
        with pytest.raises(ConfigError, match="await"):
            future.result()
        remoting.open.set()
        await future
        assert future.result().msg_id == future.msg_id

    run(body)


def test_callbacks_run_once_whenever_they_are_added() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        called: list[str] = []
        future = await append(accumulator, logic, Message("T", b"x"))
        future.add_done_callback(lambda done: called.append(done.msg_id))
        remoting.open.set()
        await future
        future.add_done_callback(lambda done: called.append("late"))
        assert called == [future.msg_id, "late"]

    run(body)


def test_threads_append_wait_for_room_and_for_results() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        futures: list[SendFuture] = []

        def work() -> None:
            for i in range(500):
                future = accumulator.append(Message("T", f"{i}" * 10), wait=True)
                assert future is not None
                futures.append(future)
            futures[-1].result(5)

        remoting.open.set()
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        await accumulator.flush()
        assert len(futures) == 1500
        assert all(future.done() and future.exception() is None for future in futures)

    run(body, buffer_bytes=4096, batch_bytes=1024)


def test_a_thread_waits_at_most_its_timeout() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        future = await append(accumulator, logic, Message("T", b"x"))
        with pytest.raises(RequestTimeout):
            await asyncio.to_thread(future.result, 0.01)
        remoting.open.set()
        await accumulator.flush()

    run(body)


def test_close_sends_what_waits_and_refuses_more() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        future = await append(accumulator, logic, Message("T", b"x"))
        await accumulator.close()
        assert future.result().offset == 7
        with pytest.raises(ClientClosed):
            await append(accumulator, logic, Message("T", b"y"))

    run(body, linger=60.0)


def test_a_given_queue_is_kept() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        queue = MessageQueue("T", "a", 2)
        future = accumulator.append(Message("T", b"x"), queue)
        assert future is not None
        assert (await future).queue == queue

    run(body)


class Silent(Gate):
    """Two brokers, of which ``a`` does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.routes["T"] = route("a", "b")

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if address != "a:1":
            return await FakeRemoting.invoke(self, address, command, timeout)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            async with asyncio.timeout(timeout):
                await self.open.wait()
        except TimeoutError:
            raise RequestTimeout(f"SEND_MESSAGE_V2 at {address}: no answer within {timeout:g} s") from None
        finally:
            self.under_way -= 1
        return await FakeRemoting.invoke(self, address, command, timeout)


async def settled(future: SendFuture) -> None:
    """Wait for the outcome without asking what it is."""
    event = asyncio.Event()
    future.add_done_callback(lambda _: event.set())
    await event.wait()


class SilentAlone(Silent):
    """One broker, which does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.routes["T"] = route("a", queues=1)


def test_a_failure_of_any_kind_is_the_outcome() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        def broken(*_: object, **__: object) -> bytes:
            raise OverflowError("too large")

        remoting.open.set()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rocketcore.client.delivery.encode_batch", broken)
            futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(3)]
            with pytest.raises(OverflowError):
                await futures[0]
        assert [type(future.exception()) for future in futures] == [OverflowError] * 3
        assert "failed" in repr(futures[0])
        assert not remoting.asked

    run(body)


@pytest.mark.parametrize("stop", [SystemExit(3), KeyboardInterrupt()])
def test_a_hook_or_selector_that_ends_the_program_ends_no_other_send(stop: BaseException) -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        outcomes: list[BaseException | None] = [stop, None]

        def serve(address: str, request: RemotingCommand) -> Outcome:
            failure = outcomes.pop(0)
            if failure is not None:
                raise failure
            return stored(request)

        remoting.serve = serve
        first = await append(accumulator, logic, Message("T", b"x"))
        await settled(first)
        assert type(first.exception()) is type(stop)
        assert (await (await append(accumulator, logic, Message("T", b"y")))).offset == 7

    run(body)


def test_a_broker_that_is_silent_holds_up_no_other() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        await logic.publisher("T")
        to_silent, to_other = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
        stuck = []
        for number in range(40):
            future = accumulator.append(Message("T", b"x"), MessageQueue("T", "a", number % 2))
            assert future is not None
            stuck.append(future)
            await asyncio.sleep(0)
        future = accumulator.append(Message("T", b"x"), to_other)
        assert future is not None
        assert (await future).queue == to_other
        for _ in range(20):  # those whose queues take turns go where there is room
            assert (await (await append(accumulator, logic, Message("T", b"y", delay_level=1)))).queue.broker
            if remoting.under_way == 8:
                break
        assert remoting.under_way <= 8
        assert not any(future.done() for future in stuck)
        remoting.open.set()
        assert {(await future).queue.broker for future in stuck} == {to_silent.broker}

    run(body, make=Silent, batch_count=1, timeout=0.2)


def test_a_message_whose_broker_is_silent_is_sent_to_another() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(4)]
        assert {(await future).queue.broker for future in futures} == {"b"}

    run(body, make=Silent, timeout=0.05, batch_count=1)


def refused(address: str, request: RemotingCommand) -> Outcome:
    return ConnectError(f"SEND_MESSAGE_V2 at {address}: Connection refused")


def test_a_broker_that_comes_back_in_time_gets_what_was_sent_meanwhile() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        attempts = 0

        def serve(address: str, request: RemotingCommand) -> Outcome:
            nonlocal attempts
            attempts += 1
            return refused(address, request) if attempts <= 6 else stored(request)

        remoting.serve = serve
        await logic.publisher("T")
        futures = [await append(accumulator, logic, Message("T", f"{i}", message_group="g")) for i in range(3)]
        await accumulator.flush()
        assert [(await future).queue for future in futures] == [futures[0].result().queue] * 3
        assert attempts == 7

    run(body)


def test_what_fails_is_told_once_by_whoever_asks_first(caplog: pytest.LogCaptureFixture) -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        remoting.serve = refused
        said = r"send to topic 'T': \d+ attempts?: a \(a:1\) Connection refused"
        futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(5)]
        with pytest.raises(ConnectError, match=said):
            await futures[0]
        assert futures[1].exception() is not None
        with pytest.raises(SendsFailed, match=rf"3 messages of send_nowait not sent, the first: {said}") as told:
            await accumulator.flush()
        assert (told.value.count, type(told.value.first)) == (3, ConnectError)
        futures[2].exception()
        await accumulator.flush()
        await append(accumulator, logic, Message("T", b"y"))
        with pytest.raises(SendsFailed, match="1 message of"):
            await accumulator.close()
        assert [record.levelname for record in caplog.records if "not sent" in record.message] == ["WARNING"]

    run(body, delivery_timeout=0.1)


def test_time_is_counted_from_the_append() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        await logic.publisher("T")
        messages = [Message("T", f"{i}", message_group="g") for i in range(20)]
        futures = [await append(accumulator, logic, message) for message in messages]
        with pytest.raises(SendsFailed, match="20 messages"):
            await accumulator.flush()
        assert all(isinstance(future.exception(), RequestTimeout) for future in futures)
        assert "what was sent before has not been answered" in str(futures[-1].exception())
        assert remoting.most_under_way == 1  # it is not answered: the others never have their turn
        assert len(accumulator._pending) == accumulator._bytes == 0

    run(body, make=SilentAlone, batch_count=1, delivery_timeout=0.1)


def test_a_topic_without_a_route_fails_in_time() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        with pytest.raises(RouteNotFound, match="'Nowhere'"):
            await (await append(accumulator, logic, Message("Nowhere", b"x")))
        with pytest.raises(RouteNotFound, match="'Nowhere'"):
            await (await append(accumulator, logic, Message("Nowhere", b"x", message_group="g")))
        assert accumulator._unrouted == set()
        assert accumulator._backlogs == {}

    run(body)


def test_messages_keep_their_order_while_their_queue_is_not_known() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        futures = [await append(accumulator, logic, Message("T", f"{i:02}", message_group="g")) for i in range(3)]
        await asyncio.sleep(0)
        futures += [await append(accumulator, logic, Message("T", f"{i:02}", message_group="g")) for i in range(3, 6)]
        await accumulator.flush()
        assert len({future.result().queue for future in futures}) == 1
        sent = b"".join(request.body for _, request in remoting.asked)
        positions = [sent.index(f"{i:02}".encode()) for i in range(6)]
        assert positions == sorted(positions)
        with pytest.raises(RouteNotFound, match="queue_id=9"):
            accumulator.append(Message("T", b"x"), MessageQueue("T", "a", 9))

    run(body)


def test_a_queue_that_is_away_for_a_while_gets_its_messages() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        remoting.routes["T"] = route("a", "b")
        await logic.publisher("T")
        queue = MessageQueue("T", "b", 1)
        future = accumulator.append(Message("T", b"x"), queue)
        assert future is not None
        logic.instance.routes.update("T", route("a"))
        assert (await future).queue == queue

    run(body)


def test_a_message_alone_does_not_linger() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        for _ in range(3):
            assert (await (await append(accumulator, logic, Message("T", b"x")))).offset == 7

    run(body, linger=60.0)


def test_messages_behind_others_leave_together_when_those_are_answered() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        first = await append(accumulator, logic, Message("T", b"x"))
        await remoting.begun.wait()
        others = [await append(accumulator, logic, Message("T", b"y")) for _ in range(10)]
        await asyncio.sleep(0)
        assert remoting.under_way == 1
        remoting.open.set()
        await asyncio.gather(first, *others)
        assert [request.code for _, request in remoting.asked] == [310, 320]

    run(body, linger=60.0)


def test_a_future_is_asked_as_others_are() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(2)]
        assert [futures[0].cancel(), futures[0].cancelled(), futures[0].running()] == [False, False, True]
        views = [future.to_future() for future in futures]
        assert not concurrent.futures.wait(views, timeout=0).done
        remoting.open.set()
        assert (await asyncio.wrap_future(views[0])).offset == 7
        done, _ = await asyncio.wait([asyncio.ensure_future(future) for future in futures])
        assert len(done) == 2
        assert list(concurrent.futures.as_completed(views, timeout=5))
        assert [futures[0].cancel(), futures[0].cancelled(), futures[0].running()] == [False, False, False]

    run(body)


def test_each_who_asks_gets_an_error_of_his_own() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        remoting.serve = lambda address, request: RemotingCommand.response(request, 13, "illegal")
        futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(2)]
        await settled(futures[0])
        errors, depths = [], []
        for future in (futures[0], futures[1], futures[0]):
            try:
                future.result()
            except MessageRefused as error:
                errors.append(error)
                depths.append(len(traceback.extract_tb(error.__traceback__)))
        assert len({id(error) for error in errors}) == 3
        assert len(set(depths)) == 1
        assert str(errors[0]) == "send to topic 'T' (1 attempt) to a at a:1: MESSAGE_ILLEGAL (13): illegal"

    run(body)


def test_a_callback_may_send_though_the_buffer_is_full_and_never_without_end() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        refused: list[Exception] = []
        again: list[SendFuture] = []

        def resend(_: SendFuture) -> None:
            try:
                while len(again) < 1000:
                    future = accumulator.append(Message("T", b"x" * 300), wait=True)
                    assert future is not None
                    again.append(future)
            except Overloaded as error:
                refused.append(error)

        first = await append(accumulator, logic, Message("T", b"x" * 300))
        first.add_done_callback(resend)
        remoting.open.set()
        await first
        assert len(refused) == 1
        assert "buffer_bytes allows 1200" in str(refused[0])
        assert 6 <= len(again) <= 8
        await accumulator.flush()
        assert all(future.result() for future in again)

    run(body, buffer_bytes=1200, batch_bytes=500)


def test_a_callback_that_exits_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        called: list[int] = []
        futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(3)]
        futures[0].add_done_callback(lambda done: sys.exit(3))
        for number in range(3):
            futures[number].add_done_callback(lambda done, number=number: called.append(number))  # type: ignore[misc]
        remoting.open.set()
        await accumulator.flush()
        assert called == [0, 1, 2]
        assert "callback failed" in caplog.text

    run(body)


def test_close_waits_no_longer_than_it_may() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(30)]
        with pytest.raises(SendsFailed, match="30 messages"):
            await accumulator.close(0.02)
        assert {type(future.exception()) for future in futures} == {ClientClosed}
        assert not accumulator._tasks

    run(body, batch_count=1)


def test_threads_that_wait_for_room_end_with_the_producer_or_the_time() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        def fill() -> Exception | None:
            try:
                while True:
                    accumulator.append(Message("T", b"x" * 300), wait=True)
            except (ClientClosed, Overloaded) as error:
                return error

        filling = asyncio.create_task(asyncio.to_thread(fill))
        await remoting.begun.wait()
        with pytest.raises(SendsFailed):
            await accumulator.close(0.02)
        assert isinstance(await filling, ClientClosed)

    run(body, buffer_bytes=1200, batch_bytes=500)


@pytest.mark.parametrize(
    ("name", "value"), [("flag", 2**40), ("flag", "a"), ("body", 5), ("properties", {"p": "\ud800"})]
)
def test_a_message_that_cannot_be_sent_is_refused_before_it_joins_a_batch(name: str, value: object) -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        remoting.open.set()
        good = [await append(accumulator, logic, Message("T", b"x")) for _ in range(3)]
        bad = Message("T", b"x")
        setattr(bad, name, value)
        with pytest.raises((MessageIllegal, TypeError)):
            accumulator.append(bad)
        good.append(await append(accumulator, logic, Message("T", b"x")))
        assert [(await future).offset for future in good] == [7, 8, 9, 10]

    run(body)


class Turns(Gate):
    """One broker with nine queues; each send is answered when it has its turn."""

    def __init__(self) -> None:
        super().__init__(queues=9)
        self.turns = asyncio.Semaphore(0)

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            await self.turns.acquire()
        return await FakeRemoting.invoke(self, address, command, timeout)


def test_a_queue_that_gave_up_once_has_its_turn_again() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        assert isinstance(remoting, Turns)
        await logic.publisher("T")

        def send(number: int) -> SendFuture:
            future = accumulator.append(Message("T", b"x"), MessageQueue("T", "a", number))
            assert future is not None
            return future

        stuck = [send(number) for number in range(8)]  # all that the broker may have under way
        late = send(8)
        await settled(late)
        again, behind = send(8), send(8)
        remoting.turns.release()
        await settled(behind)
        for _ in range(8):
            remoting.turns.release()
        assert {(await future).queue.broker for future in (*stuck, again)} == {"a"}
        assert {type(future.exception()) for future in (late, behind)} == {RequestTimeout}
        await accumulator.flush()
        assert accumulator._backlogs == {}

    run(body, make=Turns, batch_count=1, delivery_timeout=0.1)


def test_a_silent_broker_does_not_take_the_whole_buffer() -> None:
    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        await logic.publisher("T")
        to_silent, to_other = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
        stuck = []
        while (future := accumulator.append(Message("T", b"x" * 300), to_silent)) is not None:
            stuck.append(future)
        assert len(stuck) > 20
        for _ in range(20):  # one after the other, also where it takes several turns
            future = accumulator.append(Message("T", b"y" * 300), to_other)
            assert future is not None
            assert (await future).queue == to_other
        assert not any(future.done() for future in stuck)
        remoting.open.set()
        assert {(await future).queue for future in stuck} == {to_silent}
        assert accumulator._bytes == accumulator._coming_bytes == 0
        assert accumulator._taken == {}

    run(body, make=Silent, buffer_bytes=16 * 1024, batch_bytes=1024)


def test_a_topic_whose_broker_is_silent_leaves_room_for_others() -> None:
    class OneSilent(Silent):
        def __init__(self) -> None:
            super().__init__()
            self.routes = {"T": route("a"), "U": route("a"), "V": route("b")}

    async def body(remoting: Gate, logic: Sender, accumulator: Accumulator) -> None:
        for topic in ("T", "U"):
            while accumulator.append(Message(topic, b"x" * 300)) is not None:
                pass
        for _ in range(20):
            future = accumulator.append(Message("V", b"y" * 300))
            assert future is not None
            assert (await future).queue.topic == "V"
        with pytest.raises(SendsFailed):
            await accumulator.close(0.0)

    run(body, make=OneSilent, buffer_bytes=16 * 1024, batch_bytes=1024)
