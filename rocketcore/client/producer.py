"""Producer: choose a queue, send, and try another broker when that fails, all within one deadline.

``ProducerLogic`` is the logic for both worlds; ``Producer`` (public as ``rocketcore.aio.Producer``) adds what lives on
an event loop. The blocking ``rocketcore.Producer`` is in ``rocketcore.client.sync_producer``.

RocketMQ 5.5.0: ``DefaultMQProducer``, ``DefaultMQProducerImpl.sendDefaultImpl``.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import warnings
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, Unpack, overload

from rocketcore._fast.message import encode_batch
from rocketcore.client.accumulator import Accumulator
from rocketcore.client.attempts import Attempts
from rocketcore.client.config import NameServers, ProducerConfig, ProducerOptions, check_close_timeout, producer_config
from rocketcore.client.future import SendFuture
from rocketcore.client.instance import ClientInstance
from rocketcore.client.outgoing import ArrowColumns, Body, MessageOptions, batch_list, make_message, property_text
from rocketcore.client.publisher import TopicPublisher
from rocketcore.client.runtime import ASYNCIO, Runtime
from rocketcore.client.sender import Sender
from rocketcore.errors import ClientClosed, ConfigError, MessageIllegal, RocketError, SendsFailed
from rocketcore.ids import new_uniq_key
from rocketcore.message import Message, MessageQueue, SendResult, SendStatus
from rocketcore.service import SYSTEM_CLOCK, Clock, PeriodicTask
from rocketcore.transport.client import Remoting, RemotingClient

if TYPE_CHECKING:
    import pyarrow

    from rocketcore.client.arrow_sender import SendSummary

__all__ = ["Producer", "ProducerLogic"]

logger = logging.getLogger(__name__)


class ProducerLogic(Sender):
    """Sending, in whichever world ``instance`` lives."""

    def __init__(self, config: ProducerConfig, instance: ClientInstance, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config, instance, clock)
        self._closed = False
        instance.register_producer(config.group)

    def beside(self, remoting: Remoting, runtime: Runtime) -> ProducerLogic:
        """Return the same producer over other connections: one identity, one table of routes and of brokers' faults."""
        other = copy.copy(self)
        other._remoting = remoting
        other._runtime = runtime
        return other

    def refuse(self) -> None:
        """Send nothing any more."""
        self._closed = True

    @overload
    async def send(
        self, topic: Message, *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> SendResult: ...

    @overload
    async def send(
        self,
        topic: str,
        body: Body,
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendResult: ...

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
        return await self.send_message(make_message("send", topic, body, options), queue, timeout)

    @overload
    async def send_oneway(self, topic: Message, *, queue: MessageQueue | None = None) -> None: ...

    @overload
    async def send_oneway(
        self, topic: str, body: Body, *, queue: MessageQueue | None = None, **options: Unpack[MessageOptions]
    ) -> None: ...

    async def send_oneway(
        self,
        topic: str | Message,
        body: Body | None = None,
        *,
        queue: MessageQueue | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        """Send a message without waiting for an answer; it may be lost, and no one will know."""
        await self.send_oneway_message(make_message("send_oneway", topic, body, options), queue)

    async def send_message(
        self, message: Message, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> SendResult:
        """Send a message and wait until the broker has stored it."""
        self.check(message)
        msg_id = new_uniq_key()
        properties = property_text(message, msg_id)
        content, sys_flag = message.body, 0
        if len(content) >= self.config.compress_over_bytes:
            content, sys_flag = await self.packed(content)
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

    async def send_oneway_message(self, message: Message, queue: MessageQueue | None = None) -> None:
        """Send a message without waiting for an answer."""
        self.check(message)
        if self._closed:
            raise ClientClosed("the producer is closed")
        properties = property_text(message, new_uniq_key())
        content, sys_flag = message.body, 0
        if len(content) >= self.config.compress_over_bytes:
            content, sys_flag = await self.packed(content)
        publisher = await self.publisher(message.topic)
        target = self.target(publisher, message.message_group, queue)
        assert target is not None, "no broker is avoided"
        request = target.request(
            content, properties, self._clock.time_millis(), sys_flag=sys_flag, flag=message.flag, oneway=True
        )
        await self._remoting.invoke_oneway(target.address, request, self.config.timeout)

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
        monotonic = self._clock.monotonic
        if timeout is None:
            timeout = self.config.timeout
        elif not isinstance(timeout, (int, float)) or not timeout > 0:
            raise ConfigError(f"timeout is seconds above 0, got {timeout!r}")
        end = monotonic() + timeout
        attempts: Attempts | None = None
        result: SendResult | None = None
        while True:
            publisher = self._publishers.find(topic)
            if publisher is None:
                publisher = await self.publisher(topic, end - monotonic())
            target = self.target(publisher, message_group, queue, () if attempts is None else attempts.avoid)
            if target is None:
                assert attempts is not None, "without an attempt no broker is avoided"
                pause = attempts.pause()
                if monotonic() + pause >= end:
                    break
                await self._runtime.pause(pause)
                continue
            try:
                result = await self.attempt(
                    target, body, properties, msg_id, end - monotonic(), sys_flag=sys_flag, flag=flag, batch=batch
                )
            except RocketError as error:
                attempts = attempts or self._attempts(topic, fixed=message_group is not None or queue is not None)
                logger.debug("send failed topic=%s address=%s error=%s", topic, target.address, error)
                if not attempts.failed(target, error):
                    break
                if attempts.refresh_route and monotonic() < end:
                    await self.refresh_route(topic, end - monotonic())
            else:
                if result.status is SendStatus.SEND_OK or not self.config.retry_another_broker_when_not_store_ok:
                    return result
                attempts = attempts or self._attempts(topic, fixed=message_group is not None or queue is not None)
                if not attempts.not_safe(target):
                    break
            if monotonic() >= end:
                break
        if result is not None:
            return result
        raise attempts.error(timeout)

    def _attempts(self, topic: str, *, fixed: bool) -> Attempts:
        return Attempts(topic, 0 if fixed else self.config.retries)


class Producer(ProducerLogic):
    """Sends messages on an event loop (Java: ``DefaultMQProducer``).

    Use it as ``async with``, or just send: it starts on first use; ``close()`` sends what ``send_nowait`` took, leaves
    the group and closes the connections. All methods belong to one event loop.
    """

    def __init__(
        self, namesrv: NameServers = None, *, config: ProducerConfig | None = None, **options: Unpack[ProducerOptions]
    ) -> None:
        config = producer_config(namesrv, options, config)
        remoting = RemotingClient(**config.remoting)
        self._client = remoting
        super().__init__(config, ClientInstance(config, remoting, ASYNCIO))
        self._tasks: list[PeriodicTask] = []
        self._accumulator: Accumulator | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
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
        try:
            await self.close()
        except SendsFailed:
            if error is None:  # what ended the block says more
                raise

    def __del__(self) -> None:
        tasks, loop = getattr(self, "_tasks", None), getattr(self, "_loop", None)
        if not tasks or self._closed or loop is None:
            return
        try:
            warnings.warn(
                f"unclosed {self!r}: await close(), or use it with 'async with'", ResourceWarning, stacklevel=2
            )
        finally:
            if not loop.is_closed():
                with contextlib.suppress(RuntimeError):  # it was closed meanwhile
                    loop.call_soon_threadsafe(_give_up, tasks, self._client)

    async def start(self) -> None:
        """Begin heartbeats and route refresh; a second call does nothing."""
        if self._closed:
            raise ClientClosed("the producer is closed")
        if not self._tasks:
            self._loop = asyncio.get_running_loop()
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

    @overload
    async def send_nowait(self, topic: Message, *, queue: MessageQueue | None = None) -> SendFuture: ...

    @overload
    async def send_nowait(
        self, topic: str, body: Body, *, queue: MessageQueue | None = None, **options: Unpack[MessageOptions]
    ) -> SendFuture: ...

    async def send_nowait(
        self,
        topic: str | Message,
        body: Body | None = None,
        *,
        queue: MessageQueue | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendFuture:
        """Hand a message over to be sent with others of its queue; waits only while ``buffer_bytes`` are taken.

        topic, body  a topic and a body, with the options of ``Message``; or a ``Message`` alone
        returns      a future of the SendResult; its ``msg_id`` is known at once
        raises       MessageIllegal, RouteNotFound for a queue that is known not to be; Overloaded after
                     ``delivery_timeout`` seconds without room
        """
        message = make_message("send_nowait", topic, body, options)
        accumulator = self.accumulator()
        if not self._tasks:
            await self.start()
        return await accumulator.append_when_room(message, queue)

    def accumulator(self) -> Accumulator:
        """Return what collects the messages of ``send_nowait``; made at first use."""
        if self._closed:
            raise ClientClosed("the producer is closed")
        if self._accumulator is None:
            self._accumulator = Accumulator(self, self.config)
        return self._accumulator

    async def flush(self) -> None:
        """Wait until everything that ``send_nowait`` took before is sent, or has failed.

        That takes at most ``delivery_timeout`` seconds.

        raises  SendsFailed for failures that no one has asked a future for
        """
        if self._accumulator is not None:
            await self._accumulator.flush()

    async def close(self, timeout: float | None = None) -> None:
        """Send what is waiting, leave the group, close the connections; a second call waits for the first.

        timeout  seconds to send what is waiting, what is left then fails; default: all of ``delivery_timeout``
        raises   SendsFailed, after all is closed, for failures that no one has asked a future for
        """
        check_close_timeout(timeout)
        async with self._close_lock:
            if self._closed:
                return
            async with contextlib.AsyncExitStack() as ends:
                # Also where this is cancelled, or messages were not sent, nothing may go on by itself.
                ends.push_async_callback(self._end)
                if self._accumulator is not None:
                    await self._accumulator.close(timeout)

    async def _end(self) -> None:
        self._closed = True
        tasks, self._tasks = self._tasks, []
        async with contextlib.AsyncExitStack() as ends:
            ends.push_async_callback(self._client.close)
            for task in tasks:
                ends.push_async_callback(task.stop)
            for task in tasks:
                await task.stop()
            if tasks:
                await self.instance.unregister()

    def __repr__(self) -> str:
        return f"<aio.Producer group={self.config.group!r} client_id={self.client_id!r}>"


def _give_up(tasks: list[PeriodicTask], remoting: RemotingClient) -> None:
    """End what a forgotten producer has on its loop."""

    async def end() -> None:
        for task in tasks:
            await task.stop()
        await remoting.close()

    ending = asyncio.get_running_loop().create_task(end(), name="producer-forgotten")
    _ENDING.add(ending)
    ending.add_done_callback(_ENDING.discard)


_ENDING: Final[set[asyncio.Task[None]]] = set()
"""The loop itself holds its tasks weakly."""
