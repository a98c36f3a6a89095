"""Message traces of a client: what it sent and consumed, told to a trace topic by a producer of its own.

What hooks see is queued, and a thread sends it, so that a trace topic that is away holds nothing up. The queue is
bounded: what does not fit is not traced, which a warning says.

RocketMQ 5.5.0: ``AsyncTraceDispatcher``, ``SendMessageTraceHookImpl``, ``ConsumeMessageTraceHookImpl``.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from dataclasses import fields
from typing import Final, Protocol

from rocketcore.client.config import ClientConfig, ConsumerConfig, ProducerConfig
from rocketcore.client.hooks import ConsumeContext, SendContext
from rocketcore.codes import DEFAULT_REGION
from rocketcore.errors import RocketError
from rocketcore.ids import new_uniq_key
from rocketcore.message import (
    DELAY,
    KEYS,
    MSG_REGION,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TRACE_ON,
    TRANSACTION_PREPARED,
    ConsumeResult,
    Message,
    ReceivedMessage,
    SendStatus,
    TransactionState,
)
from rocketcore.protocol.trace import (
    ConsumeCode,
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    TracedKind,
    encode_trace,
)
from rocketcore.service import SYSTEM_CLOCK, Clock, PeriodicThread, Seldom
from rocketcore.warning import warn

__all__ = ["Tracer"]

logger = logging.getLogger(__name__)

MOST_QUEUED: Final = 2048
"""Records that are not sent yet; those beyond are left out (Java: the trace queue)."""
FLUSH_SECONDS: Final = 5.0
RECORDS_AT_ONCE: Final = 20
BYTES_AT_ONCE: Final = 128_000
KEY_BYTES_AT_ONCE: Final = 16_000
"""Keys of one message; a broker takes 32 KiB of properties. The further ids of a large batch are not looked up by."""
SEND_TIMEOUT: Final = 5.0

_STATES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}
"""Java's names."""
_COUNTER = itertools.count()


def _kind(properties: object, batch: bool) -> TracedKind:
    names = properties if isinstance(properties, dict) else {}
    if batch:
        return TracedKind.NORMAL
    if TRANSACTION_PREPARED in names:
        return TracedKind.HALF
    if not names.keys().isdisjoint((DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS)):
        return TracedKind.DELAY
    return TracedKind.ORDER if SHARDING_KEY in names else TracedKind.NORMAL


class TraceProducer(Protocol):
    """What sends traces: the blocking ``Producer``."""

    def send(self, topic: Message) -> object:
        """Send a message and wait until the broker has stored it."""

    def close(self) -> None:
        """Finish and close."""


class MakeProducer(Protocol):
    """Makes what sends traces."""

    def __call__(self, *, config: ProducerConfig) -> TraceProducer: ...


