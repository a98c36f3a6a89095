"""DeadLetterAdmin: messages that a group failed for too often, and their way back to it.

They lie in the topic ``%DLQ%group``. A redrive has the broker copy one to the group's retry topic, as when a consumer
sends a message back (request 36): no other group of its topic sees it again. How far that is, is the group's offset
in ``%DLQ%group``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocketcore.admin.clients import ClientAdmin
from rocketcore.admin.messages import messages_in, pull_header
from rocketcore.admin.requests import topic_stats
from rocketcore.client import api
from rocketcore.codes import DLQ_TOPIC_PREFIX, MASTER_ID
from rocketcore.errors import RocketError, RouteNotFound, TopicNotExist
from rocketcore.message import MessageQueue
from rocketcore.protocol.headers.message import ConsumerSendMsgBackRequestHeader
from rocketcore.service import Deadline

if TYPE_CHECKING:
    from rocketcore.message import ReceivedMessage
    from rocketcore.protocol.bodies.stats import TopicOffset

__all__ = ["DeadLetterAdmin", "DeadLetterQueue", "RedrivePace", "way_back"]

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


def way_back(group: str, message: ReceivedMessage) -> ConsumerSendMsgBackRequestHeader:
    """Return what has a broker copy a dead letter to the retry topic of its group."""
    return ConsumerSendMsgBackRequestHeader(
        offset=message.physical_offset,
        group=group,
        delay_level=_ONE_SECOND_LEVEL,
        origin_msg_id=message.msg_id,
        origin_topic=message.queue.topic,
        max_reconsume_times=_ANY_TIMES,
    )


class DeadLetterAdmin(ClientAdmin):
    """The part of ``AsyncAdmin`` about dead letters."""

    async def dead_letter_groups(self) -> list[str]:
        """Return the groups that have a topic of dead letters, sorted; it may be empty."""
        topics = await self.topics()
        return sorted(each.removeprefix(DLQ_TOPIC_PREFIX) for each in topics if each.startswith(DLQ_TOPIC_PREFIX))

    async def dead_letter_queues(self, group: str) -> list[DeadLetterQueue]:
        """Return where the dead letters of a group lie; raises TopicNotExist where it never had any."""
        topic = DLQ_TOPIC_PREFIX + group
        deadline = self._deadline()
        masters = await self._masters_of(topic, deadline)
        tables = await self._by_name(masters, topic_stats(topic), self._share(deadline, 2))
        bounds: dict[MessageQueue, TopicOffset] = {}
        for table in tables.values():
            bounds.update(table)
        marks = await self._stored(group, topic, {name: masters[name] for name in tables}, deadline)
        found = []
        for queue, each in sorted(bounds.items()):
            mark = marks.get(queue, each.min_offset)
            # A mark behind the end is that of a topic that was deleted since.
            redriven = mark if each.min_offset <= mark <= each.max_offset else each.min_offset
            found.append(DeadLetterQueue(queue, each.min_offset, redriven, each.max_offset))
        return found

    async def dead_letter_count(self, group: str) -> int | None:
        """Return how many dead letters of a group were not redriven; None where a broker does not say."""
        self._connections()  # a client that may not be used here is no broker that does not say
        try:
            return sum(each.end - each.redriven for each in await self.dead_letter_queues(group))
        except (RouteNotFound, TopicNotExist):  # it never had any
            return 0
        except RocketError:
            return None

    async def dead_letters(self, queue: MessageQueue, offset: int, max_messages: int = 32) -> list[ReceivedMessage]:
        """Return dead letters of a queue from an offset on, as many as the broker gives at once; none at the end."""
        header = pull_header(queue, offset, max_messages)
        result = await self._at_broker_of(queue, lambda r, a, t: api.pull_message(r, a, header, t))
        return messages_in(result.body, queue.broker)

    async def redrive(self, group: str, messages: Sequence[ReceivedMessage]) -> int:
        """Have a group receive dead letters of one queue again, in order; return how many.

        Each is tried once more: a member that fails for it again makes it a dead letter again. After an error those
        before it are redriven, and the next ``dead_letter_queues`` says so; where the broker did not answer, one may be
        redriven twice.
        """
        if not messages:
            return 0
        deadline = self._deadline()
        queue = messages[0].queue
        address = await self._master_of(queue, deadline)
        remoting = self._connections()
        done = 0
        try:
            for message in messages:
                header = way_back(group, message)
                await api.send_message_back(remoting, address, header, deadline.remaining())
                done += 1
        finally:
            if done:
                mark = messages[done - 1].offset + 1
                within = Deadline(max(deadline.remaining(), 1.0), self._clock)
                await api.update_consumer_offset(remoting, address, group, queue, mark, within.remaining())
        return done

    async def _master_of(self, queue: MessageQueue, deadline: Deadline) -> str:
        route = await self._route(queue.topic, deadline)
        for data in route.broker_datas:
            if data.broker_name == queue.broker and MASTER_ID in data.broker_addrs:
                return data.broker_addrs[MASTER_ID]
        raise RouteNotFound(f"broker {queue.broker!r} has no master with topic {queue.topic!r}")
