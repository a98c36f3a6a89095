"""Text as Java reads it: what becomes of malformed UTF-8 and of unpaired surrogates, and what is true."""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t


cdef extern from "rc_hash.h" nogil:
    bint rc_is_utf8(const uint8_t* at, size_t length)
    size_t rc_java_utf8(const uint8_t* at, const uint8_t* end, uint32_t* code_point)

cdef extern from "rc_json.h" nogil:
    uint8_t* rc_put_utf8(uint8_t* out, uint32_t code_point)


cdef inline bint is_true(const uint8_t* text, int64_t length) noexcept nogil:
    """Java's Boolean.parseBoolean."""
    return (
        length == 4 and text[0] | 0x20 == c"t" and text[1] | 0x20 == c"r" and text[2] | 0x20 == c"u"
        and text[3] | 0x20 == c"e"
    )


cdef inline object to_str(const uint8_t* start, Py_ssize_t length):
    """Decode UTF-8 as Java does: what is malformed becomes U+FFFD, by Java's idea of one malformed piece."""
    cdef const uint8_t* end = start + length
    cdef uint32_t code_point
    cdef uint8_t* text
    cdef uint8_t* at
    if rc_is_utf8(start, length):
        return PyUnicode_DecodeUTF8(<const char*>start, length, NULL)
    text = at = <uint8_t*>PyMem_Malloc(3 * length)
    if text == NULL:
        raise MemoryError
    try:
        while start < end:
            start += rc_java_utf8(start, end, &code_point)
            at = rc_put_utf8(at, code_point)
        return PyUnicode_DecodeUTF8(<const char*>text, at - text, NULL)
    finally:
        PyMem_Free(text)


cdef inline str replace_surrogates(str text):
    """Return text that has UTF-8, as Java writes it: paired surrogates joined, an unpaired one as a question mark."""
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return joined.encode("utf-8", "replace").decode()
