"""What both Arrow kernels write: message ids are upper-case hex."""

from libc.stdint cimport uint8_t, uint32_t


cdef inline uint8_t* put_hex_32(uint8_t* at, uint32_t value) noexcept nogil:
    cdef const char* digits = b"0123456789ABCDEF"
    cdef int shift = 28
    while shift >= 0:
        at[0] = digits[(value >> shift) & 15]
        at += 1
        shift -= 4
    return at
