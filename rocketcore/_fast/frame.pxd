"""A frame, and the two rows that are kept of it: where its parts are, and what the fixed fields of its header say.

layout    totalLength i32 (bytes that follow) · serializeType u8 · headerLength u24 · header · body, big-endian
limits    headerLength ≤ totalLength − 4; totalLength + 4 ≤ limit
rows      positions are absolute in the data; whoever takes rows from a caller checks them (``row_in``, ``ext_in``),
          because they need not come from ``read_frames``
"""

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

cdef enum:
    # serializeType
    JSON = 0
    BINARY = 1

cpdef enum:
    # the frame row
    FRAME_START
    HEADER_START
    HEADER_LENGTH
    BODY_START
    BODY_LENGTH
    SERIALIZE_TYPE
    FRAME_COLUMNS

cpdef enum:
    # the head row; where STATUS is not 0, it alone is set
    CODE
    LANGUAGE   # ordinal, −1 unknown
    VERSION
    OPAQUE
    FLAG
    EXT_START  # the entries of the ext fields, each checked; both 0 where there are none
    EXT_END
    STATUS     # 0, or 1: the header is unusual JSON or broken
    HEAD_COLUMNS


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
    if data[at + 4] > BINARY:
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


cdef inline bint row_in(const int64_t* row, Py_ssize_t length) noexcept nogil:
    """True if header and body of a frame row lie within the data."""
    return (
        0 <= row[HEADER_START] <= length and 0 <= row[HEADER_LENGTH] <= length - row[HEADER_START]
        and 0 <= row[BODY_START] <= length and 0 <= row[BODY_LENGTH] <= length - row[BODY_START]
    )


cdef inline bint ext_in(const int64_t* row, const int64_t* head) noexcept nogil:
    """True if the ext fields of a head row lie within the header of its frame row."""
    return row[HEADER_START] <= head[EXT_START] <= head[EXT_END] <= row[HEADER_START] + row[HEADER_LENGTH]


# Fills frame and head rows from data[position:end]; ``code`` becomes what ``read_frames`` returns.
cdef Status read_loop(
    const uint8_t* data, int64_t end, int64_t limit, int64_t* row, int64_t* head, Py_ssize_t capacity,
    Py_ssize_t* count, int64_t* position, int64_t* code,
) noexcept nogil
