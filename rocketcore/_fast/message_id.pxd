"""Offset message ids, and the hexadecimal digits of them and of unique keys, written inline."""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef extern from "rc_bytes.h" nogil:
    uint8_t* rc_put_64(uint8_t* at, uint64_t value)


cdef inline uint8_t* put_hex(uint8_t* at, const uint8_t* data, int64_t length) noexcept nogil:
    """Write two upper-case digits a byte."""
    cdef const char* digits = b"0123456789ABCDEF"
    cdef int64_t i
    for i in range(length):
        at[0] = digits[data[i] >> 4]
        at[1] = digits[data[i] & 15]
        at += 2
    return at


cdef inline uint8_t* put_id(
    uint8_t* at, const uint8_t* store_host, int64_t host_length, int64_t physical_offset
) noexcept nogil:
    """Write the id of a place in a broker's log: 16 digits and two for each byte of the host."""
    cdef uint8_t offset[8]
    rc_put_64(offset, <uint64_t>physical_offset)
    return put_hex(put_hex(at, store_host, host_length), offset, 8)
