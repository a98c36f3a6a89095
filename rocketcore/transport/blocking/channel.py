"""One connection of blocking callers, shared by threads.

The calling thread writes its request. If nobody reads the connection at that moment it reads itself until its answer is
there, and hands the answers of others to them; otherwise it sleeps until it is given its answer, or the reading. So one
caller alone pays two system calls, and many callers share each read.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import threading
from typing import TYPE_CHECKING, Final, Protocol

from rocketcore.codes import RemotingFlag
from rocketcore.errors import ConnectionLost, DecodeError, RequestTimeout, TransportError
from rocketcore.protocol.command import RemotingCommand, next_opaque
from rocketcore.protocol.frame import FrameDecoder
from rocketcore.service import Clock
from rocketcore.transport import exchange
from rocketcore.transport.limits import ChannelLimits

if TYPE_CHECKING:
    from rocketcore.transport.tls.socket import TlsSocket

__all__ = ["BlockingChannel", "ChannelOwner", "PendingAnswer", "Retired"]

_RECEIVE_BYTES: Final = 1 << 16
_LONGEST_READ: Final = 1.0
"""Seconds that one read blocks at most; the deadline is looked at in between."""
_PROBE_AFTER: Final = 1.0
"""Seconds without traffic after which a connection is looked at before it is used."""
_WRITE_TURN_MILLIS: Final = 50
_MORE: Final = getattr(socket, "MSG_MORE", 0)
"""Linux: what is written leaves together with what follows."""


class ChannelOwner(Protocol):
    """What a connection needs of the client that made it."""

    clock: Clock
    limits: ChannelLimits

    def serve_later(self, channel: BlockingChannel, command: RemotingCommand) -> None:
        """Take a request of the server."""


def release_if_owned(lock: threading.RLock) -> None:
    """Release a lock that this thread may have taken, or not."""
    with contextlib.suppress(RuntimeError):
        lock.release()


class Retired(ConnectionLost):
    """The connection was given up before anything of this request was sent: a new one takes it."""


class PendingAnswer:
    """An outstanding request; ``BlockingChannel.wait`` returns its answer."""

    __slots__ = (
        "answer",
        "code",
        "deadline",
        "error",
        "opaque",
        "sleeping",
        "timeout",
        "wake",
    )

    def __init__(self, code: int, opaque: int, timeout: float, deadline: float) -> None:
        self.code = code
        self.opaque = opaque
        self.timeout = timeout
        self.deadline = deadline
        self.answer: RemotingCommand | None = None
        self.error: TransportError | None = None
        self.sleeping = False
        self.wake: threading.Lock | None = None

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None


class BlockingChannel:
    """One connection, shared by threads.

    _mutex guards the tables and who reads, and is held for moments only; _write_lock is held by the thread that writes.
    A signal's handler that closes the connection may come in while its thread holds _mutex: it must not wait for it.
    A thread that holds _write_lock may take _mutex, not the other way round. A signal's handler may raise just after
    _write_lock was taken with a time-out; so it is one that only its owner can release, who tries in any case.
    """

    def __init__(self, owner: ChannelOwner, sock: socket.socket | TlsSocket, address: str) -> None:
        self._owner = owner
        self._socket = sock
        self._clock = owner.clock
        self._decoder = FrameDecoder(owner.limits.max_frame_bytes)
        self._mutex = threading.RLock()
        self._write_lock = threading.RLock()
        self._pending: dict[int, PendingAnswer] = {}
        self._sleepers: dict[int, PendingAnswer] = {}
        self._reading = False
        self._error: TransportError | None = None
        self._retired = False
        self._read_slice = 0.0
        self.last_read = self.last_used = self._clock.monotonic()
        self.remote_address = address
        self.local_address = exchange.socket_address(sock.getsockname())

    @property
    def closed(self) -> bool:
        return self._error is not None

    # Asking

    def invoke(self, command: RemotingCommand, timeout: float) -> RemotingCommand:
        """Ask and return the answer, whatever its code; raises RequestTimeout, ConnectionLost, Overloaded."""
        pending = self.invoke_nowait(command, timeout)
        try:
            return self.wait(pending)
        except BaseException:
            with self._mutex:
                if self._pending.get(pending.opaque) is pending:
                    del self._pending[pending.opaque]
            raise

    def invoke_nowait(self, command: RemotingCommand, timeout: float) -> PendingAnswer:
        """Send a request; raises ConnectionLost, RequestTimeout where it could not be written, Overloaded."""
        now = self._clock.monotonic()
        with self._mutex:
            self._check_open(command.code)
            if len(self._pending) >= self._owner.limits.max_in_flight:
                self._forget_expired(now)
            if command.opaque in self._pending:
                command.opaque = next_opaque()
            pending = PendingAnswer(command.code, command.opaque, timeout, now + timeout)
            self._pending[command.opaque] = pending
        try:
            self._write(command.pieces(), pending.deadline, command.code, timeout)
        except BaseException:
            with self._mutex:
                self._pending.pop(command.opaque, None)
            raise
        return pending

    def invoke_oneway(self, command: RemotingCommand, timeout: float) -> None:
        """Send a request that has no answer; done when the socket has taken it."""
        self._check_open(command.code)
        command.flag |= RemotingFlag.ONEWAY
        self._write(command.encode(), self._clock.monotonic() + timeout, command.code, timeout)

    def answer(self, request: RemotingCommand, frame: bytes, timeout: float) -> None:
        """Send the answer to a request of the server."""
        self._write(frame, self._clock.monotonic() + timeout, request.code, timeout)

    def wait(self, pending: PendingAnswer) -> RemotingCommand:
        """Return the answer of an outstanding request; the calling thread may do the reading meanwhile."""
        try:
            while not pending.done:
                self._read_or_sleep(pending)
                if not pending.done and self._clock.monotonic() >= pending.deadline:
                    self._give_up(pending)
        except BaseException:
            self._release_waiter(pending)
            raise
        if pending.answer is not None:
            return pending.answer
        error = pending.error
        assert error is not None
        raise error

    def _read_or_sleep(self, pending: PendingAnswer) -> None:
        lead = False
        try:
            with self._mutex:
                if pending.done:
                    return
                lead = not self._reading
                if lead:
                    self._reading = True
                else:
                    if pending.wake is None:
                        pending.wake = threading.Lock()
                        pending.wake.acquire()
                    pending.sleeping = True
                    self._sleepers[pending.opaque] = pending
            if lead:
                self._read_for(pending)
            else:
                self._sleep(pending)
        finally:
            if lead:
                self._resign()

    def _release_waiter(self, pending: PendingAnswer) -> None:
        """Let a thread go that a signal's handler took away from its wait: nobody may wake it in place of another."""
        with self._mutex:
            pending.sleeping = False
            pending.wake = None
            self._sleepers.pop(pending.opaque, None)
            if not self._reading:
                self._wake_next()

    def _check_open(self, code: int) -> None:
        if self._error is not None:
            lost = exchange.lost(code, self.remote_address, self._error)
            raise Retired(*lost.args) if self._retired else lost

    def _forget_expired(self, now: float) -> None:
        for opaque in [each.opaque for each in self._pending.values() if each.deadline <= now and not each.sleeping]:
            del self._pending[opaque]
        if len(self._pending) >= self._owner.limits.max_in_flight:
            raise exchange.too_many(self.remote_address, len(self._pending))

    def _sleep(self, pending: PendingAnswer) -> None:
        assert pending.wake is not None
        if pending.wake.acquire(timeout=max(0.0, pending.deadline - self._clock.monotonic())):
            return
        with self._mutex:
            if pending.sleeping:
                pending.sleeping = False
                self._sleepers.pop(pending.opaque, None)
                return
        # Someone woke this thread just when its time ran out: take the wake-up, it may mean to read.
        pending.wake.acquire(blocking=False)

    def _give_up(self, pending: PendingAnswer) -> None:
        with self._mutex:
            self._pending.pop(pending.opaque, None)
            if pending.done:
                return
            pending.error = exchange.no_answer(pending.code, self.remote_address, pending.timeout)
            if not self._reading:
                # This thread may have been woken to read: somebody else has to.
                self._wake_next()
        if self._retired:
            self._close_if_done()
        silent = exchange.silent_for(pending.deadline - pending.timeout, self.last_read, self._clock.monotonic())
        if silent >= self._owner.limits.silent_timeout:
            self.fail(ConnectionLost(f"{self.remote_address}: silent for {silent:.1f} s"))

    # Reading

    def _read_for(self, pending: PendingAnswer) -> None:
        """Read until the answer is there or its time is over."""
        while not pending.done:
            left = pending.deadline - self._clock.monotonic()
            if left <= 0:
                return
            self._set_read_slice(left)
            self._receive(0)

    def _set_read_slice(self, left: float) -> None:
        wanted = min(left, _LONGEST_READ)
        if self._read_slice > left or self._read_slice < wanted / 4:
            self._read_slice = max(wanted, 0.001)
            seconds = int(self._read_slice)
            micros = int((self._read_slice - seconds) * 1e6)
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, micros))

    def _receive(self, flags: int) -> bool:
        """Read once and hand out what came; False where nothing did."""
        try:
            data = self._socket.recv(_RECEIVE_BYTES, flags)
            if not data:
                self.fail(ConnectionLost(f"{self.remote_address}: the server closed the connection"))
                return False
            self.last_read = self.last_used = self._clock.monotonic()
            self._hand_out(self._decoder.feed(data))
            if self._decoder.failed:
                self._decoder.feed(b"")
        except BlockingIOError:
            return False
        except OSError as error:
            self.fail(ConnectionLost(f"{self.remote_address}: the connection broke: {error.strerror or error}"))
            return False
        except DecodeError as error:
            self.fail(ConnectionLost(f"{self.remote_address}: it sent what is no frame: {error}"))
            return False
        except BaseException:
            # A signal's handler raised, perhaps between two steps: what was received may be lost.
            self.fail(ConnectionLost(f"{self.remote_address}: reading was interrupted"))
            raise
        return True

    def _hand_out(self, commands: list[RemotingCommand]) -> None:
        requests = []
        with self._mutex:
            for command in commands:
                if not command.is_response:
                    requests.append(command)
                    continue
                pending = self._pending.pop(command.opaque, None)
                if pending is not None:
                    pending.answer = command
                    self._wake(pending)
        for command in requests:
            self._owner.serve_later(self, command)

    def _wake(self, pending: PendingAnswer) -> None:
        """Wake a sleeping thread; called with the mutex held."""
        if pending.sleeping and pending.wake is not None:
            pending.sleeping = False
            self._sleepers.pop(pending.opaque, None)
            pending.wake.release()

    def _wake_next(self) -> None:
        if self._sleepers:
            self._wake(next(iter(self._sleepers.values())))

    def _resign(self) -> None:
        """Stop reading and let one of the sleeping threads go on with it."""
        with self._mutex:
            self._reading = False
            self._wake_next()
        if self._retired:
            self._close_if_done()
        if self._error is not None:
            self._close_socket()

    def look(self) -> None:
        """Read what has come if nobody else reads; called for connections that are not in use."""
        lead = False
        try:
            with self._mutex:
                lead = not self._reading and self._error is None
                if lead:
                    self._reading = True
            while lead and self._receive(socket.MSG_DONTWAIT):
                pass
        finally:
            if lead:
                self._resign()

    def watch(self, poller: select.poll) -> bool:
        """Have a poller tell of what comes; False where a thread reads, or the connection is closed."""
        with self._mutex:
            if self._reading or self._error is not None:
                return False
            with contextlib.suppress(OSError, ValueError):
                poller.register(self._socket, select.POLLIN)
                return True
        return False

    # Writing

    def _write(self, frame: bytes | list[bytes | memoryview], deadline: float, code: int, timeout: float) -> None:
        locked = False
        try:
            locked = self._write_lock.acquire(timeout=max(0.0, deadline - self._clock.monotonic()))
            if not locked:
                raise exchange.not_sent(code, self.remote_address, timeout, "others write")
            if isinstance(frame, bytes):
                self._write_piece(frame, deadline, code, timeout)
            else:
                self._write_piece(frame[0], deadline, code, timeout, flags=_MORE)
                self._write_piece(frame[1], deadline, code, timeout, begun=True)
            self.last_used = self._clock.monotonic()
        except OSError as error:
            lost = ConnectionLost(f"{self.remote_address}: the connection broke: {error.strerror or error}")
            self.fail(lost)
            raise exchange.lost(code, self.remote_address, lost) from error
        except RequestTimeout:
            raise
        except BaseException:
            # A signal's handler raised: nobody knows how much of the frame is out, and nothing may follow a part of it.
            if locked:
                self.fail(ConnectionLost(f"{self.remote_address}: writing was interrupted"))
            raise
        finally:
            if locked:
                self._write_lock.release()
            else:
                release_if_owned(self._write_lock)
            if self._error is not None:
                self._close_socket()

    def _write_piece(
        self,
        piece: bytes | memoryview,
        deadline: float,
        code: int,
        timeout: float,
        *,
        begun: bool = False,
        flags: int = 0,
    ) -> None:
        """Write a frame, or a part of one; ``begun``: what is before it is out."""
        try:
            sent = self._socket.send(piece, socket.MSG_DONTWAIT | flags)
        except BlockingIOError:
            sent = 0
        if sent < len(piece):
            self._write_rest(memoryview(piece), sent, deadline, code, timeout, begun=begun)

    def _write_rest(
        self, piece: memoryview, sent: int, deadline: float, code: int, timeout: float, *, begun: bool
    ) -> None:
        """Write while the socket is full, and read meanwhile if nobody does: the server may wait for that."""
        poller = select.poll()
        while sent < len(piece):
            left = deadline - self._clock.monotonic()
            if left <= 0:
                if sent or begun:
                    # Half a frame is out: nothing else can follow it.
                    self.fail(ConnectionLost(f"{self.remote_address}: a frame could not be sent whole"))
                raise exchange.not_sent(code, self.remote_address, timeout, "the server does not read")
            lead = False
            try:
                with self._mutex:
                    lead = not self._reading and self._error is None
                    if lead:
                        self._reading = True
                poller.register(self._socket, select.POLLOUT | (select.POLLIN if lead else 0))
                events = poller.poll(min(left * 1000, _WRITE_TURN_MILLIS))
                if lead and events and events[0][1] & select.POLLIN:
                    self._receive(socket.MSG_DONTWAIT)
            finally:
                if lead:
                    self._resign()
            if self._error is not None:
                raise OSError(errno.ECONNRESET, str(self._error))
            try:
                sent += self._socket.send(piece[sent:], socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue

    # Ending

    def is_usable(self) -> bool:
        """Whether the connection is worth a request: open, not idle for too long, not closed by the server."""
        if self._error is not None:
            return False
        idle = self._clock.monotonic() - self.last_used
        if idle < _PROBE_AFTER or self._pending:
            return True
        if idle >= self._owner.limits.idle_timeout:
            self.fail(ConnectionLost(f"{self.remote_address}: idle for {idle:.0f} s"))
            return False
        self.look()
        return self._error is None

    def fail(self, error: TransportError, *, if_done: bool = False) -> None:
        """Close the connection; all outstanding requests end with an error that says why.

        if_done  only where there are none
        """
        with self._mutex:
            if self._error is not None or (if_done and self._pending):
                return
            self._error = error
            for pending in self._pending.values():
                pending.error = exchange.lost(pending.code, self.remote_address, error)
                self._wake(pending)
            self._pending.clear()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._close_socket()

    def retire(self) -> None:
        """Close the connection as soon as no request of ours waits for an answer: its server goes away."""
        self._retired = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        self.fail(ConnectionLost(f"{self.remote_address}: its server goes away"), if_done=True)

    def close(self) -> None:
        self.fail(ConnectionLost(f"{self.remote_address}: the connection was closed"))

    def _close_socket(self) -> None:
        """Close the socket unless a thread is in a call on it: that thread comes here when it is done.

        Closing under its feet could hand the descriptor's number to a new file while the call still runs.
        """
        try:
            if not self._write_lock.acquire(blocking=False):
                return
            with self._mutex:
                if not self._reading:
                    self._socket.close()
                # Still under the mutex: whoever stops reading after that look finds the lock free, and closes.
                self._write_lock.release()
        except BaseException:
            release_if_owned(self._write_lock)
            raise

    def abandon(self) -> None:
        """Close this process's copy of a parent's socket without a word to the server."""
        self._error = ConnectionLost(f"{self.remote_address}: it belongs to the parent process")
        self._socket.close()
