"""Answers that are ready: requests of one code, told apart by one ext field, answered with bytes kept for its value.

A name server's route question is of this kind. What arrives is read in place; an answer is a new header of a hundred
bytes and the kept body, neither copied nor joined.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t

from rocketcore._fast.command cimport (
    HEADER_FIXED_BOUND,
    Text,
    is_text,
    next_binary_entry,
    next_json_entry,
    put_body_response_header,
    unescaped,
)
from rocketcore._fast.frame cimport (
    BINARY,
    EXT_END,
    EXT_START,
    FLAG,
    FRAME_COLUMNS,
    HEAD_COLUMNS,
    HEADER_LENGTH,
    HEADER_START,
    OPAQUE,
    SERIALIZE_TYPE,
    read_loop,
)
from rocketcore._fast.reactor cimport PIECES_MAX, Responder
from rocketcore._fast.status cimport OK


cdef enum:
    ROWS_MAX = PIECES_MAX // 2


cdef object ext_value(const uint8_t* base, const int64_t* row, const int64_t* head, bytes name):
    """The value of one ext field of a row that ``read_loop`` filled, None where absent."""
    cdef const uint8_t* at = base + head[EXT_START]
    cdef const uint8_t* end = base + head[EXT_END]
    cdef const uint8_t* header_end = base + row[HEADER_START] + row[HEADER_LENGTH]
    cdef Text key, value, found
    if head[EXT_END] == 0:
        return None
    found.start = found.end = NULL
    if row[SERIALIZE_TYPE] == BINARY:
        while at < end and next_binary_entry(&at, header_end, &key, &value) == OK:
            if is_text(&key, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)):
                found = value
        if found.start == found.end:
            return None
    else:
        while next_json_entry(&at, end, &key, &value) == 1:
            if key.escaped and unescaped(&key) == name or is_text(
                &key, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
            ):
                found = value
        if found.start == NULL:
            return None
    return unescaped(&found)


cdef class ReadyAnswers(Responder):
    """The answers of one request code.

    code      the request code
    field     key of the ext field whose value, as UTF-8, is looked up
    without   key of an ext field: a request that has it is left alone
    answers   bytes → bytes of bodies; the caller's dict, looked at anew each time
    version   what the answers' headers say
    enabled   False: everything is left alone
    limit     most bytes of one frame
    """

    cdef public bint enabled
    cdef dict _answers
    cdef bytes _field
    cdef bytes _without
    cdef int32_t _version
    cdef int64_t _code
    cdef int64_t _limit
    cdef int64_t _rows[ROWS_MAX * FRAME_COLUMNS]
    cdef int64_t _heads[ROWS_MAX * HEAD_COLUMNS]
    cdef uint8_t _headers[ROWS_MAX * HEADER_FIXED_BOUND]
    cdef PyObject* _bodies[ROWS_MAX]  # references to what the pieces point into
    cdef int _held

    def __cinit__(self):
        self._held = 0

    def __init__(self, int code, bytes field not None, bytes without not None, dict answers not None, int version,
                 Py_ssize_t limit=16_777_216):
        self.enabled = True
        self._code = code
        self._field = field
        self._without = without
        self._answers = answers
        self._version = version
        self._limit = limit

    def __dealloc__(self):
        self._release()

    cdef void _release(self) noexcept:
        while self._held:
            self._held -= 1
            Py_DECREF(<object>self._bodies[self._held])

    cdef int respond(self, const uint8_t* data, Py_ssize_t length, object peer) except -1:
        cdef Py_ssize_t count = 0, i
        cdef int64_t position = 0, code = -1
        cdef const int64_t* row
        cdef const int64_t* head
        cdef uint8_t* header
        cdef uint8_t* end
        cdef PyObject* body
        self._release()
        if not self.enabled:
            return 0
        read_loop(data, length, self._limit, self._rows, self._heads, ROWS_MAX, &count, &position, &code)
        if code != self._code or position != length:
            return 0
        for i in range(count):
            row = self._rows + i * FRAME_COLUMNS
            head = self._heads + i * HEAD_COLUMNS
            if head[FLAG] != 0 or ext_value(data, row, head, self._without) is not None:
                return 0
            value = ext_value(data, row, head, self._field)
            if value is None:
                return 0
            body = PyDict_GetItem(self._answers, value)
            if body == NULL:
                return 0
            if not PyBytes_CheckExact(<object>body):
                raise TypeError(f"expected bytes, not {type(<object>body).__name__}")
            # The dict may let go of it while the pieces are in use: any allocation of Python's may collect garbage.
            Py_INCREF(<object>body)
            self._bodies[i] = body
            self._held = <int>i + 1
            header = self._headers + i * HEADER_FIXED_BOUND
            end = put_body_response_header(
                header, <int32_t>head[OPAQUE], self._version, row[SERIALIZE_TYPE] == BINARY,
                PyBytes_GET_SIZE(<object>body),
            )
            self.pieces[2 * i].iov_base = header
            self.pieces[2 * i].iov_len = end - header
            self.pieces[2 * i + 1].iov_base = PyBytes_AS_STRING(<object>body)
            self.pieces[2 * i + 1].iov_len = PyBytes_GET_SIZE(<object>body)
        return <int>(2 * count)
