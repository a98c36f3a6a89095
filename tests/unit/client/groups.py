"""A broker that has a group's members and offsets, and consumers that are told of it without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rocketcore.broker.state.queue_locks import QueueLocks
from rocketcore.client.push import PushConsumer
from rocketcore.client.serving import serve_broker_requests
from rocketcore.codes import RequestCode
from rocketcore.errors import ConnectError, RequestTimeout
from rocketcore.protocol.bodies.client import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.schema import Header
from rocketcore.transport.routes import Routes
from tests.reference.routes import Rows
from tests.unit.client.fakes import FakeRemoting, Outcome, route


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await body()

    asyncio.run(main())


async def start(consumer: PushConsumer) -> None:
    """Start a consumer that finds no cluster."""
    await consumer.start()
    consumer.instance.remoting = FakeRemoting({})


class Channel:
    """A connection to a broker."""

    def __init__(self, address: str = "a:1") -> None:
        self.remote_address = address


class Connections(Rows):
    """Knows the channels of this test by what they were made to."""

    def address_of(self, channel: Channel) -> str | None:
        return channel.remote_address or None


def answering(consumer: PushConsumer) -> Callable[[Channel, RemotingCommand], Any]:
    """Return what answers a broker's request."""
    connections: Any = Connections(Routes())
    serve_broker_requests(connections, consumer)
    return lambda channel, request: connections.table[request.code].serve(channel, request)


def ask(code: RequestCode, header: Header, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand.request(code, header, body)


STORE, LIST = RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.GET_CONSUMER_LIST_BY_GROUP


class LockingBrokers(FakeRemoting):
    """Brokers that lock queues and store offsets, as late as a test wants; nothing can be pulled from them."""

    def __init__(self, *names: str) -> None:
        super().__init__({"T": route(*names)}, self._serve)
        self.locks = QueueLocks()
        self.asked_to_lock: list[str] = []
        self.silent: set[str] = set()
        self.locking = asyncio.Event()
        self.may_lock = asyncio.Event()
        self.listing = asyncio.Event()
        self.storing = asyncio.Event()
        self.may_store = asyncio.Event()
        self.may_store.set()

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if command.code == RequestCode.LOCK_BATCH_MQ:
            self.asked_to_lock.append(address)
            self.locking.set()
            await self.may_lock.wait()
        if command.code == STORE:
            self.storing.set()
            await self.may_store.wait()
        answer = await super().invoke(address, command, timeout)
        if command.code == LIST:
            self.listing.set()
        return answer

    def _serve(self, address: str, request: RemotingCommand) -> Outcome:
        match request.code:
            case RequestCode.LOCK_BATCH_MQ if address in self.silent:
                return RequestTimeout("no answer")
            case RequestCode.LOCK_BATCH_MQ:
                asked = LockBatchRequestBody.decode(request.body)
                held = self.locks.lock(asked.consumer_group, asked.mq_set, asked.client_id)
                return RemotingCommand.response(request, body=LockBatchResponseBody(set(held)).encode())
            case RequestCode.UNLOCK_BATCH_MQ:
                left = UnlockBatchRequestBody.decode(request.body)
                self.locks.unlock(left.consumer_group, left.mq_set, left.client_id)
            case RequestCode.PULL_MESSAGE:
                return ConnectError("nothing to pull here")
        return RemotingCommand.response(request)


async def start_with(consumer: PushConsumer, brokers: FakeRemoting) -> None:
    """Start a consumer and let it find a cluster after that; it owns nothing yet."""
    await consumer.start()
    consumer.instance.remoting = brokers
    consumer.instance.routes.update("T", brokers.routes["T"], inherited=False)
