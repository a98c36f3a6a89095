"""QueueReader: pulls one queue into its process queue, as long as there is room.

One pull is outstanding at a time. A broker holds a pull that finds nothing (long polling), so an idle queue costs one
request every 15 seconds. What happens to the messages is the consumer's part.

RocketMQ 5.5.0: ``PullMessageService``, ``DefaultMQPushConsumerImpl.pullMessage``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from rocketcore.client import api
from rocketcore.client.api import PullResult, PullStatus
from rocketcore.client.process_queue import ProcessQueue
from rocketcore.client.subscriber import Subscriber
from rocketcore.codes import MASTER_ID, PullSysFlag
from rocketcore.errors import (
    DecodeError,
    FlowControl,
    RocketError,
    SubscriptionNotExist,
    SubscriptionNotLatest,
)
from rocketcore.filter import TAG
from rocketcore.message import ReceivedMessage, hand_out, leave_namespace
from rocketcore.protocol.bodies.heartbeat import SubscriptionData
from rocketcore.protocol.headers.message import PullMessageRequestHeader
from rocketcore.protocol.message import decode_messages
from rocketcore.warning import warn

__all__ = ["QueueReader"]

logger = logging.getLogger(__name__)

PULL_DELAY_ON_ERROR: Final = 1.0
PULL_DELAY_ON_FLOW_CONTROL: Final = 0.02
REQUEST_MARGIN: Final = 15.0


class QueueReader:
    """One owned queue: its process queue and the task that pulls into it."""

    __slots__ = ("_at_end", "_broker_id", "_consumer", "_failing", "_task", "process_queue")

    def __init__(self, consumer: Subscriber, process_queue: ProcessQueue) -> None:
        self.process_queue = process_queue
        self._consumer = consumer
        self._broker_id = MASTER_ID
        self._at_end = False
        """Whether the next pull begins at the end of the queue as we know it, and may be held until it grows."""
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to pull."""
        name = f"consumer-pull-{self.process_queue.queue.topic}"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    def drop(self) -> asyncio.Task[None] | None:
        """Stop pulling for good; return the task that ends, if there is one."""
        self.process_queue.dropped = True
        if self._task is not None:
            self._task.cancel()
        return self._task

    def set_paused(self, paused: bool) -> None:
        """Stop or resume pulling, and handing out what is here."""
        if self.process_queue.paused == paused:
            return
        self.process_queue.paused = paused
        if paused and self._task is not None:
            # a pull that the broker holds would still bring messages
            self._task.cancel()
            self.start()
        self._consumer.arrived(self.process_queue)

    async def _run(self) -> None:
        consumer, process_queue = self._consumer, self.process_queue
        while not process_queue.dropped:
            await process_queue.room.wait()
            delay = 0.0
            try:
                delay = await self._pull()
            except FlowControl:
                delay = PULL_DELAY_ON_FLOW_CONTROL
            except (SubscriptionNotExist, SubscriptionNotLatest):
                # The broker has lost our heartbeat, or has not had the newest one.
                await consumer.instance.heartbeat()
                delay = PULL_DELAY_ON_ERROR
            except RocketError as error:
                logger.info("pull failed group=%s queue=%s error=%s", consumer.group, process_queue.queue, error)
                self._failing = True
                await consumer.pull_failed(process_queue.queue, error)
                delay = PULL_DELAY_ON_ERROR
                self._broker_id = MASTER_ID
                if error.refresh_route:
                    await consumer.instance.try_refresh(process_queue.queue.topic)
            except Exception as error:
                text = "pull failed group=%s queue=%s error=%r"
                consumer.failures.warn(
                    ("pull", type(error)),
                    text,
                    consumer.group,
                    process_queue.queue,
                    error,
                    error=error,
                    level=logging.ERROR,
                )
                delay = PULL_DELAY_ON_ERROR
            if delay:
                await asyncio.sleep(delay)

    async def _pull(self) -> float:
        """Pull once; return how long to wait before the next time."""
        consumer, config, process_queue = self._consumer, self._consumer.config, self.process_queue
        queue, begun, may_hold = process_queue.queue, process_queue.next_offset, self._at_end
        asked_at = consumer.clock.monotonic()
        subscription = consumer.find_subscription(queue.topic)
        address, _ = consumer.instance.routes.subscribe_address(queue.broker, self._broker_id)
        with_subscription = bool(consumer.pull_flags & PullSysFlag.SUBSCRIPTION) and subscription is not None
        header = PullMessageRequestHeader(
            consumer_group=consumer.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=begun,
            max_msg_nums=config.pull_batch_size,
            sys_flag=consumer.pull_flags if may_hold else consumer.pull_flags & ~PullSysFlag.SUSPEND,
            commit_offset=0,
            suspend_timeout_millis=round(config.pull_timeout * 1000),
            sub_version=0 if with_subscription or subscription is None else subscription.sub_version,
            subscription=subscription.sub_string if with_subscription and subscription is not None else None,
            expression_type=subscription.expression_type if subscription is not None else TAG,
            bname=queue.broker,
        )
        timeout = config.pull_timeout + REQUEST_MARGIN
        result = await api.pull_message(consumer.instance.remoting, address, header, timeout)
        process_queue.last_pull = consumer.clock.monotonic()
        if self._failing:
            self._failing = False
            consumer.pulled(queue)
        self._broker_id = result.suggest_which_broker_id
        # Where files of a queue are deleted, Apache names the next file with PULL_NOT_FOUND; but a pull that it may
        # hold is answered only when it looks at all that it holds, each 5 seconds, and so for each file.
        self._at_end = result.next_begin_offset in (process_queue.next_offset, result.max_offset)
        if process_queue.dropped:
            return 0.0
        if result.status is PullStatus.OFFSET_ILLEGAL:
            if result.next_begin_offset == begun:  # a reset to where we are, or a broker that does not know its queue
                return PULL_DELAY_ON_ERROR
            await self._offset_moved(result)
            return 0.0
        messages: list[ReceivedMessage] = []
        next_offset = result.next_begin_offset
        if result.status is PullStatus.FOUND:
            messages, next_offset = self._wanted(result, subscription)
        if subscription is None or subscription.takes_all:
            consumer.gaps.find(queue, process_queue.next_offset, messages, next_offset)
        process_queue.put(messages, next_offset)
        consumer.arrived(process_queue)
        if may_hold and next_offset == begun and process_queue.last_pull - asked_at < PULL_DELAY_ON_FLOW_CONTROL:
            return PULL_DELAY_ON_FLOW_CONTROL  # a broker that holds no pull would be asked thousands of times a second
        return 0.0

    def _wanted(self, result: PullResult, subscription: SubscriptionData | None) -> tuple[list[ReceivedMessage], int]:
        """Return the messages of a pull that the subscription asks for, and where the next pull begins.

        A broker compares hashes of tags only. An answer whose bodies inflate to more than there is room for is taken up
        to there; the rest is pulled again.
        """
        process_queue = self.process_queue
        room = self._consumer.config.pull_threshold_bytes_for_queue - process_queue.cached_bytes
        last: list[ReceivedMessage] = []
        messages = decode_messages(
            result.body,
            process_queue.queue.broker,
            max_inflated_bytes=room,
            end_offset=result.next_begin_offset - result.offset_delta,
            stopped=last.append,
            unreadable=self._unreadable,
        )
        next_offset = result.next_begin_offset
        if last:
            next_offset = last[0].offset + result.offset_delta + 1
        if subscription is not None and subscription.expression_type == TAG and subscription.tags_set:
            tags = subscription.tags_set
            messages = [message for message in messages if message.tag in tags]
        leave_namespace(messages, self._consumer.config.namespace)
        hand_out(messages, self._consumer.take_result, self._consumer.take_reply, result.offset_delta)
        return messages, next_offset

    def _unreadable(self, message: ReceivedMessage, error: DecodeError) -> None:
        """Hand a message out as it is stored: one that is never read would keep all behind it from being read."""
        group = self._consumer.group
        text = "body not decoded group=%s queue=%s offset=%d error=%s"
        kind = "body", message.topic
        self._consumer.failures.warn(kind, text, group, message.queue, message.offset, error)

    async def _offset_moved(self, result: PullResult) -> None:
        """Go on where the broker says: the offset asked for is not in the queue any more, or not yet.

        What was pulled before is ours to hand out, though the broker has deleted it. Behind a queue's end it has the
        offsets of messages that are still to come: it does not count then.
        """
        consumer, process_queue = self._consumer, self.process_queue
        begun, moved = process_queue.next_offset, result.next_begin_offset
        if moved >= begun:
            what = f"{moved - begun} offsets were deleted unread"
            process_queue.put([], moved)
        else:
            what = "the queue ends before what was read of it"
            process_queue.clear()
            process_queue.next_offset = process_queue.max_offset = moved
            consumer.offsets.update(process_queue.queue, moved, reset=True)
        if result.min_offset <= begun <= result.max_offset:
            what = "those of the group were reset"
        text = "offset moved, %s group=%s queue=%s from=%d to=%d"
        warn(logger, text, what, consumer.group, process_queue.queue, begun, moved)
        if moved < begun:
            await consumer.offsets.persist([process_queue.queue])
        consumer.arrived(process_queue)
