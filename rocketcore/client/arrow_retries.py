"""When what failed is tried again: after pauses that grow, until its time is over. One rule for all that Arrow sends,
pulls and plans.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from rocketcore.client.instance import ClientInstance
from rocketcore.client.route_table import TopicRoute
from rocketcore.errors import (
    BrokerError,
    FlowControl,
    GoAway,
    NoBrokerRegistered,
    RocketError,
    RouteNotFound,
    ServiceNotAvailable,
    SystemBusy,
    TransportError,
)
from rocketcore.service import Backoff, Clock, Deadline

__all__ = ["Retries", "newest_route", "refresh", "refuses", "until_answered"]

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
"""Seconds before the second attempt, and what the pauses grow to."""

_BUSY: Final = (SystemBusy, ServiceNotAvailable, FlowControl, GoAway)
"""Refusals that end by themselves."""

T = TypeVar("T")


class Retries:
    """The failed attempts at one thing.

    timeout  seconds for all of them
    count    those that were followed by another
    """

    __slots__ = ("_deadline", "_pauses", "count")

    def __init__(self, timeout: float, clock: Clock) -> None:
        self._deadline = Deadline(timeout, clock)
        self._pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self.count = 0

    def attempt_timeout(self, timeout: float) -> float:
        """Return the seconds that the next attempt has, of those that it would like."""
        return min(timeout, max(FIRST_PAUSE, self._deadline.remaining()))

    def next_pause(self) -> float | None:
        """Return how long to wait before the next attempt, None where there is no time for one."""
        pause = self._pauses.next()
        if pause >= self._deadline.remaining():
            return None
        self.count += 1
        return pause

    def pause_after(self, error: RocketError, *, final: bool = False) -> float:
        """Return how long to wait before the next attempt.

        final   whether waiting changes nothing, whatever the error is
        raises  the error, where there is no further attempt
        """
        # A broker that has left the route comes back to it.
        if final or not (error.retriable or isinstance(error, RouteNotFound)):
            raise error
        pause = self.next_pause()
        if pause is not None:
            return pause
        if self.count and isinstance(error, TransportError):
            attempts = f"{self.count + 1} attempts within {self._deadline.timeout:g} s"
            raise type(error)(f"{error} ({attempts})") from error
        raise error


def refuses(error: RocketError) -> bool:
    """Say whether an error is a broker's answer that will not change by itself."""
    return isinstance(error, BrokerError) and not isinstance(error, _BUSY)


async def refresh(instance: ClientInstance, topic: str, timeout: float) -> None:
    """Ask for the newest route of a topic; where no name server answers, the known one has to do."""
    try:
        await instance.refresh_topic(topic, timeout=timeout)
    except RocketError as error:
        logger.info("route not refreshed topic=%s error=%s", topic, error)


async def newest_route(instance: ClientInstance, topic: str, timeout: float, retries: Retries) -> TopicRoute:
    """Return the route that a topic has now, a kept connection may know an older one; wait while there is no broker.

    raises  RouteNotFound for a topic that does not exist; TransportError when no name server answers, whose address may
            be wrong: nothing of the cluster was seen yet
    """

    async def ask(limit: float) -> TopicRoute:
        await instance.refresh_topic(topic, timeout=limit)
        return await instance.route(topic, timeout=limit)

    return await until_answered(
        instance, topic, retries, timeout, ask, lambda error: not isinstance(error, NoBrokerRegistered)
    )


async def until_answered(
    instance: ClientInstance,
    topic: str,
    retries: Retries,
    timeout: float,
    ask: Callable[[float], Awaitable[T]],
    final: Callable[[RocketError], bool] = refuses,
) -> T:
    """Return the answer to a question about a topic, which is asked again while brokers are away.

    timeout  seconds for one request
    ask      gets the seconds that a request has
    final    says of an error that waiting changes nothing
    """
    while True:
        try:
            return await ask(retries.attempt_timeout(timeout))
        except RocketError as error:
            pause = retries.pause_after(error, final=final(error))
            # Seen without logging configured: who waits for a plan sees nothing else.
            level = logging.WARNING if retries.count == 1 else logging.INFO
            logger.log(level, "asked again topic=%s attempt=%d error=%s", topic, retries.count, error)
            wants_route = error.refresh_route
        await instance.runtime.pause(pause)
        if wants_route:
            await refresh(instance, topic, timeout)
