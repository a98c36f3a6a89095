"""Producer: choose a queue, send, and try another broker when that fails, all within one deadline.

``ProducerLogic`` is the logic for both worlds; ``Producer`` (public as ``rocketcore.aio.Producer``) adds what lives on
an event loop. The blocking ``rocketcore.Producer`` is in ``rocketcore.client.sync``.

RocketMQ 5.5.0: ``DefaultMQProducer``, ``DefaultMQProducerImpl.sendDefaultImpl``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, Unpack

from rocketcore._fast.message import encode_batch
from rocketcore._fast.rotation import QueueRotation
from rocketcore.client.accumulator import Accumulator, SendFuture
from rocketcore.client.api import SEND_STATUSES
from rocketcore.client.config import NameServers, ProducerConfig, ProducerOptions, producer_config
from rocketcore.client.fault import ASSUMED_LATENCY, BrokerNumbers, LatencyFaultTolerance
from rocketcore.client.ids import new_uniq_key
from rocketcore.client.instance import ClientInstance
from rocketcore.client.outgoing import ArrowColumns, Body, MessageOptions, batch_list, make_message, property_text
from rocketcore.client.route_table import TopicRoute
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.selectors import find_selector
from rocketcore.client.send_command import SendTarget
from rocketcore.codes import ResponseCode
from rocketcore.errors import (
    ClientClosed,
    DecodeError,
    MessageIllegal,
    RequestTimeout,
    RocketError,
    RouteNotFound,
    TransportError,
)
from rocketcore.message import (
    Message,
    MessageQueue,
    SendResult,
    SendStatus,
    check_send_topic,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.compression import CompressionType, compress
from rocketcore.service import SYSTEM_CLOCK, Clock, Deadline, PeriodicTask
from rocketcore.transport.client import RemotingClient

if TYPE_CHECKING:
    import pyarrow

    from rocketcore.client.arrow_sender import SendSummary

__all__ = ["Producer", "ProducerLogic", "TopicPublisher"]

logger = logging.getLogger(__name__)

_OFFLOAD_BYTES: Final = 64 * 1024


class TopicPublisher:
    """The queues of one topic to send to, prepared from one route; a new route makes a new publisher."""

    __slots__ = ("by_queue", "order", "rotation", "route", "targets", "topic")

    def __init__(self, route: TopicRoute, targets: Sequence[SendTarget], start: int) -> None:
        self.topic = route.topic
        self.route = route
        self.targets = targets
        self.rotation = QueueRotation([target.broker_number for target in targets], start)
        self.by_queue = {target.queue: target for target in targets}


class ProducerLogic:
    """Sending, in whichever world ``instance`` lives."""

    def __init__(self, config: ProducerConfig, instance: ClientInstance, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config
        self.instance = instance
        self._clock = clock
        self._fault = LatencyFaultTolerance(config.latency_fault_tolerance, clock)
        self._brokers = BrokerNumbers()
        self._compression = CompressionType[config.compression.upper()]
        self._select = find_selector(config.selector)
        self._publishers: dict[str, TopicPublisher] = {}
        self._checked_topics: set[str] = set()
        self._closed = False
        instance.register_producer(config.group)

    async def publisher(self, topic: str, timeout: float | None = None) -> TopicPublisher:
        """Return the publisher of a topic's newest route; raises RouteNotFound without a writable queue."""
        publisher = self.find_publisher(topic)
        if publisher is not None:
            return publisher
        deadline = Deadline(self.config.timeout if timeout is None else timeout, self._clock)
        known = self.instance.routes.find(topic)
        route = await self.instance.await_route(
            topic, default_queue_nums=self.config.default_topic_queue_nums, timeout=deadline.remaining()
        )
        targets = self._targets(route)
        if not targets and route is known:
            # Known for up to ``route_interval``, and perhaps of the past: permission may have been given back.
            await self._refresh(topic, deadline.remaining())
            route = self.instance.routes.find(topic) or route
            targets = self._targets(route)
        if not targets:
            raise RouteNotFound(f"topic {topic!r} has no queue that can be written to")
        # Producers that start together must not all begin with the first queue.
        publisher = TopicPublisher(route, targets, time.perf_counter_ns() % len(targets))
        self._publishers[topic] = publisher
        return publisher

    def _targets(self, route: TopicRoute) -> list[SendTarget]:
        addresses = self.instance.routes
        return [
            SendTarget(
                queue,
                address,
                self._brokers.number(queue.broker),
                self.config.group,
                self.config.default_topic_queue_nums,
                signed=bool(self.config.access_key),
            )
            for queue in route.publish
            if (address := addresses.find_publish_address(queue.broker)) is not None
        ]

    def find_publisher(self, topic: str) -> TopicPublisher | None:
        """Return the publisher of a topic if one is at hand that fits the newest route; any thread."""
        publisher = self._publishers.get(topic)
        if publisher is not None and self.instance.routes.find(topic) is publisher.route:
            return publisher
        return None

    def refuse(self) -> None:
        """Send nothing any more."""
        self._closed = True

    def check(self, message: Message) -> None:
        """Refuse what no broker takes."""
        topic = message.topic
        if topic not in self._checked_topics:
            check_send_topic(topic)
            self._checked_topics.add(topic)
        if not 0 < len(message.body) <= self.config.max_message_bytes:
            message.check(self.config.max_message_bytes)

    async def _compress(self, body: bytes) -> tuple[bytes, int]:
        kind, level = self._compression, self.config.compression_level
        if len(body) < _OFFLOAD_BYTES:
            return compress(body, kind, level), kind.sys_flag
        return await self.instance.runtime.offload(compress, body, kind, level), kind.sys_flag

    async def send(
        self,
        topic: str | Message,
        body: Body | None = None,
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendResult:
        """Send a message and wait until the broker has stored it (Java: ``send``).

        topic, body  a topic and a body, with the options of ``Message``; or a ``Message`` alone
        queue        the queue to send to; without it and without ``message_group`` the queues take turns
        timeout      seconds for the whole call, retries included; default: the producer's
        returns      SendResult; its status can be other than SEND_OK: stored, but not yet as safely as asked
        raises       MessageIllegal, RouteNotFound, TransportError (RequestTimeout), the broker's refusal (BrokerError)
        """
        message = make_message("send", topic, body, options)
        self.check(message)
        msg_id = new_uniq_key()
        properties = property_text(message, msg_id)
        content, sys_flag = message.body, 0
        if len(content) >= self.config.compress_over_bytes:
            content, sys_flag = await self._compress(content)
        return await self._send(
            message.topic,
            message.message_group,
            queue,
            timeout,
            content,
            properties,
            msg_id,
            sys_flag=sys_flag,
            flag=message.flag,
        )

    async def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> SendResult:
        """Send messages of one topic as one batch: one queue, consecutive offsets, stored together or not at all.

        returns  SendResult: ``offset`` is that of the first message, ``msg_id`` joins the ids by commas
        raises   MessageIllegal for an empty batch, mixed topics, delayed messages, or too many bytes in all
        """
        batch = batch_list(messages)
        for message in batch:
            self.check(message)
        topic, message_group = batch[0].topic, batch[0].message_group
        ids = [new_uniq_key() for _ in batch]
        encoded = encode_batch(
            [message.body for message in batch],
            [property_text(message, msg_id).encode() for message, msg_id in zip(batch, ids, strict=True)],
            [message.flag for message in batch],
        )
        return await self.send_encoded_batch(topic, message_group, queue, encoded, ids, timeout)

    async def send_encoded(
        self,
        topic: str,
        queue: MessageQueue | None,
        body: bytes,
        properties: str,
        msg_id: str,
        flag: int = 0,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message whose property string is made; a large body is compressed."""
        sys_flag = 0
        if len(body) >= self.config.compress_over_bytes:
            body, sys_flag = await self._compress(body)
        return await self._send(topic, None, queue, timeout, body, properties, msg_id, sys_flag=sys_flag, flag=flag)

    async def send_encoded_batch(
        self,
        topic: str,
        message_group: str | None,
        queue: MessageQueue | None,
        body: bytes,
        ids: Sequence[str],
        timeout: float | None = None,
    ) -> SendResult:
        """Send a batch body (wire specification §5.1) whose messages have the given ids."""
        if len(body) > self.config.max_message_bytes:
            raise MessageIllegal(f"a batch of {len(body)} bytes, {self.config.max_message_bytes} are allowed")
        return await self._send(
            topic, message_group, queue, timeout, body, "WAIT\x01true\x02", ",".join(ids), batch=True
        )

    async def send_oneway(
        self,
        topic: str | Message,
        body: Body | None = None,
        *,
        queue: MessageQueue | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        """Send a message without waiting for an answer; it may be lost, and no one will know."""
        message = make_message("send_oneway", topic, body, options)
        self.check(message)
        if self._closed:
            raise ClientClosed("the producer is closed")
        properties = property_text(message, new_uniq_key())
        content, sys_flag = message.body, 0
        if len(content) >= self.config.compress_over_bytes:
            content, sys_flag = await self._compress(content)
        publisher = await self.publisher(message.topic)
        target = self.target(publisher, message.message_group, queue, -1)
        request = target.request(
            content, properties, self._clock.time_millis(), sys_flag=sys_flag, flag=message.flag, oneway=True
        )
        await self.instance.remoting.invoke_oneway(target.address, request, self.config.timeout)

    def target(
        self, publisher: TopicPublisher, message_group: str | None, queue: MessageQueue | None, last_broker: int
    ) -> SendTarget:
        """Return where a message goes: the given queue, its group's, or the next one.

        last_broker  number of the broker that just failed, -1 without one
        """
        if queue is not None:
            try:
                return publisher.by_queue[queue]
            except KeyError:
                raise RouteNotFound(f"{queue} is no queue of {publisher.topic!r} that can be written to") from None
        if message_group is not None:
            return publisher.targets[self._select(message_group, len(publisher.targets)) % len(publisher.targets)]
        return publisher.targets[self._fault.select(publisher.rotation, last_broker)]

    async def _send(
        self,
        topic: str,
        message_group: str | None,
        queue: MessageQueue | None,
        timeout: float | None,
        body: bytes,
        properties: str,
        msg_id: str,
        *,
        sys_flag: int = 0,
        flag: int = 0,
        batch: bool = False,
    ) -> SendResult:
        """Try brokers until one stores the message, the attempts are used up, or the time is."""
        if self._closed:
            raise ClientClosed("the producer is closed")
        clock = self._clock
        timeout = self.config.timeout if timeout is None else timeout
        started = clock.monotonic()
        end = started + timeout
        attempts = 1 if queue is not None or message_group is not None else 1 + self.config.retries
        last_broker = -1
        failure: RocketError | None = None
        result: SendResult | None = None
        for attempt in range(attempts):
            if attempt:
                started = clock.monotonic()
                if started < end and failure is not None and failure.refresh_route:
                    await self._refresh(topic, end - started)
                    started = clock.monotonic()
                if started >= end:
                    break
            publisher = self.find_publisher(topic)
            if publisher is None:
                publisher = await self.publisher(topic, end - started)
                started = clock.monotonic()
            target = self.target(publisher, message_group, queue, last_broker)
            request = target.request(body, properties, clock.time_millis(), sys_flag=sys_flag, flag=flag, batch=batch)
            try:
                response = await self.instance.remoting.invoke(target.address, request, end - started)
                result = send_result(response, target, msg_id)
            except RocketError as error:
                reachable = not isinstance(error, TransportError)
                self._fault.update(target.broker_number, ASSUMED_LATENCY, reachable=reachable)
                if not error.retriable:
                    raise
                failure, last_broker = error, target.broker_number
                logger.debug("send failed topic=%s address=%s attempt=%d: %s", topic, target.address, attempt, error)
                continue
            if self._fault.enabled:
                self._fault.update(target.broker_number, clock.monotonic() - started)
            if result.status is SendStatus.SEND_OK or not self.config.retry_another_broker_when_not_store_ok:
                return result
            last_broker = target.broker_number
        if result is not None:
            return result
        if failure is None or isinstance(failure, RequestTimeout):
            raise RequestTimeout(f"send to topic {topic!r}: no answer within {timeout:g} s") from failure
        raise failure

    async def _refresh(self, topic: str, timeout: float) -> None:
        try:
            await self.instance.refresh_topic(
                topic, default_queue_nums=self.config.default_topic_queue_nums, timeout=timeout / 2
            )
        except RocketError as error:
            logger.debug("route not refreshed topic=%s error=%s", topic, error)


def send_result(response: RemotingCommand, target: SendTarget, msg_id: str) -> SendResult:
    """Return the outcome of a send; raises the broker's refusal."""
    code = response.code
    if code == 0:
        status = SendStatus.SEND_OK
    else:
        response.raise_for_code(target.address, f"send to topic {target.queue.topic!r}", SEND_STATUSES)
        status = SEND_STATUSES[ResponseCode(code)]
    fields = response.ext_fields or {}
    try:
        queue_id = int(fields["queueId"])
        offset = int(fields["queueOffset"])
        offset_msg_id = fields["msgId"]
    except (KeyError, ValueError) as error:
        raise DecodeError(f"answer to a send from {target.address}: {error!r} in {fields}") from error
    queue = target.queue
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker, queue_id)
    return SendResult(
        status, msg_id, offset_msg_id, queue, offset, fields.get("transactionId"), fields.get("recallHandle")
    )


class Producer(ProducerLogic):
    """Sends messages on an event loop (Java: ``DefaultMQProducer``).

    Use it as ``async with``, or just send: it starts on first use; ``close()`` sends what ``send_nowait`` took, leaves
    the group and closes the connections. All methods belong to one event loop.
    """

    def __init__(
        self, namesrv: NameServers = None, *, config: ProducerConfig | None = None, **options: Unpack[ProducerOptions]
    ) -> None:
        config = config or producer_config(namesrv, options)
        self._remoting = RemotingClient(**config.remoting)
        super().__init__(config, ClientInstance(config, self._remoting, ASYNCIO))
        self._tasks: list[PeriodicTask] = []
        self._accumulator: Accumulator | None = None
        self._close_lock = asyncio.Lock()

    @property
    def client_id(self) -> str:
        """The name under which brokers know this producer."""
        return self.instance.client_id

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin heartbeats and route refresh; a second call does nothing."""
        if self._closed:
            raise ClientClosed("the producer is closed")
        if not self._tasks:
            self._tasks = [
                PeriodicTask("producer-route", self.instance.refresh, self.config.route_interval),
                PeriodicTask(
                    "producer-heartbeat", self.instance.heartbeat, self.config.heartbeat_interval, initial_delay=1.0
                ),
            ]
            for task in self._tasks:
                task.start()

    async def publisher(self, topic: str, timeout: float | None = None) -> TopicPublisher:
        if not self._tasks:
            await self.start()
        return await super().publisher(topic, timeout)

    async def send_arrow(
        self, topic: str, record_batch: pyarrow.RecordBatch | pyarrow.Table, **columns: Unpack[ArrowColumns]
    ) -> SendSummary:
        """Send each row of a record batch, or of a table, as a message; see ``rocketcore.client.arrow.send_arrow``."""
        from rocketcore.client.arrow import send_arrow

        return await send_arrow(self, topic, record_batch, **columns)

    async def send_nowait(self, message: Message, *, queue: MessageQueue | None = None) -> SendFuture:
        """Hand a message over to be sent with others of its queue; waits only while ``buffer_bytes`` are taken.

        returns  a future of the SendResult; its ``msg_id`` is known at once
        """
        self.check(message)
        publisher = await self.publisher(message.topic)
        accumulator = self.accumulator()
        future = accumulator.append(publisher, message, queue)
        while future is None:
            await accumulator.room()
            future = accumulator.append(publisher, message, queue)
        return future

    def accumulator(self) -> Accumulator:
        """Return what collects the messages of ``send_nowait``; made at first use."""
        if self._closed:
            raise ClientClosed("the producer is closed")
        if self._accumulator is None:
            self._accumulator = Accumulator(self, self.config)
        return self._accumulator

    async def flush(self) -> None:
        """Wait until everything that ``send_nowait`` took is sent, or has failed."""
        if self._accumulator is not None:
            await self._accumulator.flush()

    async def close(self) -> None:
        """Send what is waiting, leave the group, close the connections; a second call waits for the first."""
        async with self._close_lock:
            if self._closed:
                return
            if self._accumulator is not None:
                await self._accumulator.close()
            self._closed = True
            tasks, self._tasks = self._tasks, []
            async with contextlib.AsyncExitStack() as ends:
                # Also where this is cancelled, nothing may go on by itself.
                ends.push_async_callback(self._remoting.close)
                for task in tasks:
                    ends.push_async_callback(task.stop)
                for task in tasks:
                    await task.stop()
                if tasks:
                    await self.instance.unregister()
