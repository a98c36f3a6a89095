"""Handlers: what an application may give a topic, and what it means that one returns or raises.

RocketMQ 5.5.0: ``MessageListenerConcurrently``, ``MessageListenerOrderly``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rocketcore.client.runtime import returns_coroutine
from rocketcore.errors import ConfigError
from rocketcore.message import ConsumeResult, ReceivedMessage, RetryLater
from rocketcore.warning import Recurring, shown, warn

__all__ = ["BatchHandler", "Batched", "Handler", "HandlerResult", "MessageHandler", "batched", "check_handler"]

logger = logging.getLogger(__name__)

MessageHandler: TypeAlias = Callable[[ReceivedMessage], ConsumeResult | Awaitable[ConsumeResult | None] | None]
"""Returns None or a ConsumeResult, or an awaitable of that; raises to have the message again.

Any other value is taken too, see ``Handler.result_of``; the type is for those who check types.
"""

HandlerResult: TypeAlias = tuple[ReceivedMessage, ConsumeResult, float | None]
"""A message, what its handler said, and the delay it asked for."""

BatchHandler: TypeAlias = Callable[[list[ReceivedMessage]], ConsumeResult | Awaitable[ConsumeResult | None] | None]
"""As a MessageHandler, of messages of one queue at a time: what it returns or raises is for all of them."""

_SHOWN: Final = 200


def check_handler(topic: str, handler: object) -> None:
    """Refuse what cannot be called; raises ConfigError."""
    if not callable(handler):
        raise ConfigError(
            f"the handler of topic {topic!r} must be a function or a coroutine function, got {type(handler).__name__}"
        )
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigError(
            f"the handler of topic {topic!r}, {name_of(handler)}, is a generator function: a call of it would do"
            " nothing; leave out its yield"
        )


def name_of(handler: object) -> str:
    """Return the name by which a person knows a handler."""
    return str(getattr(handler, "__qualname__", None) or shown(handler))


@dataclass(frozen=True, slots=True)
class Batched:
    """How many messages a handler of batches gets at a time: at most, and after how many seconds also fewer."""

    function: BatchHandler
    max_messages: int
    max_wait: float

    def __call__(self, message: ReceivedMessage) -> ConsumeResult | Awaitable[ConsumeResult | None] | None:
        """Handle one message, as an administrator asked."""
        return self.function([message])


def batched(topic: str, handler: BatchHandler, max_messages: int, max_wait: float) -> Batched:
    """Return a handler of batches, checked; raises ConfigError."""
    check_handler(topic, handler)
    return Batched(handler, max_messages, max_wait)


class Handler:
    """A handler of the application, and what its results mean.

    batched  of a handler that gets several messages at a time: ``function`` takes a list
    """

    __slots__ = ("_failures", "_warned", "batched", "function", "on_loop")

    def __init__(self, function: MessageHandler, failures: Recurring) -> None:
        self.batched = function if isinstance(function, Batched) else None
        self.function: Callable[[Any], Any] = function if self.batched is None else self.batched.function
        self.on_loop = returns_coroutine(self.function)
        self._failures = failures
        self._warned = False

    def result_of(self, message: ReceivedMessage, returned: object) -> HandlerResult:
        """Return what a returned value means.

        Handlers return what their last call does: a value says nothing about the message, which is done, and the first
        one is a warning. ``False``, an exception and a generator that never ran are no success that anybody would
        write down: the message comes again, and this is told like any other failure.
        """
        if returned is None:
            return message, ConsumeResult.SUCCESS, None
        if isinstance(returned, ConsumeResult):
            return message, returned, None
        if returned is False or isinstance(returned, (BaseException, Generator, AsyncGenerator)):
            self._failures.warn(
                (message.topic, "returned", type(returned)),
                "handler returned %s, which counts as a failure topic=%s handler=%s queue=%s offset=%d msg_id=%s",
                shown(returned)[:_SHOWN],
                message.topic,
                name_of(self.function),
                message.queue,
                message.offset,
                message.msg_id,
                error=returned if isinstance(returned, BaseException) else None,
            )
            return message, ConsumeResult.RETRY, None
        if not self._warned:
            self._warned = True  # it will return the like for every message
            warn(
                logger,
                "handler returned a value of type %s, which is ignored: its messages are done. Return None, or a"
                " ConsumeResult; raise to have a message again topic=%s handler=%s",
                type(returned).__name__,
                message.topic,
                name_of(self.function),
            )
        return message, ConsumeResult.SUCCESS, None

    def results_of(self, messages: Sequence[ReceivedMessage], returned: object) -> list[HandlerResult]:
        """Return what the returned value of a handler of batches means for each message; it is told of once."""
        _, result, delay = self.result_of(messages[0], returned)
        return [(message, result, delay) for message in messages]

    def failed_all(self, messages: Sequence[ReceivedMessage], error: BaseException) -> list[HandlerResult]:
        """Return what an exception of a handler of batches means for each message: all come again, or some."""
        again = messages if not isinstance(error, RetryLater) or error.of is None else error.of
        if not again:
            return [(message, ConsumeResult.SUCCESS, None) for message in messages]
        _, result, delay = self.failed(again[0], error)
        named = set(map(id, again))
        if named.isdisjoint(map(id, messages)):  # none of these: nobody can have meant that they are done
            named = set(map(id, messages))
        return [
            (message, result, delay) if id(message) in named else (message, ConsumeResult.SUCCESS, None)
            for message in messages
        ]

    def failed(self, message: ReceivedMessage, error: BaseException) -> HandlerResult:
        """Return what a raised exception means, and tell of it; of ``RetryLater`` its cause, if it has one."""
        delay, text, told = None, "handler failed", error
        if isinstance(error, RetryLater):
            if error.reason is None:  # it was asked for, and no failure
                return message, ConsumeResult.RETRY, error.delay
            delay, text, told = error.delay, "handler asked for the message again", error.reason
        self._failures.warn(
            (message.topic, text, type(told)),
            text + " topic=%s handler=%s queue=%s offset=%d msg_id=%s error=%r",
            message.topic,
            name_of(self.function),
            message.queue,
            message.offset,
            message.msg_id,
            told,
            error=told,
            level=logging.WARNING if isinstance(error, Exception) else logging.ERROR,
        )
        return message, ConsumeResult.RETRY, delay
