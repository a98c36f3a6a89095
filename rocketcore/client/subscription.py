"""What ``subscribe`` of an asyncio consumer returns."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from rocketcore.client.handler import BatchHandler, MessageHandler
    from rocketcore.protocol.bodies.heartbeat import SubscriptionData

__all__ = ["BatchSubscription", "Noted", "Subscription"]

Handler = TypeVar("Handler", bound="MessageHandler")
Batch = TypeVar("Batch", bound="BatchHandler")


class Noted(NamedTuple):
    """A subscription that a consumer knows, and that brokers may not know yet.

    topic    as brokers know it
    before   the subscription to the same topic that it replaces
    changed  whether it is another one than that
    """

    topic: str
    before: SubscriptionData | None
    changed: bool


class Subscribes(Protocol):
    """See ``rocketcore.client.subscriber.Subscriber``."""

    def note_subscription(self, topic: str, tag: str | None, sql: str | None) -> Noted:
        """Know a subscription."""

    async def join_topic(self, noted: Noted) -> None:
        """Have brokers know it."""

    def join_soon(self) -> None:
        """Have brokers know all of them soon."""

    def set_handler(self, topic: str, handler: MessageHandler) -> None:
        """Give the messages of a topic a handler."""


class LoopGuard(Protocol):
    """See ``rocketcore.client.faces.guard.Guard``."""

    @property
    def is_here(self) -> bool:
        """Whether the consumer may be used here."""

    def check(self) -> None:
        """Refuse to be anywhere else."""

    def enter(self) -> bool:
        """Refuse to be anywhere else, and let nobody else in from now on."""


class Subscription(Coroutine[Any, Any, None]):
    """What ``subscribe`` of an asyncio consumer returns: await it, decorate the topic's handler with it, or neither.

    The consumer knows the subscription at once, and joins the topic soon if it runs. Whoever awaits this has the topic
    joined before going on, and gets a broker's refusal. It is a coroutine, for ``asyncio.run()`` and its kin:
    ``run_coroutine_threadsafe()`` takes it to the consumer's loop, where all of it is done then.

    keeper  not to be forgotten before this
    """

    __slots__ = ("_consumer", "_coroutine", "_guard", "_keeper", "_noted", "_wanted")

    def __init__(
        self,
        consumer: Subscribes,
        topic: str,
        tag: str | None,
        sql: str | None,
        *,
        keeper: object = None,
        guard: LoopGuard | None = None,
    ) -> None:
        self._consumer = consumer
        self._keeper = keeper
        self._guard = guard
        self._wanted = (topic, tag, sql)
        self._noted: Noted | None = None
        self._coroutine: Coroutine[Any, Any, None] | None = None
        if guard is None or guard.is_here:
            self._noted = consumer.note_subscription(topic, tag, sql)
            if self._noted.changed:
                consumer.join_soon()
        else:
            _check_no_loop(guard)
            self._coroutine = self._join()  # Python complains of one that nobody awaits

    def __call__(self, handler: Handler) -> Handler:
        """Make a function the handler of the topic; on a consumer that runs, the topic is joined soon."""
        if self._guard is not None:
            self._guard.check()
        self._consumer.set_handler(self._wanted[0], handler)
        return handler

    async def _join(self) -> None:
        if self._guard is not None:
            self._guard.enter()
        if self._noted is None:
            self._noted = self._consumer.note_subscription(*self._wanted)
        await self._consumer.join_topic(self._noted)

    def _ensure_coroutine(self) -> Coroutine[Any, Any, None]:
        if self._coroutine is None or getattr(self._coroutine, "cr_frame", self) is None:  # who awaits once more joins
            self._coroutine = self._join()
        return self._coroutine

    def __await__(self) -> Generator[Any, None, None]:
        return self._ensure_coroutine().__await__()

    def send(self, value: Any) -> Any:
        return self._ensure_coroutine().send(value)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Any:
        return self._ensure_coroutine().throw(kind if isinstance(kind, BaseException) else kind(value))

    def close(self) -> None:
        if self._coroutine is not None:
            self._coroutine.close()


class BatchSubscription:
    """What ``subscribe_batch`` of an asyncio consumer returns: as a ``Subscription``, of a handler of batches."""

    __slots__ = ("_max_messages", "_max_wait", "_subscription", "_topic")

    def __init__(self, subscription: Subscription, topic: str, max_messages: int, max_wait: float) -> None:
        self._subscription = subscription
        self._topic = topic
        self._max_messages = max_messages
        self._max_wait = max_wait

    def __call__(self, handler: Batch) -> Batch:
        """Make a function the handler of the topic."""
        from rocketcore.client.handler import batched

        self._subscription(batched(self._topic, handler, self._max_messages, self._max_wait))
        return handler

    def __await__(self) -> Generator[Any, None, None]:
        return self._subscription.__await__()


def _check_no_loop(guard: LoopGuard) -> None:
    """Refuse to subscribe on another loop; without one, the coroutine may be on its way to the consumer's."""
    import asyncio

    if asyncio._get_running_loop() is not None:
        guard.check()
