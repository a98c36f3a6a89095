"""Columns of a frame row, for kernels that read the table ``frame.scan`` filled, and the reader of one frame."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from rocketcore._fast.status cimport (
    FRAME_TOO_LARGE,
    FRAME_TOO_SHORT,
    HEADER_PAST_FRAME,
    INCOMPLETE,
    OK,
    SERIALIZE_TYPE_UNKNOWN,
    Status,
)


cdef extern from "rc_bytes.h" nogil:
    int32_t rc_get_i32(const uint8_t* at)
    uint32_t rc_get_u24(const uint8_t* at)

cpdef enum:
    FRAME_START
    HEADER_START
    HEADER_LENGTH
    BODY_START
    BODY_LENGTH
    SERIALIZE_TYPE
    FRAME_COLUMNS


cdef inline Status split(const uint8_t* data, int64_t at, int64_t end, int64_t limit, int64_t* row) noexcept nogil:
    """Fill one row from the frame at ``at``; INCOMPLETE if it is not all there yet and nothing is wrong so far."""
    cdef int64_t length, header_length
    if end - at < 4:
        return INCOMPLETE
    length = rc_get_i32(data + at)
    if length < 4:
        return FRAME_TOO_SHORT
    if length + 4 > limit:
        return FRAME_TOO_LARGE
    if end - at < 8:
        return INCOMPLETE
    if data[at + 4] > 1:
        return SERIALIZE_TYPE_UNKNOWN
    header_length = rc_get_u24(data + at + 5)
    if header_length > length - 4:
        return HEADER_PAST_FRAME
    if length + 4 > end - at:
        return INCOMPLETE
    row[FRAME_START] = at
    row[HEADER_START] = at + 8
    row[HEADER_LENGTH] = header_length
    row[BODY_START] = at + 8 + header_length
    row[BODY_LENGTH] = length - 4 - header_length
    row[SERIALIZE_TYPE] = data[at + 4]
    return OK
