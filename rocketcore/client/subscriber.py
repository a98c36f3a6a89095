"""Subscriber: a consumer as those see it that it is made of, its queues' readers and what answers brokers.

What it is subscribed to, what brokers refuse it and what keeps it from receiving is here; joining the group, owning
queues and leaving are a ``GroupConsumer``'s part.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from rocketcore.client.config import GROUP_NEEDED, ConsumerConfig
from rocketcore.client.instance import ClientInstance
from rocketcore.client.listeners import refuse_in_listener
from rocketcore.client.offset_store import OffsetStore
from rocketcore.client.problems import Gaps, Problems, find_filter_refusal
from rocketcore.client.process_queue import ProcessQueue
from rocketcore.client.standing import Watermarks, committed, lag, watermarks
from rocketcore.client.subscription import Noted
from rocketcore.codes import DEFAULT_CONSUMER_GROUP, DEFAULT_PRODUCER_GROUP, RETRY_TOPIC_PREFIX, PullSysFlag
from rocketcore.errors import (
    BrokerError,
    BrokerSystemError,
    ClientClosed,
    ConfigError,
    GroupNotExist,
    NoPermission,
    RequestNotSupported,
    RequestTimeout,
    RocketError,
    SubscriptionParseFailed,
    TransportError,
)
from rocketcore.filter import SQL92, TAG, check_filter
from rocketcore.message import Message, MessageQueue, ReceivedMessage, ReplyFuture
from rocketcore.naming import check_topic, with_namespace, without_namespace
from rocketcore.protocol.bodies.client import CMResult, ProcessQueueInfo
from rocketcore.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from rocketcore.service import Clock
from rocketcore.warning import Recurring, warn

if TYPE_CHECKING:
    from rocketcore.client.handler import MessageHandler
    from rocketcore.client.replies import Replies

__all__ = ["Subscriber"]

logger = logging.getLogger(__name__)

JOIN_GRACE: Final = 5.0
"""Seconds that a broker may take to know a member of a group."""
RETRY_TOPIC_GRACE: Final = 60.0
LOOK_AGAIN: Final = 0.05
"""Seconds between two looks at what does not always say that it has come, or ended."""
_REFUSALS: Final = (SubscriptionParseFailed, NoPermission, GroupNotExist, RequestNotSupported)
"""Answers to a pull, or a POP, that waiting does not change: somebody has to."""

_START_FROM: Final = {
    "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
}


class Subscriber:
    """The subscriptions of a member of a consumer group, and what it lacks at the moment.

    instance, offsets  there when it has started
    """

    consume_type = ConsumeType.CONSUME_PASSIVELY
    pull_flags = int(PullSysFlag.SUSPEND)
    instance: ClientInstance
    offsets: OffsetStore

    def __init__(self, config: ConsumerConfig, clock: Clock) -> None:
        if without_namespace(config.group, config.namespace) in (DEFAULT_CONSUMER_GROUP, DEFAULT_PRODUCER_GROUP):
            raise ConfigError(GROUP_NEEDED)
        self.config = config
        self.group = config.group
        self.clock = clock
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._started = False
        self._closed = False
        self.revoking = False
        """Whether ``on_revoke`` is called for the last time: until it returns, offsets may be committed."""
        self.listens_on_threads = False
        """Whether plain functions that listen may call a blocking consumer."""
        self._news = asyncio.Event()
        """Set when who waits for this consumer may have something to see."""
        self._problems = Problems(config.group)
        self.failures = Recurring(logger, clock)
        """Told of what fails with message after message."""
        self.gaps = Gaps(config.group)
        self._refusals: dict[object, RocketError] = {}
        """What brokers refuse whatever we wait: by queue, or by topic for a filter that was asked about."""
        self.started_at = 0
        self._version = 0
        self._loop: asyncio.AbstractEventLoop
        self._replies: Replies | None = None
        self._reply_lock = threading.Lock()  # guards that there is one; messages are for any thread
        self._ended = asyncio.Event()
        self._soon: asyncio.Handle | None = None
        """Joins the topics that were subscribed to, unless someone awaits that first."""
        self._joins: set[asyncio.Task[None]] = set()

    @property
    def client_id(self) -> str:
        """The name under which brokers know this consumer; raises ConfigError before it started."""
        try:
            return self.instance.client_id
        except AttributeError:
            raise ConfigError(f"the consumer of group {self.group!r} has no client id before it starts") from None

    @property
    def is_open(self) -> bool:
        """Whether it has started, and not ended."""
        return self._started and not self._ended.is_set()

    # Life

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the group and begin to receive; a second call does nothing."""
        raise NotImplementedError

    async def _join(self) -> None:
        """Tell the brokers of the subscribed topics of this consumer."""
        await self._find_routes()
        await self._check_filters()
        await self.instance.heartbeat()

    async def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait until messages of every subscribed topic can come.

        raises  ConfigError without a subscription; a broker's refusal; RequestTimeout after ``timeout`` seconds, whose
                text names the missing part
        """
        refuse_in_listener(self, "wait_ready")
        self._check_subscribed()
        try:
            async with asyncio.timeout(timeout):
                await self.start()
                await self._until_ready()
        except TimeoutError:
            why = f": {self._problems}" if self._problems else ""
            raise RequestTimeout(
                f"the consumer of group {self.group!r} is not ready after {timeout:g} s{why}"
            ) from None
        self.raise_refusal()

    async def _until_ready(self) -> None:
        """Wait until messages of every subscribed topic can come, or raise what a broker refuses."""
        raise NotImplementedError

    async def close(self) -> None:
        """Finish, and leave the group; a second call waits for the first."""
        raise NotImplementedError

    async def _find_routes(self) -> None:
        """Ask for the routes that are not known yet."""
        # The retry topic last: it may be missing, which must not hide that no name server answers.
        for topic in sorted(self.topics(), key=lambda each: (each == self.retry_topic, each)):
            try:
                await self.instance.route(topic)
            except RocketError as error:
                # brokers make the retry topic when they first hear of the group, and register it in their time
                grace = RETRY_TOPIC_GRACE if topic == self.retry_topic else 0.0
                self.note_problem(f"topic={topic}", error, grace)
                if isinstance(error, TransportError):
                    break  # all name servers failed: the other topics would only wait for the same

    async def _check_filters(self) -> None:
        """Ask whether brokers can serve the filters that are more than tags; raises what they refuse."""
        for topic, subscription in list(self._subscriptions.items()):
            if self.instance.routes.find(topic) is not None:
                refusal = await find_filter_refusal(self.instance, self.group, subscription)
                if refusal is not None:
                    raise refusal

    async def _end(self) -> None:
        """Leave the group and tell who waits. A second call waits for the first."""
        if self._closed:
            await self._ended.wait()
            return
        self._closed = True
        self._news.set()
        try:
            if self._started:
                await self._leave_group()
        finally:
            self._ended.set()

    async def _leave_group(self) -> None:
        raise NotImplementedError

    async def _wait_for_news(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer was closed meanwhile")
        self._news.clear()
        await self._news.wait()

    def _check_subscribed(self) -> None:
        if not self.topics() and not self._closed:
            raise ConfigError(f"the consumer of group {self.group!r} has no subscription: it would receive nothing")

    # Subscriptions

    def wire_topic(self, topic: str) -> str:
        """Return the name that brokers know a topic by."""
        return with_namespace(topic, self.config.namespace)

    def wire_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue by the name that brokers know its topic by; raises ConfigError for what is no queue."""
        if not isinstance(queue, MessageQueue):
            raise ConfigError(f"a queue must be a MessageQueue, as queues() returns them, got {queue!r}")
        return MessageQueue(self.wire_topic(queue.topic), queue.broker, queue.queue_id)

    def add_subscription(self, topic: str, tag: str | None, sql: str | None) -> bool:
        """Note a subscription; return whether it is new or changed.

        raises  ConfigError for both a tag and an SQL expression, or an empty one; MessageIllegal for a bad topic name
        """
        for what, value in (("topic", topic), ("tag", tag or ""), ("sql", sql or "")):
            if not isinstance(value, str):
                raise TypeError(f"subscribe(): {what} must be text, got {type(value).__name__}")
        topic = self.wire_topic(topic)
        check_topic(topic)
        if tag is not None and sql is not None:
            raise ConfigError("give tag or sql, not both")
        check_filter(tag, sql)
        if self._closed:
            raise ClientClosed("the consumer is closed")
        expression, kind = (sql, SQL92) if sql is not None else (tag, TAG)
        known = self._subscriptions.get(topic)
        subscription = SubscriptionData.build(topic, expression, kind, self.next_version())
        if known is not None and known.sub_string == subscription.sub_string and known.expression_type == kind:
            return False
        self._subscriptions[topic] = subscription
        return True

    def next_version(self) -> int:
        """Return the version of a subscription that changes now: a time, but above the last, whatever the clock says.

        Brokers keep the subscription whose version is the highest.
        """
        self._version = max(self.clock.time_millis(), self._version + 1)
        return self._version

    def note_subscription(self, topic: str, tag: str | None, sql: str | None) -> Noted:
        """As ``add_subscription``; returns what ``join_topic`` takes."""
        wire_topic = self.wire_topic(topic) if isinstance(topic, str) else ""
        before = self._subscriptions.get(wire_topic)
        return Noted(wire_topic, before, self.add_subscription(topic, tag, sql))

    async def join_topic(self, noted: Noted) -> None:
        """Receive the messages of a topic that was subscribed to; starts the consumer.

        raises  a broker's refusal; the subscription is then as if it had not been tried
        """
        self._leave_joining()
        if not self._started:
            await self._or_forget(noted, self.start())
        elif noted.changed:
            await self._or_forget(noted, self._join())

    async def _or_forget(self, noted: Noted, joining: Coroutine[Any, Any, None]) -> None:
        """Join with a new subscription; one that is refused is as if it had not been tried."""
        try:
            await joining
        except BrokerError:
            self._subscriptions.pop(noted.topic, None)
            if noted.before is not None:
                self._subscriptions[noted.topic] = noted.before
            raise

    def join_soon(self) -> None:
        """Have brokers know of all subscriptions at the next turn of the loop, if the consumer runs."""
        if self._started and self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._join_now)

    def _leave_joining(self) -> None:
        """Somebody awaits what ``join_soon`` would do."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    def _join_now(self) -> None:
        self._soon = None
        task = asyncio.get_running_loop().create_task(self._join_or_tell(), name="consumer-join")
        self._joins.add(task)
        task.add_done_callback(self._joins.discard)

    async def _join_or_tell(self) -> None:
        try:
            await self._join()
        except RocketError as error:
            if not self._closed:
                warn(logger, "subscription refused group=%s error=%s", self.group, error)
                self.refused("subscription", error)

    async def _stop_joining(self) -> None:
        self._leave_joining()
        for task in self._joins:
            task.cancel()
        await asyncio.gather(*self._joins, return_exceptions=True)

    def set_handler(self, topic: str, handler: MessageHandler) -> None:
        """Give the messages of a topic a handler; raises ConfigError where that is not how messages are received."""
        raise ConfigError(f"a {type(self).__name__} has no handlers: it hands out messages to those who ask")

    def topics(self) -> set[str]:
        """Return the topics that this consumer reads, the group's retry topic among them."""
        topics = set(self._subscriptions)
        if topics and self._has_retry_topic():
            topics.add(self.retry_topic)
        return topics

    @property
    def retry_topic(self) -> str:
        """The topic that the group's failed messages come back by."""
        return RETRY_TOPIC_PREFIX + self.group

    def _has_retry_topic(self) -> bool:
        return False

    def find_subscription(self, topic: str) -> SubscriptionData | None:
        """Return the subscription by which a topic is read, the retry topic's as well."""
        if topic == self.retry_topic:
            return SubscriptionData.build(topic, sub_version=self.started_at)
        return self._subscriptions.get(topic)

    def consumer_data(self) -> ConsumerData:
        """Return this consumer's part of the heartbeat."""
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=MessageModel.BROADCASTING if self.config.broadcast else MessageModel.CLUSTERING,
            consume_from_where=(
                ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
                if isinstance(self.config.start_from, datetime)
                else _START_FROM[self.config.start_from]
            ),
            subscription_data_set=[
                subscription
                for topic in sorted(self.topics())
                if (subscription := self.find_subscription(topic)) is not None
            ],
        )

    def note_problem(self, what: str, error: RocketError, grace: float = 0.0) -> None:
        """Take notice of what keeps this consumer from receiving; when it is closed, that is nobody's concern."""
        if not self._closed:
            self._problems.note(what, error, self.clock, grace=grace)

    def refused(self, what: object, error: RocketError) -> None:
        """Take notice that a broker refuses what waiting does not change: who waits for messages gets the error."""
        self._refusals[what] = error
        self._news.set()

    def raise_refusal(self) -> None:
        """Raise a broker's refusal at the moment."""
        for error in self._refusals.values():
            raise error.with_traceback(None)

    def subscription(self) -> dict[str, str]:
        """Return what the consumer is subscribed to: by topic its tags (``a || b``, ``*``), or its SQL condition."""
        return {
            without_namespace(topic, self.config.namespace): each.sub_string
            for topic, each in sorted(self._subscriptions.items())
        }

    # Where it stands

    async def watermarks(self, queue: MessageQueue) -> Watermarks:
        """Return the offset of the first message that a queue still has, and the offset of its next message."""
        queue = self.wire_queue(queue)
        await self.start()
        return await watermarks(self.instance, queue)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset that the group has stored for a queue; None where it never stored one.

        A broker of 4.9 says 0 for None, as long as the queue's first message is in its memory.
        """
        queue = self.wire_queue(queue)
        await self.start()
        return await committed(self.instance, self.group, queue)

    async def lag(self) -> dict[MessageQueue, int]:
        """Return by queue how many messages wait, without the messages that this member is done with.

        Where brokers keep the group's position (``SimpleConsumer``, POP), it is of all queues of the subscribed topics,
        and counts what the group has not been given.
        """
        await self.start()
        positions = self._positions()
        for topic in {queue.topic for queue in positions}:
            await self.instance.route(topic)
        return await lag(self.instance, self.group, self.config.start_from, positions)

    def _positions(self) -> dict[MessageQueue, int | None]:
        """Return where this member stands in each queue; None where its broker knows."""
        return {queue: None for topic in sorted(self._subscriptions) for queue in self._queues_of(topic)}

    def _queues_of(self, topic: str) -> list[MessageQueue]:
        route = self.instance.routes.find(topic)
        return [] if route is None else sorted(route.subscribe)

    # What readers ask of their consumer

    def pulled(self, queue: MessageQueue) -> None:
        """Called when a pull was answered that had failed before."""
        self._refusals.pop(queue, None)
        self._problems.over(f"topic={queue.topic} broker={queue.broker}")
        self._news.set()

    async def pull_failed(self, queue: MessageQueue, error: RocketError) -> None:
        """Called when a pull failed: what waiting does not change is for who waits for messages."""
        grace = JOIN_GRACE if isinstance(error, TransportError) else 0.0
        self.note_problem(f"topic={queue.topic} broker={queue.broker}", error, grace)
        if isinstance(error, BrokerSystemError):  # which is also how brokers refuse a kind of filter
            subscription = self.find_subscription(queue.topic)
            refusal = await find_filter_refusal(self.instance, self.group, subscription) if subscription else None
        else:
            refusal = error if isinstance(error, _REFUSALS) else None
        if refusal is not None:
            self.refused(queue, refusal)

    def take_result(self, message: ReceivedMessage, result: object, delay: float | None) -> None:
        """Take what became of a message; messages of a pull consumer have no result of their own."""
        raise ConfigError("messages of a PullConsumer are not acknowledged one by one: call commit()")

    def take_reply(self, reply: Message) -> ReplyFuture:
        """Send a reply to a message that was handed out."""
        if self._closed and self._replies is None:
            raise ClientClosed("the consumer is closed")
        with self._reply_lock:
            if self._replies is None:
                from rocketcore.client.replies import Replies  # few consumers reply

                self._replies = Replies(self.config, self.instance, self.clock, self._loop)
        return self._replies.send(reply)

    async def _finish_replies(self) -> None:
        """Send the replies that were handed over."""
        if self._replies is not None:
            await self._replies.finish(self.config.close_timeout)

    def arrived(self, process_queue: ProcessQueue) -> None:
        """Called when a queue has messages that no one works on, and after each pull."""

    # What brokers ask

    def group_changed(self) -> None:
        """Look again who owns which queue, now, after what is done has been stored: the next owner will ask for it."""

    async def reset(self, offsets: dict[MessageQueue, int]) -> None:
        """Go on at other offsets in queues that are owned; messages from before do not count any more."""

    def process_queues(self) -> list[ProcessQueue]:
        """Return the process queues of all owned queues."""
        raise NotImplementedError

    def process_queue_info(self, process_queue: ProcessQueue) -> ProcessQueueInfo:
        """Return what an administrator is shown of an owned queue."""
        return process_queue.info()

    async def consume_directly(self, message: ReceivedMessage) -> tuple[CMResult, str | None]:
        """Consume one message now, because an administrator asked; a consumer without handlers cannot."""
        return CMResult.CR_THROW_EXCEPTION, "this consumer has no handlers"

    def subscriptions(self) -> list[SubscriptionData]:
        """Return the subscriptions, the retry topic's among them."""
        return self.consumer_data().subscription_data_set
