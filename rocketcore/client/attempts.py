"""Attempts: whether what failed is tried again, when, and what its caller is told in the end.

Sends (``Attempts``): a failed attempt is followed at once by one at a broker that has not failed yet; when all have, by
a pause that grows, and then all may be asked again. An attempt at which nothing can have been sent costs nothing but
time; any other uses up one of the retries, where these are counted.

Anything else, and the bodies that Arrow sends, which have all of their time (``Retries``): a pause that grows after
each failure. A route that may be old is asked for again in both cases.

RocketMQ 5.5.0: ``DefaultMQProducerImpl.sendDefaultImpl``, which makes no pause and counts every attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from rocketcore.client.instance import ClientInstance
from rocketcore.client.route_table import TopicRoute
from rocketcore.client.send_command import SendTarget
from rocketcore.errors import (
    BrokerError,
    ConnectError,
    FlowControl,
    GoAway,
    NoBrokerRegistered,
    Overloaded,
    RequestTimeout,
    RocketError,
    RouteNotFound,
    ServiceNotAvailable,
    SystemBusy,
    TransportError,
)
from rocketcore.service import Backoff, Clock, Deadline

__all__ = ["Attempts", "Retries", "newest_route", "refuses", "until_answered"]

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds of the first pause between sends, and what the pauses grow to; twice that between other questions."""

_NOTHING_SENT: Final = (ConnectError, Overloaded)
_BUSY: Final = (SystemBusy, ServiceNotAvailable, FlowControl, GoAway)
"""Refusals that end by themselves."""

T = TypeVar("T")


class Attempts:
    """The failed attempts of one send; made when the first has failed.

    avoid  numbers of the brokers that failed since the last pause
    """

    __slots__ = ("_failure", "_further", "_pauses", "_target", "_topic", "avoid", "count")

    def __init__(self, topic: str, further: int | None) -> None:
        """Begin to count.

        further  attempts that may follow one whose message a broker may have; None: any number
        """
        self.avoid: set[int] = set()
        self.count = 0
        self._topic = topic
        self._further = further
        self._pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._target: SendTarget | None = None
        self._failure: RocketError | None = None

    @property
    def further(self) -> int:
        """How many attempts may follow the next; 0 where that is not counted."""
        return max(0, self._further or 0)

    def failed(self, target: SendTarget, error: RocketError) -> bool:
        """Note a failed attempt; return whether another may follow."""
        self._target, self._failure = target, error
        return self._goes_on(target, costs=not isinstance(error, _NOTHING_SENT)) and error.retriable

    def not_safe(self, target: SendTarget) -> bool:
        """Note that a broker has the message, but not as safely as asked; return whether another may be asked."""
        return self._goes_on(target, costs=True)

    def _goes_on(self, target: SendTarget, *, costs: bool) -> bool:
        self.count += 1
        self.avoid.add(target.broker_number)
        if not costs or self._further is None:
            return True
        self._further -= 1
        return self._further >= 0

    def pause(self) -> float:
        """Return in how many seconds brokers that failed may be asked again, and begin with all of them then."""
        self.avoid.clear()
        return self._pauses.next()

    def error(self, timeout: float) -> RocketError:
        """Return the last failure as the caller reads it: topic, attempts, broker and address.

        timeout  seconds that the whole send had
        """
        failure, target = self._failure, self._target
        assert failure is not None
        assert target is not None
        tries = f"{self.count} attempt{'' if self.count == 1 else 's'}"
        broker, address = target.queue.broker, target.address
        error: RocketError = failure
        if isinstance(failure, BrokerError):
            error = type(failure)(
                failure.code, failure.remark, failure.address, f"send to topic {self._topic!r} ({tries}) to {broker}"
            )
        elif isinstance(failure, TransportError):
            why = str(failure).rpartition(f" at {address}: ")[2]
            if isinstance(failure, RequestTimeout):
                why = f"no answer within {round(timeout, 3):g} s"
            error = type(failure)(f"send to topic {self._topic!r}: {tries}: {broker} ({address}) {why}")
        if error is not failure:
            error.__cause__ = failure
        return error


class Retries:
    """The failed attempts at one thing that is tried until its time is over.

    timeout  seconds for all of them
    level    of the log line that the first one writes
    since    monotonic seconds of the first attempt; None: it is made now
    count    those that were followed by another
    """

    __slots__ = ("_deadline", "_pauses", "count", "level")

    def __init__(self, timeout: float, clock: Clock, *, level: int = logging.INFO, since: float | None = None) -> None:
        self.level = level
        self._deadline = Deadline(timeout, clock, since)
        self._pauses = Backoff(2 * FIRST_PAUSE, 2 * LONGEST_PAUSE)
        self.count = 0

    def attempt_timeout(self, timeout: float) -> float:
        """Return the seconds that the next attempt has, of those that it would like."""
        return min(timeout, max(2 * FIRST_PAUSE, self._deadline.remaining()))

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
        attempts = f"{self.count + 1} attempts within {self._deadline.timeout:g} s"
        if self.count and isinstance(error, TransportError):
            raise type(error)(f"{error} ({attempts})") from error
        if self.count and isinstance(error, BrokerError):
            request = f"{error.request}, the last of {attempts},"
            raise type(error)(error.code, error.remark, error.address, request) from error
        raise error


def refuses(error: RocketError) -> bool:
    """Say whether an error is a broker's answer that will not change by itself."""
    return isinstance(error, BrokerError) and not isinstance(error, _BUSY)


async def until_answered(
    instance: ClientInstance,
    topic: str,
    retries: Retries,
    timeout: float,
    ask: Callable[[float], Awaitable[T]],
    final: Callable[[RocketError], bool] = refuses,
    *,
    elsewhere: bool = False,
) -> T:
    """Return the answer to a question about a topic, which is asked again while brokers are away.

    timeout    seconds for one request
    ask        gets the seconds that a request has
    final      says of an error that waiting changes nothing
    elsewhere  whether the second attempt is at another broker, and so needs no pause
    """
    while True:
        try:
            return await ask(retries.attempt_timeout(timeout))
        except RocketError as error:
            pause = retries.pause_after(error, final=final(error))
            level = retries.level if retries.count == 1 else logging.INFO
            logger.log(level, "asked again topic=%s attempt=%d error=%s", topic, retries.count, error)
            wants_route = error.refresh_route
        if retries.count > 1 or not elsewhere:
            await instance.runtime.pause(pause)
        if wants_route:
            await instance.try_refresh(topic, timeout=timeout)


async def newest_route(
    instance: ClientInstance, topic: str, timeout: float, retries: Retries, *, patient: bool = False
) -> TopicRoute:
    """Return the route that a topic has now, a kept connection may know an older one; wait while there is no broker.

    patient  whether to wait for a name server, too; without it one that does not answer may be a wrong address
    raises   RouteNotFound for a topic that does not exist; TransportError when no name server answers
    """
    passing = (NoBrokerRegistered, TransportError) if patient else NoBrokerRegistered

    async def ask(limit: float) -> TopicRoute:
        await instance.refresh_topic(topic, timeout=limit)
        return await instance.route(topic, timeout=limit)

    return await until_answered(instance, topic, retries, timeout, ask, lambda error: not isinstance(error, passing))
