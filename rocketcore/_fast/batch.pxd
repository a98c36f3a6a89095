"""The layout of a client batch, for the kernels that read and write its elements.

layout    totalSize i32 · magic i32 (0) · bodyCRC i32 (0) · flag i32 · body i32 + n · properties i16 + n, big-endian;
          elements back to back
RocketMQ  common/message/MessageDecoder.java (encodeMessage)
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "rc_bytes.h" nogil:
    uint8_t* rc_put_32(uint8_t* at, uint32_t value)
    uint8_t* rc_put_64(uint8_t* at, uint64_t value)

cpdef enum:
    ELEMENT_FIXED_SIZE = 22  # of the shortest element

# One row an element.
cpdef enum:
    BATCH_FLAG
    BATCH_BODY_START
    BATCH_BODY_LENGTH
    BATCH_PROPERTIES_START
    BATCH_PROPERTIES_LENGTH
    BATCH_SIZE
    BATCH_COLUMNS

# What ``put_batch`` says of an element.
cpdef enum:
    PUT_PHYSICAL_OFFSET
    PUT_SIZE
    PUT_COLUMNS


cdef inline uint8_t* put_element_head(uint8_t* at, int64_t size, int32_t flag, int64_t body_length) noexcept nogil:
    """Write what is before the body."""
    at = rc_put_32(at, <uint32_t>size)
    at = rc_put_64(at, 0)  # magic and CRC: the broker computes its own
    at = rc_put_32(at, <uint32_t>flag)
    return rc_put_32(at, <uint32_t>body_length)
