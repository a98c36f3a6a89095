"""Brokers that answer batches when a test lets them, and an accumulator before them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rocketcore.client.accumulator import Accumulator
from rocketcore.client.config import ProducerConfig
from rocketcore.client.future import SendFuture
from rocketcore.client.instance import ClientInstance
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.sender import Sender
from rocketcore.codes import RequestCode
from rocketcore.errors import (
    ConnectError,
)
from rocketcore.message import Message
from rocketcore.protocol.command import RemotingCommand
from tests.unit.client.fakes import FakeRemoting, Outcome, route


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


async def settled(future: SendFuture) -> None:
    """Wait for the outcome without asking what it is."""
    event = asyncio.Event()
    future.add_done_callback(lambda _: event.set())
    await event.wait()


def refused(address: str, request: RemotingCommand) -> Outcome:
    return ConnectError(f"SEND_MESSAGE_V2 at {address}: Connection refused")
