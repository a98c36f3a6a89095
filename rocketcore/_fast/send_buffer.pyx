"""Memory that is filled, sent from where it lies, and filled again once nobody reads it any more.

Whoever sends takes a memoryview, and so do transports of what they could not write yet; each counts as a reader until
it is gone. So an answer that came early, a retry, a half-written request and a connection that hangs need no rule of
their own: as long as one of them may still read the bytes, there is a reader.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc


@cython.auto_pickle(False)
@cython.final
cdef class SendBuffer:
    """``size`` bytes of writable memory, not cleared; pages that nobody writes to take no memory.

    readers  views of it that exist; 0: it may be filled again
    raises   ValueError for a size below 1, MemoryError
    """

    cdef readonly Py_ssize_t readers
    cdef readonly Py_ssize_t size
    cdef void* _memory

    def __cinit__(self, Py_ssize_t size):
        if size < 1:
            raise ValueError(f"a buffer of {size} bytes")
        self._memory = PyMem_RawMalloc(size)
        if self._memory == NULL:
            raise MemoryError
        self.size = size

    def __dealloc__(self):
        PyMem_RawFree(self._memory)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self._memory, self.size, False, flags)
        self.readers += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.readers -= 1
