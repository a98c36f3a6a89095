"""What keeps a consumer from receiving: told in the log as long as it lasts, and to who waits for the consumer.

A WARNING says it when it begins, and again each minute. What it will never receive is told once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from rocketcore.client import api
from rocketcore.client.instance import ClientInstance
from rocketcore.errors import BrokerError, RequestNotSupported, RocketError, RouteNotFound
from rocketcore.filter import TAG
from rocketcore.message import MessageQueue, ReceivedMessage
from rocketcore.printable import printable
from rocketcore.protocol.bodies.heartbeat import SubscriptionData
from rocketcore.service import Clock
from rocketcore.warning import warn

__all__ = ["Gaps", "Problems", "find_filter_refusal"]

logger = logging.getLogger(__name__)

WARN_INTERVAL: Final = 60.0


class Gaps:
    """Stretches of offsets that a broker left out of its answers: these messages are damaged, or deleted unread.

    A WARNING names each, unless somebody asked to be told. Of a queue that is read with a filter nobody can tell.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._told: Callable[[MessageQueue, int, int], None] | None = None

    def tell(self, function: Callable[[MessageQueue, int, int], None]) -> None:
        """Have a function called, on the consumer's loop, with queue, first offset and the offset behind the last."""
        self._told = function

    def note(self, queue: MessageQueue, begin: int, end: int) -> None:
        """Take notice of one stretch."""
        if self._told is not None:
            self._told(queue, begin, end)
        else:
            text = "messages left out by the broker, damaged or deleted group=%s queue=%s from=%d to=%d"
            warn(logger, text, self._group, queue, begin, end - 1)

    def find(self, queue: MessageQueue, begin: int, messages: Sequence[ReceivedMessage], end: int) -> None:
        """Take notice of what lies in a range and not among the messages that a broker sent of it, in their order."""
        if end - begin == len(messages):
            return
        for message in messages:
            if message.offset > begin:
                self.note(queue, begin, message.offset)
            begin = max(begin, message.offset + 1)
        if end > begin:
            self.note(queue, begin, end)


class Problems:
    """What a consumer of a group lacks at the moment, by what it is for (``topic=…``), and since when."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._since: dict[str, float] = {}
        self._told: dict[str, float] = {}
        self._errors: dict[str, RocketError] = {}

    def note(self, what: str, error: RocketError, clock: Clock, *, grace: float = 0.0) -> None:
        """Take notice of a failure.

        grace  for how many seconds this may well be, and is not worth a warning
        """
        now = clock.monotonic()
        self._errors[what] = error
        told = self._told.get(what)
        if now - self._since.setdefault(what, now) < grace or (told is not None and now - told < WARN_INTERVAL):
            logger.debug("nothing is received group=%s %s error=%s", self._group, printable(what), error)
            return
        self._told[what] = now
        if type(error) is RouteNotFound:  # in a good run it is there soon, and in another its name is wrong
            topic = what.removeprefix("topic=")
            warn(logger, "waiting for topic %r, which no name server knows yet group=%s", topic, self._group)
        else:
            warn(logger, "nothing is received group=%s %s error=%s", self._group, printable(what), error)

    def over(self, what: str) -> None:
        """Take notice that something works."""
        error = self._errors.pop(what, None)
        if error is not None:
            del self._since[what]
            if self._told.pop(what, None) is not None:
                again = "" if type(error) is RouteNotFound else " again"
                warn(logger, f"receiving{again} group=%s %s", self._group, printable(what))

    def __bool__(self) -> bool:
        return bool(self._errors)

    def __str__(self) -> str:
        return "; ".join(f"{what}: {error}" for what, error in self._errors.items())


async def find_filter_refusal(
    instance: ClientInstance, group: str, subscription: SubscriptionData
) -> RocketError | None:
    """Return what a broker has against a filter; None where it has nothing, or cannot be asked. Tags always can."""
    if subscription.expression_type == TAG:
        return None
    try:
        await instance.ask_any_broker(
            subscription.topic,
            lambda address, share: api.check_client_config(
                instance.remoting, address, instance.client_id, group, subscription, share
            ),
            instance.config.timeout,
        )
    except RocketError as error:
        if isinstance(error, BrokerError) and not isinstance(error, RequestNotSupported):
            return error
        logger.info("filter not checked group=%s topic=%s error=%s", group, subscription.topic, error)
    return None
