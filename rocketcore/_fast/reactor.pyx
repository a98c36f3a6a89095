"""Connections of servers and clients, read and written in C: one epoll set, itself watched by the event loop.

Why a set of its own. The loop's transports spend more on a small request than all else together: a turn of the loop, a
callback and a queue for each read and each write. An epoll set is a descriptor that is readable while a member of it
is ready. So the loop, asyncio's or uvloop's, watches this one, and one call of ``_ready`` receives from every
connection that has something; timers, signals and all other sockets stay with the loop. The set is level-triggered:
what is left unread is reported again, and ``_ready`` may stop after some rounds for the loop's other work.

Who owns what. epoll has a bare pointer to a transport, ``Reactor._transports`` the reference, from ``attach`` until
the protocol is about to hear ``connection_lost``. That is a later turn of the loop than the one in which ``_lose``
takes the descriptor out of the set: no event of a batch points to an object that is gone. All connections share one
receive buffer, which the next read overwrites: a protocol gets a copy as bytes. What is ``expect``ed, the rest of a
large frame, is received into bytes of its own. The queue of what is still to be sent refers to immutable bytes and
copies the rest.

Why a responder is asked before the protocol. It answers from the receive buffer, without an object for the bytes, the
command or the answer. It is asked only where its answers cannot overtake others: nothing is queued, and the protocol
holds nothing of earlier reads (``direct``). It answers all of what one read brought, or nothing; then the protocol
gets the bytes as if nobody had been asked.

What happens on a full socket. A write sends what the socket takes and queues the rest. From then on everything is
queued behind it, EPOLLOUT is watched, and each time the socket has room as much of the queue leaves as it takes. Above
the high-water mark the protocol hears ``pause_writing``, and ``resume_writing`` at a quarter of it. Whether a peer
that does not take its answers is still read from is the protocol's decision (``pause_reading``).

``StreamTransport`` keeps the contract of ``asyncio.Transport``, as far as our protocols use it. Linux only; nothing
here may be called from another thread than the loop's, or the one in its place. RocketMQ: Netty's ``EpollEventLoop``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport PyObject
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, give_back
from rocketcore._fast.reactor cimport Responder, iovec

import os
from collections import deque


cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data:
        void* ptr
    struct epoll_event:
        uint32_t events
        epoll_data data
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD
    uint32_t EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event* event)
    int epoll_wait(int epoll, epoll_event* events, int most, int timeout)

cdef extern from "<sys/socket.h>" nogil:
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    int MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_WR
    int shutdown(int fd, int how)
    ssize_t recv(int fd, void* room, size_t length, int flags)
    ssize_t send(int fd, const void* data, size_t length, int flags)
    ssize_t sendmsg(int fd, const msghdr* message, int flags)

cdef extern from "<string.h>" nogil:
    void* memset(void* room, int value, size_t length)

cdef extern from "<unistd.h>" nogil:
    int close_fd "close"(int fd)


cdef enum:
    READ_BYTES = 1 << 18
    EVENTS_MAX = 256
    ROUNDS_MAX = 4     # waits on the epoll set in one turn of the loop, whose other work may not be kept waiting
    TURN_MICROS = 500  # after which no further one is begun: an answer may wait for the end of the turn
    GATHER_MAX = 64    # queued pieces that leave in one call
    LOW_PART = 4       # the low-water mark is the high one divided by this


cdef inline bint would_block() noexcept nogil:
    return errno == EAGAIN or errno == EINTR


cdef object last_error():
    return OSError(errno, os.strerror(errno))


cdef inline ssize_t send_gathered(int fd, iovec* pieces, int count) noexcept nogil:
    cdef msghdr message
    memset(&message, 0, sizeof(msghdr))
    message.msg_iov = pieces
    message.msg_iovlen = count
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)


cdef class Responder:
    """Base of kernels that answer by themselves."""

    cdef int respond(self, const uint8_t* data, Py_ssize_t length, object peer) except -1:
        """Lay out the answers to all of ``data`` in ``pieces`` and return how many these are.

        peer  the protocol of the connection
        0     something in it is not for this kernel, or not complete: nothing of it is answered. The bytes that the
              pieces point to stay where they are until the next call.
        """
        return 0

    def answer(self, data, peer=None):
        """Return the answers to all of ``data`` in one piece, None where it is left alone; for those without a reactor.

        data  bytes-like, read only, not kept
        """
        cdef Borrowed held
        cdef int count, i
        held.count = 0
        try:
            source = borrow_bytes(&held, data)
            count = self.respond(<const uint8_t*>source.buf, source.len, peer)
            if count == 0:
                return None
            return b"".join([
                PyBytes_FromStringAndSize(<char*>self.pieces[i].iov_base, self.pieces[i].iov_len) for i in range(count)
            ])
        finally:
            give_back(&held)


cdef class Reactor:
    """The connections of one server or client.

    loop        the running event loop
    monotonic   gives the time that a connection's protocol keeps in ``last_read``
    responder   answers what it can before a protocol sees it; None: nothing does
    """

    cdef readonly object loop
    cdef public Responder responder
    cdef object _monotonic
    cdef set _transports
    cdef uint8_t* _room
    cdef int _epoll
    cdef double _served_from  # when the connections that were ready last were

    def __cinit__(self):
        self._epoll = -1
        self._room = NULL

    def __init__(self, loop, monotonic):
        self.loop = loop
        self._monotonic = monotonic
        self._transports = set()
        self._room = <uint8_t*>PyMem_Malloc(READ_BYTES)
        if self._room == NULL:
            raise MemoryError
        self._epoll = epoll_create1(EPOLL_CLOEXEC)
        if self._epoll < 0:
            raise last_error()
        loop.add_reader(self._epoll, self._ready)

    def __dealloc__(self):
        if self._epoll >= 0:
            close_fd(self._epoll)
        PyMem_Free(self._room)

    def attach(self, sock, protocol, peername):
        """Serve a connected, non-blocking socket from now on; returns its transport.

        The protocol hears ``connection_made`` before this returns; one that fails then loses its connection, as always.
        raises OSError where the kernel has no room: the socket is still the caller's
        """
        cdef StreamTransport transport = StreamTransport(self, sock, protocol, peername)
        self._transports.add(transport)
        try:
            self._watch(EPOLL_CTL_ADD, transport, EPOLLIN)
        except OSError:
            self._transports.discard(transport)
            raise
        try:
            protocol.connection_made(transport)
        except Exception as error:
            transport._fail(error)
        return transport

    def close(self):
        """Stop looking; every transport has to be closed before."""
        if self._epoll >= 0:
            self.loop.remove_reader(self._epoll)
            close_fd(self._epoll)
            self._epoll = -1

    cdef int _watch(self, int operation, StreamTransport transport, uint32_t events) except -1:
        cdef epoll_event event
        if self._epoll < 0:
            return 0
        event.events = events
        event.data.ptr = <void*>transport
        if epoll_ctl(self._epoll, operation, transport._fd, &event) != 0:
            raise last_error()
        transport._events = events
        return 0

    def _ready(self):
        if self._serve_ready(0):
            begin = self._served_from
            for _round in range(ROUNDS_MAX - 1):
                if self._monotonic() - begin >= TURN_MICROS * 1e-6 or self._serve_ready(0) == 0:
                    return  # what is ready now is told of at the next turn

    def poll(self, double seconds):
        """Wait for a ready connection, serve all that are, and return whether any was; in the loop's place."""
        return self._serve_ready(<int>(1000 * seconds)) > 0

    cdef int _serve_ready(self, int milliseconds) except -1:
        cdef epoll_event events[EVENTS_MAX]
        cdef int epoll = self._epoll, i, count = epoll_wait(epoll, events, EVENTS_MAX, 0)
        cdef StreamTransport transport
        if count == 0 and milliseconds:
            with nogil:
                count = epoll_wait(epoll, events, EVENTS_MAX, milliseconds)
        now = self._served_from = self._monotonic()
        for i in range(count):
            transport = <StreamTransport><PyObject*>events[i].data.ptr
            try:
                transport._serve(events[i].events, now)
            except Exception as error:
                transport._fail(error)
        return max(count, 0)


