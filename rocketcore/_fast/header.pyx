"""Headers of send requests, read into typed columns."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int64_t, uint8_t

from rocketcore._fast.command cimport (
    RESPONSE,
    Text,
    is_text,
    next_binary_entry,
    next_json_entry,
    rc_get_decimal,
    rc_is_utf8,
)
from rocketcore._fast.frame cimport (
    BINARY,
    BODY_LENGTH,
    BODY_START,
    CODE,
    EXT_END,
    EXT_START,
    FLAG,
    FRAME_COLUMNS,
    HEAD_COLUMNS,
    HEADER_LENGTH,
    HEADER_START,
    OPAQUE,
    SERIALIZE_TYPE,
    STATUS,
    VERSION,
    ext_in,
    row_in,
)
from rocketcore._fast.status cimport OK
from rocketcore._fast.table cimport take_bytes, take_rows


cdef extern from "rc_bytes.h" nogil:
    uint8_t* rc_put_bytes(uint8_t* at, const void* source, size_t length)

cdef extern from "rc_json.h" nogil:
    uint8_t* rc_json_unescape(uint8_t* out, const uint8_t* at, const uint8_t* end)


cdef enum:
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320


cdef enum:
    # Bit of a required field in the mask of those seen; the keys are the letters a … n.
    SEND_REQUIRED = 0xff


cdef inline bint read_send(const uint8_t* data, const int64_t* row, const int64_t* head, int64_t* out,
                           Text* properties) noexcept nogil:
    """Fill a send row except its properties; False if the request needs the general path."""
    cdef const uint8_t* at = data + head[EXT_START]
    cdef const uint8_t* end = data + head[EXT_END]
    cdef const uint8_t* header_end = data + row[HEADER_START] + row[HEADER_LENGTH]
    cdef Text key, value
    cdef bint binary = row[SERIALIZE_TYPE] == BINARY, check = False, known
    cdef int seen = 0
    cdef uint8_t letter
    out[SEND_RECONSUME_TIMES] = 0
    out[SEND_BATCH] = 0
    out[SEND_MAX_RECONSUME] = -1
    properties.start = properties.end = NULL
    properties.escaped = False
    if binary:
        # One look at all, length words included: only where one has its top bit set is each text looked at.
        check = not rc_is_utf8(at, end - at)
    while at < end:
        if binary:
            if next_binary_entry(&at, header_end, &key, &value) != OK:
                return False
            if check and not rc_is_utf8(value.start, value.end - value.start):
                return False
        elif next_json_entry(&at, end, &key, &value) != 1:
            return False
        if key.end - key.start != 1:
            if is_text(&key, "bname", 5):
                continue
            return False
        letter = key.start[0]
        if letter == c"i":
            properties[0] = value
            continue
        if value.escaped or value.start == value.end:
            return False
        if letter == c"a":
            out[SEND_GROUP_START] = value.start - data
            out[SEND_GROUP_LENGTH] = value.end - value.start
            known = True
        elif letter == c"b":
            out[SEND_TOPIC_START] = value.start - data
            out[SEND_TOPIC_LENGTH] = value.end - value.start
            known = True
        elif letter == c"c":
            out[SEND_DEFAULT_TOPIC_START] = value.start - data
            out[SEND_DEFAULT_TOPIC_LENGTH] = value.end - value.start
            known = True
        elif letter == c"d":
            known = rc_get_decimal(value.start, value.end, INT32_MIN, INT32_MAX, &out[SEND_DEFAULT_QUEUES])
        elif letter == c"e":
            known = rc_get_decimal(value.start, value.end, INT32_MIN, INT32_MAX, &out[SEND_QUEUE_ID])
        elif letter == c"f":
            known = rc_get_decimal(value.start, value.end, INT32_MIN, INT32_MAX, &out[SEND_SYS_FLAG])
        elif letter == c"g":
            known = rc_get_decimal(value.start, value.end, INT64_MIN, INT64_MAX, &out[SEND_BORN_TIMESTAMP])
        elif letter == c"h":
            known = rc_get_decimal(value.start, value.end, INT32_MIN, INT32_MAX, &out[SEND_MESSAGE_FLAG])
        elif letter == c"j":
            known = rc_get_decimal(value.start, value.end, INT32_MIN, INT32_MAX, &out[SEND_RECONSUME_TIMES])
        elif letter == c"k":
            known = is_text(&value, "false", 5)
        elif letter == c"l":
            known = rc_get_decimal(value.start, value.end, INT32_MIN, INT32_MAX, &out[SEND_MAX_RECONSUME])
        elif letter == c"m":
            out[SEND_BATCH] = is_text(&value, "true", 4)
            known = out[SEND_BATCH] or is_text(&value, "false", 5)
        else:
            known = letter == c"n"
        if not known:
            return False
        if letter <= c"h":
            seen |= 1 << (letter - c"a")
    out[SEND_OPAQUE] = head[OPAQUE]
    out[SEND_FLAG_BITS] = head[FLAG]
    out[SEND_CODE] = head[CODE]
    out[SEND_VERSION] = head[VERSION]
    out[SEND_SERIALIZE_TYPE] = row[SERIALIZE_TYPE]
    out[SEND_BODY_START] = row[BODY_START]
    out[SEND_BODY_LENGTH] = row[BODY_LENGTH]
    return seen == SEND_REQUIRED


cdef Py_ssize_t scan_send_loop(
    const uint8_t* data, const int64_t* row, const int64_t* head, Py_ssize_t count, int64_t* out,
    uint8_t* scratch, Py_ssize_t room,
) noexcept nogil:
    cdef Py_ssize_t done = 0, used = 0, length
    cdef Text properties
    cdef bint usual
    cdef uint8_t* stop
    while done < count:
        usual = (
            head[STATUS] == 0
            and (head[CODE] == SEND_MESSAGE_V2 or head[CODE] == SEND_BATCH_MESSAGE)
            and not head[FLAG] & RESPONSE
            and ext_in(row, head)
            and read_send(data, row, head, out, &properties)
        )
        if usual:
            length = properties.end - properties.start
            if length > room - used:
                if used != 0:
                    break
                usual = False  # larger than the whole scratch: it would never fit
            else:
                if properties.escaped:
                    stop = rc_json_unescape(scratch + used, properties.start, properties.end)
                else:
                    stop = rc_put_bytes(scratch + used, properties.start, length)
                out[SEND_PROPERTIES_START] = used
                out[SEND_PROPERTIES_LENGTH] = stop - (scratch + used)
                used = stop - scratch
        out[SEND_STATUS] = 0 if usual else 1
        row += FRAME_COLUMNS
        head += HEAD_COLUMNS
        out += SEND_COLUMNS
        done += 1
    return done


def scan_send(data, rows, heads, Py_ssize_t first, Py_ssize_t last, out, scratch):
    """Read the headers of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE requests (310, 320) into typed columns.

    data      bytes-like of which ``rows`` and ``heads`` were read
    first     first row and the one after the last
    out       int64[k, 24], row 0 is for ``first``: the SEND_… columns. GROUP, TOPIC, DEFAULT_TOPIC and BODY are ranges
              of ``data``, PROPERTIES are ranges of ``scratch``. FLAG_BITS is the command's flag, MESSAGE_FLAG field h;
              BATCH 1 for m=true; MAX_RECONSUME −1 where absent
    scratch   writable bytes-like that takes the property texts, from its start
    returns   rows done: it stops when ``out`` or ``scratch`` is full
    status    0 the row is filled: required fields present, numbers in range, text valid UTF-8. 1 use the general path:
              the header is unusual or lacks a field, has one this reader does not know, unit mode, a number that does
              not parse, or properties longer than ``scratch``
    raises    ValueError for tables of another shape or rows outside ``data``
    RocketMQ  remoting/protocol/header/SendMessageRequestHeaderV2.java ``decode``
    """
    cdef Py_buffer source, frames, table, target, room
    cdef Py_ssize_t count, i
    cdef const int64_t* row
    take_bytes(data, &source)
    try:
        take_rows(rows, &frames, FRAME_COLUMNS, False)
        try:
            take_rows(heads, &table, HEAD_COLUMNS, False)
            try:
                take_rows(out, &target, SEND_COLUMNS, True)
                try:
                    if first < 0 or last < first or last > frames.shape[0] or last > table.shape[0]:
                        raise ValueError(f"rows {first}:{last}, but there are {frames.shape[0]} and {table.shape[0]}")
                    row = <const int64_t*>frames.buf
                    for i in range(first, last):
                        if not row_in(row + i * FRAME_COLUMNS, source.len):
                            raise ValueError(f"row {i} is not within the {source.len} bytes of data")
                    count = min(last - first, target.shape[0])
                    PyObject_GetBuffer(scratch, &room, PyBUF_SIMPLE | PyBUF_WRITABLE)
                    try:
                        return scan_send_loop(
                            <const uint8_t*>source.buf, row + first * FRAME_COLUMNS,
                            <const int64_t*>table.buf + first * HEAD_COLUMNS, count, <int64_t*>target.buf,
                            <uint8_t*>room.buf, room.len,
                        )
                    finally:
                        PyBuffer_Release(&room)
                finally:
                    PyBuffer_Release(&target)
            finally:
                PyBuffer_Release(&table)
        finally:
            PyBuffer_Release(&frames)
    finally:
        PyBuffer_Release(&source)
