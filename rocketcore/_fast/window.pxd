"""A stretch of a queue that pulls are answered from, for the kernel that answers them."""

from libc.stdint cimport int32_t, int64_t

from rocketcore._fast.consume_queue cimport Limits


cdef class Window:
    cdef readonly object log
    cdef object _queue
    cdef bytes _units
    cdef const int64_t[::1] _codes
    cdef Limits _limits
    cdef int64_t _first
    cdef int64_t _most
    cdef int64_t _readable_from
    cdef int64_t _readable_to
    cdef int64_t log_start
    cdef int32_t queue_id
    cdef bint sealed
    cdef bint _believes
    # The bounds of the queue, as the last ``find`` saw them.
    cdef int64_t least
    cdef int64_t greatest

    cdef Py_ssize_t find(
        self, int64_t queue_offset, bint is_new, int64_t* rows, Py_ssize_t capacity, Py_ssize_t* examined
    ) except -1
