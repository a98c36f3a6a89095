"""Memory that grows with what is appended to it: a column of text, one after the other.

Text that is not valid UTF-8 is replaced as Java's decoder does it, so that what is gathered can be taken for text.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

from rocketcore._fast.record cimport rc_is_utf8, rc_put_bytes


cdef extern from "rc_hash.h" nogil:
    size_t rc_java_utf8(const uint8_t* at, const uint8_t* end, uint32_t* code_point)

cdef extern from "rc_json.h" nogil:
    uint8_t* rc_put_utf8(uint8_t* at, uint32_t code_point)

cdef enum:
    APPENDED
    TOO_MUCH
    NO_MEMORY


cdef struct Bytes:
    uint8_t* data
    int64_t length
    int64_t capacity
    int64_t limit  # of what ``reserve`` makes


cdef inline int ensure(Bytes* buffer, int64_t capacity) noexcept nogil:
    cdef uint8_t* data
    if capacity > buffer.capacity:
        data = <uint8_t*>realloc(buffer.data, capacity)
        if data == NULL:
            return NO_MEMORY
        buffer.data = data
        buffer.capacity = capacity
    return APPENDED


cdef inline int reserve(Bytes* buffer, int64_t more) noexcept nogil:
    """Make room for ``more`` bytes of text."""
    cdef int64_t wanted = buffer.length + more
    if wanted <= buffer.capacity:
        return APPENDED
    if wanted > buffer.limit:
        return TOO_MUCH
    return ensure(buffer, min(buffer.limit, max(wanted, 2 * buffer.capacity)))


cdef inline int append_replaced(Bytes* buffer, const uint8_t* text, int64_t length) noexcept nogil:
    """Append text that is not UTF-8, each malformed piece as U+FFFD: up to three bytes for one."""
    cdef const uint8_t* end = text + length
    cdef uint8_t* at
    cdef uint32_t code_point
    cdef int outcome = reserve(buffer, 3 * length)
    if outcome:
        return outcome
    at = buffer.data + buffer.length
    while text < end:
        text += rc_java_utf8(text, end, &code_point)
        at = rc_put_utf8(at, code_point)
    buffer.length = at - buffer.data
    return APPENDED


cdef inline int append_bytes(Bytes* buffer, const uint8_t* data, int64_t length) noexcept nogil:
    cdef int outcome = reserve(buffer, length)
    if outcome:
        return outcome
    rc_put_bytes(buffer.data + buffer.length, data, length)
    buffer.length += length
    return APPENDED


cdef inline bint is_ascii(const uint8_t* text, int64_t length) noexcept nogil:
    """Eight bytes at a time, the last eight perhaps twice: texts are short, a loop over their end costs more."""
    cdef uint64_t found = 0, eight
    cdef int64_t i = 0
    if length < 8:
        for i in range(length):
            found |= text[i]
        return found < 0x80
    while i < length - 8:
        memcpy(&eight, text + i, 8)
        found |= eight
        i += 8
    memcpy(&eight, text + length - 8, 8)
    return (found | eight) & <uint64_t>0x8080808080808080 == 0


cdef inline int append_text(Bytes* buffer, const uint8_t* text, int64_t length) noexcept nogil:
    if is_ascii(text, length) or rc_is_utf8(text, length):
        return append_bytes(buffer, text, length)
    return append_replaced(buffer, text, length)
