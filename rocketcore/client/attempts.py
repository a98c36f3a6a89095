"""Attempts: what a send has tried, whether it is tried again, and what its caller is told in the end.

One policy for ``send``, ``send_batch`` and ``send_nowait``: a failed attempt is followed at once by one at a broker
that has not failed yet; when all have, by a pause that grows, and then all may be asked again. An attempt at which
nothing can have been sent costs nothing but time; any other uses up one of the retries.

RocketMQ 5.5.0: ``DefaultMQProducerImpl.sendDefaultImpl``, which makes no pause and counts every attempt.
"""

from __future__ import annotations

from typing import Final

from rocketcore.client.send_command import SendTarget
from rocketcore.errors import BrokerError, ConnectError, Overloaded, RequestTimeout, RocketError, TransportError
from rocketcore.service import Backoff

__all__ = ["Attempts"]

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
_NOTHING_SENT: Final = (ConnectError, Overloaded)


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

    @property
    def refresh_route(self) -> bool:
        """Whether the last failure may be due to an old route."""
        return self._failure is not None and self._failure.refresh_route

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
                why = f"no answer within {timeout:g} s"
            error = type(failure)(f"send to topic {self._topic!r}: {tries}: {broker} ({address}) {why}")
        if error is not failure:
            error.__cause__ = failure
        return error
