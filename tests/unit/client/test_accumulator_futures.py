"""Automatic batches: futures and callbacks of what was appended, threads that wait for room, the close."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
import traceback

import pytest

from rocketcore.client.accumulator import Accumulator
from rocketcore.client.future import SendFuture
from rocketcore.client.sender import Sender
from rocketcore.errors import (
    ClientClosed,
    ConfigError,
    ConnectError,
    MessageRefused,
    Overloaded,
    RequestTimeout,
    SendsFailed,
)
from rocketcore.message import Message
from rocketcore.protocol.command import RemotingCommand
from tests.unit.client.batches import Gate, append, refused, run, settled


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
