"""Handing messages out and collecting results."""

from __future__ import annotations

import asyncio
import functools
import queue
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from rocketcore.client.consume_service import CHUNK_MAX
from rocketcore.errors import ConfigError
from rocketcore.message import ConsumeResult, MessageQueue, ReceivedMessage, RetryLater
from rocketcore.protocol.bodies.client import CMResult
from tests.unit.client.consuming import Harness, run


def test_functions_run_on_threads_coroutines_on_the_loop() -> None:
    async def body() -> None:
        harness = Harness()
        threads: set[int] = set()
        harness.service.set_handler("T", lambda message: threads.add(threading.get_ident()))
        harness.fill(5)
        await harness.wait(5)
        assert threading.get_ident() not in threads

        async def handle(message: ReceivedMessage) -> None:
            threads.clear()
            threads.add(threading.get_ident())

        harness.service.set_handler("T", handle)
        harness.fill(5)
        await harness.wait(10)
        assert threads == {threading.get_ident()}
        await harness.service.stop()

    run(body)


def test_what_a_handler_returns_or_raises_is_the_result(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        harness = Harness()

        def handle(message: ReceivedMessage) -> ConsumeResult | None:
            match message.text():
                case "0":
                    return None
                case "1":
                    return ConsumeResult.RETRY
                case "2":
                    raise RetryLater(delay=7)
                case _:
                    raise ValueError("broken")

        harness.service.set_handler("T", handle)
        harness.fill(4)
        await harness.wait(4)
        assert {result[0].text(): result[1:] for result in harness.results} == {
            "0": (ConsumeResult.SUCCESS, None),
            "1": (ConsumeResult.RETRY, None),
            "2": (ConsumeResult.RETRY, 7),
            "3": (ConsumeResult.RETRY, None),
        }
        await harness.service.stop()

    run(body)
    assert [record.exc_info is not None for record in caplog.records if "handler failed" in record.message] == [True]


@pytest.mark.parametrize("on_loop", [False, True])
@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_a_handler_that_wants_to_end_more_than_itself_ends_no_worker(
    end: type[BaseException], on_loop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        harness = Harness(capacity=2)

        def handle(message: ReceivedMessage) -> None:
            if int(message.text()) < 5:
                raise end

        async def handle_on_loop(message: ReceivedMessage) -> None:
            handle(message)

        harness.service.set_handler("T", handle_on_loop if on_loop else handle)
        harness.fill(20)
        await harness.wait(20)
        retried = {int(message.text()) for message, result, _ in harness.results if result is ConsumeResult.RETRY}
        assert retried == set(range(5))
        assert await harness.service.drain(5)
        await harness.service.stop()

    # as the blocking consumers run it: a Ctrl-C would come to the main thread
    failures: list[BaseException] = []

    def main() -> None:
        try:
            run(body)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert not failures
    told = [record for record in caplog.records if "handler failed" in record.message]
    assert [record.levelname for record in told] == ["ERROR"] * 5
    assert end.__name__ in told[0].message


class AsyncObject:
    """A handler that is an object."""

    def __init__(self, handle: Callable[[ReceivedMessage], Awaitable[Any]]) -> None:
        self._handle = handle

    async def __call__(self, message: ReceivedMessage) -> Any:
        return await self._handle(message)


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that knows nothing of coroutines."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call


@pytest.mark.parametrize(
    "declare",
    [
        AsyncObject,
        logged,
        functools.partial,
        lambda handle: functools.partial(AsyncObject(handle)),
        lambda handle: lambda message: handle(message),
        lambda handle: AsyncObject(handle).__call__,
    ],
)
def test_what_a_handler_returns_is_awaited_however_it_is_declared(declare: Callable[..., Any]) -> None:
    async def body() -> None:
        harness = Harness(capacity=2)
        loop, handled, running, most = asyncio.get_running_loop(), [], 0, 0

        async def handle(message: ReceivedMessage) -> ConsumeResult | None:
            nonlocal running, most
            assert asyncio.get_running_loop() is loop
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            handled.append(message.text())
            match message.text():
                case "1":
                    raise RetryLater(delay=3)
                case "2":
                    return ConsumeResult.RETRY
                case "3":
                    sys.exit(1)
            return None

        harness.service.set_handler("T", declare(handle))
        harness.fill(10)
        await harness.wait(10)
        assert sorted(handled) == [f"{i}" for i in range(10)]
        assert most <= 2
        failed = {message.text(): delay for message, result, delay in harness.results if result is ConsumeResult.RETRY}
        assert failed == {"1": 3, "2": None, "3": None}
        assert await harness.service.drain(5)
        await harness.service.stop()

    run(body)


def test_a_delay_that_is_none_is_refused_where_it_is_given() -> None:
    async def body() -> None:
        harness = Harness(capacity=1)
        wrong: Any = "soon"

        def handle(message: ReceivedMessage) -> None:
            raise RetryLater(wrong)

        harness.service.set_handler("T", handle)
        harness.fill(10)
        await harness.wait(10)
        assert {result[1:] for result in harness.results} == {(ConsumeResult.RETRY, None)}
        harness.service.set_handler("T", None)
        harness.fill(2)
        first, second = await harness.service.take(2)
        with pytest.raises(ConfigError, match="seconds or a timedelta, got 'soon'"):
            first.retry(wrong)
        second.retry(timedelta(seconds=3))
        assert harness.results[-1][2] == 3
        await harness.service.stop()

    run(body)


def test_handlers_that_never_return_are_replaced_and_what_they_did_before_counts() -> None:
    async def body() -> None:
        harness = Harness(capacity=1)
        hang, release = threading.Event(), threading.Event()

        def handle(message: ReceivedMessage) -> None:
            if message.text() == "hang":
                hang.set()
                release.wait(10)

        harness.service.set_handler("T", handle)
        for _ in range(40):  # until it is known to be quick
            harness.fill(1)
            await harness.wait(harness.process_queues[0].next_offset)
        assert harness.service.chunk_size("T") > 3
        process_queue, done = harness.process_queues[0], len(harness.results)
        messages = [
            ReceivedMessage("T", text, process_queue.queue, process_queue.next_offset + i, "", "")
            for i, text in enumerate((b"before", b"hang", b"after"))
        ]
        process_queue.put(messages, process_queue.next_offset + 3)
        harness.service.arrived(process_queue)
        await asyncio.to_thread(hang.wait)
        harness.service.abandon(messages)
        assert [message.text() for message, *_ in harness.results[done:]] == ["before"]
        harness.fill(20)
        await harness.wait(done + 21)
        assert {message.text() for message, *_ in harness.results}.isdisjoint({"hang", "after"})
        assert await harness.service.drain(5), "one that never returns is not waited for"
        release.set()
        await harness.wait(done + 22)
        harness.fill(5)
        await harness.wait(done + 27)
        assert harness.service._workers._live == 1
        await harness.service.stop()

    run(body)


@pytest.mark.parametrize("on_loop", [False, True])
def test_a_queue_that_always_has_more_leaves_the_others_their_turn(on_loop: bool) -> None:
    async def body() -> None:
        harness = Harness(capacity=2, queues=3)
        handled: list[int] = []

        def handle(message: ReceivedMessage) -> None:
            handled.append(message.queue.queue_id)

        async def handle_on_loop(message: ReceivedMessage) -> None:
            handle(message)

        harness.allowed = False
        for queue_id in range(3):
            harness.fill(200, queue_id)
        harness.allowed = True
        harness.service.set_handler("T", handle_on_loop if on_loop else handle)
        await harness.wait(600)
        longest = max(handled.index(queue_id) for queue_id in range(3))
        assert longest <= 4 * CHUNK_MAX, "the queues are begun one after the other"
        await harness.service.stop()

    run(body)


def test_a_result_that_comes_while_a_message_is_handed_out_holds_nothing_up() -> None:
    """A hook that sees messages on their way to a handler may acknowledge them."""

    async def body() -> None:
        harness = Harness(queues=2)
        handled: list[str] = []

        async def handle(message: ReceivedMessage) -> None:
            handled.append(f"{message.queue.queue_id}/{message.text()}")

        harness.service.set_handler("T", handle)
        harness.service._handed = lambda messages: messages[0].ack()
        for queue_id in (0, 1):
            harness.fill(3, queue_id)
        assert await harness.service.drain(5)
        assert sorted(handled) == ["0/0", "0/1", "0/2", "1/0", "1/1", "1/2"]
        await harness.service.stop()

    run(body)


def test_quick_handlers_get_many_messages_at_a_time_slow_ones_one() -> None:
    async def body() -> None:
        harness = Harness(capacity=1)
        harness.service.set_handler("T", lambda message: None)
        for _ in range(60):
            harness.fill(40)
            await asyncio.sleep(0)
        await harness.wait(2400)
        assert harness.service.chunk_size("T") == CHUNK_MAX
        harness.service.set_handler("U", lambda message: time.sleep(0.005))
        harness.fill(10, topic="U")
        await harness.wait(2410)
        assert harness.service.chunk_size("U") == 1
        await harness.service.stop()

    run(body)


def test_coroutine_handlers_are_bounded_too() -> None:
    async def body() -> None:
        harness = Harness(capacity=3)
        running, most = 0, 0

        async def handle(message: ReceivedMessage) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1

        harness.service.set_handler("T", handle)
        harness.fill(30)
        await harness.wait(30)
        assert most == 3
        await harness.service.stop()

    run(body)


def test_a_queue_that_may_not_be_worked_on_is_left_alone() -> None:
    async def body() -> None:
        harness = Harness()
        harness.allowed = False
        harness.service.set_handler("T", lambda message: None)
        harness.fill(3)
        await asyncio.sleep(0.02)
        assert not harness.results
        harness.allowed = True
        harness.service.arrived(harness.process_queues[0])
        await harness.wait(3)
        await harness.service.stop()

    run(body)


def test_messages_without_a_handler_wait_for_iteration_queues_in_turn() -> None:
    async def body() -> None:
        harness = Harness(queues=2)
        waiting = asyncio.create_task(harness.service.take(2))
        await asyncio.sleep(0)
        harness.fill(4, 0)
        harness.fill(4, 1)
        taken = [await waiting, *[await harness.service.take(2) for _ in range(3)]]
        assert [[message.queue.queue_id for message in messages] for messages in taken] == [
            [0, 0],
            [1, 1],
            [0, 0],
            [1, 1],
        ]
        for messages in taken:
            for message in messages:
                message.ack()
        assert len(harness.results) == 8
        last = asyncio.create_task(harness.service.take(1))
        await asyncio.sleep(0)
        harness.service.stop_feeding()
        assert await last == []
        await harness.service.stop()

    run(body)


def test_a_handler_that_comes_late_gets_what_waits() -> None:
    async def body() -> None:
        harness = Harness()
        harness.fill(3)
        harness.service.set_handler("T", lambda message: None)
        await harness.wait(3)
        await harness.service.stop()

    run(body)


def test_results_of_other_threads_arrive_on_the_loop() -> None:
    async def body() -> None:
        harness = Harness()
        harness.fill(50)
        messages = await harness.service.take(50)

        def acknowledge() -> None:
            for message in messages:
                message.ack()

        await asyncio.to_thread(acknowledge)
        await harness.wait(50)
        await harness.service.stop()

    run(body)


def test_a_stop_ends_every_thread_though_one_ends_before_the_next_is_told() -> None:
    async def body() -> None:
        harness = Harness(capacity=3)
        workers = harness.service._workers
        ended = threading.Event()

        class Threads(set[threading.Thread]):
            def discard(self, thread: Any) -> None:
                super().discard(thread)
                ended.set()

        class Jobs(queue.SimpleQueue[Any]):
            def put(self, job: Any, block: bool = True, timeout: float | None = None) -> None:
                super().put(job)
                if job is None:
                    assert ended.wait(5)
                    ended.clear()

        workers._jobs, workers._threads = Jobs(), Threads()
        together = threading.Barrier(3)  # each thread has one message

        def handle(message: ReceivedMessage) -> None:
            together.wait(5)

        harness.service.set_handler("T", handle)
        harness.fill(3)
        await harness.wait(3)
        assert len(workers._threads) == 3
        await harness.service.stop()
        assert not workers._threads

    run(body)


def test_messages_of_a_queue_that_was_given_up_are_not_handled() -> None:
    async def body() -> None:
        harness = Harness(capacity=1)
        release, handled = threading.Event(), []

        def handle(message: ReceivedMessage) -> None:
            release.wait(5)
            handled.append(message.text())

        harness.service.set_handler("T", handle)
        harness.fill(10)
        await asyncio.sleep(0.02)
        harness.process_queues[0].dropped = True
        release.set()
        assert await harness.service.drain(5)
        assert handled == ["0"]
        await harness.service.stop()

    run(body)


def test_drain_says_when_handlers_do_not_end() -> None:
    async def body() -> None:
        harness = Harness()
        release = threading.Event()
        harness.service.set_handler("T", lambda message: release.wait(5))  # type: ignore[arg-type, return-value]
        harness.fill(1)
        assert not await harness.service.drain(0.02)
        release.set()
        assert await harness.service.drain(5)
        await harness.service.stop()

    run(body)


def test_a_message_on_request_is_handled_apart() -> None:
    async def body() -> None:
        harness = Harness()
        message = ReceivedMessage("T", b"x", MessageQueue("T", "b", 0), 0, "id", "id")

        async def later(received: ReceivedMessage) -> ConsumeResult:
            return ConsumeResult.RETRY

        def raising(received: ReceivedMessage) -> None:
            raise RetryLater(delay=10)

        assert await harness.service.run_once(lambda received: None, message) == (CMResult.CR_SUCCESS, None)
        assert await harness.service.run_once(later, message) == (CMResult.CR_LATER, None)
        assert await harness.service.run_once(raising, message) == (CMResult.CR_LATER, None)
        result, remark = await harness.service.run_once(lambda received: 1 / 0, message)  # type: ignore[arg-type, return-value]
        assert (result, remark) == (CMResult.CR_THROW_EXCEPTION, "ZeroDivisionError: division by zero")
        assert await harness.service.run_once(lambda received: sys.exit(3), message) == (
            CMResult.CR_THROW_EXCEPTION,
            "SystemExit: 3",
        )
        assert await harness.service.run_once(lambda received: later(received), message) == (CMResult.CR_LATER, None)
        await harness.service.stop()

    run(body)


@pytest.mark.parametrize("dropped", [False, True])
def test_a_stop_leaves_no_hole_behind_what_was_handled(dropped: bool) -> None:
    """What has begun is handled to its end, also of a queue that its consumer gives up as it stops: one message that is
    left out keeps the group's offset back, and all behind it come again.
    """

    async def body() -> None:
        harness = Harness(capacity=2)
        begun, go_on = threading.Semaphore(0), threading.Event()

        def handle(message: ReceivedMessage) -> None:
            begun.release()
            go_on.wait(30)

        harness.service.set_handler("T", handle)
        harness.service._handler_seconds["T"] = 1e-9  # as quick as can be: each thread gets many at a time
        harness.fill(10 * CHUNK_MAX)
        for _ in range(2):
            await asyncio.to_thread(begun.acquire)
        harness.service.stop_feeding()
        harness.process_queues[0].dropped = dropped
        go_on.set()
        assert await harness.service.drain(30)
        await harness.service.stop()
        assert sorted(message.offset for message, _, _ in harness.results) == list(range(2 * CHUNK_MAX))

    run(body)
