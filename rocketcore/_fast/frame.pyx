"""Frame boundaries in a receive buffer, and the split of each frame into header and body.

layout    totalLength i32 (bytes that follow) · serializeType u8 · headerLength u24 · header · body, big-endian
limits    0 JSON or 1 binary header; headerLength ≤ totalLength − 4; totalLength + 4 ≤ limit
RocketMQ  remoting/netty/NettyDecoder.java, remoting/protocol/RemotingCommand.java
"""

from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport int64_t, uint8_t

from rocketcore._fast.status cimport INCOMPLETE, OK, Status, fail
from rocketcore._fast.table cimport take_bytes, take_range, take_rows


# The C enum owns these names in this file, so the Python ints go in by way of the module dict.
globals().update({
    "FRAME_START": <int>FRAME_START,
    "HEADER_START": <int>HEADER_START,
    "HEADER_LENGTH": <int>HEADER_LENGTH,
    "BODY_START": <int>BODY_START,
    "BODY_LENGTH": <int>BODY_LENGTH,
    "SERIALIZE_TYPE": <int>SERIALIZE_TYPE,
    "COLUMNS": <int>FRAME_COLUMNS,
})


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
    cdef Py_buffer source, table
    cdef Py_ssize_t count = 0
    cdef int64_t position = start
    cdef Status status
    take_bytes(data, &source)
    try:
        take_range(&source, start, end)
        take_rows(rows, &table, FRAME_COLUMNS, True)
        try:
            status = scan_loop(
                <const uint8_t*>source.buf, start, end, limit, <int64_t*>table.buf, table.shape[0], &count, &position
            )
        finally:
            PyBuffer_Release(&table)
    finally:
        PyBuffer_Release(&source)
    if count == 0 and status != OK and status != INCOMPLETE:
        raise fail(status, position)
    return count, position
