"""``rocketcore.aio.PushConsumer``, ``PullConsumer`` and ``SimpleConsumer``."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Final, Generic, TypeVar, Unpack

from rocketcore.client.blocking import constructor
from rocketcore.client.config import (
    ConsumerConfig,
    ConsumerOptions,
    NameServers,
    check_max_messages,
    check_max_wait,
)
from rocketcore.client.faces.guard import Face, guarded, guarded_call, soon
from rocketcore.client.group_consumer import GroupConsumer
from rocketcore.client.handler import BatchHandler, MessageHandler
from rocketcore.client.problems import Gaps
from rocketcore.client.pull import Polled
from rocketcore.client.pull import PullConsumer as PullLogic
from rocketcore.client.push import PushConsumer as PushLogic
from rocketcore.client.simple import SimpleConsumer as SimpleLogic
from rocketcore.client.stopping import Stopping
from rocketcore.client.subscriber import Subscriber
from rocketcore.client.subscription import BatchSubscription, Subscription
from rocketcore.client.tracebacks import edge
from rocketcore.errors import ClientClosed
from rocketcore.message import ReceivedMessage

__all__ = ["PullConsumer", "PushConsumer", "SimpleConsumer"]

ITERATION_SECONDS: Final = 60.0
"""Of one poll for who iterates."""

ConsumerT = TypeVar("ConsumerT", bound=Subscriber)
MemberT = TypeVar("MemberT", bound=GroupConsumer)


class _Consumer(Face[ConsumerT], Generic[ConsumerT]):
    """A member of a consumer group."""

    def __init__(self, logic: ConsumerT) -> None:
        super().__init__(logic, f"of group {logic.config.group!r}")

    def __repr__(self) -> str:
        return f"<aio.{type(self).__name__} group={self.config.group!r}>"

    @property
    def config(self) -> ConsumerConfig:
        """The settings of this consumer."""
        return self._logic.config

    @property
    def client_id(self) -> str:
        """The name under which brokers know this consumer; raises ConfigError before it started."""
        return self._logic.client_id

    @property
    def gaps(self) -> Gaps:
        """The offsets that brokers leave out of their answers; ``gaps.tell(function)`` has a function called on the
        loop."""
        return self._logic.gaps

    subscription = guarded_call(Subscriber.subscription)
    wait_ready = guarded(Subscriber.wait_ready)
    watermarks = guarded(Subscriber.watermarks)
    committed = guarded(Subscriber.committed)
    lag = guarded(Subscriber.lag)

    def _subscription(self, topic: str, tag: str | None, sql: str | None) -> Subscription:
        return Subscription(self._logic, topic, tag, sql, keeper=self, guard=self._guard)


class _Member(_Consumer[MemberT], Generic[MemberT]):
    """A consumer that owns queues."""

    _stopped_by: signal.Signals | None = None

    start = guarded(GroupConsumer.start)
    close = guarded(GroupConsumer.close)
    unsubscribe = guarded(GroupConsumer.unsubscribe)
    drain = guarded(GroupConsumer.drain)
    queues = guarded_call(GroupConsumer.queues)
    assignment = guarded_call(GroupConsumer.assignment)
    pause = guarded_call(GroupConsumer.pause)
    resume = guarded_call(GroupConsumer.resume)
    paused = guarded_call(GroupConsumer.paused)

    @property
    def stopped_by(self) -> signal.Signals | None:
        """The signal that ended the last ``run()`` or iteration; None where another reason did."""
        return self._stopped_by


class PushConsumer(_Member[PushLogic]):
    """Receives messages as a member of a group (Java: ``DefaultMQPushConsumer``).

    Subscribe, then iterate (``async for``) and say what became of each message by ``ack()``, ``retry()`` or
    ``process()``; or give each topic a handler, a function or a coroutine function. A handler that returns is done with
    the message. If it raises, it gets the message again, after the delay of ``RetryLater`` if it raised that. All
    methods belong to the event loop on which it is used first.

    namesrv  as in ``Producer``
    config   settings as one object; or its fields as keyword arguments, see ``ConsumerConfig``
    """

    @constructor
    def __init__(
        self, namesrv: NameServers = None, *, config: ConsumerConfig | None = None, **options: Unpack[ConsumerOptions]
    ) -> None:
        super().__init__(PushLogic(namesrv, config=config, **options))

    @edge
    def subscribe(
        self, topic: str, *, tag: str | None = None, sql: str | None = None, handler: MessageHandler | None = None
    ) -> Subscription:
        """Subscribe to a topic; the result may be awaited, and decorates the topic's handler.

        If you await it on a running consumer, it raises a broker's refusal, and returns when the topic was joined.
        Otherwise the consumer joins it soon.

        tag  the tags wanted, ``a || b``; default: all messages
        sql  an SQL92 condition on properties, in place of tags; the broker needs ``enablePropertyFilter``
        """
        subscription = self._subscription(topic, tag, sql)
        if handler is not None:
            subscription(handler)
        return subscription

    @edge
    def subscribe_batch(
        self,
        topic: str,
        *,
        max_messages: int = 1000,
        max_wait: float = 0.2,
        tag: str | None = None,
        sql: str | None = None,
        handler: BatchHandler | None = None,
    ) -> BatchSubscription:
        """Subscribe to a topic whose handler gets several messages at a time (Java: ``consumeMessageBatchMaxSize``).

        The result decorates the handler. The messages of a batch lie in one queue, in their order. A handler that
        returns is done with all of them. If it raises, it gets all of them again, or with ``RetryLater(of=[…])`` those
        messages.

        max_messages  the most messages of a call; ``pull_threshold_for_queue`` bounds how many are here
        max_wait      seconds after which a handler gets fewer
        tag, sql      as ``subscribe``
        """
        check_max_messages(max_messages)
        check_max_wait(max_wait)
        subscription = BatchSubscription(self._subscription(topic, tag, sql), topic, max_messages, max_wait)
        if handler is not None:
            subscription(handler)
        return subscription

    async def run(self) -> None:
        """Consume with the handlers until SIGINT, SIGTERM or ``close()``; then finish, and leave the group.

        In the main thread, and where the application has no handler for the signal of its own. ``stopped_by`` tells
        which came; the next one does what it does without. A task that is cancelled finishes and leaves, too.

        raises  ConfigError without a handler; a broker's refusal, after the same
        """
        self._guard.enter()
        loop = asyncio.get_running_loop()
        with Stopping(lambda: soon(loop, self._logic.stop)) as stopping:
            await self._logic.run()
        self._stopped_by = stopping.signal

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Yield the messages of topics without a handler, until ``close()``, Ctrl-C or SIGTERM.

        The first signal ends the iteration behind the message that is being worked on; ``stopped_by`` tells. The next
        does what it does without.
        """
        return self._messages()

    async def _messages(self) -> AsyncIterator[ReceivedMessage]:
        self._guard.enter()
        loop = asyncio.get_running_loop()
        with Stopping(lambda: soon(loop, self._logic.wake_takers)) as stopping:

            def is_over() -> bool:
                return stopping.signal is not None

            while taken := await self._logic.take(1, is_over):
                yield taken[0]
                self._guard.enter()
            self._stopped_by = stopping.signal


