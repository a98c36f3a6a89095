"""A client for blocking callers, without a loop and without a hop between threads.

Threads write their requests and read their answers themselves, see ``blocking/channel.py``. Requests that a server
sends to us are served by one thread of the client, which also looks at connections that nobody is reading; it exists
where a handler is registered, or a server has asked.

RocketMQ: ``NettyRemotingClient.invokeSync`` has the same contract.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rocketcore.codes import ResponseCode
from rocketcore.errors import (
    ClientClosed,
    ConnectError,
    TransportError,
)
from rocketcore.protocol.command import RemotingCommand, next_opaque, request_name
from rocketcore.service import PeriodicThread
from rocketcore.transport import exchange
from rocketcore.transport.base_client import BaseClient
from rocketcore.transport.blocking.channel import (
    BlockingChannel,
    Retired,
    release_if_owned,
)
from rocketcore.transport.lookup import HostLookup
from rocketcore.transport.routes import Route, Routes

if TYPE_CHECKING:
    from rocketcore.transport.tls.socket import TlsSocket

__all__ = [
    "BlockingChannel",
    "BlockingChannelAdapter",
    "BlockingRemotingClient",
    "run_sync",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SERVE_INTERVAL: Final = 0.1
"""Seconds between two looks at connections that nobody is reading."""
_WATCH_MILLIS: Final = 10
"""How long connections that nobody is reading are watched at a time, while a server's request is expected."""


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose awaitables are all ready, as they are over a ``BlockingChannelAdapter``."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} waits for something that only an event loop can give")


class _Slot:
    """The connection to one address, and the lock under which it is made; see ``BlockingChannel`` for its kind."""

    __slots__ = ("channel", "lock")

    def __init__(self) -> None:
        self.channel: BlockingChannel | None = None
        self.lock = threading.RLock()


