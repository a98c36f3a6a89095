"""RedriveAdmin: single dead letters back to their group, each with what became of it.

``DeadLetterAdmin.redrive`` goes through a queue in order and remembers how far; here somebody has chosen some.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rocketcore.admin.dead_letters import DeadLetterAdmin, way_back
from rocketcore.client import api
from rocketcore.errors import ConnectionLost, RequestTimeout, RocketError
from rocketcore.service import Deadline

if TYPE_CHECKING:
    from rocketcore.message import ReceivedMessage

logger = logging.getLogger(__name__)

__all__ = ["RedriveAdmin", "RedriveResult"]


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """What became of a dead letter: ``unknown`` where the broker did not answer, and may have done it or not."""

    message: ReceivedMessage
    state: Literal["done", "failed", "unknown"]
    error: RocketError | None = None


class RedriveAdmin(DeadLetterAdmin):
    """The part of ``AsyncAdmin`` that takes single dead letters back."""

    async def redrive_each(self, group: str, messages: Sequence[ReceivedMessage]) -> list[RedriveResult]:
        """Have a group receive these dead letters again; return what became of each, in this order.

        How far redrives are moves on over those that lie next to it. What is left when the time is over has failed.
        """
        self._connections()  # what refuses all of them is no outcome of each
        deadline = self._deadline()
        results = []
        for message in messages:
            try:
                if deadline.expired:
                    raise RocketError("no time was left: nothing was asked")
                address = await self._master_of(message.queue, deadline)
                header = way_back(group, message)
                await api.send_message_back(self._connections(), address, header, deadline.remaining())
            except (RequestTimeout, ConnectionLost) as error:
                results.append(RedriveResult(message, "unknown", error))
            except RocketError as error:
                results.append(RedriveResult(message, "failed", error))
            else:
                results.append(RedriveResult(message, "done"))
        try:
            await self._advance(group, [each.message for each in results if each.state == "done"], deadline)
        except RocketError as error:  # what became of them is known all the same
            logger.warning("mark of redrives not moved group=%s error=%s", group, error)
        return results

    async def _advance(self, group: str, messages: Sequence[ReceivedMessage], deadline: Deadline) -> None:
        """Move the mark of each queue over the messages behind it that were redriven without a gap."""
        by_queue: dict[object, set[int]] = {}
        for message in messages:
            by_queue.setdefault(message.queue, set()).add(message.offset)
        if not by_queue:
            return
        within = Deadline(max(deadline.remaining(), 1.0), self._clock)
        for each in await self.dead_letter_queues(group):
            end = each.redriven
            while end in by_queue.get(each.queue, ()):
                end += 1
            if end > each.redriven:
                address = await self._master_of(each.queue, within)
                await api.update_consumer_offset(
                    self._connections(), address, group, each.queue, end, within.remaining()
                )