class PullConsumer(_Member[PullLogic]):
    """Polls messages as a member of a group (Java: ``DefaultLitePullConsumer``).

    Offsets are stored by ``commit()`` only, unless ``auto_commit`` is set: then by the poll after, every
    ``persist_interval`` seconds and on close. All methods belong to the event loop on which it is used first.

    namesrv  as in ``Producer``
    config   settings as one object; or its fields as keyword arguments, see ``ConsumerConfig``
    """

    @constructor
    def __init__(
        self, namesrv: NameServers = None, *, config: ConsumerConfig | None = None, **options: Unpack[ConsumerOptions]
    ) -> None:
        super().__init__(PullLogic(namesrv, config=config, **options))

    @edge
    def subscribe(self, topic: str, *, tag: str | None = None, sql: str | None = None) -> Subscription:
        """Read this member's share of a topic; the result may be awaited, which starts the consumer.

        tag, sql  which messages, as ``PushConsumer.subscribe``
        raises    ConfigError after ``assign``; where it is awaited, a broker's refusal
        """
        return self._subscription(topic, tag, sql)

    assign = guarded(PullLogic.assign)
    poll = guarded(PullLogic.poll)
    seek = guarded(PullLogic.seek)
    position = guarded_call(PullLogic.position)
    offset_for_timestamp = guarded(PullLogic.offset_for_timestamp)
    commit = guarded(PullLogic.commit)

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Yield messages, one poll each, until ``close()``, Ctrl-C or SIGTERM; ``commit()`` stores how far this came.

        The first signal ends the iteration behind the message that is being worked on; ``stopped_by`` tells. The next
        does what it does without.
        """
        return self._messages()

    async def _messages(self) -> AsyncIterator[ReceivedMessage]:
        self._guard.enter()
        loop = asyncio.get_running_loop()
        with Stopping(lambda: soon(loop, self._logic.wake_takers)) as stopping:

            def is_over() -> bool:
                return stopping.signal is not None

            over = False
            while self._logic.goes_on and not over:
                self._guard.enter()
                over = is_over()  # known before the poll, which notes what the one before has returned
                with contextlib.suppress(ClientClosed):
                    for message in await self._logic.poll_into(Polled(), ITERATION_SECONDS, 1, is_over):
                        yield message
            self._stopped_by = stopping.signal


class SimpleConsumer(_Consumer[SimpleLogic]):
    """Takes messages as a member of a group, and acknowledges each (POP, 5.x brokers and ours).

    ``invisible`` seconds after it was received a message that is not acknowledged is for any member again; its
    ``change_invisible`` prolongs that. ``ordered``: the group gets more messages of a queue only when it has
    acknowledged all that it has; the others come again from there. All methods belong to the event loop on which it is
    used first, but for those of messages.

    namesrv  as in ``Producer``
    config   settings as one object; or its fields as keyword arguments, see ``ConsumerConfig``
    """

    @constructor
    def __init__(
        self, namesrv: NameServers = None, *, config: ConsumerConfig | None = None, **options: Unpack[ConsumerOptions]
    ) -> None:
        super().__init__(SimpleLogic(namesrv, config=config, **options))

    @edge
    def subscribe(self, topic: str, *, tag: str | None = None, sql: str | None = None) -> Subscription:
        """Receive the messages of a topic, too; the result may be awaited, which starts the consumer.

        tag     the tags wanted, ``a || b``; default: all messages
        sql     an SQL92 condition on properties, in place of tags; the broker needs ``enablePropertyFilter``
        raises  where it is awaited, a broker's refusal
        """
        return self._subscription(topic, tag, sql)

    start = guarded(SimpleLogic.start)
    close = guarded(SimpleLogic.close)
    unsubscribe = guarded(SimpleLogic.unsubscribe)
    receive = guarded(SimpleLogic.receive)
    flush = guarded(SimpleLogic.flush)
