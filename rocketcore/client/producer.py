"""The asyncio producer: a ``Sender`` and what goes on by itself on its loop. ``rocketcore.aio.Producer`` calls it.

The blocking ``rocketcore.Producer`` is in ``rocketcore.client.sync_producer``.

RocketMQ 5.5.0: ``DefaultMQProducer``.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from rocketcore.client.accumulator import Accumulator
from rocketcore.client.config import NameServers, ProducerConfig, ProducerOptions, check_close_timeout, client_config
from rocketcore.client.daemon import call_on_daemon
from rocketcore.client.future import SendFuture
from rocketcore.client.instance import ClientInstance
from rocketcore.client.outgoing import ArrowColumns, MessageOptions, make_message
from rocketcore.client.publisher import TopicPublisher
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.sender import Sender
from rocketcore.errors import ClientClosed, SendsFailed
from rocketcore.message import Body, Message, MessageQueue
from rocketcore.service import PeriodicTask
from rocketcore.transport.client import RemotingClient

if TYPE_CHECKING:
    import pyarrow

    from rocketcore.client.arrow_sender import SendSummary
    from rocketcore.client.transaction import AsyncTransaction
    from rocketcore.client.transaction_checks import LoopChecks

__all__ = ["Producer"]


class Producer(Sender):
    """Sends messages on an event loop (Java: ``DefaultMQProducer``); starts on first use."""

    def __init__(
        self, namesrv: NameServers = None, *, config: ProducerConfig | None = None, **options: Unpack[ProducerOptions]
    ) -> None:
        config = client_config(ProducerConfig, namesrv, options, config)
        remoting = RemotingClient(**config.remoting)
        self._client = remoting
        super().__init__(config, ClientInstance(config, remoting, ASYNCIO))
        self._tasks: list[PeriodicTask | LoopChecks] = []
        self._checks: LoopChecks | None = None
        if config.checker is not None:
            from rocketcore.client.transaction_checks import LoopChecks  # most producers are not asked

            self._checks = LoopChecks(config, config.checker, remoting, remoting.address_of)
            remoting.add_routes(self._checks.routes())
        if config.trace:
            from rocketcore.client.sync_producer import Producer as TraceProducer
            from rocketcore.client.trace import Tracer

            self._trace_with(Tracer(config, "PRODUCE", TraceProducer))
        if self._checks is not None:
            self._checks.tracer = self._tracer
        self._accumulator: Accumulator | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._close_lock = asyncio.Lock()
        self._ended = False

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

    @property
    def is_open(self) -> bool:
        """Whether it has started, and not ended."""
        return self._loop is not None and not self._ended

    @property
    def unfinished(self) -> int:
        """How many messages ``send_nowait`` has taken that have no outcome yet."""
        return 0 if self._accumulator is None else self._accumulator.unfinished()

    async def start(self) -> None:
        """Begin heartbeats and route refresh; a second call does nothing."""
        if self._closed:
            raise ClientClosed("the producer is closed")
        if not self._tasks:
            self._loop = asyncio.get_running_loop()
            self._tasks = [
                PeriodicTask(
                    "producer-route",
                    self.instance.refresh,
                    self.config.route_interval,
                    initial_delay=None if self._checks is None else 0.0,
                ),
                PeriodicTask(
                    "producer-heartbeat", self.instance.heartbeat, self.config.heartbeat_interval, initial_delay=1.0
                ),
            ]
            if self._checks is not None:
                self._tasks.append(self._checks)
            for task in self._tasks:
                task.start()

    def transaction(
        self, message: Message, *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> AsyncTransaction:
        """Return a transaction: ``async with`` it, or call ``begin()`` and then ``commit()`` or ``rollback()``.

        queue    the queue to send to; without it and without ``message_group`` the queues take turns
        timeout  seconds for the half message, and for its end; default: the producer's
        raises   ConfigError without ``checker``
        """
        from rocketcore.client.transaction import AsyncTransaction

        return AsyncTransaction(self, message, queue, timeout)

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

    @overload
    async def send_nowait(
        self, topic: str, *, json: Any, queue: MessageQueue | None = None, **options: Unpack[MessageOptions]
    ) -> SendFuture: ...

    async def send_nowait(
        self,
        topic: str | Message,
        body: Body | None = None,
        *,
        json: Any = ...,
        queue: MessageQueue | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendFuture:
        """Hand a message over to be sent with others of its queue; waits only while ``buffer_bytes`` are taken.

        topic, body  a topic and a body, with the options of ``Message``; or a ``Message`` alone
        returns      a future of the SendResult; its ``msg_id`` is known at once
        raises       MessageIllegal, RouteNotFound for a queue that is known not to be; Overloaded after
                     ``delivery_timeout`` seconds without room
        """
        message = make_message("send_nowait", topic, body, options, json)
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

        timeout  seconds to send the waiting messages, the rest then fails; default: all of ``delivery_timeout``
        raises   SendsFailed, after all is closed, for failed messages whose future was never asked
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
        self.refuse()
        tasks, self._tasks = self._tasks, []
        async with contextlib.AsyncExitStack() as ends:
            ends.callback(self._end_here)
            ends.push_async_callback(self._client.close)
            if self._tracer is not None:
                ends.push_async_callback(call_on_daemon, "producer-traces", self._end_traces)
            for task in tasks:
                ends.push_async_callback(task.stop)
            for task in tasks:
                await task.stop()
            if tasks:
                await self.instance.unregister()

    def _end_here(self) -> None:
        self._ended = True

    def __repr__(self) -> str:
        return f"<aio.Producer group={self.config.group!r} client_id={self.client_id!r}>"
