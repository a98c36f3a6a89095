"""Which queues a consumer owns: all of a topic (broadcasting), or its share of them (clustering).

Every member asks a broker for the members of the group and computes the shares by itself. Answers of different brokers,
and of one broker at different times, may differ for a while; then two members may own a queue for a while, or none.

RocketMQ 5.5.0: ``RebalanceImpl.rebalanceByTopic``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rocketcore.client import api
from rocketcore.client.instance import ClientInstance
from rocketcore.errors import ClientError, RocketError
from rocketcore.message import MessageQueue
from rocketcore.protocol.allocate import AllocateStrategy, sorted_ids, sorted_queues

__all__ = ["Rebalancer"]

MEMBERS_TIMEOUT: Final = 3.0
STORE_SECONDS: Final = 0.1
"""What other members get to store their offsets when one joins; a round trip and what is on its way."""


class Rebalancer:
    """Computes the queues of one consumer."""

    def __init__(self, instance: ClientInstance, group: str, allocate: AllocateStrategy, *, broadcast: bool) -> None:
        self._instance = instance
        self._group = group
        self._allocate = allocate
        self._broadcast = broadcast
        self.problem: RocketError | None = None
        """Why the last question had no answer."""

    async def share(self, topic: str) -> list[MessageQueue] | None:
        """Return the queues of a topic that this consumer owns now.

        returns  None when that cannot be told: the route or the members of the group are not known, ``problem`` says
                 why; what the consumer has, it keeps
        """
        try:
            route = await self._instance.route(topic)
            if self._broadcast:
                return list(route.subscribe)
            await self._instance.send_missing_heartbeats()  # a broker names only members that it has heard of
            address, members = await self._members(topic, MEMBERS_TIMEOUT)
        except RocketError as error:
            self.problem = error
            return None
        if self._instance.client_id not in members:
            self.problem = ClientError(f"the broker at {address} does not count this consumer among its group")
            return None
        return self._allocate(self._instance.client_id, sorted_queues(route.subscribe), sorted_ids(members))

    async def _members(self, topic: str, timeout: float) -> tuple[str, list[str]]:
        return await self._instance.ask_any_broker(
            topic,
            lambda address, share: api.consumer_ids(self._instance.remoting, address, self._group, share),
            timeout,
        )

    async def let_others_store(self, topics: Iterable[str]) -> None:
        """Wait a moment where others share the group: told of us, they store how far they are, which we begin at."""
        if self._broadcast:
            return
        for topic in topics:
            try:
                _, members = await self._members(topic, STORE_SECONDS)
            except RocketError:  # the rebalance asks again, and says so
                continue
            if any(member != self._instance.client_id for member in members):
                await self._instance.runtime.pause(STORE_SECONDS)
            return
