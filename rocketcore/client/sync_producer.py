"""The blocking producer: same names as in ``rocketcore.aio``, no logic of its own.

It runs the coroutines of ``Sender`` on the calling thread, over connections that block; one daemon thread sends
heartbeats and refreshes routes. ``send_nowait`` needs something that goes on by itself: an event loop on a daemon
thread, with connections of its own but the same identity, routes and table of faults.

The threads know what they work for (``_Workings``) and not the ``Producer``: one that nobody refers to any more is
noticed, complained of and closed.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from rocketcore.client.blocking import blocking, constructor
from rocketcore.client.config import NameServers, ProducerConfig, ProducerOptions, check_close_timeout, client_config
from rocketcore.client.instance import ClientInstance
from rocketcore.client.outgoing import ArrowColumns, MessageOptions, make_message
from rocketcore.client.process import close_forgotten, watch
from rocketcore.client.runtime import THREADS
from rocketcore.client.sender import Sender
from rocketcore.client.stopping import Leaving, exit_by
from rocketcore.client.tracebacks import SHORTENED, shortened
from rocketcore.errors import ClientClosed, ConfigError, RocketError
from rocketcore.message import Body, Message, MessageQueue
from rocketcore.service import PeriodicThread
from rocketcore.transport.blocking.client import BlockingChannelAdapter, BlockingRemotingClient, run_sync

if TYPE_CHECKING:
    import pyarrow

    from rocketcore.client.arrow_sender import SendSummary
    from rocketcore.client.future import SendFuture
    from rocketcore.client.nowait import Nowait
    from rocketcore.client.transaction import Transaction
    from rocketcore.client.transaction_checks import ThreadChecks

__all__ = ["Producer"]

HOUSEKEEPING_DELAY = 1.0


class _Workings:
    """What a blocking producer has in one process: connections, threads, what waits to be sent."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._lock = threading.RLock()  # guards starting and closing; a handler may come in
        self.started = False
        self.closed = False
        self.nowait: Nowait | None = None
        self._remoting = BlockingRemotingClient(name="producer", **config.remoting)
        self.logic = Sender(config, ClientInstance(config, BlockingChannelAdapter(self._remoting), THREADS))
        self._checks: ThreadChecks | None = None
        if config.checker is not None:
            from rocketcore.client.transaction_checks import ThreadChecks  # most producers are not asked

            remoting = self.logic.instance.remoting
            self._checks = ThreadChecks(config, config.checker, remoting, lambda channel: channel.remote_address)
        if config.trace:
            from rocketcore.client.trace import Tracer

            tracer = Tracer(config, "PRODUCE", Producer)
            self.logic._trace_with(tracer)
            if self._checks is not None:
                self._checks.tracer = tracer
        interval = min(config.route_interval, config.heartbeat_interval)
        self._housekeeping = PeriodicThread(
            "producer-housekeeping", self._refresh_and_heartbeat, interval, initial_delay=HOUSEKEEPING_DELAY
        )

    def start(self) -> None:
        with self._lock:
            if self.closed:
                raise ClientClosed("the producer is closed")
            if not self.started:
                self.started = True
                if self._checks is not None:
                    self._remoting.add_routes(self._checks.routes())
                self._housekeeping.start()

    def start_nowait(self) -> Nowait:
        from rocketcore.client.nowait import Nowait  # an event loop and all of its transport: most producers need none

        self.start()
        with self._lock:
            if self.closed:
                raise ClientClosed("the producer is closed")
            if self.nowait is None:
                nowait = Nowait(self._config, self.logic)
                if self.nowait is not None:  # of a handler that came in
                    nowait.close(0.0)
                else:
                    self.nowait = nowait
            return self.nowait

    def _refresh_and_heartbeat(self) -> float | None:
        sooner = run_sync(self.logic.instance.refresh())
        run_sync(self.logic.instance.heartbeat())
        return sooner

    def close(self, timeout: float | None = None) -> None:
        if self.nowait is not None and self.nowait.is_current:
            raise ConfigError("close() in a callback of send_nowait would wait for its own thread")
        with self._lock:
            if self.closed:
                return
            self.closed = True
        with contextlib.ExitStack() as ends:
            # Also where messages were not sent, or this is interrupted, nothing may go on by itself.
            ends.callback(self._end)
            if self.nowait is not None:
                self.nowait.close(timeout)

    def _end(self) -> None:
        self.logic.refuse()
        with contextlib.ExitStack() as ends:
            if self.started:
                self._housekeeping.stop(0.0)  # what it waits for ends with the connections
                ends.callback(self._housekeeping.stop)
            ends.callback(self._remoting.close)
            if self._checks is not None:
                self._checks.stop()
            ends.callback(self.logic._end_traces)
            if self.started:
                run_sync(self.logic.instance.unregister())


