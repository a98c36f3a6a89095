"""Frames in a receive buffer, and the fixed fields of their headers, in one pass.

Formats: frame.pxd, command.pxd. RocketMQ: remoting/netty/NettyDecoder.java, remoting/protocol/RemotingCommand.java
"""

from libc.stdint cimport int64_t, uint8_t

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, borrow_rows, check_range, give_back
from rocketcore._fast.command cimport RESPONSE, Head, read_binary, read_json
from rocketcore._fast.status cimport INCOMPLETE, OK, Status, fail


cdef inline void read_head(const uint8_t* data, const int64_t* row, int64_t* out) noexcept nogil:
    cdef Head head
    cdef const uint8_t* start = data + row[HEADER_START]
    cdef const uint8_t* stopped
    cdef bint usual
    if row[SERIALIZE_TYPE] == BINARY:
        usual = read_binary(start, start + row[HEADER_LENGTH], &head, &stopped) == OK
    else:
        usual = read_json(start, start + row[HEADER_LENGTH], &head)
    out[STATUS] = 0 if usual else 1
    if not usual:
        return
    out[CODE] = head.code
    out[LANGUAGE] = head.language
    out[VERSION] = head.version
    out[OPAQUE] = head.opaque
    out[FLAG] = head.flag
    if head.ext.start == NULL:
        out[EXT_START] = out[EXT_END] = 0
    else:
        out[EXT_START] = head.ext.start - data
        out[EXT_END] = head.ext.end - data


cdef Status read_loop(
    const uint8_t* data, int64_t end, int64_t limit, int64_t* row, int64_t* head, Py_ssize_t capacity,
    Py_ssize_t* count, int64_t* position, int64_t* code,
) noexcept nogil:
    cdef Status status = OK
    cdef Py_ssize_t found = 0
    cdef int64_t at = position[0], shared = -1
    cdef bint mixed = False
    while found < capacity:
        status = split(data, at, end, limit, row)
        if status != OK:
            break
        at = row[BODY_START] + row[BODY_LENGTH]
        read_head(data, row, head)
        if head[STATUS] != 0 or head[FLAG] & RESPONSE or (found != 0 and shared != head[CODE]):
            mixed = True
        else:
            shared = head[CODE]
        row += FRAME_COLUMNS
        head += HEAD_COLUMNS
        found += 1
    count[0] = found
    position[0] = at
    code[0] = -1 if mixed else shared
    return status


def read_frames(data, Py_ssize_t start, rows, heads, Py_ssize_t limit=16_777_216):
    """Find the frames in ``data[start:]`` and read the fixed fields of their headers.

    data      bytes-like, read only, not kept
    rows      int64[k, 6], filled from row 0: FRAME_START HEADER_START HEADER_LENGTH BODY_START BODY_LENGTH
              SERIALIZE_TYPE; positions are absolute in ``data``
    heads     int64[k, 8]: CODE LANGUAGE (ordinal, −1 unknown) VERSION OPAQUE FLAG, EXT_START and EXT_END (the entries
              of the ext fields in ``data``, both 0 where there are none), STATUS
    limit     most bytes of one frame, its length word included
    status    0 the row is filled, and every entry of the ext fields has been checked; 1 the header is unusual JSON or
              broken, the other columns hold nothing: use ``command.read`` and the general reader
    returns   (count, position, code): rows filled, until a table is full; the first byte not consumed, that is, the
              start of a frame that is incomplete, bad or found no row, or the end; the code of all of them, or −1
              where they are none, differ, or one is a response or has another STATUS than 0
    raises    DecodeError or FrameTooLarge if the *first* frame is bad: good frames before a bad one are returned, and
              the error comes with the next call. A length word alone is enough to refuse a frame. ValueError for
              tables of another shape
    RocketMQ  remoting/netty/NettyDecoder.java, remoting/protocol/RemotingCommand.java ``headerDecode``
    """
    cdef Borrowed held
    cdef Py_ssize_t count = 0
    cdef int64_t position = start, code = -1
    cdef Status status
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        check_range(source, start, source.len)
        frames = borrow_rows(&held, rows, FRAME_COLUMNS, True)
        table = borrow_rows(&held, heads, HEAD_COLUMNS, True)
        status = read_loop(
            <const uint8_t*>source.buf, source.len, limit, <int64_t*>frames.buf, <int64_t*>table.buf,
            min(frames.shape[0], table.shape[0]), &count, &position, &code,
        )
    finally:
        give_back(&held)
    if count == 0 and status != OK and status != INCOMPLETE:
        raise fail(status, position)
    return count, position, code
