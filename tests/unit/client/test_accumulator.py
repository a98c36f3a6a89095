"""Automatic batches: what leaves together, when, and what becomes of the futures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rocketcore.client.accumulator import Accumulator, SendFuture
from rocketcore.client.config import ProducerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.producer import ProducerLogic
from rocketcore.client.runtime import ASYNCIO
from rocketcore.codes import RequestCode
from rocketcore.errors import ClientClosed, ConfigError, MessageRefused, RequestTimeout
from rocketcore.message import Message, MessageQueue
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers import SendMessageRequestHeaderV2
from tests.unit.client.fakes import FakeRemoting, Outcome, route, stored


class Gate(FakeRemoting):
    """Holds every send until the test opens it."""

    def __init__(self, queues: int = 4) -> None:
        super().__init__({"T": route("a", queues=queues), "U": route("a")})
        self.open = asyncio.Event()
        self.under_way = 0
        self.most_under_way = 0

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            await self.open.wait()
            self.under_way -= 1
        return await super().invoke(address, command, timeout)


Body = Callable[[Gate, ProducerLogic, Accumulator], Awaitable[None]]


def run(body: Body, **settings: Any) -> None:
    async def main() -> None:
        config = ProducerConfig(**{"linger": 0.001, **settings})
        remoting = Gate()
        logic = ProducerLogic(config, ClientInstance(config, remoting, ASYNCIO))
        async with asyncio.timeout(10):
            await body(remoting, logic, Accumulator(logic, config))

    asyncio.run(main())


async def append(accumulator: Accumulator, logic: ProducerLogic, message: Message) -> SendFuture:
    future = accumulator.append(await logic.publisher(message.topic), message, None)
    assert future is not None
    return future


def sizes(remoting: Gate) -> list[tuple[str, int, int]]:
    """Topic, queue and length of each request that was sent."""
    headers = [(request.header(SendMessageRequestHeaderV2), len(request.body)) for _, request in remoting.asked]
    return [(header.topic, header.queue_id, length) for header, length in headers]


def test_messages_of_a_topic_leave_as_one_batch_with_their_own_results() -> None:
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
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
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
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
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
        remoting.open.set()
        futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(4)]
        await asyncio.gather(*futures)
        assert len(remoting.asked) == 2

    run(body, linger=60.0, batch_count=2)


def test_bytes_bound_a_batch() -> None:
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
        remoting.open.set()
        for _ in range(10):
            await append(accumulator, logic, Message("T", b"x" * 400))
        await accumulator.flush()
        assert len(remoting.asked) == 5
        assert max(length for _, _, length in sizes(remoting)) <= 1100

    run(body, batch_bytes=1100)


def test_batches_of_one_queue_leave_one_after_the_other() -> None:
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
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
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
        for _ in range(20):
            await append(accumulator, logic, Message("T", b"x"))
        await asyncio.sleep(0.02)
        assert remoting.under_way == 8
        remoting.open.set()
        await accumulator.flush()
        assert len(remoting.asked) == 20

    run(body, batch_count=1)


def test_a_full_buffer_refuses_until_an_answer_came() -> None:
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
        publisher = await logic.publisher("T")
        accepted = 0
        while accumulator.append(publisher, Message("T", b"x" * 300), None) is not None:
            accepted += 1
        assert 2 <= accepted <= 3
        waiting = asyncio.create_task(accumulator.room())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        remoting.open.set()
        await waiting
        assert accumulator.append(publisher, Message("T", b"x" * 300), None) is not None
        await accumulator.flush()

    run(body, buffer_bytes=1200, batch_bytes=500)


def test_a_delayed_message_leaves_alone() -> None:
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
        remoting.open.set()
        await append(accumulator, logic, Message("T", b"x"))
        await append(accumulator, logic, Message("T", b"later", delay_level=3))
        await append(accumulator, logic, Message("T", b"y"))
        await accumulator.flush()
        assert sorted(request.code for _, request in remoting.asked) == [310, 320]

    run(body)


def test_a_refusal_reaches_every_future_of_the_batch() -> None:
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
        remoting.serve = lambda address, request: RemotingCommand.response(request, 13, "illegal")
        remoting.open.set()
        futures = [await append(accumulator, logic, Message("T", b"x")) for _ in range(2)]
        for future in futures:
            with pytest.raises(MessageRefused):
                await future
            assert isinstance(future.exception(), MessageRefused)

    run(body)


def test_result_must_not_block_the_loop() -> None:
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
        future = await append(accumulator, logic, Message("T", b"x"))
        with pytest.raises(ConfigError, match="await"):
            future.result()
        remoting.open.set()
        await future
        assert future.result().msg_id == future.msg_id

    run(body)


def test_callbacks_run_once_whenever_they_are_added() -> None:
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
        called: list[str] = []
        future = await append(accumulator, logic, Message("T", b"x"))
        future.add_done_callback(lambda done: called.append(done.msg_id))
        remoting.open.set()
        await future
        future.add_done_callback(lambda done: called.append("late"))
        assert called == [future.msg_id, "late"]

    run(body)


def test_threads_append_wait_for_room_and_for_results() -> None:
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
        publisher = await logic.publisher("T")
        futures: list[SendFuture] = []

        def work() -> None:
            for i in range(500):
                future = accumulator.append(publisher, Message("T", f"{i}" * 10), None, wait=True)
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
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
        future = await append(accumulator, logic, Message("T", b"x"))
        with pytest.raises(RequestTimeout):
            await asyncio.to_thread(future.result, 0.01)
        remoting.open.set()
        await accumulator.flush()

    run(body)


def test_close_sends_what_waits_and_refuses_more() -> None:
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
        remoting.open.set()
        future = await append(accumulator, logic, Message("T", b"x"))
        await accumulator.close()
        assert future.result().offset == 7
        with pytest.raises(ClientClosed):
            await append(accumulator, logic, Message("T", b"y"))

    run(body, linger=60.0)


def test_a_given_queue_is_kept() -> None:
    async def body(remoting: Gate, logic: ProducerLogic, accumulator: Accumulator) -> None:
        remoting.open.set()
        queue = MessageQueue("T", "a", 2)
        future = accumulator.append(await logic.publisher("T"), Message("T", b"x"), queue)
        assert future is not None
        assert (await future).queue == queue

    run(body)
