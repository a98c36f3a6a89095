"""OpenTelemetry spans of sends and consumptions, with W3C trace context in the properties of messages.

``traceparent`` and ``tracestate`` are user properties, which every client of RocketMQ hands on. Names of attributes are
those of the semantic conventions for messaging. Needs the extra ``otel``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from rocketcore.errors import ConfigError
from rocketcore.message import ConsumeResult

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, TracerProvider

    from rocketcore.client.hooks import BatchedContext, ConsumeContext, SendContext

__all__ = ["TelemetryHook"]

_TRACEPARENT: Final = "traceparent"
_MOST_LINKS: Final = 128
"""Links of the span of a batch: no more are kept by an SDK, unless it is told so."""


class TelemetryHook:
    """A hook of producers and push consumers: a span for each attempt to send, and for each message at a handler.

    A message that is sent alone carries the context of its span. One that may leave in a batch, by ``send_batch`` or
    ``send_nowait``, has a span ``create`` of its own, whose context it carries, and the span of the batch links those
    of its messages. A message that names a span already keeps that one, and its send links it. The parent of a send is
    the span that is current where ``send`` is called, and of a ``create`` where the message is handed over; that of a
    consumption is the one that its message names.

    provider  default: the global one
    raises    ConfigError without the library
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError("TelemetryHook needs OpenTelemetry: pip install 'rocketcore[otel]'") from error
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("rocketcore", tracer_provider=provider)
        self._spans: dict[int, Span] = {}

    def before_batch(self, context: BatchedContext) -> None:
        """Have a message name a span that is about it alone."""
        message = context.message
        if _TRACEPARENT in message.properties:
            return
        span = self._tracer.start_span(
            f"create {message.topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={
                "messaging.system": "rocketmq",
                "messaging.operation.name": "create",
                "messaging.operation.type": "create",
                "messaging.destination.name": message.topic,
                "messaging.message.id": context.msg_id,
                "messaging.message.body.size": len(message.body),
            },
        )
        self._propagator.inject(context.added, self._trace.set_span_in_context(span))
        span.end()

    def before_send(self, context: SendContext) -> None:
        """Begin a span, and have the message name it, or the span link those that its messages name."""
        topic = context.queue.topic
        links = self._links(context.properties_in_batch() if context.batch else [context.properties])
        kinds = self._trace.SpanKind
        span = self._tracer.start_span(
            f"send {topic}",
            kind=kinds.CLIENT if links else kinds.PRODUCER,
            links=links,
            attributes={
                "messaging.system": "rocketmq",
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.name": topic,
                "messaging.destination.partition.id": f"{context.queue.broker}/{context.queue.queue_id}",
                "messaging.message.id": context.msg_id,
                "messaging.message.body.size": len(context.body),
                "server.address": context.address,
                **({"messaging.batch.message_count": context.msg_id.count(",") + 1} if context.batch else {}),
            },
        )
        self._spans[id(context)] = span
        if not context.batch and not links:
            self._propagator.inject(context.added, self._trace.set_span_in_context(span))

    def after_send(self, context: SendContext) -> None:
        """End it; with the error where the attempt failed."""
        self._end(id(context), context.error)

    def before_consume(self, context: ConsumeContext) -> None:
        """Begin a span below the one that the message names."""
        message = context.message
        span = self._tracer.start_span(
            f"process {message.topic}",
            context=self._propagator.extract(dict(message.properties)),
            kind=self._trace.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "rocketmq",
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": message.topic,
                "messaging.destination.partition.id": f"{message.queue.broker}/{message.queue.queue_id}",
                "messaging.consumer.group.name": context.group,
                "messaging.message.id": message.msg_id,
                "messaging.message.body.size": len(message.body),
            },
        )
        self._spans[id(context)] = span

    def after_consume(self, context: ConsumeContext) -> None:
        """End it; as an error where the message is to come again."""
        failed = None if context.result is ConsumeResult.SUCCESS else RuntimeError("the message is to come again")
        self._end(id(context), failed)

    def _links(self, messages: Iterable[Mapping[str, str]]) -> list[Link]:
        """Return links to the spans that messages name, by their properties."""
        named = (self._propagator.extract(dict(each)) for each in islice(messages, _MOST_LINKS) if _TRACEPARENT in each)
        spans = (self._trace.get_current_span(each).get_span_context() for each in named)
        return [self._trace.Link(span) for span in spans if span.is_valid]

    def _end(self, key: int, error: BaseException | None) -> None:
        span = self._spans.pop(key, None)
        if span is None:
            return
        if error is not None:
            span.set_status(self._trace.StatusCode.ERROR, str(error))
            span.set_attribute("error.type", type(error).__name__)
        span.end()
