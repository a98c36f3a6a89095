"""PullConsumer: the application asks for messages when it wants them, and says when they are done.

Messages are fetched ahead in the background, into a bounded process queue for each queue. ``poll`` takes from those;
``commit`` stores how far the polls have come. The queues are the group's share of the subscribed topics, or those that
``assign`` names.

RocketMQ 5.5.0: ``DefaultLitePullConsumer``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Unpack

from rocketcore.client.config import (
    ConsumerConfig,
    ConsumerOptions,
    NameServers,
    StartFrom,
    check_max_messages,
    check_seconds,
    client_config,
)
from rocketcore.client.group_consumer import GroupConsumer
from rocketcore.client.listeners import refuse_in_listener
from rocketcore.client.offset_store import find_offset
from rocketcore.client.process_queue import ProcessQueue
from rocketcore.codes import PullSysFlag
from rocketcore.errors import BrokerError, ClientClosed, ClientError, ConfigError, RocketError, TransportError
from rocketcore.filter import check_filter
from rocketcore.message import MessageQueue, ReceivedMessage
from rocketcore.naming import check_topic
from rocketcore.protocol.bodies.heartbeat import ConsumeType, SubscriptionData
from rocketcore.warning import warn

__all__ = ["PullConsumer"]

logger = logging.getLogger(__name__)

_QUEUES_NAMED = 3
"""A topic that was deleted may have a thousand: the error of a commit names so many, and counts the rest."""


class Polled:
    """What one poll took out of which process queues, until its caller has it."""

    __slots__ = ("process_queues",)

    def __init__(self) -> None:
        self.process_queues: list[tuple[ProcessQueue, list[ReceivedMessage]]] = []


class PullConsumer(GroupConsumer):
    """Polls messages as a member of a group (Java: ``DefaultLitePullConsumer``).

    Offsets are stored by ``commit()`` only, unless ``auto_commit`` is set: then by the poll after, every
    ``persist_interval`` seconds and on close. All methods belong to one event loop.
    """

    consume_type = ConsumeType.CONSUME_ACTIVELY
    pull_flags = int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION)

    def __init__(
        self, namesrv: NameServers = None, *, config: ConsumerConfig | None = None, **options: Unpack[ConsumerOptions]
    ) -> None:
        super().__init__(client_config(ConsumerConfig, namesrv, options, config))
        if self.config.ordered:
            raise ConfigError("ordered is for PushConsumer: a PullConsumer sees each queue in order anyway")
        self._assigned: set[MessageQueue] = set()
        self._assigned_topics: dict[str, SubscriptionData] = {}
        self._polled: set[ProcessQueue] = set()
        """What has ``unstored`` polls. A queue that was lost, sought in or reset begins without."""

    # Which queues

    async def subscribe(self, topic: str, *, tag: str | None = None, sql: str | None = None) -> None:
        """Read this member's share of a topic.

        tag, sql  which messages, as ``PushConsumer.subscribe``
        raises    ConfigError after ``assign``
        """
        await self.join_topic(self.note_subscription(topic, tag, sql))

    def add_subscription(self, topic: str, tag: str | None, sql: str | None) -> bool:
        if self._assigned:
            raise ConfigError("subscribe and assign exclude each other")
        return super().add_subscription(topic, tag, sql)

    async def assign(self, queues: Iterable[MessageQueue], *, tag: str | None = None, sql: str | None = None) -> None:
        """Read these queues and no others, even if other members read them; each call replaces the last one.

        raises  ConfigError after ``subscribe``, and for an empty filter; RouteNotFound for a topic that does not exist
        """
        refuse_in_listener(self, "assign", "on_revoke")
        if self._subscriptions:
            raise ConfigError("subscribe and assign exclude each other")
        check_filter(tag, sql)
        wanted = {self.wire_queue(queue) for queue in queues}
        await self.start()
        for topic in {queue.topic for queue in wanted}:
            check_topic(topic)
            await self.instance.route(topic)
            expression, kind = (sql, "SQL92") if sql is not None else (tag, "TAG")
            self._assigned_topics[topic] = SubscriptionData.build(topic, expression, kind, self.next_version())
        async with self._rebalance_lock:
            gone = [queue for queue in self._readers if queue not in wanted]
            if gone:
                await self._give_up(gone)
            self._assigned = wanted
            for queue in sorted(wanted - self._readers.keys()):
                self._own_new(queue, await self.first_offset(queue))
        await self._tell_assigned()

    def topics(self) -> set[str]:
        return super().topics() | {queue.topic for queue in self._assigned}

    def find_subscription(self, topic: str) -> SubscriptionData | None:
        return self._assigned_topics.get(topic) or super().find_subscription(topic)

    async def _finish_all(self) -> None:
        await self._commit(None)

    async def _rebalance(self) -> None:
        if not self._assigned:
            await super()._rebalance()

    # Messages

    @property
    def goes_on(self) -> bool:
        """Whether more messages may come: it is not closed."""
        return not self._closed

    def arrived(self, process_queue: ProcessQueue) -> None:
        if process_queue.waiting_count:
            self._news.set()

    async def poll(self, timeout: float = 5.0, *, max_messages: int | None = None) -> list[ReceivedMessage]:
        """Return messages, waiting for the first at most ``timeout`` seconds; an empty list when none came.

        max_messages  the most messages to return; default: the consumer's ``max_messages``
        raises        ConfigError where nothing is subscribed or assigned; a broker's refusal, with no message to return
        """
        polled = Polled()
        return await self.poll_into(polled, timeout, max_messages)

    async def poll_into(
        self,
        polled: Polled,
        timeout: float,
        max_messages: int | None = None,
        is_over: Callable[[], bool] = bool,
    ) -> list[ReceivedMessage]:
        """As ``poll``, for who may be interrupted: ``put_back`` undoes what ``polled`` has noted.

        is_over  asked before each look for messages, and again after ``wake_takers``; True: none are wanted any more
        """
        if self._closed:
            raise ClientClosed("the consumer is closed")
        self._check_subscribed()
        await self.start()
        limit = self.config.max_messages if max_messages is None else max_messages
        check_max_messages(limit)
        check_seconds("timeout", timeout)
        if self.config.auto_commit and self._polled:
            self._note_polled()
            self.store_soon()
        try:
            async with asyncio.timeout(timeout):
                messages: list[ReceivedMessage] = []
                while not is_over() and not (messages := self._take_messages(limit, polled)) and not self._closed:
                    self.raise_refusal()
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return []
        for process_queue, taken in polled.process_queues:
            process_queue.polled = taken[-1].offset + 1
            process_queue.unstored = True
            self._polled.add(process_queue)
        return messages

    def wake_takers(self) -> None:
        """Have all who wait for messages look again."""
        self._news.set()

    def put_back(self, polled: Polled) -> None:
        """Have later polls return again what one took and could not hand over."""
        for process_queue, messages in polled.process_queues:
            reader = self._readers.get(process_queue.queue)
            if (
                reader is not None
                and reader.process_queue is process_queue
                and process_queue.first_offset <= messages[0].offset <= process_queue.polled
            ):
                process_queue.put_back(messages)
                process_queue.polled = messages[0].offset
                process_queue.unstored = True
                self._polled.add(process_queue)
                self.arrived(process_queue)
        polled.process_queues.clear()

    def _take_messages(self, limit: int, polled: Polled) -> list[ReceivedMessage]:
        messages: list[ReceivedMessage] = []
        for queue, reader in list(self._readers.items()):
            process_queue = reader.process_queue
            if process_queue.paused or process_queue.leaving or not process_queue.waiting_count:
                continue
            taken = reader.process_queue.take(limit - len(messages))
            for message in taken:
                reader.process_queue.remove(message)
            polled.process_queues.append((reader.process_queue, taken))
            messages += taken
            # the next poll begins with another queue
            self._readers[queue] = self._readers.pop(queue)
            if len(messages) == limit:
                break
        return messages

    # Positions

    async def seek(self, queue: MessageQueue, offset: int | StartFrom) -> None:
        """Go on reading a queue at an offset, a time, ``"first"`` or ``"last"``.

        raises  ConfigError for a queue that this consumer does not read, for an offset that the queue does not have,
                and in ``on_revoke``
        """
        refuse_in_listener(self, "seek", "on_revoke")
        queue = self.reader_of(queue).process_queue.queue
        start = await find_offset(self.instance, queue, offset)
        if isinstance(offset, int):
            first, last = (
                await find_offset(self.instance, queue, "first"),
                await find_offset(self.instance, queue, "last"),
            )
            if not first <= offset <= last:
                raise ConfigError(f"{queue} has the offsets {first} to {last}, asked for {offset}")
        async with self._rebalance_lock:
            reader = self.reader_of(queue)
            await self._stop_pulling([reader])
            self.own(queue, start).process_queue.paused = reader.process_queue.paused
            self.offsets.sought(queue)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the message of a queue that a poll would return next."""
        return self.reader_of(queue).process_queue.commit_offset

    async def offset_for_timestamp(self, queue: MessageQueue, time: datetime) -> int:
        """Return the offset of the first message of a queue that was stored at a time or later."""
        queue = self.wire_queue(queue)
        await self.start()
        await self.instance.route(queue.topic)
        return await find_offset(self.instance, queue, time)

    async def commit(self, offsets: Mapping[MessageQueue, int] | ReceivedMessage | None = None) -> None:
        """Store how far the group is: what polls have returned, or as far as ``offsets`` says.

        A message counts as long as its queue is this consumer's and stands where polls have brought it. If the queue
        has gone, or you called ``seek``, or it was reset, the offset is not stored, and a warning says so.

        offsets  of each queue the offset of the next message to read; or the last message of a queue that is done
        raises   ConfigError for anything else, for a queue that this consumer does not read, and for an offset beyond
                 the end of its queue. If a broker refuses an offset (BrokerError) or cannot be reached
                 (TransportError), the other queues are stored, and this one is tried again by itself. With
                 ``broadcast``: ClientError if the offset file cannot be written
        """
        if failures := await self._commit(offsets):
            raise _not_committed(self.group, failures)

    async def _commit(
        self, offsets: Mapping[MessageQueue, int] | ReceivedMessage | None
    ) -> dict[MessageQueue, RocketError]:
        """Commit; return of each queue whose offset was not written, why."""
        asked = offsets is not None and not isinstance(offsets, ReceivedMessage)
        if offsets is not None and not isinstance(offsets, ReceivedMessage):
            _check_offsets(offsets)
        await self.start()
        if offsets is None:
            offsets = {queue: reader.process_queue.commit_offset for queue, reader in self._readers.items()}
        elif isinstance(offsets, ReceivedMessage):
            offsets = self._next_of(offsets)
        else:
            offsets = {self.reader_of(queue).process_queue.queue: offset for queue, offset in offsets.items()}
            for queue, offset in offsets.items():
                await self._check_not_beyond(queue, offset)
        for queue, offset in offsets.items():
            self.offsets.update(queue, offset, reset=True)
        return await self.offsets.persist(offsets, asked=asked, commit=True)

    async def _check_not_beyond(self, queue: MessageQueue, offset: int) -> None:
        """Refuse an offset behind the end of a queue: the messages up to it would be passed over."""
        if offset > self.reader_of(queue).process_queue.polled:
            end = await find_offset(self.instance, queue, "last")
            if offset > end:
                raise ConfigError(f"{queue} ends at offset {end}, asked to commit {offset}")

    def _next_of(self, message: ReceivedMessage) -> dict[MessageQueue, int]:
        """Return what to store for a message that is done: nothing where its queue is no longer what it came from."""
        queue = self.wire_queue(message.queue)
        reader = self._readers.get(queue)
        if reader is None:
            why = "its queue is not this consumer's any more"
        elif not reader.process_queue.first_offset <= message.offset < reader.process_queue.polled:
            why = "its queue went, or was moved, since it was polled"
        else:
            return {queue: message.offset + 1}
        warn(logger, "message not committed, %s group=%s queue=%s offset=%d", why, self.group, queue, message.offset)
        return {}

    def note_offsets(self, queues: Iterable[MessageQueue]) -> None:
        if self.config.auto_commit and self._closed:
            self._note_polled()

    def _note_polled(self) -> None:
        """Note what polls have returned as done; called when the application asks for more, or closes."""
        for process_queue in self._polled:
            reader = self._readers.get(process_queue.queue)
            if process_queue.unstored and reader is not None and reader.process_queue is process_queue:
                self.offsets.update(process_queue.queue, process_queue.polled, reset=True)
            process_queue.unstored = False
        self._polled.clear()


