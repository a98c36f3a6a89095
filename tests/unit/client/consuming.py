"""A consume service over queues that tests fill."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rocketcore.client.consume_service import ConsumeService
from rocketcore.client.handler import HandlerResult
from rocketcore.client.process_queue import ProcessQueue
from rocketcore.message import MessageQueue, ReceivedMessage


class Harness:
    """A service over one or more process queues; a result takes its message out as a push consumer would."""

    def __init__(self, *, capacity: int = 4, ordered: bool = False, queues: int = 1) -> None:
        self.process_queues = [ProcessQueue(MessageQueue("T", "b", number), 0) for number in range(queues)]
        self.results: list[HandlerResult] = []
        self.changed = asyncio.Event()
        self.allowed = True
        self.service = ConsumeService(
            "G", capacity, self.process_result, ordered=ordered, consumable=lambda process_queue: self.allowed
        )

    def process_result(self, result: HandlerResult) -> None:
        message = result[0]
        self.process_queues[message.queue.queue_id].remove(message)
        self.results.append(result)
        self.changed.set()

    def fill(self, count: int, queue_id: int = 0, topic: str = "T") -> None:
        process_queue = self.process_queues[queue_id]
        start = process_queue.next_offset
        messages = [
            ReceivedMessage(
                topic,
                f"{offset}".encode(),
                process_queue.queue,
                offset,
                f"{offset}",
                f"{offset}",
                _take_result=self.service.take_result,
            )
            for offset in range(start, start + count)
        ]
        process_queue.put(messages, start + count)
        self.service.arrived(process_queue)

    async def wait(self, count: int) -> None:
        while len(self.results) < count:
            self.changed.clear()
            await self.changed.wait()


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await body()

    asyncio.run(main())
