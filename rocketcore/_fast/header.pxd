"""Columns of the tables that ``header.read_frames`` and ``header.scan_send`` fill, for kernels that read them, and the
readers themselves.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from rocketcore._fast.status cimport Status

cdef enum:
    # heads: one row a command
    CODE
    LANGUAGE
    VERSION
    OPAQUE
    FLAG
    EXT_START
    EXT_END
    STATUS
    HEAD_COLUMNS

cdef enum:
    # send rows: one row a SEND_MESSAGE_V2 request; positions in data, those of the properties in scratch
    SEND_OPAQUE
    SEND_FLAG_BITS
    SEND_QUEUE_ID
    SEND_SYS_FLAG
    SEND_BORN_TIMESTAMP
    SEND_MESSAGE_FLAG
    SEND_RECONSUME_TIMES
    SEND_BATCH
    SEND_MAX_RECONSUME
    SEND_GROUP_START
    SEND_GROUP_LENGTH
    SEND_TOPIC_START
    SEND_TOPIC_LENGTH
    SEND_PROPERTIES_START
    SEND_PROPERTIES_LENGTH
    SEND_BODY_START
    SEND_BODY_LENGTH
    SEND_DEFAULT_TOPIC_START
    SEND_DEFAULT_TOPIC_LENGTH
    SEND_DEFAULT_QUEUES
    SEND_STATUS
    SEND_CODE
    SEND_VERSION
    SEND_SERIALIZE_TYPE
    SEND_COLUMNS


# Fills frame and head rows from data[position:end]; ``code`` becomes what ``read_frames`` returns.
cdef Status read_loop(
    const uint8_t* data, int64_t end, int64_t limit, int64_t* row, int64_t* head, Py_ssize_t capacity,
    Py_ssize_t* count, int64_t* position, int64_t* code,
) noexcept nogil

# The value of one ext field of a row that ``read_loop`` filled, as bytes; None where absent.
cdef object ext_value(const uint8_t* base, const int64_t* row, const int64_t* head, bytes name)

# Writes a frame with code 0 and no ext fields up to its body; at most 256 bytes. Returns their end.
cdef uint8_t* put_body_response_header(
    uint8_t* frame, int32_t opaque, int32_t version, bint binary, Py_ssize_t body_length
) noexcept nogil
