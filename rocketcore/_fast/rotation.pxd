"""The rotation's tables, for the fault table, which walks them."""

cimport cython
from libc.stdint cimport int32_t


@cython.final
cdef class QueueRotation:
    cdef int32_t* brokers     # of queue i, its broker
    cdef int32_t* jumps       # of queue i, the next one that belongs to another broker; i itself if there is none
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t position

    cdef inline Py_ssize_t advance(self) noexcept:
        """Take the queue whose turn it is."""
        cdef Py_ssize_t taken = self.position
        self.position = taken + 1 if taken + 1 < self.count else 0
        return taken