def _not_committed(group: str, failures: Mapping[MessageQueue, RocketError]) -> RocketError:
    """Return the error of a commit: for which queues, and what of the first of them."""
    queues = ", ".join(str(queue) for queue in sorted(failures)[:_QUEUES_NAMED])
    if len(failures) > _QUEUES_NAMED:
        queues += f" and {len(failures) - _QUEUES_NAMED} more queues"
    error = next(iter(failures.values()))
    what = f"commit of group {group!r} for {queues}"
    if isinstance(error, BrokerError):
        own: RocketError = type(error)(error.code, error.remark, error.address, what)
    elif isinstance(error, TransportError):
        own = type(error)(f"{what}: {error}")
    elif type(error) is ClientError:
        own = ClientError(f"{what}: {error}")
    else:
        return error
    own.__cause__ = error
    return own


def _check_offsets(offsets: object) -> None:
    if not isinstance(offsets, Mapping):
        raise ConfigError(
            f"commit takes a ReceivedMessage, or the next offset of each MessageQueue, got {type(offsets).__name__}"
        )
    for queue, offset in offsets.items():
        if not isinstance(queue, MessageQueue) or not isinstance(offset, int) or offset < 0:
            raise ConfigError(
                f"commit takes the next offset, at least 0, of each MessageQueue, got {queue!r}: {offset!r}"
            )
