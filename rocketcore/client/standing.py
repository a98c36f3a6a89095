"""Where a consumer stands: the ends of queues, what its group has stored, and how much waits for it.

RocketMQ 5.5.0: ``DefaultLitePullConsumer.committed``, ``MQAdminImpl.maxOffset``; a lag has only Java's admin client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from rocketcore.client import api
from rocketcore.client.offset_store import OFFSET_TIMEOUT, find_offset
from rocketcore.message import MessageQueue

if TYPE_CHECKING:
    from rocketcore.client.config import StartFrom
    from rocketcore.client.instance import ClientInstance

__all__ = ["Watermarks", "committed", "lag", "watermarks"]


class Watermarks(NamedTuple):
    """The offsets of a queue: of the first message that it still has, and the one that the next will get."""

    first: int
    end: int


async def watermarks(instance: ClientInstance, queue: MessageQueue) -> Watermarks:
    """Ask a queue's broker for its ends."""
    await instance.route(queue.topic)
    first, end = await asyncio.gather(find_offset(instance, queue, "first"), find_offset(instance, queue, "last"))
    return Watermarks(first, end)


async def committed(instance: ClientInstance, group: str, queue: MessageQueue) -> int | None:
    """Ask a queue's broker what a group has stored; None where it never did."""
    await instance.route(queue.topic)
    address, _ = instance.routes.subscribe_address(queue.broker)
    return await api.query_consumer_offset(
        instance.remoting, address, group, queue, OFFSET_TIMEOUT, set_zero_if_not_found=False
    )


async def lag(
    instance: ClientInstance, group: str, start_from: StartFrom, positions: Mapping[MessageQueue, int | None]
) -> dict[MessageQueue, int]:
    """Return by queue how many messages there are from a position on.

    positions  None: the one that the group has stored, or else where it would begin
    """

    async def one(queue: MessageQueue, position: int | None) -> int:
        if position is None:
            position = await committed(instance, group, queue)
        if position is None:
            position = await find_offset(instance, queue, start_from)
        first, end = await watermarks(instance, queue)
        return max(0, end - max(first, position))

    counts = await asyncio.gather(*(one(queue, position) for queue, position in positions.items()))
    return dict(zip(positions, counts, strict=True))
