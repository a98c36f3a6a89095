"""A compiled expression, for kernels that ask it of many messages."""

from libc.stdint cimport int64_t, uint8_t

cdef enum Outcome:
    FALSE
    TRUE
    UNKNOWN
    NOT_CONVERTIBLE
    NO_MEMORY


cdef class SqlFilter:
    cdef bytes kept_program
    cdef bytes kept_pool
    cdef bytes kept_names
    cdef const int64_t* program
    cdef const int64_t* program_end
    cdef const uint8_t* pool
    cdef const int64_t* names
    cdef int64_t count

    cdef int outcome_of(self, object properties) except -1
    # Returns the Outcome for one property string. May take the GIL, so that the text lies in no map of a file.
    cdef int match(self, const uint8_t* at, int64_t length) noexcept nogil
