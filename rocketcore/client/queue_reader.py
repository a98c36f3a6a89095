"""QueueReader: pulls one queue into its process queue, as long as there is room.

One pull is outstanding at a time. A broker holds a pull that finds nothing (long polling), so an idle queue costs one
request every 15 seconds. What happens to the messages is the consumer's part.

RocketMQ 5.5.0: ``PullMessageService``, ``DefaultMQPushConsumerImpl.pullMessage``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final, NamedTuple

from rocketcore.client import api
from rocketcore.client.api import PullResult, PullStatus
from rocketcore.client.process_queue import ProcessQueue
from rocketcore.client.subscriber import Subscriber
from rocketcore.codes import MASTER_ID, PullSysFlag
from rocketcore.errors import (
    BrokerError,
    DecodeError,
    FlowControl,
    RocketError,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    TransportError,
)
from rocketcore.filter import TAG
from rocketcore.message import ReceivedMessage, hand_out, leave_namespace
from rocketcore.protocol.bodies.heartbeat import SubscriptionData
from rocketcore.protocol.headers.message import PullMessageRequestHeader
from rocketcore.protocol.message import decode_messages, first_place
from rocketcore.warning import warn

__all__ = ["QueueReader"]

logger = logging.getLogger(__name__)

PULL_DELAY_ON_ERROR: Final = 1.0
PULL_DELAY_ON_FLOW_CONTROL: Final = 0.02
REQUEST_MARGIN: Final = 15.0
TIMES_UNDECODED: Final = 3
TIMES_BEHIND: Final = 2
"""Answers after one another that have a queue end before what was read of it, until that is believed."""
LOOK_INTERVAL: Final = 30.0
"""Seconds between looks at the last message of a queue whose messages a filter keeps from us."""
STEP_BACK: Final = 1000
"""Messages that are read again of a queue that lost its last ones, where its times do not tell how many."""


class Place(NamedTuple):
    """Where a message is stored, and since when: two messages of one queue and offset differ in it."""

    physical_offset: int
    store_timestamp: int


class Last(NamedTuple):
    """A message of what was read of a queue: what tells the queue from one that took its place."""

    offset: int
    place: Place


class QueueReader:
    """One owned queue: its process queue and the task that pulls into it."""

    __slots__ = (
        "_at_end", "_broker_id", "_consumer", "_failing", "_last", "_looked", "_looked_at", "_max_offset",
        "_may_be_another", "_task", "_times_behind", "_times_undecoded", "_undecoded", "process_queue",
    )  # fmt: skip

    def __init__(self, consumer: Subscriber, process_queue: ProcessQueue) -> None:
        self.process_queue = process_queue
        self._consumer = consumer
        self._broker_id = MASTER_ID
        self._at_end = False
        """Whether the next pull begins at the end of the queue as we know it, and may be held until it grows."""
        self._failing = False
        self._last: Last | None = None
        self._looked = -1
        """Where the next pull began when we looked at the message before it, and when that was, in monotonic time."""
        self._looked_at = 0.0
        self._max_offset = 0
        """Where the queue ended when its master last said."""
        self._may_be_another = False
        """Whether another queue may have taken the place of ours: its broker was away, or has it end earlier."""
        self._times_behind = 0
        self._undecoded = -1
        """Offset of the last pull whose answer did not begin with a message that decodes, and how often that was so."""
        self._times_undecoded = 0
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

    def stop_pulling(self) -> None:
        """Pull nothing more; what is here may be handed out."""
        if self._task is not None:
            self._task.cancel()

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
                self._failing, self._at_end = True, False  # a pull that is held would not tell what the queue is now
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
        address, broker_id = consumer.instance.routes.subscribe_address(queue.broker, self._broker_id)
        with_subscription = bool(consumer.pull_flags & PullSysFlag.SUBSCRIPTION) and subscription is not None
        header = PullMessageRequestHeader(
            consumer_group=consumer.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=begun,
            max_msg_nums=config.pull_batch_size if self._undecoded != begun else 1,
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
            self._may_be_another = True
            consumer.pulled(queue)
        self._broker_id = result.suggest_which_broker_id
        # Where files of a queue are deleted, Apache names the next file with PULL_NOT_FOUND; but a pull that it may
        # hold is answered only when it looks at all that it holds, each 5 seconds, and so for each file.
        self._at_end = result.next_begin_offset in (process_queue.next_offset, result.max_offset)
        if process_queue.dropped:
            return 0.0
        if result.status is PullStatus.OFFSET_ILLEGAL:
            return await self._offset_moved(result, begun, address, broker_id == MASTER_ID)
        self._times_behind = 0
        if broker_id == MASTER_ID:
            if self._may_be_another or result.max_offset < self._max_offset:
                self._may_be_another = True  # also if this fails
                if await self._differs(result, address):
                    await self._find_again(result, address)
                    return 0.0
                self._may_be_another = False
                if process_queue.dropped:
                    return 0.0
            self._max_offset = result.max_offset
        messages: list[ReceivedMessage] = []
        next_offset = result.next_begin_offset
        if result.status is PullStatus.FOUND:
            try:
                messages, next_offset = self._wanted(result, subscription)
            except DecodeError as error:
                # Once it may have been the way; then it is asked for alone, and then it is what keeps all others back.
                self._times_undecoded = self._times_undecoded + 1 if self._undecoded == begun else 1
                self._undecoded = begun
                if self._times_undecoded < TIMES_UNDECODED:
                    raise
                self._skipped(error)
                next_offset = begun + 1
        if self._at_end and not messages:
            await self._note_last(begun, next_offset, result.min_offset, address)
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
            skipped=self._skipped,
        )
        if messages:  # also one that the subscription does not ask for
            read = messages[-1]
            place = Place(read.physical_offset, read.store_timestamp)
            self._last = Last(read.offset + result.offset_delta, place)
        next_offset = result.next_begin_offset
        if last:
            next_offset = last[0].offset + result.offset_delta + 1
        if subscription is not None and subscription.expression_type == TAG and subscription.tags_set:
            tags = subscription.tags_set
            messages = [message for message in messages if message.tag in tags]
        leave_namespace(messages, self._consumer.config.namespace)
        hand_out(messages, self._consumer.take_result, self._consumer.take_reply, result.offset_delta)
        return messages, next_offset

    def _skipped(self, error: DecodeError) -> None:
        """Tell of a record that is no message."""
        text = "damaged message passed over group=%s queue=%s behind the pull at offset=%d error=%s"
        warn(logger, text, self._consumer.group, self.process_queue.queue, self.process_queue.next_offset, error)

    def _unreadable(self, message: ReceivedMessage, error: DecodeError) -> None:
        """Hand a message out as it is stored: one that is never read would keep all behind it from being read."""
        group = self._consumer.group
        text = "body not decoded group=%s queue=%s offset=%d error=%s"
        kind = "body", message.topic
        self._consumer.failures.warn(kind, text, group, message.queue, message.offset, error)

    async def _offset_moved(self, result: PullResult, begun: int, address: str, from_master: bool) -> float:
        """Go on where the broker says, or where nothing is lost: the queue does not have the offset asked for.

        What was pulled before is ours to hand out, though the broker has deleted it. A group that was reset begins at
        its new offset with nothing from before. Returns how long to wait before the next pull.
        """
        consumer, process_queue = self._consumer, self.process_queue
        moved, in_range = result.next_begin_offset, result.min_offset <= begun <= result.max_offset
        if result.reset or (in_range and moved != begun):
            await self._go_to(moved, "those of the group were reset")
        elif begun > result.max_offset:
            return await self._behind_the_end(result, address, from_master)
        elif moved == begun:  # a broker that does not know its queue
            return PULL_DELAY_ON_ERROR
        else:
            process_queue.put([], moved)
            self._tell_moved(f"{moved - begun} offsets were deleted unread", begun, moved)
            consumer.arrived(process_queue)
        return 0.0

    async def _behind_the_end(self, result: PullResult, address: str, from_master: bool) -> float:
        """Find where to go on in a queue that ends before what was read of it; return as ``_offset_moved``.

        A slave may only be late, and an empty queue may be one that its broker has not read yet: neither moves us.
        """
        self._may_be_another, self._at_end = True, False
        self._times_behind += 1
        if not from_master:
            self._broker_id = MASTER_ID
            return PULL_DELAY_ON_ERROR
        if result.max_offset == 0 or self._times_behind < TIMES_BEHIND:
            return PULL_DELAY_ON_ERROR
        await self._find_again(result, address)
        return 0.0

    async def _find_again(self, result: PullResult, address: str) -> None:
        """Go on in a queue that is not what was read of it: where it begins to differ, or anew if it is another one."""
        process_queue, last, remoting = self.process_queue, self._last, self._consumer.instance.remoting
        queue, earliest = process_queue.queue, -1
        with contextlib.suppress(BrokerError, DecodeError):  # one that does not say
            earliest = await api.earliest_store_time(remoting, address, queue, REQUEST_MARGIN)
        if last is None or not 0 <= earliest <= last.place.store_timestamp:
            await self._begin_anew(result, address)
            return
        # It holds messages that are older than what we read of it: it is the same, and has lost its last ones. Those
        # that have taken their places were stored later than all that we read.
        offset = -1
        with contextlib.suppress(BrokerError, DecodeError):
            time = last.place.store_timestamp + 1
            offset = await api.search_offset(remoting, address, queue, time, REQUEST_MARGIN)
        kept = last.offset < result.max_offset and await self._place_at(last.offset, address) == last.place
        if kept:  # what was lost is what a filter has kept from us
            offset = last.offset + 1
        elif not 0 <= offset <= last.offset:  # a clock that went back, or a broker that does not say
            offset = last.offset - STEP_BACK
        offset = max(min(offset, process_queue.commit_offset, result.max_offset), result.min_offset)
        await self._go_to(offset, "the queue has lost its end")

    async def _begin_anew(self, result: PullResult, address: str) -> None:
        """Go on in a queue that is another one than before, where the group stands in it, or else at its beginning."""
        queue, offsets = self.process_queue.queue, self._consumer.offsets
        stored = await offsets.stored(queue, address)
        # What we have stored ourselves is of the queue that was.
        if stored is not None and result.min_offset <= stored <= result.max_offset and stored != offsets.written(queue):
            await self._go_to(stored, "the queue begins anew, its group has stored this")
        else:
            await self._go_to(result.min_offset, "the queue begins anew, and is read from its first message on")

    async def _differs(self, result: PullResult, address: str) -> bool:
        """Say whether the last message that we read is another one now; one that is deleted tells nothing."""
        last = self._last
        if last is None or not result.min_offset <= last.offset < result.max_offset:
            return False
        place = await self._place_at(last.offset, address)
        return place is not None and place != last.place

    async def _note_last(self, begun: int, next_offset: int, min_offset: int, address: str) -> None:
        """Look at the message before the next pull where no pull has brought it: there has to be one to compare with.

        A member that starts where the group stands, and one whose filter lets nothing through, has read none.

        raises  TransportError where the pull has passed messages over: its broker goes, and another queue may come
        """
        offset, last = next_offset - 1, self._last
        now = self._consumer.clock.monotonic()
        if offset < min_offset or next_offset == self._looked or (last is not None and last.offset >= offset):
            return
        if last is not None and last.offset >= min_offset and now - self._looked_at < LOOK_INTERVAL:
            return
        try:
            place = await self._place_at(offset, address)
        except TransportError:
            if last is None and next_offset > begun:
                raise
            return
        except RocketError as error:  # without it nothing is compared
            logger.info("last message not seen queue=%s offset=%d error=%s", self.process_queue.queue, offset, error)
            place = None
        self._looked, self._looked_at = next_offset, now
        if place is not None:
            self._last = Last(offset, place)

    async def _place_at(self, offset: int, address: str) -> Place | None:
        """Ask for the place of the message at an offset; None where there is none."""
        queue = self.process_queue.queue
        header = PullMessageRequestHeader(
            consumer_group=self._consumer.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=1,
            sys_flag=int(PullSysFlag.SUBSCRIPTION),
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
            expression_type=TAG,
            bname=queue.broker,
        )
        result = await api.pull_message(self._consumer.instance.remoting, address, header, REQUEST_MARGIN)
        place = first_place(result.body) if result.status is PullStatus.FOUND else None
        return None if place is None else Place(*place)

    async def _go_to(self, offset: int, why: str) -> None:
        """Read on at another offset, which is the group's from now on; what is being worked on does not count."""
        process_queue, consumer = self.process_queue, self._consumer
        self._tell_moved(why, process_queue.next_offset, offset)
        process_queue.restart(offset)
        self._last, self._looked, self._times_behind, self._may_be_another, self._at_end = None, -1, 0, False, False
        consumer.offsets.update(process_queue.queue, offset, reset=True)
        await consumer.offsets.persist([process_queue.queue], asked=True)
        consumer.arrived(process_queue)

    def _tell_moved(self, why: str, begun: int, moved: int) -> None:
        text = "offset moved, %s group=%s queue=%s from=%d to=%d"
        warn(logger, text, why, self._consumer.group, self.process_queue.queue, begun, moved)