class Tracer:
    """A hook that tells the trace topic of what it sees; any thread. ``close()`` sends what is queued."""

    def __init__(
        self,
        config: ProducerConfig | ConsumerConfig,
        role: str,
        make_producer: MakeProducer,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Prepare to trace; nothing is started before there is something to tell.

        role           ``PRODUCE`` or ``CONSUME``
        make_producer  the blocking ``Producer``
        """
        self._make_producer = make_producer
        shared = {each.name: getattr(config, each.name) for each in fields(ClientConfig)} | {"hooks": ()}
        group = f"_INNER_TRACE_PRODUCER-{config.group}-{role}-{next(_COUNTER)}"
        self._config = ProducerConfig(**shared | {"timeout": SEND_TIMEOUT}, group=group)
        self._group = config.group
        self._topic = config.trace_topic
        self._clock = clock
        self._queue: deque[tuple[Trace, str | None]] = deque()
        self._thread: PeriodicThread | None = None
        self._producer: TraceProducer | None = None
        self._warn = Seldom(60.0, clock)
        self._closed = False
        self._sending = threading.Lock()

    # What hooks see

    def before_send(self, context: SendContext) -> None:
        """See nothing yet: Java traces a send when it has its result."""

    def after_send(self, context: SendContext) -> None:
        """Tell of a message that a broker has, or was sent without an answer."""
        result = context.result
        if (result is None and not context.oneway) or context.error is not None:
            return
        if not context.trace_on or context.queue.topic == self._topic:
            return
        self._tell(
            PubTrace(
                timestamp=context.begun_at,
                region=context.region or DEFAULT_REGION,
                group=context.group,
                topic=context.queue.topic,
                msg_id=context.msg_id,
                tags=context.properties.get(TAGS),
                keys=context.properties.get(KEYS),
                store_host=context.address,
                body_length=len(context.body),
                cost_millis=round(context.seconds * 1000),
                kind=_kind(context.properties, context.batch),
                offset_msg_id=None if result is None else result.offset_msg_id,
                success=result is None or result.status is SendStatus.SEND_OK,
            ),
            context.properties.get(KEYS),
        )

    def transaction_ended(
        self,
        message: Message | ReceivedMessage,
        msg_id: str,
        address: str | None,
        state: TransactionState,
        *,
        from_check: bool = False,
    ) -> None:
        """Tell of how a transaction ended; ``address`` is that of the broker."""
        keys = message.properties.get(KEYS)
        self._tell(
            EndTransactionTrace(
                timestamp=self._clock.time_millis(),
                region=message.properties.get(MSG_REGION, DEFAULT_REGION),
                group=self._group,
                topic=message.topic,
                msg_id=msg_id,
                tags=message.properties.get(TAGS),
                keys=keys,
                store_host=address,
                kind=TracedKind.COMMIT,
                transaction_id=msg_id,
                state=_STATES[state],
                from_check=from_check,
            ),
            keys,
        )

    def before_consume(self, context: ConsumeContext) -> None:
        """Tell of a message that somebody gets."""
        message = context.message
        if message.properties.get(TRACE_ON) == "false":
            return
        context.notes["request_id"] = request_id = new_uniq_key()
        self._tell(
            SubBeforeTrace(
                timestamp=context.begun_at,
                region=message.properties.get(MSG_REGION, DEFAULT_REGION),
                group=context.group,
                request_id=request_id,
                msg_id=message.msg_id,
                retry_times=message.reconsume_times,
                keys=message.properties.get(KEYS),
            ),
            message.properties.get(KEYS),
        )

    def after_consume(self, context: ConsumeContext) -> None:
        """Tell of its result."""
        request_id = context.notes.get("request_id")
        if request_id is None:
            return
        success = context.result is ConsumeResult.SUCCESS
        keys = context.message.properties.get(KEYS)
        self._tell(
            SubAfterTrace(
                request_id=request_id,
                msg_id=context.message.msg_id,
                cost_millis=round(context.seconds * 1000),
                success=success,
                keys=keys,
                code=ConsumeCode.SUCCESS if success else ConsumeCode.FAILED,
                timestamp=self._clock.time_millis(),
                group=context.group,
            ),
            keys,
        )

    # Telling

    def _tell(self, trace: Trace, keys: str | None) -> None:
        if self._closed:
            return
        if len(self._queue) >= MOST_QUEUED:
            if (unsaid := self._warn.due()) is not None:
                warn(logger, "messages not traced, the trace topic is slow topic=%s more=%d", self._topic, unsaid)
            return
        self._queue.append((trace, keys))
        if self._thread is None:
            self._thread = PeriodicThread("tracer", self._send_queued, FLUSH_SECONDS)
            self._thread.start()
        if len(self._queue) >= RECORDS_AT_ONCE:
            self._thread.wake()

    def _send_queued(self) -> None:
        with self._sending:
            while self._queue and (self._send_some() or not self._closed):
                pass

    def _send_some(self) -> bool:
        """Send one message of traces; one that cannot be sent is lost, as in Java. Return whether it was."""
        texts: list[str] = []
        found: dict[str, None] = {}
        size = keys_size = 0
        while self._queue and len(texts) < RECORDS_AT_ONCE and size < BYTES_AT_ONCE:
            trace, keys = self._queue.popleft()
            texts.append(encode_trace(trace))
            size += len(texts[-1])
            for key in (*trace.msg_id.split(","), *(keys or "").split()):
                if key not in found and keys_size < KEY_BYTES_AT_ONCE:
                    found[key] = None
                    keys_size += len(key)
        if self._producer is None:
            self._producer = self._make_producer(config=self._config)
        try:
            self._producer.send(Message(self._topic, "".join(texts), keys=list(found)))
        except RocketError as error:
            if (unsaid := self._warn.due()) is not None:
                warn(logger, "traces not sent topic=%s more=%d error=%s", self._topic, unsaid, error)
            return False
        return True

    def close(self) -> None:
        """Send what is queued, and end; waits for the trace topic ``SEND_TIMEOUT`` seconds a message at most."""
        self._closed = True
        if self._thread is not None:
            self._thread.stop()
            self._send_queued()
        if self._producer is not None:
            self._producer.close()
