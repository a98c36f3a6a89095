"""Frame boundaries in a receive buffer, and the split of each frame into header and body.

layout    totalLength i32 (bytes that follow) · serializeType u8 · headerLength u24 · header · body, big-endian
limits    0 JSON or 1 binary header; headerLength ≤ totalLength − 4; totalLength + 4 ≤ limit
RocketMQ  remoting/netty/NettyDecoder.java, remoting/protocol/RemotingCommand.java
"""

from libc.stdint cimport int64_t, uint8_t

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, borrow_rows, check_range, give_back
from rocketcore._fast.status cimport INCOMPLETE, OK, Status, fail


cdef Status scan_loop(
    const uint8_t* data, int64_t start, int64_t end, int64_t limit, int64_t* rows, Py_ssize_t capacity,
    Py_ssize_t* count, int64_t* position,
) noexcept nogil:
    cdef Status status = OK
    cdef Py_ssize_t found = 0
    cdef int64_t at = start
    cdef int64_t* row = rows
    while found < capacity:
        status = split(data, at, end, limit, row)
        if status != OK:
            break
        at = row[BODY_START] + row[BODY_LENGTH]
        row += FRAME_COLUMNS
        found += 1
    count[0] = found
    position[0] = at
    return status


def scan(data, Py_ssize_t start, Py_ssize_t end, rows, Py_ssize_t limit=16_777_216):
    """Find the frames in ``data[start:end]``.

    data      bytes-like, read only, not kept
    rows      int64[k, 6], filled from row 0: FRAME_START HEADER_START HEADER_LENGTH BODY_START BODY_LENGTH
              SERIALIZE_TYPE; positions are absolute in ``data``. The scan stops when the table is full
    limit     most bytes of one frame, its length word included
    returns   (count, position): rows filled, and the first byte not consumed: the start of an incomplete frame, or of
              the first frame that found no row, or ``end``
    raises    DecodeError or FrameTooLarge if the *first* frame is bad; good frames before a bad one are returned and
              the error comes with the next call. A length word alone is enough to refuse a frame
    RocketMQ  remoting/netty/NettyDecoder.java
    """
    cdef Borrowed held
    cdef Py_ssize_t count = 0
    cdef int64_t position = start
    cdef Status status
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        check_range(source, start, end)
        table = borrow_rows(&held, rows, FRAME_COLUMNS, True)
        status = scan_loop(
            <const uint8_t*>source.buf, start, end, limit, <int64_t*>table.buf, table.shape[0], &count, &position
        )
    finally:
        give_back(&held)
    if count == 0 and status != OK and status != INCOMPLETE:
        raise fail(status, position)
    return count, position