class Producer:
    """Sends messages (Java: ``DefaultMQProducer``); thread-safe.

    Use it with ``with``, or just send: it starts on first use. ``close()`` sends what ``send_nowait`` took and leaves
    the group; it is called at interpreter exit if it was forgotten. In a forked child the producer starts over.

    namesrv  ``host:port``, several joined by ``;``, or a list; None: ``ROCKETMQ_NAMESRV_ADDR``, ``NAMESRV_ADDR``,
             ``127.0.0.1:9876``
    config   settings as one object; or its fields as keyword arguments, see ``ProducerConfig``
    """

    @constructor
    def __init__(
        self, namesrv: NameServers = None, *, config: ProducerConfig | None = None, **options: Unpack[ProducerOptions]
    ) -> None:
        self.config = client_config(ProducerConfig, namesrv, options, config)
        self._begin()
        watch(self)

    def _begin(self) -> None:
        """Set up what belongs to one process."""
        self._workings = _Workings(self.config)
        self._finalizer = weakref.finalize(self, _forgotten, self._workings)
        self._finalizer.atexit = False  # what is there at the end of the interpreter is closed by the watch

    def _in_child(self) -> None:
        """Start over in a forked child; connections, threads and ids of the parent are left alone."""
        self._finalizer.detach()
        if not self._workings.closed:
            self._begin()

    @property
    def client_id(self) -> str:
        """The name under which brokers know this producer."""
        return self._workings.logic.instance.client_id

    def __enter__(self) -> Self:
        self._leaving = Leaving(exit_by)
        self._leaving.__enter__()
        try:
            self.start()
        except BaseException:
            self._leaving.restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except RocketError as failure:
            if error is None:
                raise
            error.add_note(f"the producer was closed: {failure}")  # what ended the block says more
        finally:
            self._leaving.restore()

    def start(self) -> None:
        """Begin heartbeats and route refresh; a second call does nothing."""
        self._workings.start()

    _run = staticmethod(run_sync)

    def _logic(self) -> Sender:
        workings = self._workings
        if not workings.started:
            workings.start()
        return workings.logic

    send = blocking(Sender.send)
    request = blocking(Sender.request)
    send_oneway = blocking(Sender.send_oneway)
    send_batch = blocking(Sender.send_batch)
    queues = blocking(Sender.queues)
    recall = blocking(Sender.recall)

    def transaction(
        self, message: Message, *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> Transaction:
        """Return a transaction: use it with ``with``, or call ``begin()`` and then ``commit()`` or ``rollback()``.

        queue    the queue to send to; without it and without ``message_group`` the queues take turns
        timeout  seconds for the half message, and for its end; default: the producer's
        raises   ConfigError without ``checker``
        """
        from rocketcore.client.transaction import AsyncTransaction, Transaction

        return Transaction(AsyncTransaction(self._logic(), message, queue, timeout, self))

    def send_arrow(
        self, topic: str, record_batch: pyarrow.RecordBatch | pyarrow.Table, **columns: Unpack[ArrowColumns]
    ) -> SendSummary:
        """Send each row of a record batch, or of a table, as a message; see ``rocketcore.client.arrow.send_arrow``."""
        from rocketcore.client.arrow import send_arrow

        return run_sync(send_arrow(self._logic(), topic, record_batch, **columns))

    @overload
    def send_nowait(self, topic: Message, *, queue: MessageQueue | None = None) -> SendFuture: ...

    @overload
    def send_nowait(
        self, topic: str, body: Body, *, queue: MessageQueue | None = None, **options: Unpack[MessageOptions]
    ) -> SendFuture: ...

    @overload
    def send_nowait(
        self, topic: str, *, json: Any, queue: MessageQueue | None = None, **options: Unpack[MessageOptions]
    ) -> SendFuture: ...

    def send_nowait(
        self,
        topic: str | Message,
        body: Body | None = None,
        *,
        json: Any = ...,
        queue: MessageQueue | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendFuture:
        """Hand a message over to be sent with others of its queue; waits only while ``buffer_bytes`` are taken.

        A failed message is sent again, to another broker if there is one, until ``delivery_timeout`` seconds after the
        call. A callback of a future may send too: it does not wait for room, but may fill the buffer to twice its
        limit.

        topic, body  a topic and a body, with the options of ``Message``; or a ``Message`` alone
        returns      a future of the SendResult; its ``msg_id`` is known at once
        raises       MessageIllegal, RouteNotFound for a queue that is known not to be; Overloaded after
                     ``delivery_timeout`` seconds without room, or at once in a callback
        """
        try:
            if type(topic) is not Message or body is not None or options or json is not ...:
                topic = make_message("send_nowait", topic, body, options, json)
            nowait = self._workings.nowait or self._workings.start_nowait()
            future = nowait.accumulator.append(topic, queue, wait=True)
        except SHORTENED as error:
            raise shortened(error)  # noqa: B904 (it is the same error)
        assert future is not None, "append waits for room"
        return future

    def flush(self) -> None:
        """Wait until everything that ``send_nowait`` took before is sent, or has failed.

        That takes at most ``delivery_timeout`` seconds, and longer only while callbacks of futures run.

        raises  SendsFailed for failures that no one has asked a future for; ConfigError in a callback of a future;
                RequestTimeout where a callback, of whichever producer, does not return
        """
        if self._workings.nowait is not None:
            self._workings.nowait.flush()

    def close(self, timeout: float | None = None) -> None:
        """Send what is waiting, leave the group, close the connections; a second call does nothing.

        timeout  seconds to send the waiting messages, the rest then fails; default: all of ``delivery_timeout``
        raises   SendsFailed, after all is closed, for failed messages whose future was never asked. ConfigError in a
                 callback of a future. RequestTimeout if a callback has not returned 5 s after ``timeout``, also one of
                 another producer.
        """
        check_close_timeout(timeout)
        self._workings.close(timeout)
        self._finalizer.detach()

    def __repr__(self) -> str:
        return f"<Producer group={self.config.group!r} client_id={self.client_id!r}>"


def _forgotten(workings: _Workings) -> None:
    """Close what a producer had that nobody refers to any more."""
    if workings.started and not workings.closed:
        name = f"producer {workings.logic.instance.client_id}"
        close_forgotten(name, workings.close)
