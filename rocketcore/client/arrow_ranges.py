"""Ranges of queues: what they hold now, which offsets a start and an end mean; brokers that are away are waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, Literal, TypeVar

from rocketcore._fast.record import QUEUE_OFFSET, STORE_TIMESTAMP, STORED_COLUMNS, scan_stored
from rocketcore.client import api
from rocketcore.client.api import PullStatus
from rocketcore.client.attempts import Retries, until_answered
from rocketcore.client.instance import ClientInstance
from rocketcore.codes import TOOLS_GROUP, PullSysFlag
from rocketcore.errors import ConfigError
from rocketcore.filter import SUBSCRIBE_ALL, TAG
from rocketcore.message import MessageQueue
from rocketcore.protocol.bodies.stats import check_bounds
from rocketcore.protocol.headers.message import PullMessageRequestHeader
from rocketcore.table import Table

__all__ = [
    "Position",
    "QueueRange",
    "find_offset",
    "find_offsets",
    "find_ranges",
    "first_offset",
    "held_ranges",
    "offsets_of",
    "side_by_side",
    "topic_ranges",
]

K = TypeVar("K")
T = TypeVar("T")

AT_ONCE: Final = 32
"""Questions under way: a topic may have a thousand queues, and each is looked at for a time."""

Position = Literal["first", "last"] | datetime | int


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The messages of a queue from offset ``start`` up to, not including, ``end``."""

    queue: MessageQueue
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)


async def find_ranges(
    instance: ClientInstance,
    queues: Iterable[MessageQueue],
    start: Position,
    end: Position,
    retries: Retries,
    timeout: float,
) -> list[QueueRange]:
    """Return the asked range of each queue, in order.

    start, end  as ``find_offset`` takes them
    timeout     seconds for one request
    """
    held = await held_ranges(instance, queues, retries, timeout)
    starts = await find_offsets(instance, held, dict.fromkeys(held, start), retries, timeout)
    ends = await find_offsets(instance, held, dict.fromkeys(held, end), retries, timeout)
    return [QueueRange(queue, starts[queue], ends[queue]) for queue in held]


async def held_ranges(
    instance: ClientInstance, queues: Iterable[MessageQueue], retries: Retries, timeout: float
) -> dict[MessageQueue, QueueRange]:
    """Return all that each queue holds now, in order.

    All brokers are asked at the same time, once for each topic, and again while they are away.

    retries  how long
    timeout  seconds for one request
    raises   RocketError, what the last attempt failed with
    """
    queues = list(queues)
    brokers: dict[tuple[str, str], list[MessageQueue]] = {}
    for queue in queues:
        brokers.setdefault((queue.topic, queue.broker), []).append(queue)

    async def ask(broker: tuple[str, str]) -> dict[MessageQueue, QueueRange]:
        question = partial(topic_ranges, instance, *broker, brokers[broker])
        return await until_answered(instance, broker[0], retries, timeout, question)

    found: dict[MessageQueue, QueueRange] = {}
    for ranges in await side_by_side(ask, brokers):
        found |= ranges
    return {queue: found[queue] for queue in queues}


async def find_offsets(
    instance: ClientInstance,
    held: Mapping[MessageQueue, QueueRange],
    positions: Mapping[MessageQueue, Position],
    retries: Retries,
    timeout: float,
    *,
    group: str = TOOLS_GROUP,
) -> dict[MessageQueue, int]:
    """Return the offset that the position in each queue means; ``held`` and the rest as for ``held_ranges``."""

    async def find(queue: MessageQueue) -> int:
        question = partial(find_offset, instance, held[queue], positions[queue], group=group)
        return await until_answered(instance, queue.topic, retries, timeout, question)

    return dict(zip(held, await side_by_side(find, held), strict=True))


