"""Sender: everything that sending a message needs but the world it runs in.

It checks a message, finds a queue, and tries brokers until one has stored it, all within one deadline (``send``,
``send_batch``); the accumulator of ``send_nowait`` and the Arrow path use the parts.

RocketMQ 5.5.0: ``DefaultMQProducerImpl``, ``MQClientAPIImpl.processSendResponse``.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Awaitable, Collection, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack, overload

from rocketcore.client import api
from rocketcore.client.attempts import Attempts
from rocketcore.client.batches import Batch, batch_result, batches_of, send_each
from rocketcore.client.config import ProducerConfig
from rocketcore.client.hooked_send import seen_by_hooks
from rocketcore.client.hooks import BatchedContext, SendContext, batch_hooks, call_hooks, send_hooks
from rocketcore.client.instance import ClientInstance
from rocketcore.client.outgoing import (
    MessageOptions,
    Outgoing,
    batch_list,
    make_message,
    outgoing_batch,
    outgoing_half,
    outgoing_message,
    property_text,
    with_added,
)
from rocketcore.client.publisher import Publishers, TopicPublisher
from rocketcore.client.runtime import Runtime
from rocketcore.client.send_command import SendTarget
from rocketcore.client.send_outcome import BegunBatch, send_result
from rocketcore.errors import (
    ClientClosed,
    ConfigError,
    MessageIllegal,
    RocketError,
)
from rocketcore.message import (
    INT32_MAX,
    INT32_MIN,
    MSG_REGION,
    TRACE_ON,
    BatchResult,
    Body,
    Message,
    MessageQueue,
    ReceivedMessage,
    SendResult,
    SendStatus,
    TransactionState,
)
from rocketcore.protocol.compression import CompressionType, compress
from rocketcore.protocol.headers.message import RecallMessageRequestHeader
from rocketcore.service import SYSTEM_CLOCK, Clock, Deadline
from rocketcore.transport.remoting import PipeliningRemoting, PolledRemoting, Remoting, ServedRemoting

if TYPE_CHECKING:
    from rocketcore.client.requests import Requests
    from rocketcore.client.trace import Tracer

__all__ = ["Sender"]

logger = logging.getLogger(__name__)

LEAST_SHARE: Final = 0.1
"""Seconds that an attempt has at least, of those that are left."""
_OFFLOAD_BYTES: Final = 64 * 1024


class Sender:
    """Sends messages, in whichever world ``instance`` lives.

    ``check``, ``find_publisher`` and ``target`` are for any thread.
    """

    def __init__(self, config: ProducerConfig, instance: ClientInstance, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config
        self.instance = instance
        self._clock = clock
        self._publishers = Publishers(config, instance, clock)
        self.find_publisher = self._publishers.find
        self.target = self._publishers.target
        self._remoting = instance.remoting
        self._pipelining = _pipelining(instance.remoting)
        self._polled = _polled(instance.remoting)
        self._runtime = instance.runtime
        self._compression = CompressionType[config.compression.upper()]
        self._checked_topics: set[str] = set()
        self._hooks = send_hooks(config.hooks)
        self._batch_hooks = batch_hooks(config.hooks)
        self.property_text = self._text_by_hooks if self._batch_hooks else property_text
        """Property string of a message that may leave in a batch."""
        self._tracer: Tracer | None = None
        self._closed = False
        self._asked: Requests | None = None
        self._request_lock = threading.Lock()
        # A producer that is asked has to be known where it has sent nothing since it started.
        instance.register_producer(config.group, everywhere=config.checker is not None)

    def beside(self, remoting: Remoting, runtime: Runtime) -> Sender:
        """Return the same sender over other connections: one identity, one table of routes and of brokers' faults."""
        other = copy.copy(self)
        other._remoting = remoting
        other._pipelining = _pipelining(remoting)
        other._polled = _polled(remoting)
        other._runtime = runtime
        return other

    def refuse(self) -> None:
        """Send nothing any more, and wait for no reply."""
        self._closed = True
        if self._asked is not None:
            self._asked.give_up()

    @overload
    def send(
        self, topic: Message, *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> Coroutine[Any, Any, SendResult]: ...

    @overload
    def send(
        self,
        topic: str,
        body: Body,
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> Coroutine[Any, Any, SendResult]: ...

    @overload
    def send(
        self,
        topic: str,
        *,
        json: Any,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> Coroutine[Any, Any, SendResult]: ...

    def send(
        self,
        topic: str | Message,
        body: Body | None = None,
        *,
        json: Any = ...,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> Coroutine[Any, Any, SendResult]:
        """Send a message and wait until the broker has stored it (Java: ``send``).

        topic, body  a topic and a body, with the options of ``Message``; or a ``Message`` alone
        queue        the queue to send to; without it and without ``message_group`` the queues take turns
        timeout      seconds for the whole call, retries included; default: the producer's. While other
                     brokers are left to try, an attempt has its share of them (``attempt_timeout``)
        returns      SendResult; its status can be other than SEND_OK: stored, but not yet as safely as asked
        raises       MessageIllegal, RouteNotFound, TransportError (RequestTimeout), the broker's refusal (BrokerError)
        """
        # No coroutine of its own: a send is woken through each that stands between it and the answer.
        message = make_message("send", topic, body, options, json)
        self.check(message)
        return self._send(message.topic, message.message_group, queue, outgoing_message(message), timeout)

    @overload
    async def request(
        self, topic: Message, *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> ReceivedMessage: ...

    @overload
    async def request(
        self,
        topic: str,
        body: Body,
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> ReceivedMessage: ...

    @overload
    async def request(
        self,
        topic: str,
        *,
        json: Any,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> ReceivedMessage: ...

    async def request(
        self,
        topic: str | Message,
        body: Body | None = None,
        *,
        json: Any = ...,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> ReceivedMessage:
        """Send a message and wait for the reply of who consumes it (Java: ``request``).

        The arguments are those of ``send``; a consumer replies by ``message.reply(…)``.

        timeout  seconds for the whole call, the reply included; default: the producer's
        raises   as ``send``; RequestTimeout where the message is stored and no reply comes in time
        """
        message = make_message("request", topic, body, options, json)
        self.check(message)
        if self._closed:
            raise ClientClosed("the producer is closed")
        timeout = self._timeout(timeout)
        deadline = Deadline(timeout, self._clock)
        await self.publisher(message.topic, timeout)
        return await self._requests().ask(
            message, lambda asked, left: self.send(asked, queue=queue, timeout=left), deadline
        )

    def _requests(self) -> Requests:
        with self._request_lock:
            if self._asked is None:
                from rocketcore.client.requests import Requests  # most producers only send

                remoting = self._remoting
                assert isinstance(remoting, ServedRemoting), "the connections of a producer serve what brokers ask"
                self._asked = Requests(self.instance, remoting, self._runtime, self._clock)
            return self._asked

    @overload
    async def send_oneway(self, topic: Message, *, queue: MessageQueue | None = None) -> None: ...

    @overload
    async def send_oneway(
        self, topic: str, body: Body, *, queue: MessageQueue | None = None, **options: Unpack[MessageOptions]
    ) -> None: ...

    @overload
    async def send_oneway(
        self, topic: str, *, json: Any, queue: MessageQueue | None = None, **options: Unpack[MessageOptions]
    ) -> None: ...

    async def send_oneway(
        self,
        topic: str | Message,
        body: Body | None = None,
        *,
        json: Any = ...,
        queue: MessageQueue | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        """Send a message without waiting for an answer; it may be lost, and no one will know."""
        message = make_message("send_oneway", topic, body, options, json)
        self.check(message)
        if self._closed:
            raise ClientClosed("the producer is closed")
        outgoing = outgoing_message(message)
        if len(outgoing.body) >= self.config.compress_over_bytes:
            outgoing = await self.compressed(outgoing)
        publisher = await self.publisher(message.topic)
        target = self.target(publisher, message.message_group, queue)
        assert target is not None, "no broker is avoided"
        if not self._hooks:
            request = target.request(outgoing, self._clock.time_millis(), oneway=True)
            await self._remoting.invoke_oneway(target.address, request, self.config.timeout)
            return

        async def send(context: SendContext, outgoing: Outgoing) -> None:
            request = target.request(outgoing, self._clock.time_millis(), oneway=True)
            await self._remoting.invoke_oneway(target.address, request, self.config.timeout)

        await seen_by_hooks(self._hooks, self._clock, self.config.group, target, outgoing, send, oneway=True)

    async def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> BatchResult:
        """Send messages in batches: those of one topic, and of one message group if any, are one batch.

        A batch has one queue and consecutive offsets; it is stored as a whole or not at all. None is sent before all
        are checked. ``max_message_bytes`` applies to each batch: a longer batch is refused, since half of it would not
        be a batch. No messages are fine.

        queue    for one batch alone
        timeout  seconds for the whole call; default: the producer's
        returns  BatchResult: a SendResult for each batch; ``msg_ids`` in the order of the messages
        raises   MessageIllegal for delayed messages and for too many bytes; PartlySent where some batches are stored
                 and others are not; as ``send`` where none is
        """
        batch = batch_list(messages)
        for message in batch:
            self.check(message)
        batches = batches_of(batch, self.property_text, queue, self.config.max_message_bytes)
        if self._closed:
            raise ClientClosed("the producer is closed")
        timeout = self._timeout(timeout)

        def send(each: Batch, left: float) -> Awaitable[SendResult]:
            return self.send_encoded_batch(each.topic, each.message_group, queue, each.body, each.ids, left)

        return batch_result(batch, await send_each(batches, send, timeout, self._clock))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be written to, sorted (Java: ``fetchPublishMessageQueues``).

        raises  RouteNotFound for a topic that does not exist
        """
        publisher = await self.publisher(topic, self.config.timeout)
        return sorted(publisher.by_queue)

    async def recall(self, topic: str, handle: str, *, timeout: float | None = None) -> str:
        """Take back a message that waits for its time (Java: ``recallMessage``); it is not delivered.

        handle   ``recall_handle`` of the ``SendResult``: a broker gives one for a ``delay`` and a ``deliver_at``
        timeout  seconds; default: the producer's
        returns  the message's id
        raises   ConfigError for an invalid handle, RouteNotFound; the broker's refusal (BrokerError),
                 where the message came already, or it takes none back (``recallMessageEnable``)
        """
        from rocketcore.client.recall import broker_of

        if self._closed:
            raise ClientClosed("the producer is closed")
        timeout = self._timeout(timeout)
        broker = broker_of(topic, handle)
        end = self._clock.monotonic() + timeout
        await self.publisher(topic, timeout)
        address = self.instance.routes.publish_address(broker)
        header = RecallMessageRequestHeader(
            topic=self._publishers.wire_topic(topic), recall_handle=handle, producer_group=self.config.group
        )
        return await api.recall_message(self._remoting, address, header, end - self._clock.monotonic())

    async def send_encoded_batch(
        self,
        topic: str,
        message_group: str | None,
        queue: MessageQueue | None,
        body: bytes | memoryview,
        ids: Sequence[str],
        timeout: float | None = None,
    ) -> SendResult:
        """Send a batch body (wire specification §5.1) whose messages have the given ids.

        body  sent from where it lies: it may change when nothing refers to a memoryview any more
        """
        if len(body) > self.config.max_message_bytes:
            raise MessageIllegal(f"a batch of {len(body)} bytes, {self.config.max_message_bytes} are allowed")
        return await self._send(topic, message_group, queue, outgoing_batch(body, ids), timeout)

    def begin_batch(self, queue: MessageQueue, body: bytes | memoryview, timeout: float) -> BegunBatch | None:
        """Send a batch body whose messages need no ids here, once, over the connection that is open.

        returns  None where that takes ``send_encoded_batch``, which also says what is wrong
        """
        publisher = self._publishers.find(queue.topic)
        target = publisher.by_queue.get(queue) if publisher is not None else None
        if (
            target is None
            or self._pipelining is None
            or self._hooks
            or self._closed
            or len(body) > self.config.max_message_bytes
        ):
            return None
        request = target.request(outgoing_batch(body, ()), self._clock.time_millis())
        begun = self._clock.monotonic()
        try:
            answer = self._pipelining.invoke_nowait(target.address, request, timeout)
        except RocketError:
            return None
        return None if answer is None else BegunBatch(self._publishers, target, answer, begun, timeout)

    def is_connected(self, target: SendTarget) -> bool:
        """Tell whether requests to a queue leave over a connection that is open, and that ``poll`` serves."""
        return self._polled is not None and self._polled.is_polled(target.address)

    def poll(self, seconds: float) -> bool:
        """Read and write what is ready in the place of the loop; see ``RemotingClient``."""
        return self._polled is not None and self._polled.poll(seconds)

    def unsent(self) -> bool:
        """Tell whether some of what was sent is not with the kernel; in the place of the loop."""
        return self._polled is not None and self._polled.unsent()

    async def send_half(self, message: Message, *, queue: MessageQueue | None, timeout: float | None) -> SendResult:
        """Send a message that is seen when its transaction is committed."""
        if not isinstance(message, Message):
            raise TypeError(f"transaction(): a Message, got {type(message).__name__}")
        self.check(message)
        half = outgoing_half(message, self.config.group)
        return await self._send(message.topic, message.message_group, queue, half, timeout)

    async def _send(
        self,
        topic: str,
        message_group: str | None,
        queue: MessageQueue | None,
        outgoing: Outgoing,
        timeout: float | None,
    ) -> SendResult:
        """Try brokers until one stores the message, the attempts are used up, or the time is."""
        if self._closed:
            raise ClientClosed("the producer is closed")
        monotonic = self._clock.monotonic
        timeout = self._timeout(timeout)
        end = monotonic() + timeout
        if len(outgoing.body) >= self.config.compress_over_bytes and not outgoing.batch:
            outgoing = await self.compressed(outgoing)
        attempts: Attempts | None = None
        result: SendResult | None = None
        fixed = message_group is not None or queue is not None
        further = 0 if fixed else self.config.retries
        avoid: Collection[int] = ()
        while True:
            publisher = self._publishers.find(topic)
            if publisher is None:
                publisher = await self.publisher(topic, end - monotonic())
            target = self.target(publisher, message_group, queue, avoid)
            if target is None:  # a new route has none but those that failed
                assert attempts is not None, "without an attempt no broker is avoided"
                attempts.avoid.clear()
                continue
            failure: RocketError | None = None
            try:
                limit = self._attempt_timeout(publisher, end - monotonic(), further, avoid)
                result = await self.attempt(target, outgoing, limit)
                if result.status is SendStatus.SEND_OK or not self.config.retry_another_broker_when_not_store_ok:
                    return result
            except RocketError as error:
                failure = error
            attempts = attempts or Attempts(topic, further)
            if not await self.another_follows(attempts, target, failure, end, fixed=fixed):
                break
            further, avoid = attempts.further, attempts.avoid
        if result is not None:
            return result
        raise attempts.error(timeout)

    def _timeout(self, timeout: float | None) -> float:
        """Return the seconds that a call may take."""
        if timeout is None:
            return self.config.timeout
        if not isinstance(timeout, (int, float)) or not timeout > 0:
            raise ConfigError(f"timeout must be seconds above 0, got {timeout!r}")
        return timeout

    def _attempt_timeout(self, publisher: TopicPublisher, left: float, further: int, avoid: Collection[int]) -> float:
        """Return the seconds that one attempt has: those that follow at other brokers keep an equal share.

        Where no other broker is left, waiting for this one is worth more than asking it a second time.
        """
        if further <= 0:
            return left
        if self.config.attempt_timeout:
            return min(left, self.config.attempt_timeout)
        brokers = publisher.brokers
        if avoid:
            brokers = len({target.broker_number for target in publisher.targets}.difference(avoid))
        return left if brokers <= 1 else min(left, max(left / min(further + 1, brokers), LEAST_SHARE))

    async def another_follows(
        self, attempts: Attempts, target: SendTarget, error: RocketError | None, end: float, *, fixed: bool
    ) -> bool:
        """Say whether another attempt may follow one that failed; where it may, it is time for it now.

        error  None: the broker has the message, but not as safely as asked
        end    monotonic seconds
        fixed  whether the message belongs to one queue
        """
        topic, monotonic = target.queue.topic, self._clock.monotonic
        if error is None:
            again = attempts.not_safe(target)
        else:
            logger.debug("send failed topic=%s address=%s error=%s", topic, target.address, error)
            again = attempts.failed(target, error)
            if again and error.refresh_route and monotonic() < end:
                await self.refresh_route(topic, end - monotonic())
        publisher = self.find_publisher(topic)
        if again and (
            fixed or publisher is None or all(each.broker_number in attempts.avoid for each in publisher.targets)
        ):
            pause = attempts.pause()
            again = monotonic() + pause < end
            if again:
                await self._runtime.pause(pause)
        return again and monotonic() < end

    async def publisher(self, topic: str, timeout: float | None = None) -> TopicPublisher:
        """Return the publisher of a topic's newest route; raises RouteNotFound without a writable queue."""
        publisher = self._publishers.find(topic)
        if publisher is not None:
            return publisher
        timeout = self.config.timeout if timeout is None else timeout
        return await self._runtime.ask_instance(self._publishers.get(topic, timeout))

    async def refresh_route(self, topic: str, timeout: float) -> None:
        """Ask for a topic's route again; where no one answers, the known one stays."""
        await self._runtime.ask_instance(self._publishers.refresh(topic, timeout))

    def check(self, message: Message) -> None:
        """Refuse what no broker takes."""
        topic, body, flag = message.topic, message.body, message.flag
        # A message can be changed after it was made: what is sent is checked, by the rules in Message.check.
        if (
            topic not in self._checked_topics
            or type(body) is not bytes
            or not 0 < len(body) <= self.config.max_message_bytes
            or type(flag) is not int
            or not INT32_MIN <= flag <= INT32_MAX
        ):
            message.check(self.config.max_message_bytes)
            self._checked_topics.add(topic)

    def _text_by_hooks(self, message: Message, msg_id: str) -> str:
        context = BatchedContext(group=self.config.group, message=message, msg_id=msg_id)
        call_hooks([hook.before_batch for hook in self._batch_hooks], context)
        return with_added(property_text(message, msg_id), message.topic, context.added)

    async def compressed(self, outgoing: Outgoing) -> Outgoing:
        """Return what is sent with a compressed body, if that is shorter."""
        body, kind, level = outgoing.body, self._compression, self.config.compression_level
        if len(body) < _OFFLOAD_BYTES:
            short = compress(body, kind, level)
        else:
            short = await self._runtime.offload(compress, body, kind, level)
        return (
            outgoing._replace(body=short, sys_flag=outgoing.sys_flag | kind.sys_flag)
            if len(short) < len(body)
            else outgoing
        )

    def _trace_with(self, tracer: Tracer) -> None:
        """Have each send traced."""
        self._tracer = tracer
        self._hooks += (tracer,)

    def _note_end(self, message: Message, result: SendResult, state: TransactionState) -> None:
        """Have it traced that a broker was told how a transaction ended."""
        if self._tracer is not None:
            address = self.instance.routes.find_publish_address(result.queue.broker)
            self._tracer.transaction_ended(message, result.msg_id, address, state)

    def _end_traces(self) -> None:
        """Send the traces that are queued; blocks."""
        if self._tracer is not None:
            self._tracer.close()

    def attempt(self, target: SendTarget, outgoing: Outgoing, timeout: float) -> Awaitable[SendResult]:
        """Send once when that is awaited; raises what the transport or the broker says against it."""
        # No coroutine of its own: a send is woken through each that stands between it and the answer.
        if not self._hooks:
            return self._attempt(target, outgoing, timeout)

        async def send(context: SendContext, outgoing: Outgoing) -> SendResult:
            return await self._attempt(target, outgoing, timeout, context)

        return seen_by_hooks(self._hooks, self._clock, self.config.group, target, outgoing, send)

    @property
    def has_send_hooks(self) -> bool:
        """Whether anybody looks at sends, and at the ids of what is sent."""
        return bool(self._hooks)

    async def _attempt(
        self, target: SendTarget, outgoing: Outgoing, timeout: float, context: SendContext | None = None
    ) -> SendResult:
        clock, publishers = self._clock, self._publishers
        request = target.request(outgoing, clock.time_millis())
        started = clock.monotonic() if publishers.timing else 0.0
        try:
            response = await self._remoting.invoke(target.address, request, timeout)
            result = send_result(response, target, outgoing.msg_id)
            if context is not None:
                fields = response.ext_fields or {}
                context.region = fields.get(MSG_REGION)
                context.trace_on = fields.get(TRACE_ON) != "false"
        except RocketError as error:
            publishers.failed(target, error)
            raise
        if publishers.timing:
            publishers.answered(target, clock.monotonic() - started)
        return result


def _pipelining(remoting: Remoting) -> PipeliningRemoting | None:
    return remoting if isinstance(remoting, PipeliningRemoting) else None


def _polled(remoting: Remoting) -> PolledRemoting | None:
    return remoting if isinstance(remoting, PolledRemoting) else None
