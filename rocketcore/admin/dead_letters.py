"""DeadLetters: messages that a group failed for too often, and their way back to it.

They lie in the topic ``%DLQ%group``. A redrive has the broker copy one to the group's retry topic, as when a consumer
sends a message back (request 36): no other group of its topic sees it again. How far that is, is the group's offset
in ``%DLQ%group``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from rocketcore.admin.messages import messages_from
from rocketcore.admin.offsets import Offsets
from rocketcore.admin.requests import topic_stats
from rocketcore.admin.servers import Part
from rocketcore.admin.topics import Topics
from rocketcore.client import api
from rocketcore.codes import DLQ_TOPIC_PREFIX
from rocketcore.errors import ConnectionLost, RequestTimeout, RocketError, RouteNotFound, TopicNotExist
from rocketcore.message import MessageQueue
from rocketcore.protocol.headers.message import ConsumerSendMsgBackRequestHeader
from rocketcore.service import Deadline

if TYPE_CHECKING:
    from rocketcore.message import ReceivedMessage
    from rocketcore.protocol.bodies.stats import TopicOffset

__all__ = ["DeadLetterQueue", "DeadLetters", "RedrivePace", "RedriveResult"]

logger = logging.getLogger(__name__)

_ONE_SECOND_LEVEL: Final = 1
_ANY_TIMES: Final = (1 << 31) - 1
"""Failures that a message may have and not be a dead letter again at once."""


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """The dead letters of a group at one broker: from ``start`` up to, not including, ``end``.

    redriven  offset up to which they were redriven, at least ``start``
    """

    queue: MessageQueue
    start: int
    redriven: int
    end: int


@dataclass(frozen=True, slots=True)
class RedrivePace:
    """How fast dead letters are redriven: ``rate`` a second at most, None for as fast as it goes."""

    rate: float | None

    @property
    def page(self) -> int:
        """How many are taken at once."""
        return 32 if self.rate is None else max(1, min(32, int(self.rate)))

    def pause(self, count: int, seconds: float) -> float:
        """Return for how long to wait after so many in so many seconds."""
        return 0.0 if self.rate is None else max(0.0, count / self.rate - seconds)


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """What became of a dead letter: ``unknown`` where the broker did not answer, and may have done it or not."""

    message: ReceivedMessage
    state: Literal["done", "failed", "unknown"]
    error: RocketError | None = None


def _way_back(group: str, message: ReceivedMessage) -> ConsumerSendMsgBackRequestHeader:
    """Return what has a broker copy a dead letter to the retry topic of its group."""
    return ConsumerSendMsgBackRequestHeader(
        offset=message.physical_offset,
        group=group,
        delay_level=_ONE_SECOND_LEVEL,
        origin_msg_id=message.msg_id,
        origin_topic=message.queue.topic,
        max_reconsume_times=_ANY_TIMES,
    )


class DeadLetters(Part):
    """The part of ``AsyncAdmin`` about dead letters."""

    async def dead_letter_groups(self) -> list[str]:
        """Return the groups that have a topic of dead letters, sorted; it may be empty."""
        topics = await Topics(self._servers).topics()
        return sorted(each.removeprefix(DLQ_TOPIC_PREFIX) for each in topics if each.startswith(DLQ_TOPIC_PREFIX))

    async def dead_letter_queues(self, group: str) -> list[DeadLetterQueue]:
        """Return where the dead letters of a group lie; raises TopicNotExist where it never had any."""
        topic = DLQ_TOPIC_PREFIX + group
        deadline = self._servers.deadline()
        masters = await self._servers.masters_of(topic, deadline)
        tables = await self._servers.by_name(masters, topic_stats(topic), self._servers.share(deadline, 2))
        bounds: dict[MessageQueue, TopicOffset] = {}
        for table in tables.values():
            bounds.update(table)
        marks = await Offsets(self._servers).stored(group, topic, {name: masters[name] for name in tables}, deadline)
        found = []
        for queue, each in sorted(bounds.items()):
            mark = marks.get(queue, each.min_offset)
            # A mark behind the end is that of a topic that was deleted since.
            redriven = mark if each.min_offset <= mark <= each.max_offset else each.min_offset
            found.append(DeadLetterQueue(queue, each.min_offset, redriven, each.max_offset))
        return found

    async def dead_letter_count(self, group: str) -> int | None:
        """Return how many dead letters of a group were not redriven; None where a broker does not say."""
        self._servers.connections()  # a client that may not be used here is no broker that does not say
        try:
            return sum(each.end - each.redriven for each in await self.dead_letter_queues(group))
        except (RouteNotFound, TopicNotExist):  # it never had any
            return 0
        except RocketError:
            return None

    async def dead_letters(self, queue: MessageQueue, offset: int, max_messages: int = 32) -> list[ReceivedMessage]:
        """Return dead letters of a queue from an offset on, as many as the broker gives at once; none at the end."""
        return await self._servers.at_broker_of(queue, messages_from(queue, offset, max_messages))

    async def redrive(self, group: str, messages: Sequence[ReceivedMessage]) -> int:
        """Have a group receive dead letters of one queue again, in order; return how many.

        Each is tried once more: a member that fails for it again makes it a dead letter again. After an error those
        before it are redriven, and the next ``dead_letter_queues`` says so; where the broker did not answer, one may be
        redriven twice.
        """
        if not messages:
            return 0
        deadline = self._servers.deadline()
        queue = messages[0].queue
        address = await self._servers.master_of(queue, deadline)
        remoting = self._servers.connections()
        done = 0
        try:
            for message in messages:
                header = _way_back(group, message)
                await api.send_message_back(remoting, address, header, deadline.remaining())
                done += 1
        finally:
            if done:
                mark = messages[done - 1].offset + 1
                within = Deadline(max(deadline.remaining(), 1.0), self._servers.clock)
                await api.update_consumer_offset(remoting, address, group, queue, mark, within.remaining())
        return done

    async def redrive_each(self, group: str, messages: Sequence[ReceivedMessage]) -> list[RedriveResult]:
        """Have a group receive these dead letters again; return what became of each, in this order.

        The mark of redrives moves on over the messages next to it. Messages that are left when the time is over have
        failed.
        """
        self._servers.connections()  # what refuses all of them is no outcome of each
        deadline = self._servers.deadline()
        results = []
        for message in messages:
            try:
                if deadline.expired:
                    raise RocketError("no time was left: nothing was asked")
                address = await self._servers.master_of(message.queue, deadline)
                header = _way_back(group, message)
                await api.send_message_back(self._servers.connections(), address, header, deadline.remaining())
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
        within = Deadline(max(deadline.remaining(), 1.0), self._servers.clock)
        for each in await self.dead_letter_queues(group):
            end = each.redriven
            while end in by_queue.get(each.queue, ()):
                end += 1
            if end > each.redriven:
                address = await self._servers.master_of(each.queue, within)
                await api.update_consumer_offset(
                    self._servers.connections(), address, group, each.queue, end, within.remaining()
                )