async def side_by_side(ask: Callable[[K], Awaitable[T]], items: Iterable[K]) -> list[T]:
    """Ask for each of the items, some at the same time; the first failure ends the others."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def in_turn(item: K) -> T:
        async with slots:
            return await ask(item)

    tasks = [asyncio.ensure_future(in_turn(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def topic_ranges(
    instance: ClientInstance, topic: str, broker: str, queues: Iterable[MessageQueue], timeout: float
) -> dict[MessageQueue, QueueRange]:
    """Return the ranges of all that a broker's queues of a topic hold now, by one request where the broker says all.

    queues   those that are wanted; others may be in the answer
    timeout  seconds for one request
    """
    address, _ = instance.routes.subscribe_address(broker)
    found = {}
    for queue_id, (low, high) in (await api.queue_bounds(instance.remoting, address, topic, timeout)).items():
        queue = MessageQueue(topic, broker, queue_id)
        found[queue] = QueueRange(queue, low, high)
    for queue in queues:
        if queue not in found:
            found[queue] = await _whole(instance, address, queue, timeout)
    return found


async def _whole(instance: ClientInstance, address: str, queue: MessageQueue, timeout: float) -> QueueRange:
    low = await api.min_offset(instance.remoting, address, queue, timeout)
    high = await api.max_offset(instance.remoting, address, queue, timeout)
    check_bounds(low, high, queue)
    return QueueRange(queue, low, high)


async def find_offset(
    instance: ClientInstance, held: QueueRange, position: Position, timeout: float, *, group: str
) -> int:
    """Return the offset that a position in a queue means.

    held      all that the queue holds
    position  ``first``, ``last`` (after the last message), an offset, or a store time: the first message that was
              stored then or later
    timeout   seconds for one request
    group     named to the broker where messages are looked at to compare their times
    """
    if position == "first":
        return held.start
    if position == "last":
        return held.end
    if not isinstance(position, datetime):
        return position
    if position.tzinfo is None:
        raise ConfigError("a time needs a time zone, for example datetime(…, tzinfo=UTC)")
    queue, millis = held.queue, round(position.timestamp() * 1000)
    address, _ = instance.routes.subscribe_address(queue.broker)
    hint = await api.search_offset(instance.remoting, address, queue, millis, timeout)

    async def older(offset: int) -> bool:
        stored = await _store_time(instance, address, queue, offset, group, timeout)
        return stored is None or stored < millis

    return await first_offset(older, held.start, held.end, hint)


async def first_offset(older: Callable[[int], Awaitable[bool]], low: int, high: int, hint: int) -> int:
    """Return the first offset of ``[low, high)`` that is not older than the time meant, ``high`` if all are.

    hint  what the broker says. A broker of 5.x is right, which two looks show; one of 4.9 answers with a neighbour on
          either side, with any of several messages of one time, and with the last message when all are older
    """
    hint = min(max(hint, low), high)
    if hint < high and await older(hint):
        low = hint + 1
        probe = low
    else:
        high = hint
        probe = high - 1
    while low < high:
        if await older(probe):
            low = probe + 1
        else:
            high = probe
        probe = (low + high) // 2
    return low


async def _store_time(
    instance: ClientInstance, address: str, queue: MessageQueue, offset: int, group: str, timeout: float
) -> int | None:
    """Return when a message was stored, in milliseconds; None where there is none."""
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=1,
        sys_flag=int(PullSysFlag.SUBSCRIPTION),
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription=SUBSCRIBE_ALL,
        expression_type=TAG,
        bname=queue.broker,
    )
    result = await api.pull_message(instance.remoting, address, header, timeout)
    if result.status is not PullStatus.FOUND:
        return None
    return _scanned(result.body, 1, STORE_TIMESTAMP)[0]


def offsets_of(body: bytes | memoryview, most: int) -> list[int]:
    """Return the queue offsets of the first ``most`` messages of a pull answer."""
    return _scanned(body, most, QUEUE_OFFSET)


def _scanned(body: bytes | memoryview, most: int, column: int) -> list[int]:
    """Return a column of the first messages; no numpy, which only columns of messages need."""
    table = Table(most, STORED_COLUMNS)
    count, _ = scan_stored(body, 0, len(body), table.view)
    return table.column(column, count).tolist()
