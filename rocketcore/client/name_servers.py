"""Which name server a client asks: the one that answered last, and the others in turn when it does not.

Name servers do not talk to each other. Any of them may be dead, may accept a connection and never answer, or may have
just started and not have heard of the brokers yet. So a failure, and a refusal that another name server may not share,
go on to the next; each gets its part of the time that is left. After a refusal the others are asked for a second
opinion only: for a second at most, and not those that did not answer a moment ago.

RocketMQ 5.5.0: ``NettyRemotingClient.getAndCreateNameserverChannel``.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from rocketcore.errors import BrokerError, GoAway, RemoteProtocolError, RequestTimeout, RocketError, TransportError
from rocketcore.service import Clock, Deadline
from rocketcore.transport.remoting import Remoting

__all__ = ["FAIR_SECONDS", "SECOND_OPINION_TIMEOUT", "NameServerList"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

SECOND_OPINION_TIMEOUT: Final = 1.0
SILENT_NAME_SERVER_SECONDS: Final = 5.0
"""How long a name server that did not answer in time is not asked for a second opinion."""
FAIR_SECONDS: Final = 0.05
"""A name server that was given less than this is not blamed for its silence."""


class NameServerList:
    """The name servers of one client, in the order in which they are asked; for any thread."""

    __slots__ = ("_addresses", "_clock", "_remoting", "_silent_until")

    def __init__(self, addresses: Sequence[str], remoting: Remoting, clock: Clock, rng: random.Random) -> None:
        # Replaced as a whole, never changed: another thread may be going through it.
        self._addresses = tuple(rng.sample(addresses, len(addresses)))
        self._remoting = remoting
        self._clock = clock
        self._silent_until: dict[str, float] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """All name servers, the one that is asked first in front."""
        return self._addresses

    def may_answer(self, address: str) -> bool:
        """Say whether a name server is worth a second opinion: it has not just let us wait in vain."""
        return self._silent_until.get(address, 0.0) <= self._clock.monotonic()

    async def ask(
        self,
        question: Callable[[Remoting, str, float], Awaitable[T]],
        timeout: float,
        *,
        not_final: tuple[type[BrokerError], ...] = (),
    ) -> T:
        """Return the first answer.

        question   ``(remoting, address, timeout) -> answer``
        timeout    seconds for all name servers together
        not_final  refusals after which the next one is asked; any other refusal is an answer and is raised at once
        raises     without an answer: the first such refusal, else what the last name server's failure was
        """
        deadline = Deadline(timeout, self._clock)
        addresses = self._addresses
        failure: RocketError | None = None
        refusal: BrokerError | None = None
        for position, address in enumerate(addresses):
            share = deadline.remaining() / (len(addresses) - position)
            if refusal is not None:
                if not self.may_answer(address):
                    continue
                share = min(share / 2, SECOND_OPINION_TIMEOUT)
            try:
                answer = await self._put(question, address, share)
            except (TransportError, GoAway, RemoteProtocolError) as error:
                failure = error
                logger.info("name server failed address=%s error=%s", address, error)
                self._ask_last(address)
                if deadline.expired:
                    break
            except not_final as error:
                refusal = refusal or error
            else:
                if refusal is not None:
                    self.ask_first(address)
                return answer
        if refusal is not None:
            raise refusal
        assert failure is not None, "there is at least one name server"
        if isinstance(failure, TransportError):
            raise type(failure)(f"no name server answers ({', '.join(addresses)}): {failure}") from failure
        raise failure

    async def second_opinion(
        self, question: Callable[[Remoting, str, float], Awaitable[T]], address: str, deadline: Deadline
    ) -> T | None:
        """Ask one name server; None where it has no answer, or has let us wait in vain a moment ago."""
        if deadline.expired or not self.may_answer(address):
            return None
        try:
            return await self._put(question, address, min(deadline.remaining() / 2, SECOND_OPINION_TIMEOUT))
        except RocketError as error:
            logger.debug("no second opinion address=%s error=%s", address, error)
            return None

    async def _put(self, question: Callable[[Remoting, str, float], Awaitable[T]], address: str, timeout: float) -> T:
        """Put a question to one name server, and take notice when it lets us wait in vain.

        The next question then goes over a new connection: the machine behind the old one may be another by now, or
        none. Time is what tells: a machine that is down is a time-out, or a connection that could not be made in time.
        """
        began = self._clock.monotonic()
        try:
            return await question(self._remoting, address, timeout)
        except TransportError as error:
            waited = self._clock.monotonic() - began
            late = isinstance(error, RequestTimeout) or waited >= min(timeout, SECOND_OPINION_TIMEOUT)
            if late and waited >= FAIR_SECONDS:
                self._silent_until[address] = self._clock.monotonic() + SILENT_NAME_SERVER_SECONDS
                self._remoting.close_channel(address)
            raise

    def ask_first(self, address: str) -> None:
        """Prefer a name server that knew more than the one before it."""
        self._addresses = (address, *(other for other in self._addresses if other != address))

    def _ask_last(self, address: str) -> None:
        self._addresses = (*(other for other in self._addresses if other != address), address)
