"""Guarded reads of a mapped file, for the loops of other kernels (rc_guard.h)."""

from libc.stdint cimport int64_t, uint8_t


cdef extern from "rc_guard.h" nogil:
    ctypedef struct rc_guard:
        const uint8_t* fault
    bint rc_try(rc_guard guard)
    void rc_enter(rc_guard* guard, rc_guard** top, const uint8_t* begin, int64_t length)
    void rc_leave(rc_guard* guard, rc_guard** top)


cdef rc_guard** guards() noexcept nogil
cdef int64_t page_before(const uint8_t* data, const uint8_t* fault) noexcept nogil
