"""What hooks see of a ``PushConsumer``: each message from when it is handed out until it has a result.

RocketMQ 5.5.0: ``DefaultMQPushConsumerImpl.executeHookBefore``, ``executeHookAfter``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rocketcore.client.config import ConsumerConfig
from rocketcore.client.daemon import call_on_daemon
from rocketcore.client.hooks import ConsumeContext, ConsumeHook, call_hooks, consume_hooks
from rocketcore.client.sync_producer import Producer
from rocketcore.client.trace import Tracer
from rocketcore.message import ConsumeResult, ReceivedMessage
from rocketcore.service import Clock

__all__ = ["Watched"]

MOST_HANDED_OUT: Final = 10_000
"""Messages of which a result is awaited; of the first of more it is not seen."""


class Watched:
    """The messages that are handed out; on the loop."""

    def __init__(self, config: ConsumerConfig, clock: Clock) -> None:
        self._group = config.group
        self._clock = clock
        self._tracer = Tracer(config, "CONSUME", Producer, clock) if config.trace else None
        self._hooks: tuple[ConsumeHook, ...] = consume_hooks(config.hooks)
        if self._tracer is not None:
            self._hooks += (self._tracer,)
        self._contexts: dict[int, ConsumeContext] = {}
        """By the identity of the message, which the context keeps."""

    def handed(self, messages: Iterable[ReceivedMessage]) -> None:
        """Note that somebody gets messages."""
        now, begun = self._clock.time_millis(), self._clock.monotonic()
        for message in messages:
            context = ConsumeContext(group=self._group, message=message, begun_at=now, begun=begun)
            self._contexts[id(message)] = context
            if len(self._contexts) > MOST_HANDED_OUT:  # those of a queue that was given up have no result
                del self._contexts[next(iter(self._contexts))]
            call_hooks([hook.before_consume for hook in self._hooks], context)

    def settled(self, message: ReceivedMessage, result: ConsumeResult) -> None:
        """Note what became of one."""
        context = self._contexts.pop(id(message), None)
        if context is not None:
            context.result = result
            context.seconds = self._clock.monotonic() - context.begun
            call_hooks([hook.after_consume for hook in self._hooks], context)

    async def close(self) -> None:
        """Send the traces that are queued."""
        if self._tracer is not None:
            await call_on_daemon("consumer-traces", self._tracer.close)