cdef class StreamTransport:
    """One connection of a reactor, with the methods of ``asyncio.Transport``.

    direct   a responder may answer on it: its protocol holds nothing that came before
    """

    cdef public bint direct
    cdef readonly Reactor reactor
    cdef object _sock
    cdef object _protocol
    cdef object _peername
    cdef object _queue            # deque of memoryviews not sent yet, None while it was never needed
    cdef size_t _queued
    cdef size_t _high
    cdef object _expected         # bytes that only this object has seen, received up to ``_filled``; None: none
    cdef Py_ssize_t _filled
    cdef int _fd
    cdef uint32_t _events
    cdef bint _reading
    cdef bint _writing_paused
    cdef bint _eof                # nothing is written any more
    cdef bint _closing
    cdef bint _lost
    cdef object __weakref__

    def __cinit__(self, Reactor reactor not None, sock, protocol, peername):
        self.reactor = reactor
        self._sock = sock
        self._fd = sock.fileno()
        self._protocol = protocol
        self._peername = peername
        self._high = 1 << 16
        self._reading = True

    # Reading

    cdef int _serve(self, uint32_t events, object now) except -1:
        cdef ssize_t length
        cdef int pieces
        cdef Responder responder
        if self._lost:
            return 0
        if events & EPOLLOUT:
            self._send_queued()
        if not self._reading or self._closing:
            if events & (EPOLLERR | EPOLLHUP):
                self._lose(None)
            return 0
        if not events & (EPOLLIN | EPOLLERR | EPOLLHUP):
            return 0
        if self._expected is not None:
            return self._fill()
        length = recv(self._fd, self.reactor._room, READ_BYTES, MSG_DONTWAIT)
        if length <= 0:
            return self._received_nothing(length)
        responder = self.reactor.responder
        if responder is not None and self.direct and self._queued == 0:
            pieces = responder.respond(self.reactor._room, length, self._protocol)
            if pieces > 0:
                self._protocol.last_read = now
                self._send_pieces(responder.pieces, pieces)
                return 0
        self._protocol.data_received(PyBytes_FromStringAndSize(<char*>self.reactor._room, length))
        return 0

    cdef int _fill(self) except -1:
        """Receive what is expected, where it is to be in the end; it may be a megabyte, which other threads use."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self._expected)
        cdef char* room = PyBytes_AS_STRING(self._expected) + self._filled
        cdef ssize_t length
        with nogil:
            length = recv(self._fd, room, size - self._filled, MSG_DONTWAIT)
        if length <= 0:
            return self._received_nothing(length)
        self._filled += length
        if self._filled < size:
            self._protocol.part_received(self._filled)
            return 0
        whole, self._expected = self._expected, None
        self._protocol.data_received(whole)
        return 0

    cdef int _received_nothing(self, ssize_t length) except -1:
        if length == 0:
            self._end()
        elif not would_block():
            self._lose(last_error())
        return 0

    def expect(self, bytes data not None, Py_ssize_t position, Py_ssize_t missing):
        """Receive the ``missing`` bytes that follow ``data[position:]`` and no more, without a copy of them.

        The protocol gets both as one piece by ``data_received``; until then it hears of each part by
        ``part_received(size)``, the bytes that are there so far. raises ValueError, MemoryError
        """
        cdef Py_ssize_t head = PyBytes_GET_SIZE(data) - position
        if self._expected is not None:
            raise ValueError("bytes are expected already")
        if position < 0 or head < 0 or missing <= 0:
            raise ValueError(f"{missing} bytes are missing after {head} from position {position}")
        self._expected = PyBytes_FromStringAndSize(NULL, head + missing)
        memcpy(PyBytes_AS_STRING(self._expected), PyBytes_AS_STRING(data) + position, head)
        self._filled = head

    cdef int _end(self) except -1:
        """The peer sends no more."""
        if self._protocol.eof_received():
            self.pause_reading()
        else:
            self.close()
        return 0

    cdef int _update(self) except -1:
        cdef uint32_t events = 0
        if self._reading and not self._closing:
            events |= EPOLLIN
        if self._queued:
            events |= EPOLLOUT
        if events != self._events and not self._lost:
            self.reactor._watch(EPOLL_CTL_MOD, self, events)
        return 0

    def is_reading(self):
        return self._reading and not self._closing

    def pause_reading(self):
        self._reading = False
        self._update()

    def resume_reading(self):
        self._reading = True
        self._update()

    # Writing

    cdef int _send_pieces(self, iovec* pieces, int count) except -1:
        """Send pieces that belong to somebody else; what the socket does not take is copied."""
        cdef ssize_t sent = send_gathered(self._fd, pieces, count)
        cdef int i
        if sent < 0:
            if not would_block():
                self._lose(last_error())
                return 0
            sent = 0
        for i in range(count):
            if <size_t>sent >= pieces[i].iov_len:
                sent -= pieces[i].iov_len
            else:
                self._enqueue(PyBytes_FromStringAndSize(<char*>pieces[i].iov_base + sent, pieces[i].iov_len - sent), 0)
                sent = 0
        if self._queued:
            self._queue_grew()
        return 0

    cdef int _enqueue(self, object data, Py_ssize_t sent) except -1:
        """Keep what follows the first ``sent`` bytes: a copy where somebody could change it before it is sent."""
        if sent or type(data) is not bytes:
            rest = memoryview(data).cast("B")[sent:]
            data = rest if rest.readonly else rest.tobytes()
        if self._queue is None:
            self._queue = deque()
        self._queue.append(data)
        self._queued += len(data)
        return 0

    cdef int _queue_grew(self) except -1:
        self._update()
        if self._queued > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()
        return 0

    cdef int _send_queued(self) except -1:
        cdef iovec pieces[GATHER_MAX]
        cdef Py_buffer views[GATHER_MAX]
        cdef ssize_t sent = 0
        cdef int count, i
        while self._queued and not self._lost:
            count = 0
            try:
                for data in self._queue:
                    if count == GATHER_MAX:
                        break
                    PyObject_GetBuffer(data, &views[count], PyBUF_SIMPLE)
                    pieces[count].iov_base = views[count].buf
                    pieces[count].iov_len = views[count].len
                    count += 1
                sent = send_gathered(self._fd, pieces, count)
            finally:
                for i in range(count):
                    PyBuffer_Release(&views[i])
            if sent < 0:
                if not would_block():
                    self._lose(last_error())
                break
            self._drop(sent)
        if not self._lost:
            self._update()
            if self._writing_paused and self._queued <= self._high // LOW_PART:
                self._writing_paused = False
                self._protocol.resume_writing()
            if self._queued == 0:
                if self._closing:
                    self._lose(None)
                elif self._eof:
                    self._shut()
        return 0

    cdef int _drop(self, size_t sent) except -1:
        """Take what was sent off the queue."""
        cdef size_t length
        self._queued -= sent
        while sent:
            data = self._queue.popleft()
            length = len(data)
            if length > sent:
                self._queue.appendleft(memoryview(data)[sent:])
                break
            sent -= length
        return 0

    def write(self, data):
        """Send bytes now, as far as the socket takes them; the rest as soon as it does."""
        cdef Borrowed held
        cdef ssize_t sent = 0
        if self._lost or self._closing:
            return
        if self._queued == 0:
            held.count = 0
            try:
                source = borrow_bytes(&held, data)
                sent = send(self._fd, source.buf, source.len, MSG_DONTWAIT | MSG_NOSIGNAL)
                if sent == source.len:
                    return
            finally:
                give_back(&held)
            if sent < 0:
                if not would_block():
                    self._lose(last_error())
                    return
                sent = 0
        self._enqueue(data, sent)
        self._queue_grew()

    def writelines(self, list_of_data):
        """Send pieces without joining them."""
        cdef iovec pieces[GATHER_MAX]
        cdef Py_ssize_t sent = 0, length
        cdef int count = 0
        cdef bint waits = self._queued != 0
        if self._lost or self._closing:
            return
        if not waits and type(list_of_data) is list and len(<list>list_of_data) <= GATHER_MAX:
            # As nearly always: all of it is bytes, and the socket takes it.
            for data in <list>list_of_data:
                if type(data) is not bytes:
                    break
                pieces[count].iov_base = PyBytes_AS_STRING(data)
                pieces[count].iov_len = PyBytes_GET_SIZE(data)
                count += 1
            else:
                sent = send_gathered(self._fd, pieces, count)
                if sent < 0:
                    if not would_block():
                        self._lose(last_error())
                        return
                    sent = 0
                waits = True  # what is left, until there is room
        for data in list_of_data:
            length = len(data)
            if sent >= length:
                sent -= length
            else:
                self._enqueue(data, sent)
                sent = 0
        if not waits:
            self._send_queued()
        if self._queued:
            self._queue_grew()

    def can_write_eof(self):
        return True

    def write_eof(self):
        """Send what is queued, then tell the peer that nothing follows; what it sends is still received."""
        if self._lost or self._closing or self._eof:
            return
        self._eof = True
        if self._queued == 0:
            self._shut()

    cdef int _shut(self) except -1:
        return self._lose(last_error()) if shutdown(self._fd, SHUT_WR) != 0 else 0

    def get_write_buffer_size(self):
        return self._queued

    def get_write_buffer_limits(self):
        return self._high // LOW_PART, self._high

    def set_write_buffer_limits(self, high=None, low=None):
        """Set the mark above which the protocol is told to pause; the low one is a quarter of it."""
        self._high = 1 << 16 if high is None else high

    # Ending

    def is_closing(self):
        return self._closing

    def close(self):
        """Send what is queued, then close."""
        if self._closing:
            return
        self._closing = True
        if self._queued == 0:
            self._lose(None)
        else:
            self._update()

    def abort(self):
        """Close at once."""
        self._lose(None)

    cdef int _fail(self, error) except -1:
        """End a connection whose protocol raised: it may have lost bytes."""
        self.reactor.loop.call_exception_handler(
            {"message": "a protocol failed", "exception": error, "transport": self, "protocol": self._protocol}
        )
        self._lose(error)
        return 0

    cdef int _lose(self, error) except -1:
        """End the connection; the protocol hears of it in the next turn of the loop."""
        if self._lost:
            return 0
        self._lost = self._closing = True
        self._expected = None
        self._queued = 0
        self._queue = None
        self.reactor._watch(EPOLL_CTL_DEL, self, 0)
        self.reactor.loop.call_soon(self._tell_lost, error)
        return 0

    def _tell_lost(self, error):
        self.reactor._transports.discard(self)
        protocol, self._protocol = self._protocol, None
        sock, self._sock = self._sock, None
        try:
            protocol.connection_lost(error)
        finally:
            sock.close()

    # What it is

    def get_extra_info(self, name, default=None):
        if name == "peername":
            return self._peername
        if name == "sockname":
            return self._sock.getsockname() if self._sock is not None else default
        if name == "socket":
            return self._sock if self._sock is not None else default
        return default

    def get_protocol(self):
        return self._protocol

    def set_protocol(self, protocol):
        self._protocol = protocol
