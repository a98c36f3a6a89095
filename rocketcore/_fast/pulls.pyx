"""Answers to pulls that were decided before, from the receive buffer.

A consumer asks the same of a queue again and again, from another offset each time (``fields.pyx``, ``set_apart``). What
was decided of it is kept by its bytes, so that no command, header or channel has a part in the next answer. The records
are copied from the log once, into memory that stays in the processor's cache, checked there and sent from there.

Why they are not sent from the map of the log: the system copies many short pieces at odd addresses slower than one
long one, by more than the copy before costs; and what was checked would not be what is sent.

RocketMQ  broker/processor/PullMessageProcessor.java, 5.5.0
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, give_back
from rocketcore._fast.commit_log cimport Gather, gather_readable, gathered_size, rc_get_i32
from rocketcore._fast.consume_queue cimport OUT_COLUMNS
from rocketcore._fast.decided cimport Decided
from rocketcore._fast.fields cimport rest_of
from rocketcore._fast.frame cimport FRAME_COLUMNS, HEAD_COLUMNS, read_loop
from rocketcore._fast.reactor cimport Responder
from rocketcore._fast.window cimport Window

from rocketcore._fast.command import encode_pull_response_header


cdef enum:
    RUN_MOST = 4          # pulls of one read that are answered together
    ROOM_BYTES = 1 << 20  # of their records

cdef enum:
    WINDOWS_MAX = 128  # that are kept, of some 15 KiB each


cdef class PullAnswers(Responder):
    """The answers to pulls that are known and find messages at once; all others are left alone.

    codes     the two request codes of pulls
    known     Decided, by what ``set_apart`` returns
    waiting   by peer, reads that its next one has to wait for
    windows   what ``locate`` returned, and for which of ``known``; its owner clears it when that may hold no more
    locate    (Decided, queue offset) → a Window for such pulls from there on, or None

    The dicts are the caller's, looked at anew each time.
    most      messages of one answer
    version   what the answers' headers say
    limit     most bytes of one frame
    """

    cdef dict _known
    cdef dict _waiting
    cdef dict _windows
    cdef object _locate
    cdef int64_t* _found  # rows of consume_queue.scan
    cdef Py_ssize_t _most
    cdef int32_t _version
    cdef int64_t _limit
    cdef int64_t _first_code
    cdef int64_t _second_code
    cdef int64_t _rows[RUN_MOST * FRAME_COLUMNS]
    cdef int64_t _heads[RUN_MOST * HEAD_COLUMNS]
    cdef list _headers  # what the pieces point to, and
    cdef uint8_t* _room
    cdef int64_t _used

    def __cinit__(self):
        self._room = NULL
        self._found = NULL

    def __init__(
        self, tuple codes not None, dict known not None, dict waiting not None,
        dict windows not None, locate, Py_ssize_t most, int version, Py_ssize_t limit=16_777_216,
    ):
        self._first_code, self._second_code = codes
        self._known = known
        self._waiting = waiting
        self._windows = windows
        self._locate = locate
        self._most = most
        self._version = version
        self._limit = limit
        self._headers = []
        if self._room != NULL:
            raise RuntimeError("answers to pulls are made once")  # their room has the size of the first time
        if most < 1:
            raise ValueError(f"{most} messages of one answer")
        self._room = <uint8_t*>PyMem_Malloc(ROOM_BYTES)
        self._found = <int64_t*>PyMem_Malloc(most * OUT_COLUMNS * sizeof(int64_t))
        if self._room == NULL or self._found == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._found)
        PyMem_Free(self._room)

    cdef int respond(self, const uint8_t* data, Py_ssize_t length, object peer) except -1:
        cdef Py_ssize_t count = 0, i
        cdef int64_t position = 0, code = -1, commit_offset, next_offset
        cdef Py_ssize_t messages, size
        cdef Decided decided
        # A pull has no body: that tells most other requests apart at once.
        if length < 8 or (rc_get_i32(data + 4) & 0xFFFFFF) + 4 != rc_get_i32(data):
            return 0
        read_loop(data, length, self._limit, self._rows, self._heads, RUN_MOST, &count, &position, &code)
        if (code != self._first_code and code != self._second_code) or position != length:
            return 0
        if self._waiting and peer in self._waiting:
            return 0
        self._headers.clear()
        self._used = 0
        told = []
        for i in range(count):
            answer = self._lay_out(data, i)
            if answer is None:
                return 0
            told.append(answer)
        for decided, commit_offset, next_offset, messages, size in told:
            decided.note(commit_offset, next_offset, messages, size)
        return <int>(2 * count)

    cdef tuple _find(self, bytes question, Decided decided, int64_t queue_offset, Py_ssize_t* examined):
        """Return the window of a pull and how many rows of it were filled; (None, 0) where it finds nothing at once."""
        cdef Window window
        cdef Py_ssize_t count
        made = self._windows.get(question)
        if made is not None and made[0] is decided:
            window = made[1]
            count = window.find(queue_offset, False, self._found, self._most, examined)
            if count:
                return window, count
        window = self._locate(decided, queue_offset)
        if window is None:
            return None, 0
        if len(self._windows) >= WINDOWS_MAX:
            self._windows.clear()
        self._windows[question] = decided, window
        return window, window.find(queue_offset, True, self._found, self._most, examined)

    cdef object _lay_out(self, const uint8_t* data, Py_ssize_t index):
        """Lay out one answer; returns where it is noted, and what; None where the pull is left alone."""
        cdef Borrowed held
        cdef Gather task
        cdef Py_ssize_t count, within = 0, examined = 0
        cdef int64_t size, next_offset
        cdef Window window
        cdef Decided decided
        cdef bytes header
        cdef const int64_t* row = self._rows + index * FRAME_COLUMNS
        asked = rest_of(data, row, self._heads + index * HEAD_COLUMNS, b"queueOffset", b"commitOffset")
        if asked is None:
            return None
        question, queue_offset, commit_offset, opaque, serialize_type = asked
        decided = self._known.get(question)
        if decided is None or not decided.holds():
            return None
        window, count = self._find(question, decided, queue_offset, &examined)
        if count == 0:
            return None
        held.count = 0
        try:
            log = borrow_bytes(&held, window.log)
            size = gathered_size(self._found, count, window.log_start, log.len, &within)
            if within < count or size > ROOM_BYTES - self._used:
                return None
            task = Gather(
                self._found, count, <const uint8_t*>log.buf, window.log_start, window.queue_id, queue_offset,
                window.sealed, self._room + self._used, 0, 0,
            )
            with nogil:
                gather_readable(&task, log.len)
        finally:
            give_back(&held)
        if task.sound < count:
            return None
        next_offset = queue_offset + examined
        header = encode_pull_response_header(
            0, opaque, self._version, "FOUND", 0, next_offset, window.least, window.greatest, size, serialize_type
        )
        self._headers.append(header)
        self.pieces[2 * index].iov_base = PyBytes_AS_STRING(header)
        self.pieces[2 * index].iov_len = PyBytes_GET_SIZE(header)
        self.pieces[2 * index + 1].iov_base = self._room + self._used
        self.pieces[2 * index + 1].iov_len = size
        self._used += size
        return decided, commit_offset, next_offset, count, size
