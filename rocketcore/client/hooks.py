"""What a program may do around each send and each consumption; ``RpcHook`` is for each request.

RocketMQ: ``SendMessageHook``, ``ConsumeMessageHook``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Final, Protocol, TypeAlias, TypeVar, cast

from rocketcore.errors import ConfigError
from rocketcore.message import ConsumeResult, Message, MessageQueue, ReceivedMessage, SendResult
from rocketcore.transport.hooks import RpcHook
from rocketcore.warning import Recurring

__all__ = [
    "BatchedContext",
    "ConsumeContext",
    "ConsumeHook",
    "Hook",
    "SendContext",
    "SendHook",
    "batch_hooks",
    "call_hooks",
    "check_hooks",
    "consume_hooks",
    "rpc_hooks",
    "send_hooks",
]

logger = logging.getLogger(__name__)
_failures = Recurring(logger)


@dataclass(slots=True, kw_only=True)
class SendContext:
    """One attempt to send a message, or a batch (Java: ``SendMessageContext``).

    body, properties  as they are sent: compressed, and without those of the messages in a batch
    msg_id            of a batch the ids, joined by commas
    oneway            sent without an answer: nobody knows what became of it, and there is no result
    result, error     how it ended; None before
    seconds           how long it took
    region, trace_on  what the broker's answer says of itself
    added             properties that the message gets beside its own, put here before it is sent; not those of a batch
    """

    group: str
    queue: MessageQueue
    address: str
    msg_id: str
    body: bytes | memoryview
    properties: Mapping[str, str]
    batch: bool
    begun_at: int
    oneway: bool = False
    result: SendResult | None = None
    error: BaseException | None = None
    seconds: float = 0.0
    region: str | None = None
    trace_on: bool = True
    added: dict[str, str] = field(default_factory=dict)

    def properties_in_batch(self) -> Iterator[dict[str, str]]:
        """Yield the properties of each message of a batch."""
        from rocketcore.client.outgoing import properties_in_batch

        return properties_in_batch(self.body)


@dataclass(slots=True, kw_only=True)
class BatchedContext:
    """One message that was taken to leave in a batch.

    added  properties that it gets beside its own
    """

    group: str
    message: Message
    msg_id: str
    added: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class ConsumeContext:
    """One message at a handler, or at who iterates (Java: ``ConsumeMessageContext``).

    result   what was said of it; None before
    seconds  from when it was handed out to its result
    """

    group: str
    message: ReceivedMessage
    begun_at: int
    begun: float
    result: ConsumeResult | None = None
    seconds: float = 0.0
    notes: dict[str, str] = field(default_factory=dict)
    """For hooks: what one notes before it finds after."""


class SendHook(Protocol):
    """Called around each attempt to send; what it raises is logged, and changes nothing.

    The calls come where the attempt is made, on the loop or in the calling thread: they may not wait.
    """

    def before_send(self, context: SendContext) -> None:
        """See a message before it is sent."""

    def after_send(self, context: SendContext) -> None:
        """See how it ended."""


class BatchHook(Protocol):
    """What a ``SendHook`` may have, too: called for each message of ``send_batch`` and ``send_nowait``.

    The call comes in the thread, or the task, that has the message sent.
    """

    def before_batch(self, context: BatchedContext) -> None:
        """See a message before it is put into a batch."""


class ConsumeHook(Protocol):
    """Called around each consumption of a ``PushConsumer``, on its loop; as ``SendHook``."""

    def before_consume(self, context: ConsumeContext) -> None:
        """See a message before a handler, or who iterates, gets it."""

    def after_consume(self, context: ConsumeContext) -> None:
        """See its result."""


Hook: TypeAlias = RpcHook | SendHook | ConsumeHook
T = TypeVar("T")

_POINTS: Final = (
    ("before_request", "after_response"),
    ("before_send", "after_send"),
    ("before_consume", "after_consume"),
)


def check_hooks(hooks: Iterable[Hook]) -> None:
    """Refuse what has no method that would be called, or one of two, or one that is not awaited; raises ConfigError."""
    for hook in hooks:
        if isinstance(hook, type):
            raise ConfigError(f"a hook must be an object, got the class {hook.__name__}")
        points = [point for pair in _POINTS if any(hasattr(hook, each) for each in pair) for point in pair]
        if not points:
            names = " or ".join(" and ".join(pair) for pair in _POINTS)
            raise ConfigError(f"a hook has the methods {names}, got {hook!r}")
        for point in points:
            method = getattr(hook, point, None)
            if not callable(method):
                raise ConfigError(f"a hook with {', '.join(points)} has all of these methods; {hook!r} has no {point}")
            if iscoroutinefunction(method):
                raise ConfigError(f"{point} of a hook is a plain function, {hook!r} has a coroutine function")


def rpc_hooks(hooks: Iterable[Hook]) -> tuple[RpcHook, ...]:
    """Return those that see requests."""
    return tuple(cast(RpcHook, hook) for hook in hooks if hasattr(hook, "before_request"))


def send_hooks(hooks: Iterable[Hook]) -> tuple[SendHook, ...]:
    """Return those that see sends."""
    return tuple(cast(SendHook, hook) for hook in hooks if hasattr(hook, "before_send"))


def batch_hooks(hooks: Iterable[Hook]) -> tuple[BatchHook, ...]:
    """Return those that see messages before they are put into batches."""
    return tuple(cast(BatchHook, hook) for hook in hooks if hasattr(hook, "before_batch"))


def consume_hooks(hooks: Iterable[Hook]) -> tuple[ConsumeHook, ...]:
    """Return those that see consumptions."""
    return tuple(cast(ConsumeHook, hook) for hook in hooks if hasattr(hook, "before_consume"))


def call_hooks(points: Iterable[Callable[[T], None]], context: T) -> None:
    """Call one point of several hooks."""
    for point in points:
        try:
            point(context)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() too: it would end the loop, or a send that is done already
            kind = getattr(point, "__qualname__", None), type(error)
            _failures.warn(kind, "hook failed hook=%r error=%r", point, error, error=error, level=logging.ERROR)
