"""Admission: how a message enters the store that may be meant for another place or another time.

A plain send goes straight into the store; which are plain ``_fast/sends.pyx`` decides. Every other message comes
through here, whoever puts it: a producer, a consumer that gives one back, the broker itself. So what becomes of a
message that asks for something is said once. What it asks for is looked at in this order, and the first that applies
decides where it goes (Java: ``HookUtils.handleScheduleMessage``, 5.5.0):

level  DELAY, a number above 0: it waits in the queue of its level
time   TIMER_…: it waits in the queue of the timer, or is refused (``later/timer.py``)

The services that bring a message to where it was meant for put it past admission: its properties still say what it
asked for, and it must not wait again. A message that is part of a transaction comes here when it is committed.
"""

from __future__ import annotations

import asyncio

from rocketcore._fast.properties import encode_properties
from rocketcore._fast.record import delay_level
from rocketcore._fast.sends import ASKS_TIMER, asked_by
from rocketcore.broker.later.delay import schedule
from rocketcore.broker.later.timer import TimerService
from rocketcore.broker.state.topic_config import TopicConfigs
from rocketcore.broker.stats import BrokerStats
from rocketcore.broker.store import MessageStore, PutResult, PutStatus, StoredMessage
from rocketcore.codes import DLQ_TOPIC_PREFIX, TIMER_TOPIC, ResponseCode
from rocketcore.errors import BrokerError
from rocketcore.message import DELAY

_PUT_CODES = {
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_BUSY,
}


class Admission:
    """Puts messages by what they ask for. Loop thread only."""

    def __init__(self, store: MessageStore, stats: BrokerStats, topics: TopicConfigs, timer: TimerService) -> None:
        self._store = store
        self._timer = timer
        self._stats = stats
        self._topics = topics
        self._levels = len(store.config.delay_levels)

    def put(self, message: StoredMessage, properties: dict[str, str], *, is_sent: bool = False) -> PutResult:
        """Put a message where it has to wait, or else where it says; raises BrokerError where it asks for too much.

        properties  what it carries and asks by; its own text follows from them, as they are changed here
        is_sent     as ``Appender.put`` has it
        returns     what the store says, PUT_OK or not; ``stored`` waits until it is durable
        """
        place = self._place(message, properties)
        place.properties = encode_properties(properties)
        result = self.count(message.topic, self._store.put(place, is_sent=is_sent), message.queue_id)
        if place.topic == TIMER_TOPIC and result.status is PutStatus.PUT_OK:
            self._timer.was_put(result, properties)
        return result

    def check(self, message: StoredMessage, properties: dict[str, str]) -> None:
        """Refuse what ``put`` would refuse now: a half message asks for it when it is committed; raises BrokerError."""
        self._place(message, dict(properties))

    def _place(self, message: StoredMessage, properties: dict[str, str]) -> StoredMessage:
        """Return the message for where it has to wait, or itself; its properties are changed."""
        if delay_level(properties.get(DELAY, "")) > 0:
            drop_asking(properties, ASKS_TIMER)
            return schedule(message, properties, self._levels)
        if any(asked_by(name) == ASKS_TIMER for name in properties):
            return self._timer.schedule(message, properties)
        return message

    def count(self, topic: str, result: PutResult, queue_id: int = 0) -> PutResult:
        """Count what was put, or was not, for a queue of a topic."""
        if result.status is PutStatus.PUT_OK:
            self._stats.count_put(topic, result.count or 1, result.size, queue_id=queue_id)
        else:
            self._stats.count_put_failure()
        return result

    async def stored(self, result: PutResult) -> PutStatus:
        """Wait until what was put counts as stored by the flush mode, or will not."""
        outcome: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()

        def settle(status: PutStatus) -> None:
            if not outcome.done():
                outcome.set_result(status)

        self._store.wait(result.end_offset, settle)
        return await outcome

    def make_dead_letter(self, message: StoredMessage, group: str) -> None:
        """Address a message to the dead letters of a group."""
        message.topic = DLQ_TOPIC_PREFIX + group
        message.queue_id = 0
        self._topics.ensure(message.topic, 1)

    def refusal(self, result: PutResult) -> BrokerError:
        """Why nothing was stored, as an answer to who sent it."""
        code = _PUT_CODES.get(result.status, ResponseCode.SYSTEM_ERROR)
        return (
            self.illegal()
            if code == ResponseCode.MESSAGE_ILLEGAL
            else BrokerError.of(code, result.reason or result.status.value)
        )

    def illegal(self) -> BrokerError:
        """The answer to a message that no store takes."""
        return BrokerError.of(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {self._store.config.max_message_size}B, msg properties length limit 32KB.",
        )


def drop_asking(properties: dict[str, str], asks: int) -> None:
    """Take out the properties by which a message asks for any of ``asks``."""
    for name in [name for name in properties if asked_by(name) & asks]:
        del properties[name]
