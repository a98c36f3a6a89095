"""Which queues of a topic a member of a consumer group takes: the allocation strategies as pure functions.

Every member of a group, and a broker that is asked for it, computes the same answer from the same two sorted lists, so
the lists, their order and the arithmetic have to agree with Java's to the last queue. Texts compare as Java compares
them: by UTF-16 code unit.

RocketMQ 5.5.0: ``org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueue…``
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from rocketcore.errors import ConfigError
from rocketcore.message import MessageQueue

__all__ = [
    "STRATEGIES",
    "AllocateStrategy",
    "average",
    "average_by_circle",
    "consistent_hash",
    "find_strategy",
    "sorted_ids",
    "sorted_queues",
]

AllocateStrategy: TypeAlias = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""``(client_id, sorted queues, sorted client ids) -> the queues of client_id``; none when the id is not in the list."""

VIRTUAL_NODES: Final = 10


def utf16_order(text: str) -> bytes:
    """Return a key that sorts texts as ``String.compareTo`` does."""
    return text.encode("utf-16-be", "surrogatepass")


def sorted_ids(client_ids: Iterable[str]) -> list[str]:
    """Sort client ids as Java does."""
    return sorted(client_ids, key=utf16_order)


def sorted_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Sort queues by topic, broker name and queue id as Java does (``MessageQueue.compareTo``)."""
    return sorted(queues, key=lambda queue: (utf16_order(queue.topic), utf16_order(queue.broker), queue.queue_id))


def average(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Give each member a run of neighbouring queues (``AVG``, the default)."""
    if client_id not in client_ids or not queues:
        return []
    index = client_ids.index(client_id)
    quotient, remainder = divmod(len(queues), len(client_ids))
    if index < remainder:
        start, size = index * (quotient + 1), quotient + 1
    else:
        start, size = index * quotient + remainder, quotient
    return list(queues[start : start + size])


def average_by_circle(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Deal the queues out one by one (``AVG_BY_CIRCLE``)."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def consistent_hash(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Give each queue to the next member on a ring of MD5 hashes (``CONSISTENT_HASH``): few move when one leaves."""
    if client_id not in client_ids:
        return []
    ring = sorted((_ring_hash(f"{member}-{node}"), member) for member in client_ids for node in range(VIRTUAL_NODES))
    points = [point for point, _ in ring]

    def owner(queue: MessageQueue) -> str:
        key = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
        return ring[bisect.bisect_left(points, _ring_hash(key)) % len(ring)][1]

    return [queue for queue in queues if owner(queue) == client_id]


def _ring_hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


STRATEGIES: Final[dict[str, AllocateStrategy]] = {
    "AVG": average,
    "AVG_BY_CIRCLE": average_by_circle,
    "CONSISTENT_HASH": consistent_hash,
}
"""The strategies by the name that RocketMQ gives them; any other is a function of the application's."""


def find_strategy(strategy: str | AllocateStrategy) -> AllocateStrategy:
    """Return a strategy by its name, or the function that was given."""
    if not isinstance(strategy, str):
        return strategy
    try:
        return STRATEGIES[strategy]
    except KeyError:
        raise ConfigError(f"no allocation strategy {strategy!r}; there are {', '.join(STRATEGIES)}") from None
