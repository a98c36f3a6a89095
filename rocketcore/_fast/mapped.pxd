"""Guarded reads of a mapped file, for the loops of other kernels (rc_guard.h)."""

from libc.stdint cimport int64_t, uint8_t

# Reads the range that it is called for and writes elsewhere: no Python, no lock, no other guard inside. It may be left
# wherever it reads the range, so nothing else is half done there. It keeps all that it works with in ``task``, of which
# a call that was left in its midst may have changed what it says are its results.
ctypedef void (*Reading)(void* task) noexcept nogil

# Calls ``read``, and returns NULL, or the address in ``data[:length]`` that could not be read.
cdef const uint8_t* guarded(Reading read, void* task, const uint8_t* data, int64_t length) noexcept nogil
cdef int64_t page_before(const uint8_t* data, const uint8_t* fault) noexcept nogil
