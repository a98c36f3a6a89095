"""The offsets of a stream, told to the brokers under a consumer group, so that ordinary tools show how far it lags.

They are for people: a stream goes on where its checkpoint says. So nothing waits for them, and a failure is a log line.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from rocketcore.client import api
from rocketcore.client.arrow_ranges import side_by_side
from rocketcore.client.instance import ClientInstance
from rocketcore.errors import RocketError
from rocketcore.message import MessageQueue
from rocketcore.service import Seldom
from rocketcore.spark.offsets import Offsets

__all__ = ["GroupOffsets"]

logger = logging.getLogger(__name__)

_TOLD_SECONDS: Final = 60.0


class GroupOffsets:
    """Tells brokers what changed; belongs to the event loop of its instance."""

    def __init__(self, instance: ClientInstance, group: str, timeout: float) -> None:
        self._instance = instance
        self._group = group
        self._timeout = timeout
        self._wanted: Offsets = {}
        self._told: dict[MessageQueue, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._failures = Seldom(_TOLD_SECONDS, instance.clock)

    def report(self, offsets: Offsets) -> None:
        """Tell what has been read to its end, in the background; what failed before is told again with it."""
        self._wanted = offsets
        if self._changed() and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._tell_changes())

    async def settle(self, timeout: float) -> None:
        """Wait for what is under way, at most so long."""
        if self._task is not None and not self._task.done():
            await asyncio.wait((self._task,), timeout=timeout)

    async def close(self) -> None:
        """Give up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _tell_changes(self) -> None:
        while changed := self._changed():
            outcomes = await side_by_side(lambda one: self._tell(*one), changed.items())
            if not all(outcomes):
                break

    def _changed(self) -> dict[MessageQueue, int]:
        return {queue: offset for queue, offset in self._wanted.items() if self._told.get(queue) != offset}

    async def _tell(self, queue: MessageQueue, offset: int) -> bool:
        instance = self._instance
        try:
            address, _ = instance.routes.subscribe_address(queue.broker)
            await api.update_consumer_offset(instance.remoting, address, self._group, queue, offset, self._timeout)
        except RocketError as error:
            if self._failures.due() is not None:
                logger.warning("offsets of group %s not stored: %s", self._group, error)
            return False
        self._told[queue] = offset
        return True
