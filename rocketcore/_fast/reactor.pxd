"""What a kernel that answers requests by itself implements, and the transport that it answers on."""

from libc.stdint cimport uint8_t

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len

cdef enum:
    PIECES_MAX = 512  # of one answer; the kernel takes 1,024 at a time


cdef class Responder:
    """Answers what one read brought before a protocol sees it, or leaves all of it alone."""

    cdef iovec pieces[PIECES_MAX]

    cdef int respond(self, const uint8_t* data, Py_ssize_t length, object peer) except -1
