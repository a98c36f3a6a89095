"""Read a file through a map: a page that cannot be read is an error of that read, and not the end of the process.

What is not in memory makes a reader wait for the disk: ``first_absent`` says where that would be.

A medium error, or a file that was cut underneath, reaches a reader of a map as SIGBUS. This module owns the handler for
it, and the guards of every thread; the kernels that walk and gather take theirs from here.
"""

import errno

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, check_range, give_back


cdef extern from "rc_guard_handler.h" nogil:
    ctypedef struct rc_guard:
        const uint8_t* fault
    rc_guard* rc_guards  # the innermost guard of the calling thread
    int rc_install()
    bint rc_try(rc_guard guard)
    void rc_enter(rc_guard* guard, rc_guard** top, const uint8_t* begin, int64_t length)
    void rc_leave(rc_guard* guard, rc_guard** top)

cdef extern from "sys/mman.h" nogil:
    void* mmap(void* address, size_t length, int protection, int flags, int fd, int64_t position)
    int munmap(void* address, size_t length)
    int c_madvise "madvise"(void* address, size_t length, int advice)
    int PROT_READ, MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE, MAP_FIXED
    void* MAP_FAILED

cdef extern from "unistd.h" nogil:
    long sysconf(int name)
    int _SC_PAGESIZE

cdef extern from "sys/vfs.h" nogil:
    struct c_statfs "statfs":
        long f_type
    int statfs(const char* path, c_statfs* found)

cdef extern from "sys/mman.h" nogil:
    int mincore(void* address, size_t length, unsigned char* pages)

cdef enum:
    ASKED_PAGES = 1024


cdef const uint8_t* guarded(Reading read, void* task, const uint8_t* data, int64_t length) noexcept nogil:
    cdef rc_guard guard
    rc_enter(&guard, &rc_guards, data, length)
    if rc_try(guard):
        read(task)
        rc_leave(&guard, &rc_guards)
        return NULL
    return guard.fault


cdef int64_t page_before(const uint8_t* data, const uint8_t* fault) noexcept nogil:
    """Return how many bytes of ``data`` lie before the page of ``fault``; 0 where it begins on that page."""
    cdef int64_t page = sysconf(_SC_PAGESIZE)
    cdef int64_t before = (<int64_t><size_t>fault // page) * page - <int64_t><size_t>data
    return before if before > 0 else 0


cdef struct Copy:
    uint8_t* target
    const uint8_t* source
    Py_ssize_t length


cdef void copy(void* task) noexcept nogil:
    memcpy((<Copy*>task).target, (<Copy*>task).source, (<Copy*>task).length)


def read(data, Py_ssize_t start, Py_ssize_t end):
    """Return a copy of ``data[start:end]``.

    data      bytes-like, mostly a map of a file
    raises    OSError (EIO) when a page of it cannot be read; the text says at which byte of ``data``. ValueError for a
              range that is not within it
    """
    cdef Borrowed held
    cdef bytes copied
    cdef const uint8_t* fault
    cdef Copy task
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        check_range(source, start, end)
        copied = PyBytes_FromStringAndSize(NULL, end - start)
        task = Copy(<uint8_t*>PyBytes_AS_STRING(copied), <const uint8_t*>source.buf + start, end - start)
        # With the GIL, as a slice would: most reads are of one record, and the pages are in memory.
        fault = guarded(copy, &task, task.source, task.length)
        if fault != NULL:
            raise OSError(errno.EIO, f"the page at byte {fault - <const uint8_t*>source.buf} cannot be read")
        return copied
    finally:
        give_back(&held)


cdef int64_t absent(const uint8_t* data, int64_t length, int64_t page) noexcept nogil:
    """Return how many bytes at ``data``, where a page begins, are in memory."""
    cdef unsigned char pages[ASKED_PAGES]
    cdef int64_t at = 0, asked, i
    while at < length:
        asked = min(length - at, page * ASKED_PAGES)
        if mincore(<void*>(data + at), asked, pages) != 0:
            return length
        for i in range((asked + page - 1) // page):
            if not pages[i] & 1:
                return at + i * page
        at += asked
    return length


def first_absent(data, Py_ssize_t start, Py_ssize_t end):
    """Return the first byte of ``data[start:end]`` that is not in memory; ``end`` where all is, or nobody can tell.

    data      bytes-like, a map of a file that this process may write, or owns: of others the system does not tell
    raises    ValueError for a range that is not within ``data``
    """
    cdef Borrowed held
    cdef const uint8_t* begin
    cdef int64_t page = sysconf(_SC_PAGESIZE), before, found
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        check_range(source, start, end)
        begin = <const uint8_t*>source.buf + start
        before = <int64_t>(<size_t>begin % <size_t>page)
        found = absent(begin - before, end - start + before, page) - before if end > start else 0
        return min(end, start + <Py_ssize_t>max(found, 0))
    finally:
        give_back(&held)


def file_system_type(bytes path not None):
    """Return the magic number of the file system that a path is on (statfs(2)); 0 where the system does not say."""
    cdef c_statfs found
    return <uint32_t>found.f_type if statfs(path, &found) == 0 else 0


cdef class PaddedMap:
    """A read-only buffer of ``size`` bytes: the first ``length`` of a file, and zeros behind them.

    fd        open for reading; not kept
    raises    OSError
    Views of it must be released before ``close``: nobody counts them.
    """

    cdef void* data
    cdef Py_ssize_t size

    def __cinit__(self, int fd, Py_ssize_t length, Py_ssize_t size):
        if not 0 <= length <= size or size == 0:
            raise ValueError(f"{length} of {size} bytes")
        self.data = MAP_FAILED
        self.size = size
        self.data = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        if self.data == MAP_FAILED:
            raise OSError(errno.ENOMEM, f"no room for a map of {size} bytes")
        # The kernel fills the last page of a file with zeros.
        if length and mmap(self.data, length, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED:
            raise OSError(errno.EIO, f"{length} bytes of the file cannot be mapped")

    def __dealloc__(self):
        self.close()

    def __getbuffer__(self, Py_buffer* view, int flags):
        if self.data == MAP_FAILED:
            raise ValueError("the map is closed")
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)

    def madvise(self, int advice, Py_ssize_t start, Py_ssize_t length):
        """Give advice about bytes from ``start`` on, where a page begins; see madvise(2)."""
        if not 0 <= start <= start + length <= self.size:
            raise ValueError(f"{length} bytes from {start} of {self.size}")
        if self.data != MAP_FAILED:
            c_madvise(<char*>self.data + start, length, advice)

    def close(self):
        if self.data != MAP_FAILED:
            munmap(self.data, self.size)
            self.data = MAP_FAILED


def install():
    """Make the handler the process's, where it is not; called at import, and before a file is mapped.

    raises  OSError
    """
    if rc_install() != 0:
        raise OSError(errno.EINVAL, "no handler for SIGBUS could be set")


install()
