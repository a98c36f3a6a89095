"""Handing messages out in the order of their queues."""

from __future__ import annotations

import functools
import threading
import time

import pytest

from rocketcore.client.handler import HandlerResult
from rocketcore.client.process_queue import ProcessQueue
from rocketcore.message import ConsumeResult, ReceivedMessage
from tests.unit.client.consuming import Harness, run


def test_in_order_one_message_of_a_queue_is_out_at_a_time() -> None:
    async def body() -> None:
        harness = Harness(ordered=True, queues=2)
        handled: dict[int, list[str]] = {0: [], 1: []}
        working: set[int] = set()

        def handle(message: ReceivedMessage) -> None:
            assert message.queue.queue_id not in working
            working.add(message.queue.queue_id)
            time.sleep(0.001)
            handled[message.queue.queue_id].append(message.text())
            working.discard(message.queue.queue_id)

        harness.service.set_handler("T", handle)
        for queue_id in (0, 1):
            harness.fill(20, queue_id)
        await harness.wait(40)
        assert all(result[1] is ConsumeResult.SUCCESS for result in harness.results)
        assert handled == {queue_id: [f"{i}" for i in range(20)] for queue_id in (0, 1)}
        await harness.service.stop()

    run(body)


def test_in_order_what_lies_behind_a_failure_waits_for_its_turn() -> None:
    async def body() -> None:
        harness = Harness(ordered=True, capacity=2, queues=2)
        taken: list[int] = []
        handled: dict[int, list[int]] = {0: [], 1: []}
        failed: set[tuple[int, int]] = set()

        def process_result(result: HandlerResult) -> None:
            """As a push consumer does: what failed is tried again in its place."""
            process_queue = harness.process_queues[result[0].queue.queue_id]
            if result[1] is ConsumeResult.SUCCESS:
                harness.process_result(result)
            else:
                process_queue.give_back([result[0]])

        def handle(message: ReceivedMessage) -> ConsumeResult:
            place = message.queue.queue_id, message.offset
            handled[place[0]].append(message.offset)
            if message.offset % 9 == 5 and place not in failed:
                failed.add(place)
                return ConsumeResult.RETRY
            return ConsumeResult.SUCCESS

        def take(process_queue: ProcessQueue, limit: int) -> list[ReceivedMessage]:
            messages = ProcessQueue.take(process_queue, limit)
            taken.append(len(messages))
            return messages

        for process_queue in harness.process_queues:
            process_queue.take = functools.partial(take, process_queue)  # type: ignore[method-assign]
        harness.service._process_result = process_result
        harness.service.set_handler("T", handle)
        for queue_id in (0, 1):
            harness.fill(900, queue_id)
        await harness.wait(1800)
        twice = [offset for offset in range(900) for _ in range(2 if offset % 9 == 5 else 1)]
        assert handled == {0: twice, 1: twice}
        assert max(taken) > 8, "one hand-over for many"
        await harness.service.stop()

    run(body)


@pytest.mark.parametrize("end", ["not allowed", "stopped"])
def test_in_order_a_thread_takes_the_next_only_while_it_may(end: str) -> None:
    async def body() -> None:
        harness = Harness(ordered=True, capacity=1)
        handled: list[int] = []
        enough = threading.Event()

        def handle(message: ReceivedMessage) -> None:
            handled.append(message.offset)
            if len(handled) > 200 and not enough.is_set():
                harness.allowed = end != "not allowed"
                if end == "stopped":
                    harness.service._stopped = True
                enough.set()

        harness.service.set_handler("T", handle)
        harness.fill(1000)
        await harness.wait(201)
        assert await harness.service.drain(5)
        assert handled == list(range(201))
        assert (harness.process_queues[0].handed_count, harness.process_queues[0].waiting_count) == (0, 799)
        harness.allowed = True
        harness.service._stopped = False
        harness.service.feed()
        await harness.wait(1000)
        assert handled == list(range(1000))
        await harness.service.stop()

    run(body)