class BlockingRemotingClient(BaseClient):
    """The blocking twin of ``RemotingClient``: same names, for any number of threads.

    After ``fork()`` the child makes connections of its own; the parent's are left alone. Settings as ``BaseClient``; of
    ``limits`` the write high-water mark has no meaning here, since a full socket blocks.
    """

    def _set_up(self) -> None:
        self._forks: dict[int, threading.Lock] = {}
        self._routes = Routes()
        self._begin()

    def _begin(self) -> None:
        """Set up what belongs to one process: nothing of it survives a fork."""
        self._lock = threading.RLock()  # a signal's handler may come in
        self._inside: set[int] = set()
        """Threads that wait for an answer. A signal's handler that asks on one of them must not wait for it to read."""
        self._lookup = HostLookup()
        self._slots: dict[str, _Slot] = {}
        self._retired: list[BlockingChannel] = []
        self._requests: deque[tuple[BlockingChannel, RemotingCommand]] = deque()
        self._server: PeriodicThread | None = None
        self._expected = 0
        # Last: other threads of a child take it for the sign that the rest is theirs.
        self._pid = os.getpid()

    def __enter__(self) -> BlockingRemotingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_routes(self, rows: Iterable[Route]) -> None:
        """Serve requests that servers send to us, by handlers whose coroutines need no loop; see ``RemotingClient``."""
        self._routes.add(rows)
        self._start_server()

    def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        """Ask and return the answer, whatever its code.

        raises  ConnectError, ConnectionLost, RequestTimeout after ``timeout`` seconds, Overloaded, ClientClosed
        """
        if threading.get_ident() in self._inside and os.getpid() == self._pid:
            return self._invoke_apart(address, command, timeout)
        deadline = self.clock.monotonic() + timeout
        channel = self.connect(address, timeout, request_name(command.code))
        self._prepare(address, command)
        try:
            response = self._answer_of(channel, command, deadline)
            goes_away = response.code == ResponseCode.GO_AWAY
        except Retired:  # another thread heard of it since we have the channel
            goes_away = True
        if goes_away:
            response = self._repeat_elsewhere(address, channel, command, deadline)
        self._show(address, command, response)
        return response

    def _invoke_apart(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        """Ask over a connection of its own: the shared one may be in the middle of what a signal has interrupted."""
        deadline = self.clock.monotonic() + timeout
        what = request_name(command.code)
        limit = min(self._connect_timeout, timeout)
        if self._closed:
            raise ClientClosed(f"{what} at {address}: the client is closed")
        opened: list[socket.socket] = []
        try:
            sock = self._open(address, self.clock.monotonic() + limit, limit, what, opened)
            channel = BlockingChannel(self, sock, address)
            self._prepare(address, command)
            response = channel.invoke(command, max(0.0, deadline - self.clock.monotonic()))
        finally:
            for each in opened:
                each.close()
        self._show(address, command, response)
        return response

    def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None:
        """Send a request that has no answer; done when the socket has taken it."""
        deadline = self.clock.monotonic() + timeout
        channel = self.connect(address, timeout, request_name(command.code))
        self._prepare(address, command)
        try:
            channel.invoke_oneway(command, max(0.0, deadline - self.clock.monotonic()))
        except Retired:
            channel = self.connect(address, deadline - self.clock.monotonic(), request_name(command.code))
            channel.invoke_oneway(command, max(0.0, deadline - self.clock.monotonic()))

    def connect(self, address: str, timeout: float | None = None, what: str = "connect") -> BlockingChannel:
        """Return the open connection to an address, making it where there is none.

        ``timeout`` is for the wait for another thread's attempt and an attempt of its own together.
        raises  ConnectError, ClientClosed
        """
        if os.getpid() != self._pid:
            self._after_fork()
        slot = self._slots.get(address)
        if slot is not None:
            channel = slot.channel
            if channel is not None and channel.is_usable():
                return channel
        if self._closed:
            raise ClientClosed(f"{what} at {address}: the client is closed")
        with self._lock:
            slot = self._slots.setdefault(address, _Slot())
        limit = self._connect_timeout if timeout is None else min(self._connect_timeout, max(0.0, timeout))
        deadline = self.clock.monotonic() + limit
        locked = False
        opened: list[socket.socket] = []
        try:
            locked = slot.lock.acquire(timeout=limit)
            if not locked:
                raise ConnectError(f"{what} at {address}: no connection within {limit:g} s")
            if slot.channel is None or slot.channel.closed:
                slot.channel = BlockingChannel(self, self._open(address, deadline, limit, what, opened), address)
            channel = slot.channel
        except BaseException:
            # What a signal's handler raises comes between any two steps.
            if opened and slot.channel is not None:
                slot.channel.close()
            for sock in opened:
                sock.close()
            raise
        finally:
            if locked:
                slot.lock.release()
            else:
                release_if_owned(slot.lock)
        if self._closed:
            channel.close()
            raise ClientClosed(f"{what} at {address}: the client is closed")
        if self._routes:
            self._start_server()
        return channel

    @contextlib.contextmanager
    def expecting(self) -> Iterator[None]:
        """While the context lasts, serve a server's request when it comes and not when the thread looks next."""
        with self._lock:
            self._expected += 1
        self._start_server()
        server = self._server
        if server is not None:
            server.wake()
        try:
            yield
        finally:
            with self._lock:
                self._expected -= 1

    def connection_to(self, address: str) -> BlockingChannel | None:
        """Return the open connection to an address, None where there is none, or its server has closed it."""
        slot = self._slots.get(address)
        channel = None if slot is None else slot.channel
        if channel is None:
            return None
        channel.look()
        return None if channel.closed else channel

    def close_channel(self, address: str) -> None:
        """Close the connection to an address, if there is one; its outstanding requests fail."""
        if os.getpid() != self._pid:
            self._after_fork()
        slot = self._slots.get(address)
        if slot is not None and slot.channel is not None:
            slot.channel.close()
            self._lookup.give_up(*self._target(address))

    def close(self) -> None:
        """Close all connections; outstanding requests fail with ConnectionLost."""
        if os.getpid() != self._pid:
            self._after_fork()
        self._closed = True
        if self._server is not None:
            self._server.stop()
        for channel in self._open_channels():
            channel.close()

    def serve_later(self, channel: BlockingChannel, command: RemotingCommand) -> None:
        """Leave a server's request to the thread that serves them; called by whoever has read it, who may not write.

        Beyond ``limits.max_serving`` requests that wait they are dropped: who asks finds out at its deadline.
        """
        if len(self._requests) >= self.limits.max_serving:
            logger.warning(
                "request dropped, too many wait remote=%s request=%s",
                channel.remote_address,
                request_name(command.code),
            )
            return
        self._requests.append((channel, command))
        self._start_server()
        server = self._server
        if server is not None:
            server.wake()

    def _repeat_elsewhere(
        self, address: str, old: BlockingChannel, command: RemotingCommand, deadline: float
    ) -> RemotingCommand:
        """Ask once more over a new connection."""
        self._retire(address, old)
        left = deadline - self.clock.monotonic()
        if left <= 0:
            raise exchange.no_time_left(command.code, address)
        channel = self.connect(address, left, request_name(command.code))
        command.opaque = next_opaque()
        return self._answer_of(channel, command, deadline)

    def _answer_of(self, channel: BlockingChannel, command: RemotingCommand, deadline: float) -> RemotingCommand:
        thread = threading.get_ident()
        try:
            self._inside.add(thread)
            return channel.invoke(command, max(0.0, deadline - self.clock.monotonic()))
        finally:
            self._inside.discard(thread)

    def _retire(self, address: str, channel: BlockingChannel) -> None:
        """Let a new connection take the place of one whose server goes away; what it still owes may arrive."""
        with self._lock:
            slot = self._slots.get(address)
            if slot is not None and slot.channel is channel:
                self._slots[address] = _Slot()
                self._retired = [each for each in self._retired if not each.closed]
                self._retired.append(channel)
        channel.retire()

    def _open(
        self, address: str, deadline: float, timeout: float, what: str, opened: list[socket.socket]
    ) -> socket.socket | TlsSocket:
        """Connect; what is in ``opened`` where this is interrupted is for the caller to close."""
        logger.debug("connecting address=%s for=%s", address, what)
        try:
            host, port = self._target(address)
            sock = self._connected(host, port, deadline, opened)
            connected: socket.socket | TlsSocket = sock
            if self._tls is not None:
                left = deadline - self.clock.monotonic()
                from rocketcore.transport.tls.socket import TlsSocket

                connected = TlsSocket(sock, self._tls.context, self._tls.hostname(host), left)
            sock.settimeout(None)
        except (OSError, ValueError) as error:
            raise ConnectError(f"{what} at {address}: {self._why_not(error, address, timeout)}") from error
        return connected

    def _connected(self, host: str, port: int, deadline: float, opened: list[socket.socket]) -> socket.socket:
        """Connect to the first address of a host that takes it.

        The look-up and all of them share the time, so that one that is silent leaves some of it to the others.
        """
        failure: OSError | None = None
        addresses = self._lookup.find(host, port, deadline - self.clock.monotonic())
        for others, (family, kind, protocol, _, target) in zip(reversed(range(len(addresses))), addresses, strict=True):
            left = deadline - self.clock.monotonic()
            if left <= 0:
                raise TimeoutError
            sock = socket.socket(family, kind, protocol)
            opened.append(sock)
            try:
                sock.settimeout(left / (others + 1))
                sock.connect(target)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                sock.close()
                failure = error
            else:
                self._lookup.took(host, port, target, addresses)
                return sock
        assert failure is not None, "a look-up raises where there is no address"
        raise failure

    def _open_channels(self) -> list[BlockingChannel]:
        with self._lock:
            return [slot.channel for slot in self._slots.values() if slot.channel is not None] + self._retired

    def _after_fork(self) -> None:
        """Start over in a child, once, whichever of its threads comes first."""
        with self._forks.setdefault(os.getpid(), threading.Lock()):
            if self._pid == os.getpid():
                return
            for channel in [slot.channel for slot in self._slots.values()] + self._retired:
                if channel is not None:
                    channel.abandon()
            self._begin()

    def _start_server(self) -> None:
        with self._lock:
            if self._server is None and not self._closed:
                self._server = PeriodicThread(f"{self.name}-requests", self._serve_round, _SERVE_INTERVAL)
                self._server.start()

    def _serve_round(self) -> float | None:
        channels = self._open_channels()
        if self._expected:
            poller = select.poll()
            watched = [channel for channel in channels if channel.watch(poller)]
            # What others read meanwhile wakes nobody here, so the wait is short.
            poller.poll(_WATCH_MILLIS if watched else 1)
        for channel in channels:
            channel.look()
        while self._requests:
            channel, command = self._requests.popleft()
            self._serve(channel, command)
        return 0.0 if self._expected else None

    def _serve(self, channel: BlockingChannel, command: RemotingCommand) -> None:
        route = self._routes.get(command.code)
        remote = channel.remote_address
        if route is None:
            self._answer(channel, command, RemotingCommand.response(command, *exchange.not_supported(command.code)))
            return
        try:
            for hook in self._hooks:
                hook.before_request(remote, command)
            result = route.serve(channel, command)
            if inspect.iscoroutine(result):
                result = run_sync(result)
            if isinstance(result, RemotingCommand):
                self._show(remote, command, result)
        except Exception as error:
            result = exchange.failure(command, error, self.name, remote)
        if isinstance(result, RemotingCommand):
            self._answer(channel, command, result)

    def _answer(self, channel: BlockingChannel, command: RemotingCommand, response: RemotingCommand) -> None:
        if not command.is_oneway:
            frame = exchange.answer_frame(command, response, self.name, channel.remote_address)
            with contextlib.suppress(TransportError):
                channel.answer(command, frame, self._connect_timeout)


class BlockingChannelAdapter:
    """A blocking client as a ``Remoting``: its coroutines are done when they first return, see ``run_sync``."""

    __slots__ = ("client",)

    def __init__(self, client: BlockingRemotingClient) -> None:
        self.client = client

    async def invoke(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        return self.client.invoke(address, command, timeout)

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout: float) -> None:
        self.client.invoke_oneway(address, command, timeout)

    def close_channel(self, address: str) -> None:
        self.client.close_channel(address)

    def add_routes(self, rows: Iterable[Route]) -> None:
        self.client.add_routes(rows)

    def expecting(self) -> contextlib.AbstractContextManager[None]:
        return self.client.expecting()

    def connection_to(self, address: str) -> BlockingChannel | None:
        return self.client.connection_to(address)
