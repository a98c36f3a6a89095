"""Listening sockets, and the transports of the connections they bring.

On Linux connections belong to a ``Reactor``, which reads and writes them in C; elsewhere to the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rocketcore.service import Seldom
from rocketcore.transport.lookup import HostLookup
from rocketcore.transport.networks import is_loopback
from rocketcore.transport.pacing import unpace
from rocketcore.transport.reactor_kernel import has_reactor

if TYPE_CHECKING:
    from rocketcore._fast.reactor import Reactor, Responder

__all__ = ["open_listener", "raise_descriptor_limit"]

logger = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_ACCEPTS_PER_TURN: Final = 64
"""Connections taken in one turn of the loop, so that a flood of them does not keep the others waiting."""
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NO_ROOM_PAUSE: Final = 1.0
"""Seconds without accepting after the system had no descriptor or memory for a connection."""
_KEPT_DESCRIPTORS: Final = 512
"""Descriptors that connections leave to the files of the process; half of all where there are few."""
_WARNING_INTERVAL: Final = 10.0
_FREE_PORTS: Final = 20
"""So many are tried where the system's choice at one address is another's at the next."""
_NOT_HERE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""What an address of another machine, or of a family that this one lacks, is refused with."""

ProtocolFactory = Callable[[], asyncio.Protocol]


class ReactorListener:
    """Accepts connections for a reactor."""

    def __init__(self, sockets: list[socket.socket], factory: ProtocolFactory, reactor: Reactor) -> None:
        self.sockets = sockets
        self._factory = factory
        self._reactor = reactor
        self._loop = asyncio.get_running_loop()
        self._pauses: dict[int, asyncio.TimerHandle] = {}
        self._no_room = Seldom(_WARNING_INTERVAL)
        for listening in sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def answer_with(self, responder: Responder | None) -> None:
        """Let a kernel answer what it can before a protocol sees it."""
        self._reactor.responder = responder

    def close(self) -> None:
        """Accept no more connections."""
        sockets, self.sockets = self.sockets, []
        for timer in self._pauses.values():
            timer.cancel()
        for listening in sockets:
            self._loop.remove_reader(listening.fileno())
            listening.close()

    def end(self) -> None:
        """Free what is left, after all connections were closed."""
        self._reactor.close()

    def _accept(self, listening: socket.socket) -> None:
        room = _descriptors_of_connections()
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted, peername = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                logger.error("accepting pauses seconds=%g reason=%s", _NO_ROOM_PAUSE, error)
                self._pause(listening)
                return
            # The system gives the lowest number that is free, so the number says how many are open.
            if accepted.fileno() >= room:
                accepted.close()
                unsaid = self._no_room.due()
                if unsaid is not None:
                    logger.warning(
                        "connection refused remote=%s reason=descriptors from %d on are kept for files unsaid=%d",
                        peername,
                        room,
                        unsaid,
                    )
                continue
            try:
                accepted.setblocking(False)
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._reactor.attach(accepted, self._factory(), peername)
            except OSError as error:  # the peer is gone already, or there is no room to watch one more
                logger.info("connection refused remote=%s reason=%s", peername, error)
                accepted.close()

    def _pause(self, listening: socket.socket) -> None:
        self._loop.remove_reader(listening.fileno())
        self._pauses[listening.fileno()] = self._loop.call_later(_NO_ROOM_PAUSE, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        self._loop.add_reader(listening.fileno(), self._accept, listening)


class LoopListener:
    """Leaves connections to the event loop."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @property
    def sockets(self) -> Sequence[Any]:
        return self._server.sockets

    def answer_with(self, responder: Responder | None) -> None:
        """There is nothing that could: protocols see all."""

    def close(self) -> None:
        self._server.close()

    def end(self) -> None:
        """The loop has freed all."""


async def open_listener(
    host: str, port: int, factory: ProtocolFactory, *, monotonic: Callable[[], float], by_loop: bool = False
) -> ReactorListener | LoopListener:
    """Listen at every address of a host name that this machine has, all with one port; 0 takes a free one.

    factory    makes the protocol of each connection
    monotonic  the clock of ``last_read``, which the protocol has where a responder is to answer
    by_loop    leave the connections to the event loop, as where there is no kernel for them
    raises     OSError where one of the addresses is taken, or none is ours
    """
    loop = asyncio.get_running_loop()
    if by_loop or not has_reactor():
        return LoopListener(await loop.create_server(factory, host, port, backlog=_BACKLOG))
    from rocketcore._fast.reactor import Reactor

    addresses = await _resolve(host, port)
    for _ in range(1 if port else _FREE_PORTS):
        try:
            sockets, absent = _listen_at_all(addresses, port)
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            taken = error
    else:
        raise taken
    try:
        reactor = Reactor(loop, monotonic)
    except BaseException:
        for listening in sockets:
            listening.close()
        raise
    for reason in absent:
        logger.warning("address left out host=%s reason=%s", host, reason.strerror)
    return ReactorListener(sockets, factory, reactor)


def _listen_at_all(addresses: Iterable[Any], port: int) -> tuple[list[socket.socket], list[OSError]]:
    """Listen at addresses with one port; returns the sockets, and why some addresses are not there."""
    sockets: list[socket.socket] = []
    absent: list[OSError] = []
    try:
        for family, kind, protocol, _, address in addresses:
            try:
                listening = _listen(family, kind, protocol, (address[0], port, *address[2:]))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                absent.append(error)
            else:
                sockets.append(listening)
                port = listening.getsockname()[1]
        if not sockets:
            raise absent[0]
    except BaseException:
        for listening in sockets:
            listening.close()
        raise
    return sockets, absent


def raise_descriptor_limit() -> None:
    """Let a server's process open as many files and connections as it may (the hard limit of RLIMIT_NOFILE)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        logger.warning("descriptor limit not raised limit=%d reason=%s", soft, error)


def _descriptors_of_connections() -> int:
    """Return the first descriptor number that no connection may take."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return soft - min(_KEPT_DESCRIPTORS, soft // 2)


async def _resolve(host: str, port: int) -> list[Any]:
    """Return the addresses of a host. ``::`` is every address of this machine, as in Java: of both families."""
    hosts = (host, "0.0.0.0") if host == "::" else (host,)
    found = [await HostLookup().find_async(each, port) for each in hosts]
    return list(dict.fromkeys(address for addresses in found for address in addresses))


def _listen(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> socket.socket:
    listening = None
    try:
        listening = socket.socket(family, kind, protocol)
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if is_loopback(address[0]):
            unpace(listening)  # and what it accepts
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise OSError(error.errno, f"cannot listen at {address[0]}:{address[1]}: {error.strerror}") from None
    return listening
