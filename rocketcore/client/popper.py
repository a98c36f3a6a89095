"""Popper: takes messages of one topic at one broker, and knows when to ask it again.

A broker is not asked to hold a POP: what that brought after its caller had gone would be invisible to all. It is asked
to say when there is something (NOTIFICATION), which takes nothing.

RocketMQ 5.5.0: ``DefaultMQPushConsumerImpl.popMessage``.
"""

from __future__ import annotations

import uuid
from typing import Final

from rocketcore.client import pop_api
from rocketcore.client.pop_api import MAX_POP
from rocketcore.client.receipts import Receipt, Receipts
from rocketcore.client.subscriber import Subscriber
from rocketcore.errors import RequestTimeout, RocketError
from rocketcore.filter import TAG
from rocketcore.message import MessageQueue, ReceivedMessage, hand_out, leave_namespace
from rocketcore.protocol.headers.pop import NotificationRequestHeader, PopMessageRequestHeader
from rocketcore.service import Backoff

__all__ = ["ANY_QUEUE", "HOLD_SECONDS", "Popper"]

ANY_QUEUE: Final = -1
HOLD_SECONDS: Final = 3.0
"""How long a broker may keep us waiting for its word that there is something. It gives that to one of a group: one that
has found work meanwhile, or has died, keeps it from the others for so long at most."""
POP_TIMEOUT: Final = 3.0
HOLD_MARGIN: Final = 5.0
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
_FROM_FIRST, _FROM_LAST = 0, 1


class Popper:
    """One topic at one broker, in all of its queues (``ANY_QUEUE``) or in one.

    In order, a POP of which no answer came is made again under its attempt id: the broker gives what it gave.
    """

    __slots__ = ("_attempt_id", "_consumer", "_not_before", "_pauses", "_promised", "_receipts", "queue")

    def __init__(self, consumer: Subscriber, receipts: Receipts, queue: MessageQueue) -> None:
        self.queue = queue
        self._consumer = consumer
        self._receipts = receipts
        self._not_before = 0.0
        self._promised = False
        self._attempt_id: str | None = None
        self._pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)

    @property
    def pause(self) -> float:
        """For how many seconds it is to be left alone: it failed, or has nothing for us though it said so."""
        return max(0.0, self._not_before - self._consumer.clock.monotonic())

    def _leave_alone(self, seconds: float) -> None:
        self._not_before = self._consumer.clock.monotonic() + seconds

    def failed(self, error: RocketError) -> None:
        """Leave it alone for a while; longer where it was waited for in vain."""
        self._leave_alone(LONGEST_PAUSE if isinstance(error, RequestTimeout) else self._pauses.next())

    async def take(self, limit: int) -> list[ReceivedMessage]:
        """Take up to ``limit`` messages, at most ``MAX_POP``; each is tied to its receipt.

        raises  what the request failed with
        """
        consumer, queue = self._consumer, self.queue
        subscription = consumer.find_subscription(queue.topic)
        if subscription is None:
            return []
        config = consumer.config
        if config.ordered and self._attempt_id is None:
            self._attempt_id = uuid.uuid4().hex
        header = PopMessageRequestHeader(
            consumer_group=consumer.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            max_msg_nums=min(limit, MAX_POP),
            invisible_time=round(config.invisible * 1000),
            poll_time=0,
            born_time=0,  # the broker takes its own clock: ours may differ
            init_mode=_FROM_FIRST if config.start_from == "first" else _FROM_LAST,
            order=config.ordered,
            attempt_id=self._attempt_id,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            bname=queue.broker,
        )
        asked_at = consumer.clock.monotonic()
        address = consumer.instance.routes.publish_address(queue.broker)
        popped = await pop_api.pop_messages(consumer.instance.remoting, address, header, queue.broker, POP_TIMEOUT)
        self._attempt_id = None
        if popped:
            self._pauses.reset()
        elif self._promised:  # others were quicker, or it counts messages that it does not give us
            self._leave_alone(self._pauses.next())
        self._promised = False
        tags = subscription.tags_set if subscription.expression_type == TAG else set()
        messages: list[ReceivedMessage] = []
        unwanted: list[Receipt] = []
        for message, handle in popped:
            receipt = Receipt(self._receipts, message.topic, handle, asked_at + config.invisible)
            if tags and message.tag not in tags:  # brokers compare hashes of tags
                unwanted.append(receipt)
                continue
            hand_out([message], receipt, consumer.take_reply)
            messages.append(message)
        leave_namespace(messages, config.namespace)
        self._receipts.acknowledge(unwanted)
        return messages

    async def look(self, seconds: float) -> bool:
        """Wait until there is something to take, up to ``seconds``; raises what the request failed with."""
        consumer, queue = self._consumer, self.queue
        subscription = consumer.find_subscription(queue.topic)
        if subscription is None:
            return False
        header = NotificationRequestHeader(
            consumer_group=consumer.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            poll_time=round(seconds * 1000),
            born_time=0,
            order=consumer.config.ordered,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            bname=queue.broker,
        )
        asked_at = consumer.clock.monotonic()
        address = consumer.instance.routes.publish_address(queue.broker)
        answer = await pop_api.has_message(consumer.instance.remoting, address, header, seconds + HOLD_MARGIN)
        self._promised = answer.has_msg
        if not answer.has_msg and consumer.clock.monotonic() - asked_at < min(seconds, FIRST_PAUSE):
            self._leave_alone(self._pauses.next())  # it holds as many as it can, or none: it would be asked at once
        return answer.has_msg
