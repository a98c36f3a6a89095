"""The replies of a consumer to the requests that it consumes: sent by a producer inside it, on its loop.

RocketMQ 5.5.0: ``MessageUtil.createReplyMessage``; there the application sends replies with a producer of its own.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import fields
from typing import Final

from rocketcore.client.config import ClientConfig, ConsumerConfig, ProducerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.sender import Sender
from rocketcore.codes import CLIENT_INNER_PRODUCER_GROUP
from rocketcore.errors import BrokerError, ClientClosed, Overloaded
from rocketcore.message import Message, ReplyFuture
from rocketcore.service import Clock
from rocketcore.warning import warn

__all__ = ["Replies"]

logger = logging.getLogger(__name__)

_NOBODY: Final = "push reply message fail, channel of <"
"""What a broker says where the client that asked is gone."""
MOST_UNDER_WAY: Final = 10_000
"""Replies that were handed over and are not sent yet; one more is refused."""


class Replies:
    """Sends replies; ``send`` is for any thread, the rest for the loop."""

    def __init__(
        self, config: ConsumerConfig, instance: ClientInstance, clock: Clock, loop: asyncio.AbstractEventLoop
    ) -> None:
        shared = {each.name: getattr(config, each.name) for each in fields(ClientConfig)}
        self._sender = Sender(ProducerConfig(**shared, group=CLIENT_INNER_PRODUCER_GROUP), instance, clock)
        self._group = config.group
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._futures: set[ReplyFuture] = set()

    def send(self, reply: Message) -> ReplyFuture:
        """Hand a reply over; returns the future of its ``SendResult``, raises Overloaded, ClientClosed."""
        if len(self._futures) >= MOST_UNDER_WAY:
            raise Overloaded(f"consumer of group {self._group!r}: {len(self._futures)} replies are not sent yet")
        future = ReplyFuture(self._loop)
        future.set_running_or_notify_cancel()  # it cannot be taken back
        self._futures.add(future)
        try:
            self._loop.call_soon_threadsafe(self._begin, reply, future)
        except RuntimeError:
            self._futures.discard(future)
            raise ClientClosed("the consumer is closed") from None
        return future

    def _begin(self, reply: Message, future: ReplyFuture) -> None:
        task = self._loop.create_task(self._send(reply, future), name="consumer-reply")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, reply: Message, future: ReplyFuture) -> None:
        try:
            result = await self._sender.send(reply)
        except BaseException as error:
            closed = isinstance(error, asyncio.CancelledError)
            failure = ClientClosed("the consumer was closed before the reply was sent") if closed else error
            if isinstance(error, BrokerError) and _NOBODY in error.remark:
                logger.info("no request waits for this reply any more group=%s topic=%s", self._group, reply.topic)
            else:
                warn(logger, "reply not sent group=%s topic=%s error=%s", self._group, reply.topic, failure)
            future.set_exception(failure)
            if not isinstance(error, Exception):
                raise
        else:
            future.set_result(result)
        finally:
            self._futures.discard(future)

    async def finish(self, timeout: float) -> None:
        """Send what was handed over; what is not sent after ``timeout`` seconds fails."""
        await asyncio.sleep(0)  # what other threads handed over a moment ago
        tasks = list(self._tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
