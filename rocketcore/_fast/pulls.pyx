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

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, borrow_rows, give_back
from rocketcore._fast.commit_log cimport Gather, gather_readable, gathered_size, rc_get_i32
from rocketcore._fast.fields cimport rest_of
from rocketcore._fast.frame cimport FRAME_COLUMNS, HEAD_COLUMNS, read_loop
from rocketcore._fast.reactor cimport Responder

from rocketcore._fast.command import encode_pull_response_header


cdef enum:
    RUN_MOST = 4          # pulls of one read that are answered together
    ROOM_BYTES = 1 << 20  # of their records

cdef enum:
    UNIT_COLUMNS = 3  # of the rows that consume_queue.scan_units fills


cdef class PullAnswers(Responder):
    """The answers to pulls that are known and find messages at once; all others are left alone.

    codes     the two request codes of pulls
    known     what is decided, by what ``set_apart`` returns; the caller's dict, looked at anew each time
    locate    (peer, decided, queue offset) → None, or (log, log start, sealed, count, queue id, next offset, least and
              greatest offset of the queue): the messages are those of the first ``count`` rows of ``rows``
    answered  (decided, commit offset, next offset, count, bytes): hears of each answer before it is sent
    rows      int64[k, 3] as ``consume_queue.scan_units`` fills it
    version   what the answers' headers say
    limit     most bytes of one frame
    """

    cdef dict _known
    cdef object _locate
    cdef object _answered
    cdef object _found
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

    def __init__(self, tuple codes not None, dict known not None, locate, answered, rows, int version,
                 Py_ssize_t limit=16_777_216):
        self._first_code, self._second_code = codes
        self._known = known
        self._locate = locate
        self._answered = answered
        self._found = rows
        self._version = version
        self._limit = limit
        self._headers = []
        if self._room == NULL:
            self._room = <uint8_t*>PyMem_Malloc(ROOM_BYTES)
        if self._room == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._room)

    cdef int respond(self, const uint8_t* data, Py_ssize_t length, object peer) except -1:
        cdef Py_ssize_t count = 0, i
        cdef int64_t position = 0, code = -1
        # A pull has no body: that tells most other requests apart at once.
        if length < 8 or (rc_get_i32(data + 4) & 0xFFFFFF) + 4 != rc_get_i32(data):
            return 0
        read_loop(data, length, self._limit, self._rows, self._heads, RUN_MOST, &count, &position, &code)
        if (code != self._first_code and code != self._second_code) or position != length:
            return 0
        self._headers.clear()
        self._used = 0
        told = []
        for i in range(count):
            answer = self._lay_out(data, i, peer)
            if answer is None:
                return 0
            told.append(answer)
        for answer in told:
            self._answered(*answer)
        return <int>(2 * count)

    cdef object _lay_out(self, const uint8_t* data, Py_ssize_t index, object peer):
        """Lay out one answer; returns what ``answered`` is told of it, None where the pull is left alone."""
        cdef Borrowed held
        cdef Gather task
        cdef Py_ssize_t count, within = 0
        cdef int64_t log_start, size
        cdef bytes header
        cdef const int64_t* row = self._rows + index * FRAME_COLUMNS
        asked = rest_of(data, row, self._heads + index * HEAD_COLUMNS, b"queueOffset", b"commitOffset")
        if asked is None:
            return None
        question, queue_offset, commit_offset, opaque, serialize_type = asked
        decided = self._known.get(question)
        if decided is None:
            return None
        located = self._locate(peer, decided, queue_offset)
        if located is None:
            return None
        view, log_start, sealed, count, queue_id, next_offset, min_offset, max_offset = located
        held.count = 0
        try:
            log = borrow_bytes(&held, view)
            rows = borrow_rows(&held, self._found, UNIT_COLUMNS, False)
            if count < 1 or count > rows.shape[0] or log_start < 0:
                raise ValueError(f"{count} of {rows.shape[0]} rows, log from {log_start}")
            size = gathered_size(<const int64_t*>rows.buf, count, log_start, log.len, &within)
            if within < count or size > ROOM_BYTES - self._used:
                return None
            task = Gather(
                <const int64_t*>rows.buf, count, <const uint8_t*>log.buf, log_start, queue_id, queue_offset, sealed,
                self._room + self._used, 0, 0,
            )
            with nogil:
                gather_readable(&task, log.len)
        finally:
            give_back(&held)
        if task.sound < count:
            return None
        header = encode_pull_response_header(
            0, opaque, self._version, "FOUND", 0, next_offset, min_offset, max_offset, size, serialize_type
        )
        self._headers.append(header)
        self.pieces[2 * index].iov_base = PyBytes_AS_STRING(header)
        self.pieces[2 * index].iov_len = PyBytes_GET_SIZE(header)
        self.pieces[2 * index + 1].iov_base = self._room + self._used
        self.pieces[2 * index + 1].iov_len = size
        self._used += size
        return decided, commit_offset, next_offset, count, size
